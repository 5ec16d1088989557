"""What tells models apart: one bit of one parameter, never where the parameters lie."""

import dataclasses
import os
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from evaljax.models import assemble, config, fingerprint

CONFIG = config.ModelConfig(
    vocab_size=16, num_layers=2, embed_dim=8, mlp_dim=16, num_heads=4, num_kv_heads=2, head_dim=8
)


def random_parameters() -> dict[tuple[str, ...], np.ndarray]:
    rng = np.random.default_rng(0)
    return {path: rng.normal(size=shape).astype(np.float32) for path, shape in config.parameter_shapes(CONFIG).items()}


def of(parameters: dict[tuple[str, ...], np.ndarray], cfg: config.ModelConfig = CONFIG) -> str:
    return fingerprint.parameters(assemble.build(cfg, {path: jnp.asarray(v) for path, v in parameters.items()}))


def edited(edit) -> str:
    parameters = random_parameters()
    edit(parameters)
    return of(parameters)


def test_any_element_of_any_parameter_counts():
    seen = {of(random_parameters())}
    for path, values in random_parameters().items():
        for place in (0, values.size // 2, values.size - 1):
            changed = random_parameters()
            changed[path].reshape(-1).view(np.uint32)[place] ^= 1  # the last bit of the mantissa
            seen.add(of(changed))
    assert len(seen) == 1 + 3 * len(random_parameters())


def swap(values: np.ndarray) -> None:
    values[[0, 1]] = values[[1, 0]]


@pytest.mark.parametrize(
    "edit",
    [
        pytest.param(lambda p: swap(p["final_norm",]), id="two elements"),
        pytest.param(lambda p: swap(p["embedding",]), id="two rows"),
        pytest.param(lambda p: swap(p["embedding",].T), id="two columns"),
        pytest.param(lambda p: swap(p["blocks", "gate"]), id="two layers"),
        pytest.param(lambda p: [swap(p[path]) for path in p if path[0] == "blocks"], id="two whole blocks"),
        pytest.param(lambda p: p.update({("head",): p["embedding",], ("embedding",): p["head",]}), id="two parameters"),
    ],
)
def test_what_has_changed_places_counts(edit):
    assert edited(edit) != of(random_parameters())


def test_values_are_bits():
    def put(bits: int) -> str:
        return edited(lambda p: p["final_norm",].view(np.uint32).__setitem__(3, bits))

    zeros_and_nans = [0x00000000, 0x80000000, 0x7FC00000, 0x7FC00001, 0xFFC00000, 0x7F800001]
    assert len({put(bits) for bits in zeros_and_nans}) == len(zeros_and_nans)
    assert put(0x7FC00001) == put(0x7FC00001)


def test_dtype_and_configuration_count():
    parameters = {path: np.round(values) for path, values in random_parameters().items()}  # the same in every dtype
    kinds = [assemble.NUMPY_DTYPES[name] for name in ("float32", "bfloat16", "float16")]
    seen = [of({path: values.astype(kind) for path, values in parameters.items()}) for kind in kinds]
    for change in ({"rope_theta": 5e5}, {"norm_eps": 1e-6}, {"activation": "gelu"}, {"max_position": 4096}):
        seen.append(of(parameters, dataclasses.replace(CONFIG, **change)))
    scaling = config.RopeScaling(kind="linear", factor=2.0)
    seen.append(of(parameters, dataclasses.replace(CONFIG, rope_scaling=scaling)))
    assert len(set(seen)) == len(seen)


LAYOUTS = [(1, 1), (1, 2), (4, 1), (2, 4)]


@pytest.mark.parametrize(
    ("dtype", "layout"),
    [*(("float32", layout) for layout in LAYOUTS), ("bfloat16", (1, 8)), ("float16", (8, 1))],
)
def test_the_same_over_any_number_of_devices(dtype, layout):
    kind = assemble.NUMPY_DTYPES[dtype]
    parameters = {path: values.astype(kind) for path, values in random_parameters().items()}
    whole = assemble.build(CONFIG, {path: jnp.asarray(values) for path, values in parameters.items()})
    devices = np.array(jax.devices()[: layout[0] * layout[1]]).reshape(layout)
    mesh = jax.sharding.Mesh(devices, ("data", "model"), axis_types=(AxisType.Auto,) * 2)

    def shard(leaf: jax.Array) -> jax.Array:
        names = ["data", "model"]
        axes = [names.pop() if n % layout[len(names) - 1] == 0 else None for n in leaf.shape if names]
        return jax.device_put(leaf, NamedSharding(mesh, PartitionSpec(*axes)))

    sharded = jax.tree.map(shard, whole.params)
    assert {leaf.sharding.num_devices for leaf in jax.tree.leaves(sharded)} == {devices.size}
    with jax.transfer_guard("disallow"):
        found = fingerprint.parameters(dataclasses.replace(whole, params=sharded))
    assert found == fingerprint.parameters(whole)


def test_nothing_the_size_of_a_parameter_is_made():
    compiled = fingerprint._sums.lower(jax.ShapeDtypeStruct((4096, 512), jnp.float32)).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 4096 * 512 * 4 / 16


def checkpoint(folder: pathlib.Path) -> pathlib.Path:
    (folder / "params" / "d").mkdir(parents=True)
    for name in ("config.json", "model.safetensors", "params/d/0"):
        (folder / name).write_bytes(name.encode())
    return folder


def touch(file: pathlib.Path) -> None:
    os.utime(file, ns=(1, 1))


def rewrite_with_old_time(file: pathlib.Path) -> None:
    old = file.stat()
    file.write_bytes(b"x" * old.st_size)
    os.utime(file, ns=(old.st_atime_ns, old.st_mtime_ns))


def replace_with_old_time(file: pathlib.Path) -> None:
    old, other = file.stat(), file.with_name("other")
    other.write_bytes(b"x" * old.st_size)
    os.utime(other, ns=(old.st_atime_ns, old.st_mtime_ns))
    other.replace(file)


@pytest.mark.parametrize("name", ["config.json", "params/d/0"])
@pytest.mark.parametrize(
    "change",
    [
        touch,
        rewrite_with_old_time,
        replace_with_old_time,
        pathlib.Path.unlink,
        lambda file: file.rename(file.with_name("renamed")),
        lambda file: file.with_name("more").touch(),
    ],
)
def test_every_change_of_a_file_changes_the_signature(tmp_path, name, change):
    folder = checkpoint(tmp_path / "model")
    before = fingerprint.files(str(folder))
    assert fingerprint.files(str(folder)) == before is not None
    change(folder / name)
    assert fingerprint.files(str(folder)) != before


def test_one_file_has_a_signature(tmp_path):
    file = checkpoint(tmp_path / "model") / "model.safetensors"
    before = fingerprint.files(str(file))
    rewrite_with_old_time(file)
    assert None not in {before, fingerprint.files(str(file))}
    assert fingerprint.files(str(file)) != before


def test_what_cannot_be_listed_has_no_signature(tmp_path):
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "config.json").touch()
    (linked / "params").symlink_to(checkpoint(tmp_path / "model") / "params")
    (tmp_path / "empty").mkdir()
    for path in ("owner/name", "demo\0", str(tmp_path / "missing"), str(tmp_path / "empty"), str(linked)):
        assert fingerprint.files(path) is None

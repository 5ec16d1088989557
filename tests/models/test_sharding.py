"""Every layout of a mesh gives the same model: parameters are made and read straight into their shards."""

import collections
import functools
import itertools
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from evaljax.models import assemble, checkpoint, config, decoder, model, sharding
from evaljax.models.families import llama

EXPLICIT = AxisType.Explicit
LAYOUTS = [(8, 1), (4, 2), (2, 4), (1, 8)]
HEADS = [(9, 3), (16, 2), (8, 8)]  # 9 heads: not split; 16 over 8 devices: each needs one of the 2 kv heads
QUICK = [((16, 2), (2, 4)), ((9, 3), (1, 8))]  # each takes two programs to compile
TOKENS = np.random.default_rng(0).integers(256, size=(8, 6), dtype=np.int32)


def config_of(num_heads: int = 8, num_kv_heads: int = 8, **changes) -> config.ModelConfig:
    fields = {
        "vocab_size": 256,
        "num_layers": 2,
        "embed_dim": 24,
        "mlp_dim": 96,
        "num_heads": num_heads,
        "num_kv_heads": num_kv_heads,
        "head_dim": 8,
        "attention_bias": True,
        "mlp_bias": True,
    }
    return config.ModelConfig(**fields | changes)


def mesh_of(*shape: int, names: tuple[str, ...] = ("data", "model"), kind: AxisType = AxisType.Auto) -> Mesh:
    return jax.make_mesh(shape, names, axis_types=(kind,) * len(shape))


def create(cfg: config.ModelConfig, mesh: Mesh | None = None) -> model.Model:
    shardings = None if mesh is None else sharding.parameter_shardings(cfg, mesh)
    return model.of(decoder.create(cfg, nnx.Rngs(0), std=0.3, shardings=shardings))


def assert_same(first: model.Model, second: model.Model) -> None:
    assert first.config == second.config
    pairs = zip(jax.tree.leaves_with_path(first.params), jax.tree.leaves(second.params), strict=True)
    for (path, left), right in pairs:
        np.testing.assert_array_equal(left, right, err_msg=jax.tree_util.keystr(path))


def bytes_on_each(loaded: model.Model) -> dict[jax.Device, int]:
    held = dict.fromkeys(jax.devices(), 0)
    for leaf in jax.tree.leaves(loaded.params):
        for shard in leaf.addressable_shards:
            held[shard.device] += shard.data.nbytes
    return held


def values_of(cfg: config.ModelConfig) -> dict[str, np.ndarray]:
    """Every tensor of a checkpoint, random, biases too."""
    rng = np.random.default_rng(0)
    tensors = llama.tensors(cfg).values()
    names = [(name, tensor.shape) for tensor in tensors for name in tensor.names(cfg.num_layers)]
    return {name: rng.standard_normal(shape, np.float32) for name, shape in names}


def write_folder(folder: pathlib.Path, cfg: config.ModelConfig) -> str:
    raw = {
        "model_type": "llama",
        "vocab_size": cfg.vocab_size,
        "num_hidden_layers": cfg.num_layers,
        "hidden_size": cfg.embed_dim,
        "intermediate_size": cfg.mlp_dim,
        "num_attention_heads": cfg.num_heads,
        "num_key_value_heads": cfg.num_kv_heads,
        "head_dim": cfg.head_dim,
        "rms_norm_eps": cfg.norm_eps,
        "attention_bias": cfg.attention_bias,
        "mlp_bias": cfg.mlp_bias,
    }
    (folder / "config.json").write_text(json.dumps(raw))
    safetensors.numpy.save_file(values_of(cfg), folder / "model.safetensors")
    return str(folder)


def logits(made: model.Model, tokens: np.ndarray, mesh: Mesh | None = None) -> np.ndarray:
    """The logits of rows that are forwarded in two chunks, through the cache."""
    where = None if mesh is None else sharding.cache_sharding(made.config, mesh)
    rows = None if mesh is None else NamedSharding(mesh, PartitionSpec(sharding.row_axes(mesh)))
    half = tokens.shape[1] // 2

    @jax.jit
    def run(params: nnx.State, tokens: jax.Array) -> jax.Array:
        module = model.merge(made.graphdef, params)
        cache = decoder.init_cache(made.config, *tokens.shape, jnp.float32, where)
        parts = []
        for first in (0, half):
            positions = jnp.broadcast_to(jnp.arange(first, first + half), (len(tokens), half))
            end, base = jnp.full_like(positions, half), jnp.full_like(positions, first)
            chunk = tokens[:, first : first + half]
            hidden, cache = decoder.forward(module, chunk, positions, end, base, positions, cache)
            parts.append(decoder.logits(module, hidden))
        return jnp.concatenate(parts, axis=1)

    return np.asarray(run(made.params, jax.device_put(tokens, rows)))


@functools.cache
def logits_alone(heads: tuple[int, int]) -> np.ndarray:
    return logits(create(config_of(*heads)), TOKENS)


@pytest.mark.parametrize(
    ("heads", "layout"),
    [
        pytest.param(heads, layout, marks=[] if (heads, layout) in QUICK else pytest.mark.slow)
        for heads, layout in itertools.product(HEADS, LAYOUTS)
    ],
)
def test_a_decoder_computes_the_same_on_every_layout(heads, layout):
    mesh = mesh_of(*layout)
    alone = logits_alone(heads)
    assert alone.std() > 1
    np.testing.assert_allclose(logits(create(config_of(*heads), mesh), TOKENS, mesh), alone, rtol=1e-5, atol=1e-5)


def test_random_weights_do_not_depend_on_the_layout():
    cfg = config_of(9, 3)
    alone = create(cfg)
    for layout in LAYOUTS:
        assert_same(create(cfg, mesh_of(*layout)), alone)


def test_each_device_holds_its_share():
    cfg, mesh = config_of(), mesh_of(1, 8)
    made = create(cfg, mesh)
    for path, where in sharding.parameter_shardings(cfg, mesh).items():
        array = functools.reduce(lambda node, name: node[name], path, made.params)[...]
        assert array.sharding == where
        share = array.size // 8 if path[-1] in sharding.SPLIT else array.size
        assert {shard.data.size for shard in array.addressable_shards} == {share}, path
    assert set(bytes_on_each(made).values()) == {4 * sharding.parameters_on_each(cfg, 8)}
    assert 4 * sharding.parameters_on_each(cfg, 8) < 4 * cfg.num_parameters / 7


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_folder_is_read_into_shards_and_no_more_than_a_share_at_a_time(tmp_path, layout):
    cfg, mesh = config_of(), mesh_of(*layout)
    path = write_folder(tmp_path, cfg)
    alone = checkpoint.read_model(path, dtype="float32")
    shardings = sharding.parameter_shardings(cfg, mesh)
    assert_same(checkpoint.read_model(path, dtype="float32", shardings=shardings), alone)

    values, asked = values_of(cfg), collections.defaultdict(list)

    def load(name: str, index: sharding.Index) -> np.ndarray:
        asked[name].append(values[name][index].size)
        return values[name][index]

    source = assemble.Source(where="memory", shapes={name: v.shape for name, v in values.items()}, load=load)
    loaded = assemble.load_model(cfg, source, llama.tensors(cfg), dtype="float32", shardings=shardings)
    assert_same(loaded, alone)
    for path, tensor in llama.tensors(cfg).items():
        parts = layout[1] if path[-1] in sharding.SPLIT else 1
        for name in tensor.names(cfg.num_layers):  # replicas over "data" ask once
            assert asked[name] == [values[name].size // parts] * parts, name


def test_a_folder_is_read_into_any_shardings_of_the_caller(tmp_path):
    cfg, mesh = config_of(), mesh_of(2, 4, names=("fsdp", "tp"))
    path = write_folder(tmp_path, cfg)
    shardings = {
        key: NamedSharding(
            mesh, PartitionSpec(*[None] * (len(shape) - 2), "fsdp", "tp" if shape[-1] % 4 == 0 else None)
        )
        for key, shape in config.parameter_shapes(cfg).items()
        if len(shape) > 1
    } | {("final_norm",): NamedSharding(mesh, PartitionSpec(("tp", "fsdp")))}
    loaded = checkpoint.read_model(path, dtype="float32", shardings=shardings)
    assert_same(loaded, checkpoint.read_model(path, dtype="float32"))
    assert loaded.params["blocks"]["output"][...].addressable_data(0).shape == (2, 24, 4, 2)


@pytest.mark.parametrize("written", [(1, 8), (4, 2)])
def test_what_eight_devices_wrote_is_read_on_fewer(tmp_path, written):
    cfg = config_of()
    made = create(cfg, mesh_of(*written))
    checkpoint.write_orbax(made, str(tmp_path / "ours"))
    alone = checkpoint.read_model(str(tmp_path / "ours"), dtype="float32")
    assert {leaf.device for leaf in jax.tree.leaves(alone.params)} == {jax.devices()[0]}
    assert_same(alone, made)
    for shape in ((1, 1), (1, 2), (2, 2), (1, 4)):
        mesh = mesh_of(*shape)
        shardings = sharding.parameter_shardings(cfg, mesh)
        loaded = checkpoint.read_model(str(tmp_path / "ours"), dtype="float32", shardings=shardings)
        assert_same(loaded, made)
        assert loaded.params["embedding"][...].sharding == shardings["embedding",]


def test_explicit_axes_become_auto_axes_without_a_copy():
    cfg = config_of()
    module = decoder.create(cfg, nnx.Rngs(0), shardings=sharding.parameter_shardings(cfg, mesh_of(4, 2, kind=EXPLICIT)))
    before = module.blocks.query[...]
    after = model.of(module).params["blocks"]["query"][...]
    assert before.sharding.mesh.axis_types == (EXPLICIT,) * 2
    assert after.sharding == NamedSharding(mesh_of(4, 2), before.sharding.spec)
    for old, new in zip(before.addressable_shards, after.addressable_shards, strict=True):
        assert old.data.unsafe_buffer_pointer() == new.data.unsafe_buffer_pointer()

"""The mesh is chosen or refused with numbers; arrays go where a layout says and come back."""

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from evaljax.core import config, errors
from evaljax.engine import mesh
from evaljax.models import config as model_config

CONFIG = model_config.ModelConfig(  # no power of two divides the heads
    vocab_size=6144, num_layers=2, embed_dim=72, mlp_dim=384, num_heads=9, num_kv_heads=3, head_dim=8
)
BYTES = 4 * CONFIG.num_parameters


def sizes(data: int = 0, model: int = 0, num_devices: int = 8, num_local: int = 8, limit: int | None = None):
    options = config.EngineOptions(data=data, model=model)
    return mesh.sizes(options, CONFIG, "float32", num_devices, num_local, limit=limit)


def mesh_of(*shape: int, names: tuple[str, ...] = mesh.AXES) -> Mesh:
    return jax.make_mesh(shape, names, axis_types=(AxisType.Auto,) * len(shape))


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({}, (8, 1)),
        ({"data": 2}, (2, 4)),
        ({"model": 8}, (1, 8)),
        ({"data": 1, "model": 1}, (1, 1)),
        ({"data": 2, "model": 3}, (2, 3)),
        ({"limit": 2 * BYTES}, (8, 1)),
        ({"limit": BYTES}, (4, 2)),
        ({"limit": BYTES // 2}, (2, 4)),
        ({"limit": BYTES, "num_devices": 6, "num_local": 3}, (2, 3)),  # 2 would do, but not within a process
        ({"limit": BYTES, "num_devices": 1, "num_local": 1}, None),
    ],
)
def test_the_model_axis_is_the_smallest_that_lets_the_parameters_fit(asked, found):
    if found is None:
        with pytest.raises(errors.ConfigError, match=r"over 1 devices each would hold .* model\.dtype=bfloat16"):
            sizes(**asked)
    else:
        assert sizes(**asked) == found


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"data": 3}, r"engine\.data=3 x engine\.model=2 does not make 8 devices"),
        ({"data": 4, "model": 4}, r"engine\.data=4 x engine\.model=4 does not make 8 devices"),
        ({"model": 16}, r"engine\.data=1 x engine\.model=16 does not make 8 devices"),
        ({"data": 2, "model": 2, "num_local": 4}, r"leaves some of 8 devices unused; .* several processes"),
        (
            {"data": 1, "model": 5},
            r"engine\.model=5 divides nothing of the model: 9 heads, 3 kv heads, mlp 384, vocabulary 6144; "
            r"expected one of 1, 2, 3, 4, 6, 8$",
        ),
    ],
)
def test_sizes_that_cannot_be_are_refused_with_numbers(asked, message):
    with pytest.raises(errors.ConfigError, match=message):
        sizes(**asked)


def test_a_mesh_has_auto_axes_and_the_first_devices():
    made = mesh.make(config.EngineOptions(data=2, model=2), CONFIG, "float32")
    assert dict(made.shape) == {"data": 2, "model": 2}
    assert made.axis_types == (AxisType.Auto,) * 2
    assert list(made.devices.flat) == jax.devices()[:4]
    assert dict(mesh.make(config.EngineOptions(), CONFIG, "float32").shape) == {"data": 8, "model": 1}
    assert mesh.make(config.EngineOptions(), CONFIG, "float32", jax.devices()[:1]).size == 1


@pytest.mark.parametrize(
    ("shape", "names", "num_groups"),
    [((4, 2), ("data", "model"), 4), ((2, 2, 2), ("replica", "tensor", "fsdp"), 4), ((8,), ("stage",), 1)],
)
def test_arrays_go_out_split_or_whole_and_come_back(shape, names, num_groups):
    layout = mesh.of_mesh(mesh_of(*shape, names=names))
    assert layout.num_groups == num_groups
    array = np.arange(48).reshape(3, 8, 2)
    with jax.transfer_guard("disallow"):
        split, whole = layout.put(array, True, axis=1), layout.put(array, False)
        np.testing.assert_array_equal(layout.get(whole), array)
    assert {shard.data.shape for shard in split.addressable_shards} == {(3, 8 // num_groups, 2)}
    np.testing.assert_array_equal(split, array)
    assert layout.put(array[0], True).sharding == layout.rows()
    if num_groups > 1:
        with pytest.raises(ValueError, match=r"an array of shape \(3, 8, 2\) is split"):
            layout.get(split)


def test_parameters_say_where_arrays_go():
    made = mesh_of(2, 4, names=("fsdp", "tp"))
    params = {
        "a": jax.device_put(np.zeros((4, 4)), NamedSharding(made, PartitionSpec("fsdp", "tp"))),
        "b": jax.device_put(np.zeros(4), NamedSharding(made, PartitionSpec())),
    }
    assert mesh.of_parameters(params) == made
    assert mesh.layout_of(params) == mesh.of_mesh(made)
    assert mesh.layout_of(params).row_axes == ("fsdp",)

    device = jax.devices()[3]
    layout = mesh.layout_of({"a": jax.device_put(np.zeros(4), device)})
    assert layout.num_groups == 1
    for split in (True, False):
        assert layout.put(np.zeros(4), split).sharding == SingleDeviceSharding(device)


def test_parameters_in_several_places_are_refused():
    here = jax.device_put(np.zeros(4), NamedSharding(mesh_of(8, 1), PartitionSpec()))
    there = jax.device_put(np.zeros(4), NamedSharding(mesh_of(4, 2), PartitionSpec()))
    alone = jax.device_put(np.zeros(4), jax.devices()[1])
    with pytest.raises(
        errors.ConfigError, match=r"\['a'\] on Mesh\('data': 8, .*; \['b'\] on Mesh\('data': 4, .*expected"
    ):
        mesh.of_parameters({"a": here, "b": there})
    with pytest.raises(errors.ConfigError, match=r"several places: .*; \['c'\] on .*1; expected one mesh for all"):
        mesh.of_parameters({"b": there, "c": alone})

"""Where the parameters and the cache of a decoder lie on a mesh, and arrays made straight into their shards.

Tensor parallelism: every projection is split over its heads, its mlp units or its vocabulary, so that a block needs
one sum over the axis after attention and one after the MLP. What does not divide is replicated: 3 kv heads over 8
devices lie on each of them, while the MLP and the vocabulary are split.
"""

import math
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from evaljax.models import config as config_lib

Path = tuple[str, ...]
Index = tuple[slice, ...]
Shardings = Mapping[Path, jax.sharding.Sharding]

ROW_AXES = ("data", "replica", "batch", "dp", "fsdp")  # axes of a mesh that rows are split over, where it has them
MODEL_AXES = ("model", "tensor", "tp", "mp")  # the first of these that a mesh has splits heads, mlp and vocabulary

HEADS, KV_HEADS, MLP, VOCAB = "heads", "kv heads", "mlp", "vocabulary"
SPLIT: dict[str, tuple[str, int]] = {  # of each parameter: what is split, and its axis, the layer axis not counted
    "embedding": (VOCAB, 0),
    "head": (VOCAB, 0),
    "query": (HEADS, 0),
    "query_bias": (HEADS, 0),
    "key": (KV_HEADS, 0),
    "key_bias": (KV_HEADS, 0),
    "value": (KV_HEADS, 0),
    "value_bias": (KV_HEADS, 0),
    "output": (HEADS, 1),
    "gate": (MLP, 0),
    "gate_bias": (MLP, 0),
    "up": (MLP, 0),
    "up_bias": (MLP, 0),
    "down": (MLP, 1),
}


def row_axes(mesh: Mesh) -> tuple[str, ...]:
    """The axes of the mesh that rows are split over."""
    return tuple(name for name in ROW_AXES if name in mesh.shape)


def model_axis(mesh: Mesh) -> str | None:
    """The axis of the mesh that heads, mlp and vocabulary are split over; None if it has none."""
    return next((name for name in MODEL_AXES if name in mesh.shape), None)


def divides(config: config_lib.ModelConfig, size: int) -> dict[str, bool]:
    """Whether each of the things that can be split can be split over `size` devices.

    Query heads can if the kv heads can, or if every device's query heads then share one kv head, which all devices
    hold: 8 heads that share 2 kv heads, over 4 devices.
    """
    kv_heads = config.num_kv_heads % size == 0
    one_kv_head_each = size % config.num_kv_heads == 0 and config.num_heads % size == 0
    return {
        HEADS: kv_heads or one_kv_head_each,
        KV_HEADS: kv_heads,
        MLP: config.mlp_dim % size == 0,
        VOCAB: config.vocab_size % size == 0,
    }


def split_axis(path: Path) -> int | None:
    """The axis of a parameter that tensor parallelism splits, the layer axis counted; None: always replicated."""
    if path[-1] not in SPLIT:
        return None
    return SPLIT[path[-1]][1] + (path[0] == "blocks")


def parameter_shardings(config: config_lib.ModelConfig, mesh: Mesh) -> dict[Path, NamedSharding]:
    """The sharding of every parameter, by its path: split over the mesh's model axis, replicated over the others."""
    name = model_axis(mesh)
    can = divides(config, mesh.shape.get(name, 1))

    def spec(path: Path) -> PartitionSpec:
        axis = split_axis(path)
        if axis is None or not can[SPLIT[path[-1]][0]]:
            return PartitionSpec()
        return PartitionSpec(*[None] * axis, name)

    return {path: NamedSharding(mesh, spec(path)) for path in config_lib.parameter_shapes(config)}


def parameters_on_each(config: config_lib.ModelConfig, size: int) -> int:
    """Number of weights that each device holds if the axis "model" has `size` devices."""
    can = divides(config, size)

    def parts(path: Path) -> int:
        return size if path[-1] in SPLIT and can[SPLIT[path[-1]][0]] else 1

    return sum(math.prod(shape) // parts(path) for path, shape in config_lib.parameter_shapes(config).items())


def cache_sharding(config: config_lib.ModelConfig, mesh: Mesh) -> NamedSharding:
    """The sharding of the keys and of the values of a cache [L, B, K, S, H]: B over rows' axes, K over the model's."""
    name = model_axis(mesh)
    heads = name if config.num_kv_heads % mesh.shape.get(name, 1) == 0 else None
    return NamedSharding(mesh, PartitionSpec(None, row_axes(mesh) or None, heads))


def place(
    shape: tuple[int, ...], where: jax.sharding.Sharding | None, read: Callable[[Index], np.ndarray]
) -> jax.Array:
    """The array whose parts are what `read` gives: asked once for each part that devices of this process hold.

    The host holds one part at a time (`jax.make_array_from_callback` holds those of all devices). None: all of it goes
    to the default device.
    """
    if where is None:
        return jnp.asarray(read(tuple(slice(0, size) for size in shape)))
    holders: dict[tuple[tuple[int, int], ...], list[jax.Device]] = {}
    for device, index in where.addressable_devices_indices_map(shape).items():
        bounds = tuple(part.indices(size)[:2] for part, size in zip(index or (), shape, strict=True))
        holders.setdefault(bounds, []).append(device)
    parts = []
    for bounds, devices in holders.items():
        values = read(tuple(slice(*bound) for bound in bounds))
        parts += jax.block_until_ready([jax.device_put(values, device) for device in devices])
    return jax.make_array_from_single_device_arrays(shape, where, parts)


def with_auto_axes(array: jax.Array) -> jax.Array:
    """The same array, not copied, on a mesh whose axes are all Auto: the compiler decides how intermediates are split.

    `jax.make_mesh` makes Explicit axes, under which every ambiguous product is an error.
    """
    where = getattr(array, "sharding", None)  # inside jit an array has none
    if not isinstance(where, NamedSharding) or all(kind == AxisType.Auto for kind in where.mesh.axis_types):
        return array
    mesh = Mesh(where.mesh.devices, where.mesh.axis_names, axis_types=(AxisType.Auto,) * len(where.mesh.shape))
    parts = [shard.data for shard in array.addressable_shards]
    return jax.make_array_from_single_device_arrays(array.shape, NamedSharding(mesh, where.spec), parts)

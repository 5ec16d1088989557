"""Which devices compute what: the mesh of a run, chosen or the caller's own, and where arrays go on it.

A mesh of ours has two axes. Rows of work are split over "data"; heads, mlp units and the vocabulary over "model"
(`models.sharding`). On a caller's mesh rows are split over those of its axes that `sharding.ROW_AXES` names.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from evaljax.core import config, errors
from evaljax.models import config as model_config
from evaljax.models import sharding

AXES = ("data", "model")
FILL = 0.6  # of a device's memory, for parameters: the rest is for caches and activations
ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}  # by dtype


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """Where the arrays of a run go.

    Attributes:
      mesh: None: there is one device.
      row_axes: axes of the mesh that rows are split over.
      device: the device, or the first one of this process.
    """

    mesh: Mesh | None
    row_axes: tuple[str, ...]
    device: jax.Device

    @property
    def num_groups(self) -> int:
        """Into how many parts rows are split; the number of rows must be a multiple."""
        return math.prod(self.mesh.shape[name] for name in self.row_axes) if self.mesh is not None else 1

    def rows(self, axis: int = 0) -> Sharding:
        """Of an array whose `axis` is rows: split there, replicated over the rest of the mesh."""
        if self.mesh is None or not self.row_axes:
            return self.replicated()
        return NamedSharding(self.mesh, PartitionSpec(*[None] * axis, self.row_axes))

    def replicated(self) -> Sharding:
        """Of an array that every device needs whole."""
        if self.mesh is None:
            return SingleDeviceSharding(self.device)
        return NamedSharding(self.mesh, PartitionSpec())

    def put(self, array: np.ndarray, split: bool, axis: int = 0) -> jax.Array:
        """`array` on the devices: its `axis` split if `split`, else replicated.

        Every process must give the same array; each takes its part, and nothing is compared or waited for.
        """
        where = self.rows(axis) if split else self.replicated()
        if where.is_fully_addressable:
            return jax.device_put(array, where)
        indices = where.addressable_devices_indices_map(array.shape)
        parts = [jax.device_put(array[index], device) for device, index in indices.items()]
        return jax.make_array_from_single_device_arrays(array.shape, where, parts)

    def get(self, array: jax.Array) -> np.ndarray:
        """The values of a replicated array, the same in every process."""
        if not array.is_fully_replicated:
            raise ValueError(f"an array of shape {array.shape} is split ({array.sharding}); expected a replicated one")
        return jax.device_get(array.addressable_data(0))


def make(
    options: config.EngineOptions,
    of: model_config.ModelConfig,
    dtype: str,
    devices: Sequence[jax.Device] | None = None,
) -> Mesh:
    """The mesh ("data", "model") that `options` asks for, or that suits the model and the devices.

    ConfigError where the sizes do not fit the devices (None: all there are) or the model.
    """
    devices = jax.devices() if devices is None else list(devices)
    local = [device for device in devices if device.process_index == jax.process_index()]
    limit = (local[0].memory_stats() or {}).get("bytes_limit")
    shape = sizes(options, of, dtype, len(devices), len(local), limit=limit)
    return jax.make_mesh(shape, AXES, axis_types=(AxisType.Auto,) * len(AXES), devices=devices[: math.prod(shape)])


def sizes(
    options: config.EngineOptions,
    of: model_config.ModelConfig,
    dtype: str,
    num_devices: int,
    num_local: int,
    *,
    limit: int | None,
) -> tuple[int, int]:
    """The sizes of the axes "data" and "model".

    Both given: as they are, on the first data * model devices where one process holds all. One given: the other is what
    the devices leave. None given: "model" is the smallest size that lets the parameters fit.

    Args:
      num_local: devices of one process; `num_devices` is a multiple.
      limit: bytes of a device's memory; None where it is not known, and parameters are taken to fit.
    """
    if not options.data and not options.model:
        model = _smallest(of, ITEM_BYTES[dtype], num_devices, num_local, limit)
        return num_devices // model, model
    model = options.model or max(1, num_devices // options.data)
    data = options.data or max(1, num_devices // model)
    product = f"engine.data={data} x engine.model={model}"
    if data * model > num_devices or (data * model < num_devices and not (options.data and options.model)):
        raise errors.ConfigError(
            f"{product} does not make {num_devices} devices; expected sizes that do or, both given, that make fewer"
        )
    if data * model < num_devices and num_local < num_devices:
        raise errors.ConfigError(
            f"{product} leaves some of {num_devices} devices unused; expected all, as they belong to several processes"
        )
    _check_useful(of, model, num_devices)
    return data, model


def _check_useful(of: model_config.ModelConfig, model: int, num_devices: int) -> None:
    """Nothing, if something can be split over `model` devices."""
    if not _useful(of, model):
        good = ", ".join(str(size) for size in range(1, num_devices + 1) if _useful(of, size))
        raise errors.ConfigError(
            f"engine.model={model} divides nothing of the model: {of.num_heads} heads, {of.num_kv_heads} kv heads, "
            f"mlp {of.mlp_dim}, vocabulary {of.vocab_size}; expected one of {good}"
        )


def _smallest(
    of: model_config.ModelConfig, item_bytes: int, num_devices: int, num_local: int, limit: int | None
) -> int:
    """The smallest useful size of "model", within a process first, whose share of the parameters leaves room."""
    useful = [size for size in range(1, num_devices + 1) if num_devices % size == 0 and _useful(of, size)]
    useful.sort(key=lambda size: (num_local % size != 0, size))
    if limit is None:
        return useful[0]
    share = {size: item_bytes * sharding.parameters_on_each(of, size) for size in useful}
    fitting = [size for size in useful if share[size] <= FILL * limit]
    best = fitting[0] if fitting else min(useful, key=lambda size: share[size])
    if share[best] >= limit:
        raise errors.ConfigError(
            f"{of.num_parameters:,} parameters of {item_bytes} bytes: over {num_devices} devices each would hold "
            f"{share[best]:,} bytes at least, and has {limit:,}; expected more devices, or model.dtype=bfloat16"
        )
    return best


def _useful(of: model_config.ModelConfig, size: int) -> bool:
    """Whether something can be split over `size` devices."""
    return any(sharding.divides(of, size).values())


def of_mesh(mesh: Mesh) -> Layout:
    """Where arrays go on this mesh."""
    return Layout(mesh=mesh, row_axes=sharding.row_axes(mesh), device=mesh.local_devices[0])


def placed(arrays: Any, where: Sharding) -> Any:
    """The arrays of a program, told where to lie if there is a choice."""
    return lax.with_sharding_constraint(arrays, where) if isinstance(where, NamedSharding) else arrays


def named(where: Sharding) -> NamedSharding | None:
    """Where arrays lie, if there is a choice."""
    return where if isinstance(where, NamedSharding) else None


def layout_of(params: Any) -> Layout:
    """Where arrays go that meet these parameters; ConfigError if those are not all in one place."""
    mesh = of_parameters(params)
    if mesh is None:
        (device,) = jax.tree.leaves(params)[0].sharding.device_set
        return Layout(mesh=None, row_axes=(), device=device)
    return of_mesh(mesh)


def of_parameters(params: Any) -> Mesh | None:
    """The mesh that all parameters lie on, None if they lie on one device; ConfigError if there are several."""
    places: dict[Any, str] = {}
    for path, leaf in jax.tree.leaves_with_path(params):
        where = leaf.sharding
        on_one = next(iter(where.device_set)) if len(where.device_set) == 1 else where
        places.setdefault(where.mesh if isinstance(where, NamedSharding) else on_one, jax.tree_util.keystr(path))
    if len(places) > 1:
        found = "; ".join(f"{name} on {place}" for place, name in places.items())
        raise errors.ConfigError(f"parameters lie in several places: {found}; expected one mesh for all")
    (place,) = places
    return place if isinstance(place, Mesh) else None

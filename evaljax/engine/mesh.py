"""Which devices compute what: the mesh of a run, chosen or the caller's own, and where arrays go on it.

A mesh of ours has two axes. Rows of work are split over "data"; heads, mlp units and the vocabulary over "model"
(`models.sharding`). On a caller's mesh rows are split over those of its axes that `sharding.ROW_AXES` names.
"""

import dataclasses
import math
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from evaljax.core import errors
from evaljax.models import sharding


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


def layout_of(params: Any) -> Layout:
    """Where arrays go that meet these parameters; ConfigError if those are not all in one place."""
    mesh = of_parameters(params)
    if mesh is None:
        (device,) = jax.tree.leaves(params)[0].sharding.device_set
        return Layout(mesh=None, row_axes=(), device=device)
    return Layout(mesh=mesh, row_axes=sharding.row_axes(mesh), device=mesh.local_devices[0])


def of_parameters(params: Any) -> Mesh | None:
    """The mesh that all parameters lie on, None if they lie on one device; ConfigError if there are several."""
    places: dict[Any, str] = {}
    for path, leaf in jax.tree.leaves_with_path(params):
        mesh = leaf.sharding.mesh if isinstance(leaf.sharding, NamedSharding) else None
        places.setdefault(mesh or frozenset(leaf.sharding.device_set), jax.tree_util.keystr(path))
    found = [f"{name} on {_describe(place)}" for place, name in places.items()]
    if len(found) > 1:
        raise errors.ConfigError(f"parameters lie in several places: {'; '.join(found)}; expected one mesh for all")
    (place,) = places
    if isinstance(place, Mesh):
        return place
    if len(place) > 1:
        raise errors.ConfigError(f"parameters: {found[0]}; expected a NamedSharding, which names its mesh")
    return None


def _describe(place: Any) -> str:
    """A mesh or a set of devices in words."""
    if isinstance(place, Mesh):
        return f"a mesh {dict(place.shape)} of {place.devices.flat[0].platform} devices"
    return f"{len(place)} devices without a mesh" if len(place) > 1 else f"device {next(iter(place))} without a mesh"

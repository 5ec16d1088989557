"""How much room the devices have, and how much a compiled step needs: known before the first step runs."""

import functools
import math
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from evaljax.core import config
from evaljax.engine import executor, mesh, shapes
from evaljax.models import decoder
from evaljax.models import model as models

DEVICE_SHARE = 0.9  # of what a device has left beside the parameters; the rest is fragments
HOST_SHARE = 0.25  # of the host's memory, where the devices are its cores and do not say what they have
MIB = 1 << 20


class TooLargeError(jax.errors.JaxRuntimeError):
    """A step that would not fit, found before it ran; worded as the device words it."""


def machine(model: models.Model, layout: mesh.Layout, options: config.EngineOptions) -> shapes.Machine:
    """What the plan's shapes depend on, for this model (its weights there or not) on these devices."""
    place = executor.cache_place(model.config, layout)
    slot = functools.partial(decoder.init_cache, model.config, layout.num_groups, 1, jnp.dtype(model.dtype))
    return shapes.Machine(
        platform=layout.device.platform,
        num_groups=layout.num_groups,
        slot_bytes=sum(_bytes_on_one(leaf, place) for leaf in jax.tree.leaves(jax.eval_shape(slot))),
        token_bytes=model.config.embed_dim * jnp.dtype(model.dtype).itemsize,
        memory_bytes=options.memory_bytes or free_bytes(layout.device),
    )


def free_bytes(device: jax.Device) -> int:
    """What the device has left for caches and activations; of many processes the least, so that all plan alike."""
    stats = device.memory_stats()
    if stats:
        free = (stats["bytes_limit"] - stats["bytes_in_use"]) * DEVICE_SHARE
    else:
        free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * HOST_SHARE
    if jax.process_count() > 1:
        return int(multihost_utils.process_allgather(np.asarray(free // MIB, np.int32)).min()) * MIB
    return int(free)


def check(model: models.Model, program: executor.Executable, available: int) -> dict[str, int]:
    """Bytes on each device: `parameters`, what the program needs beside them (`step`), and `available` for that.

    Raises TooLargeError if the program needs more than that.
    """
    parameters = sum(_bytes_on_one(leaf, leaf.sharding) for leaf in jax.tree.leaves(model.params))
    found = program.memory_analysis()
    needed = 0
    if found is not None:  # not every platform tells
        needed = found.argument_size_in_bytes + found.output_size_in_bytes + found.temp_size_in_bytes
        needed = max(0, needed - found.alias_size_in_bytes - parameters)
    if needed > available:
        raise TooLargeError(f"RESOURCE_EXHAUSTED: a step needs {needed:,} bytes of a device that has {available:,}")
    return {"parameters": parameters, "step": needed, "available": available}


def _bytes_on_one(array: Any, place: jax.sharding.Sharding) -> int:
    """Bytes of the part of an array that one device holds."""
    return math.prod(place.shard_shape(array.shape)) * jnp.dtype(array.dtype).itemsize

"""Random parameters, the same in whatever parts they are made."""

import math

import numpy as np

from evaljax.models import sharding

BLOCKS = 16  # each drawn from a generator of its own, along the axis that tensor parallelism splits


def draw(
    path: sharding.Path, shape: tuple[int, ...], index: sharding.Index, seed: tuple[int, ...], std: float
) -> np.ndarray:
    """The part `index` of a parameter: normal with `std`, norms at one, biases at zero; float32.

    What is drawn at once is one block of one layer; an index that cuts blocks draws them whole and keeps its part.
    """
    sizes = tuple(part.stop - part.start for part in index)
    if path[-1].endswith(("norm", "bias")):
        return np.full(sizes, path[-1].endswith("norm"), np.float32)
    seed = (*seed, *"/".join(path).encode())
    if path[0] != "blocks":
        return _draw_layer(path, shape, index, seed, std)
    values = np.empty(sizes, np.float32)
    for place, layer in enumerate(range(index[0].start, index[0].stop)):
        values[place] = _draw_layer(path, shape[1:], index[1:], (*seed, layer), std)
    return values


def _draw_layer(
    path: sharding.Path, shape: tuple[int, ...], index: sharding.Index, seed: tuple[int, ...], std: float
) -> np.ndarray:
    """The part `index` of one layer's parameter."""
    axis = sharding.SPLIT[path[-1]][1]
    wanted = index[axis]
    size = math.ceil(shape[axis] / BLOCKS)
    parts = []
    for block in range(wanted.start // size, math.ceil(wanted.stop / size)):
        first, last = block * size, min((block + 1) * size, shape[axis])
        drawn = np.random.default_rng((*seed, block)).standard_normal(
            (*shape[:axis], last - first, *shape[axis + 1 :]), np.float32
        )
        inner = slice(max(wanted.start, first) - first, min(wanted.stop, last) - first)
        parts.append(drawn[(*index[:axis], inner, *index[axis + 1 :])])
    return std * np.concatenate(parts, axis=axis)

"""From the tensors of a file to the parameters of a decoder: all checked first, then read part by part as they lie.

Block parameters are stacked over layers. Of each tensor only the part that a device needs is read (of a GGUF file: the
rows): neither the host nor a device ever holds more of a parameter than its share.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Mapping

import jax
import ml_dtypes
import numpy as np

from evaljax.core import errors
from evaljax.models import config as config_lib
from evaljax.models import decoder, family, model, sharding

MAX_LISTED = 20
TIED_ROWS = 4096  # rows of head and embedding compared at a time
NUMPY_DTYPES: dict[str, np.dtype] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """The tensors that a checkpoint offers.

    Attributes:
      where: file or folder, for errors.
      shapes: shape of every tensor by name, from headers alone.
      load: the values of a part of one tensor, a slice with both bounds for each axis.
    """

    where: str
    shapes: Mapping[str, tuple[int, ...]]
    load: Callable[[str, sharding.Index], np.ndarray]


def load_model(
    config: config_lib.ModelConfig,
    source: Source,
    tensors: Mapping[family.Path, family.Tensor],
    *,
    dtype: str,
    ignored: tuple[str, ...] = (),
    tied_head: str | None = None,
    shardings: sharding.Shardings | None = None,
) -> model.Model:
    """The model with every parameter from `source`, cast to `dtype`; CheckpointError if they do not fit exactly.

    Parameters lie as `shardings` says; None: on the default device.
    """
    spare = (*ignored, re.escape(tied_head)) if tied_head and config.tie_embeddings else ignored
    check(config.num_layers, source.where, source.shapes, tensors, spare)
    if tied_head in source.shapes and config.tie_embeddings:
        check_tied(source, tensors[("embedding",)].name, str(tied_head))
    shapes = config_lib.parameter_shapes(config)

    def load(path: family.Path, tensor: family.Tensor) -> jax.Array:
        def read(index: sharding.Index) -> np.ndarray:
            return _read(source, tensor, shapes[path], index, NUMPY_DTYPES[dtype])

        return sharding.place(shapes[path], shardings[path] if shardings else None, read)

    return build(config, {path: load(path, tensor) for path, tensor in tensors.items()})


def build(config: config_lib.ModelConfig, parameters: Mapping[family.Path, jax.Array]) -> model.Model:
    """The model with these parameters."""
    return model.of(decoder.Decoder(config, dict(parameters)))


def check(
    num_layers: int,
    where: str,
    found: Mapping[str, tuple[int, ...]],
    tensors: Mapping[family.Path, family.Tensor],
    spare: tuple[str, ...] = (),
) -> None:
    """Nothing, if exactly these tensors were found, in these shapes; else one error that lists every difference."""
    if num_layers > len(found) and any("{layer}" in tensor.name for tensor in tensors.values()):
        # Not listed name by name: a wrong number of layers could be any number.
        raise errors.CheckpointError(
            f"{where}: {len(found)} tensors cannot make the configuration's {num_layers} layers"
        )
    expected = {name: t.shape for t in tensors.values() for name in t.names(num_layers)}
    missing = [f"missing: {name} {shape}" for name, shape in expected.items() if name not in found]
    wrong = [
        f"shape: {name} is {found[name]}, expected {shape}"
        for name, shape in expected.items()
        if name in found and found[name] != shape
    ]
    extra = [
        f"not used by this configuration: {name} {shape}"
        for name, shape in found.items()
        if name not in expected and not any(re.fullmatch(pattern, name) for pattern in spare)
    ]
    problems = missing + wrong + extra
    if problems:
        shown = problems[:MAX_LISTED] + ([f"… ({len(problems)} in all)"] if len(problems) > MAX_LISTED else [])
        raise errors.CheckpointError(f"{where}: tensors do not fit the configuration:\n  " + "\n  ".join(shown))


def check_tied(source: Source, embedding: str, head: str) -> None:
    """Nothing, if the head that a tied checkpoint also stores is its embedding."""
    rows, columns = source.shapes[embedding]
    parts = [(slice(row, min(row + TIED_ROWS, rows)), slice(0, columns)) for row in range(0, rows, TIED_ROWS)]
    same_shape = source.shapes[head] == (rows, columns)
    if not same_shape or any(not np.array_equal(source.load(embedding, p), source.load(head, p)) for p in parts):
        raise errors.CheckpointError(
            f"{source.where}: the configuration ties head and embedding, but {head} differs from {embedding};"
            " expected equal tensors, or tie_word_embeddings = false"
        )


def _read(
    source: Source, tensor: family.Tensor, shape: tuple[int, ...], index: sharding.Index, dtype: np.dtype
) -> np.ndarray:
    """A part of one parameter: of its tensor, or of its layers' tensors, stacked."""
    if "{layer}" not in tensor.name:
        return _read_layer(source, tensor, shape, index, dtype)
    values = np.empty([part.stop - part.start for part in index], dtype)
    for place, layer in enumerate(range(index[0].start, index[0].stop)):
        one = dataclasses.replace(tensor, name=tensor.name.format(layer=layer))
        values[place] = _read_layer(source, one, shape[1:], index[1:], dtype)
    return values


def _read_layer(
    source: Source, tensor: family.Tensor, shape: tuple[int, ...], index: sharding.Index, dtype: np.dtype
) -> np.ndarray:
    """A part of a tensor, in the shape of its parameter.

    parameter   9 heads    64   576        index   3:6   0:64   0:576
    tensor      576 rows        576        read    192:384      0:576
    """
    stored, sizes, inner = [], [], []
    for axes in _merged(tensor.shape, shape):
        first = index[axes[0]]
        each = math.prod(shape[axis] for axis in axes[1:])
        stored.append(slice(first.start * each, first.stop * each))
        sizes += [first.stop - first.start, *(shape[axis] for axis in axes[1:])]
        inner += [slice(None), *(index[axis] for axis in axes[1:])]
    values = _cast(source, tensor.name, tuple(stored), dtype)
    if tensor.num_heads:
        values = _part_pairs(values, index[0].stop - index[0].start)
    return values.reshape(sizes)[tuple(inner)]


def _merged(stored: tuple[int, ...], shape: tuple[int, ...]) -> list[range]:
    """The axes of a parameter that each axis of its tensor holds: (576, 576) of (9, 64, 576) gives 0:2, 2:3."""
    groups, first = [], 0
    for size in stored:
        last = first + 1
        while math.prod(shape[first:last]) < size:
            last += 1
        groups.append(range(first, last))
        first = last
    return groups


def _cast(source: Source, name: str, index: sharding.Index, dtype: np.dtype) -> np.ndarray:
    """A part of a tensor in `dtype`; only floating point is cast (integers would be quantised weights)."""
    values = source.load(name, index)
    if values.dtype not in (*NUMPY_DTYPES.values(), np.dtype(np.float64)):
        raise errors.CheckpointError(
            f"{source.where}: {name} is {values.dtype}; expected float32, float16, bfloat16 or float64"
        )
    with np.errstate(over="ignore"):
        cast = values.astype(dtype, copy=False)
    if ml_dtypes.finfo(dtype).max < ml_dtypes.finfo(values.dtype).max and np.isinf(cast).sum() > np.isinf(values).sum():
        raise errors.CheckpointError(
            f"{source.where}: {name} holds values beyond the largest {dtype}, {float(ml_dtypes.finfo(dtype).max):.5g}; "
            "expected a wider model.dtype"
        )
    return cast


def _part_pairs(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """Rows of heads with rotary pairs (2i, 2i + 1) reordered to pairs (i, i + H / 2)."""
    heads = rows.reshape(num_heads, -1, 2, *rows.shape[1:])  # head, pair, which of the pair
    return heads.swapaxes(1, 2).reshape(rows.shape)

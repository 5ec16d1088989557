"""From the tensors of a file to the parameters of a decoder: everything checked first, then stacked over layers."""

import dataclasses
import re
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from evaljax.core import errors
from evaljax.models import config as config_lib
from evaljax.models import decoder, family, model

MAX_LISTED = 20
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
      load: the values of one tensor.
    """

    where: str
    shapes: Mapping[str, tuple[int, ...]]
    load: Callable[[str], np.ndarray]


def load_model(
    config: config_lib.ModelConfig,
    source: Source,
    tensors: Mapping[family.Path, family.Tensor],
    *,
    dtype: str,
    ignored: tuple[str, ...] = (),
    tied_head: str | None = None,
) -> model.Model:
    """The model with every parameter from `source`, cast to `dtype`; CheckpointError if they do not fit exactly."""
    spare = (*ignored, re.escape(tied_head)) if tied_head and config.tie_embeddings else ignored
    check(config.num_layers, source.where, source.shapes, tensors, spare)
    if tied_head in source.shapes and config.tie_embeddings:
        check_tied(source, tensors[("embedding",)].name, str(tied_head))
    shapes = config_lib.parameter_shapes(config)
    kind = NUMPY_DTYPES[dtype]
    return build(config, {path: jnp.asarray(_load(source, t, shapes[path], kind)) for path, t in tensors.items()})


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
    if not np.array_equal(source.load(embedding), source.load(head)):
        raise errors.CheckpointError(
            f"{source.where}: the configuration ties head and embedding, but {head} differs from {embedding};"
            " expected equal tensors, or tie_word_embeddings = false"
        )


def _load(source: Source, tensor: family.Tensor, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """One parameter: its tensor, or its layers' tensors stacked."""
    if "{layer}" not in tensor.name:
        return _cast(source, tensor.name, dtype).reshape(shape)
    stacked = np.empty((shape[0], *tensor.shape), dtype)
    for layer, name in enumerate(tensor.names(shape[0])):
        values = _cast(source, name, dtype)
        stacked[layer] = _part_pairs(values, tensor.num_heads) if tensor.num_heads else values
    return stacked.reshape(shape)


def _cast(source: Source, name: str, dtype: np.dtype) -> np.ndarray:
    """A tensor in `dtype`; only floating point is cast (integers would be quantised weights)."""
    values = source.load(name)
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

"""Tensors of a Hugging Face folder: one model.safetensors, or shards under an index."""

import json
import pathlib

import numpy as np
import safetensors

from evaljax.core import errors
from evaljax.models import assemble, sharding

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


def open_folder(folder: pathlib.Path) -> assemble.Source:
    """The folder's tensors; headers are read now, values when they are asked for."""
    opened = {file: _open(file) for file in _files(folder)}
    where = {name: file for file, handle in opened.items() for name in handle.keys()}  # noqa: SIM118 (no mapping)
    shapes = {name: tuple(opened[file].get_slice(name).get_shape()) for name, file in where.items()}

    def load(name: str, index: sharding.Index) -> np.ndarray:
        try:
            return opened[where[name]].get_slice(name)[index]
        except (safetensors.SafetensorError, TypeError, AttributeError) as error:
            raise errors.CheckpointError(f"{where[name]}: cannot read {name}: {error}") from error

    return assemble.Source(where=str(folder), shapes=shapes, load=load)


def _files(folder: pathlib.Path) -> list[pathlib.Path]:
    """The folder's weight files; CheckpointError if one is missing."""
    index = folder / INDEX
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    if not index.is_file():
        raise errors.CheckpointError(f"{folder}: no weights; expected {SINGLE} or {INDEX} (other formats are not read)")
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise errors.CheckpointError(f"{index}: not a weight index: {error!r}") from error
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise errors.CheckpointError(f"{index}: names files that are missing in {folder}: {', '.join(missing)}")
    return [folder / name for name in names]


def _open(file: pathlib.Path) -> "safetensors.safe_open":
    """An open file; CheckpointError if it is cut, corrupt or of another kind."""
    try:
        return safetensors.safe_open(file, framework="np")
    except (OSError, safetensors.SafetensorError) as error:
        size = file.stat().st_size
        raise errors.CheckpointError(
            f"{file}: not a readable safetensors file ({size:,} bytes; cut short, or only a pointer to it?): {error}"
        ) from error

"""GGUF files, opened by the `gguf` package; it is no dependency of evaljax."""

import pathlib
from collections.abc import Callable
from typing import Any

from evaljax.core import errors


def read_keys(file: pathlib.Path, wanted: Callable[[str], bool]) -> tuple[dict[str, Any], Any]:
    """(the values of the keys that are wanted, the reader, whose `tensors` are not read yet).

    CheckpointError if the file is missing, no GGUF file or cut short, or if there is nothing to read it with.
    """
    if not file.is_file():
        raise errors.CheckpointError(f"{file}: no such file.")
    try:
        import gguf
    except ImportError:
        raise errors.CheckpointError(
            f"{file}: reading GGUF needs the gguf package: pip install 'evaljax[gguf]' "
            "(from a clone: pip install -e '.[gguf]')."
        ) from None
    try:
        reader = gguf.GGUFReader(file)
        keys = {name: field.contents() for name, field in reader.fields.items() if wanted(name)}
    except (ValueError, IndexError, KeyError, OSError, UnicodeDecodeError) as error:
        raise errors.CheckpointError(f"{file}: not a readable GGUF file (cut short?): {error}") from error
    return keys, reader

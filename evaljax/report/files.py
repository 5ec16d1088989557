"""Result files, written whole or not at all."""

import contextlib
import json
import os
import pathlib
import tempfile
from collections.abc import Iterable
from typing import Any

from evaljax.core import errors
from evaljax.report import plain

MAX_NAME = 220  # of the 255 bytes that file systems allow; the rest is for the temporary name


def check_writable(folder: pathlib.Path, *, key: str = "output_dir") -> None:
    """Raises OutputError unless files can be written to `folder`, which is made if it does not exist.

    `key`: what the configuration calls the folder.

    Called before a run starts, so that an hour's answers are not lost to a read-only disk.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise errors.OutputError(f"{key} {str(folder)!r} cannot be written: {error.strerror or error}.") from error


def check_names(folder: pathlib.Path, names: Iterable[str]) -> None:
    """Raises OutputError unless each of the `names` can be a file in `folder`."""
    for name in names:
        if len(os.fsencode(name)) > MAX_NAME:
            raise errors.OutputError(f"{folder}: the file name {name[:60]!r}… is longer than {MAX_NAME} bytes.")
        if (folder / name).is_dir():
            raise errors.OutputError(f"{folder / name}: is a folder; a file is to be written there.")


def remove(path: pathlib.Path) -> None:
    """Removes a file if it is there."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise errors.OutputError(f"{path}: cannot be removed: {error.strerror or error}.") from error


def write_json(path: pathlib.Path, value: Any) -> None:
    """Writes `value` as strict, indented JSON."""
    write_text(path, json.dumps(plain.plain(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_jsonl(path: pathlib.Path, records: Iterable[Any]) -> None:
    """Writes one record a line as strict JSON."""
    lines = (json.dumps(plain.plain(record), ensure_ascii=False, allow_nan=False) for record in records)
    write_text(path, "".join(line + "\n" for line in lines))


def write_text(path: pathlib.Path, text: str) -> None:
    """Writes under a temporary name in the same folder, then renames: a reader sees the old file or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "w", encoding="utf-8", errors="surrogatepass") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise errors.OutputError(f"{path}: cannot be written: {error.strerror or error}.") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)

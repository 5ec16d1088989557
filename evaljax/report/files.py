"""Result files, written whole or not at all."""

import json
import os
import pathlib
import tempfile
from collections.abc import Iterable
from typing import Any

from evaljax.core import errors
from evaljax.report import plain


def check_writable(folder: pathlib.Path) -> None:
    """Raises OutputError unless files can be written to `folder`, which is made if it does not exist.

    Called before a run starts, so that an hour's answers are not lost to a read-only disk.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise errors.OutputError(f"output_dir {str(folder)!r} cannot be written: {error.strerror or error}.") from error


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
        temporary.unlink(missing_ok=True)

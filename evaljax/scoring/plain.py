"""Values as plain Python: numpy scalars and arrays turned into numbers and lists, without importing numpy."""

import numbers
from collections.abc import Mapping
from typing import Any

from evaljax.core import errors


def plain(value: Any) -> Any:
    """`value` with every numpy scalar or array in it replaced; lists stay lists, and everything else is untouched."""
    if isinstance(value, Mapping):
        return {plain(key): plain(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(plain(item) for item in value)
    if type(value).__module__.partition(".")[0] == "numpy" and hasattr(value, "tolist"):
        return value.tolist()
    return value


def is_number(value: Any) -> bool:
    """Whether `value` is one real number: Python's, numpy's, or a 0-dimensional array."""
    return isinstance(plain(value), numbers.Real)


def number(value: Any, *, where: str) -> float:
    """`value` as a plain Python number, or TaskError saying `where`."""
    found = plain(value)
    if isinstance(found, bool):
        return int(found)
    if isinstance(found, int | float):
        return found
    if isinstance(found, numbers.Real):
        return float(found)
    raise errors.TaskError(f"{where}: gave {type(value).__name__} {str(value)[:80]!r}; expected one number.")

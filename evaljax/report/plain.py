"""Values made plain, so that strict JSON can hold them."""

import inspect
import math
from collections.abc import Mapping
from typing import Any


def plain(value: Any) -> Any:
    """`value` as dicts with string keys, lists, strings, Python numbers, booleans and None.

    NaN and infinities become None (JSON has no word for them), numpy scalars and 0-d arrays Python numbers, tuples,
    sets and arrays lists, functions their source; everything else its `str`.
    """
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return [plain(item) for item in sorted(value, key=str)]
    if hasattr(value, "tolist"):  # numpy scalars and arrays, without importing numpy
        return plain(value.tolist())
    if callable(value):
        return source_of(value)
    return str(value)


def source_of(function: Any) -> str:
    """The source text of `function`, or its name where the source cannot be read."""
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):
        return getattr(function, "__qualname__", str(function))

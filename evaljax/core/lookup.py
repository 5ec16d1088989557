"""Names looked up in tables, with the nearest name in the error."""

import difflib
from collections.abc import Collection, Iterable, Mapping
from typing import TypeVar

from evaljax.core import errors

T = TypeVar("T")


def nearest(name: str, known: Iterable[str]) -> str:
    """` Did you mean 'x'?` for the known name closest to `name`, or an empty string if none is close."""
    matches = difflib.get_close_matches(str(name), [str(k) for k in known], n=1, cutoff=0.6)
    return f" Did you mean {matches[0]!r}?" if matches else ""


def listing(known: Iterable[str], limit: int = 24) -> str:
    """The known names in order, comma-separated, cut after `limit`."""
    names = sorted(str(k) for k in known)
    return ", ".join(names[:limit]) + (f", … ({len(names)} in all)" if len(names) > limit else "")


def check(
    known: Collection[str],
    name: str,
    *,
    what: str,
    where: str = "",
    error: type[errors.EvaljaxError] = errors.ConfigError,
) -> None:
    """Nothing if `name` is known, else `error` naming where, what, the nearest name and what is known."""
    if name not in known:
        prefix = f"{where}: " if where else ""
        raise error(f"{prefix}unknown {what} {name!r}.{nearest(name, known)} Known: {listing(known)}.")


def find(
    table: Mapping[str, T],
    name: str,
    *,
    what: str,
    where: str = "",
    error: type[errors.EvaljaxError] = errors.ConfigError,
) -> T:
    """`table[name]`, or the error of `check`."""
    check(table, name, what=what, where=where, error=error)
    return table[name]

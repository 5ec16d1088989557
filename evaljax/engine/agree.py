"""Whether all processes of a run are about to do the same: facts compared through the coordinator, before any device.

Processes that disagree would wait for each other inside a collective, without a word. Every call is a meeting of all
processes, and the meetings are counted: two processes that come to different ones disagree as well.
"""

import dataclasses
import itertools
import json
from collections.abc import Mapping
from typing import Any

from evaljax.core import errors

PATIENCE = 600_000  # ms of one look; a process that has died ends the others long before (`evaljax.hosts`)
SHOWN = 200  # characters of a value in a message
_meetings = itertools.count()


@dataclasses.dataclass(frozen=True)
class Place:
    """Which of how many processes this is."""

    index: int
    count: int


def place() -> Place:
    """This process among those that `jax.distributed` has joined; (0, 1) where it has joined none."""
    state = _state()
    return Place(state.process_id, state.num_processes)


def agree(what: str, digest: str) -> None:
    """Returns when all processes have come here with the same `digest` of `what`; else raises ConfigError on all."""
    agree_all({what: digest})


def agree_all(facts: Mapping[str, str]) -> None:
    """As `agree`, for many facts at once; the error names the first that differs and the process that has it."""
    here = place()
    if here.count == 1:
        return
    client, meeting = store(), f"evaljax/meeting/{next(_meetings)}"
    client.key_value_set(f"{meeting}/{here.index}", json.dumps(dict(facts)))
    if here.index == 0:
        told = (json.loads(_wait(client, f"{meeting}/{other}")) for other in range(1, here.count))
        problems = [_difference(facts, theirs, other) for other, theirs in enumerate(told, start=1)]
        client.key_value_set(f"{meeting}/verdict", next(filter(None, problems), ""))
    problem = _wait(client, f"{meeting}/verdict")
    if problem:
        raise errors.ConfigError(f"hosts: the processes of one run must be started alike, but {problem}")


def store() -> Any:
    """The key-value store of the coordinator: `jax.distributed` shows it to nobody, so this looks inside."""
    return _state().client


def _state() -> Any:
    from jax._src import distributed

    return distributed.global_state


def _difference(ours: Mapping[str, str], theirs: Mapping[str, str], other: int) -> str:
    """What process `other` has and process 0 has not, in words; empty where they agree."""
    for key in dict.fromkeys([*ours, *theirs]):
        mine, its = ours.get(key), theirs.get(key)
        if mine != its:
            shown = [f"has {_short(value)}" if value is not None else "has none" for value in (its, mine)]
            return f"{key} differs: process {other} {shown[0]}, process 0 {shown[1]}"
    return ""


def _short(value: str) -> str:
    return value if len(value) <= SHOWN else f"{value[:SHOWN]}…"


def _wait(client: Any, key: str) -> str:
    """The value of `key`, as soon as some process sets it."""
    import jax

    while True:
        try:
            return str(client.blocking_key_value_get(key, PATIENCE))
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise

"""Sample files in lm-eval's schema: one record a line for each (document, filter)."""

import pathlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from evaljax.core import errors, result
from evaljax.report import files


def records(item: result.TaskResult) -> Iterator[dict[str, Any]]:
    """The task's samples as lm-eval's sample file spells them: targets as text, arguments by name."""
    for sample in item.samples:
        yield {
            **sample,
            "target": str(sample["target"]),
            "arguments": {
                f"gen_args_{i}": {f"arg_{j}": argument for j, argument in enumerate(arguments)}
                for i, arguments in enumerate(sample["arguments"])
            },
            "resps": _texts(sample["resps"]),
            "filtered_resps": _texts(sample["filtered_resps"]),
        }


def write_samples(folder: pathlib.Path, tasks: Mapping[str, result.TaskResult]) -> None:
    """Writes `samples_<task>.jsonl` of every task into `folder`."""
    for file, name in file_names(tasks).items():
        files.write_jsonl(folder / file, records(tasks[name]))


def file_names(tasks: Iterable[str]) -> dict[str, str]:
    """The task by name of its sample file; OutputError where two tasks have one."""
    named: dict[str, str] = {}
    for task in tasks:
        file = f"samples_{file_name(task)}.jsonl"
        if file in named:
            raise errors.OutputError(f"the tasks {named[file]!r} and {task!r} would both be written to {file}.")
        named[file] = task
    return named


def file_name(task: str) -> str:
    """`task` with the characters that a file name cannot hold replaced."""
    return "".join("_" if character in '<>"/\\|?*' or ord(character) < 32 else character for character in task)


def _texts(value: Any) -> Any:
    return [_texts(item) for item in value] if isinstance(value, list | tuple) else str(value)

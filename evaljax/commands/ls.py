"""`evaljax ls`: what tasks, groups and tags there are."""

import argparse
import fnmatch
import pathlib
from collections.abc import Sequence

from evaljax.core import build, errors, lookup
from evaljax.report import table
from evaljax.tasks import index as indexing
from evaljax.tasks import manager

LISTED = {"tasks": ("task", "class"), "groups": ("group",), "tags": ("tag",)}


def main(argv: Sequence[str]) -> int:
    """Prints the tasks, groups or tags whose name matches; returns the exit code."""
    parser = argparse.ArgumentParser(prog="evaljax ls", description="List tasks, groups and tags.")
    parser.add_argument("what", nargs="*", metavar="[KIND] [PATTERN]", help="tasks, groups or tags; names that match")
    parser.add_argument(
        "--task_path",
        "--config.task_path",
        action="append",
        default=[],
        metavar="DIR",
        help="another folder of tasks; repeatable",
    )
    options = parser.parse_args(list(argv))
    kind = options.what.pop(0) if options.what and options.what[0] in LISTED else None
    pattern = options.what.pop(0) if options.what else "*"
    if options.what:
        raise errors.ConfigError(
            f"ls: one kind ({', '.join(LISTED)}) and one pattern are expected, found {options.what[0]!r} too."
        )
    kinds = [known for name, kinds in LISTED.items() if kind in (name, None) for known in kinds]
    index = manager.TaskManager(include_path=options.task_path).index
    rows = []
    for name in fnmatch.filter(index.names(*kinds), pattern):
        entry = index.entries[name]
        rows.append([name, entry.kind, _about(entry), "" if entry.path is None else _short(entry.path)])
    if not rows:
        raise errors.TaskError(f"nothing is called {pattern!r}.{lookup.nearest(pattern, index.entries)}")
    print(table.markdown(["Name", "Kind", "Output", "File"], rows, [False] * 4))
    return 0


def _about(entry: indexing.Entry) -> str:
    """How many members a group or tag has; the output type of a task."""
    if entry.kind in ("group", "tag"):
        return f"{len(entry.members or build.names(entry.config.get('task')))} members"
    return str(entry.config.get("output_type", "generate_until"))


def _short(path: pathlib.Path) -> str:
    """The path below its tasks folder, or as it is."""
    parts = path.parts
    return "/".join(parts[len(parts) - 1 - parts[::-1].index("tasks") :]) if "tasks" in parts else str(path)

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
    parser.add_argument("kind", nargs="?", default="all", choices=[*LISTED, "all"], help="what to list (default: all)")
    parser.add_argument("pattern", nargs="?", default="*", help="only names that match, for example '*_easy'")
    parser.add_argument(
        "--task_path", action="append", default=[], metavar="DIR", help="another folder of tasks; repeatable"
    )
    words = list(argv)
    if words and words[0] not in [*LISTED, "all"] and not words[0].startswith("-"):
        words.insert(0, "all")
    options = parser.parse_args(words)
    kinds = [kind for name, kinds in LISTED.items() if options.kind in (name, "all") for kind in kinds]
    index = manager.TaskManager(include_path=options.task_path).index
    rows = []
    for name in fnmatch.filter(index.names(*kinds), options.pattern):
        entry = index.entries[name]
        rows.append([name, entry.kind, _about(entry), "" if entry.path is None else _short(entry.path)])
    if not rows:
        near = lookup.nearest(options.pattern, index.entries)
        raise errors.TaskError(f"nothing is called {options.pattern!r}.{near}")
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

"""What tasks there are: names to entries, from folders of YAML files. Nothing is imported and no data is read."""

import dataclasses
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from evaljax.core import build, errors, lookup
from evaljax.tasks import yaml_file

_SKIPPED = {"__pycache__", ".ipynb_checkpoints"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """One name of the index.

    Attributes:
      kind: "task", "group", "tag", or "class", a task that Python code defines.
      path: the file; None for a tag, which is a label in other files.
      config: the file's mapping, includes merged, functions as references; empty for a tag.
      members: of a tag, the names of its tasks in order; of any other kind nothing.
    """

    name: str
    kind: str
    path: pathlib.Path | None = None
    config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    members: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskIndex:
    """Every name, and what was wrong with the files that gave none.

    Attributes:
      broken: message by file that could not be read or meant.
      duplicates: (name, first file, second file) inside one root; the first one holds the name.
    """

    entries: Mapping[str, Entry]
    broken: Mapping[pathlib.Path, str] = dataclasses.field(default_factory=dict)
    duplicates: tuple[tuple[str, pathlib.Path, pathlib.Path], ...] = ()

    def names(self, *kinds: str) -> list[str]:
        """The names of these kinds, sorted; of all kinds if none is given."""
        return sorted(name for name, entry in self.entries.items() if not kinds or entry.kind in kinds)

    def find(self, name: str) -> Entry:
        """The entry of `name`, or a `TaskError` that names the nearest one or the broken file that defines it."""
        for twice, first, second in self.duplicates:
            if twice == name:
                raise errors.TaskError(f"the name {name!r} is defined twice: in {first} and in {second}.")
        if name in self.entries:
            return self.entries[name]
        for path, message in self.broken.items():
            if _mentions(path, name):
                raise errors.TaskError(f"task {name!r} is in a file that cannot be used: {message}")
        raise errors.TaskError(
            f"unknown task {name!r}.{lookup.nearest(name, self.entries)} "
            f"{len(self.entries)} tasks, groups and tags are known."
        )


def build_index(roots: Sequence[pathlib.Path | str]) -> TaskIndex:
    """The index of all YAML files under `roots`; a later root's name replaces an earlier root's.

    A file that cannot be read or meant, and a name given twice inside one root, are errors when somebody asks for them.
    """
    entries: dict[str, Entry] = {}
    broken: dict[pathlib.Path, str] = {}
    duplicates: dict[str, tuple[str, pathlib.Path, pathlib.Path]] = {}
    for root in roots:
        here, bad, twice = _read_root(pathlib.Path(root).expanduser())
        broken.update(bad)
        for name in here:
            duplicates.pop(name, None)
        duplicates.update({item[0]: item for item in twice})
        entries.update(_with_tags(here, entries))
    return TaskIndex(entries=entries, broken=broken, duplicates=tuple(duplicates.values()))


def _read_root(
    root: pathlib.Path,
) -> tuple[dict[str, Entry], dict[pathlib.Path, str], list[tuple[str, pathlib.Path, pathlib.Path]]]:
    if not root.is_dir():
        raise errors.TaskError(f"there is no folder of tasks {root}.")
    entries: dict[str, Entry] = {}
    broken: dict[pathlib.Path, str] = {}
    duplicates = []
    for path in yaml_paths(root):
        try:
            entry = read_entry(path)
        except errors.TaskError as error:
            broken[path] = str(error)
            continue
        if entry is None:
            continue
        if entry.name in entries:
            duplicates.append((entry.name, entries[entry.name].path or root, path))
        else:
            entries[entry.name] = entry
    return entries, broken, duplicates


def yaml_paths(root: pathlib.Path) -> Iterator[pathlib.Path]:
    """The YAML files under a folder in the order of their paths."""
    yield from sorted(p for p in root.rglob("*.yaml") if not _SKIPPED.intersection(p.relative_to(root).parts))


def read_entry(path: pathlib.Path) -> Entry | None:
    """The entry that a file defines; None for a file that only others include."""
    config = yaml_file.read_yaml(path)
    kind = kind_of(config)
    if kind is None:
        return None
    key = "group" if kind == "group" else "task"
    name = config.get(key)
    if not isinstance(name, str) or not name:
        expected = (
            "a name; for a list of tasks give the list a `group` name"
            if key == "task"
            else "one name; labels of a task go into `tag`"
        )
        raise errors.TaskError(f"{yaml_file.locate(path, key)}: {key} must be {expected}, found {name!r}.")
    expected, is_names = build.NAMES
    tag = config.get("tag")
    if tag is not None and (tag == "" or not is_names(tag)):
        raise errors.TaskError(f"{yaml_file.locate(path, 'tag')}: tag must be {expected}, found {tag!r}.")
    return Entry(name=name, kind=kind, path=path, config=config)


def kind_of(config: Mapping[str, Any]) -> str | None:
    """Which kind of entry a mapping is, or None where it names nothing."""
    for key, kind in (("class", "class"), ("group", "group"), ("task", "task")):
        if key in config:
            return kind
    return None


def _with_tags(here: dict[str, Entry], earlier: Mapping[str, Entry]) -> dict[str, Entry]:
    # A task or group keeps its name when a tag is called the same. A root can add tasks to an earlier root's tag.
    members: dict[str, list[str]] = {}
    for name, entry in here.items():
        if entry.kind in ("task", "class"):
            for tag in build.names(entry.config.get("tag")):
                members.setdefault(tag, []).append(name)
    merged = dict(here)
    for tag, names in members.items():
        if tag in here or (tag in earlier and earlier[tag].kind != "tag"):
            continue
        before = earlier[tag].members if tag in earlier else ()
        merged[tag] = Entry(name=tag, kind="tag", members=tuple(sorted({*before, *names})))
    return merged


def _mentions(path: pathlib.Path, name: str) -> bool:
    if path.stem == name:
        return True
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return re.search(rf"^\s*(task|group)\s*:\s*[\"']?{re.escape(name)}[\"']?\s*(#.*)?$", text, re.MULTILINE) is not None

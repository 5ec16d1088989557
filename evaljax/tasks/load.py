"""Tasks ready to be evaluated: what names, patterns, files and mappings stand for, functions imported, groups expanded.

    spec -> entries of the index -> leaves (raw mapping + overrides) and groups -> checked records

Overrides run from the outside in: what a group's file sets for its members gives way to what the group's own parent
sets; both replace what the task's file says. A leaf that is reached twice is loaded once; reached with two different
meanings it is an error.
"""

import dataclasses
import fnmatch
import glob
import pathlib
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from evaljax.core import build, errors, lookup, task
from evaljax.tasks import docs, index, task_code, yaml_file

if TYPE_CHECKING:
    from evaljax.tasks import manager as managers

Raw = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Task:
    """A task whose functions are imported and whose documents are read when they are needed."""

    config: task.TaskConfig
    documents: docs.Documents


@dataclasses.dataclass(frozen=True)
class LoadedTasks:
    """Leaf tasks in lm-eval's order, each once, and the groups that hold them."""

    tasks: dict[str, Task]
    groups: dict[str, task.GroupConfig]

    def only(self, names: Collection[str]) -> "LoadedTasks":
        """These tasks, and the groups that hold any of them, without their other members."""

        def kept(name: str) -> bool:
            return any(map(kept, self.groups[name].children)) if name in self.groups else name in names

        groups = {
            name: dataclasses.replace(group, children=tuple(filter(kept, group.children)))
            for name, group in self.groups.items()
            if kept(name)
        }
        return LoadedTasks({name: item for name, item in self.tasks.items() if name in names}, groups)


def load_tasks(
    specs: Sequence[str | Mapping[str, Any]],
    *,
    manager: "managers.TaskManager",
    num_fewshot: int | None,
    gen_kwargs: Mapping[str, Any],
    trust_task_code: bool,
    data_mirror: str | None,
) -> LoadedTasks:
    """The tasks and groups that `specs` stand for.

    A spec is a name, a pattern over names, a YAML file (or a pattern of files), a folder of YAML files, or a mapping. A
    mapping without a data set of its own changes the registered task of that name; any other stands alone.

    `num_fewshot` replaces what the tasks say, except where a task says 0; `gen_kwargs` are added to the
    `generation_kwargs` of tasks that generate.
    """
    if num_fewshot is not None and not build.COUNT[1](num_fewshot):
        raise errors.ConfigError(f"num_fewshot must be {build.COUNT[0]}, found {num_fewshot!r}.")
    build.generation_kwargs(gen_kwargs, source="gen_kwargs")  # also where no task generates
    if data_mirror is not None and not pathlib.Path(data_mirror).expanduser().is_dir():
        raise errors.ConfigError(f"data_mirror: there is no folder {data_mirror!r}.")
    expansion = _Expansion(manager)
    for spec in _flat(specs):
        for entry, overrides in _entries(spec, manager):
            expansion.add(entry, overrides)
    if not expansion.leaves:
        raise errors.TaskError(f"no task to evaluate: {list(specs)!r} stand for nothing.")
    tasks = {}
    for name, leaf in expansion.leaves.items():
        config = _config(leaf, trust_task_code)
        config = _with_run_options(config, num_fewshot, gen_kwargs)
        tasks[name] = Task(config, docs.Documents(config, data_mirror))
    return LoadedTasks(tasks, expansion.groups)


@dataclasses.dataclass(frozen=True)
class _Leaf:
    raw: Raw
    source: str
    path: pathlib.Path | None


class _Expansion:
    """Walks from entries down to leaves and collects both leaves and groups by name."""

    def __init__(self, manager: "managers.TaskManager") -> None:
        self.manager = manager
        self.leaves: dict[str, _Leaf] = {}
        self.groups: dict[str, task.GroupConfig] = {}
        self.open_groups: list[str] = []

    def add(self, entry: index.Entry, overrides: Raw) -> list[str]:
        """Adds what `entry` stands for; the names of the direct children it makes in its parent."""
        if entry.kind == "tag":
            return [name for member in entry.members for name in self.add(self.manager.index.find(member), overrides)]
        if entry.kind == "group":
            return [self._add_group(entry.name, entry.config, entry.path, overrides)]
        if entry.kind == "class":
            raise errors.TaskError(f"{entry.path}: task {entry.name!r}: {build.UNSUPPORTED['class']}.")
        return [self._add_leaf(entry.name, {**entry.config, **overrides}, entry.path)]

    def _add_leaf(self, name: str, raw: Raw, path: pathlib.Path | None) -> str:
        metadata = {**build.metadata(raw.get("metadata")), **self.manager.metadata}
        merged = {**raw, "task": name, "metadata": metadata}
        leaf = _Leaf(merged, str(path) if path else "inline", path)
        before = self.leaves.setdefault(name, leaf)
        if before != leaf:
            raise errors.TaskError(
                f"task {name!r} is asked for in two different meanings: from {before.source} and from {leaf.source}"
                f" (they differ in: {_difference(before.raw, leaf.raw)})."
            )
        return name

    def _add_group(self, name: str, raw: Raw, path: pathlib.Path | None, overrides: Raw) -> str:
        source = str(path) if path else "inline"
        if name in self.open_groups:
            raise errors.TaskError(
                f"{source}: groups contain each other in a loop: {' -> '.join([*self.open_groups, name])}."
            )
        members = _members(name, raw, source)
        own = {key: value for key, value in raw.items() if key not in build.GROUP_FIELDS and key != "tag"}
        _check_overrides(own, source, path)
        # Holds the place: parents come before their children.
        self.groups.setdefault(name, task.GroupConfig(group=name))
        self.open_groups.append(name)
        children: list[str] = []
        for number, member in enumerate(members):
            children += self._add_member(
                name, member, {**own, **overrides}, path, f"{source}: group {name!r}: task[{number}]"
            )
        self.open_groups.pop()
        fields = {key: value for key, value in raw.items() if key in build.GROUP_FIELDS and key != "task"}
        config = build.group_config(
            {**fields, "group": name}, source=source, children=tuple(dict.fromkeys(children)), locate=_locate(path)
        )
        before = self.groups[name]
        if before.children and before != config:
            raise errors.TaskError(
                f"group {name!r} is asked for in two different meanings: from {before.source} and {source}."
            )
        self.groups[name] = config
        return name

    def _add_member(self, group: str, member: Any, overrides: Raw, path: pathlib.Path | None, where: str) -> list[str]:
        if isinstance(member, str):
            return self.add(_find(self.manager, member, where), overrides)
        if not isinstance(member, Mapping):
            raise errors.TaskError(f"{where} must be a name or a mapping with `task` or `group`, found {member!r}.")
        key = "group" if "group" in member else "task"
        name = member.get(key)
        if not isinstance(name, str) or not name:
            raise errors.TaskError(f"{where} needs a name under `task` or `group`, found the keys {list(member)}.")
        entries = self.manager.index.entries
        inner = {k: v for k, v in member.items() if k not in ("task", "group", "tag")}
        if name in entries and not (key == "group" and "task" in member):
            return self._add_registered(entries[name], inner, overrides)
        if key == "group":
            return [self._add_group(f"{group}::{name}", member, path, overrides)]
        return [self._add_leaf(f"{group}::{name}", {**overrides, **inner}, path)]

    def _add_registered(self, entry: index.Entry, inner: Raw, overrides: Raw) -> list[str]:
        if entry.kind != "group":
            return self.add(entry, {**overrides, **inner})
        # A name, an aggregate and metadata are the group's own; everything else is for its members.
        own = {k: v for k, v in inner.items() if k in build.GROUP_FIELDS}
        rest = {k: v for k, v in inner.items() if k not in build.GROUP_FIELDS}
        return [self._add_group(entry.name, {**entry.config, **own}, entry.path, {**overrides, **rest})]


def _find(manager: "managers.TaskManager", name: str, where: str) -> index.Entry:
    try:
        return manager.index.find(name)
    except errors.TaskError as error:
        raise errors.TaskError(f"{where}: {error}") from error


def _members(name: str, raw: Raw, source: str) -> list[Any]:
    members = raw.get("task")
    members = [members] if isinstance(members, str) else members
    if not isinstance(members, list) or not members:
        raise errors.TaskError(f"{source}: group {name!r} needs a list of members under `task`, found {members!r}.")
    return members


def _check_overrides(own: Raw, source: str, path: pathlib.Path | None) -> None:
    known = [*build.TASK_FIELDS, *build.GROUP_FIELDS]
    for key in own:
        if key not in known:
            place = yaml_file.locate(path, key) if path else source
            raise errors.TaskError(
                f"{place}: unknown key {key!r} in group.{lookup.nearest(key, known)} "
                f"Known: {lookup.listing(build.GROUP_FIELDS)}, and the fields of a task."
            )


def _difference(one: Raw, other: Raw) -> str:
    return lookup.listing(key for key in {*one, *other} if one.get(key) != other.get(key)) or "the file"


def _locate(path: pathlib.Path | None) -> build.Locate | None:
    return None if path is None else lambda key: yaml_file.locate(path, key)


def _config(leaf: _Leaf, trust: bool) -> task.TaskConfig:
    # Checked before any code runs, so that a slip in the file shows first.
    build.task_config(leaf.raw, source=leaf.source, locate=_locate(leaf.path))
    resolved = task_code.resolve(leaf.raw, trust=trust, where=f"{leaf.source}: task {leaf.raw['task']!r}")
    return build.task_config(resolved, source=leaf.source, locate=_locate(leaf.path))


def _with_run_options(config: task.TaskConfig, num_fewshot: int | None, gen_kwargs: Raw) -> task.TaskConfig:
    shots = config.num_fewshot or 0
    if num_fewshot is not None and config.num_fewshot != 0:
        shots = num_fewshot
    generation = config.generation_kwargs
    if gen_kwargs and config.output_type == "generate_until":
        _check_heard(config, gen_kwargs)
        where = f"gen_kwargs (task {config.task!r})"
        generation = build.generation_kwargs({**(generation or {}), **gen_kwargs}, source=where)
    return dataclasses.replace(config, num_fewshot=shots, generation_kwargs=generation)


def _check_heard(config: task.TaskConfig, gen_kwargs: Raw) -> None:
    """Nothing; a TaskError where the user asks for sampling and the task's own `do_sample: false` would outdo that.

    In a task's file lm-eval's rule stands: `do_sample: false` is greedy whatever the temperature.
    """
    if gen_kwargs.get("do_sample") is not None or (config.generation_kwargs or {}).get("do_sample") is not False:
        return
    asked = {key: gen_kwargs[key] for key in ("temperature", "top_p", "top_k") if gen_kwargs.get(key) is not None}
    if asked.get("temperature", 0) > 0 or asked.get("top_p", 1) < 1 or asked.get("top_k", 0) > 1:
        given = ", ".join(f"{key}={value}" for key, value in asked.items())
        raise errors.TaskError(
            f"task {config.task!r} ({config.source}) says do_sample: false, so it stays greedy whatever gen_kwargs "
            f"({given}) say; add do_sample=True to gen_kwargs to sample."
        )


def _flat(specs: Any) -> list[str | Raw]:
    if isinstance(specs, (str, Mapping)):
        return [specs]
    if isinstance(specs, pathlib.Path):
        return [str(specs)]
    if not isinstance(specs, (list, tuple)):
        raise errors.TaskError(f"a task must be a name, a file or a mapping, found {specs!r}.")
    return [inner for spec in specs for inner in _flat(spec)]


def _entries(spec: str | Raw, manager: "managers.TaskManager") -> list[tuple[index.Entry, Raw]]:
    """The entries that a spec stands for, with what it changes in them."""
    if isinstance(spec, Mapping):
        return [_inline(spec, manager)]
    if spec in manager.index.entries:
        return [(manager.index.find(spec), {})]
    path = pathlib.Path(spec).expanduser()
    if path.suffix in (".yaml", ".yml"):
        return [(_from_file(file), {}) for file in _files(spec, path)]
    if path.is_dir():
        files = [(file, index.read_entry(file.resolve())) for file in sorted(path.glob("*.yaml"))]
        found: list[tuple[index.Entry, Raw]] = [(entry, {}) for _, entry in files if entry is not None]
        if not found:
            raise errors.TaskError(f"the folder {path} holds no task file (*.yaml).")
        return found
    if any(mark in spec for mark in "*?["):
        names = fnmatch.filter(manager.index.names(), spec)
        if not names:
            raise errors.TaskError(f"no task matches the pattern {spec!r}.")
        return [(manager.index.find(name), {}) for name in names]
    return [(manager.index.find(spec), {})]


def _files(spec: str, path: pathlib.Path) -> list[pathlib.Path]:
    files = [path] if path.is_file() else [pathlib.Path(name) for name in sorted(glob.glob(str(path)))]
    if not files:
        raise errors.TaskError(f"there is no task file {spec!r}.")
    return files


def _from_file(file: pathlib.Path) -> index.Entry:
    entry = index.read_entry(file.resolve())
    if entry is None:
        raise errors.TaskError(f"{file} defines neither a task nor a group: it has no `task` and no `group` key.")
    return entry


def _inline(spec: Raw, manager: "managers.TaskManager") -> tuple[index.Entry, Raw]:
    merged = yaml_file.merge_includes(spec, source="inline task", folder=None)
    kind = index.kind_of(merged)
    name = merged.get("group" if kind == "group" else "task")
    if kind is None or not isinstance(name, str):
        raise errors.TaskError(
            f"inline task: a mapping needs a name under `task` or `group`, found the keys {list(spec)}."
        )
    stands_alone = kind == "group" or "dataset_path" in merged or "custom_dataset" in merged
    if not stands_alone and name in manager.index.entries and manager.index.entries[name].kind == "task":
        return manager.index.find(name), merged
    return index.Entry(name=name, kind=kind, config=merged), {}

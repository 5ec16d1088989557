"""One task file as a mapping: includes merged, `!function` tags kept as references, places of keys for messages.

`include` (text or list) names files relative to the including file. The merge is shallow: of two files that set one
top-level key the later one wins whole, and the including file is last.
"""

import functools
import math
import pathlib
from collections.abc import Mapping
from typing import Any

import yaml

from evaljax.core import errors, lookup, task

MAX_VALUES = 1_000_000  # far beyond any task file; a few aliases of aliases of lists stand for billions
SAFE_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # in C where it was built, several times as fast


class _Loader(SAFE_LOADER):
    """YAML 1.1 plus `!function`; `folder` is where the file lies."""

    folder: str = ""


def _function(loader: Any, node: Any) -> task.FunctionRef:
    name = loader.construct_scalar(node)
    module, *attributes = name.split(".")
    if not attributes or not all(part.isidentifier() for part in (module, *attributes)):
        line = node.start_mark.line + 1
        raise errors.TaskError(f"{node.start_mark.name}:{line}: !function {name!r} must read module.function.")
    return task.FunctionRef(loader.folder, name)


_Loader.add_constructor("!function", _function)


def read_yaml(path: pathlib.Path | str) -> dict[str, Any]:
    """The mapping that a task file stands for, its includes merged in. Nothing is imported."""
    return dict(_read(resolved(path), ()))


def resolved(path: pathlib.Path | str) -> pathlib.Path:
    """`path` absolute, with `~` and links followed, so that one file has one name."""
    return pathlib.Path(path).expanduser().resolve()


def merge_includes(raw: Mapping[str, Any], *, source: str, folder: pathlib.Path | None) -> dict[str, Any]:
    """`raw` with its `include` merged in; without a folder only absolute includes can be found."""
    return _merged(raw, source, folder, ())


def _read(path: pathlib.Path, chain: tuple[pathlib.Path, ...]) -> Mapping[str, Any]:
    if path in chain:
        loop = " -> ".join(str(p) for p in (*chain[chain.index(path) :], path))
        raise errors.TaskError(f"{chain[-1]}: include: the files include each other in a loop: {loop}.")
    try:
        stat = path.stat()
        raw = _parse(path, stat.st_mtime_ns, stat.st_size)
    except OSError as error:
        raise errors.TaskError(f"{path}: cannot be read: {error.strerror or error}.") from error
    return _merged(raw, str(path), path.parent, (*chain, path))


@functools.lru_cache(maxsize=4096)
def _parse(path: pathlib.Path, mtime_ns: int, size: int) -> Mapping[str, Any]:
    # Keyed by time and size as well, so that an edited file is read anew. The value is shared: nobody changes it.
    loader = _Loader(path.read_bytes())
    loader.folder = str(path.parent)
    try:
        raw = loader.get_single_data()
    except errors.TaskError as error:
        raise errors.TaskError(str(error).replace("<byte string>", str(path), 1)) from error
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark is not None else ""
        raise errors.TaskError(f"{path}{line}: not valid YAML: {getattr(error, 'problem', None) or error}.") from error
    finally:
        loader.dispose()
    if not isinstance(raw, dict):
        raise errors.TaskError(f"{path}: expected a mapping of keys, found {type(raw).__name__}.")
    if _size(raw, {}) > MAX_VALUES:
        raise errors.TaskError(f"{path}: its aliases stand for more than {MAX_VALUES:,} values, or for themselves.")
    return raw


def _size(value: Any, known: dict[int, float]) -> float:
    """How many values `value` holds, aliases written out; infinite where it holds itself."""
    if not isinstance(value, dict | list | tuple | set):
        return 1
    if id(value) not in known:
        known[id(value)] = math.inf  # until it is counted: whoever meets it before then is inside it
        inner = value.values() if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_size(item, known) for item in inner)
    return known[id(value)]


def _merged(
    raw: Mapping[str, Any], source: str, folder: pathlib.Path | None, chain: tuple[pathlib.Path, ...]
) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for path in include_paths(raw, source=source, folder=folder):
        merged.update(_read(path, chain))
    merged.pop("task_list", None)
    merged.update(raw)
    merged.pop("include", None)
    members = merged.get("task")
    if isinstance(members, list) and any(isinstance(member, dict) and "include" in member for member in members):
        merged["task"] = [
            _merged(member, f"{source}: task[{i}]", folder, chain) if isinstance(member, dict) else member
            for i, member in enumerate(members)
        ]
    return merged


def include_paths(raw: Mapping[str, Any], *, source: str, folder: pathlib.Path | None) -> list[pathlib.Path]:
    """The files that `raw` includes, in order, every one of them there."""
    value = raw.get("include")
    if value is None:
        return []
    names = value if isinstance(value, list) else [value]
    paths = []
    for name in names:
        if not isinstance(name, str):
            raise errors.TaskError(f"{source}: include must be a file name or a list of file names, found {name!r}.")
        path = pathlib.Path(name).expanduser()
        if not path.is_absolute():
            if folder is None:
                raise errors.TaskError(
                    f"{source}: include {name!r} is relative, but a task given inline lies in no folder: "
                    "use an absolute path."
                )
            path = folder / path
        if not path.is_file():
            near = lookup.nearest(path.name, (p.name for p in path.parent.iterdir())) if path.parent.is_dir() else ""
            raise errors.TaskError(f"{source}: include {name!r}: there is no file {path}.{near}")
        paths.append(path.resolve())
    return paths


def locate(path: pathlib.Path | str, key: str) -> str:
    """`file:line` of `key` in a task file or in the files that it includes; the file alone where there is none."""
    start = resolved(path)
    for file in _family(start, ()):
        line = _line(file, key)
        if line is not None:
            return f"{file}:{line}"
    return str(start)


def _family(path: pathlib.Path, chain: tuple[pathlib.Path, ...]) -> list[pathlib.Path]:
    # The file itself, then what it includes, the strongest first.
    if path in chain or not path.is_file():
        return []
    stat = path.stat()
    try:
        included = include_paths(_parse(path, stat.st_mtime_ns, stat.st_size), source=str(path), folder=path.parent)
    except errors.TaskError:
        return [path]
    return [path] + [file for inner in reversed(included) for file in _family(inner, (*chain, path))]


def _line(path: pathlib.Path, key: str) -> int | None:
    try:
        root = yaml.compose(path.read_bytes(), Loader=SAFE_LOADER)
    except (OSError, yaml.YAMLError):
        return None
    level = [root]
    while level:  # breadth first: a top-level key goes before one of the same name deeper down
        below: list[Any] = []
        for node in level:
            if isinstance(node, yaml.MappingNode):
                for name, value in node.value:
                    if name.value == key:
                        return int(name.start_mark.line) + 1
                    below.append(value)
            elif isinstance(node, yaml.SequenceNode):
                below.extend(node.value)
        level = below
    return None

"""Recipes: Python files whose `get_config()` returns a run's configuration, and `--config.key=value` on top of them.

from evaljax import recipe

def get_config():
    config = recipe.default_config()
    config.tasks = "my_task,another"
    config.model.path = "HuggingFaceTB/SmolLM2-135M-Instruct"
    return config
"""

import ast
import dataclasses
import functools
import importlib.util
import math
import numbers
import pathlib
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import ml_collections

from evaljax.core import config as config_lib
from evaljax.core import errors, lookup
from evaljax.tasks import library

SECTIONS: Mapping[str, type] = {
    "model": config_lib.ModelSpec,
    "engine": config_lib.EngineOptions,
    "hosts": config_lib.HostsSpec,
}


def default_config() -> ml_collections.ConfigDict:
    """Every key of `RunConfig` at its default, locked: a key that does not exist cannot be set."""
    config = ml_collections.ConfigDict(
        {
            name: ml_collections.ConfigDict(
                {key: _placeholder(default) for key, default in _defaults(SECTIONS[name]).items()}
            )
            if name in SECTIONS
            else _placeholder(default)
            for name, default in _defaults(config_lib.RunConfig).items()
        }
    )
    return config.lock()


def read(path: str, overrides: Iterable[str] = ()) -> config_lib.RunConfig:
    """The checked configuration of recipe `path`, `overrides` ("key=value", "model.path=DIR") applied in order.

    A path that does not exist is looked for among the recipes that ship with evaljax, with or without
    "configs/" and ".py".
    """
    return freeze(_load(path), overrides, where=path)


def freeze(
    config: ml_collections.ConfigDict, overrides: Iterable[str] = (), *, where: str = "config"
) -> config_lib.RunConfig:
    """`config` with `overrides` as a checked `RunConfig`."""
    values = config.to_dict()
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals:
            raise errors.ConfigError(f"--config.{override}: a value is expected, as in --config.{override}=VALUE.")
        section, _, name = key.rpartition(".")
        if section and section not in SECTIONS:
            raise errors.ConfigError(f"--config.{key}: unknown section {section!r}.{lookup.nearest(section, SECTIONS)}")
        known = _defaults(SECTIONS[section] if section else config_lib.RunConfig)
        lookup.check(known, name, what="config key", where=f"--config.{key}")
        if name in SECTIONS and not section:
            names = lookup.listing(_defaults(SECTIONS[name]))
            raise errors.ConfigError(f"--config.{key}: a section; set one of its keys: {names}.")
        target = values.setdefault(section, {}) if section else values
        if isinstance(target, dict):  # anything else is refused below
            target[name] = text
    return run_config(values, where=where)


def run_config(values: Mapping[str, Any], *, where: str = "config") -> config_lib.RunConfig:
    """A checked `RunConfig` from plain values; strings are read as the key's type asks."""
    sections = {
        name: _record(kind, values.get(name) or {}, where=where, prefix=f"{name}.") for name, kind in SECTIONS.items()
    }
    rest = {key: value for key, value in values.items() if key not in SECTIONS}
    config: config_lib.RunConfig = dataclasses.replace(_record(config_lib.RunConfig, rest, where=where), **sections)
    _check(config, where)
    return config


def _check(config: config_lib.RunConfig, where: str) -> None:
    require = functools.partial(_require, where)
    require(bool(config.tasks), "tasks", config.tasks, "at least one task name")
    require(config.num_fewshot is None or config.num_fewshot >= 0, "num_fewshot", config.num_fewshot, "0 or more")
    require(
        config.limit is None or 0 < config.limit < math.inf,
        "limit",
        config.limit,
        "a number above 0, or None for all documents",
    )
    # Python's generators take -1 for 1.
    require(config.seed >= 0, "seed", config.seed, "0 or more")
    for key in ("data_mirror", "output_dir", "cache_dir"):
        require(getattr(config, key) != "", key, "", "a folder, or None")
    require(config.bootstrap_iters >= 0, "bootstrap_iters", config.bootstrap_iters, "0 or more")
    require(
        not (config.fewshot_as_multiturn and not config.apply_chat_template),
        "fewshot_as_multiturn",
        True,
        "apply_chat_template=True with it",
    )
    require(
        config.overlength in config_lib.OVERLENGTH,
        "overlength",
        config.overlength,
        lookup.listing(config_lib.OVERLENGTH),
    )
    for key in ("data", "model", "memory_bytes", "chunk_length", "num_rows", "num_slots", "decode_steps"):
        value = getattr(config.engine, key)
        require(value >= 0, f"engine.{key}", value, "0 (chosen) or more")
    _check_model(config.model, require)
    _check_hosts(config.hosts, require)


def _check_model(model: config_lib.ModelSpec, require: Callable[[bool, str, Any, str], None]) -> None:
    for key in ("path", "revision", "tokenizer"):
        require(getattr(model, key) != "", f"model.{key}", "", "a name" if key == "path" else "a name, or None")
    for key, value, known in (
        ("model.dtype", model.dtype, config_lib.DTYPES),
        ("model.precision", model.precision, config_lib.PRECISIONS),
    ):
        require(value in known, key, value, f"one of {', '.join(known)}")
    require(model.think_end_token != "", "model.think_end_token", "", "a text, for example </think>, or None")
    require(model.batch_size > 0, "model.batch_size", model.batch_size, "1 or more")
    length = model.max_length
    require(length is None or length > 1, "model.max_length", length, "2 tokens or more")


def _check_hosts(hosts: config_lib.HostsSpec, require: Callable[[bool, str, Any, str], None]) -> None:
    require(hosts.coordinator is None or ":" in hosts.coordinator, "hosts.coordinator", hosts.coordinator, "host:port")
    require(hosts.count >= 0, "hosts.count", hosts.count, "0 (found by JAX) or more")
    require(hosts.index < max(1, hosts.count), "hosts.index", hosts.index, f"0 to {hosts.count - 1}, below hosts.count")
    require(hosts.timeout > 0, "hosts.timeout", hosts.timeout, "1 second or more")


def _require(where: str, holds: bool, key: str, value: Any, expected: str) -> None:
    if not holds:
        raise errors.ConfigError(f"{where}: {key} = {value!r}; expected {expected}.")


def _load(path: str) -> ml_collections.ConfigDict:
    file = _find(path)
    spec = importlib.util.spec_from_file_location(f"evaljax_recipe_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise errors.ConfigError(f"recipe {path!r}: not a Python file.")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        config = module.get_config()
    except Exception as error:  # a recipe is anybody's code
        _refuse_key(str(error), where=f"recipe {path!r}")
        raise errors.ConfigError(f"recipe {path!r}: {type(error).__name__}: {str(error).strip()}") from error
    if not isinstance(config, ml_collections.ConfigDict):
        raise errors.ConfigError(
            f"recipe {path!r}: get_config() returned {type(config).__name__}, expected recipe.default_config()."
        )
    return config


def _refuse_key(message: str, *, where: str) -> None:
    """Raises in our words where ml_collections refused a key of a locked configuration."""
    found = re.search(r'Key "(.+?)" does not exist', message)
    if found:
        known = {name for kind in (config_lib.RunConfig, *SECTIONS.values()) for name in _defaults(kind)}
        lookup.check(known, found[1], what="config key", where=where)


def _find(path: str) -> pathlib.Path:
    given = pathlib.Path(path)
    root = library.configs_root()
    candidates = [given, root / given.name, root / f"{given.name}.py"]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise errors.ConfigError(
        f"recipe {path!r} not found.{lookup.nearest(given.stem, shipped())} Shipped recipes: {', '.join(shipped())}."
    )


def shipped() -> list[str]:
    """The names of the recipes that ship with evaljax."""
    return sorted(file.stem for file in library.configs_root().glob("*.py"))


def _defaults(kind: type) -> dict[str, Any]:
    made = kind(tasks=()) if kind is config_lib.RunConfig else kind()
    return {field.name: getattr(made, field.name) for field in dataclasses.fields(kind)}


def _placeholder(default: Any) -> Any:
    # Keys without a default or of more than one type ("a,b", or a tuple) take anything here; `run_config` checks.
    if isinstance(default, bool | int | str):
        return default
    return ml_collections.FieldReference(default, field_type=object)


def _record(kind: type, values: Mapping[str, Any], *, where: str, prefix: str = "") -> Any:
    hints = typing.get_type_hints(kind)
    read = {}
    if not isinstance(values, Mapping):
        raise errors.ConfigError(f"{where}: {prefix.rstrip('.')} = {values!r}; expected a section of keys.")
    for key, value in values.items():
        lookup.check(hints, key, what="config key", where=f"{where}: {prefix}{key}")
        read[key] = _typed(value, hints[key], where=f"{where}: {prefix}{key}")
    if kind is config_lib.RunConfig and not read.get("tasks"):
        read["tasks"] = ()
    return kind(**read)


def _typed(value: Any, hint: Any, *, where: str) -> Any:
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if value is None or (value == "None" and type(None) in kinds):
        if type(None) in kinds:
            return None
        if typing.get_origin(hint) is not None:
            return () if typing.get_origin(hint) is tuple else {}
    kind = next(k for k in kinds if k is not type(None))
    if typing.get_origin(kind) is tuple:
        return _names(value, where=where)
    if typing.get_origin(kind) is not None:  # Mapping
        return mapping(value, where=where)
    parsed = _literal(value) if isinstance(value, str) and kind is not str else value
    if kind in (int, float) and not isinstance(parsed, bool) and isinstance(parsed, numbers.Integral):
        parsed = kind(parsed)  # numpy's whole numbers as well
    if isinstance(parsed, kind) and not (kind is not bool and isinstance(parsed, bool)):
        return parsed
    raise errors.ConfigError(
        f"{where} = {value!r}; expected {kind.__name__}{' or None' if type(None) in kinds else ''}."
    )


def _names(value: Any, *, where: str) -> tuple[Any, ...]:
    if not isinstance(value, str):
        if isinstance(value, Mapping) or not isinstance(value, Iterable):
            raise errors.ConfigError(f"{where} = {value!r}; expected names.")
        return tuple(value)
    if value.strip()[:1] not in ("(", "["):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    parsed = _literal(value)
    if isinstance(parsed, tuple | list):
        return tuple(parsed)
    raise errors.ConfigError(f"{where} = {value!r}; expected names separated by commas, or a tuple of quoted names.")


def mapping(value: Any, *, where: str) -> dict[str, Any]:
    """A dictionary from a mapping, "{...}" (Python or JSON), or "a=1,b=text"."""
    if isinstance(value, Mapping):
        return dict(value)
    text = str(value).strip()
    if text.startswith("{"):
        parsed = _literal(text)
        if isinstance(parsed, dict):
            return parsed
        raise errors.ConfigError(f"{where} = {value!r}; expected a dictionary.")
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    if any(not equals for _, equals, _ in pairs):
        raise errors.ConfigError(f"{where} = {value!r}; expected key=value pairs separated by commas, or {{...}}.")
    return {key.strip(): _literal(item.strip()) for key, _, item in pairs}


def _literal(text: str) -> Any:
    words = {"true": True, "false": False, "none": None, "null": None}
    if text.strip().lower() in words:
        return words[text.strip().lower()]
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError):
        return text

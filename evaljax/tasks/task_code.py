"""Functions that task files name with `!function`: imported only from where code is trusted."""

import functools
import hashlib
import importlib
import importlib.util
import pathlib
import sys
import types
from collections.abc import Mapping
from typing import Any

from evaljax.core import errors, lookup, task
from evaljax.tasks import library


def resolve(value: Any, *, trust: bool, where: str) -> Any:
    """`value` with every function reference in it replaced by the function, however deep it lies."""
    if isinstance(value, task.FunctionRef):
        return load_function(value, trust=trust, where=where)
    if isinstance(value, Mapping):
        return {key: resolve(inner, trust=trust, where=f"{where}: {key}") for key, inner in value.items()}
    if isinstance(value, list):
        return [resolve(inner, trust=trust, where=where) for inner in value]
    return value


def load_function(ref: task.FunctionRef, *, trust: bool, where: str) -> Any:
    """The function that `ref` names: in a file beside the task file, else in an installed module.

    Code of the tasks that ship with evaljax always runs; any other only where the caller trusts it.
    """
    module_name, _, attribute = ref.name.rpartition(".")
    folder = pathlib.Path(ref.folder)
    file = folder / (module_name.replace(".", "/") + ".py")
    if not trust and not _ships(file):
        raise errors.TaskError(
            f"{where}: !function {ref.name} would run code from {file}, which evaljax does not ship. "
            "If you trust it, set trust_task_code=True (--config.trust_task_code=True)."
        )
    try:
        if file.is_file():
            module = _module(file.resolve(), file.stat().st_mtime_ns)
        else:
            module = importlib.import_module(module_name)
    except ImportError as error:
        raise errors.TaskError(f"{where}: !function {ref.name}: {_import_message(error, file)}") from error
    except Exception as error:  # whatever foreign code does on import, the reader must learn which file did it
        raise errors.TaskError(f"{where}: !function {ref.name}: importing {file} failed: {error!r}.") from error
    if not hasattr(module, attribute):
        near = lookup.nearest(attribute, (name for name in vars(module) if not name.startswith("_")))
        raise errors.TaskError(f"{where}: !function {ref.name}: {module.__file__} has no {attribute!r}.{near}")
    return getattr(module, attribute)


def _ships(file: pathlib.Path) -> bool:
    return file.is_file() and file.resolve().is_relative_to(library.library_root().resolve())


def _import_message(error: ImportError, file: pathlib.Path) -> str:
    missing = error.name or ""
    if missing.split(".")[0] == "lm_eval":
        return (
            f"{file} imports {missing!r}, which comes with lm_eval: pip install 'evaljax[lm-eval]' "
            "(from a clone: pip install -e '.[lm-eval]')."
        )
    if missing and not file.is_file():
        return f"there is no file {file}, and no module {missing!r} is installed."
    return f"{file} cannot be imported: {error}."


@functools.lru_cache(maxsize=1024)
def _module(file: pathlib.Path, mtime_ns: int) -> types.ModuleType:
    # Named after its path, so that two folders can both have a utils.py and pickling finds the functions again.
    name = f"evaljax_task_code_{hashlib.sha256(str(file).encode()).hexdigest()[:12]}_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"no loader for {file}", name=name)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module

"""Backends by name, and anybody's own by `module:attribute`. A module is imported when it is asked for, not before."""

import importlib
import inspect
from collections.abc import Callable
from typing import Any, cast

from evaljax.core import backend, config, errors, lookup, progress

# name -> module:attribute; each of these classes has `open(spec, engine, progress)`.
BACKENDS: dict[str, str] = {
    "fake": "evaljax.backends.fake:FakeBackend",
    "hf": "evaljax.backends.torch_backend:TorchBackend",
    "jax": "evaljax.backends.jax_backend:JaxBackend",
    "torch": "evaljax.backends.torch_backend:TorchBackend",
}


def open_backend(
    spec: config.ModelSpec, engine: config.EngineOptions, *, progress: progress.Progress = progress.silent
) -> backend.Backend:
    """The backend that `spec.backend` names, opened for `spec.path`.

    `module:attribute` names a class or function of your own. It is called with the ModelSpec if it takes an argument,
    otherwise without, and what it returns must have every method of `core.backend.Backend`.
    """
    if ":" in spec.backend:
        opened = _call(spec.backend, _attribute(spec.backend), spec)
    else:
        row = lookup.find(BACKENDS, spec.backend, what="backend", where="model.backend")
        opened = _attribute(row).open(spec, engine, progress)
    return _checked(spec.backend, opened)


def _attribute(name: str) -> Any:
    """What `module:attribute` names; dots in the attribute go into classes."""
    module_name, _, path = name.partition(":")
    if not module_name or not path:
        raise errors.ConfigError(
            f"model.backend={name!r}: expected module:attribute, for example my_package.models:MyBackend"
        )
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # A missing import inside the user's module is that module's own error and is shown as it is.
        if error.name is None or not (module_name == error.name or module_name.startswith(error.name + ".")):
            raise
        raise errors.ConfigError(
            f"model.backend={name!r}: no module {error.name!r}; install it, or put its folder on PYTHONPATH"
        ) from error
    for part in path.split("."):
        if not hasattr(found, part):
            public = [known for known in vars(found) if not known.startswith("_")]
            raise errors.ConfigError(
                f"model.backend={name!r}: {module_name} has no {part!r}.{lookup.nearest(part, public)}"
            )
        found = getattr(found, part)
    return found


def _call(name: str, maker: Callable[..., Any], spec: config.ModelSpec) -> Any:
    """`maker(spec)` if it takes an argument, else `maker()`."""
    if not callable(maker):
        raise errors.ConfigError(
            f"model.backend={name!r}: expected a class or a function, found {type(maker).__name__}"
        )
    try:
        parameters = inspect.signature(maker).parameters.values()
    except (TypeError, ValueError) as error:  # some built-in functions do not say what they take
        raise errors.ConfigError(
            f"model.backend={name!r}: expected a class or a function of Python: {error}."
        ) from error
    places = [parameter for parameter in parameters if parameter.kind in _POSITIONAL]
    needed = [parameter.name for parameter in places[1:] if parameter.default is parameter.empty]
    if needed:
        raise errors.ConfigError(
            f"model.backend={name!r}: called with the ModelSpec alone, but it needs {lookup.listing(needed)} too"
        )
    try:
        return maker(spec) if places else maker()
    except errors.EvaljaxError:
        raise
    except Exception as error:  # foreign code
        given = "the ModelSpec" if places else "nothing"
        raise errors.ConfigError(
            f"model.backend={name!r}: called with {given}, it failed: {type(error).__name__}: {error}"
        ) from error


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _checked(name: str, opened: Any) -> backend.Backend:
    """`opened` itself, or one ConfigError that lists every method it lacks."""
    missing = backend.missing_methods(opened)
    if missing:
        raise errors.ConfigError(
            f"model.backend={name!r}: {type(opened).__name__} lacks {', '.join(missing)}; "
            "evaljax.Backend says what each returns"
        )
    return cast(backend.Backend, opened)

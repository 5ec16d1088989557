"""evaljax scores language models on the standard benchmarks, with an engine made for JAX.

    import evaljax
    results = evaljax.simple_evaluate(model="jax", model_args={"path": "demo"}, tasks=["demo"])

The names below are imported when they are first used, so that `import evaljax` costs nothing.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

_PLACES = {
    "Backend": "evaljax.core.backend",
    "Instance": "evaljax.core.instance",
    "TaskManager": "evaljax.tasks.manager",
    "evaluate": "evaljax.api",
    "simple_evaluate": "evaljax.api",
}
__all__ = ["Backend", "Instance", "TaskManager", "evaluate", "simple_evaluate", "testing"]


def __getattr__(name: str) -> Any:
    if name == "testing":
        return importlib.import_module("evaljax.testing")
    if name in _PLACES:
        return getattr(importlib.import_module(_PLACES[name]), name)
    from evaljax.core import lookup

    raise AttributeError(f"module 'evaljax' has no attribute {name!r}.{lookup.nearest(name, __all__)}")

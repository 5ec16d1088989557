"""The transformers library, imported without what it has to say about torch."""

import importlib
import os
import types

QUIET = "TRANSFORMERS_NO_ADVISORY_WARNINGS"


def load_transformers() -> types.ModuleType:
    """transformers; its advice that nothing runs without torch is left out, for evaljax reads only tokenizers with it.

    What it says later, and every error, comes through.
    """
    told = os.environ.get(QUIET)
    os.environ[QUIET] = "1"
    try:
        return importlib.import_module("transformers")
    finally:
        if told is None:
            del os.environ[QUIET]
        else:
            os.environ[QUIET] = told

"""Where the tasks and recipes that ship with evaljax lie: inside the package, or at the root of a checkout."""

import pathlib

_PACKAGE = pathlib.Path(__file__).resolve().parent.parent


def library_root() -> pathlib.Path:
    """The folder of the tasks that ship with evaljax."""
    return _shipped("tasks")


def configs_root() -> pathlib.Path:
    """The folder of the recipes that ship with evaljax."""
    return _shipped("configs")


def _shipped(name: str) -> pathlib.Path:
    # A wheel carries the folder inside the package; an editable install reads it from the checkout.
    packed = _PACKAGE / "library" / name
    return packed if packed.is_dir() else _PACKAGE.parent / name

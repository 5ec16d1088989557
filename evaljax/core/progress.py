"""How long work tells whoever waits how far it is."""

from typing import Protocol


class Progress(Protocol):
    """Called again and again with the same label while `done` grows to `total` (for example tokens, or requests)."""

    def __call__(self, label: str, done: int, total: int, unit: str) -> None:
        """Say that `done` of `total` units are finished; the first call of a label may have done == 0."""
        ...


def silent(label: str, done: int, total: int, unit: str) -> None:
    """Nothing: the default where nobody watches."""

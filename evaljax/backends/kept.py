"""Answers kept across runs: what the journal has of what is asked, the same in every process of a run."""

import pathlib
from collections.abc import Callable, Sequence

import jax
import numpy as np
from jax.experimental import multihost_utils

from evaljax.engine import agree, journal
from evaljax.models import config as model_config
from evaljax.models import fingerprint


class Kept:
    """A journal as the backend sees it. The first process has it open; the others are told what it holds.

    `notes`: what should be known of it, a line each.
    """

    def __init__(self, folder: pathlib.Path):
        self.journal = journal.Journal.open(folder) if agree.place().index == 0 else None
        self.scope = ""
        self.num_found = 0

    @property
    def notes(self) -> list[str]:
        """What was found damaged."""
        return self.journal.notes if self.journal else []

    def find_parameters(self, source: str, dtype: str, of: model_config.ModelConfig, read: Callable[[], str]) -> str:
        """The fingerprint of the parameters at `source`: remembered, if its files are as they were; else from `read`.

        `read` loads them; with what it returns the next run need not.
        """
        files = fingerprint.files(source)
        known = self.journal.known_fingerprint(files, dtype, of) if self.journal and files else None
        [told] = _tell([known.encode() if known else None])
        if told is not None:
            return told.decode()
        found = read()
        if self.journal and files and fingerprint.files(source) == files:
            self.journal.remember_fingerprint(files, dtype, of, fingerprint=found)
        return found

    def find(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The value kept under each key, or None."""
        values = _tell(self.journal.lookup(self.scope, keys) if self.journal else [None] * len(keys))
        self.num_found += sum(value is not None for value in values)
        return values

    def planned(self, kind: str, keys: Sequence[bytes], missing: np.ndarray) -> np.ndarray:
        """Which of what is asked (bool) the plan should hold: what is `missing`, or was when the same run began.

        A run that was stopped makes the plan that it had, and so gets the bits that it would have had.
        """
        key = journal.job_key(kind, keys)
        [begun] = _tell(self.journal.lookup(self.scope, [key]) if self.journal else [None])
        if begun is not None:
            before = np.unpackbits(np.frombuffer(begun, np.uint8), count=len(keys)).astype(bool)
            if not (missing & ~before).any():
                return before
        if missing.any():
            self.keep([(key, np.packbits(missing).tobytes())])
        return missing

    def keep(self, items: Sequence[tuple[bytes, bytes]]) -> None:
        """Keeps (key, value) pairs: once this has returned, killing the process loses none."""
        if self.journal:
            self.journal.store(self.scope, items)

    def close(self) -> None:
        """Lets another process have the journal."""
        if self.journal:
            self.journal.close()


def _tell(values: Sequence[bytes | None]) -> list[bytes | None]:
    """The first process's `values` in every process; the others' count for nothing but their number."""
    if jax.process_count() == 1:
        return list(values)
    sizes, data = journal.to_arrays(values)
    sizes = multihost_utils.broadcast_one_to_all(sizes.astype(np.int32))
    length = int(np.maximum(sizes, 0).sum())
    data = data if jax.process_index() == 0 else np.zeros(length, np.uint8)
    return journal.from_arrays(np.asarray(sizes, np.int64), np.asarray(multihost_utils.broadcast_one_to_all(data)))

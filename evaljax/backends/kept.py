"""Answers kept across runs: what the journal has of what is asked, the same in every process of a run."""

import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from evaljax.core import config, errors
from evaljax.engine import agree, journal, loglikelihood, mesh, tokenizer
from evaljax.models import config as model_config
from evaljax.models import fingerprint


def scope(
    parameters: str,
    spec: config.ModelSpec,
    options: config.EngineOptions,
    text: tokenizer.Tokenizer,
    *,
    max_length: int,
    place: Any,
) -> str:
    """A digest of everything that an answer depends on besides its request.

    `parameters`: their fingerprint; `place`: arrays that lie where they do. Of what changes no more than an answer's
    last bits this has only whether each request is forwarded alone, which is a check of the others, and what the bits
    of a deterministic run depend on.
    """
    devices = mesh.of_parameters(place)
    bits = [options.chunk_length, dict(devices.shape) if devices else None]
    return journal.scope(
        {
            "parameters": parameters,
            "tokenizer": text.fingerprint,
            "cleans_text": bool(text.backend.clean_up_tokenization_spaces),  # of this its fingerprint knows nothing
            "dtype": spec.dtype,
            "precision": spec.precision,
            "platform": jax.devices()[0].platform,
            "max_length": max_length,
            "deterministic": options.deterministic and bits,
            "share_prefixes": options.share_prefixes,
        }
    )


def answer(value: bytes | None, options: config.EngineOptions) -> loglikelihood.Answer | None:
    """The answer that was kept; None, too, for one that is no number where such stop the run: it is asked again."""
    if value is None:
        return None
    found = loglikelihood.Answer(*journal.loglikelihood_answer(value))
    return found if options.allow_nonfinite or np.isfinite(found.logprob) else None


class Kept:
    """A journal as the backend sees it. The first process has it open; the others are told what it holds.

    `notes`: what should be known of it, a line each.
    """

    def __init__(self, folder: pathlib.Path):
        self.journal = journal.Journal.open(folder) if agree.place().index == 0 else None
        self.scope = ""
        self.num_found = 0
        self.is_open = True
        self._notes: list[str] = []
        self._trusted = ("", "")  # whose parameters are taken to be what they were: a source, its files

    @property
    def notes(self) -> list[str]:
        """What was found damaged."""
        return self.journal.notes if self.journal else self._notes

    def find_parameters(self, source: str, dtype: str, of: model_config.ModelConfig, read: Callable[[], str]) -> str:
        """The fingerprint of the parameters at `source`: remembered, if its files are as they were; else from `read`.

        `read` loads them; with what it returns the next run need not.
        """
        known, files = self._remembered(source, dtype, of)
        if known is not None:
            self._trusted = (source, files)
            return known
        found = read()
        if self.journal and files and fingerprint.files(source) == files:
            self.journal.remember_fingerprint(files, dtype, of, fingerprint=found)
        return found

    def knows(self, source: str, dtype: str, of: model_config.ModelConfig) -> bool:
        """Whether the parameters at `source` were here before, so that there may be answers of theirs."""
        return self._remembered(source, dtype, of)[0] is not None

    def check_files(self) -> None:
        """Raises CheckpointError if parameters were taken to be what they were, and their files have changed since.

        Called when they have been read: what they answer would be kept as the answers of those that they replaced.
        """
        source, files = self._trusted
        if files and fingerprint.files(source) != files:
            raise errors.CheckpointError(
                f"{source}: its files have changed since this run began; expected a checkpoint that nobody writes to. "
                "Start the run again"
            )

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
        """Lets another process have the journal; from now on nothing is found or kept."""
        self.is_open = False
        if self.journal:
            self._notes = self.journal.notes
            self.journal.close()
            self.journal = None

    def _remembered(self, source: str, dtype: str, of: model_config.ModelConfig) -> tuple[str | None, str]:
        """The fingerprint that the parameters at `source` had, if it is known, and the signature of its files."""
        files = (fingerprint.files(source) if self.journal else None) or ""
        known = self.journal.known_fingerprint(files, dtype, of) if self.journal and files else None
        [told] = _tell([known.encode() if known else None])
        return (told.decode() if told is not None else None), files


def _tell(values: Sequence[bytes | None]) -> list[bytes | None]:
    """The first process's `values` in every process; the others' count for nothing but their number."""
    if jax.process_count() == 1:
        return list(values)
    sizes, data = journal.to_arrays(values)
    sizes = multihost_utils.broadcast_one_to_all(sizes.astype(np.int32))
    length = int(np.maximum(sizes, 0).sum())
    data = data if jax.process_index() == 0 else np.zeros(length, np.uint8)
    return journal.from_arrays(np.asarray(sizes, np.int64), np.asarray(multihost_utils.broadcast_one_to_all(data)))

"""Answers on disk: each is kept as it comes, so that a run that was stopped goes on where it was.

An answer is found by what was asked (token ids, how to generate) and by everything else that it depends on: its
`scope`. Nothing is found by a name, so no answer of another model, dtype or tokenizer can be.

What is kept is one SQLite database, `journal.sqlite3`, that one process at a time may use: a second one is refused.

- Killed at any moment (kill -9): what `store` had returned from is there, the lock is free. Whatever the process wrote
  is the kernel's; SQLite's write-ahead log is read back by the next one that opens the journal.
- Loss of power: the last moments may be lost, no more. The log is written through to the disk before it moves into the
  database (`synchronous=NORMAL`), and a frame of it that is not whole does not count.
- Network file systems: a write-ahead log is safe there only for a single process, for it needs memory that all share.
  Ours needs none (`locking_mode=EXCLUSIVE`). Where the file system has no locks at all, opening is refused.

Two processes at a time would need a rollback journal: three waits for the disk at every step, ten times the price.
"""

import dataclasses
import fcntl
import functools
import hashlib
import itertools
import json
import os
import pathlib
import socket
import sqlite3
import struct
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from evaljax.core import errors, request
from evaljax.models import config as model_config

ANSWERS = 1  # of the engine's answers: raised whenever the same question would get another one
FORMAT = 1  # of the database
APPLICATION = 0x45564A58  # marks a SQLite file as ours
NAME, LOCK = "journal.sqlite3", "journal.lock"
TABLE = "CREATE TABLE answers (key BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID"
BESIDE = ("", "-wal", "-shm", "-journal")  # the files of one SQLite database
CHUNK = 500  # keys a query; old SQLite takes 999
SUM_BYTES = 4
LOGLIKELIHOOD = struct.Struct("<d?")
# What an answer depends on besides the request. All must be given: one forgotten would go unnoticed.
FACTS = ("parameters", "tokenizer", "dtype", "precision", "platform", "max_length", "deterministic")

Result = TypeVar("Result")


def scope(facts: Mapping[str, Any]) -> str:
    """A digest of everything that an answer depends on besides its request; `FACTS` must be there, others may.

    Raises ValueError for a fact that is missing, TypeError for one that JSON cannot say.
    """
    missing = [name for name in FACTS if name not in facts]
    if missing:
        raise ValueError(f"facts lack {', '.join(missing)}; expected {', '.join(FACTS)}")
    return _digest("scope", str(ANSWERS).encode(), _canonical(dict(facts))).hex()


def loglikelihood_key(tokens: np.ndarray, num_targets: int) -> bytes:
    """The key of log P(the last `num_targets` of `tokens` | the others)."""
    return _digest("loglikelihood", b"%d" % num_targets, np.ascontiguousarray(tokens, "<i4").tobytes())


def generation_key(
    prompt: np.ndarray,
    sampling: request.Sampling,
    repeat: int,
    eos_token_ids: Collection[int],
    *,
    allow_nonfinite: bool = False,
) -> bytes:
    """The key of a text after `prompt` (token ids). All repeats of a greedy request are one, as in `generate`.

    `allow_nonfinite`: whether the text may come from logits that are no numbers; one cannot tell by looking at it.
    """
    how = [dataclasses.asdict(sampling), repeat if sampling.temperature > 0 else 0, sorted(map(int, eos_token_ids))]
    kind = "generation, finite or not" if allow_nonfinite else "generation"
    return _digest(kind, _canonical(how), np.ascontiguousarray(prompt, "<i4").tobytes())


def job_key(kind: str, keys: Sequence[bytes]) -> bytes:
    """The key of a run's requests of one kind, all of them in order."""
    return _digest("job", kind.encode(), *keys)


def loglikelihood_value(logprob: float, is_greedy: bool) -> bytes:
    """An answer as it is stored; all bits of `logprob` are kept."""
    return LOGLIKELIHOOD.pack(logprob, is_greedy)


def loglikelihood_answer(value: bytes) -> tuple[float, bool]:
    """(logprob, is_greedy) of a stored answer."""
    logprob, is_greedy = LOGLIKELIHOOD.unpack(value)
    return logprob, is_greedy


def generation_value(answer: request.GenerateResponse) -> bytes:
    """A text as it is stored, without `num_truncated`: that is the prompt's, not the answer's."""
    fields = [answer.text, answer.num_tokens, answer.finish_reason.value, answer.unfinished_thought]
    return _canonical(fields)


def generation_answer(value: bytes) -> request.GenerateResponse:
    """The response of a stored text, with `num_truncated` 0."""
    text, num_tokens, reason, unfinished = json.loads(value)
    return request.GenerateResponse(
        text=text,
        num_tokens=num_tokens,
        finish_reason=request.FinishReason(reason),
        unfinished_thought=unfinished,
    )


def to_arrays(values: Sequence[bytes | None]) -> tuple[np.ndarray, np.ndarray]:
    """Values as (sizes int64 [N], -1 for None; their bytes, one after the other, uint8 [M]), for other processes."""
    sizes = np.array([-1 if value is None else len(value) for value in values], np.int64)
    return sizes, np.frombuffer(b"".join(value for value in values if value is not None), np.uint8)


def from_arrays(sizes: np.ndarray, data: np.ndarray) -> list[bytes | None]:
    """The values again."""
    content, ends = data.tobytes(), np.cumsum(np.maximum(sizes, 0)).tolist()
    return [None if n < 0 else content[end - n : end] for n, end in zip(sizes.tolist(), ends, strict=True)]


class Journal:
    """The journal in a folder; made by `open`, for one thread. `notes` says what was found damaged."""

    def __init__(self, path: pathlib.Path, lock: int):
        self.path, self._lock = path, lock
        self._connection: sqlite3.Connection | None = None
        self._aside: list[str] = []
        self._dropped: set[bytes] = set()

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> "Journal":
        """The journal in `folder`; both are made if they do not exist.

        A file that is damaged as a whole is renamed, and a new one begun: see `notes`. Raises OutputError if the folder
        cannot be written, another process uses the journal, or the file is another version's or another program's.
        """
        where = pathlib.Path(folder)
        journal = cls(where / NAME, _take_lock(where))
        try:
            journal._do(lambda connection: None)
        except BaseException:
            journal.close()
            raise
        return journal

    @property
    def notes(self) -> list[str]:
        """One line for each damaged file, and one for all damaged answers, that were found since `open`."""
        lines = list(self._aside)
        if self._dropped:
            lines.append(f"{self.path}: damaged answers that were dropped, to be computed again: {len(self._dropped)}")
        return lines

    def lookup(self, scope: str, keys: Iterable[bytes]) -> list[bytes | None]:
        """The value stored under each key, in order; None where there is none, or its record is damaged."""
        places = [_place(scope, key) for key in keys]
        asked = list(dict.fromkeys(places))
        values: dict[bytes, bytes | None] = {}
        for start in range(0, len(asked), CHUNK):
            records = self._do(functools.partial(_select, asked[start : start + CHUNK]))
            values.update((place, _unsealed(place, record)) for place, record in records)
        self._dropped |= {place for place, value in values.items() if value is None}
        return [values.get(place) for place in places]

    def store(self, scope: str, items: Iterable[tuple[bytes, bytes]]) -> None:
        """Keeps (key, value) pairs, all or none of them: once this has returned, killing the process loses none."""
        places = ((_place(scope, key), value) for key, value in items)
        rows = [(place, _sealed(place, value)) for place, value in places]
        if rows:
            self._do(functools.partial(_insert, rows))

    def known_fingerprint(self, files: str, dtype: str, config: model_config.ModelConfig) -> str | None:
        """The parameters' fingerprint of a checkpoint that was loaded before, None if it was not.

        `files`: `fingerprint.files` of it. `config`: what this version reads in it: if that is not what was read then,
        the parameters may not be the same.
        """
        [value] = self.lookup("fingerprints", [_checkpoint_key(files, dtype, config)])
        return None if value is None else value.decode()

    def remember_fingerprint(
        self, files: str, dtype: str, config: model_config.ModelConfig, *, fingerprint: str
    ) -> None:
        """Keeps the parameters' fingerprint of a checkpoint, so that the next run need not load it to know."""
        self.store("fingerprints", [(_checkpoint_key(files, dtype, config), fingerprint.encode())])

    def close(self) -> None:
        """Ends the use of the journal; another process may open it."""
        self._disconnect()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _do(self, action: Callable[[sqlite3.Connection], Result]) -> Result:
        """What `action` returns; if the file turns out to be damaged, what it returns with a new one."""
        try:
            return action(self._connect())
        except sqlite3.Error as error:
            if not _is_damage(error, opening=self._connection is None):
                raise errors.OutputError(f"{self.path}: the journal cannot be used: {error}") from error
            self._set_aside(error)
        try:
            return action(self._connect())
        except sqlite3.Error as error:
            raise errors.OutputError(f"{self.path}: the journal cannot be used: {error}") from error

    def _connect(self) -> sqlite3.Connection:
        """The open database, checked when it was opened."""
        if self._lock < 0:
            raise ValueError(f"{self.path}: the journal was closed")
        if self._connection is None:
            connection = sqlite3.connect(self.path, isolation_level=None)
            try:
                # In this order: a log that is opened by an exclusive user needs no shared memory.
                connection.execute("PRAGMA locking_mode=EXCLUSIVE")
                _check_owner(self.path, connection)
                connection.execute("PRAGMA journal_mode=WAL")
                connection.execute("PRAGMA synchronous=NORMAL")
                _prepare(connection)
                self._dropped |= _drop_damaged(connection)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _disconnect(self) -> None:
        """Closes the database; what is damaged is closed too."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _set_aside(self, error: sqlite3.Error) -> None:
        """Renames the damaged files, so that a new database is begun; nobody else uses them, as we have the lock."""
        self._disconnect()
        names = (self.path.with_name(f"{NAME}.damaged-{number}") for number in itertools.count(1))
        aside = next(name for name in names if not any(os.path.lexists(f"{name}{suffix}") for suffix in BESIDE))
        try:
            for suffix in BESIDE:
                if os.path.lexists(f"{self.path}{suffix}"):
                    os.rename(f"{self.path}{suffix}", f"{aside}{suffix}")
        except OSError as problem:
            raise errors.OutputError(
                f"{self.path}: damaged ({error}), and cannot be renamed: {problem.strerror}. Move it away"
            ) from problem
        self._aside.append(f"{self.path}: damaged ({error}); it is now {aside.name}, and a new journal was begun")


def _take_lock(folder: pathlib.Path) -> int:
    """The descriptor of the folder's lock file, locked: the kernel frees it when the process ends, however it does."""
    path = folder / LOCK
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise errors.OutputError(f"{folder}: the journal's folder cannot be written: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
    except BlockingIOError as error:
        holder = os.pread(descriptor, 200, 0).decode(errors="replace") or "another process"
        os.close(descriptor)
        raise errors.OutputError(
            f"{folder}: the journal is in use by {holder}. Wait until that has ended, end it, or give this run a "
            "cache_dir of its own"
        ) from error
    except OSError as error:
        os.close(descriptor)
        raise errors.OutputError(
            f"{path}: cannot be locked: {error.strerror}. Give a cache_dir on a file system that has locks"
        ) from error
    return descriptor


def _check_owner(path: pathlib.Path, connection: sqlite3.Connection) -> None:
    """Raises OutputError for a database that is sound, but not this version's journal."""
    [application], [version] = (
        connection.execute(f"PRAGMA {name}").fetchone() for name in ("application_id", "user_version")
    )
    if (application, version) == (APPLICATION, FORMAT):
        return
    if not application and not connection.execute("SELECT 1 FROM sqlite_master").fetchone():
        return  # an empty file, which SQLite takes for a new database
    kind = f"a journal of format {version}" if application == APPLICATION else "a database that is no journal"
    raise errors.OutputError(
        f"{path}: {kind}; this version of evaljax reads format {FORMAT}. Give another cache_dir, or move the file away"
    )


def _prepare(connection: sqlite3.Connection) -> None:
    """Makes the table in a new database; reads an old one whole, and raises sqlite3.DatabaseError if it is damaged."""
    schema = connection.execute("SELECT sql FROM sqlite_master").fetchall()
    if not schema:
        with connection:
            connection.execute("BEGIN EXCLUSIVE")
            connection.execute(TABLE)
            connection.execute(f"PRAGMA application_id={APPLICATION}")
            connection.execute(f"PRAGMA user_version={FORMAT}")
        return
    [problem] = connection.execute("PRAGMA quick_check(1)").fetchone()
    if schema != [(TABLE,)] or problem != "ok":
        raise sqlite3.DatabaseError("another schema" if problem == "ok" else " ".join(problem.split()))


def _drop_damaged(connection: sqlite3.Connection) -> set[bytes]:
    """The keys of all damaged records, which are deleted: one whose key is damaged would never be asked for."""
    records = connection.execute("SELECT key, value FROM answers")
    damaged = [key for key, record in records if not isinstance(key, bytes) or _unsealed(key, record) is None]
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("DELETE FROM answers WHERE key = ?", ((key,) for key in damaged))
    return set(damaged)


def _is_damage(error: sqlite3.Error, *, opening: bool) -> bool:
    """Whether the error means that the file is damaged: not that it cannot be reached, nor that it was used wrongly.

    While a database is opened nothing is used wrongly: an error of SQL is one of the stored schema then, and one
    without a code is ours, or a text that is not UTF-8.
    """
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    if code & 0xFF == sqlite3.SQLITE_ERROR:
        return opening
    return code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or code == sqlite3.SQLITE_IOERR_SHORT_READ


def _select(places: Sequence[bytes], connection: sqlite3.Connection) -> list[tuple[bytes, Any]]:
    """The records at these places."""
    marks = ",".join("?" * len(places))
    return connection.execute(f"SELECT key, value FROM answers WHERE key IN ({marks})", places).fetchall()


def _insert(rows: Sequence[tuple[bytes, bytes]], connection: sqlite3.Connection) -> None:
    """Writes the records in one transaction; a record that was there, and perhaps damaged, is replaced."""
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("INSERT OR REPLACE INTO answers VALUES (?, ?)", rows)


def _checkpoint_key(files: str, dtype: str, config: model_config.ModelConfig) -> bytes:
    """The key of a checkpoint's fingerprint."""
    return _digest("fingerprint", _canonical([ANSWERS, files, dtype, dataclasses.asdict(config)]))


def _place(scope: str, key: bytes) -> bytes:
    """The database's key of a key in a scope."""
    return _digest("place", scope.encode(), key)


def _sealed(place: bytes, value: bytes) -> bytes:
    """The record of a value: a checksum of its place and of it, then the value."""
    return zlib.crc32(value, zlib.crc32(place)).to_bytes(SUM_BYTES, "little") + value


def _unsealed(place: bytes, record: Any) -> bytes | None:
    """The value of a record, None if that is damaged (not even bytes, perhaps)."""
    if not isinstance(record, bytes):
        return None
    value = record[SUM_BYTES:]
    return value if record == _sealed(place, value) else None


def _canonical(value: Any) -> bytes:
    """`value` as JSON, always the same for the same value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _digest(kind: str, *parts: bytes) -> bytes:
    """16 bytes that tell these parts, of this kind, from all others."""
    digest = hashlib.blake2b(kind.encode(), digest_size=16)
    for part in parts:
        digest.update(b"/%d:" % len(part))
        digest.update(part)
    return digest.digest()

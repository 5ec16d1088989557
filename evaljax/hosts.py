"""Many processes as one run: how they find each other, and how they end together.

JAX gives no way out of a collective whose other side has gone, and ends a process by SIGABRT when the coordinator goes.
So each process has a watch: a thread that tells the coordinator that it lives and asks it whether the run has failed.
The first process looks after all others. Whoever ends says why in one line, and the exit code is the same on all.
"""

import contextlib
import ctypes
import dataclasses
import importlib.metadata
import json
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from evaljax.core import config as config_lib
from evaljax.core import errors, lookup
from evaljax.engine import agree

BEAT = 1.0  # seconds between two signs of life, or a tenth of the timeout where that is less
SILENCE = 0.8  # part of the timeout after which a process counts as gone: at the whole of it the run has ended
GRACE = 5.0  # seconds that the first process, who is the coordinator, waits for the others to hear of a failure
LOCAL = ("output_dir", "cache_dir", "data_mirror", "hosts")  # keys that may differ from process to process
# How a broken link shows in an error of JAX, before it is known who has gone.
BROKEN_LINK = ("Gloo", "gloo", "NCCL", "Connection", "UNAVAILABLE", "DEADLINE_EXCEEDED", "ABORTED")


@contextlib.contextmanager
def joined(config: config_lib.RunConfig) -> Iterator[bool]:
    """Whether this process is the first, who writes, for as long as the run lasts; True in a run of one process.

    Joins the processes before anything touches a device, and leaves when all have come to the end. An error in the
    block ends this process and all others: JAX's own way out waits for processes that will not come.
    """
    if not config.hosts.enabled:
        yield True
        return
    join(config.hosts, config.model.backend)
    import jax

    watch = Watch(agree.store(), agree.place(), config.hosts.timeout)
    reader_left = None
    try:
        agree.agree_all(facts(config))
        jax.devices()  # on all processes at the same point: each waits here for the devices of the others
        try:
            yield watch.place.index == 0
        except BrokenPipeError as error:  # whoever reads the table has seen enough; the files were written before it
            reader_left = error
        agree.agree("the end of the run", "")
    except BaseException as error:
        watch.fail(error)
    watch.stop()
    jax.distributed.shutdown()
    if reader_left is not None:
        raise reader_left


def join(spec: config_lib.HostsSpec, backend: str) -> None:
    """Joins this process with the others of its run. Raises ConfigError; where JAX would abort, ends with one line."""
    if backend != "jax":
        raise errors.ConfigError(
            f"hosts.enabled=True with model.backend={backend!r}: only the jax backend splits its work over processes; "
            "each of these would do all of it"
        )
    explicit = _is_explicit(spec)
    import jax

    if jax.distributed.is_initialized():
        return
    # JAX would take SIGTERM, by which a scheduler ends a job, for itself and go on.
    jax.config.update("jax_enable_preemption_service", False)
    if explicit:
        _check_address(spec)
    _end_aborts(
        f"the processes of the run did not come together within hosts.timeout={spec.timeout} seconds. Start each with "
        "the same hosts.coordinator and hosts.count, and with its own hosts.index from 0 to hosts.count - 1"
    )
    try:
        jax.distributed.initialize(
            coordinator_address=spec.coordinator,
            num_processes=spec.count if explicit else None,
            process_id=spec.index if explicit else None,
            initialization_timeout=spec.timeout,
            heartbeat_timeout_seconds=2 * spec.timeout,  # JAX ends what the watches cannot: it comes after them
            shutdown_timeout_seconds=spec.timeout,
        )
    except (RuntimeError, ValueError, OSError) as error:
        raise errors.ConfigError(
            f"hosts.enabled=True, but this process cannot join others: {error} Where JAX finds no TPU pod, SLURM, "
            "Open MPI or Kubernetes, give hosts.coordinator (host:port of process 0), hosts.count and hosts.index"
        ) from error
    _end_aborts("JAX ended this process, see above; most often another process of the run has died")


def _is_explicit(spec: config_lib.HostsSpec) -> bool:
    """Whether coordinator, count and index are given, rather than found by JAX. Raises ConfigError for some of them."""
    given = {
        "hosts.coordinator": spec.coordinator is not None,
        "hosts.count": spec.count > 0,
        "hosts.index": spec.index >= 0,
    }
    if len(set(given.values())) == 1:
        return given["hosts.count"]
    raise errors.ConfigError(
        f"hosts: {lookup.listing(key for key in given if given[key])} without "
        f"{lookup.listing(key for key in given if not given[key])}; give all three, or none where JAX finds them"
    )


def _check_address(spec: config_lib.HostsSpec) -> None:
    """Raises ConfigError where process 0 cannot listen at the coordinator's address, or another cannot reach it."""
    host, _, port = str(spec.coordinator).rpartition(":")
    if not port.isdecimal() or not host:
        raise errors.ConfigError(f"hosts.coordinator={spec.coordinator!r}; expected host:port, with a number as port")
    if spec.index == 0:
        try:
            socket.create_server(("", int(port))).close()
        except OSError as error:
            raise errors.ConfigError(
                f"hosts.coordinator={spec.coordinator!r}: process 0 cannot listen there: {error}. Another run uses the "
                "port, or two processes have hosts.index=0"
            ) from error
        return
    deadline = time.monotonic() + spec.timeout
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=spec.timeout).close()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise errors.ConfigError(
                    f"hosts.coordinator={spec.coordinator!r}: process 0 did not answer process {spec.index} within "
                    f"hosts.timeout={spec.timeout} seconds: {error}"
                ) from error
            time.sleep(0.1)


def facts(config: config_lib.RunConfig) -> dict[str, str]:
    """What must be the same on all processes: versions, and the configuration but for where files lie."""
    found = {f"version of {name}": importlib.metadata.version(name) for name in ("evaljax", "jax", "numpy")}
    found["hosts.count"] = str(config.hosts.count)
    found["a place for the journal (cache_dir or output_dir)"] = str(bool(config.cache_dir or config.output_dir))
    for key, value in dataclasses.asdict(config).items():
        if isinstance(value, Mapping):
            found |= {f"{key}.{name}": repr(item) for name, item in sorted(value.items()) if key not in LOCAL}
        elif key not in LOCAL:
            found[key] = repr(value)
    return found


class Watch:
    """Tells the coordinator that this process lives, and ends the process when another has failed or gone.

    The first process counts one that has not been heard of for `SILENCE * timeout` seconds as gone. Started when made.
    """

    def __init__(self, store: Any, place: agree.Place, timeout: float):
        self.store, self.place, self.timeout = store, place, timeout
        self.beat = min(BEAT, timeout / 10)
        self._heard = {other: ("", time.monotonic()) for other in range(1, place.count)}
        self._stopped = threading.Event()
        self._ending = threading.Lock()  # who holds it ends the process, and never gives it back
        self._thread = threading.Thread(target=self._run, name="evaljax hosts", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Nothing is watched from here on: the run is over."""
        self._stopped.set()
        self._thread.join()

    def fail(self, error: BaseException) -> NoReturn:
        """Ends this process, and through the watches of the others the run, with `error`'s message."""
        if not isinstance(error, errors.EvaljaxError) and any(sign in str(error) for sign in BROKEN_LINK):
            time.sleep(self.timeout)  # another process has gone: the watch finds out which, and ends this one
        self._ending.acquire()
        if isinstance(error, errors.EvaljaxError | KeyboardInterrupt):
            _say(f"error: {_message(error)}")
        else:
            _say("".join(traceback.format_exception(error)))
        self._announce(self.place.index, f"{self._name(self.place.index)} failed: {_message(error)}", _code(error))
        self._leave(_code(error))

    def _run(self) -> None:
        """The thread: one round a beat."""
        for count in range(sys.maxsize):
            if self._stopped.wait(self.beat):
                return
            try:
                self.store.key_value_set(f"evaljax/beat/{self.place.index}", str(count), allow_overwrite=True)
                if self.place.index == 0:
                    self._look_after_the_others()
                told = dict(self.store.key_value_dir_get("evaljax/failed"))
            except RuntimeError as error:  # JAX's errors are all of this kind
                if not self._stopped.is_set():
                    self._end(f"the coordinator (process 0) does not answer: {error}", 1)
                return
            for text in told.values():
                failure = json.loads(text)
                if failure["index"] != self.place.index:
                    self._end(failure["problem"], failure["code"])

    def _look_after_the_others(self) -> None:
        """Announces the first process that has not been heard of for too long."""
        beats = {int(key.rpartition("/")[2]): value for key, value in self.store.key_value_dir_get("evaljax/beat")}
        now = time.monotonic()
        for other, (last, when) in self._heard.items():
            if beats.get(other, "") != last:
                self._heard[other] = (beats[other], now)
            elif now - when > SILENCE * self.timeout:
                problem = (
                    f"{self._name(other)} has not been heard of for {now - when:.0f} seconds "
                    f"(hosts.timeout={self.timeout}): it has died, hangs, or its network is down"
                )
                self._announce(other, problem, 1)
                self._note_leaving(other)  # nobody waits for it
                return

    def _name(self, index: int) -> str:
        return f"process {index} of {self.place.count}"

    def _announce(self, index: int, problem: str, code: int) -> None:
        """Writes down that the run has failed; the first failure stands."""
        failure = json.dumps({"index": index, "problem": problem, "code": code})
        with contextlib.suppress(RuntimeError):
            self.store.key_value_set("evaljax/failed/first", failure)

    def _end(self, problem: str, code: int) -> NoReturn:
        """Ends this process because of another; its main thread may hang in a collective."""
        self._ending.acquire()
        _say(f"error: {problem}")
        self._leave(code)

    def _note_leaving(self, index: int) -> None:
        with contextlib.suppress(RuntimeError):
            self.store.key_value_set(f"evaljax/left/{index}", "")

    def _leave(self, code: int) -> NoReturn:
        """Exits; the first process last, since what it knows goes with it."""
        self._note_leaving(self.place.index)
        deadline = time.monotonic() + min(GRACE, self.timeout)
        while self.place.index == 0 and time.monotonic() < deadline:
            if len(self.store.key_value_dir_get("evaljax/left")) == self.place.count:
                break
            time.sleep(self.beat / 4)
        os._exit(code)


def _code(error: BaseException) -> int:
    """The exit code, as `evaljax.run` ends with this error."""
    return 130 if isinstance(error, KeyboardInterrupt) else 1


def _message(error: BaseException) -> str:
    if isinstance(error, errors.EvaljaxError):
        return str(error)
    return "interrupted" if isinstance(error, KeyboardInterrupt) else f"{type(error).__name__}: {error}"


def _say(line: str) -> None:
    """Writes a line to the error stream, past Python's buffers, which another thread may hold."""
    ready = "\r\x1b[K\x1b[?25h" if os.isatty(2) else ""  # the progress bar's line goes, the cursor comes back
    os.write(2, f"{ready}{line}\n".encode(errors="backslashreplace"))


def _end_aborts(reason: str) -> None:
    """From here on SIGABRT, by which JAX ends a process without an exception, says `reason` and exits with code 1.

    Python's own handlers would never run: they wait for the main thread, and the signal kills before.
    """

    def end(signum: int) -> None:
        _say(f"error: {reason}")
        os._exit(1)

    _kept.append(ctypes.CFUNCTYPE(None, ctypes.c_int)(end))
    ctypes.CDLL(None).signal(signal.SIGABRT, _kept[-1])


_kept: list[Any] = []  # handlers in use by C, which nobody else refers to

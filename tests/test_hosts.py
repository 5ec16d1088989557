"""Real processes as one run: they find each other, agree, and end together whatever happens to one of them."""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import pytest

from evaljax import hosts
from evaljax.core import config, errors

WORKER = pathlib.Path(__file__).with_name("hosts_worker.py")
TIMEOUT = 10  # hosts.timeout of these runs; seconds
MARGIN = 5  # on top, for a machine that is busy with other tests
KILLED = -signal.SIGKILL


def free_port() -> int:
    with socket.create_server(("", 0)) as server:
        return server.getsockname()[1]


def environment(devices: int = 1) -> dict[str, str]:
    """Of a process that sees `devices` simulated devices."""
    flags = f"--xla_force_host_platform_device_count={devices}"
    return {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags, "PYTHONUNBUFFERED": "1"}


def finish(processes: list[subprocess.Popen[str]], limit: float = 300) -> list[tuple[int, str, str]]:
    """(exit code, printed, errors) of each process; whatever is left at the limit is killed, and fails the test."""
    deadline = time.monotonic() + limit
    try:
        ended = [process.communicate(timeout=deadline - time.monotonic()) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, *texts) for process, texts in zip(processes, ended, strict=True)]


def start(mode: str, *, victim: int = -1, count: int = 2, started: int = 2, devices: int = 1) -> list[subprocess.Popen]:
    """`started` processes of a run of `count`."""
    port = free_port()
    return [
        subprocess.Popen(
            [sys.executable, str(WORKER), mode, *map(str, (victim, index, count, port, TIMEOUT))],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(devices),
        )
        for index in range(started)
    ]


def work(mode: str, **kwargs: int) -> list[tuple[int, str, str]]:
    return finish(start(mode, **kwargs))


def words(printed: str) -> list[str]:
    """The lines that the worker printed; Gloo prints there as well."""
    return [line for line in printed.splitlines() if not line.startswith("[Gloo]")]


@pytest.mark.parametrize(("count", "devices"), [(2, 2), pytest.param(4, 1, marks=pytest.mark.slow)])
def test_processes_find_each_other_and_one_of_them_is_the_first(count, devices):
    ended = work("plain", count=count, started=count, devices=devices)
    assert [code for code, _, _ in ended] == [0] * count
    last = f"{sum(range(4)) + 4 * 19}.0"
    assert [words(printed) for _, printed, _ in ended] == [["first", last], *[["other", last]] * (count - 1)]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["killed early", "killed"])
@pytest.mark.parametrize(("victim", "count"), [(1, 2), (0, 2), (2, 4)])
def test_a_process_that_is_killed_ends_the_run_in_time(mode, victim, count):
    processes = start(mode, victim=victim, count=count, started=count)
    processes[victim].wait(timeout=240)
    began = time.monotonic()
    ended = finish(processes, limit=60)
    assert time.monotonic() - began < TIMEOUT + MARGIN
    assert ended.pop(victim)[0] == KILLED
    cause = "another process of the run has died" if victim == 0 else f"process {victim} of {count} has not been heard"
    for code, _, said in ended:
        assert code == 1
        assert cause in said.splitlines()[-1]


@pytest.mark.parametrize(
    ("mode", "victim", "code", "own", "told"),
    [
        ("error", 1, 1, "error: the disk is full", "error: process 1 of 2 failed: the disk is full"),
        ("late error", 0, 1, "error: the disk is full", "error: process 0 of 2 failed: the disk is full"),
        ("interrupted", 0, 130, "error: interrupted", "error: process 0 of 2 failed: interrupted"),
        ("bug", 1, 1, "ZeroDivisionError: a bug", "error: process 1 of 2 failed: ZeroDivisionError: a bug"),
    ],
)
def test_an_error_on_one_process_ends_all_with_one_exit_code(mode, victim, code, own, told):
    ended = work(mode, victim=victim)
    assert [ended[index][0] for index in (0, 1)] == [code, code]
    assert own in ended[victim][2].strip().splitlines()[-1]
    assert told in ended[1 - victim][2].splitlines()[-1]


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("seed", "seed differs: process 1 has 7, process 0 has 0"),
        ("other plan", "the plan differs: process 1 has b, process 0 has a"),
        ("no plan", "the plan differs: process 1 has none, process 0 has a"),
    ],
)
def test_processes_that_disagree_end_with_the_same_error(mode, message):
    for code, _, said in work(mode, victim=1):
        assert code == 1
        assert message in said.splitlines()[-1]


@pytest.mark.slow
def test_a_reader_of_the_table_that_leaves_ends_no_process():
    ended = work("reader left")
    assert [code for code, _, _ in ended] == [0, 0]
    assert [words(printed)[-1] for _, printed, _ in ended] == ["the reader left", "39.0"]


@pytest.mark.slow
def test_a_process_that_never_comes_is_waited_for_no_longer_than_the_timeout():
    (code, _, said), *_ = work("plain", count=3, started=2)
    assert code == 1
    assert f"did not come together within hosts.timeout={TIMEOUT} seconds" in said.splitlines()[-1]


@pytest.mark.parametrize(
    ("spec", "backend", "message"),
    [
        ({}, "torch", "hosts.enabled=True with model.backend='torch'"),
        ({"count": 2, "index": 0}, "jax", "hosts: hosts.count, hosts.index without hosts.coordinator"),
        ({"coordinator": "a:1"}, "jax", "hosts: hosts.coordinator without hosts.count, hosts.index"),
        ({"coordinator": "a:b", "count": 2, "index": 0}, "jax", "hosts.coordinator='a:b'; expected host:port"),
        (
            {"coordinator": "127.0.0.1:9", "count": 2, "index": 1, "timeout": 1},
            "jax",
            "process 0 did not answer process 1 within hosts.timeout=1 seconds",
        ),
    ],
)
def test_what_cannot_join_is_refused_by_the_name_of_its_keys(spec, backend, message):
    with pytest.raises(errors.ConfigError, match=message):
        hosts.join(config.HostsSpec(enabled=True, **spec), backend)


def test_two_first_processes_are_refused():
    with socket.create_server(("", 0)) as taken:
        spec = config.HostsSpec(enabled=True, coordinator=f"localhost:{taken.getsockname()[1]}", count=2, index=0)
        with pytest.raises(errors.ConfigError, match=r"two processes have hosts\.index=0"):
            hosts.join(spec, "jax")


def test_where_jax_finds_no_cluster_the_error_says_what_to_give():
    code = (
        "from evaljax import hosts; from evaljax.core import config; hosts.join(config.HostsSpec(enabled=True), 'jax')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment())
    assert "give hosts.coordinator (host:port of process 0), hosts.count and hosts.index" in done.stderr

"""Whole runs by many processes: they score what one process does, whatever the work divides into."""

import json
import os
import socket
import subprocess
import sys

import pytest

from evaljax import testing

KINDS = ("multiple_choice", "loglikelihood", "loglikelihood_rolling", "generate_until")
RECIPE = "from evaljax import recipe\n\n\ndef get_config():\n    return recipe.default_config()\n"
TIMEOUT = 20
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hosts")
    testing.tiny_model_folder(folder / "model")
    for kind in KINDS:
        testing.toy_task(folder / "tasks", kind, num_docs=7)
    (folder / "recipe.py").write_text(RECIPE)
    return folder


def run(place, out, *overrides, count=1, devices=1):
    """(exit code, printed, errors) of each of `count` processes with `devices` devices each, as a user starts them."""
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
    given = {
        "task_path": place / "tasks",
        "model.path": place / "model",
        "bootstrap_iters": 100,
        "output_dir": out,
        "cache_dir": f"{out}_cache",
    }
    words = [f"{key}={value}" for key, value in given.items()] + list(overrides)
    flags = f"--xla_force_host_platform_device_count={devices}"
    hosts = [f"hosts.coordinator=127.0.0.1:{port}", f"hosts.count={count}", f"hosts.timeout={TIMEOUT}"]
    processes = []
    for index in range(count):
        more = ["hosts.enabled=True", f"hosts.index={index}", *hosts] if count > 1 else []
        command = [sys.executable, "-m", "evaljax.run", f"--config={place / 'recipe.py'}"]
        processes.append(
            subprocess.Popen(
                [*command, *(f"--config.{word}" for word in (*words, *more))],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags},
            )
        )
    try:
        texts = [process.communicate(timeout=600) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, *text) for process, text in zip(processes, texts, strict=True)]


def scores(out):
    """Results and samples of a run, without what differs from run to run."""
    results = json.loads((out / "results.json").read_text())
    answers = {
        path.name: [json.loads(line)["resps"] for line in path.read_text().splitlines()]
        for path in sorted(out.glob("samples_*"))
    }
    return {"results": results["results"], "n-samples": results["n-samples"]}, answers


@pytest.mark.parametrize(
    ("kinds", "overrides", "count", "devices"),
    [
        (KINDS, (), 2, 1),  # 7 documents of each kind
        (KINDS, ("num_fewshot=2",), 4, 2),  # 7 documents on 8 devices
        (KINDS[:2], ("limit=1",), 2, 2),  # fewer documents than devices
        (KINDS[3:], ("limit=1",), 4, 1),
    ],
)
def test_many_processes_score_what_one_does_and_one_of_them_writes(place, tmp_path, kinds, overrides, count, devices):
    tasks = f"tasks={','.join(f'toy_{kind}' for kind in kinds)}"
    assert run(place, tmp_path / "one", tasks, *overrides)[0][0] == 0
    ended = run(place, tmp_path / "many", tasks, *overrides, count=count, devices=devices)
    assert [code for code, _, _ in ended] == [0] * count, ended
    assert ["|toy_" in printed for _, printed, _ in ended] == [True] + [False] * (count - 1)
    one, many = scores(tmp_path / "one"), scores(tmp_path / "many")
    flat = [pytest.approx(value, rel=1e-5, abs=1e-4) if isinstance(value, float) else value for value in leaves(one)]
    assert leaves(many) == flat


def leaves(value):
    """Every number and text of nested lists and dictionaries, in order; numbers written as text are read."""
    if isinstance(value, dict):
        value = [item for key in sorted(value) for item in (key, value[key])]
    if isinstance(value, list | tuple):
        return [leaf for item in value for leaf in leaves(item)]
    try:
        return [float(value)] if not isinstance(value, bool) else [value]
    except (TypeError, ValueError):
        return [value]


def test_an_output_that_cannot_be_written_ends_every_process(place, tmp_path):
    (tmp_path / "file").write_text("")
    ended = run(place, tmp_path / "file" / "out", "tasks=toy_multiple_choice", f"cache_dir={tmp_path / 'c'}", count=2)
    assert [code for code, _, _ in ended] == [1, 1]
    assert "process 0 of 2 failed" in ended[1][2].splitlines()[-1]


def test_other_backends_are_refused(place, tmp_path):
    ended = run(place, tmp_path / "out", "tasks=toy_multiple_choice", "model.backend=fake", count=2)
    assert [code for code, _, _ in ended] == [1, 1]
    assert "only the jax backend splits its work" in ended[0][2]

"""Runs that are killed, started again, changed or met by another: real processes and real files."""

import json
import os
import pathlib
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time

import pytest

import evaljax
from evaljax import run, testing
from evaljax.engine import journal

RECIPE = "from evaljax import recipe\n\n\ndef get_config():\n    return recipe.default_config()\n"
KINDS = ("multiple_choice", "loglikelihood", "loglikelihood_rolling", "generate_until")
# Says each step that has ended, and gives whoever would kill it the time to do so.
SLOW = """
import sys, time
from evaljax import recipe, run
def progress(label, done, total, unit):
    print("step", label, done, flush=True)
    time.sleep(0.03)
run.run(recipe.read(sys.argv[1], sys.argv[2:]), progress=progress)
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a recipe, and toy tasks of all kinds."""
    folder = tmp_path_factory.mktemp("resume")
    (folder / "plain.py").write_text(RECIPE)
    for kind in KINDS:
        testing.toy_task(folder / "tasks", kind, num_docs=24)
    return folder


@pytest.fixture(scope="module")
def words(place, tiny_model):
    """The command line of a run into `folder`, with more keys: the recipe, then "key=value"."""

    def said(folder, *more):
        given = {
            "tasks": ",".join(f"toy_{kind}" for kind in KINDS),
            "task_path": place / "tasks",
            "model.path": tiny_model,
            "bootstrap_iters": 10,
            "engine.chunk_length": 16,
            "engine.num_slots": 2,
            "engine.decode_steps": 4,
            "output_dir": folder,
        }
        return [str(place / "plain.py"), *(f"{key}={value}" for key, value in given.items()), *more]

    return said


def spawn(arguments, *, code=SLOW, devices=1) -> subprocess.Popen[str]:
    """A process that runs; what it says can be read as it comes."""
    environment = os.environ | {"XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)


def finish(process: subprocess.Popen[str]) -> list[str]:
    """The lines of a process that must end well."""
    printed, _ = process.communicate(timeout=300)
    assert process.returncode == 0, printed
    return printed.splitlines()


def start(arguments) -> int:
    """The exit code of a run in this process."""
    recipe, *overrides = arguments
    return run.main([f"--config={recipe}", *(f"--config.{word}" for word in overrides)])


def kill(process: subprocess.Popen[str]) -> list[str]:
    """What the process said before it was killed without a chance to clean up."""
    process.send_signal(signal.SIGKILL)
    assert process.stdout is not None
    said = process.stdout.read().splitlines()
    process.stdout.close()
    process.wait()
    return said


def wait_for(process: subprocess.Popen[str], count: int, label: str = "scoring") -> list[str]:
    """What the process has said when it has said so many steps of one label."""
    assert process.stdout is not None
    said: list[str] = []
    while sum(line.startswith(f"step {label}") for line in said) < count:
        said.append(process.stdout.readline())
        assert said[-1], "".join(said)
    return said


def kill_after(process: subprocess.Popen[str], count: int, label: str = "scoring") -> list[str]:
    """The steps that a process said, killed after it said so many of one label."""
    return steps(wait_for(process, count, label) + kill(process))


def kill_when(process: subprocess.Popen[str], there) -> list[str]:
    """The steps that a process said, killed as soon as `there()` is true."""
    deadline = time.monotonic() + 300
    while not there() and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.0005)
    return steps(kill(process))


def steps(lines) -> list[str]:
    """Those that say a step."""
    return [line for line in lines if line.startswith("step ")]


def outcome(folder: pathlib.Path) -> tuple[dict, dict[str, str]]:
    """Results without what is the run's own (its time and folders), and the samples as they are written."""
    results = json.loads((folder / "results.json").read_text())
    del results["date"]
    for key in ("output_dir", "cache_dir", "engine"):
        del results["config"][key]
    return results, {file.name: file.read_text() for file in sorted(folder.glob("samples_*.jsonl"))}


def manifest(folder: pathlib.Path) -> dict:
    return json.loads((folder / "manifest.json").read_text())


def num_kept(folder: pathlib.Path) -> int:
    """Records in a journal as whoever opens it next will find them; it is left as it was."""
    with tempfile.TemporaryDirectory() as copy:
        for file in folder.glob(f"{journal.NAME}*"):
            shutil.copy(file, copy)
        with sqlite3.connect(pathlib.Path(copy, journal.NAME)) as connection:
            found = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            count = connection.execute("SELECT count(*) FROM answers").fetchone()[0] if found else 0
        connection.close()
    return int(count)


@pytest.fixture(scope="module")
def undisturbed(words, tmp_path_factory):
    """The folder of a run that nobody disturbed, and the steps that it said."""
    folder = tmp_path_factory.mktemp("undisturbed")
    return folder, steps(finish(spawn(words(folder))))


@pytest.mark.slow
def test_a_run_that_is_killed_again_and_again_ends_as_if_it_never_was(words, undisturbed, tmp_path):
    """At start-up, in scoring, in generation and while it writes."""
    expected, all_steps = undisturbed
    scoring = sum("scoring" in step for step in all_steps)
    assert scoring >= 12
    rng, said, kept = random.Random(1), [], []
    folder = tmp_path / "run"

    def killed(kill_it) -> None:
        said.extend(kill_it(spawn(words(folder))))
        kept.append(num_kept(folder / "cache"))

    killed(lambda process: (time.sleep(rng.uniform(0.1, 2)), steps(kill(process)))[1])
    killed(lambda process: kill_when(process, (folder / "cache" / journal.LOCK).exists))
    for _ in range(2):
        killed(lambda process: kill_after(process, rng.randrange(3, scoring // 2)))
    assert kept[0] <= kept[1] < kept[2] < kept[3], "what was answered is kept at every kill"
    killed(lambda process: kill_after(process, 2, "generate"))
    killed(lambda process: kill_when(process, lambda: list(folder.glob("samples_*"))))
    assert not (folder / "results.json").exists()
    said += steps(finish(spawn(words(folder))))
    assert outcome(folder) == outcome(expected)
    again = sum("scoring" in step for step in said) - scoring
    # In each of the two kills a step or two were under way, and their first tokens' paths had to be forwarded again.
    assert again <= 8, f"{again} steps too many"
    assert manifest(folder)["engine"]["seconds"]["load"] == 0
    assert sorted(path.name for path in (folder / "cache").iterdir()) == [journal.LOCK, journal.NAME]


@pytest.mark.slow
def test_a_run_goes_on_with_another_number_of_devices(words, undisturbed, tmp_path):
    expected, _ = undisturbed
    kill_after(spawn(words(tmp_path)), 6)
    before = num_kept(tmp_path / "cache")
    finish(spawn(words(tmp_path, "engine.data=4", "engine.num_rows=4", "engine.num_slots=4"), devices=4))
    assert manifest(tmp_path)["engine"]["answers_kept"] >= before - 3 > 0
    for name, text in outcome(expected)[1].items():
        for left, right in zip(text.splitlines(), outcome(tmp_path)[1][name].splitlines(), strict=True):
            close(json.loads(left), json.loads(right))


def close(left, right) -> None:
    """Nothing, if both are the same but for 1e-5 in numbers, which samples write as texts too."""
    if isinstance(left, dict):
        assert left.keys() == right.keys()
        left, right = list(left.values()), [right[key] for key in left]
    if isinstance(left, list):
        for one, other in zip(left, right, strict=True):
            close(one, other)
    elif left != right:
        assert float(left) == pytest.approx(float(right), abs=1e-5)


@pytest.mark.slow
def test_a_second_run_on_one_journal_is_refused_until_the_first_is_dead(words, tmp_path, capsys):
    first = spawn(words(tmp_path / "first", f"cache_dir={tmp_path / 'cache'}"))
    wait_for(first, 4)
    first.send_signal(signal.SIGSTOP)  # else it might be done before the second has begun
    second = words(tmp_path / "second", f"cache_dir={tmp_path / 'cache'}")
    assert start(second) == 1
    assert f"the journal is in use by process {first.pid} on " in capsys.readouterr().err
    assert not (tmp_path / "second" / "results.json").exists()
    kill(first)
    assert start(second) == 0
    assert manifest(tmp_path / "second")["engine"]["answers_kept"] > 0


@pytest.mark.slow
def test_deterministic_samples_are_the_same_bits_in_any_order_and_from_any_point(words, tmp_path):
    tasks = [f"toy_{kind}" for kind in KINDS]
    straight = words(tmp_path / "straight", "engine.deterministic=True", f"tasks={','.join(tasks)}")
    assert start(straight) == 0
    assert start(words(tmp_path / "reversed", "engine.deterministic=True", f"tasks={','.join(tasks[::-1])}")) == 0
    kill_after(spawn(words(tmp_path / "killed", *straight[-2:])), 5)
    assert start(words(tmp_path / "killed", *straight[-2:])) == 0
    assert manifest(tmp_path / "killed")["engine"]["answers_kept"] > 0
    expected = outcome(tmp_path / "straight")[1]
    assert outcome(tmp_path / "reversed")[1] == expected
    assert outcome(tmp_path / "killed")[1] == expected


def test_another_template_seed_or_number_of_shots_asks_anew_and_another_task_pays_for_itself(words, place, tmp_path):
    cache, count = f"cache_dir={tmp_path / 'cache'}", iter(range(99))

    def plans(*more) -> tuple[int, dict]:
        folder = tmp_path / str(next(count))
        assert start(words(folder, cache, *more)) == 0
        engine = manifest(folder)["engine"]
        return engine["answers_kept"], engine["plans"]

    alone = "tasks=toy_multiple_choice"
    assert plans(alone)[0] == 0
    assert plans(alone)[0] == 72
    found, both = plans("tasks=toy_multiple_choice,toy_loglikelihood_rolling")
    assert (found, both.keys()) == (72, {"loglikelihood", "loglikelihood_rolling"})
    assert both["loglikelihood"] == {"requests": 72}
    assert both["loglikelihood_rolling"]["steps"] > 0
    assert plans(alone, "num_fewshot=1")[0] == 0
    assert plans(alone, "num_fewshot=1", "seed=7")[0] < 72
    assert plans(alone, "apply_chat_template=True")[0] == 0
    edited = place / "edited" / "toy_multiple_choice.yaml"
    edited.parent.mkdir()
    text = (place / "tasks" / "toy_multiple_choice.yaml").read_text()
    edited.write_text(text.replace("Q: {{question}}", "Question: {{question}}"))
    assert plans(alone, f"task_path={edited.parent}")[0] == 0


def test_damage_is_told_and_costs_only_what_was_damaged(words, tmp_path, capsys):
    arguments = words(tmp_path, "tasks=toy_loglikelihood")
    assert start(arguments) == 0
    expected, file = outcome(tmp_path), tmp_path / "cache" / journal.NAME
    with sqlite3.connect(file) as connection:
        [(key, record)] = connection.execute("SELECT key, value FROM answers WHERE length(value) = 13 LIMIT 1")
        connection.execute("UPDATE answers SET value = ? WHERE key = ?", (record[:-1] + b"\x7f", key))
    connection.close()
    capsys.readouterr()
    assert start(arguments) == 0
    assert "damaged answers that were dropped, to be computed again: 1" in capsys.readouterr().out
    assert manifest(tmp_path)["engine"]["answers_kept"] == 23
    assert outcome(tmp_path) == expected
    file.write_bytes(file.read_bytes()[:5000])
    assert start(arguments) == 0
    [note] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note: ") and "damaged" in line]
    assert note.endswith("it is now journal.sqlite3.damaged-1, and a new journal was begun")
    assert outcome(tmp_path) == expected


def test_folders_that_cannot_be_written_are_refused_before_any_work(words, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    (tmp_path / "out" / "cache").parent.mkdir()
    (tmp_path / "out" / "cache").write_text("")
    for more, message in (
        (["cache_dir=" + str(tmp_path / "file")], "cache_dir"),
        (["output_dir=" + str(tmp_path / "file" / "inner")], "output_dir"),
        (["output_dir=" + str(tmp_path / "out")], "the journal's folder cannot be written: File exists"),
    ):
        assert start([*words(tmp_path / "ok"), *more]) == 1
        printed = capsys.readouterr()
        assert message in printed.err
        assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert not list(tmp_path.glob("*/results.json"))


def test_simple_evaluate_finds_what_it_was_answered_before_by_content(place, tiny_model, tmp_path):
    def evaluate(samples):
        calls = []
        results = evaljax.simple_evaluate(
            model="jax",
            model_args={"path": str(tiny_model)},
            tasks=[str(place / "tasks" / "toy_multiple_choice.yaml")],
            samples={"toy_multiple_choice": samples},
            use_cache=str(tmp_path),
            progress=lambda *step: calls.append(step),
        )
        return [(sample["doc_id"], sample["resps"]) for sample in results["samples"]["toy_multiple_choice"]], calls

    first, computed = evaluate([0, 2])
    assert computed
    other, _ = evaluate([1, 3])
    assert [doc for doc, _ in other] == [1, 3]
    assert evaluate([0, 2]) == (first, [])
    assert evaluate([0, 1, 2, 3]) == (sorted(first + other), [])

"""Runs as a user starts them: exit code, files, table, and one clear error for each bad input."""

import dataclasses
import json
import os
import subprocess
import sys

import pytest

from evaljax import __main__, run, testing
from evaljax.core import config, errors

KINDS = ("multiple_choice", "loglikelihood", "loglikelihood_rolling", "generate_until")
RECIPE = "from evaljax import recipe\n\n\ndef get_config():\n    return recipe.default_config()\n"


@pytest.fixture(scope="module")
def recipe_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("recipes") / "plain.py"
    path.write_text(RECIPE)
    return path


@pytest.fixture(scope="module")
def toy_tasks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tasks")
    for kind in KINDS:
        testing.toy_task(folder, kind)
    return folder


@pytest.fixture
def start(recipe_file, toy_tasks, tiny_model):
    def started(*overrides):
        given = {
            "tasks": "toy_multiple_choice",
            "task_path": toy_tasks,
            "model.path": tiny_model,
            "bootstrap_iters": 100,
        }
        words = [f"--config.{key}={value}" for key, value in given.items()]
        return run.main([f"--config={recipe_file}", *words, *(f"--config.{word}" for word in overrides)])

    return started


def test_one_run_of_all_four_kinds_writes_table_results_samples_and_manifest(start, tmp_path, capsys):
    out = tmp_path / "out"
    assert start(f"tasks={','.join(f'toy_{kind}' for kind in KINDS)}", "num_fewshot=1", f"output_dir={out}") == 0
    assert sorted(p.name for p in out.iterdir()) == sorted(
        ["cache", "results.json", "manifest.json", *(f"samples_toy_{kind}.jsonl" for kind in KINDS)]
    )
    printed = capsys.readouterr().out
    assert "|toy_multiple_choice" in printed
    assert "unique" in printed
    results = json.loads((out / "results.json").read_text())
    assert set(results["results"]) == {f"toy_{kind}" for kind in KINDS}
    assert results["results"]["toy_loglikelihood"]["perplexity,none"] > 1
    assert results["n-shot"]["toy_multiple_choice"] == 1
    assert results["n-samples"]["toy_multiple_choice"] == {"original": 6, "effective": 6}
    samples = [json.loads(line) for line in (out / "samples_toy_multiple_choice.jsonl").read_text().splitlines()]
    assert [sample["doc_id"] for sample in samples] == list(range(6))
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["config"]["num_fewshot"] == 1
    assert manifest["model"]["precision"] == "highest"
    assert manifest["engine"]["executables"] >= 2
    assert len(manifest["prompts_hash"]) == 64
    assert set(manifest["engine"]["seconds"]) == {"load", "tokenize", "plan", "compile", "run"}


def test_two_runs_give_the_same_results_and_the_same_prompts_hash(start, tmp_path):
    for name in ("a", "b"):
        assert start(f"output_dir={tmp_path / name}") == 0
    a, b = (json.loads((tmp_path / name / "results.json").read_text()) for name in ("a", "b"))
    for volatile in ("date", "config"):
        a.pop(volatile), b.pop(volatile)
    assert a == b
    hashes = {json.loads((tmp_path / name / "manifest.json").read_text())["prompts_hash"] for name in ("a", "b")}
    assert len(hashes) == 1


def test_a_dry_run_needs_no_weights_and_writes_requests_and_plan(start, tiny_model, tmp_path, capsys):
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (bare / name).write_bytes((tiny_model / name).read_bytes())
    assert (
        start(
            f"model.path={bare}",
            "dry_run=True",
            f"output_dir={tmp_path / 'out'}",
            f"tasks=toy_{KINDS[0]},toy_{KINDS[3]}",
        )
        == 0
    )
    records = [json.loads(line) for line in (tmp_path / "out" / "requests.jsonl").read_text().splitlines()]
    assert len(records) == 6 * 3 + 6
    assert set(records[0]) == {"task", "doc_id", "idx", "request_type", "arguments"}
    assert records[1] == {
        "task": "toy_multiple_choice",
        "doc_id": 0,
        "idx": 1,
        "request_type": "loglikelihood",
        "arguments": ["Q: Which number follows 0?\nA:", " 2"],
    }
    assert records[-1]["request_type"] == "generate_until"
    plan = json.loads((tmp_path / "out" / "plan.json").read_text())
    assert {"requests", "request_tokens", "unique_tokens", "forward_tokens", "shapes", "buckets"} <= set(plan)
    assert plan["requests"] == 24
    assert plan["unique_tokens"] <= plan["request_tokens"]
    assert sorted(os.listdir(tmp_path / "out")) == ["plan.json", "requests.jsonl"]
    assert '"unique_tokens"' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("tasks=toy_multiple_chioce", r"unknown task 'toy_multiple_chioce'. Did you mean 'toy_multiple_choice'?"),
        ("num_fewshots=1", "unknown config key 'num_fewshots'. Did you mean 'num_fewshot'?"),
        ("model.path=/nowhere/at/all", "model.path='/nowhere/at/all': no such folder or file"),
        ("model.backend=jaxx", "unknown backend 'jaxx'. Did you mean 'jax'?"),
        ("model.max_length=4096", "model.max_length=4096: expected"),
        ("task_path=/nowhere/at/all", "there is no folder of tasks /nowhere/at/all"),
        ("num_fewshot=7", "7 few-shot examples are asked for, but the pool has only 6"),
        ("tasks=toy_generate_until --config.gen_kwargs=temperatur=1", "Did you mean 'temperature'?"),
    ],
)  # fmt: skip
def test_bad_input_is_one_clear_error_and_no_file(start, tmp_path, capsys, override, message):
    out = tmp_path / "out"
    assert start(f"output_dir={out}", *override.split(" --config.")) == 1
    error = capsys.readouterr().err
    assert "Traceback" not in error
    assert message in error
    assert not out.exists() or os.listdir(out) == []


def test_an_output_folder_that_cannot_be_written_is_refused_before_anything_runs(start, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert start(f"output_dir={tmp_path / 'file' / 'below'}", "model.path=/nowhere") == 1
    assert "cannot be written" in capsys.readouterr().err


def test_generation_that_leaves_no_room_for_a_prompt_is_refused_before_weights_load(
    start, tiny_model, tmp_path, capsys
):
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (bare / name).write_bytes((tiny_model / name).read_bytes())
    assert start("tasks=toy_generate_until", "gen_kwargs=max_gen_toks=128", f"model.path={bare}") == 1
    assert "max_gen_toks is 128, but the model holds 128 tokens" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "no recipe given"),
        (["--confg=x"], "unknown argument '--confg=x'"),
        (["--config=/nowhere.py"], "'/nowhere.py' not found"),
        (["configs/quickstart.py"], "Did you mean --config=configs/quickstart.py?"),
    ],
)
def test_a_wrong_command_line_says_how_it_is_used(argv, message, capsys):
    assert run.main(argv) == 1
    assert message in capsys.readouterr().err


def test_help_names_every_key_and_is_no_error(capsys):
    assert run.main(["--help"]) == 0
    printed = capsys.readouterr().out
    sections = {
        "": config.RunConfig,
        "model.": config.ModelSpec,
        "engine.": config.EngineOptions,
        "hosts.": config.HostsSpec,
    }
    for prefix, kind in sections.items():
        for field in dataclasses.fields(kind):
            if prefix or f"{field.name}." not in sections:
                assert f"--config.{prefix}{field.name}: " in printed
    assert "quickstart" in printed


def test_a_second_run_into_one_folder_leaves_no_samples_of_the_first(start, tmp_path):
    assert start("tasks=toy_multiple_choice,toy_loglikelihood", f"output_dir={tmp_path}") == 0
    assert start("tasks=toy_loglikelihood", f"output_dir={tmp_path}") == 0
    assert [path.name for path in tmp_path.glob("samples_*")] == ["samples_toy_loglikelihood.jsonl"]


def test_ls_show_and_validate_work_as_commands(toy_tasks, tiny_model, capsys):
    assert __main__.main(["ls", "tasks", "toy_*", f"--task_path={toy_tasks}"]) == 0
    assert "toy_multiple_choice" in capsys.readouterr().out
    assert __main__.main(["ls", f"--config.task_path={toy_tasks}", "toy_*"]) == 0
    assert "toy_multiple_choice" in capsys.readouterr().out
    assert __main__.main(["ls", "tasks", "a", "b"]) == 1
    assert "found 'b' too" in capsys.readouterr().err
    assert __main__.main(["show", "toy_multiple_choice", "-n", "0"]) == 1
    assert "show: -n 0; expected 1 or more" in capsys.readouterr().err
    assert __main__.main(["ls", "no_such_thing"]) == 1
    assert "nothing is called 'no_such_thing'" in capsys.readouterr().err
    shown = [
        "show",
        "toy_multiple_choice",
        "-n",
        "2",
        f"--config.task_path={toy_tasks}",
        f"--config.model.path={tiny_model}",
    ]
    assert __main__.main(shown) == 0
    printed = capsys.readouterr().out
    assert "Q: Which number follows 1?" in printed
    assert "continuation 2: ' 3'" in printed
    assert "scored text ' 3'" in printed
    assert __main__.main(["validate", str(toy_tasks)]) == 0
    assert "0 errors" in capsys.readouterr().out
    (toy_tasks / "broken.yaml").write_text("task: broken\ndoc_to_txt: x\n")
    try:
        assert __main__.main(["validate", str(toy_tasks / "broken.yaml")]) == 1
    finally:
        (toy_tasks / "broken.yaml").unlink()
    assert "broken.yaml:2: error" in capsys.readouterr().out
    assert __main__.main(["validate", "/nowhere"]) == 1
    assert "no file or folder /nowhere" in capsys.readouterr().err


def test_an_unknown_command_names_the_nearest(capsys):
    assert __main__.main(["vaildate"]) == 1
    assert "unknown command 'vaildate'. Did you mean 'validate'?" in capsys.readouterr().err
    assert __main__.main(["--help"]) == 0
    assert __main__.main(["--version"]) == 0


@pytest.mark.parametrize("pipe", ["ls | head -1", "ls groups | true"])
def test_a_reader_that_leaves_early_is_no_error(pipe):
    command = f"{sys.executable} -m evaljax {pipe}; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0"
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("extra", "names"), [((), {"results.json"}), (("dry_run=True",), {"plan.json", "requests.jsonl"})]
)
def test_files_are_written_before_the_table_so_a_reader_that_leaves_costs_nothing(
    recipe_file, toy_tasks, tmp_path, extra, names
):
    overrides = ["tasks=toy_multiple_choice", f"task_path={toy_tasks}", "model.backend=fake", f"output_dir={tmp_path}"]
    words = " ".join(f"--config.{word}" for word in (*overrides, *extra))
    command = f"{sys.executable} -m evaljax.run --config={recipe_file} {words} | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert (done.stdout, "Traceback" in done.stderr) == ("0\n", False)
    assert names <= set(os.listdir(tmp_path))


def test_a_terminal_that_cannot_show_every_sign_does_not_end_the_run(recipe_file, toy_tasks):
    words = [
        f"--config.{word}" for word in ("tasks=toy_multiple_choice", f"task_path={toy_tasks}", "model.backend=fake")
    ]
    command = [sys.executable, "-m", "evaljax.run", f"--config={recipe_file}", *words]
    done = subprocess.run(command, capture_output=True, env={**os.environ, "PYTHONIOENCODING": "ascii"}, check=True)
    assert b"\\u2191" in done.stdout


def test_results_of_an_earlier_run_never_stand_beside_another_runs_samples(start, tmp_path, monkeypatch, capsys):
    assert start("model.backend=fake", f"output_dir={tmp_path}") == 0
    (tmp_path / "samples_toy_multiple_choice.jsonl").unlink()

    def full(*args):
        raise errors.OutputError("the disk is full")

    monkeypatch.setattr(run.samples, "write_samples", full)
    assert start("model.backend=fake", f"output_dir={tmp_path}") == 1
    assert "the disk is full" in capsys.readouterr().err
    assert not (tmp_path / "results.json").exists()


def test_a_cache_folder_that_cannot_be_written_is_refused(start, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert start(f"cache_dir={tmp_path / 'file' / 'below'}") == 1
    assert "cache_dir" in capsys.readouterr().err


def test_two_tasks_of_one_sample_file_are_refused_before_the_run(start, toy_tasks, tmp_path, capsys):
    inline = [{"task": name, "include": str(toy_tasks / "toy_multiple_choice.yaml")} for name in ("a/b", "a_b")]
    recipe_path = tmp_path / "two.py"
    recipe_path.write_text(
        RECIPE.replace(
            "    return recipe.default_config()",
            f"""    config = recipe.default_config()
    config.tasks = {tuple(inline)!r}
    config.model.backend = "fake"
    config.output_dir = {str(tmp_path / "out")!r}
    return config""",
        )
    )
    assert run.main([f"--config={recipe_path}"]) == 1
    assert "tasks 'a/b' and 'a_b' would both be written to samples_a_b.jsonl" in capsys.readouterr().err
    assert os.listdir(tmp_path / "out") == []

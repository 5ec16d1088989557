"""The task files give the requests and scores that lm-eval 0.4.13 gives, as recorded (EVALJAX_GOLDEN)."""

import copy
import json
import os
import pathlib

import check_golden
import pytest

from evaljax.tasks import library, manager


@pytest.fixture(scope="module")
def golden() -> dict[str, dict]:
    path = os.environ.get("EVALJAX_GOLDEN")
    if not path:
        pytest.skip("EVALJAX_GOLDEN is not set")
    return {line["spec"]: line for line in check_golden.read_golden(pathlib.Path(path))}


@pytest.fixture(scope="module")
def tasks() -> manager.TaskManager:
    return manager.TaskManager(include_path=[str(library.library_root())], include_defaults=False)


@pytest.mark.parity
@pytest.mark.slow
def test_every_recorded_spec_of_these_tasks_gives_equal_requests_and_scores(golden, tasks, hub_mirror):
    specs = [spec for spec in golden if golden[spec]["task"] in tasks.all_tasks]
    assert len(specs) >= 30
    found = {spec: check_golden.check(golden[spec], tasks, mirror=str(hub_mirror), trust=False) for spec in specs}
    assert {spec: lines[:2] for spec, lines in found.items() if lines} == {}


@pytest.mark.parity
def test_the_comparison_sees_a_changed_character_a_missing_request_and_a_moved_score(golden, tasks, hub_mirror):
    spec = golden["blimp_adjunct_island"]
    found = check_golden.run_spec(spec, tasks, mirror=str(hub_mirror), trust=False)
    assert list(check_golden.differences(spec, found)) == []
    changed = copy.deepcopy(spec)
    changed["requests"][3]["arguments"][1] += " "
    del changed["requests"][-1]
    changed["results"]["blimp_adjunct_island"]["acc,none"] *= 1 + 1e-8
    changed["versions"]["blimp_adjunct_island"] = 2.0
    lines = list(check_golden.differences(changed, found))
    assert lines[0] == "requests: expected 9, found 10"
    assert lines[1].startswith("request 3 (blimp_adjunct_island, document 1, idx 1): argument 1: at character ")
    assert lines[2].startswith("results: blimp_adjunct_island: acc,none: expected ")
    assert lines[3:] == ["versions: blimp_adjunct_island: expected 2.0, found 1.0"]


def test_the_tool_fails_where_a_task_asks_something_else(tmp_path, capsys):
    (tmp_path / "docs.jsonl").write_text('{"q": "one", "a": "1"}\n{"q": "two", "a": "2"}\n')
    (tmp_path / "toy.yaml").write_text(
        "task: toy\ndataset_path: json\ndataset_kwargs: {data_files: {test: docs.jsonl}}\ntest_split: test\n"
        "output_type: loglikelihood\ndoc_to_text: '{{q}}'\ndoc_to_target: '={{a}}'\nmetric_list: [{metric: acc}]\n"
    )
    requests = [
        {"task": "toy", "doc_id": i, "idx": 0, "request_type": "loglikelihood", "arguments": arguments}
        for i, arguments in enumerate((["one", "=1"], ["two", "=2"]))
    ]
    # sha256("greedyone\\0=1") and ("greedytwo\\0=2") decide what is greedy.
    greedy = [check_golden.text_hash(f"greedy{a}\x00{b}") % 4 == 0 for a, b in (("one", "=1"), ("two", "=2"))]
    acc, stderr = sum(greedy) / 2, 0.5 if greedy[0] != greedy[1] else 0.0
    line = {
        "spec": "toy",
        "task": "toy",
        "num_fewshot": None,
        "chat": False,
        "limit": 5,
        "requests": requests,
        "results": {"toy": {"sample_len": 2, "acc,none": acc, "acc_stderr,none": stderr}},
        "groups": {},
        "n_samples": {"toy": {"original": 2, "effective": 2}},
        "versions": {"toy": "Yaml"},
        "n_shot": {"toy": 0},
    }
    path = tmp_path / "golden.jsonl"
    path.write_text(json.dumps(line) + "\n")
    assert check_golden.main([str(path), "--tasks", str(tmp_path)]) == 0, capsys.readouterr().out
    requests[1]["arguments"][0] = "too"
    path.write_text(json.dumps(line) + "\n")
    assert check_golden.main([str(path), "--tasks", str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert "differs toy" in printed
    assert "request 1 (toy, document 1, idx 0): argument 0: at character 1" in printed


def test_nothing_to_compare_is_a_failure_and_a_missing_file_is_named(tmp_path, capsys):
    path = tmp_path / "golden.jsonl"
    path.write_text('{"spec": "toy:2", "task": "toy"}\n')
    assert check_golden.main([str(path), "--tasks", str(tmp_path)]) == 1
    assert f"no spec of {path}" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        check_golden.main([str(tmp_path / "nowhere.jsonl"), "--tasks", str(tmp_path)])
    assert "nowhere.jsonl does not exist" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("expected", "found", "same"),
    [
        ("N/A", None, True),
        (float("nan"), None, True),
        (0.5, 0.5 + 1e-11, True),
        (0.5, 0.5 + 1e-8, False),
        (2.69e25, 2.69e25 * (1 + 1e-10), True),
        (0.0, None, False),
        ("N/A", 0.0, False),
        (5, 5, True),
        (5, 6, False),
    ],
)
def test_what_counts_as_the_same_value(expected, found, same):
    assert check_golden.same_value(expected, found) is same

import json

import pytest

from evaljax.core import errors, result, task
from evaljax.report import results_json, samples, table


def task_result(name, acc, shots=0, **config):
    return result.TaskResult(
        config=task.TaskConfig(task=name, metadata={"version": 1.0}, **config),
        metrics={("acc", "none"): acc, ("acc_norm", "none"): float("nan")},
        stderrs={("acc", "none"): 0.1, ("acc_norm", "none"): None},
        higher_is_better={"acc": True, "acc_norm": True},
        sample_len=4,
        num_docs=9,
        num_fewshot=shots,
        samples=(
            {
                "doc_id": 0,
                "doc": {"q": "x"},
                "target": 1,
                "arguments": [("c", " a")],
                "resps": [[(-1.5, False)]],
                "filtered_resps": [(-1.5, False)],
            },
        ),
        counts={"ties": 2},
    )


def group_result(name, children, **scores):
    return result.GroupResult(
        config=task.GroupConfig(group=name, children=children, metadata={"version": 2}),
        metrics={("acc", "none"): 0.5} if scores.get("rolls_up") else {},
        stderrs={("acc", "none"): 0.05} if scores.get("rolls_up") else {},
        sample_len=8,
        sample_count={("acc", "none"): 8},
    )


@pytest.fixture
def outcome():
    return result.EvalResult(
        tasks={
            "b": task_result("b", 0.25, shots=5),
            "a": task_result("a", 0.75, shots=5, task_alias="A!"),
            "alone": task_result("alone", 0.0),
        },
        groups={"outer": group_result("outer", ("inner",)), "inner": group_result("inner", ("b", "a"), rolls_up=True)},
        facts={"date": 1.5},
    )


def test_the_dictionary_has_lm_evals_keys_and_is_strict_json(outcome):  # cases C89, C91
    made = results_json.results_dict(outcome)
    json.loads(json.dumps(made, allow_nan=False))
    assert made["results"]["a"] == {
        "name": "a", "alias": "A!", "sample_len": 4,
        "acc,none": 0.75, "acc_stderr,none": 0.1, "acc_norm,none": None, "acc_norm_stderr,none": None,
    }  # fmt: skip
    assert made["results"]["inner"] == {
        "name": "inner", "alias": "inner", "sample_len": 8, "sample_count": {"acc,none": 8},
        "acc,none": 0.5, "acc_stderr,none": 0.05,
    }  # fmt: skip
    assert made["results"]["outer"] == {"name": "outer", "alias": "outer"}
    assert list(made["groups"]) == ["inner"]
    assert made["group_subtasks"] == {"outer": ["inner"], "inner": ["b", "a"]}
    assert made["versions"] == {"a": 1.0, "alone": 1.0, "b": 1.0, "inner": "2", "outer": "2"}
    assert made["n-shot"] == {"a": 5, "alone": 0, "b": 5, "inner": 5, "outer": 5}
    assert made["higher_is_better"]["outer"] == {"acc": True, "acc_norm": True}
    assert made["n-samples"]["a"] == {"original": 9, "effective": 4}
    assert made["health"]["a"] == {"ties": 2}
    assert made["date"] == 1.5
    assert list(made["samples"]) == ["b", "a", "alone"]


def test_groups_come_before_their_members_and_members_sorted(outcome):
    assert list(results_json.tree(outcome)) == [("outer", 0), ("inner", 1), ("a", 2), ("b", 2), ("alone", 0)]


def test_shots_of_a_group_that_disagree_are_left_out():
    outcome = result.EvalResult(
        tasks={"a": task_result("a", 0.0, shots=1), "b": task_result("b", 0.0, shots=2)},
        groups={"g": group_result("g", ("a", "b"))},
    )
    assert "g" not in results_json.results_dict(outcome)["n-shot"]


def test_the_table_has_lm_evals_columns_and_an_indented_tree(outcome):
    lines = table.tables(outcome).splitlines()
    assert [cell.strip() for cell in lines[0].split("|")[1:-1]] == [
        "Tasks",
        "Version",
        "Filter",
        "n-shot",
        "Metric",
        "",
        "Value",
        "",
        "Stderr",
    ]
    assert lines[2].startswith("|outer ")
    assert [cell.strip() for cell in lines[4].split("|")[1:-1]] == [
        "- A!",
        "1.0",
        "none",
        "5",
        "acc",
        "↑",
        "0.7500",
        "±",
        "0.1000",
    ]
    assert [cell.strip() for cell in lines[5].split("|")[1:-1]] == [
        "",
        "",
        "none",
        "5",
        "acc_norm",
        "↑",
        "nan",
        "±",
        "N/A",
    ]
    assert len({len(line) for line in lines if line.startswith("|")}) <= 2
    assert table.health_lines(outcome)[0] == "b: 2 documents whose best choices tie (4 documents)"


def test_a_sample_record_spells_arguments_as_lm_eval_does(outcome):
    record = next(samples.records(outcome.tasks["a"]))
    assert record["target"] == "1"
    assert record["arguments"] == {"gen_args_0": {"arg_0": "c", "arg_1": " a"}}
    assert record["resps"] == [[["-1.5", "False"]]]


def test_a_task_name_is_made_a_file_name():
    assert samples.file_name("group::sub/task") == "group::sub_task"


def test_two_tasks_with_one_sample_file_are_refused():
    assert samples.file_names(["a/b", "a:b"]) == {"samples_a_b.jsonl": "a/b", "samples_a:b.jsonl": "a:b"}
    with pytest.raises(errors.OutputError, match=r"tasks 'a/b' and 'a_b' would both be written to samples_a_b.jsonl"):
        samples.file_names(["a/b", "a_b"])

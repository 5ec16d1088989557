"""Errors and advice in task files, without data."""

import pytest

from evaljax.commands import validate as command
from evaljax.core import errors
from evaljax.tasks import library, validate

LEAST = {"dataset_path": "d", "test_split": "test", "output_type": "multiple_choice", "doc_to_choice": "c"}
NAMES = {"metrics": ["acc", "acc_norm", "exact_match"], "filters": ["regex", "take_first"], "aggregations": ["mean"]}


def findings(folder, **fields):
    folder.yaml("t.yaml", **{"task": "t", **LEAST, **fields})
    return validate.validate_tree(folder.root, **NAMES)


def test_a_sound_file_has_no_findings(folder):
    assert findings(folder, doc_to_text="Q: {{q}}\nA:", doc_to_target="a", description="D.\n\n") == []


@pytest.mark.parametrize(
    ("fields", "key", "message"),
    [
        ({"doc_to_txt": "x"}, "doc_to_txt", "Did you mean 'doc_to_text'"),
        ({"doc_to_text": "{{q"}, "doc_to_text", "the template cannot be read"),
        ({"metric_list": [{"metric": "acc_nor"}]}, "metric_list", "unknown metric 'acc_nor'. Did you mean 'acc_norm'"),
        ({"metric_list": [{"metric": "acc", "aggregation": "mea"}]}, "metric_list", "unknown aggregation 'mea'"),
        ({"filter_list": [{"name": "f", "filter": [{"function": "regx"}]}]}, "filter_list", "unknown filter 'regx'"),
        ({"repeats": 0}, "repeats", "repeats must be a whole number, 1 or more"),
        (
            {"output_type": "generate_until", "generation_kwargs": {"do_sample": True, "temperature": 0}},
            "generation_kwargs",
            "do_sample is true but temperature is 0",
        ),
    ],
)
def test_errors_name_line_and_key(folder, fields, key, message):
    (finding,) = findings(folder, **fields)
    assert message in finding.message
    assert (finding.key, finding.advice) == (key, False)
    line = (folder.root / "t.yaml").read_text().splitlines()[finding.line - 1]
    assert key in line
    assert str(finding).startswith(f"{folder.root / 't.yaml'}:{finding.line}: error: ")


@pytest.mark.parametrize(
    ("fields", "key", "message"),
    [
        ({"doc_to_text": "{{q}}\n"}, "doc_to_text", r"ends in '\n' and target_delimiter ' ' follows"),  # case C46
        ({"doc_to_text": "A: "}, "doc_to_text", "the whitespace is written twice"),  # case C47
        ({"description": "Desc."}, "description", "nothing separates it from what follows"),  # case C48
        ({"doc_to_choice": [" A", " B"]}, "doc_to_choice", "a choice begins with whitespace"),
        (
            {"output_type": "generate_until", "generation_kwargs": {"until": ["\n", "."]}},  # case C56
            "until",
            "the stop string '.' may cut numbers",
        ),
        (
            {
                "filter_list": [
                    {
                        "name": "f",
                        "filter": [{"function": "regex", "regex_pattern": "(?<=the answer is )(.*)(?=.)"}],  # case C72
                    }
                ]
            },
            "regex_pattern",
            "loses the last character",
        ),
        ({"num_fewshot": 2}, "num_fewshot", "examples come from 'test', the split that is scored"),
        ({"num_fewshot": 2, "fewshot_split": "test", "training_split": "train"}, "num_fewshot", "come from 'test'"),
    ],
)
def test_advice_on_what_is_done_faithfully_but_hardly_meant(folder, fields, key, message):
    (finding,) = findings(folder, **fields)
    assert message in finding.message
    assert (finding.key, finding.advice) == (key, True)
    assert ": advice: " in str(finding)


@pytest.mark.parametrize(
    "fields",
    [
        {"doc_to_text": "{{q}}\n", "target_delimiter": ""},
        {"doc_to_text": "{{q}}"},
        {"num_fewshot": 2, "validation_split": "validation"},
        {"num_fewshot": 2, "fewshot_config": {"samples": [{"q": 1}]}},
        {"num_fewshot": 0},
        {"num_fewshot": 2, "doc_to_text": "A: ", "metadata": {"accepted_advice": ["num_fewshot", "doc_to_text"]}},
        {"description": "{{d}}"},
        {"output_type": "generate_until", "generation_kwargs": {"until": ["\n", ".\n"]}},
        {"filter_list": [{"name": "f", "filter": [{"function": "regex", "regex_pattern": "(.*?)(?=.)"}]}]},
        {"filter_list": [{"name": "f", "filter": [{"function": "regex", "regex_pattern": r"(\d+)(?=\.)"}]}]},
    ],
)
def test_no_advice_where_nothing_is_amiss(folder, fields):
    assert findings(folder, **fields) == []


def test_only_the_advice_that_a_task_names_is_silenced(folder):
    fields = {"num_fewshot": 2, "doc_to_text": "A: "}
    (finding,) = findings(folder, **fields, metadata={"accepted_advice": ["num_fewshot"]})
    assert finding.key == "doc_to_text"


@pytest.mark.parametrize(
    ("accepted", "message"),
    [
        (["num_fewshots"], "unknown field in metadata.accepted_advice 'num_fewshots'. Did you mean 'num_fewshot'?"),
        ("num_fewshot", "metadata.accepted_advice is 'num_fewshot'; expected a list of fields"),
    ],
)
def test_advice_that_does_not_exist_cannot_be_silenced(folder, accepted, message):
    (finding,) = findings(folder, metadata={"accepted_advice": accepted})
    assert message in finding.message
    assert not finding.advice


@pytest.mark.parametrize(
    ("fields", "key", "message"),
    [
        ({"metric_list": [{"metric": "acc"}]}, "metric_list", "metric 'acc' gives no number for generate_until; use"),
        (
            {"filter_list": [{"name": "f", "filter": [{"function": "regex", "regex_pattern": "("}]}]},
            "filter_list",
            "is not a regular expression",
        ),
    ],
)
def test_the_command_finds_what_does_not_go_together(folder, capsys, fields, key, message):
    folder.yaml("t.yaml", **{"task": "t", **LEAST, "output_type": "generate_until", **fields})
    assert command.main([str(folder.root)]) == 1
    line = next(n for n, text in enumerate((folder.root / "t.yaml").read_text().splitlines(), 1) if key in text)
    said = capsys.readouterr().out
    assert said.startswith(f"{folder.root / 't.yaml'}:{line}: error: ")
    assert message in said


def test_what_a_template_says_is_told_of_the_template_and_once(folder):
    folder.text("_base", "description: Desc.\n")
    for name in "abc":
        folder.yaml(f"{name}.yaml", include="_base", task=name, **LEAST)
    (finding,) = validate.validate_tree(folder.root)
    assert (finding.file, finding.line) == (str(folder.root / "_base"), 1)


def test_broken_files_duplicates_members_and_functions_are_all_told(folder):
    folder.yaml("a.yaml", task="a", **LEAST)
    folder.yaml("b.yaml", task="a", **LEAST)
    folder.yaml("c.yaml", include="nowhere", task="c")
    folder.yaml("d.yaml", include="d.yaml", task="d")
    folder.yaml("g.yaml", group="g", task=["a", "aa", {"num_fewshot": 1}], tsk=1)
    folder.text("e.yaml", "task: e\ndataset_path: d\ntest_split: t\nprocess_docs: !function code.clen\n")
    folder.text("f.yaml", "task: f\ndataset_path: d\ntest_split: t\nprocess_docs: !function absent_module.f\n")
    folder.text("h.yaml", "task: h\ntask: hh\ndataset_path: d\ntest_split: t\n")
    folder.text("code.py", "def clean(dataset): return dataset\n")
    told = {finding.file.rsplit("/", 1)[1]: [] for finding in validate.validate_tree(folder.root)}
    for finding in validate.validate_tree(folder.root):
        assert not finding.advice
        told[finding.file.rsplit("/", 1)[1]].append(finding.message)
    assert "'a' is already defined in" in told["b.yaml"][0]
    assert "there is no file" in told["c.yaml"][0]
    assert "in a loop" in told["d.yaml"][0]
    assert "Did you mean 'clean'" in told["e.yaml"][0]
    assert "there is no file" in told["f.yaml"][0]
    assert "the key 'task' stands there twice" in told["h.yaml"][0]
    joined = " ".join(told["g.yaml"])
    for part in ("task[1]: unknown task 'aa'", "task[2] must be a name or a mapping", "unknown key 'tsk' in group"):
        assert part in joined
    assert set(told) == {"b.yaml", "c.yaml", "d.yaml", "e.yaml", "f.yaml", "g.yaml", "h.yaml"}


def test_one_file_can_be_checked_alone(folder):
    findings(folder, description="Desc.")
    assert len(validate.validate_tree(folder.root / "t.yaml")) == 1


def test_the_shipped_tasks_have_no_errors():
    assert [str(f) for f in validate.validate_tree(library.library_root()) if not f.advice] == []


def test_a_folder_without_task_files_is_an_error(folder):
    with pytest.raises(errors.TaskError, match=r"there is no task file \(\*.yaml\) in the folder"):
        validate.validate_tree(folder.root)


def test_a_group_file_alone_knows_the_tasks_beside_it(folder):
    folder.yaml("a.yaml", task="a", **LEAST)
    group = folder.yaml("g.yaml", group="g", task=["a", "aa"])
    [found] = validate.validate_tree(group, **NAMES)
    assert "task[1]: unknown task 'aa'. Did you mean 'a'" in str(found)


def test_a_key_that_is_no_text_is_one_finding(folder):
    path = folder.text("t.yaml", "task: t\n? [a]\n: 1\n")
    [found] = validate.validate_tree(path, **NAMES)
    assert "found unhashable key" in str(found)


def test_an_unknown_sampler_is_found(folder):
    [found] = findings(folder, doc_to_text="q", doc_to_target="a", fewshot_config={"sampler": "firstn"})
    assert "unknown fewshot_config.sampler 'firstn'. Did you mean 'first_n'" in str(found)


def test_a_link_to_nowhere_is_a_finding(folder):
    (folder.root / "t.yaml").symlink_to(folder.root / "nowhere.yaml")
    [found] = validate.validate_tree(folder.root, **NAMES)
    assert "nowhere.yaml: cannot be read: No such file or directory" in str(found)

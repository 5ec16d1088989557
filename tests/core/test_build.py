"""Mappings become checked records, or errors that name place, key, expectation and the nearest key."""

import pytest

from evaljax.core import build, errors, task

LEAST = {"task": "t", "dataset_path": "d", "test_split": "test"}


def config(**fields):
    return build.task_config({**LEAST, **fields}, source="t.yaml")


def test_what_is_left_out_has_lm_evals_defaults():
    made = config()
    assert made.output_type == "generate_until"
    assert made.generation_kwargs == {"temperature": 0.0, "do_sample": False, "max_gen_toks": 256, "until": ["\n\n"]}
    assert [m.metric for m in made.metric_list] == ["exact_match"]
    assert made.filter_list == (task.TAKE_FIRST,)
    assert (made.target_delimiter, made.fewshot_delimiter, made.repeats, made.num_fewshot) == (" ", "\n\n", 1, None)
    assert made.version == "Yaml"


def test_null_means_the_default():
    made = config(description=None, target_delimiter=None, metric_list=None, fewshot_config=None, fewshot_split=None)
    assert made == config()


def test_a_misspelt_key_names_file_key_and_nearest_key():  # case C107
    with pytest.raises(
        errors.TaskError, match=r"t\.yaml: unknown key 'doc_to_txt' in task\. Did you mean 'doc_to_text'"
    ):
        config(doc_to_txt="x")


def test_the_place_of_a_key_comes_from_the_caller():
    with pytest.raises(errors.TaskError, match=r"^t\.yaml:7: unknown key 'doc_to_txt'"):
        build.task_config({**LEAST, "doc_to_txt": "x"}, source="t.yaml", locate=lambda key: "t.yaml:7")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("num_fewshot", -1, "num_fewshot must be a whole number, 0 or more, found -1"),
        ("num_fewshot", True, "found True of type bool"),
        ("repeats", 0, "repeats must be a whole number, 1 or more"),
        ("dataset_name", False, "quote them"),
        ("output_type", "greedy_until", "output_type must be one of loglikelihood, loglikelihood_rolling"),
        ("process_docs", "utils.f", "process_docs must be !function module.name"),
        ("doc_to_text", ["a"], "doc_to_text must be a column name, a template"),
        ("doc_to_choice", 3, "doc_to_choice must be a column name, a template, a list"),
        ("tag", 3, "tag must be a name or a list of names"),
        ("dataset_kwargs", "x", "dataset_kwargs must be a mapping"),
        ("doc_to_image", "image", "doc_to_image: images are not supported"),
        ("use_prompt", "a:b", "use_prompt: prompt collections are not supported"),
        ("fewshot_config", {"splt": "x"}, r"unknown key 'fewshot_config.splt' .* Did you mean 'split'"),
        ("fewshot_config", {"samples": ["x"]}, "fewshot_config.samples must be a list of documents"),
        ("metric_list", ["acc"], r"metric_list\[0\] must be a mapping with the key `metric`, found 'acc'"),
        (
            "metric_list",
            [{"metric": "acc"}, {"aggregation": "mean"}],
            r"metric_list\[1\] must be a mapping with the key",
        ),
        ("metric_list", [{"metric": "acc", "high_is_better": True}], "Did you mean 'higher_is_better'"),
        (
            "metric_list",
            [{"metric": "acc", "higher_is_better": "yes"}],
            r"metric_list\[0\].higher_is_better must be true",
        ),
        ("filter_list", [{"name": "f"}], r"filter_list\[0\] needs the keys `name` and `filter`"),
        ("filter_list", [{"name": "f", "filters": []}], "Did you mean 'filter'"),
        (
            "filter_list",
            [{"name": "f", "filter": [{"fn": "regex"}]}],
            r"filter_list\[0\].filter\[0\] must be a mapping with",
        ),
        ("filter_list", [{"name": "f", "filter": []}] * 2, "has the name 'f' of an earlier pipeline"),
        ("generation_kwargs", {"max_gen_tok": 3}, "Did you mean 'max_gen_toks'"),
        (
            "generation_kwargs",
            {"num_beams": 4},
            r"generation_kwargs.num_beams must be 1 \(evaljax does not have it\), found 4",
        ),
        ("generation_kwargs", {"temperature": -1}, "temperature must be a number, 0 or more"),
        ("generation_kwargs", {"max_gen_toks": "256"}, "max_gen_toks must be a whole number, 1 or more, found '256'"),
    ],
)
def test_a_value_that_cannot_be_meant_is_refused(field, value, message):
    with pytest.raises(errors.TaskError, match=message):
        config(**{field: value})


def test_a_task_needs_a_name_documents_and_a_split():
    with pytest.raises(errors.TaskError, match="the task has no name"):
        build.task_config({"dataset_path": "d", "test_split": "test"}, source="t.yaml")
    with pytest.raises(errors.TaskError, match="neither test_split nor validation_split"):
        build.task_config({"task": "t", "dataset_path": "d", "training_split": "train"}, source="t.yaml")
    with pytest.raises(errors.TaskError, match="neither dataset_path nor custom_dataset"):
        build.task_config({"task": "t", "test_split": "test"}, source="t.yaml")


def test_fewshot_fields_come_from_the_task_unless_given():
    made = config(
        fewshot_split="train",
        doc_to_text="q",
        doc_to_target="a",
        gen_prefix="P",
        fewshot_config={"doc_to_text": "other"},
    ).fewshot_config
    assert (made.split, made.doc_to_text, made.doc_to_target, made.gen_prefix) == ("train", "other", "a", "P")
    assert config(gen_prefix="P", fewshot_config={"gen_prefix": None}).fewshot_config.gen_prefix is None


def test_other_keys_of_a_metric_are_its_parameters():
    (metric,) = config(
        metric_list=[{"metric": "exact_match", "ignore_case": True, "regexes_to_ignore": [","]}]
    ).metric_list
    assert metric.kwargs == {"ignore_case": True, "regexes_to_ignore": [","]}


def test_until_defaults_to_the_fewshot_delimiter():
    made = config(fewshot_delimiter="\n", generation_kwargs={"max_gen_toks": 8, "temperature": 1})
    assert made.generation_kwargs == {"max_gen_toks": 8, "temperature": 1.0, "until": ["\n"]}


def test_max_new_tokens_is_known():  # case C63
    assert config(generation_kwargs={"max_new_tokens": 7}).generation_kwargs == {"max_new_tokens": 7, "until": ["\n\n"]}


def test_a_task_that_generates_nothing_has_no_generation_kwargs():
    assert config(output_type="multiple_choice").generation_kwargs is None


def test_metadata_that_is_no_mapping_is_kept_under_its_own_key():
    assert config(metadata=[1, 2]).metadata == {"_metadata": [1, 2]}
    assert config(metadata={"version": 3}).version == 3


def test_a_groups_aggregate_is_one_mapping_or_a_list():
    one = build.group_config(
        {"group": "g", "aggregate_metric_list": {"metric": "acc", "filter_list": "none"}},
        source="g.yaml",
        children=("a",),
    )
    assert one.metrics == (task.GroupMetric(metric="acc", filters=("none",), weight_by_size=True),)
    assert one.children == ("a",)
    assert build.group_config({"group": "g"}, source="g.yaml").metrics == ()


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (
            {"metric": "acc", "weight_by_size": "truez"},
            r"aggregate_metric_list\[0\].weight_by_size must be true or false",
        ),
        ({"metric": "acc", "aggregation": "median"}, "aggregation must be 'mean', found 'median'"),
        ({"filter_list": "none"}, r"aggregate_metric_list\[0\] needs the key `metric`"),
        ({"metric": "acc", "weight_by_siz": True}, "Did you mean 'weight_by_size'"),
        ("acc", r"aggregate_metric_list must be a mapping, found 'acc'"),
    ],
)
def test_a_wrong_aggregate_is_refused(entry, message):
    with pytest.raises(errors.TaskError, match=message):
        build.group_config({"group": "g", "aggregate_metric_list": [entry]}, source="g.yaml")

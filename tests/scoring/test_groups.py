import pytest

from evaljax.core import errors, result, task
from evaljax.scoring import groups

ACC = ("acc", "none")


def leaf(name, value, stderr, size, key=ACC):
    config = task.TaskConfig(task=name)
    return result.TaskResult(
        config=config, metrics={key: value}, stderrs={key: stderr}, higher_is_better={}, sample_len=size, num_docs=size,
        num_fewshot=0,
    )  # fmt: skip


def group(name, children, *metrics):
    return task.GroupConfig(group=name, children=tuple(children), metrics=metrics)


def roll_up(configs, *leaves):
    return groups.roll_up({config.group: config for config in configs}, {one.config.task: one for one in leaves})


WEIGHTED = task.GroupMetric(metric="acc")
UNWEIGHTED = task.GroupMetric(metric="acc", weight_by_size=False)


def test_weighted_mean_and_pooled_error():
    found = roll_up([group("g", ["a", "b"], WEIGHTED)], leaf("a", 0.5, 0.1, 10), leaf("b", 0.9, 0.2, 30))["g"]
    assert found.metrics == {ACC: pytest.approx(0.8)}
    assert found.stderrs == {ACC: pytest.approx(0.15325417483795722)}
    assert found.sample_len == 40
    assert found.sample_count == {ACC: 40}


def test_unweighted_mean_and_error():  # case C80
    found = roll_up([group("g", ["a", "b"], UNWEIGHTED)], leaf("a", 0.5, 0.1, 10), leaf("b", 0.9, 0.01, 1000))["g"]
    assert found.metrics == {ACC: pytest.approx(0.7)}
    assert found.stderrs == {ACC: pytest.approx(0.050249, abs=1e-6)}


def test_leaves_are_found_at_any_depth_and_counted_once():
    configs = [
        group("top", ["mid", "a", "low"], WEIGHTED),
        group("mid", ["low", "b"], UNWEIGHTED),
        group("low", ["a"]),
    ]
    found = roll_up(configs, leaf("a", 1.0, 0.1, 100), leaf("b", 0.5, 0.1, 200))
    assert found["top"].metrics == {ACC: pytest.approx(2 / 3)}
    assert found["top"].sample_len == 300
    assert found["mid"].metrics == {ACC: pytest.approx(0.75)}
    assert (found["low"].metrics, found["low"].sample_len) == ({}, 0)


def test_a_leaf_without_standard_error_leaves_the_group_without():
    found = roll_up([group("g", ["a", "b"], WEIGHTED)], leaf("a", 0.5, None, 1), leaf("b", 0.9, 0.2, 30))["g"]
    assert found.stderrs == {ACC: None}


def test_leaves_that_lack_the_metric_are_left_out():
    other = leaf("b", 3.0, 0.2, 30, key=("exact_match", "strict"))
    found = roll_up([group("g", ["a", "b"], WEIGHTED)], leaf("a", 0.5, 0.1, 10), other)["g"]
    assert found.metrics == {ACC: 0.5}
    assert found.sample_count == {ACC: 10}
    assert found.sample_len == 40


def test_filters_are_those_asked_for_or_else_all_in_order():
    config = task.TaskConfig(task="a")
    keys = [("acc", "z"), ("acc", "b"), ("acc_norm", "c")]
    one = result.TaskResult(
        config=config, metrics=dict.fromkeys(keys, 0.5), stderrs=dict.fromkeys(keys), higher_is_better={}, sample_len=4,
        num_docs=4, num_fewshot=0,
    )  # fmt: skip
    assert list(roll_up([group("g", ["a"], WEIGHTED)], one)["g"].metrics) == [("acc", "b"), ("acc", "z")]
    asked = task.GroupMetric(metric="acc", filters=("z", "missing"))
    assert list(roll_up([group("g", ["a"], asked)], one)["g"].metrics) == [("acc", "z")]


def test_a_member_without_result_names_the_nearest():
    with pytest.raises(errors.TaskError, match=r"group 'g' \(inline\): no result for its member 'anatmy'.*'anatomy'"):
        roll_up([group("g", ["anatmy"], WEIGHTED)], leaf("anatomy", 0.5, 0.1, 10))


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        (
            task.GroupMetric(metric="accc"),
            "group 'g' .*aggregate_metric_list: unknown metric 'accc'. Did you mean 'acc'",
        ),
        (task.GroupMetric(metric="acc", filters=("non",)), "unknown filter 'non'. Did you mean 'none'"),
    ],
)
def test_a_metric_or_filter_that_does_not_exist_is_refused_before_anything_runs(metric, message):
    config = group("g", ["a"], metric)
    leaves = {"a": task.TaskConfig(task="a", output_type="multiple_choice")}
    with pytest.raises(errors.TaskError, match=message):
        groups.check_members(config, {"g": config}, leaves)


def test_what_a_members_own_code_calls_its_metrics_is_not_known_before():
    config = group("g", ["a"], task.GroupMetric(metric="mine"))
    leaf_config = task.TaskConfig(task="a", output_type="multiple_choice", process_results=lambda doc, results: {})
    groups.check_members(config, {"g": config}, {"a": leaf_config})


def test_a_registered_metric_that_no_member_has_is_let_through_as_in_lm_eval():
    config = group("g", ["a"], task.GroupMetric(metric="f1"))
    groups.check_members(config, {"g": config}, {"a": task.TaskConfig(task="a", output_type="multiple_choice")})

import pytest

from evaljax.core import errors, task
from evaljax.scoring import metrics


def config(*names, output_type="multiple_choice", **fields):
    entries = tuple(name if isinstance(name, task.MetricConfig) else task.MetricConfig(metric=name) for name in names)
    return task.TaskConfig(task="t", output_type=output_type, metric_list=entries, **fields)


def refuse(message, *names, **fields):
    with pytest.raises(errors.TaskError, match=message):
        metrics.check_config(config(*names, **fields))


def both(references, predictions, k=1):
    return 0.0


def test_the_table_has_lm_evals_nineteen_metrics_with_their_defaults():
    rows = {name: (row.aggregation, row.higher_is_better) for name, row in metrics.METRICS.items()}
    up = ["acc", "acc_norm", "acc_bytes", "acc_mutual_info", "exact_match", "acc_all", "likelihood"]
    assert rows == {
        **dict.fromkeys(up, ("mean", True)),
        "perplexity": ("perplexity", False),
        "word_perplexity": ("weighted_perplexity", False),
        "byte_perplexity": ("weighted_perplexity", False),
        "bits_per_byte": ("bits_per_byte", False),
        "brier_score": ("brier_score", False),
        "f1": ("f1", True),
        "mcc": ("matthews_corrcoef", True),
        "bleu": ("bleu", True),
        "chrf": ("chrf", True),
        "chrf++": ("chrf++", True),
        "ter": ("ter", False),
        "bypass": ("bypass", True),
    }


@pytest.mark.parametrize("output_type", task.OUTPUT_TYPES)
def test_every_output_type_has_its_default_metrics(output_type):
    task_config = config(output_type=output_type)
    metrics.check_config(task_config)
    assert tuple(metrics.resolve(task_config)) == task.DEFAULT_METRICS[output_type]


def test_an_unknown_metric_names_the_nearest():
    refuse(r"task 't' \(inline\): unknown metric 'acc_nrom'. Did you mean 'acc_norm'\?", "acc_nrom")


def test_a_metric_that_does_not_apply_names_those_that_do():
    refuse("'bleu' does not apply to output_type 'multiple_choice'. Those that do: acc, acc_bytes", "bleu")
    refuse("'acc_all' does not apply to output_type 'loglikelihood'", "acc_all", output_type="loglikelihood")
    refuse("does not apply to output_type 'loglikelihood_rolling'", "perplexity", output_type="loglikelihood_rolling")


def test_an_unknown_aggregation_names_the_nearest():
    refuse("unknown aggregation 'meen'. Did you mean 'mean'", task.MetricConfig(metric="acc", aggregation="meen"))


def test_an_aggregation_that_cannot_take_the_values_is_refused():
    refuse(
        "value is one of pairs, but the aggregation 'mean' takes numbers",
        task.MetricConfig(metric="f1", aggregation="mean"),
    )
    refuse(
        "value is one of numbers, but the aggregation 'f1' takes pairs",
        task.MetricConfig(metric="acc", aggregation="f1"),
    )
    metrics.check_config(config(task.MetricConfig(metric="likelihood", aggregation=len)))
    metrics.check_config(config(task.MetricConfig(metric="acc", aggregation=len), output_type="generate_until"))


def test_a_metric_that_gives_no_number_names_those_that_do():
    refuse("metric 'likelihood' gives no number for multiple_choice; use acc, acc_bytes, acc_mutual", "likelihood")
    expected = "'acc' gives no number for generate_until; use bleu, chrf, chrf\\+\\+, exact_match, f1, mcc, ter"
    for entry in ("acc", task.MetricConfig(metric="acc", aggregation="mean")):
        refuse(expected, entry, output_type="generate_until")
    metrics.check_config(config(task.MetricConfig(metric="acc", aggregation="f1"), output_type="generate_until"))


def test_metrics_of_the_evaluate_package_need_a_function_unless_registered():
    refuse(
        "'wer' is one of the `evaluate` package",
        task.MetricConfig(metric="wer", hf_evaluate=True),
        output_type="generate_until",
    )
    entry = task.MetricConfig(metric="exact_match", hf_evaluate=True)
    metrics.check_config(config(entry, output_type="generate_until"))


def test_a_metric_named_twice_is_refused():
    refuse("metric_list names 'acc' twice", "acc", "acc")


def test_with_process_results_names_are_free_but_need_an_aggregation():
    fields = {"process_results": lambda doc, results: {"mine": 1.0}}
    metrics.check_config(config(task.MetricConfig(metric="mine", aggregation="mean"), **fields))
    metrics.check_config(config("bleu", **fields))
    refuse("metric 'mine' has no default aggregation; name one of", "mine", **fields)


def test_a_metric_function_is_for_generated_text_only():
    entry = task.MetricConfig(metric=both, aggregation="mean", kwargs={"k": 2})
    metrics.check_config(config(entry, output_type="generate_until"))
    refuse("metric 'both' is a function; output_type 'multiple_choice' takes registered metrics", entry)


def test_a_metric_function_of_two_other_arguments_is_refused():
    def swapped(refs, preds):
        return 0.0

    entry = task.MetricConfig(metric=swapped, aggregation="mean")
    refuse(r"metric function 'swapped' takes \(refs, preds\); expected", entry, output_type="generate_until")


def test_the_calling_convention_is_read_off_the_signature():
    assert metrics.takes_keywords(both)
    assert metrics.takes_keywords(lambda **kwargs: 0)
    assert not metrics.takes_keywords(lambda items: 0)
    assert not metrics.takes_keywords(lambda items, **kwargs: 0)


def test_a_function_that_is_not_loaded_yet_is_taken_on_trust():
    reference = task.FunctionRef("folder", "utils.my_metric")
    entry = task.MetricConfig(metric=reference, aggregation=task.FunctionRef("folder", "utils.agg"))
    assert list(metrics.resolve(config(entry, output_type="generate_until"))) == ["my_metric"]


def test_parameters_of_exact_match_are_checked():
    def entry(**kwargs):
        return task.MetricConfig(metric="exact_match", kwargs=kwargs)

    message = "metric 'exact_match' has no parameter 'ignore_cases'. Did you mean 'ignore_case'"
    refuse(message, entry(ignore_cases=True), output_type="generate_until")
    refuse("regexes_to_ignore: '\\[' is not a regular", entry(regexes_to_ignore=["["]), output_type="generate_until")
    refuse("regexes_to_ignore is the text ','", entry(regexes_to_ignore=","), output_type="generate_until")


def test_filters_are_checked_before_anything_runs():
    def pipeline(name, **kwargs):
        return task.FilterPipeline(name="p", steps=(task.FilterStep(function=name, kwargs=kwargs),))

    refuse("filter 'p': unknown filter 'regx'. Did you mean 'regex'", "acc", filter_list=(pipeline("regx"),))
    refuse("regex has no parameter 'patern'", "acc", filter_list=(pipeline("regex", patern="a"),))
    refuse("is not a regular expression", "acc", filter_list=(pipeline("regex", regex_pattern="("),))
    refuse("two pipelines of the name 'p'", "acc", filter_list=(pipeline("take_first"), pipeline("lowercase")))


def test_an_unknown_output_type_names_the_nearest():
    refuse(
        "unknown output_type 'multiple_choise'. Did you mean 'multiple_choice'", "acc", output_type="multiple_choise"
    )


def test_a_pipeline_that_leaves_a_list_is_refused_where_one_answer_is_scored():
    lower = task.FilterPipeline(name="low", steps=(task.FilterStep(function="lowercase"),))
    config = task.TaskConfig(task="t", output_type="multiple_choice", filter_list=(lower,))
    with pytest.raises(
        errors.TaskError, match=r"filter 'low' leaves a list of answers, but .* add the step take_first"
    ):
        metrics.check_config(config)
    metrics.check_config(task.TaskConfig(task="t", output_type="generate_until", filter_list=(lower,)))


def test_a_task_without_any_pipeline_would_score_nothing():
    with pytest.raises(errors.TaskError, match="filter_list is empty, so nothing would be scored"):
        metrics.check_config(task.TaskConfig(task="t", filter_list=()))


@pytest.mark.parametrize(
    ("k", "message"), [(3, "take_first_k asks for 3 answers, but repeats is 2"), (0, "k is 0; expected a whole number")]
)
def test_more_answers_than_are_asked_for_are_refused_before_anything_runs(k, message):
    step = task.FilterStep(function="take_first_k", kwargs={"k": k})
    config = task.TaskConfig(task="t", repeats=2, filter_list=(task.FilterPipeline(name="f", steps=(step,)),))
    with pytest.raises(errors.TaskError, match=message):
        metrics.check_config(config)

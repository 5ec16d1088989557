import hashlib
import json
import math

import pytest

from evaljax.core import errors, instance, task
from evaljax.scoring import filters, score

TAKE_FIRST = task.TAKE_FIRST


def example(doc_id, resps, *, target, choices=None, doc=None, kind="loglikelihood", multiple_target=False):
    doc = {"id": doc_id} if doc is None else doc
    arguments = [(f"context {doc_id}", f" {i}") for i in range(len(resps))]
    instances = tuple(
        instance.Instance(kind, doc, arguments[i], i, ("t", doc_id, len(answers)), resps=list(answers))
        for i, answers in enumerate(resps)
    )
    return task.Example(
        doc_id=doc_id, doc=doc, target=target, choices=choices, gold=target, multiple_input=False,
        multiple_target=multiple_target, instances=instances,
    )  # fmt: skip


def filtered(config, examples):
    for pipeline in config.filter_list:
        for one in examples:
            answers = filters.run_pipeline(
                pipeline, [i.resps for i in one.instances], [one.doc] * len(one.instances), where="t"
            )
            for request, answer in zip(one.instances, answers, strict=True):
                request.filtered_resps[pipeline.name] = answer
    return examples


def run(config, examples, **options):
    defaults = {"num_docs": 9, "num_fewshot": 0, "bootstrap_iters": 100, "log_samples": True}
    return score.score_task(config, filtered(config, examples), **{**defaults, **options})


def choices_config(*names, **fields):
    entries = tuple(task.MetricConfig(metric=name) for name in names)
    return task.TaskConfig(task="t", output_type="multiple_choice", metric_list=entries, **fields)


def text_config(*entries, **fields):
    return task.TaskConfig(task="t", output_type="generate_until", metric_list=entries, **fields)


def generated(doc_id, *answers, target, **fields):
    return example(doc_id, [answers], target=target, kind="generate_until", **fields)


def two_choices(doc_id, first, second, gold, choices=("a", "bb")):
    return example(doc_id, [[(first, False)], [(second, True)]], target=gold, choices=choices)


EXACT = task.MetricConfig(metric="exact_match")


def test_multiple_choice_from_answers_to_scores():
    found = run(choices_config("acc_norm", "acc"), [two_choices(0, -1.0, -1.5, 0), two_choices(5, -1.0, -1.5, 1)])
    assert list(found.metrics) == [("acc", "none"), ("acc_norm", "none")]  # lm-eval's order, not the task's
    assert found.metrics == {("acc", "none"): 0.5, ("acc_norm", "none"): 0.5}
    assert found.stderrs["acc", "none"] == pytest.approx(0.5)
    assert found.higher_is_better == {"acc_norm": True, "acc": True}
    assert (found.sample_len, found.num_docs, found.num_fewshot) == (2, 9, 0)
    assert [sample["acc"] for sample in found.samples] == [1.0, 0.0]
    assert [sample["acc_norm"] for sample in found.samples] == [0.0, 1.0]


def test_all_choice_metrics_come_in_lm_evals_order():
    names = ["acc_mutual_info", "brier_score", "exact_match", "acc_bytes", "acc_norm", "mcc", "f1", "acc"]
    doc = example(0, [[(v, False)] for v in (-1.0, -2.0, -3.0, -1.0)], target=0, choices=("a", "b"))
    config = choices_config(*names)
    filtered(config, [doc])
    expected = ["acc", "f1", "mcc", "acc_norm", "acc_bytes", "exact_match", "brier_score", "acc_mutual_info"]
    assert list(score.document_metrics(config, doc, "none")) == expected


def test_loglikelihood_and_rolling():
    config = task.TaskConfig(task="t", output_type="loglikelihood")
    found = run(config, [example(i, [[(v, v > -2)]], target="x") for i, v in enumerate((-1.0, -3.0))])
    assert found.metrics == {("perplexity", "none"): pytest.approx(math.exp(2)), ("acc", "none"): 0.5}
    rolling = task.TaskConfig(task="t", output_type="loglikelihood_rolling")
    found = run(rolling, [example(0, [[-6.0]], target="a b", kind="loglikelihood_rolling")])
    assert found.metrics == {
        ("word_perplexity", "none"): pytest.approx(math.exp(3)),
        ("byte_perplexity", "none"): pytest.approx(math.exp(2)),
        ("bits_per_byte", "none"): pytest.approx(2 / math.log(2)),
    }
    assert set(found.stderrs.values()) == {None}


def test_one_document_has_a_score_and_no_standard_error():  # case C84
    found = run(choices_config("acc"), [two_choices(0, -1.0, -2.0, 0)])
    assert found.metrics == {("acc", "none"): 1.0}
    assert found.stderrs == {("acc", "none"): None}


def test_a_sample_is_lm_evals_record_with_the_annotations_beside_it():
    doc = {"q": "é", "n": 1}
    one = example(4, [[(-1.0, False)], [(-2.0, True)]], target=1, choices=("a", "b"), doc=doc)
    (sample,) = run(choices_config("acc"), [one], annotations={4: {"truncated": True}}).samples
    assert sample == {
        "doc_id": 4,
        "doc": doc,
        "target": 1,
        "arguments": [("context 4", " 0"), ("context 4", " 1")],
        "resps": [[(-1.0, False)], [(-2.0, True)]],
        "filtered_resps": [(-1.0, False), (-2.0, True)],
        "filter": "none",
        "metrics": ["acc"],
        "doc_hash": hashlib.sha256('{\n  "q": "é",\n  "n": 1\n}'.encode()).hexdigest(),
        "prompt_hash": hashlib.sha256(b"context 4").hexdigest(),
        "target_hash": hashlib.sha256(b"1").hexdigest(),
        "acc": 0.0,
        "truncated": True,
    }
    assert run(choices_config("acc"), [one], log_samples=False).samples == ()


def test_samples_are_plain_python_whatever_the_task_gives():
    np = pytest.importorskip("numpy")

    def process(doc, results):
        return {"m": np.float32(0.5), "v": np.array([1, 2]), "b": np.bool_(True), "z": np.array(3)}

    entries = (task.MetricConfig(metric="v", aggregation=lambda values: np.float64(len(values))),)
    config = text_config(*entries, process_results=process)
    found = run(config, [generated(0, "x", target=np.int64(3), doc={"n": np.int64(1), "s": {5}})])
    sample = found.samples[0]
    assert [sample[key] for key in ("m", "v", "b", "z", "target")] == [0.5, [1, 2], True, 3, 3]
    assert {type(value) for value in found.metrics.values()} <= {int, float}
    json.dumps([sample[key] for key in ("m", "v", "b", "z", "target")], allow_nan=False)


def test_a_log_likelihood_that_is_not_finite_names_task_and_document():
    for value in (math.nan, -math.inf):
        with pytest.raises(
            errors.RequestError, match=r"task 't', document 7, request 1: the log-likelihood is (nan|-inf)"
        ):
            run(choices_config("acc"), [two_choices(7, -1.0, value, 0)])


def test_a_label_outside_the_choices_names_task_and_document():
    with pytest.raises(errors.TaskError, match="task 't', document 7: the gold label -1 is outside the 2 choices"):
        run(choices_config("acc"), [two_choices(7, -1.0, -2.0, -1)])


def test_ties_and_equal_choices_are_counted_and_scored_as_in_lm_eval():  # case C29
    docs = [two_choices(0, -1.0, -1.0, 0, ("yes", "yes")), two_choices(1, -1.0, -1.0, 1), two_choices(2, -1.0, -2.0, 0)]
    found = run(choices_config("acc"), docs)
    assert found.counts == {"ties": 2, "duplicate_choices": 1}
    assert [sample["acc"] for sample in found.samples] == [1.0, 0.0, 1.0]


def test_of_unfiltered_repeats_the_first_is_scored_and_all_are_kept():
    found = run(text_config(EXACT, repeats=3), [generated(0, "a", "b", "c", target="a")])
    assert found.metrics == {("exact_match", "none"): 1.0}
    assert found.samples[0]["resps"] == [["a", "b", "c"]]
    assert found.counts["unused_repeats"] == 2


def test_repeats_that_a_filter_looks_at_are_not_unused():
    steps = (task.FilterStep(function="majority_vote"), task.FilterStep(function="take_first"))
    config = text_config(EXACT, repeats=3, filter_list=(task.FilterPipeline(name="maj", steps=steps),))
    found = run(config, [generated(0, "a", "b", "b", target="b")])
    assert found.metrics == {("exact_match", "maj"): 1.0}
    assert "unused_repeats" not in found.counts


def test_failures_to_extract_and_near_misses_are_counted_by_filter():
    def pipeline(name, pattern):
        steps = (
            task.FilterStep(function="regex", kwargs={"regex_pattern": pattern}),
            task.FilterStep(function="take_first"),
        )
        return task.FilterPipeline(name=name, steps=steps)

    config = text_config(EXACT, filter_list=(pipeline("strict", "#### (.*)"), pipeline("loose", r"(\w+)$")))
    docs = [
        generated(0, "#### Paris", target="Paris"),
        generated(1, "paris", target="Paris"),
        generated(2, " ", target="x"),
    ]
    found = run(config, docs)
    assert list(found.metrics.items()) == [
        (("exact_match", "strict"), pytest.approx(1 / 3)),
        (("exact_match", "loose"), pytest.approx(1 / 3)),
    ]
    assert found.counts == {
        "empty_generations": 1,
        "extraction_failures": 3,
        "extraction_failures,strict": 2,
        "extraction_failures,loose": 1,
        "near_misses": 1,
        "near_misses,strict": 0,
        "near_misses,loose": 1,
    }


def test_parameters_of_exact_match_are_used():
    entry = task.MetricConfig(metric="exact_match", kwargs={"ignore_case": True, "regexes_to_ignore": [","]})
    assert run(text_config(entry), [generated(0, "1,000 A", target="1000 a")]).metrics == {("exact_match", "none"): 1.0}


def test_corpus_metrics_take_gold_and_answer_pairs():
    entries = (task.MetricConfig(metric="bleu"), EXACT)
    docs = [generated(i, "the cat sat on the mat", target="the cat sat on the mat") for i in range(2)]
    found = run(text_config(*entries), docs)
    assert found.metrics["bleu", "none"] == pytest.approx(100.0)
    assert found.samples[0]["bleu"] == ["the cat sat on the mat"] * 2
    assert found.higher_is_better == {"bleu": True, "exact_match": True}


def test_a_metric_function_may_give_several_values_that_share_its_aggregation():
    def pass_at(references, predictions, k):
        return {f"pass@{i}": float(len(predictions[0]) >= i) for i in k}

    entry = task.MetricConfig(metric=pass_at, aggregation="median", higher_is_better=True, kwargs={"k": [1, 3]})
    found = run(text_config(entry), [generated(0, "ab", target="x"), generated(1, "abc", target="x")])
    assert found.metrics == {("pass@1", "none"): 1.0, ("pass@3", "none"): 1.0}  # upper median of 0, 1
    assert found.higher_is_better == {"pass_at": True, "pass@1": True, "pass@3": True}


def test_a_metric_function_of_one_list_gets_gold_and_answer():
    def same(items):
        gold, answer = items
        return float(gold == answer)

    entry = task.MetricConfig(metric=same, aggregation="mean")
    assert run(text_config(entry), [generated(0, "7", target=7)]).metrics == {("same", "none"): 1.0}


def test_with_several_right_answers_a_metric_function_is_asked_about_each():
    def starts(references, predictions):
        return predictions[0].startswith(references[0])

    entry = task.MetricConfig(metric=starts, aggregation="mean")
    docs = [
        generated(0, "abc", target=["x", "ab"], multiple_target=True),
        generated(1, "abc", target=["x"], multiple_target=True),
    ]
    found = run(text_config(EXACT, entry), docs)
    assert found.metrics == {("exact_match", "none"): 0.0, ("starts", "none"): 0.5}


def test_a_type_error_inside_a_metric_function_is_not_hidden():
    def broken(references, predictions):
        return references + 1

    entry = task.MetricConfig(metric=broken, aggregation="mean")
    with pytest.raises(
        errors.TaskError, match=r"document 0: metric 'broken' failed: TypeError\('can only concatenate list"
    ) as caught:
        run(text_config(entry), [generated(0, "a", target="a")])
    assert isinstance(caught.value.__cause__, TypeError)


def test_code_of_the_task_that_fails_names_task_and_document():
    def process(doc, results):
        return {"mine": 1 / doc["id"]}

    config = text_config(process_results=process)
    with pytest.raises(errors.TaskError, match=r"document 0: process_results .*process failed: ZeroDivisionError"):
        run(config, [generated(0, "a", target="a")])
    entry = task.MetricConfig(metric="exact_match", aggregation=lambda values: values[9])
    with pytest.raises(errors.TaskError, match=r"metric 'exact_match', .*: its aggregation failed: IndexError"):
        run(text_config(entry), [generated(0, "a", target="a")])


def test_process_results_replaces_the_metrics_and_gets_document_and_answers():
    calls = []

    def process(doc, results):
        calls.append((doc, results))
        return {"mine": 2.0, "extra": 4} if doc["id"] == 0 else {"mine": 3.0}

    entry = task.MetricConfig(metric="mine", aggregation="median", higher_is_better=False)
    config = task.TaskConfig(task="t", output_type="multiple_choice", metric_list=(entry,), process_results=process)
    found = run(config, [two_choices(0, -1.0, -2.0, 0), two_choices(1, -1.0, -2.0, 0)])
    assert calls[0] == ({"id": 0}, [(-1.0, False), (-2.0, True)])
    assert found.metrics == {("mine", "none"): 3.0, ("extra", "none"): 4.0}
    assert found.higher_is_better == {"mine": False}
    assert found.sample_len == 2


def test_process_results_gives_a_mapping_or_is_refused():
    config = text_config(process_results=lambda doc, results: 0.5)
    with pytest.raises(errors.TaskError, match=r"process_results gave float '0\.5'; expected a mapping"):
        run(config, [generated(0, "a", target="a")])


def test_values_that_cannot_be_averaged_name_task_metric_and_filter():
    config = text_config(process_results=lambda doc, results: {"mine": "good"})
    with pytest.raises(
        errors.TaskError, match="task 't': metric 'mine', filter 'none': a document's value is 'good'; mean"
    ):
        run(config, [generated(0, "a", target="a")])


def test_functions_that_are_not_loaded_are_refused():
    reference = task.FunctionRef("folder", "mod.fn")
    docs = [generated(0, "a", target="a")]
    with pytest.raises(errors.TaskError, match=r"process_results !function folder/mod\.fn has not been loaded"):
        run(text_config(process_results=reference), docs)
    with pytest.raises(errors.TaskError, match=r"metric !function folder/mod\.fn has not been loaded"):
        run(text_config(task.MetricConfig(metric=reference, aggregation="mean")), docs)
    with pytest.raises(errors.TaskError, match=r"its aggregation !function folder/mod\.fn has not been loaded"):
        run(text_config(task.MetricConfig(metric="exact_match", aggregation=reference)), docs)


def test_bypass_marks_a_task_as_not_scored():
    found = run(text_config(task.MetricConfig(metric="bypass")), [generated(0, "a", target=3)])
    assert found.metrics == {("bypass", "none"): 999}


def test_where_nonfinite_is_allowed_it_is_counted_and_nan_is_never_the_best_choice():
    examples = [two_choices(0, math.nan, -1.0, 1), two_choices(1, -1.0, -math.inf, 0), two_choices(2, -1.0, -2.0, 1)]
    found = run(choices_config("acc"), examples, allow_nonfinite=True)
    assert found.metrics["acc", "none"] == pytest.approx(2 / 3)
    assert found.counts["nonfinite"] == 2
    assert "nonfinite" not in run(choices_config("acc"), examples[2:], allow_nonfinite=True).counts

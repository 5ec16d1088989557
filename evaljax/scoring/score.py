"""Scores: from answered documents to one task's result.

document -> values by metric (choice, logprob, text, or the task's process_results)
values of all documents -> one score (aggregate) and its standard error (stderr), for each (metric, filter)
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from evaljax.core import errors, result, task
from evaljax.scoring import aggregate, choice, health, logprob, metrics, record, stderr, text

NO_ANNOTATIONS: Mapping[int, Mapping[str, Any]] = {}


def document_metrics(config: task.TaskConfig, example: task.Example, filter_name: str) -> dict[str, Any]:
    """One document's value by metric, from its answers as the filter left them.

    A value is a number, or what the metric's aggregation needs, such as (gold, predicted).
    """
    return _values(config, metrics.resolve(config), example, filter_name)[0]


def score_task(
    config: task.TaskConfig,
    examples: Sequence[task.Example],
    *,
    num_docs: int,
    num_fewshot: int,
    bootstrap_iters: int,
    log_samples: bool,
    annotations: Mapping[int, Mapping[str, Any]] = NO_ANNOTATIONS,
    allow_nonfinite: bool = False,
) -> result.TaskResult:
    """The task's scores, standard errors, samples and health counts, by (metric, filter) in lm-eval's order.

    `annotations`: more keys for the samples of a document, by doc_id. A value that `process_results` gives without an
    entry in `metric_list` is averaged, as in lm-eval. A log-likelihood that is not finite is an error, or with
    `allow_nonfinite` makes its document count as `nonfinite`; a choice of log-likelihood NaN is never the best one.
    A document that was skipped has samples, without values, and no part in anything else.
    """
    scored = metrics.resolve(config)
    answered = [example for example in examples if not example.skipped]
    nonfinite = sum(not _is_finite(config, example, allowed=allow_nonfinite) for example in answered)
    columns: dict[tuple[str, str], list[Any]] = {}
    samples: list[dict[str, Any]] = []
    for pipeline in config.filter_list:
        for example in examples:
            values, sources = ({}, {}) if example.skipped else _values(config, scored, example, pipeline.name)
            for name, source in sources.items():
                scored.setdefault(name, scored[source])
            for name, value in values.items():
                columns.setdefault((name, pipeline.name), []).append(value)
            if log_samples:
                samples.append(record.sample(example, pipeline.name, values, annotations.get(example.doc_id, {})))
    scores, errors_by_key = _aggregate(config, columns, scored, bootstrap_iters)
    return result.TaskResult(
        config=config,
        metrics=scores,
        stderrs=errors_by_key,
        higher_is_better={name: m.higher_is_better for name, m in scored.items() if m.higher_is_better is not None},
        sample_len=max((len(column) for column in columns.values()), default=0),
        num_docs=num_docs,
        num_fewshot=num_fewshot,
        samples=tuple(samples),
        counts={**health.counts(config, answered, scored), **({"nonfinite": nonfinite} if nonfinite else {})},
    )


def _aggregate(
    config: task.TaskConfig,
    columns: Mapping[tuple[str, str], Sequence[Any]],
    scored: Mapping[str, metrics.Scored],
    bootstrap_iters: int,
) -> tuple[dict[tuple[str, str], float], dict[tuple[str, str], float | None]]:
    """Scores and standard errors by (metric, filter)."""
    scores, deviations = {}, {}
    for (name, filter_name), column in columns.items():
        where = f"task {config.task!r}: metric {name!r}, filter {filter_name!r}"
        aggregation = scored[name].aggregation if name in scored else "mean"
        if isinstance(aggregation, task.FunctionRef):
            raise errors.TaskError(f"{where}: its aggregation !function {aggregation} has not been loaded.")
        scores[name, filter_name] = aggregate.apply(aggregation, column, where=where)
        deviations[name, filter_name] = stderr.standard_error(
            column, aggregation, bootstrap_iters=bootstrap_iters, metric=name
        )
    return scores, deviations


def _values(
    config: task.TaskConfig, scored: Mapping[str, metrics.Scored], example: task.Example, filter_name: str
) -> tuple[dict[str, Any], dict[str, str]]:
    """One document's value by metric, and for a name that a metric function made up itself, that metric's name."""
    where = f"task {config.task!r}, document {example.doc_id}"
    results = [instance.filtered_resps[filter_name] for instance in example.instances]
    if config.process_results is not None:
        return _own_values(config, example, results, where=where), {}
    if config.output_type == "generate_until":
        return _text_values(config, scored, example, results[0], where=where)
    evidence = _evidence(config, example, results, where=where)
    rows = [(name, row) for name, row in metrics.METRICS.items() if name in scored]
    return {name: row.values[config.output_type](evidence) for name, row in rows}, {}


def _evidence(
    config: task.TaskConfig, example: task.Example, results: Sequence[Any], *, where: str
) -> choice.Evidence | logprob.Continuation | logprob.Text:
    if config.output_type == "multiple_choice":
        return choice.evidence(example, results, where=where)
    if config.output_type == "loglikelihood":
        return logprob.continuation(results, where=where)
    return logprob.text(example.target, results, where=where)


def _own_values(config: task.TaskConfig, example: task.Example, results: list[Any], *, where: str) -> dict[str, Any]:
    """What the task's process_results(doc, results) gives."""
    function = config.process_results
    if function is None or isinstance(function, task.FunctionRef):
        raise errors.TaskError(f"{where}: process_results !function {function} has not been loaded.")
    try:
        values = function(example.doc, results)
    except Exception as error:  # foreign code: the reader must learn which document it failed on
        raise errors.TaskError(f"{where}: process_results {_name(function)} failed: {error!r}.") from error
    if not isinstance(values, Mapping) or not all(isinstance(name, str) for name in values):
        raise errors.TaskError(
            f"{where}: process_results gave {type(values).__name__} {str(values)[:80]!r}; "
            "expected a mapping from metric names to values."
        )
    return dict(values)


def _text_values(
    config: task.TaskConfig, scored: Mapping[str, metrics.Scored], example: task.Example, answer: Any, *, where: str
) -> tuple[dict[str, Any], dict[str, str]]:
    """The values of one generated text; a function that gives several values by name adds them all."""
    cast = "bypass" not in scored
    gold = text.gold_answer(example, answer, has_choices=config.doc_to_choice is not None, cast=cast, where=where)
    several = text.has_several(example, gold)
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for name, metric in scored.items():
        if metric.function is not None:
            value = _call(metric, gold, answer, several=several, where=where)
        elif name == "exact_match":
            value = text.match_value(gold, answer, several=several, kwargs=dict(metric.kwargs))
        else:
            value = metrics.METRICS[name].values["generate_until"](gold, answer)
        if isinstance(value, Mapping):
            values.update(value)
            sources.update(dict.fromkeys(value, name))
        else:
            values[name] = value
    return values, sources


def _call(metric: metrics.Scored, gold: Any, answer: Any, *, several: bool, where: str) -> Any:
    """What the task's metric function gives; with several right answers 1.0 if it is truthy for any of them."""
    function = metric.function
    if function is None or isinstance(function, task.FunctionRef):
        raise errors.TaskError(f"{where}: metric !function {function} has not been loaded.")
    try:
        if not several:
            return _call_once(function, metric.kwargs, gold, answer)
        values = [_call_once(function, metric.kwargs, one, answer) for one in gold]
    except Exception as error:  # foreign code
        raise errors.TaskError(f"{where}: metric {metric.name!r} failed: {error!r}.") from error
    for value in values:
        if isinstance(value, Mapping) and metric.name not in value:
            raise errors.TaskError(
                f"{where}: metric {metric.name!r} gave {list(value)}, without {metric.name!r} among them."
            )
    return 1.0 if any(value[metric.name] if isinstance(value, Mapping) else value for value in values) else 0.0


def _call_once(function: Callable[..., Any], kwargs: Mapping[str, Any], gold: Any, answer: Any) -> Any:
    if metrics.takes_keywords(function):
        return function(references=[gold], predictions=[answer], **kwargs)
    return function([gold, answer])


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__qualname__", function))


def _is_finite(config: task.TaskConfig, example: task.Example, *, allowed: bool) -> bool:
    """Whether the document's log-likelihoods are finite numbers; RequestError where one is not and may not be.

    lm-eval scores NaN as if it were a number.
    """
    for instance in example.instances:
        if instance.request_type == "generate_until":
            continue
        for answer in instance.resps:
            value = answer[0] if isinstance(answer, tuple | list) else answer
            if not math.isfinite(value):
                if allowed:
                    return False
                raise errors.RequestError(
                    f"task {config.task!r}, document {example.doc_id}, request {instance.idx}: "
                    f"the log-likelihood is {value}; expected a finite number."
                )
    return True

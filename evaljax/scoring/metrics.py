"""Metrics: what each is called, how it is aggregated, and which output types it applies to."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from evaljax.core import errors, lookup, task
from evaljax.scoring import aggregate, choice, filters, logprob, text

Function = Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class Metric:
    """One row of `METRICS`.

    `values`: by output type, what gives a document's value from its evidence (`choice.Evidence`,
    `logprob.Continuation`, `logprob.Text`; for generated text from gold and result). A row without any names a metric
    that only tasks with their own `process_results` produce.
    """

    aggregation: str
    higher_is_better: bool
    values: Mapping[str, Function]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scored:
    """One entry of a task's `metric_list`, its defaults filled in. `function`: the task's own, else None."""

    name: str
    function: Function | task.FunctionRef | None
    aggregation: str | Function | task.FunctionRef
    higher_is_better: bool | None
    kwargs: Mapping[str, Any]


_LOGLIKELIHOOD, _ROLLING, _CHOICE, _TEXT = task.OUTPUT_TYPES

# In the order in which lm-eval lists a document's values.
METRICS: Mapping[str, Metric] = {
    "perplexity": Metric("perplexity", False, {_LOGLIKELIHOOD: logprob.logprob}),
    "acc": Metric("mean", True, {_LOGLIKELIHOOD: logprob.acc, _CHOICE: choice.acc, _TEXT: text.pair}),
    "f1": Metric("f1", True, {_CHOICE: choice.label_pair, _TEXT: text.pair}),
    "mcc": Metric("matthews_corrcoef", True, {_CHOICE: choice.label_pair, _TEXT: text.pair}),
    "acc_norm": Metric("mean", True, {_CHOICE: choice.acc_norm}),
    "acc_bytes": Metric("mean", True, {_CHOICE: choice.acc_bytes}),
    "exact_match": Metric("mean", True, {_CHOICE: choice.exact_match, _TEXT: text.match_value}),
    "brier_score": Metric("brier_score", False, {_CHOICE: choice.probabilities}),
    "likelihood": Metric("mean", True, {_CHOICE: choice.likelihoods}),
    "acc_mutual_info": Metric("mean", True, {_CHOICE: choice.acc_mutual_info}),
    "word_perplexity": Metric("weighted_perplexity", False, {_ROLLING: logprob.per_word}),
    "byte_perplexity": Metric("weighted_perplexity", False, {_ROLLING: logprob.per_byte}),
    "bits_per_byte": Metric("bits_per_byte", False, {_ROLLING: logprob.per_byte}),
    "acc_all": Metric("mean", True, {}),
    "bleu": Metric("bleu", True, {_TEXT: text.pair}),
    "chrf": Metric("chrf", True, {_TEXT: text.pair}),
    "chrf++": Metric("chrf++", True, {_TEXT: text.pair}),
    "ter": Metric("ter", False, {_TEXT: text.pair}),
    "bypass": Metric("bypass", True, {_LOGLIKELIHOOD: text.nothing, _CHOICE: text.nothing, _TEXT: text.nothing}),
}
_PAIRS = (choice.label_pair, choice.probabilities, choice.likelihoods, logprob.per_word, logprob.per_byte, text.pair)


def resolve(config: task.TaskConfig) -> dict[str, Scored]:
    """The task's metrics by name, in its order (its output type's defaults where it names none), or TaskError."""
    entries = config.metric_list or tuple(
        task.MetricConfig(metric=name) for name in task.DEFAULT_METRICS[config.output_type]
    )
    scored: dict[str, Scored] = {}
    for entry in entries:
        metric = _resolve_entry(entry, config)
        if metric.name in scored:
            raise errors.TaskError(f"{_where(config)}: metric_list names {metric.name!r} twice.")
        scored[metric.name] = metric
    return scored


def check_config(config: task.TaskConfig) -> None:
    """Nothing, or TaskError: a metric, aggregation or filter of the task is unknown, or does not fit its output type.

    Functions that are not loaded yet (`!function`) are taken on trust.
    """
    lookup.check(
        task.OUTPUT_TYPES, config.output_type, what="output_type", where=_where(config), error=errors.TaskError
    )
    resolve(config)
    names = [pipeline.name for pipeline in config.filter_list]
    for name in names:
        if names.count(name) > 1:
            raise errors.TaskError(f"{_where(config)}: filter_list has two pipelines of the name {name!r}.")
    if not names:
        raise errors.TaskError(f"{_where(config)}: filter_list is empty, so nothing would be scored; leave it out.")
    for pipeline in config.filter_list:
        filters.check_pipeline(pipeline, where=_where(config))
        first = pipeline.steps[0] if pipeline.steps else None
        if first is not None and first.function == "take_first_k" and first.kwargs["k"] > config.repeats:
            raise errors.TaskError(
                f"{_where(config)}: filter {pipeline.name!r}: take_first_k asks for {first.kwargs['k']!r} answers, "
                f"but repeats is {config.repeats}."
            )
        if config.output_type != _TEXT and config.process_results is None and not filters.may_leave_one(pipeline):
            raise errors.TaskError(
                f"{_where(config)}: filter {pipeline.name!r} leaves a list of answers, but output_type "
                f"{config.output_type!r} scores one: add the step take_first."
            )


def names_are_open(config: task.TaskConfig) -> bool:
    """Whether the task's own code names its values, so that they are not known before it runs."""
    return config.process_results is not None or any(not isinstance(m.metric, str) for m in config.metric_list)


def takes_keywords(function: Function) -> bool:
    """Whether a task's metric function takes references= and predictions=; else it takes one list [gold, result]."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False
    if {"references", "predictions"} <= set(parameters):
        return True
    return any(p.kind is p.VAR_KEYWORD for p in parameters.values()) and not _required_positional(parameters)


def _resolve_entry(entry: task.MetricConfig, config: task.TaskConfig) -> Scored:
    name = entry.metric if isinstance(entry.metric, str) else function_name(entry.metric)
    where = f"{_where(config)}: metric {name!r}"
    function = None if isinstance(entry.metric, str) else entry.metric
    if config.process_results is None:
        _check_value(name, function, entry, config)
    row = METRICS.get(name)
    aggregation = entry.aggregation
    if aggregation is None:
        if row is None:
            raise errors.TaskError(
                f"{where} has no default aggregation; name one of {lookup.listing(aggregate.AGGREGATIONS)}."
            )
        aggregation = row.aggregation
    if isinstance(aggregation, str):
        lookup.check(aggregate.AGGREGATIONS, aggregation, what="aggregation", where=where, error=errors.TaskError)
        if config.process_results is None and function is None and row is not None:
            if entry.aggregation is None or aggregation == row.aggregation:
                _check_number(row.values[config.output_type], row, config.output_type, where=where)
            _check_aggregation(row.values[config.output_type], aggregation, where=where)
    higher = entry.higher_is_better
    if higher is None and row is not None:
        higher = row.higher_is_better
    return Scored(
        name=name, function=function, aggregation=aggregation, higher_is_better=higher, kwargs=dict(entry.kwargs)
    )


def _check_value(
    name: str, function: Function | task.FunctionRef | None, entry: task.MetricConfig, config: task.TaskConfig
) -> None:
    """Nothing, or TaskError where the metric gives no value for a document of this output type."""
    where = _where(config)
    if function is not None:
        if config.output_type != _TEXT:
            raise errors.TaskError(
                f"{where}: metric {name!r} is a function; output_type {config.output_type!r} "
                "takes registered metrics or process_results."
            )
        if not isinstance(function, task.FunctionRef):
            _check_function(name, function, where=where)
        return
    if name not in METRICS and entry.hf_evaluate:
        raise errors.TaskError(
            f"{where}: metric {name!r} is one of the `evaluate` package, which is not used here; "
            f"give a function (`!function`) that computes it.{lookup.nearest(name, METRICS)}"
        )
    row = lookup.find(METRICS, name, what="metric", where=where, error=errors.TaskError)
    if config.output_type not in row.values:
        fitting = [known for known, other in METRICS.items() if config.output_type in other.values]
        raise errors.TaskError(
            f"{where}: metric {name!r} does not apply to output_type {config.output_type!r}. "
            f"Those that do: {lookup.listing(fitting)}."
        )
    if row.values[config.output_type] is text.match_value:
        _check_match_kwargs(entry.kwargs, where=f"{where}: metric {name!r}")


def _check_number(value: Function, row: Metric, output_type: str, *, where: str) -> None:
    """Nothing, or TaskError where the metric's own aggregation takes numbers and a document's value is none."""
    if value in _PAIRS and aggregate.AGGREGATIONS[row.aggregation].takes_pairs is False:
        numbers = [
            name
            for name, other in METRICS.items()
            if other.values.get(output_type, text.nothing) is not text.nothing
            and (other.values[output_type] in _PAIRS) == bool(aggregate.AGGREGATIONS[other.aggregation].takes_pairs)
        ]
        raise errors.TaskError(
            f"{where} gives no number for {output_type}; use {lookup.listing(numbers)}, "
            "or give it an aggregation of your own (!function) that takes pairs."
        )


def _check_aggregation(value: Function, aggregation: str, *, where: str) -> None:
    takes_pairs = aggregate.AGGREGATIONS[aggregation].takes_pairs
    if value is not text.nothing and takes_pairs is not None and takes_pairs != (value in _PAIRS):
        found, wanted = ("pairs", "numbers") if value in _PAIRS else ("numbers", "pairs")
        fitting = [name for name, row in aggregate.AGGREGATIONS.items() if row.takes_pairs != takes_pairs]
        raise errors.TaskError(
            f"{where}: a document's value is one of {found}, but the aggregation {aggregation!r} takes {wanted}. "
            f"Use one of {lookup.listing(fitting)}, or a function."
        )


def _check_function(name: str, function: Function, *, where: str) -> None:
    """Nothing, or TaskError where a metric function can be called in neither of the two ways."""
    if takes_keywords(function):
        return
    try:
        required = _required_positional(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return
    if len(required) > 1:
        raise errors.TaskError(
            f"{where}: metric function {name!r} takes ({', '.join(required)}); "
            "expected (references, predictions) by name, or one list [gold, prediction]."
        )


def _check_match_kwargs(kwargs: Mapping[str, Any], *, where: str) -> None:
    known = [p.name for p in inspect.signature(text.exact_match).parameters.values() if p.kind is p.KEYWORD_ONLY]
    for key in kwargs:
        if key not in known:
            raise errors.TaskError(
                f"{where} has no parameter {key!r}.{lookup.nearest(key, known)} Known: {lookup.listing(known)}."
            )
    patterns = kwargs.get("regexes_to_ignore") or ()
    if isinstance(patterns, str):
        raise errors.TaskError(f"{where}: regexes_to_ignore is the text {patterns!r}; expected a list of expressions.")
    for pattern in patterns:
        filters.check_pattern(pattern, where=f"{where}: regexes_to_ignore")


def _required_positional(parameters: Mapping[str, inspect.Parameter]) -> Sequence[str]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in parameters.values() if p.kind in kinds and p.default is p.empty]


def function_name(function: Function | task.FunctionRef) -> str:
    """The name by which a function appears among the results."""
    if isinstance(function, task.FunctionRef):
        return function.name.rpartition(".")[2]
    return str(getattr(function, "__name__", type(function).__name__))


def _where(config: task.TaskConfig) -> str:
    return f"task {config.task!r} ({config.source})"

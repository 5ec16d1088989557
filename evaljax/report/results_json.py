"""An evaluation's outcome in lm-eval's result schema. The only module that knows that JSON.

Differences from lm-eval, on purpose: a standard error that is not defined is None (lm-eval: the string "N/A"), and a
value that is not finite is None (lm-eval: the literal NaN, which is not JSON). Extra keys: `health` (counts per task).
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from evaljax.core import result, task
from evaljax.report import plain


def results_dict(outcome: result.EvalResult, *, samples: bool = True) -> dict[str, Any]:
    """`outcome` as lm-eval's result dictionary; every value is plain (see `plain.plain`)."""
    order = list(tree(outcome))
    names = [name for name, _ in order]
    rows = {name: _scores(outcome, name) for name in names}
    out: dict[str, Any] = {"results": rows}
    groups = {name: rows[name] for name in names if name in outcome.groups and outcome.groups[name].metrics}
    if groups:
        out["groups"] = groups
    out["group_subtasks"] = {name: list(group.config.children) for name, group in outcome.groups.items()}
    out["configs"] = {name: config_dict(outcome.tasks[name].config) for name in sorted(outcome.tasks)}
    out["versions"] = {name: version(outcome, name) for name in sorted(names)}
    out["n-shot"] = {name: shots for name in sorted(names) if (shots := num_fewshot(outcome, name)) is not None}
    out["higher_is_better"] = {name: higher_is_better(outcome, name) for name in sorted(names)}
    out["n-samples"] = {
        name: {"original": item.num_docs, "effective": item.sample_len} for name, item in outcome.tasks.items()
    }
    out["health"] = {name: dict(item.counts) for name, item in outcome.tasks.items()}
    out.update(outcome.facts)
    if samples:
        out["samples"] = {name: list(item.samples) for name, item in outcome.tasks.items()}
    return plain.plain(out)


def tree(outcome: result.EvalResult) -> Iterator[tuple[str, int]]:
    """(name, depth) of every group and task, parents before children; a task in no group has depth 0.

    A name that several groups contain comes once, under the first of them.
    """
    inside = {child for group in outcome.groups.values() for child in group.config.children}
    seen: set[str] = set()

    def walk(name: str, depth: int) -> Iterator[tuple[str, int]]:
        if name in seen:
            return
        seen.add(name)
        yield name, depth
        if name in outcome.groups:
            for child in sorted(outcome.groups[name].config.children):
                yield from walk(child, depth + 1)

    for name in [*outcome.groups, *outcome.tasks]:
        if name not in inside:
            yield from walk(name, 0)


def alias(outcome: result.EvalResult, name: str) -> str:
    """The display name of a task or group."""
    if name in outcome.groups:
        return outcome.groups[name].config.group_alias or name
    return outcome.tasks[name].config.task_alias or name


def version(outcome: result.EvalResult, name: str) -> Any:
    """A task's version as its file gives it; a group's as text, "N/A" where it has none (lm-eval's way)."""
    if name in outcome.groups:
        found = outcome.groups[name].config.metadata.get("version")
        return "N/A" if found is None else str(found)
    return outcome.tasks[name].config.version


def num_fewshot(outcome: result.EvalResult, name: str) -> int | None:
    """Shots of a task; of a group where all its leaves agree, else None."""
    if name in outcome.tasks:
        return outcome.tasks[name].num_fewshot
    shots = {num_fewshot(outcome, child) for child in outcome.groups[name].config.children}
    return shots.pop() if len(shots) == 1 else None


def higher_is_better(outcome: result.EvalResult, name: str) -> dict[str, bool | None]:
    """By metric; of a group the union over its leaves, None where they disagree."""
    if name in outcome.tasks:
        return dict(outcome.tasks[name].higher_is_better)
    merged: dict[str, bool | None] = {}
    for child in outcome.groups[name].config.children:
        for metric, value in higher_is_better(outcome, child).items():
            merged[metric] = value if merged.get(metric, value) == value else None
    return merged


def config_dict(config: task.TaskConfig) -> dict[str, Any]:
    """A task's configuration without the fields that are not set, as lm-eval dumps it."""
    fields = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    fields["fewshot_config"] = _set_fields(config.fewshot_config)
    fields["metric_list"] = [_metric_dict(metric) for metric in config.metric_list]
    fields["filter_list"] = [
        {"name": pipeline.name, "filter": [{"function": step.function, **step.kwargs} for step in pipeline.steps]}
        for pipeline in config.filter_list
    ]
    source = fields.pop("source")
    fields["metadata"] = {**config.metadata, "config_source": source}
    return {key: plain.plain(value) for key, value in fields.items() if value is not None and value != ()}


def _set_fields(record: Any) -> dict[str, Any]:
    values = {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}
    return {key: value for key, value in values.items() if value is not None}


def _metric_dict(metric: task.MetricConfig) -> dict[str, Any]:
    values = _set_fields(metric)
    kwargs = values.pop("kwargs")
    if not values["hf_evaluate"]:
        del values["hf_evaluate"]
    return {**values, **kwargs}


def _scores(outcome: result.EvalResult, name: str) -> dict[str, Any]:
    row: dict[str, Any] = {"name": name, "alias": alias(outcome, name)}
    if name in outcome.groups:
        group = outcome.groups[name]
        if not group.metrics:
            return row
        row["sample_len"] = group.sample_len
        row["sample_count"] = {_key(*key): count for key, count in group.sample_count.items()}
        return row | _metric_columns(group.metrics, group.stderrs)
    item = outcome.tasks[name]
    row["sample_len"] = item.sample_len
    return row | _metric_columns(item.metrics, item.stderrs)


def _metric_columns(metrics: result.Scores, stderrs: Mapping[tuple[str, str], float | None]) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    for (metric, pipeline), value in metrics.items():
        columns[_key(metric, pipeline)] = value
        columns[_key(f"{metric}_stderr", pipeline)] = stderrs.get((metric, pipeline))
    return columns


def _key(metric: str, pipeline: str) -> str:
    return f"{metric},{pipeline}"

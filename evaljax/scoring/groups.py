"""Groups: one score from the scores of many tasks."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from evaljax.core import errors, lookup, result, task
from evaljax.scoring import metrics


def roll_up(
    groups: Mapping[str, task.GroupConfig], results: Mapping[str, result.TaskResult]
) -> dict[str, result.GroupResult]:
    """The score of every group, always from its leaf tasks, each counted once however many ways lead to it.

    Tasks that lack a metric or filter are left out of its mean; `sample_count` has the documents of those that count.
    """
    return {name: _roll_up_one(config, _leaves(name, groups, results), results) for name, config in groups.items()}


def check_members(
    config: task.GroupConfig, groups: Mapping[str, task.GroupConfig], tasks: Mapping[str, task.TaskConfig]
) -> None:
    """Nothing, or TaskError where the group asks for a metric or a filter that does not exist.

    What a task's own code may call its metrics is not known before it runs. A registered metric that no member has
    leaves the group without a score, as in lm-eval, some of whose groups are written so.
    """
    leaves = [tasks[name] for name in _leaves(config.group, groups, tasks)]
    filters = {pipeline.name for leaf in leaves for pipeline in leaf.filter_list}
    known = {*metrics.METRICS, *(name for leaf in leaves for name in metrics.resolve(leaf))}
    open_ended = any(metrics.names_are_open(leaf) for leaf in leaves)
    for metric in config.metrics:
        where = f"group {config.group!r} ({config.source}): aggregate_metric_list"
        if not open_ended:
            lookup.check(known, metric.metric, what="metric", where=where, error=errors.TaskError)
        for name in metric.filters or ():
            lookup.check(filters, name, what="filter", where=where, error=errors.TaskError)


def weighted_mean(values: Sequence[float], sizes: Sequence[int]) -> float:
    """The mean of values, each weighted by its size."""
    return sum(value * size for value, size in zip(values, sizes, strict=True)) / sum(sizes)


def pooled_error(stderrs: Sequence[float], sizes: Sequence[int]) -> float:
    """The standard error of the size-weighted mean: sqrt([sum (n_i - 1) se_i^2 n_i / (N - k)] / N)."""
    total = sum(sizes)
    squares = sum((size - 1) * stderr**2 * size for stderr, size in zip(stderrs, sizes, strict=True))
    return math.sqrt(squares / (total - len(sizes)) / total)


def unweighted_error(stderrs: Sequence[float]) -> float:
    """The standard error of the plain mean of k scores: sqrt(sum se_i^2) / k."""
    return math.sqrt(sum(stderr**2 for stderr in stderrs)) / len(stderrs)


def _roll_up_one(
    config: task.GroupConfig, leaves: Sequence[str], results: Mapping[str, result.TaskResult]
) -> result.GroupResult:
    scores: dict[tuple[str, str], float] = {}
    stderrs: dict[tuple[str, str], float | None] = {}
    counts: dict[tuple[str, str], int] = {}
    for metric in config.metrics:
        found = {filter_name for leaf in leaves for name, filter_name in results[leaf].metrics if name == metric.metric}
        for filter_name in sorted(found) if metric.filters is None else metric.filters:
            key = (metric.metric, filter_name)
            holders = [results[leaf] for leaf in leaves if key in results[leaf].metrics]
            if holders:
                scores[key], stderrs[key] = _combine(holders, key, weighted=metric.weight_by_size)
                counts[key] = sum(holder.sample_len for holder in holders)
    sample_len = sum(results[leaf].sample_len for leaf in leaves) if config.metrics else 0
    return result.GroupResult(
        config=config, metrics=scores, stderrs=stderrs, sample_len=sample_len, sample_count=counts
    )


def _combine(
    holders: Sequence[result.TaskResult], key: tuple[str, str], *, weighted: bool
) -> tuple[float, float | None]:
    """The mean of the tasks' scores and its standard error; None unless every task has one."""
    values = [holder.metrics[key] for holder in holders]
    sizes = [holder.sample_len for holder in holders]
    known = [error for holder in holders if (error := holder.stderrs.get(key)) is not None]
    mean = weighted_mean(values, sizes if weighted else [1] * len(values))
    if len(known) < len(values):
        return mean, None
    return mean, pooled_error(known, sizes) if weighted else unweighted_error(known)


def _leaves(name: str, groups: Mapping[str, task.GroupConfig], results: Mapping[str, Any]) -> list[str]:
    """The tasks below a group, at any depth, each once, in file order."""
    leaves: dict[str, None] = {}
    seen: set[str] = set()

    def visit(group: str) -> None:
        if group in seen:
            return
        seen.add(group)
        for child in groups[group].children:
            if child in groups:
                visit(child)
            elif child in results:
                leaves[child] = None
            else:
                known = [*groups, *results]
                where = f"group {group!r} ({groups[group].source})"
                raise errors.TaskError(f"{where}: no result for its member {child!r}.{lookup.nearest(child, known)}")

    visit(name)
    return list(leaves)

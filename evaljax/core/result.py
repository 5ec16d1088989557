"""What an evaluation found, as plain records. Only `report` knows how it is written down."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from evaljax.core import task

# Scores are keyed by (metric, filter), for example ("acc", "none").
Scores = Mapping[tuple[str, str], float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskResult:
    """Scores of one task.

    Attributes:
      metrics: value by (metric, filter), in the order the metrics appear.
      stderrs: standard error by (metric, filter); None where it is not defined.
      higher_is_better: by metric name.
      sample_len: number of scored documents (lm-eval: the largest count over the metrics).
      num_docs: documents in the evaluated split, before `limit`.
      samples: one record per (document, filter), lm-eval's sample schema.
      counts: what puts the score in doubt, by name: `evaluation.length_counts` and `engine_counts`,
        `scoring.health.counts`, nonfinite.
    """

    config: task.TaskConfig
    metrics: Scores
    stderrs: Mapping[tuple[str, str], float | None]
    higher_is_better: Mapping[str, bool]
    sample_len: int
    num_docs: int
    num_fewshot: int
    samples: tuple[dict[str, Any], ...] = ()
    counts: Mapping[str, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupResult:
    """Scores of a group, rolled up from its leaves; empty where the group asks for no aggregate."""

    config: task.GroupConfig
    metrics: Scores
    stderrs: Mapping[tuple[str, str], float | None]
    sample_len: int
    sample_count: Mapping[tuple[str, str], int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvalResult:
    """Everything an evaluation found. `facts` are the run's own: its configuration and date."""

    tasks: Mapping[str, TaskResult]
    groups: Mapping[str, GroupResult]
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)

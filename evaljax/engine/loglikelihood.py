"""log P(continuation | context): encoded sequences in, (log-probability, greedy) out, in their order."""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from evaljax.core import config
from evaljax.core import progress as reporting
from evaljax.engine import encode, executor, failure, plan
from evaljax.models import model as models


class Answer(NamedTuple):
    """The targets' log-probabilities in nats, summed, and whether each target was the likeliest token."""

    logprob: float
    is_greedy: bool


def score(
    model: models.Model,
    encoded: Sequence[encode.Encoded],
    *,
    options: config.EngineOptions,
    max_length: int,
    precision: str,
    progress: reporting.Progress = reporting.silent,
) -> tuple[list[Answer], dict[str, Any]]:
    """The answer to each sequence, in order, and figures.

    The figures are the plan's, `plan_seconds`, `compile_seconds`, `run_seconds`, `executables` (compiled by this call;
    the process knew the others) and `nonfinite` (answers that are no number). Such an answer raises
    `failure.PlacedError`, unless `options.allow_nonfinite`.
    """
    began = time.perf_counter()
    platform = executor.platform(model)
    job = plan.plan_loglikelihood(encoded, options=options, max_length=max_length, platform=platform)
    planned = time.perf_counter() - began
    answers = executor.run(model, job, precision=precision, progress=progress)
    logprobs, greedy = _gather(job, answers)
    broken = np.nonzero(~np.isfinite(logprobs))[0]
    if len(broken) and not options.allow_nonfinite:
        raise failure.nonfinite(int(broken[0]), f"its log-probability is {logprobs[broken[0]]}")
    figures = {
        **job.summary(),
        "plan_seconds": round(planned, 3),
        "compile_seconds": answers.compile_seconds,
        "run_seconds": answers.run_seconds,
        "executables": answers.num_compiled,
        "nonfinite": len(broken),
    }
    return [Answer(*answer) for answer in zip(logprobs.tolist(), greedy.tolist(), strict=True)], figures


def _gather(job: plan.Plan, answers: executor.Answers) -> tuple[np.ndarray, np.ndarray]:
    """Each sequence's sum of log-probabilities, in float64, and whether all its targets were greedy."""
    if not len(job.num_targets):
        return np.empty(0), np.empty(0, np.bool_)
    starts = np.cumsum(job.num_targets) - job.num_targets
    logprobs = answers.logprobs[job.pair_of_target].astype(np.float64)
    return np.add.reduceat(logprobs, starts), np.logical_and.reduceat(answers.greedy[job.pair_of_target], starts)

"""log P(continuation | context): encoded sequences in, (log-probability, greedy) out, in their order."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from evaljax.core import config
from evaljax.core import progress as reporting
from evaljax.engine import encode, executor, failure, memory, mesh, plan, selfcheck, shapes
from evaljax.models import model as models

LABEL = "scoring"


class Answer(NamedTuple):
    """The targets' log-probabilities in nats, summed, and whether each target was the likeliest token."""

    logprob: float
    is_greedy: bool


Found = Callable[[Sequence[int], Sequence[Answer]], None]  # (which of the sequences, their answers)


def nobody(places: Sequence[int], answers: Sequence[Answer]) -> None:
    """Nothing: the default where nobody waits for the first answers."""


def score(  # noqa: PLR0913 (the engine's front door: what to score, with what, how, who hears of it)
    model: models.Model,
    encoded: Sequence[encode.Encoded],
    *,
    options: config.EngineOptions,
    max_length: int,
    precision: str,
    check: bool = False,
    known: Sequence[Answer | None] = (),
    agree: Callable[[str, str], None] = lambda what, digest: None,
    found: Found = nobody,
    progress: reporting.Progress = reporting.silent,
) -> tuple[list[Answer], dict[str, Any]]:
    """The answer to each sequence, in order, and figures.

    `check`: look at the machine first (`selfcheck`).
    `known`: answers from before, beside the sequences (none, if left out). The plan is that of all sequences, and what
    the others need of it is run: their answers are, to the last bit, what they would have been.
    `found` hears of answers as soon as the device has them. `agree` compares the plan's hash over the processes that
    share the work. If the device has no room for a step, steps get smaller and what is left goes on; the smallest one
    that fails raises the device's own error.

    The figures are the plan's, `plan_seconds`, `compile_seconds`, `run_seconds`, `memory` (`memory.check`) and
    `nonfinite` (answers that are no number). Such an answer raises `failure.PlacedError`, unless
    `options.allow_nonfinite`.
    """
    began, waited, planned = time.perf_counter(), 0.0, 0.0
    layout = mesh.layout_of(model.params)
    machine = memory.machine(model, layout, options)
    answers: list[Answer | None] = list(known) or [None] * len(encoded)
    planned_places: Sequence[int] = range(len(encoded))
    totals: dict[str, Any] = {}
    shape: shapes.Shape | None = None
    while True:
        start = time.perf_counter()
        sequences = [encoded[place] for place in planned_places]
        job = plan.plan_loglikelihood(sequences, options=options, max_length=max_length, machine=machine, shape=shape)
        wanted = np.array([answers[place] is None for place in planned_places], bool)
        steps = plan.needed_steps(job, wanted)
        planned += time.perf_counter() - start
        totals = totals or {**job.summary(), "steps": len(steps), "steps_kept": job.num_steps - len(steps)}
        if not len(steps):
            break
        agree("the plan", job.digest)
        try:
            start = time.perf_counter()
            programs = executor.prepare(model, job.shape, layout, precision=precision)
            totals["memory"] = memory.check(model, programs.score.result(), machine.memory_bytes)
            waited += time.perf_counter() - start
            if check and "self_check" not in totals:
                totals["self_check"] = selfcheck.run(model, job, layout, programs, precision=precision)
            runs = executor.run(model, job, layout, programs, steps.tolist())
            for some, values in _finished(job, runs, wanted, progress):
                places = [planned_places[place] for place in some]
                _refuse_nonfinite(places, values, options)
                for place, answer in zip(places, values, strict=True):
                    answers[place] = answer
                found(places, values)
            break
        except jax.errors.JaxRuntimeError as error:
            shape = job.shape.smaller() if executor.is_out_of_memory(error) else None
            if shape is None:
                raise
            totals["halved"] = totals.get("halved", 0) + 1
            planned_places = [place for place, answer in enumerate(answers) if answer is None]
    whole = [answer for answer in answers if answer is not None]
    seconds = time.perf_counter() - began - planned - waited
    return whole, {
        **totals,
        "plan_seconds": round(planned, 3),
        "compile_seconds": round(waited, 3),
        "run_seconds": round(seconds, 3),
        "nonfinite": int(sum(not np.isfinite(answer.logprob) for answer in whole)),
    }


def _finished(
    job: plan.Plan, steps: Iterator[executor.Answers], wanted: np.ndarray, progress: reporting.Progress
) -> Iterator[tuple[list[int], list[Answer]]]:
    """After each step the `wanted` sequences whose last target it scored, and their answers, summed in float64."""
    logprobs, greedy = np.empty(len(job.pair_place)), np.empty(len(job.pair_place), np.bool_)
    starts = np.cumsum(job.num_targets) - job.num_targets
    last_step = np.searchsorted(job.pair_start, np.maximum.reduceat(job.pair_of_target, starts), side="right") - 1
    order = np.argsort(last_step, kind="stable")
    bounds = np.searchsorted(last_step[order], np.arange(job.num_steps + 1))
    per_step = job.shape.num_rows * job.shape.chunk_length
    for step, found, is_best in steps:
        pairs = slice(job.pair_start[step], job.pair_start[step + 1])
        logprobs[pairs], greedy[pairs] = found, is_best
        progress(LABEL, (step + 1) * per_step, job.forward_tokens, "tokens")
        places = [place for place in order[bounds[step] : bounds[step + 1]].tolist() if wanted[place]]
        answers = []
        for place in places:
            mine = job.pair_of_target[starts[place] : starts[place] + job.num_targets[place]]
            answers.append(Answer(float(logprobs[mine].sum()), bool(greedy[mine].all())))
        yield places, answers


def _refuse_nonfinite(places: Sequence[int], answers: Sequence[Answer], options: config.EngineOptions) -> None:
    """Raises PlacedError for the first answer that is no number, unless those are allowed."""
    for place, answer in zip(places, answers, strict=True):
        if not options.allow_nonfinite and not np.isfinite(answer.logprob):
            raise failure.nonfinite(place, f"its log-probability is {answer.logprob}")

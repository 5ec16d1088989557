"""log P(continuation | context): encoded sequences in, (log-probability, greedy) out, in their order."""

import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from evaljax.core import config
from evaljax.core import progress as reporting
from evaljax.engine import encode, executor, failure, memory, mesh, plan, selfcheck, shapes
from evaljax.engine import hooks as listening
from evaljax.models import model as models

LABEL = "scoring"


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
    check: bool = False,
    known: Sequence[Answer | None] = (),
    hooks: listening.Hooks = listening.NOBODY,
) -> tuple[list[Answer], dict[str, Any]]:
    """The answer to each sequence, in order, and figures.

    `check`: look at the machine first (`selfcheck`).
    `known`: answers from before, beside the sequences (none, if left out). The plan is that of all sequences, and what
    the others need of it is run: their answers are, to the last bit, what they would have been.
    If the device has no room for a step, steps get smaller and what is left goes on; the smallest one that fails raises
    the device's own error.

    The figures are the plan's, `plan_seconds`, `compile_seconds`, `run_seconds`, `memory` (`memory.check`) and
    `nonfinite` (answers that are no number). Such an answer raises `failure.PlacedError`, unless
    `options.allow_nonfinite`.
    """
    answers: list[Answer | None] = list(known) or [None] * len(encoded)
    work = _Work(model, encoded, answers, options, max_length, precision=precision, check=check, hooks=hooks)
    places: Sequence[int] = range(len(encoded))
    job, steps = work.lay_out(places)
    work.figures = {**job.summary(), "steps": len(steps), "steps_kept": job.num_steps - len(steps)}
    while len(steps):
        hooks.agree("the plan", job.digest)
        try:
            work.run(job, places, steps)
            break
        except jax.errors.JaxRuntimeError as error:
            shape = job.shape.smaller() if executor.is_out_of_memory(error) else None
            if shape is None:
                raise
        work.figures["halved"] = work.figures.get("halved", 0) + 1
        places = [place for place, answer in enumerate(answers) if answer is None]
        job, steps = work.lay_out(places, shape)
    whole = [answer for answer in answers if answer is not None]
    seconds = {f"{name}_seconds": round(taken, 3) for name, taken in work.seconds.items()}
    nonfinite = sum(not np.isfinite(answer.logprob) for answer in whole)
    return whole, {**work.figures, **seconds, "nonfinite": nonfinite}


class _Work:
    """One call of `score`: what is asked, and the answers as they come in."""

    def __init__(
        self,
        model: models.Model,
        encoded: Sequence[encode.Encoded],
        answers: list[Answer | None],
        options: config.EngineOptions,
        max_length: int,
        *,
        precision: str,
        check: bool,
        hooks: listening.Hooks,
    ):
        self.model, self.encoded, self.answers, self.options = model, encoded, answers, options
        self.max_length, self.precision, self.check, self.hooks = max_length, precision, check, hooks
        self.layout = mesh.layout_of(model.params)
        self.machine = memory.machine(model, self.layout, options)
        self.seconds = dict.fromkeys(("plan", "compile", "run"), 0.0)
        self.figures: dict[str, Any] = {}

    def lay_out(self, places: Sequence[int], shape: shapes.Shape | None = None) -> tuple[plan.Plan, np.ndarray]:
        """The plan of the sequences at `places`, and the steps of it that those without an answer need."""
        start = time.perf_counter()
        sequences = [self.encoded[place] for place in places]
        job = plan.plan_loglikelihood(
            sequences, options=self.options, max_length=self.max_length, machine=self.machine, shape=shape
        )
        steps = plan.needed_steps(job, self._wanted(places))
        self.seconds["plan"] += time.perf_counter() - start
        return job, steps

    def run(self, job: plan.Plan, places: Sequence[int], steps: np.ndarray) -> None:
        """Runs these steps; answers go where they belong as they come."""
        start = time.perf_counter()
        program = executor.prepare(self.model, job.shape, self.layout, precision=self.precision).result()
        self.figures["memory"] = memory.check(self.model, program, self.machine.memory_bytes)
        ready = time.perf_counter()
        self.seconds["compile"] += ready - start
        try:
            if self.check and "self_check" not in self.figures:
                self.figures["self_check"] = selfcheck.run(
                    self.model, job, self.layout, program, precision=self.precision
                )
            runs = executor.run(self.model, job, self.layout, program, steps.tolist())
            for some, values in _finished(job, runs, self._wanted(places), self.hooks.progress):
                self._take([places[place] for place in some], values)
        finally:
            self.seconds["run"] += time.perf_counter() - ready

    def _wanted(self, places: Sequence[int]) -> np.ndarray:
        """Which of these have no answer."""
        return np.array([self.answers[place] is None for place in places], bool)

    def _take(self, places: Sequence[int], values: Sequence[Answer]) -> None:
        """Puts new answers in their places. Raises PlacedError for one that is no number, unless those are allowed."""
        for place, answer in zip(places, values, strict=True):
            if not self.options.allow_nonfinite and not np.isfinite(answer.logprob):
                raise failure.nonfinite(place, f"its log-probability is {answer.logprob}")
            self.answers[place] = answer
        self.hooks.found(places, values)


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

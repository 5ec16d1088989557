"""What one multiple-choice document is worth, metric by metric.

lm-eval's rules: the first of equal scores wins; lengths are those of the bare choice (without the target delimiter), in
characters for `acc_norm` and in UTF-8 bytes for `acc_bytes`.
"""

import dataclasses
import math
import operator
from collections.abc import Sequence
from typing import Any

from evaljax.core import errors, task


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The answers of one document.

    Attributes:
      where: names the task and the document in errors.
      choices: the texts that were scored.
      logprobs: log P(choice | context).
      greedy: whether greedy decoding gives the choice.
      unconditional: log P(choice) on its own; empty unless acc_mutual_info asked for it.
      label: index of the right choice, or the list of them.
    """

    where: str
    choices: tuple[str, ...]
    logprobs: tuple[float, ...]
    greedy: tuple[bool, ...]
    unconditional: tuple[float, ...]
    label: int | list[int]

    @property
    def golds(self) -> list[int]:
        """The right choices, always as a list."""
        return self.label if isinstance(self.label, list) else [self.label]


def evidence(example: task.Example, results: Sequence[Any], *, where: str) -> Evidence:
    """The evidence in `results`: (logprob, is_greedy) of each choice, then perhaps of each choice on its own."""
    choices = example.choices or ()
    if len(results) not in (len(choices), 2 * len(choices)) or not choices:
        raise errors.TaskError(
            f"{where}: {len(results)} answers for {len(choices)} choices; expected one for each choice."
        )
    for result in results:
        if not isinstance(result, tuple | list) or len(result) != 2 or isinstance(result[0], tuple | list):
            raise errors.TaskError(
                f"{where}: an answer is {result!r} after the filters; expected (logprob, is_greedy). "
                "A filter pipeline ends with take_first."
            )
    logprobs = tuple(float(result[0]) for result in results)
    return Evidence(
        where=where,
        choices=choices,
        logprobs=logprobs[: len(choices)],
        greedy=tuple(bool(result[1]) for result in results[: len(choices)]),
        unconditional=logprobs[len(choices) :],
        label=_label(example.gold, choices, where=where),
    )


def _label(gold: Any, choices: tuple[str, ...], *, where: str) -> int | list[int]:
    """`gold` as an index into `choices`, or as a list of indices where it is a list."""
    if isinstance(gold, list | tuple):
        return [_index(item, choices, where=where) for item in gold]
    return _index(gold, choices, where=where)


def _index(gold: Any, choices: tuple[str, ...], *, where: str) -> int:
    """The index of the choice that `gold` (index or text) means; never a silent "no choice is right"."""
    if isinstance(gold, str):
        if gold in choices:
            return choices.index(gold)
        raise errors.TaskError(f"{where}: the gold answer {gold!r} is not among the choices {list(choices)!r}.")
    try:
        index = operator.index(gold)
    except TypeError:
        raise errors.TaskError(
            f"{where}: the gold label is {gold!r}; expected an index or the text of a choice."
        ) from None
    if not 0 <= index < len(choices):
        raise errors.TaskError(f"{where}: the gold label {index} is outside the {len(choices)} choices.")
    return index


def first_best(scores: Sequence[float]) -> int:
    """The index of the largest score; of equal ones the first. NaN is never larger than anything."""
    return max(range(len(scores)), key=lambda index: -math.inf if math.isnan(scores[index]) else scores[index])


def acc(evidence: Evidence) -> float:
    """1.0 where the likeliest choice is right."""
    return _right(evidence, evidence.logprobs)


def acc_norm(evidence: Evidence) -> float:
    """1.0 where the choice of the largest log-probability per character is right."""
    return _right(evidence, _per_unit(evidence, [len(choice) for choice in evidence.choices]))


def acc_bytes(evidence: Evidence) -> float:
    """1.0 where the choice of the largest log-probability per UTF-8 byte is right."""
    return _right(evidence, _per_unit(evidence, [len(choice.encode()) for choice in evidence.choices]))


def acc_mutual_info(evidence: Evidence) -> float:
    """1.0 where the choice that the context makes likelier by the largest factor is right."""
    if not evidence.unconditional:
        raise errors.TaskError(f"{evidence.where}: acc_mutual_info needs the choices' own log-probabilities as well.")
    gains = [given - alone for given, alone in zip(evidence.logprobs, evidence.unconditional, strict=True)]
    return _right(evidence, gains)


def exact_match(evidence: Evidence) -> int:
    """1 where greedy decoding gives a right choice."""
    return int(any(evidence.greedy[index] for index in evidence.golds))


def label_pair(evidence: Evidence) -> tuple[int | list[int], int]:
    """(gold, predicted) labels, for scores of the whole set (f1, mcc)."""
    return evidence.label, first_best(evidence.logprobs)


def probabilities(evidence: Evidence) -> tuple[int | list[int], list[float]]:
    """(gold, softmax over the choices), for brier_score."""
    top = max(evidence.logprobs)
    weights = [math.exp(logprob - top) for logprob in evidence.logprobs]
    total = sum(weights)
    return evidence.label, [weight / total for weight in weights]


def likelihoods(evidence: Evidence) -> tuple[int | list[int], tuple[float, ...]]:
    """(gold, log-probabilities), for aggregations of the task's own."""
    return evidence.label, evidence.logprobs


def is_tied(logprobs: Sequence[float]) -> bool:
    """Whether two choices share the top score, so that their order decides."""
    return len(logprobs) > 1 and list(logprobs).count(max(logprobs)) > 1


def _right(evidence: Evidence, scores: Sequence[float]) -> float:
    return 1.0 if first_best(scores) in evidence.golds else 0.0


def _per_unit(evidence: Evidence, lengths: Sequence[int]) -> list[float]:
    """Log-probabilities divided by lengths; an empty choice has none."""
    if 0 in lengths:
        raise errors.TaskError(
            f"{evidence.where}: choice {list(lengths).index(0)} is empty; acc_norm and acc_bytes divide by its length."
        )
    return [logprob / length for logprob, length in zip(evidence.logprobs, lengths, strict=True)]

"""What one `loglikelihood` or `loglikelihood_rolling` document is worth, metric by metric."""

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

from evaljax.core import errors


@dataclasses.dataclass(frozen=True, slots=True)
class Continuation:
    """The answer of a `loglikelihood` document."""

    logprob: float
    is_greedy: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Text:
    """The answer of a `loglikelihood_rolling` document: log P(text), and the text that the units are counted in."""

    logprob: float
    text: str


def continuation(results: Sequence[Any], *, where: str) -> Continuation:
    """The first result, (logprob, is_greedy), read as a continuation."""
    first = results[0]
    if not isinstance(first, tuple | list) or len(first) != 2 or isinstance(first[0], tuple | list):
        raise errors.TaskError(
            f"{where}: the answer is {first!r} after the filters; expected (logprob, is_greedy). "
            "A filter pipeline ends with take_first."
        )
    return Continuation(float(first[0]), bool(first[1]))


def text(target: Any, results: Sequence[Any], *, where: str) -> Text:
    """The only result, a log-probability, beside the text that it is the log-probability of."""
    if not isinstance(target, str):
        raise errors.TaskError(
            f"{where}: doc_to_target gives {type(target).__name__}; rolling log-likelihood needs the text."
        )
    if len(results) != 1 or isinstance(results[0], tuple | list | str):
        raise errors.TaskError(
            f"{where}: the answers are {list(results)!r} after the filters; expected one log-probability. "
            "A filter pipeline ends with take_first."
        )
    return Text(float(results[0]), target)


def acc(evidence: Continuation) -> int:
    """1 where greedy decoding gives the continuation."""
    return int(evidence.is_greedy)


def logprob(evidence: Continuation) -> float:
    """log P(continuation | context), for perplexity."""
    return evidence.logprob


def per_word(evidence: Text) -> tuple[float, int]:
    """(log P, words), for perplexity per word."""
    return evidence.logprob, count_words(evidence.text)


def per_byte(evidence: Text) -> tuple[float, int]:
    """(log P, UTF-8 bytes), for perplexity or bits per byte."""
    return evidence.logprob, len(evidence.text.encode())


def count_words(text: str) -> int:
    """Pieces between runs of white space, an empty piece at either end included, as lm-eval counts: " a b " has 4."""
    return len(re.split(r"\s+", text))

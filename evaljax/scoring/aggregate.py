"""Aggregations: one score from the values of all documents."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from evaljax.core import errors
from evaljax.scoring import plain

Values = Sequence[Any]


@dataclasses.dataclass(frozen=True)
class Aggregation:
    """One row of `AGGREGATIONS`. `takes_pairs`: values are pairs, such as (gold, predicted); None: anything."""

    function: Callable[[Values], float]
    takes_pairs: bool | None


def mean(values: Values) -> float:
    """The arithmetic mean."""
    return sum(values) / len(values)


def nanmean(values: Values) -> float:
    """The mean of the values that are numbers; NaN if none is."""
    numbers = [float(value) for value in values if not math.isnan(value)]
    return mean(numbers) if numbers else math.nan


def median(values: Values) -> float:
    """The upper median: of an even count the larger of the middle two."""
    return sorted(values)[len(values) // 2]


def perplexity(values: Values) -> float:
    """exp(-mean); infinite where that is beyond float64."""
    return exp(-mean(values))


def weighted_perplexity(values: Values) -> float:
    """exp(-total log P / total units), of (log P, units) pairs."""
    return exp(-_per_unit(values))


def bits_per_byte(values: Values) -> float:
    """-log2 P per byte, of (log P, bytes) pairs."""
    return -_per_unit(values) / math.log(2)


def f1(values: Values) -> float:
    """F1 of the label 1, of (gold, predicted) pairs; 0 where neither occurs."""
    from sklearn import metrics

    golds, predictions = zip(*values, strict=True)
    try:
        return float(metrics.f1_score(golds, predictions, zero_division=0.0))
    except (TypeError, ValueError) as error:
        raise errors.TaskError(
            f"f1 needs two labels, one of them 1, or an aggregation of the task's own: {error}"
        ) from error


def matthews_corrcoef(values: Values) -> float:
    """Matthews' correlation of (gold, predicted) labels; 0 where either is constant."""
    from sklearn import metrics

    golds, predictions = zip(*values, strict=True)
    try:
        return float(metrics.matthews_corrcoef(golds, predictions))
    except (TypeError, ValueError) as error:
        raise errors.TaskError(f"matthews_corrcoef needs one label for each document: {error}") from error


def brier_score(values: Values) -> float:
    """The mean squared distance between the probabilities and the right answer's unit vector."""

    def distance(gold: int, probabilities: Sequence[float]) -> float:
        return sum((p - (index == gold)) ** 2 for index, p in enumerate(probabilities))

    return mean([distance(gold, probabilities) for gold, probabilities in values])


def bypass(values: Values) -> int:
    """999, lm-eval's mark for "not scored"."""
    return 999


def corpus_score(name: str) -> Callable[[Values], float]:
    """The sacrebleu score `name` of a whole corpus, as a function of (references, hypothesis) pairs."""

    def score(values: Values) -> float:
        references, hypotheses = corpus(values)
        return float(corpus_metric(name).corpus_score(hypotheses, references).score)

    score.__name__ = name
    return score


def corpus_metric(name: str) -> Any:
    """The sacrebleu metric `name`, with sacrebleu's defaults."""
    from sacrebleu import metrics

    makers: Mapping[str, Callable[[], Any]] = {
        "bleu": metrics.BLEU,
        "chrf": metrics.CHRF,
        "chrf++": lambda: metrics.CHRF(word_order=2),
        "ter": metrics.TER,
    }
    return makers[name]()


def corpus(values: Values) -> tuple[list[list[str]], list[str]]:
    """(references, hypotheses) as sacrebleu wants them: the first references of all documents, then the second, ...

    Where documents have unequal numbers of references, all are cut to the smallest number, as in lm-eval.
    """
    references = [_texts(gold) for gold, _ in values]
    hypotheses = [_texts(result) for _, result in values]
    for hypothesis in hypotheses:
        if len(hypothesis) != 1:
            raise errors.TaskError(f"bleu, chrf and ter score one text for each document; found {hypothesis!r}.")
    return [list(column) for column in zip(*references, strict=False)], [hypothesis[0] for hypothesis in hypotheses]


def exp(value: float) -> float:
    """e to the `value`, infinite instead of an OverflowError."""
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


AGGREGATIONS: Mapping[str, Aggregation] = {
    "mean": Aggregation(mean, takes_pairs=False),
    "nanmean": Aggregation(nanmean, takes_pairs=False),
    "median": Aggregation(median, takes_pairs=False),
    "perplexity": Aggregation(perplexity, takes_pairs=False),
    "weighted_perplexity": Aggregation(weighted_perplexity, takes_pairs=True),
    "bits_per_byte": Aggregation(bits_per_byte, takes_pairs=True),
    "f1": Aggregation(f1, takes_pairs=True),
    "matthews_corrcoef": Aggregation(matthews_corrcoef, takes_pairs=True),
    "brier_score": Aggregation(brier_score, takes_pairs=True),
    "bleu": Aggregation(corpus_score("bleu"), takes_pairs=True),
    "chrf": Aggregation(corpus_score("chrf"), takes_pairs=True),
    "chrf++": Aggregation(corpus_score("chrf++"), takes_pairs=True),
    "ter": Aggregation(corpus_score("ter"), takes_pairs=True),
    "bypass": Aggregation(bypass, takes_pairs=None),
}


def apply(aggregation: str | Callable[[Values], Any], values: Values, *, where: str) -> float:
    """The aggregated score of `values` as a plain number."""
    if not isinstance(aggregation, str):
        try:
            found = aggregation(values)
        except Exception as error:  # foreign code
            raise errors.TaskError(f"{where}: its aggregation failed: {error!r}.") from error
        return plain.number(found, where=f"{where}: its aggregation")
    row = AGGREGATIONS[aggregation]
    for value in values if row.takes_pairs is not None else ():
        if row.takes_pairs != _is_pair(value) or not (row.takes_pairs or plain.is_number(value)):
            expected = "a pair" if row.takes_pairs else "a number"
            raise errors.TaskError(
                f"{where}: a document's value is {repr(value)[:80]}; {aggregation} expects {expected}."
            )
    try:
        return plain.number(row.function(values), where=where)
    except errors.TaskError as error:
        raise errors.TaskError(f"{where}: {error}") from error


def _is_pair(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) == 2


def _per_unit(values: Values) -> float:
    total = sum(units for _, units in values)
    if not total:
        raise errors.TaskError(f"the texts of all {len(values)} documents are empty: there is nothing to score.")
    return sum(value for value, _ in values) / total


def _texts(value: Any) -> list[str]:
    """One text, or several, as a list of texts."""
    texts = [value] if isinstance(value, str) else list(value) if isinstance(value, Iterable) else [value]
    for text in texts:
        if not isinstance(text, str):
            raise errors.TaskError(f"bleu, chrf and ter compare texts; found {text!r}.")
    return texts

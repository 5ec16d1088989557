"""Standard errors: closed form for means, lm-eval's seeded bootstrap for the rest, in numpy and in this process.

lm-eval draws replicate after replicate with `random.Random(chunk).choices`, a new generator for every 1,000 replicates.
`choices` takes floor(random() * n), and numpy's MT19937 gives the same random() from the same state, so that a block of
replicates is one array of indices, and its statistic one array operation.
"""

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from evaljax.scoring import aggregate

if TYPE_CHECKING:
    import numpy as np

CHUNK = 1000  # replicates per generator: part of the definition, not a matter of speed
CORPUS_REPLICATES = 100
_BLOCK_ELEMENTS = 100_000  # a block and what is computed from it stay in the processor's cache

# From a block of indices [replicates, documents] to the replicates' statistics.
Statistic = Callable[["np.ndarray"], "np.ndarray"]


def standard_error(
    values: Sequence[Any], aggregation: str | Callable[..., Any], *, bootstrap_iters: int, metric: str
) -> float | None:
    """The standard error of `aggregation` over `values`; None where lm-eval says "N/A" or where it is not finite.

    Scores of a corpus (by the aggregation or by the metric's name) are drawn 100 times at most.
    """
    if bootstrap_iters <= 0 or len(values) < 2 or not isinstance(aggregation, str):
        return None
    if aggregation == "mean":
        error = _mean_error(values)
    elif aggregation in STATISTICS:
        is_corpus = aggregation in _CORPUS or metric in _CORPUS
        iters = min(bootstrap_iters, CORPUS_REPLICATES) if is_corpus else bootstrap_iters
        error = _bootstrap(STATISTICS[aggregation](values), len(values), iters)
    else:
        return None
    return error if math.isfinite(error) else None


def wilson_interval(successes: float, n: int, z: float = 1.96) -> tuple[float, float]:
    """The Wilson score interval of a proportion: inside [0, 1], and of positive width at 0 and 1 as well."""
    p = successes / n
    center = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return max(0.0, center - half), min(1.0, center + half)


def resamples(n: int, iters: int) -> Iterator["np.ndarray"]:
    """Blocks [replicates, n] of document indices, lm-eval's very draws in order; a last part of a chunk is left out."""
    import numpy as np

    chunk = min(CHUNK, iters)
    block = max(1, min(chunk, _BLOCK_ELEMENTS // n))
    for seed in range(iters // chunk):
        state = random.Random(seed).getstate()[1]
        generator = np.random.RandomState(0)
        generator.set_state(("MT19937", np.array(state[:-1], dtype=np.uint32), state[-1], 0, 0.0))
        for start in range(0, chunk, block):
            draws = generator.random_sample((min(block, chunk - start), n))
            yield (draws * n).astype(np.intp)


def _mean_error(values: Sequence[Any]) -> float:
    """Sample deviation (n - 1) over sqrt(n)."""
    center = aggregate.mean(values)
    variance = sum((value - center) ** 2 for value in values) / (len(values) - 1)
    return float(math.sqrt(variance) / math.sqrt(len(values)))


def _bootstrap(statistic: Statistic, n: int, iters: int) -> float:
    """The sample deviation of the replicates' statistics; NaN where one of them is not finite."""
    import numpy as np

    replicates = np.concatenate([statistic(indices) for indices in resamples(n, iters)])
    if len(replicates) < 2 or not np.isfinite(replicates).all():
        return math.nan
    return float(np.std(replicates, ddof=1))


def _perplexity(values: Sequence[Any]) -> Statistic:
    import numpy as np

    numbers = np.asarray(values, dtype=np.float64)

    def statistic(indices: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):
            return np.exp(-numbers[indices].mean(axis=1))

    return statistic


def _median(values: Sequence[Any]) -> Statistic:
    import numpy as np

    numbers = np.asarray(values, dtype=np.float64)
    middle = len(values) // 2
    return lambda indices: np.partition(numbers[indices], middle, axis=1)[:, middle]


def _nanmean(values: Sequence[Any]) -> Statistic:
    import numpy as np

    numbers = np.asarray(values, dtype=np.float64)
    present = ~np.isnan(numbers)
    filled = np.where(present, numbers, 0.0)

    def statistic(indices: np.ndarray) -> np.ndarray:
        counts = present[indices].sum(axis=1)
        return np.where(counts > 0, filled[indices].sum(axis=1) / np.maximum(counts, 1), np.nan)

    return statistic


def _counter(marks: "np.ndarray") -> Statistic:
    """How often each mark of [M, n] (0 or 1) is drawn, [replicates, M]; as many as fit are counted in one integer."""
    import numpy as np

    bits = marks.shape[1].bit_length()
    fit = 63 // bits
    shifts = bits * np.arange(fit, dtype=np.int64)
    packed = [
        (marks[start : start + fit].astype(np.int64) << shifts[: len(marks) - start, None]).sum(axis=0)
        for start in range(0, len(marks), fit)
    ]

    def count(indices: np.ndarray) -> np.ndarray:
        sums = [column[indices].sum(axis=1)[:, None] >> shifts for column in packed]
        return np.concatenate(sums, axis=1)[:, : len(marks)] & ((1 << bits) - 1)

    return count


def _f1(values: Sequence[Any]) -> Statistic:
    """F1 of label 1 = 2 TP / (gold ones + predicted ones), 0 where there are none."""
    import numpy as np

    gold = np.array([bool(gold == 1) for gold, _ in values])
    predicted = np.array([bool(prediction == 1) for _, prediction in values])
    count = _counter(np.stack([gold, predicted, gold & predicted]))

    def statistic(indices: np.ndarray) -> np.ndarray:
        golds, predictions, hits = count(indices).T
        return 2 * hits / np.maximum(golds + predictions, 1)

    return statistic


def _matthews_corrcoef(values: Sequence[Any]) -> Statistic:
    """Matthews' correlation from label counts: of gold t, of predictions p, and of agreements c, over n documents.

    (c n - t.p) / sqrt((n^2 - p.p) (n^2 - t.t)), and 0 where the denominator is 0.
    """
    import numpy as np

    codes = {label: code for code, label in enumerate({label for pair in values for label in pair})}
    labels = np.array([[codes[gold], codes[prediction]] for gold, prediction in values])
    every = np.arange(len(codes))[:, None]
    gold, predicted = every == labels[:, 0], every == labels[:, 1]
    count = _counter(np.concatenate([gold, predicted, (labels[:, 0] == labels[:, 1])[None]]))
    n = len(values)

    def statistic(indices: np.ndarray) -> np.ndarray:
        counts = count(indices).astype(np.float64)
        golds, predictions, agreed = counts[:, : len(codes)], counts[:, len(codes) : -1], counts[:, -1]
        covariance = agreed * n - (golds * predictions).sum(axis=1)
        spread = (n * n - (golds**2).sum(axis=1)) * (n * n - (predictions**2).sum(axis=1))
        return np.where(spread > 0, covariance / np.sqrt(np.where(spread > 0, spread, 1.0)), 0.0)

    return statistic


def _corpus_statistic(name: str) -> Callable[[Sequence[Any]], Statistic]:
    """The bootstrap statistic of a sacrebleu score: sentences are counted once, a replicate adds up their counts."""

    def prepare(values: Sequence[Any]) -> Statistic:
        import numpy as np

        metric = aggregate.corpus_metric(name)
        references, hypotheses = aggregate.corpus(values)
        counts = metric._extract_corpus_statistics(hypotheses, references)

        def statistic(indices: np.ndarray) -> np.ndarray:
            return np.array([metric._aggregate_and_compute([counts[i] for i in row]).score for row in indices])

        return statistic

    return prepare


_CORPUS = ("bleu", "chrf", "chrf++", "ter")
STATISTICS: Mapping[str, Callable[[Sequence[Any]], Statistic]] = {
    "perplexity": _perplexity,
    "median": _median,
    "nanmean": _nanmean,
    "f1": _f1,
    "matthews_corrcoef": _matthews_corrcoef,
    **{name: _corpus_statistic(name) for name in _CORPUS},
}

"""Right values: recorded from lm-eval 0.4.13's own bootstrap and formulas, unless a formula stands beside them."""

import math
import random
import time

import pytest

from evaljax.scoring import stderr

NUMBERS = [-0.5, -2.25, -1.0, -3.5, -0.125, -1.75, -4.0]
WITH_NAN = [0.5, math.nan, 1.0, 2.5, math.nan, 0.25, 3.0]
LABELS = [(1, 1), (1, 0), (0, 1), (0, 0), (1, 1), (0, 0), (1, 1), (0, 1)]
THREE_LABELS = [(0, 0), (1, 2), (2, 2), (1, 1), (0, 1), (2, 0), (1, 1)]
PAIRS = [["the cat sat on the mat", "the cat sat on a mat"], ["a dog barks at the moon", "the dog barks at a moon"]]


def error(values, aggregation, iters=2500, metric="m"):
    return stderr.standard_error(values, aggregation, bootstrap_iters=iters, metric=metric)


@pytest.mark.parametrize(
    ("aggregation", "values", "few", "many"),
    [
        ("perplexity", NUMBERS, 4.341031251973202, 4.237170230029299),
        ("median", NUMBERS, 0.8625731496393491, 0.8745778992432065),
        ("nanmean", WITH_NAN, 0.5224925044444048, 0.5162137087052645),
        ("f1", LABELS, 0.22747342612771632, 0.19667979804752567),
        ("matthews_corrcoef", LABELS, 0.3479294451762288, 0.3565080592515313),
        ("matthews_corrcoef", THREE_LABELS, 0.32298337253355275, 0.2993307324525892),
    ],
)
def test_the_bootstrap_gives_lm_evals_very_numbers(aggregation, values, few, many):
    assert error(values, aggregation, iters=150) == pytest.approx(few, rel=1e-12)
    assert error(values, aggregation, iters=2500) == pytest.approx(many, rel=1e-12)


@pytest.mark.parametrize(
    ("aggregation", "value"),
    [
        ("bleu", 8.197876879037475),
        ("chrf", 0.587968818139083),
        ("chrf++", 0.6013018391732053),
        ("ter", 5.833333333333333),
    ],
)
def test_corpus_scores_are_drawn_a_hundred_times_at_most(aggregation, value):
    assert error(PAIRS, aggregation, iters=100_000, metric=aggregation) == pytest.approx(value, rel=1e-12)


def test_the_draws_are_those_of_random_choices():
    blocks = list(stderr.resamples(5, 2000))
    for seed in (0, 1):
        generator = random.Random(seed)
        expected = [generator.choices(range(5), k=5) for _ in range(1000)]
        assert [list(row) for row in blocks[seed]] == expected


def test_the_draws_do_not_depend_on_how_they_are_cut_into_blocks():
    blocks = list(stderr.resamples(30_000, 5))
    assert [len(block) for block in blocks] == [3, 2]
    generator = random.Random(0)
    rows = [generator.choices(range(30_000), k=30_000) for _ in range(5)]
    assert [list(row) for block in blocks for row in block] == rows


def test_the_mean_has_a_closed_form():
    # deviations from .6: 3 of .4, 2 of -.6; variance 1.2 / 4; sqrt(.3) / sqrt(5)
    assert error([1, 0, 1, 1, 0], "mean") == pytest.approx(math.sqrt(0.3 / 5))
    assert error([1, 0, 1, 1, 0], "mean", iters=1) == error([1, 0, 1, 1, 0], "mean")


@pytest.mark.parametrize("aggregation", ["mean", "median", "perplexity", "f1", "bleu"])
def test_one_document_has_no_standard_error(aggregation):
    assert error([(1, 1) if aggregation in ("f1", "bleu") else 1.0], aggregation) is None


def test_no_standard_error_without_replicates_or_a_method():
    assert error([1.0, 2.0], "mean", iters=0) is None
    assert error([1.0, 2.0], "median", iters=1) is None
    assert error([(-1.0, 2), (-2.0, 3)], "weighted_perplexity") is None
    assert error([(0, [1.0, 0.0]), (1, [0.5, 0.5])], "brier_score") is None
    assert error([1.0, 2.0], lambda values: 0.0) is None


def test_replicates_that_are_not_finite_leave_no_standard_error():
    assert error([-1e6, -1.0, -2.0], "perplexity") is None
    assert error([math.nan, math.nan, 1.0], "nanmean") is None


def test_wilson_interval_of_179_in_200():  # case C82
    low, high = stderr.wilson_interval(179, 200)
    assert (round(low, 4), round(high, 4)) == (0.8448, 0.9303)


def test_wilson_interval_has_width_at_the_ends():
    low, high = stderr.wilson_interval(0, 25)
    assert low == 0.0
    assert high == pytest.approx(1.96**2 / (25 + 1.96**2))
    assert stderr.wilson_interval(25, 25)[1] == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("aggregation", ["perplexity", "f1", "matthews_corrcoef"])
def test_a_hundred_thousand_replicates_of_a_thousand_documents_take_seconds(aggregation):
    generator = random.Random(0)
    values = [(generator.randint(0, 1), generator.randint(0, 1)) for _ in range(1000)]
    numbers = [-generator.random() for _ in range(1000)]
    start = time.perf_counter()
    assert error(numbers if aggregation == "perplexity" else values, aggregation, iters=100_000) > 0
    assert time.perf_counter() - start < 60  # seconds on an idle machine; one replicate at a time takes minutes

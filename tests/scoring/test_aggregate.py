import math

import pytest

from evaljax.core import errors
from evaljax.scoring import aggregate

PAIRS = [["the cat sat on the mat", "the cat sat on a mat"], ["a dog barks at the moon", "the dog barks at a moon"]]


def score(name, values):
    return aggregate.apply(name, values, where="task 't': metric 'm'")


def test_the_table_has_lm_evals_fourteen_aggregations():
    assert sorted(aggregate.AGGREGATIONS) == [
        "bits_per_byte", "bleu", "brier_score", "bypass", "chrf", "chrf++", "f1", "matthews_corrcoef", "mean", "median",
        "nanmean", "perplexity", "ter", "weighted_perplexity",
    ]  # fmt: skip


def test_aggregations_of_numbers():
    assert score("mean", [1, 0, True, 0.5]) == 0.625
    assert score("median", [4, 1, 3, 2]) == 3
    assert score("perplexity", [-1.0, -3.0]) == pytest.approx(math.exp(2))
    assert score("nanmean", [1.0, math.nan, 2.0]) == 1.5
    assert math.isnan(score("nanmean", [math.nan]))
    assert score("bypass", [None]) == 999


def test_aggregations_of_log_probabilities_weigh_by_units():
    assert score("weighted_perplexity", [(-4.0, 2), (-5.0, 1)]) == pytest.approx(math.exp(3))
    assert score("bits_per_byte", [(-4.0, 2), (-5.0, 1)]) == pytest.approx(3 / math.log(2))


def test_an_exponent_beyond_float64_gives_infinity_instead_of_a_crash():
    assert score("perplexity", [-1e6]) == math.inf
    assert score("weighted_perplexity", [(-1e6, 1)]) == math.inf


def test_f1_and_correlation_of_labels():
    labels = [(1, 1), (1, 0), (0, 1), (0, 0), (1, 1)]
    assert score("f1", labels) == pytest.approx(2 / 3)  # 2 hits, 1 missed, 1 false
    assert score("matthews_corrcoef", labels) == pytest.approx((2 * 1 - 1 * 1) / 6)
    assert score("f1", [(0, 0), (0, 0)]) == 0.0
    assert score("matthews_corrcoef", [(0, 0), (1, 0)]) == 0.0


def test_brier_score_of_unequal_numbers_of_choices():
    assert score("brier_score", [(0, [0.5, 0.5]), (2, [0.0, 0.0, 1.0])]) == pytest.approx(0.25)


def test_corpus_scores_are_sacrebleus():
    assert score("bleu", PAIRS) == pytest.approx(41.14010210203452)
    assert score("chrf", PAIRS) == pytest.approx(65.06719826854767)
    assert score("chrf++", PAIRS) == pytest.approx(66.51802624026256)
    assert score("ter", PAIRS) == pytest.approx(25.0)


def test_corpus_scores_take_several_references_and_one_text_in_a_list():
    values = [[["a b c d", "the cat sat on a mat"], ["the cat sat on a mat"]]]
    assert score("bleu", values) == pytest.approx(100.0)


def test_a_corpus_score_refuses_what_is_no_text():
    with pytest.raises(errors.TaskError, match=r"task 't': metric 'm': bleu, chrf and ter compare texts; found 3"):
        score("bleu", [["a", 3]])
    with pytest.raises(errors.TaskError, match="score one text for each document"):
        score("chrf", [["a", ["b", "c"]]])


def test_values_of_the_wrong_kind_are_named():
    with pytest.raises(errors.TaskError, match=r"a document's value is \(1, 0\); mean expects a number"):
        score("mean", [(1, 0)])
    with pytest.raises(errors.TaskError, match=r"a document's value is 0\.5; f1 expects a pair"):
        score("f1", [0.5])
    with pytest.raises(errors.TaskError, match="mean expects a number"):
        score("mean", ["yes"])


def test_f1_refuses_labels_that_it_cannot_take():
    with pytest.raises(errors.TaskError, match="f1 needs two labels, one of them 1"):
        score("f1", [(0, 1), (2, 2)])
    with pytest.raises(errors.TaskError, match="matthews_corrcoef needs one label for each document"):
        score("matthews_corrcoef", [([0, 1], 1), ([1], 1)])


def test_an_aggregation_of_the_tasks_own_gives_one_number():
    assert score(lambda values: sum(values) * 2, [1, 2]) == 6
    with pytest.raises(errors.TaskError, match=r"metric 'm': its aggregation: gave dict .* expected one number"):
        score(lambda values: {"a": 1}, [1, 2])


def test_numpy_numbers_become_pythons():
    np = pytest.importorskip("numpy")
    for value in (np.float32(0.5), np.int64(3), np.bool_(True), np.array(2.5)):
        result = score("mean", [value])
        assert type(result) in (int, float)
        assert result == float(value)


def test_empty_texts_have_no_perplexity():
    with pytest.raises(errors.TaskError, match="t: the texts of all 2 documents are empty"):
        aggregate.apply("weighted_perplexity", [(0.0, 0), (0.0, 0)], where="t")

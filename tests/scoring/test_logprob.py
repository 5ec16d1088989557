import pytest

from evaljax.core import errors
from evaljax.scoring import logprob


def test_words_are_counted_as_lm_eval_counts_them():  # case C22
    assert logprob.count_words(" hello world ") == 4
    assert logprob.count_words("hello\n\n world") == 2
    assert logprob.count_words("") == 1


def test_units_of_a_text():
    evidence = logprob.text("né à Paris", [-12.0], where="t")
    assert logprob.per_word(evidence) == (-12.0, 3)
    assert logprob.per_byte(evidence) == (-12.0, 12)


def test_a_continuation_has_a_log_probability_and_a_greedy_flag():
    evidence = logprob.continuation([(-2.5, True)], where="t")
    assert (logprob.logprob(evidence), logprob.acc(evidence)) == (-2.5, 1)


def test_answers_of_another_kind_are_refused():
    with pytest.raises(errors.TaskError, match="doc_to_target gives int; rolling log-likelihood needs the text"):
        logprob.text(3, [-1.0], where="t")
    with pytest.raises(errors.TaskError, match="expected one log-probability"):
        logprob.text("a", [[-1.0]], where="t")
    with pytest.raises(errors.TaskError, match=r"expected \(logprob, is_greedy\)"):
        logprob.continuation([[(-1.0, True)]], where="t")

import pytest

from evaljax.core import errors
from evaljax.scoring import passk


def test_pass_at_k_counts_subsets_with_a_correct_answer():
    assert passk.pass_at_k(5, 2, 3) == pytest.approx(0.9)
    assert passk.pass_at_k(10, 3, 1) == pytest.approx(0.3)
    assert passk.pass_at_k(4, 0, 4) == 0.0
    assert passk.pass_at_k(4, 1, 4) == 1.0


def test_pass_at_k_refuses_more_answers_than_were_sampled():
    with pytest.raises(errors.TaskError, match="k is 6; expected 1 to 5"):
        passk.pass_at_k(5, 2, 6)
    with pytest.raises(errors.TaskError, match="7 correct answers of 5"):
        passk.pass_at_k(5, 7, 1)

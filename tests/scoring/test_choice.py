import math

import pytest

from evaljax.core import errors, task
from evaljax.scoring import choice


def evidence(choices, logprobs, gold, greedy=None, unconditional=()):
    example = task.Example(
        doc_id=0, doc={}, target=gold, choices=tuple(choices), gold=gold, multiple_input=False, multiple_target=False,
        instances=(),
    )  # fmt: skip
    answers = list(zip(logprobs, greedy or [False] * len(logprobs), strict=True))
    return choice.evidence(example, answers + [(value, False) for value in unconditional], where="task 't', document 0")


def test_acc_norm_divides_by_characters_and_acc_bytes_by_bytes():  # case C25
    first, second = (evidence(["éééé", "abcdefg"], [-4.0, -5.0], gold) for gold in (0, 1))
    assert (choice.acc_norm(first), choice.acc_norm(second)) == (0.0, 1.0)  # -4/4 < -5/7
    assert (choice.acc_bytes(first), choice.acc_bytes(second)) == (1.0, 0.0)  # -4/8 > -5/7
    assert (choice.acc(first), choice.acc(second)) == (1.0, 0.0)


def test_of_equal_scores_the_first_wins_and_is_a_tie():
    assert choice.acc(evidence(["yes", "yes"], [-1.0, -1.0], 0)) == 1.0
    assert choice.acc(evidence(["yes", "yes"], [-1.0, -1.0], 1)) == 0.0
    assert choice.is_tied([-1.0, -2.0, -1.0])
    assert not choice.is_tied([-2.0, -2.0, -1.0])


def test_exact_match_is_the_greedy_flag_of_a_right_choice():
    assert choice.exact_match(evidence("ab", [-1.0, -2.0], 1, greedy=[False, True])) == 1
    assert choice.exact_match(evidence("ab", [-1.0, -2.0], 0, greedy=[False, True])) == 0
    assert choice.exact_match(evidence("ab", [-1.0, -2.0], [0, 1], greedy=[False, True])) == 1


def test_any_of_several_right_choices_counts():
    assert choice.acc(evidence("abc", [-3.0, -1.0, -2.0], [0, 1])) == 1.0
    assert choice.acc(evidence("abc", [-3.0, -1.0, -2.0], [0, 2])) == 0.0


def test_mutual_information_compares_with_the_choice_on_its_own():
    found = evidence("ab", [-1.0, -2.0], 1, unconditional=[-1.5, -6.0])  # gains .5 and 4
    assert choice.acc_mutual_info(found) == 1.0
    assert choice.acc(found) == 0.0


def test_mutual_information_needs_the_choices_on_their_own():
    with pytest.raises(errors.TaskError, match="acc_mutual_info needs the choices' own log-probabilities"):
        choice.acc_mutual_info(evidence("ab", [-1.0, -2.0], 1))


def test_probabilities_sum_to_one_over_the_choices():
    gold, probabilities = choice.probabilities(evidence("ab", [math.log(0.03), math.log(0.01)], "b"))
    assert gold == 1
    assert probabilities == pytest.approx([0.75, 0.25])
    assert choice.probabilities(evidence("ab", [-1e5, -2e5], 0)) == (0, [1.0, 0.0])


def test_pairs_for_scores_of_the_whole_set():
    found = evidence("ab", [-3.0, -1.0], 0)
    assert choice.label_pair(found) == (0, 1)
    assert choice.likelihoods(found) == (0, (-3.0, -1.0))
    assert choice.label_pair(evidence("ab", [-3.0, -1.0], [0, 1])) == ([0, 1], 1)


def test_a_label_may_be_the_text_of_a_choice_or_a_boolean():
    assert evidence(["no", "yes"], [-1.0, -2.0], "yes").label == 1
    assert evidence(["no", "yes"], [-1.0, -2.0], True).label == 1


@pytest.mark.parametrize("gold", [-1, 2, [0, 2], [-100]])
def test_a_label_outside_the_choices_is_refused(gold):
    with pytest.raises(errors.TaskError, match=r"task 't', document 0: the gold label -?\d+ is outside the 2 choices"):
        evidence("ab", [-1.0, -2.0], gold)


def test_a_label_that_is_no_choice_is_refused():
    with pytest.raises(errors.TaskError, match=r"the gold answer 'c' is not among the choices \['a', 'b'\]"):
        evidence("ab", [-1.0, -2.0], "c")
    with pytest.raises(errors.TaskError, match="the gold label is None; expected an index or the text"):
        evidence("ab", [-1.0, -2.0], None)


def test_an_empty_choice_has_no_length_to_divide_by():
    found = evidence(["a", ""], [-1.0, -2.0], 0)
    assert choice.acc(found) == 1.0
    with pytest.raises(errors.TaskError, match="choice 1 is empty; acc_norm and acc_bytes divide by its length"):
        choice.acc_norm(found)


def test_answers_that_are_not_one_for_each_choice_are_refused():
    with pytest.raises(errors.TaskError, match="3 answers for 2 choices"):
        evidence("ab", [-1.0, -2.0, -3.0], 0)
    example = task.Example(
        doc_id=0, doc={}, target=0, choices=("a",), gold=0, multiple_input=False, multiple_target=False, instances=()
    )
    with pytest.raises(
        errors.TaskError, match=r"expected \(logprob, is_greedy\). A filter pipeline ends with take_first"
    ):
        choice.evidence(example, [[(-1.0, True)]], where="task 't'")

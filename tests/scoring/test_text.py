import pytest

from evaljax.core import errors, task
from evaljax.scoring import text


def example(target, choices=None, multiple_target=False):
    return task.Example(
        doc_id=3, doc={}, target=target, choices=choices, gold=target, multiple_input=False,
        multiple_target=multiple_target, instances=(),
    )  # fmt: skip


def gold(target, result, choices=None, multiple_target=False, cast=True):
    found = example(target, choices, multiple_target)
    return text.gold_answer(found, result, has_choices=choices is not None, cast=cast, where="task 't', document 3")


def test_no_expressions_to_ignore_is_the_same_as_none_given():  # case C73
    assert text.exact_match(["a", "b"], ["a", "c"], regexes_to_ignore=[]) == 0.5
    assert text.exact_match(["a", "b"], ["a", "c"]) == 0.5


def test_what_is_to_be_ignored_goes_from_both_sides():
    assert text.exact_match(["$1,234."], ["1234"], regexes_to_ignore=[",", r"\$", r"\.$"]) == 1.0
    assert text.exact_match(["It's 5"], ["ITS"], ignore_case=True, ignore_punctuation=True, ignore_numbers=True) == 0.0
    assert text.exact_match(["It's5"], ["ITS"], ignore_case=True, ignore_punctuation=True, ignore_numbers=True) == 1.0
    assert text.exact_match(["a"], ["A"]) == 0.0


def test_expressions_go_before_case():
    assert text.exact_match(["ABC"], ["c"], regexes_to_ignore=["AB"], ignore_case=True) == 1.0
    assert text.exact_match(["ABC"], ["c"], regexes_to_ignore=["ab"], ignore_case=True) == 0.0


def test_white_space_counts_but_a_near_miss_is_seen():
    assert text.match_value("Paris", "Paris \n", several=False, kwargs={}) == 0.0
    assert text.is_near_miss("Paris", "paris \n", several=False, kwargs={})
    assert text.is_near_miss(["Rome", "Paris"], "paris", several=True, kwargs={})
    assert not text.is_near_miss("Paris", "Paris", several=False, kwargs={})
    assert not text.is_near_miss("Paris", "Rome", several=False, kwargs={})


def test_any_of_several_right_answers_counts():
    assert text.match_value(["a", "b"], "b", several=True, kwargs={}) == 1.0
    assert text.match_value(["a", "b"], "c", several=True, kwargs={}) == 0.0
    assert text.match_value([], "c", several=True, kwargs={}) == 0.0


def test_a_list_of_repeats_counts_as_their_mean():
    assert text.match_value("a", ["a", "b", "a", "c"], several=False, kwargs={}) == 0.5
    assert text.match_value(["a", "b"], ["a", "c"], several=False, kwargs={}) == 0.5
    assert text.match_value(["a", "b", "c"], ["a", "c"], several=False, kwargs={}) == 0.0
    assert text.match_value("a", [], several=False, kwargs={}) == 0.0


def test_a_gold_answer_takes_the_type_of_the_result():
    assert gold(42, "42") == "42"
    assert gold("42", 7) == 42
    assert gold(42, "42", cast=False) == 42
    assert gold(42, ["42"]) == 42
    assert gold("x", None) == "x"


def test_a_gold_answer_that_cannot_take_the_type_is_refused():
    with pytest.raises(errors.TaskError, match="task 't', document 3: the gold answer 'x' cannot be read as int"):
        gold("x", 7)


def test_several_gold_answers_are_a_list():
    assert gold(("a", "b"), "a", multiple_target=True) == ["a", "b"]
    assert gold("ab", "a", multiple_target=True) == ["ab"]


def test_with_choices_the_label_is_an_index():
    assert gold(1, "x", choices=("a", "b")) == "b"
    assert gold([0, 1], "x", choices=("a", "b"), multiple_target=True) == ["a", "b"]
    for label in (2, -1, "b"):
        with pytest.raises(errors.TaskError, match=r"the gold label is .*; with doc_to_choice, expected 0 to 1"):
            gold(label, "x", choices=("a", "b"))

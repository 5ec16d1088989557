"""Draws: lm-eval's single-process order, no document in front of itself."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaljax.core import errors
from evaljax.tasks import fewshot


def pool_of(docs, exclude=False, same_split=False):
    return fewshot.Pool(docs=docs, exclude=exclude, same_split=same_split)


def draw(pool, docs, wanted=None, num=2, seed=1234, sampler="default"):
    wanted = range(len(docs)) if wanted is None else wanted
    return list(fewshot.draws(pool, docs, list(wanted), sampler=sampler, num=num, seed=seed, where="task 't'"))


def docs_of(*values):
    return [{"x": value} for value in values]


def test_draws_are_those_of_one_generator_in_document_order():
    pool, docs = docs_of(*range(50)), docs_of(*range(100, 110))
    rng = random.Random(1234)
    assert draw(pool_of(pool), docs, num=5) == [rng.sample(range(50), 5) for _ in docs]


def test_exclusion_draws_one_more_and_drops_the_document():
    docs = docs_of(*range(12))
    rng, expected = random.Random(1234), []
    for i in range(12):
        expected.append([place for place in rng.sample(range(12), 4) if place != i][:3])
    assert draw(pool_of(docs, exclude=True, same_split=True), docs, num=3) == expected


def test_exclusion_draws_again_where_copies_leave_too_few():  # case C40
    docs = docs_of("a", "b", "a", "c")
    for seed in range(50):
        places = draw(pool_of(docs, exclude=True, same_split=True), docs, wanted=[0], num=2, seed=seed)[0]
        assert sorted(places) == [1, 3]


@pytest.mark.parametrize("seed", range(20))
def test_no_two_copies_of_the_document_stand_before_it(seed):  # case C40
    pool = docs_of("other", "self", "more", "self")
    (places,) = draw(pool_of(pool), docs_of("self"), num=2, seed=seed)
    assert sorted(places) == [0, 2]


@given(size=st.integers(4, 20), num=st.integers(1, 3), seed=st.integers(0, 10_000), data=st.data())
@settings(max_examples=200, deadline=None)
def test_no_document_stands_before_itself_and_other_draws_are_lm_evals(size, num, seed, data):
    values = data.draw(st.lists(st.integers(0, size), min_size=size, max_size=size))
    if max(values.count(v) for v in values) > size - num:
        return
    docs = docs_of(*values)
    rng = random.Random(seed)
    for doc, places in zip(docs, draw(pool_of(docs, same_split=True), docs, num=num, seed=seed), strict=True):
        plain = rng.sample(range(size), num)
        assert len(set(places)) == num
        assert all(docs[place] != doc for place in places)
        assert [p for p in plain if docs[p] != doc] == [p for p, q in zip(places, plain, strict=True) if docs[q] != doc]


@pytest.mark.parametrize("exclude", [False, True])
@pytest.mark.parametrize("sampler", ["default", "first_n"])
def test_a_selection_of_documents_draws_as_the_full_run(sampler, exclude):  # case C37
    docs = docs_of(*range(12))
    pool = pool_of(docs, exclude=exclude, same_split=True)
    full = draw(pool, docs, num=3, sampler=sampler)
    assert draw(pool, docs, wanted=[3, 7], num=3, sampler=sampler) == [full[3], full[7]]


def test_first_n_takes_the_first_and_skips_the_document():
    docs = docs_of(*range(6))
    assert draw(pool_of(docs, same_split=True), docs, wanted=[0, 1, 5], sampler="first_n") == [[1, 2], [0, 2], [0, 1]]


def test_fixed_examples_that_repeat_a_document_of_another_split_stay():
    pool = docs_of("a", "b")
    assert draw(pool_of(pool), docs_of("a"), num=2, sampler="first_n") == [[0, 1]]


def test_too_many_shots_give_both_numbers():  # case C41
    pool, docs = docs_of(*range(30)), docs_of("x")
    with pytest.raises(
        errors.TaskError, match="task 't': 31 few-shot examples are asked for, but the pool has only 30"
    ):
        draw(pool_of(pool), docs, num=31)
    assert sorted(draw(pool_of(pool), docs, num=30)[0]) == list(range(30))
    assert sorted(draw(pool_of(pool, exclude=True), docs, num=30)[0]) == list(range(30))


@pytest.mark.parametrize("exclude", [False, True])
def test_a_pool_too_small_without_the_document_is_an_error(exclude):
    docs = docs_of(*range(3))
    with pytest.raises(
        errors.TaskError, match="document 0: 3 few-shot examples are asked for, but the pool has only 2"
    ):
        draw(pool_of(docs, exclude=exclude, same_split=True), docs, num=3)


def test_an_unknown_sampler_names_the_nearest():
    with pytest.raises(errors.TaskError, match=r"unknown fewshot_config.sampler 'first_m'. Did you mean 'first_n'"):
        draw(pool_of(docs_of(1, 2)), docs_of(3), sampler="first_m")
    with pytest.raises(errors.TaskError, match=r"fewshot_config.sampler must be one of default, first_n, found <class"):
        draw(pool_of(docs_of(1, 2)), docs_of(3), sampler=int)


@pytest.mark.parametrize("exclude", [False, True])
@pytest.mark.parametrize("sampler", ["default", "first_n"])
def test_in_its_own_split_no_row_that_reads_the_same_stands_before_a_document(sampler, exclude):
    docs = [{"id": i, "x": i % 5} for i in range(10)]

    def reads_as(place, doc_id):
        return docs[place]["x"] == docs[doc_id]["x"]

    pool = fewshot.Pool(docs=docs, exclude=exclude, same_split=True, reads_as=reads_as)
    for doc_id, places in enumerate(draw(pool, docs, num=8, sampler=sampler)):
        assert len(set(places)) == 8
        assert all(docs[place]["x"] != docs[doc_id]["x"] for place in places)
    with pytest.raises(
        errors.TaskError, match="document 0: 9 few-shot examples are asked for, but the pool has only 8"
    ):
        draw(pool, docs, num=9, sampler=sampler)

"""The trie against what the words mean: every token of every sequence sees its own prefix, and nothing else."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaljax.engine import trie

SEQUENCES = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=9), min_size=0, max_size=25)


def arrays(*sequences: list[int]) -> list[np.ndarray]:
    return [np.asarray(sequence, np.int32) for sequence in sequences]


def seen_by(forest: trie.Trie, query: int) -> list[int]:
    return [k for k in range(query + 1) if forest.end[k] > query]


def test_the_picture_in_the_module_is_what_is_built() -> None:
    forest, last = trie.build(arrays([6, 7], [1, 2, 3, 4], [1, 2, 5]))
    assert forest.tokens.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert forest.depth.tolist() == [0, 1, 2, 3, 2, 0, 1]
    assert forest.end.tolist() == [5, 5, 4, 4, 5, 7, 7]
    assert last.tolist() == [6, 3, 4]
    assert (forest.unique_tokens, forest.height) == (7, 4)


def test_no_sequences_make_an_empty_trie() -> None:
    forest, last = trie.build([])
    assert (forest.unique_tokens, forest.height, len(last)) == (0, 0, 0)


def test_ids_sort_as_numbers_not_as_little_endian_bytes() -> None:
    forest, last = trie.build(arrays([256], [1], [70_000]))
    assert forest.tokens.tolist() == [1, 256, 70_000]
    assert last.tolist() == [1, 0, 2]


@pytest.mark.parametrize("share", [True, False])
@settings(deadline=None, max_examples=200)
@given(sequences=SEQUENCES, data=st.data())
def test_every_tail_token_sees_exactly_its_own_prefix(
    sequences: list[list[int]], share: bool, data: st.DataObject
) -> None:
    sequences += [s[: len(s) // 2 + 1] for s in sequences[:5]] + sequences[:3]  # nested and duplicate
    tails = [data.draw(st.integers(1, len(s))) for s in sequences]
    forest, places = trie.build(arrays(*sequences), tails, share=share)
    assert len(places) == sum(tails)
    flat = iter(places.tolist())
    for sequence, tail in zip(sequences, tails, strict=True):
        for length in range(len(sequence) - tail + 1, len(sequence) + 1):
            seen = seen_by(forest, next(flat))
            assert forest.tokens[seen].tolist() == sequence[:length]
            assert forest.depth[seen].tolist() == list(range(length))


@settings(deadline=None, max_examples=200)
@given(sequences=SEQUENCES)
def test_shared_tokens_are_there_once_and_unshared_ones_for_every_sequence(sequences: list[list[int]]) -> None:
    prefixes = {tuple(s[:n]) for s in sequences for n in range(1, len(s) + 1)}
    assert trie.build(arrays(*sequences))[0].unique_tokens == len(prefixes)
    assert trie.build(arrays(*sequences), share=False)[0].unique_tokens == sum(map(len, sequences))


@settings(deadline=None, max_examples=100)
@given(sequences=SEQUENCES.filter(bool))
def test_ancestors_are_the_path_from_the_root(sequences: list[list[int]]) -> None:
    forest, _ = trie.build(arrays(*sequences))
    for index in range(forest.unique_tokens):
        path = trie.ancestors(forest, index)
        assert path.tolist() == seen_by(forest, index)[:-1]
        assert forest.depth[path].tolist() == list(range(int(forest.depth[index])))


@settings(deadline=None, max_examples=100)
@given(sequences=SEQUENCES, seed=st.integers(0, 99))
def test_the_order_of_sequences_changes_nothing_but_the_order_of_places(sequences: list[list[int]], seed: int) -> None:
    order = np.random.default_rng(seed).permutation(len(sequences))
    forest, places = trie.build(arrays(*sequences))
    shuffled, moved = trie.build(arrays(*(sequences[i] for i in order)))
    assert np.array_equal(forest.tokens, shuffled.tokens)
    assert np.array_equal(forest.end, shuffled.end)
    assert np.array_equal(places[order], moved)


def test_common_prefix_counts_equal_leading_tokens() -> None:
    assert trie.common_prefix(np.array([1, 2, 3]), np.array([1, 2, 4, 5])) == 2
    assert trie.common_prefix(np.array([1, 2]), np.array([1, 2, 4])) == 2
    assert trie.common_prefix(np.array([], np.int32), np.array([1])) == 0

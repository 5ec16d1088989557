"""The order of prefill, its pieces and the shape of the decode step: numbers only, no model."""

import itertools

import numpy as np
import pytest

from evaljax.engine import schedule


def prompt(*parts: tuple[int, int]) -> np.ndarray:
    return np.concatenate([np.full(count, token, np.int32) for token, count in parts])


def test_branches_go_costliest_first_and_stay_together() -> None:
    prompts = [
        prompt((1, 20), (7, 5)),
        prompt((2, 90)),
        prompt((1, 20), (8, 50)),
        prompt((3, 4)),
        prompt((1, 20), (9, 95)),
    ]
    costs = [p.size for p in prompts]
    assert schedule.order(prompts, costs) == [4, 2, 0, 1, 3]  # header 1: 115, 70, 25; then 90; then 4
    assert schedule.order(prompts, costs, share=False) == [4, 1, 2, 0, 3]


def test_prompts_that_share_nothing_go_longest_first() -> None:
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 1000, size).astype(np.int32) for size in rng.permutation(np.arange(1, 60))]
    sizes = [prompts[i].size for i in schedule.order(prompts, [p.size for p in prompts])]
    assert sizes == sorted(sizes, reverse=True)


def test_the_order_is_a_permutation_that_forwards_each_shared_stretch_once() -> None:
    rng = np.random.default_rng(1)
    headers = [rng.integers(0, 50, 64).astype(np.int32) for _ in range(4)]
    prompts = [np.concatenate([headers[i % 4], rng.integers(50, 90, 1 + i % 13).astype(np.int32)]) for i in range(60)]
    order = schedule.order(prompts, [p.size for p in prompts])
    assert sorted(order) == list(range(60))
    headers_in_order = [i % 4 for i in order]
    assert sum(a != b for a, b in itertools.pairwise(headers_in_order)) == 3


def test_a_chain_of_prompts_each_the_beginning_of_the_next() -> None:
    prompts = [np.arange(size, dtype=np.int32) for size in range(20, 400, 20)]
    order = schedule.order(prompts, [p.size for p in prompts])
    assert sorted(order) == list(range(len(prompts)))
    assert schedule.order([], []) == []


@pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [
        (0, 0, []),
        (5, 6, [(5, 6, 32)]),
        (0, 32, [(0, 32, 32)]),
        (0, 100, [(0, 32, 32), (32, 64, 32), (64, 96, 32), (96, 100, 32)]),
        (10, 300, [(10, 266, 256), (266, 298, 32), (298, 300, 32)]),
        (0, 129, [(0, 129, 256)]),
    ],
)
def test_chunks_cover_the_stretch_with_two_lengths(start: int, stop: int, expected: list[tuple[int, int, int]]) -> None:
    assert schedule.chunks(start, stop, (32, 256)) == expected


def test_the_options_may_shorten_the_chunks() -> None:
    assert schedule.chunk_lengths("cpu") == (64, 256)
    assert schedule.chunk_lengths("cpu", 512) == (64, 512)
    assert schedule.chunk_lengths("cpu", 16) == (16, 16)


def test_the_cache_is_as_short_as_the_work_and_memory_bounds_the_slots() -> None:
    def shape(
        num_slots: int = 0, free_bytes: int | None = None, lengths: tuple[int, ...] = (200, 300) * 50
    ) -> schedule.Shape:
        return schedule.shape(lengths, 2048, 1000, num_slots=num_slots, platform="gpu", free_bytes=free_bytes)

    assert shape() == schedule.Shape(num_slots=64, length=384, cache_bytes=65 * 384 * 1000)
    assert shape(lengths=(5, 6, 7)) == schedule.Shape(num_slots=3, length=128, cache_bytes=4 * 128 * 1000)
    assert shape(free_bytes=20 * 384 * 1000).num_slots == 9  # half of the memory, one row of it for the path
    assert shape(free_bytes=1).num_slots == 1
    assert shape(num_slots=5).num_slots == 5

"""The order of prefill, its pieces and the shape of the decode step: numbers only, no model."""

import itertools
from typing import Any

import numpy as np
import pytest

from evaljax.core import config
from evaljax.engine import schedule, shapes


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


def headed(header: int, size: int, count: int, seed: int) -> list[np.ndarray]:
    """Prompts with a header of their own, and `size` further tokens each."""
    rng = np.random.default_rng(seed)
    start = rng.integers(0, 10_000, header)
    return [np.concatenate([start, rng.integers(0, 10_000, size)]).astype(np.int32) for _ in range(count)]


def group_sizes(prompts: list[np.ndarray], num_slots: int) -> list[tuple[int, int]]:
    groups = schedule.groups(prompts, [p.size for p in prompts], num_slots)
    assert sorted(i for group in groups for i in group.members) == list(range(len(prompts)))
    for group in groups:
        assert len({prompts[i][: group.stem].tobytes() for i in group.members}) == 1
        assert all(prompts[i].size > group.stem for i in group.members)
    return [(group.stem, len(group.members)) for group in groups]


def test_a_header_is_a_stem_if_it_pays() -> None:
    assert group_sizes(headed(1000, 40, 24, 1), 32) == [(1000, 24)]
    assert group_sizes(headed(63, 40, 24, 1), 32) == [(0, 24)]  # too short
    many = [*headed(1000, 40, 24, 1), *headed(700, 30, 30, 2), *headed(700, 20, 5, 3), *headed(0, 50, 5, 4)]
    assert group_sizes(many, 32) == [(1000, 24), (700, 30), (0, 10)]
    assert group_sizes(headed(100, 5, 3, 5) + headed(0, 90, 1, 6), 32) == [(0, 4)]  # few, and not all


def test_a_header_within_a_header_is_a_stem_where_it_saves_more() -> None:
    outer = headed(300, 0, 1, 1)[0]
    inner = [np.concatenate([outer, prompt]) for prompt in headed(600, 9, 40, 2)]
    plain = [np.concatenate([outer, prompt]) for prompt in headed(0, 9, 4, 3)]
    assert group_sizes([*inner, *plain], 2) == [(900, 40), (0, 4)]
    assert group_sizes([*inner[:4], *plain, *plain[:1]], 8) == [(300, 9)]


def test_prompts_that_begin_one_another_share_all_but_a_last_token() -> None:
    prompts = [np.arange(size, dtype=np.int32) for size in (100, 120, 120, 300)]
    assert group_sizes(prompts, 1) == [(99, 4)]
    assert group_sizes(prompts[:1], 1) == [(0, 1)]


def shape(
    lengths: tuple[int, ...] = (190, 290) * 50, stem: int = 0, memory_bytes: int = 1 << 50, **options: Any
) -> schedule.Shape:
    return schedule.shape(
        [schedule.Group(stem, tuple(range(len(lengths))))],
        lengths,
        [10] * len(lengths),
        machine=shapes.Machine(platform="gpu", num_groups=2, slot_bytes=1000, memory_bytes=memory_bytes),
        options=config.EngineOptions(**options),
    )


def test_caches_are_as_short_as_the_work() -> None:
    assert shape() == schedule.Shape(
        num_slots=100, slot_length=384, path_length=384, text_length=384, chunk_lengths=(128, 1024), num_groups=2
    )
    assert shape(stem=180).slot_length == 128
    assert shape(lengths=(5, 6, 7)).num_slots == 4  # a multiple of the parts of the mesh


def test_memory_bounds_the_slots() -> None:
    beside = (384 + 1024) * 1000  # the path
    assert shape(memory_bytes=2 * (beside + 9 * 384 * 1000)).num_slots == 18
    assert shape(memory_bytes=1).num_slots == 2
    assert shape(num_slots=5).num_slots == 6
    assert shape(num_slots=8).smaller() == shape(num_slots=4)
    assert shape(num_slots=2).smaller() is None


def test_a_deterministic_shape_depends_on_no_option_and_has_one_grid() -> None:
    assert shape(deterministic=True, num_slots=3).num_slots == schedule.DETERMINISTIC_SLOTS
    assert shape(deterministic=True).chunk_lengths == (1024, 1024)

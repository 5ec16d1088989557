"""The plan, carried out by a symbolic device: a hidden state is the very tuple of tokens that a position sees."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaljax.core import config
from evaljax.engine import encode, plan, shapes, trie

OPTIONS = config.EngineOptions()
SEQUENCES = st.lists(st.lists(st.integers(0, 3), min_size=2, max_size=12), min_size=0, max_size=30)


def encoded(sequences: list[list[int]], counts: list[int]) -> list[encode.Encoded]:
    return [encode.Encoded(np.asarray(s, np.int32), n) for s, n in zip(sequences, counts, strict=True)]


def laid_out(sequences: list[encode.Encoded], shape: shapes.Shape, *, share: bool = True, grain: int = 1) -> plan.Plan:
    counts = np.asarray([s.num_targets for s in sequences], np.int64)
    targets = np.concatenate([s.tokens[-s.num_targets :] for s in sequences] or [np.empty(0, np.int32)])
    forest, places = trie.build([s.tokens[:-1] for s in sequences], counts.tolist(), share=share, grain=grain)
    return plan.lay_out(forest, places, targets, counts, shape, grain=grain)


def run_symbolically(job: plan.Plan) -> list[tuple[tuple[int, ...], int]]:
    """What each pair's answer is: (the context that predicts, the target)."""
    shape = job.shape
    cache: list[list[int]] = [[-1] * shape.cache_length for _ in range(shape.num_rows)]
    answers: list[tuple[tuple[int, ...], int]] = []
    for step in range(job.num_steps):
        inputs, table = plan.step_inputs(job, step)
        tokens, positions, end, base, slots = inputs
        hidden = []
        for b in range(shape.num_rows):
            for q in range(shape.chunk_length):
                seen = [k for k in range(q + 1) if end[b, k] > q]
                context = tuple(cache[b][: base[b, q]]) + tuple(tokens[b, seen].tolist())
                assert len(context) == positions[b, q] + 1
                hidden.append(context)
        for b in range(shape.num_rows):
            kept = [slot for slot in slots[b].tolist() if slot < shape.cache_length]
            assert len(kept) == len(set(kept))
            for k, slot in enumerate(slots[b].tolist()):
                if slot < shape.cache_length:
                    cache[b][slot] = int(tokens[b, k])
        found = table_answers(shape, table, hidden)
        answers += [found[place] for place in job.pair_place[job.pair_start[step] : job.pair_start[step + 1]]]
    return answers


def table_answers(shape: shapes.Shape, table: plan.Table, hidden: list) -> list:
    """The step's flat [G, R, J] answers; None where nothing was computed."""
    of_group = len(hidden) // shape.num_groups
    return [
        (hidden[group * of_group + token], target) if row < table.count else None
        for group in range(shape.num_groups)
        for row, (token, line) in enumerate(zip(table.tokens[group], table.targets[group].tolist(), strict=True))
        for target in line
    ]


@pytest.mark.parametrize(("share", "whole_blocks"), [(True, False), (False, False), (True, True)])
@settings(deadline=None, max_examples=150)
@given(sequences=SEQUENCES, data=st.data())
def test_every_target_is_predicted_from_its_own_context(
    sequences: list[list[int]], share: bool, whole_blocks: bool, data: st.DataObject
) -> None:
    sequences += [s[: len(s) // 2 + 1] for s in sequences[:5]] + sequences[:4]
    counts = [data.draw(st.integers(1, len(s) - 1)) for s in sequences]
    groups, length = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 9))
    shape = shapes.Shape(
        num_rows=groups * data.draw(st.integers(1, 3)),
        num_groups=groups,
        chunk_length=length,
        cache_length=data.draw(st.integers(12, 20)),
        table_rows=data.draw(st.integers(1, 7)),
        table_targets=data.draw(st.integers(1, 3)),
    )
    job = laid_out(encoded(sequences, counts), shape, share=share, grain=length if whole_blocks else 1)
    answers = run_symbolically(job)
    found = iter(job.pair_of_target.tolist())
    for sequence, count in zip(sequences, counts, strict=True):
        for n in range(len(sequence) - count, len(sequence)):
            assert answers[next(found)] == (tuple(sequence[:n]), sequence[n])
    assert next(found, None) is None


def test_a_chunk_of_whole_blocks_is_a_block_of_one_path_wherever_it_stands() -> None:
    """What a deterministic plan forwards for a sequence does not depend on what else is asked."""
    random = np.random.default_rng(0)
    sequences = [random.integers(0, 2, random.integers(2, 12)).tolist() for _ in range(40)]

    def chunks(of: list[list[int]], num_rows: int) -> set[tuple[int, ...]]:
        shape = shapes.Shape(num_rows=num_rows, chunk_length=4, cache_length=12)
        job = laid_out(encoded(of, [1] * len(of)), shape, grain=4)
        steps = [plan.step_inputs(job, step)[0] for step in range(job.num_steps)]
        for _, positions, end, base, _ in (inputs[:, row] for inputs in steps for row in range(num_rows)):
            filled = max(1, int(end[0]))
            assert positions[0] % 4 == 0
            assert (end[:filled] == filled).all()
            assert (base[:filled] == positions[0]).all()
            assert (np.diff(positions[:filled]) == 1).all()
        return {
            (int(inputs[1, row, 0]), *inputs[0, row, : inputs[2, row, 0]].tolist())
            for inputs in steps
            for row in range(num_rows)
        }

    together = chunks(sequences, 1)
    assert together <= chunks(sequences, 3)
    for sequence in sequences:
        assert chunks([sequence], 1) <= together


def test_choices_of_one_token_share_one_position_and_one_table_row() -> None:
    """C02: the answers of four one-token choices come from one forward row and one vocabulary row."""
    job = laid_out(
        encoded([[5, 6, 7, 20 + c] for c in range(4)], [1] * 4),
        shapes.Shape(num_rows=1, chunk_length=64, cache_length=256),
    )
    figures = job.summary()
    assert (figures["unique_tokens"], figures["scored_positions"], figures["targets"]) == (3, 1, 4)
    assert job.entry_token.tolist() == [2]
    assert job.pair_of_target.tolist() == job.pair_place.tolist() == [0, 1, 2, 3]


def test_a_position_with_more_targets_than_a_table_row_takes_several() -> None:
    shape = shapes.Shape(num_rows=1, chunk_length=4, cache_length=16, table_targets=2)
    job = laid_out(encoded([[5, 20 + c] for c in range(5)], [1] * 5), shape)
    assert job.entry_token.tolist() == [0, 0, 0]
    assert job.entry_targets.tolist() == [[20, 21], [22, 23], [24, 0]]


def test_figures_count_what_a_request_at_a_time_engine_forwards_and_what_this_one_does() -> None:
    requests = encoded([[1, 2, 3, 4, 9], [1, 2, 3, 5, 9], [1, 2, 3, 4, 8]], [1, 1, 1])
    job = plan.plan_loglikelihood(requests, options=OPTIONS, max_length=2048)
    figures = job.summary()
    assert figures["requests"] == 3
    assert figures["request_tokens"] == 12
    assert figures["unique_tokens"] == 5
    assert figures["forward_tokens"] == 64
    assert figures["forwarded_per_unique"] == 12.8
    assert figures["attended_tokens"] == 1 + 2 + 3 + 4 + 4
    shape = {"rows": 1, "tokens": 64, "cache": 256, "groups": 1, "scored": 128, "targets": 4}
    assert figures["shapes"] == [{"executable": "score", **shape}]


def test_nothing_to_do_is_a_plan_without_steps() -> None:
    job = plan.plan_loglikelihood([], options=OPTIONS, max_length=2048)
    assert job.num_steps == 0
    assert job.summary()["forwarded_per_unique"] == 1.0


def test_options_choose_chunk_length_and_rows() -> None:
    options = config.EngineOptions(chunk_length=5, num_rows=3)
    job = plan.plan_loglikelihood(encoded([list(range(40))], [3]), options=options, max_length=64)
    assert (job.shape.chunk_length, job.shape.num_rows, job.shape.cache_length) == (5, 3, 128)


def shape_for(size: int, height: int = 300, *, max_length: int = 2048, **machine) -> shapes.Shape:
    return shapes.choose_shape(size, height, options=OPTIONS, max_length=max_length, machine=shapes.Machine(**machine))


@pytest.mark.parametrize(("tokens", "rows"), [(100, 1), (40_000, 8), (4_000_000, 16)])
def test_accelerators_get_rows_when_there_is_work_for_them(tokens: int, rows: int) -> None:
    shape = shape_for(tokens, platform="gpu")
    assert (shape.num_rows, shape.chunk_length) == (rows, 512)


@pytest.mark.parametrize(("tokens", "length"), [(5, 64), (300, 64), (1459, 256), (1_000_000, 256)])
def test_chunks_are_short_where_a_long_one_would_mostly_be_padding(tokens: int, length: int) -> None:
    shape = shape_for(tokens)
    assert (shape.num_rows, shape.chunk_length) == (1, length)


def test_long_caches_leave_room_for_fewer_rows() -> None:
    shape = shape_for(4_000_000, 16_000, max_length=16_384, platform="gpu", slot_bytes=1 << 17, memory_bytes=16 << 30)
    assert (shape.num_rows, shape.cache_length) == (4, 16_384)


def test_every_group_of_a_mesh_gets_as_many_rows_and_at_least_one() -> None:
    assert shape_for(7, num_groups=8).num_rows == 8
    assert shape_for(4_000_000, num_groups=8, platform="tpu").num_rows == 128
    options = config.EngineOptions(num_rows=9)
    shape = shapes.choose_shape(500, 20, options=options, max_length=64, machine=shapes.Machine(num_groups=8))
    assert shape.num_rows == 16


def test_a_smaller_step_has_fewer_rows_then_shorter_ones_until_there_is_nothing_to_take() -> None:
    shape: shapes.Shape | None = shapes.Shape(num_rows=8, chunk_length=64, cache_length=256, num_groups=2)
    sizes = []
    while shape is not None:
        sizes.append((shape.num_rows, shape.chunk_length))
        shape = shape.smaller()
    assert sizes == [(8, 64), (4, 64), (2, 64), (2, 32), (2, 16)]


def test_rows_are_balanced_and_little_is_forwarded_twice() -> None:
    random = np.random.default_rng(0)
    header = random.integers(0, 500, 100).tolist()
    sequences = [header + random.integers(0, 500, 40).tolist() for _ in range(200)]
    shape = shapes.Shape(num_rows=8, chunk_length=64, cache_length=256)
    job = laid_out(encoded(sequences, [2] * 200), shape)
    assert job.forward_tokens <= 1.25 * job.unique_tokens
    one_row = laid_out(encoded(sequences, [2] * 200), dataclasses.replace(shape, num_rows=1))
    assert one_row.forward_tokens - one_row.unique_tokens < 64


def test_equal_work_gives_equal_plans() -> None:
    requests = encoded([[1, 2, 3], [1, 2, 4], [1, 5]], [1, 2, 1])
    first, second = (plan.plan_loglikelihood(requests, options=OPTIONS, max_length=99) for _ in range(2))
    assert first.summary() == second.summary()
    assert np.array_equal(first.pair_of_target, second.pair_of_target)
    assert np.array_equal(plan.step_inputs(first, 0)[0], plan.step_inputs(second, 0)[0])

"""The plan, carried out by a symbolic device: a hidden state is the very tuple of tokens that a position sees."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaljax.core import config
from evaljax.engine import encode, plan, trie

OPTIONS = config.EngineOptions()
SEQUENCES = st.lists(st.lists(st.integers(0, 3), min_size=2, max_size=12), min_size=0, max_size=30)


def encoded(sequences: list[list[int]], counts: list[int]) -> list[encode.Encoded]:
    return [encode.Encoded(np.asarray(s, np.int32), n) for s, n in zip(sequences, counts, strict=True)]


def laid_out(sequences: list[encode.Encoded], shape: plan.Shape, share: bool = True) -> plan.Plan:
    counts = np.asarray([s.num_targets for s in sequences], np.int64)
    targets = np.concatenate([s.tokens[-s.num_targets :] for s in sequences] or [np.empty(0, np.int32)])
    forest, places = trie.build([s.tokens[:-1] for s in sequences], counts.tolist(), share=share)
    return plan.lay_out(forest, places, targets, counts, shape)


def run_symbolically(job: plan.Plan) -> list[tuple[tuple[int, ...], int] | None]:
    """What each place of the answers holds: (the context that predicts, the target)."""
    shape = job.shape
    cache: list[list[int]] = [[-1] * shape.cache_length for _ in range(shape.num_rows)]
    pool: list[tuple[int, ...] | None] = [None] * shape.pool_size
    answers: list[tuple[tuple[int, ...], int] | None] = []
    for step in range(job.num_steps):
        inputs, fill = plan.step_inputs(job, step)
        tokens, positions, end, base, slots, take = inputs
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
        pool[int(fill) : int(fill) + take.size] = [hidden[i] for i in take.reshape(-1)]
        assert len(pool) == shape.pool_size
        for call, (after, _, _) in enumerate(job.calls):
            if after == step:
                answers += table_answers(job, call, pool)
    return answers


def table_answers(job: plan.Plan, call: int, pool: list) -> list:
    rows, targets, count = plan.reduce_inputs(job, call)
    filled = zip(rows.tolist(), targets.tolist(), strict=True)
    return [(pool[row], t) if i < count else None for i, (row, line) in enumerate(filled) for t in line]


@pytest.mark.parametrize("share", [True, False])
@settings(deadline=None, max_examples=150)
@given(sequences=SEQUENCES, data=st.data())
def test_every_target_is_predicted_from_its_own_context(
    sequences: list[list[int]], share: bool, data: st.DataObject
) -> None:
    sequences += [s[: len(s) // 2 + 1] for s in sequences[:5]] + sequences[:4]
    counts = [data.draw(st.integers(1, len(s) - 1)) for s in sequences]
    rows, length = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 9))
    shape = plan.Shape(
        num_rows=rows,
        chunk_length=length,
        cache_length=data.draw(st.integers(12, 20)),
        pool_size=rows * length + data.draw(st.integers(0, 12)),
        table_rows=data.draw(st.integers(1, 7)),
        table_targets=data.draw(st.integers(1, 3)),
    )
    job = laid_out(encoded(sequences, counts), shape, share)
    answers = run_symbolically(job)
    found = iter(job.pair_of_target.tolist())
    for sequence, count in zip(sequences, counts, strict=True):
        for n in range(len(sequence) - count, len(sequence)):
            assert answers[next(found)] == (tuple(sequence[:n]), sequence[n])
    assert next(found, None) is None
    assert job.summary()["buckets"] == {"forward": job.num_steps, "reduce": len(job.calls)}


def test_choices_of_one_token_share_one_position_and_one_table_row() -> None:
    """C02: the answers of four one-token choices come from one forward row and one vocabulary row."""
    job = laid_out(
        encoded([[5, 6, 7, 20 + c] for c in range(4)], [1] * 4),
        plan.Shape(num_rows=1, chunk_length=64, cache_length=256, pool_size=128),
    )
    figures = job.summary()
    assert (figures["unique_tokens"], figures["scored_positions"], figures["targets"]) == (3, 1, 4)
    assert job.calls == ((0, 0, 1),)
    assert job.pair_of_target.tolist() == [0, 1, 2, 3]


def test_a_position_with_more_targets_than_a_table_row_takes_several() -> None:
    shape = plan.Shape(num_rows=1, chunk_length=4, cache_length=16, pool_size=8, table_targets=2)
    job = laid_out(encoded([[5, 20 + c] for c in range(5)], [1] * 5), shape)
    assert job.calls == ((0, 0, 3),)
    assert job.table_pool.tolist() == [0, 0, 0]


def test_figures_count_what_a_request_at_a_time_engine_forwards_and_what_this_one_does() -> None:
    requests = encoded([[1, 2, 3, 4, 9], [1, 2, 3, 5, 9], [1, 2, 3, 4, 8]], [1, 1, 1])
    job = plan.plan_loglikelihood(requests, options=OPTIONS, max_length=2048)
    figures = job.summary()
    assert figures["requests"] == 3
    assert figures["request_tokens"] == 12
    assert figures["unique_tokens"] == 5
    assert figures["forward_tokens"] == 64
    assert figures["forwarded_per_unique"] == 12.8
    assert figures["shapes"][0] == {"executable": "forward", "rows": 1, "tokens": 64, "cache": 256}


def test_nothing_to_do_is_a_plan_without_steps() -> None:
    job = plan.plan_loglikelihood([], options=OPTIONS, max_length=2048)
    assert job.num_steps == 0
    assert job.calls == ()
    assert job.summary()["forwarded_per_unique"] == 1.0


def test_options_choose_chunk_length_and_rows() -> None:
    options = config.EngineOptions(chunk_length=5, num_rows=3)
    job = plan.plan_loglikelihood(encoded([list(range(40))], [3]), options=options, max_length=64)
    assert (job.shape.chunk_length, job.shape.num_rows, job.shape.cache_length) == (5, 3, 128)


@pytest.mark.parametrize(("tokens", "rows"), [(100, 1), (40_000, 8), (4_000_000, 16)])
def test_accelerators_get_rows_when_there_is_work_for_them(tokens: int, rows: int) -> None:
    forest = trie.Trie(*(np.zeros(tokens, np.int32) for _ in range(3)))
    shape = plan.choose_shape(forest, options=OPTIONS, max_length=2048, platform="gpu")
    assert (shape.num_rows, shape.chunk_length) == (rows, 512)


@pytest.mark.parametrize(("tokens", "length"), [(5, 64), (300, 64), (1459, 256), (1_000_000, 256)])
def test_chunks_are_short_where_a_long_one_would_mostly_be_padding(tokens: int, length: int) -> None:
    forest = trie.Trie(*(np.zeros(tokens, np.int32) for _ in range(3)))
    shape = plan.choose_shape(forest, options=OPTIONS, max_length=2048)
    assert (shape.num_rows, shape.chunk_length) == (1, length)


def test_long_caches_leave_room_for_fewer_rows() -> None:
    forest = trie.Trie(*(np.arange(4_000_000, dtype=np.int32) % 30_000 for _ in range(3)))
    shape = plan.choose_shape(forest, options=OPTIONS, max_length=32_768, platform="gpu")
    assert (shape.num_rows, shape.cache_length) == (2, 32_768)


def test_rows_are_balanced_and_little_is_forwarded_twice() -> None:
    random = np.random.default_rng(0)
    header = random.integers(0, 500, 100).tolist()
    sequences = [header + random.integers(0, 500, 40).tolist() for _ in range(200)]
    shape = plan.Shape(num_rows=8, chunk_length=64, cache_length=256, pool_size=1024)
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

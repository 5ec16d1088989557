"""The work as a value: every static shape, every step's arrays and every answer's place, before a device is touched.

The trie in preorder is cut into one stretch for each of B rows. A stretch starts with the path to its first token
(forwarded again, so that the row stands alone) and is forwarded T tokens a step. A row's cache holds the path above its
next token: slot == depth.

    stretch (one row)     path to w0 | w0 w1 w2 w3 w4 ...
    steps                 [ T tokens  ][ T tokens  ][ T tokens, the last padded ]

The hidden states that predict targets collect in a pool of K vectors; a reduce call multiplies each with the vocabulary
once, for up to J targets. Answers are (call, table row, j); requests find theirs by `pair_of_target`.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from evaljax.core import config
from evaljax.engine import encode, trie

# On a CPU a step costs this many tokens more than its own (each layer's weights are copied out of the stack),
# and compiling a chunk of T as much as forwarding T. SmolLM2: 3.2, 2.6, 2.6 ms a token at T = 128, 256, 512.
CPU_STEP_TOKENS = 48
CPU_CHUNKS = (64, 128, 256)
ACCELERATOR_CHUNK = 512
ACCELERATOR_ROWS = 16  # 8,192 tokens a step keep the matrix units busy
STEPS_PER_ROW = 8  # fewer rows rather than fewer steps: the last step of each row is half padding
CACHE_TOKENS = 1 << 16  # slots of all rows; 8 GB for a model of 8 billion parameters in bfloat16
MIN_CACHE = 256
MIN_POOL = 4096  # pool rows; one size for most jobs, so that they share the reduce executable
TABLE_ROWS = 2048  # table rows of one reduce call
TABLE_TARGETS = 8  # targets of a table row; a position with more takes several rows
FIELDS = ("tokens", "positions", "end", "base", "slots", "take")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shape:
    """The static shapes of the two executables: B, T, S, K of the module's picture, and the reduce table."""

    num_rows: int
    chunk_length: int
    cache_length: int
    pool_size: int
    table_rows: int = TABLE_ROWS
    table_targets: int = TABLE_TARGETS


@dataclasses.dataclass(frozen=True, eq=False)
class Row:
    """What one row forwards, in order: three int32 arrays; `end` counts in this row's own tokens."""

    tokens: np.ndarray
    depth: np.ndarray
    end: np.ndarray


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """A scoring job. `step_inputs` and `reduce_inputs` give the arrays of each call.

    Attributes:
      step_take: for each scored position, in step order, its place in its step's B * T tokens; `take_start[i]` is the
        first of step i (one entry more than steps); `fill[i]` is the pool row where step i's hidden states go.
      calls: (step after which it runs, first table row, last table row) of each reduce call.
      table_pool: pool row of each table row; `table_targets`: its targets (padded with 0).
      pair_of_target: for each target of each request, flat, its place in the calls' [calls, table_rows, J] answers.
      num_targets: targets of each request.
    """

    shape: Shape
    rows: tuple[Row, ...]
    num_steps: int
    step_take: np.ndarray
    take_start: np.ndarray
    fill: np.ndarray
    calls: tuple[tuple[int, int, int], ...]
    table_pool: np.ndarray
    table_targets: np.ndarray
    pair_of_target: np.ndarray
    num_targets: np.ndarray
    request_tokens: int
    unique_tokens: int

    @property
    def forward_tokens(self) -> int:
        """Tokens that the steps forward, padding included."""
        return self.shape.num_rows * self.shape.chunk_length * self.num_steps

    def summary(self) -> dict[str, Any]:
        """The plan's figures, as plain numbers."""
        shape = self.shape
        forward = {"rows": shape.num_rows, "tokens": shape.chunk_length, "cache": shape.cache_length}
        reduce = {"pool": shape.pool_size, "rows": shape.table_rows, "targets": shape.table_targets}
        return {
            "requests": len(self.num_targets),
            "targets": int(self.num_targets.sum()),
            "scored_positions": len(self.step_take),
            "request_tokens": self.request_tokens,
            "unique_tokens": self.unique_tokens,
            "forward_tokens": self.forward_tokens,
            "forwarded_per_unique": round(self.forward_tokens / self.unique_tokens, 4) if self.unique_tokens else 1.0,
            "shapes": [{"executable": "forward", **forward}, {"executable": "reduce", **reduce}],
            "buckets": {"forward": self.num_steps, "reduce": len(self.calls)},
        }


def plan_loglikelihood(
    encoded: Sequence[encode.Encoded],
    *,
    options: config.EngineOptions,
    max_length: int,
    platform: str = "cpu",
) -> Plan:
    """The plan for `encoded`: the same for the same sequences, options, `max_length` and platform."""
    inputs = [sequence.tokens[:-1] for sequence in encoded]
    counts = np.asarray([sequence.num_targets for sequence in encoded], np.int64)
    targets = np.concatenate(
        [sequence.tokens[-sequence.num_targets :] for sequence in encoded] or [np.empty(0, np.int32)]
    )
    forest, places = trie.build(inputs, counts.tolist(), share=options.share_prefixes)
    shape = choose_shape(forest, options=options, max_length=max_length, platform=platform)
    plan = lay_out(forest, places, targets, counts, shape)
    return dataclasses.replace(plan, request_tokens=sum(map(len, inputs)))


def choose_shape(forest: trie.Trie, *, options: config.EngineOptions, max_length: int, platform: str = "cpu") -> Shape:
    """Static shapes that suit the work and the device; `options` override T and B."""
    size = forest.unique_tokens
    if platform == "cpu":
        rows = 1
        share = -(-size // (options.num_rows or rows))
        chunk = min(CPU_CHUNKS, key=lambda length: -(-share // length) * (length + CPU_STEP_TOKENS) + length)
    else:
        chunk = ACCELERATOR_CHUNK
        rows = min(ACCELERATOR_ROWS, _power_of_two(max(1, size // (chunk * STEPS_PER_ROW)) + 1) // 2)
    # Powers of two: few different executables over many jobs. Unused slots cost memory, not time.
    cache = min(_power_of_two(max(forest.height, MIN_CACHE)), max(-(-max_length // 128) * 128, forest.height))
    rows = min(rows, max(1, CACHE_TOKENS // cache))
    chunk = options.chunk_length or chunk
    rows = options.num_rows or rows
    return Shape(num_rows=rows, chunk_length=chunk, cache_length=cache, pool_size=max(MIN_POOL, 2 * rows * chunk))


def lay_out(forest: trie.Trie, places: np.ndarray, targets: np.ndarray, counts: np.ndarray, shape: Shape) -> Plan:
    """The plan that scores `targets[i]` at preorder index `places[i]`; request r owns the next `counts[r]` of them."""
    starts = _cuts(forest, shape.num_rows)
    rows = tuple(_row(forest, first, last) for first, last in itertools.pairwise(starts.tolist()))
    num_steps = -(-max((len(row.tokens) for row in rows), default=0) // shape.chunk_length)
    # Every (position, target) pair once; every position once.
    pairs, pair_of_target = np.unique(places.astype(np.int64) << 32 | targets.astype(np.int64), return_inverse=True)
    position, num_pairs = np.unique(pairs >> 32, return_counts=True)
    step, column = _locate(forest, position, starts, shape)
    order = np.lexsort((column, step))
    step, column = step[order], column[order]
    take_start = np.searchsorted(step, np.arange(num_steps + 1))
    fill, flush_steps = _fill_pool(np.diff(take_start), shape)
    # The reduce table: positions in step order, each with as many rows as its targets need.
    table_rows = -(-num_pairs // shape.table_targets)
    table_stop = np.cumsum(table_rows[order])
    calls = _calls(table_stop, take_start, flush_steps, shape)
    table_start = np.empty_like(table_rows)
    table_start[order] = table_stop - table_rows[order]
    table_targets, answers = _table(pairs, num_pairs, table_start, calls, shape)
    pool_row = fill[step] + np.arange(len(step)) - take_start[step]
    return Plan(
        shape=shape,
        rows=rows,
        num_steps=num_steps,
        step_take=column.astype(np.int32),
        take_start=take_start,
        fill=fill,
        calls=calls,
        table_pool=np.repeat(pool_row, table_rows[order]).astype(np.int32),
        table_targets=table_targets,
        pair_of_target=answers[pair_of_target.reshape(-1)],
        num_targets=counts,
        request_tokens=forest.unique_tokens,
        unique_tokens=forest.unique_tokens,
    )


def step_inputs(plan: Plan, step: int) -> tuple[np.ndarray, np.ndarray]:
    """The arrays of one forward step: int32 [6, B, T], fields in the order of `FIELDS`, and the pool row it fills from.

    Padding is a tree of its own, sees itself only, and is written nowhere. `take` is flat: the places, in the step's
    B * T tokens, of the hidden states that go to the pool (then zeros).
    """
    shape = plan.shape
    length = shape.chunk_length
    inputs = np.zeros((len(FIELDS), shape.num_rows, length), np.int32)
    tokens, positions, end, base, slots, take = inputs
    end[:] = np.arange(1, length + 1)
    slots[:] = shape.cache_length
    for b, row in enumerate(plan.rows):
        first, last = step * length, min((step + 1) * length, len(row.tokens))
        if first >= last:
            continue
        chunk, depth, filled = slice(first, last), row.depth[first:last], slice(0, last - first)
        tokens[b, filled] = row.tokens[chunk]
        positions[b, filled] = depth
        end[b, filled] = np.minimum(row.end[chunk], last) - first
        base[b, filled] = np.minimum.accumulate(depth)
        # Only ancestors of what follows are needed later.
        slots[b, filled] = np.where(row.end[chunk] > last, depth, shape.cache_length)
    taken = plan.step_take[plan.take_start[step] : plan.take_start[step + 1]]
    take.reshape(-1)[: len(taken)] = taken
    return inputs, np.asarray(plan.fill[step], np.int32)


def reduce_inputs(plan: Plan, call: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The arrays of one reduce call: pool rows int32 [R], their targets int32 [R, J], and how many of the R count."""
    _, first, last = plan.calls[call]
    rows = np.zeros(plan.shape.table_rows, np.int32)
    targets = np.zeros((plan.shape.table_rows, plan.shape.table_targets), np.int32)
    rows[: last - first] = plan.table_pool[first:last]
    targets[: last - first] = plan.table_targets[first:last]
    return rows, targets, np.asarray(last - first, np.int32)


def _cuts(forest: trie.Trie, num_rows: int) -> np.ndarray:
    """Where each row's stretch begins (and the last ends): even shares, moved a little to where the path is short."""
    size = forest.unique_tokens
    reach = size // (num_rows * 16)
    cuts = [0]
    for row in range(1, num_rows):
        middle = size * row // num_rows
        low, high = max(cuts[-1], middle - reach), middle + reach + 1
        near = forest.depth[low:high]
        cuts.append(low + int(near.argmin()) if len(near) else size)
    return np.asarray([*cuts, size], np.int64)


def _row(forest: trie.Trie, first: int, last: int) -> Row:
    """The stretch [first, last) of the trie, after the path to its first token."""
    if first >= last:
        return Row(*(np.empty(0, np.int32) for _ in range(3)))
    index = np.concatenate([trie.ancestors(forest, first), np.arange(first, last, dtype=np.int32)])
    shift = int(forest.depth[first]) - first  # preorder index -> index in this row
    end = np.minimum(forest.end[index], last) + shift
    return Row(forest.tokens[index], forest.depth[index], end.astype(np.int32))


def _locate(forest: trie.Trie, position: np.ndarray, starts: np.ndarray, shape: Shape) -> tuple[np.ndarray, np.ndarray]:
    """The step in which each preorder index is forwarded, and its place in that step's B * T tokens."""
    row = np.searchsorted(starts[1:], position, side="right")
    first = starts[row]
    index = position - first + forest.depth[np.minimum(first, max(0, forest.unique_tokens - 1))]
    return index // shape.chunk_length, row * shape.chunk_length + index % shape.chunk_length


def _fill_pool(num_taken: np.ndarray, shape: Shape) -> tuple[np.ndarray, list[int]]:
    """The pool row that each step fills from, and the steps after which the pool is reduced.

    A step writes B * T rows, of which those beyond its own positions are overwritten by the next: there must be room
    for all of them.
    """
    room = shape.pool_size - shape.num_rows * shape.chunk_length
    fill, flush_steps, used = np.zeros(len(num_taken), np.int64), [], 0
    for step, taken in enumerate(num_taken.tolist()):
        if used > room:
            flush_steps.append(step - 1)
            used = 0
        fill[step] = used
        used += taken
    return fill, [*flush_steps, len(num_taken) - 1] if used else flush_steps


def _calls(
    table_stop: np.ndarray, take_start: np.ndarray, flush_steps: list[int], shape: Shape
) -> tuple[tuple[int, int, int], ...]:
    """The reduce calls: the table rows of each pool, `table_rows` at a time."""
    calls, first = [], 0
    for step in flush_steps:
        stop = int(table_stop[take_start[step + 1] - 1])
        while first < stop:
            calls.append((step, first, min(first + shape.table_rows, stop)))
            first = calls[-1][2]
    return tuple(calls)


def _table(
    pairs: np.ndarray,
    num_pairs: np.ndarray,
    table_start: np.ndarray,
    calls: tuple[tuple[int, int, int], ...],
    shape: Shape,
) -> tuple[np.ndarray, np.ndarray]:
    """The targets of each table row, and the place of each pair in the calls' answers, flat.

    `pairs` (position << 32 | target) are sorted; position p has the next `num_pairs[p]`, and table rows from
    `table_start[p]`.
    """
    width = shape.table_targets
    first_pair = np.cumsum(num_pairs) - num_pairs
    rank = np.arange(len(pairs)) - np.repeat(first_pair, num_pairs)
    row, column = np.repeat(table_start, num_pairs) + rank // width, rank % width
    targets = np.zeros((calls[-1][2] if calls else 0, width), np.int32)
    targets[row, column] = pairs & 0xFFFFFFFF
    if not calls:
        return targets, row
    first_row = np.asarray([first for _, first, _ in calls], np.int64)
    call = np.searchsorted(first_row, row, side="right") - 1
    return targets, (call * shape.table_rows + row - first_row[call]) * width + column


def _power_of_two(number: int) -> int:
    """The least power of two that is not below `number` (>= 1)."""
    return 1 << (number - 1).bit_length()

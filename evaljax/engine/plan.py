"""The work as a value: every static shape, every step's arrays and every answer's place, before a device is touched.

The trie in preorder is cut into one stretch for each of B rows. A stretch starts with the path to its first token
(forwarded again, so that the row stands alone) and is forwarded T tokens a step. A row's cache holds the path above its
next token: slot == depth.

    stretch (one row)     path to w0 | w0 w1 w2 w3 w4 ...
    steps                 [ T tokens  ][ T tokens  ][ T tokens, the last padded ]

Rows are split evenly into G groups, one for each part of a mesh that computes on its own. Within a step each group has
a table: R rows, each a token whose hidden state meets the vocabulary once, for up to J targets. What a (token, target)
pair gets stands at (group, row, column) of its step's [G, R, J] answers; requests find theirs by `pair_of_target`.

In a deterministic plan a chunk is a block of one path: T tokens of it, counted from the root. What a block computes
depends on its path alone, never on what else is asked.
"""

import dataclasses
import hashlib
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from evaljax.core import config
from evaljax.engine import encode, shapes, trie

FIELDS = ("tokens", "positions", "end", "base", "slots")


class Table(NamedTuple):
    """What a step scores, int32: of each group the places of R tokens among its own, and the targets of each.

    `count`: how many of the R count, in the group that has most.
    """

    tokens: Any  # [G, R]
    targets: Any  # [G, R, J]
    count: Any  # []


@dataclasses.dataclass(frozen=True, eq=False)
class Row:
    """What one row forwards, in order: three int32 arrays; `end` counts in this row's own tokens.

    `starts`: where each step's chunk begins, and the end of the last.
    """

    tokens: np.ndarray
    depth: np.ndarray
    end: np.ndarray
    starts: np.ndarray


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """A scoring job. `step_inputs` gives the arrays of each step.

    Attributes:
      entry_token: for each table row of all steps and groups, in order, its token's place in its group's tokens;
        `entry_targets` its targets (padded with 0); `entry_start[s, g]` the first of step s and group g.
      pair_place: for each (token, target) pair, in step order, its place in its step's flat [G, R, J] answers;
        `pair_start[s]` the first of step s.
      pair_of_target: for each target of each request, flat, its pair; `num_targets` of each request.
    """

    shape: shapes.Shape
    rows: tuple[Row, ...]
    num_steps: int
    entry_token: np.ndarray
    entry_targets: np.ndarray
    entry_start: np.ndarray
    pair_place: np.ndarray
    pair_start: np.ndarray
    pair_of_target: np.ndarray
    num_targets: np.ndarray
    request_tokens: int
    unique_tokens: int
    unique_entries: int
    attended_tokens: int

    @property
    def forward_tokens(self) -> int:
        """Tokens that the steps forward, padding included."""
        return self.shape.num_rows * self.shape.chunk_length * self.num_steps

    @property
    def digest(self) -> str:
        """A hash of everything that processes which share the work must agree on."""
        found = hashlib.sha256(repr(self.shape).encode())
        for array in (*(row.tokens for row in self.rows), self.entry_token, self.entry_targets, self.pair_of_target):
            found.update(np.ascontiguousarray(array).tobytes())
        return found.hexdigest()

    def summary(self) -> dict[str, Any]:
        """The plan's figures, as plain numbers."""
        shape = self.shape
        forward = {"rows": shape.num_rows, "tokens": shape.chunk_length, "cache": shape.cache_length}
        table = {"groups": shape.num_groups, "scored": shape.table_rows, "targets": shape.table_targets}
        return {
            "requests": len(self.num_targets),
            "targets": int(self.num_targets.sum()),
            "scored_positions": self.unique_entries,
            "request_tokens": self.request_tokens,
            "unique_tokens": self.unique_tokens,
            "attended_tokens": self.attended_tokens,
            "forward_tokens": self.forward_tokens,
            "forwarded_per_unique": round(self.forward_tokens / self.unique_tokens, 4) if self.unique_tokens else 1.0,
            "shapes": [{"executable": "score", **forward, **table}],
            "steps": self.num_steps,
        }


def plan_loglikelihood(
    encoded: Sequence[encode.Encoded],
    *,
    options: config.EngineOptions,
    max_length: int,
    machine: shapes.Machine = shapes.HOST,
    shape: shapes.Shape | None = None,
) -> Plan:
    """The plan for `encoded`: the same for the same sequences, options, `max_length`, machine (and shape, if given)."""
    inputs = [sequence.tokens[:-1] for sequence in encoded]
    counts = np.asarray([sequence.num_targets for sequence in encoded], np.int64)
    targets = np.concatenate(
        [sequence.tokens[-sequence.num_targets :] for sequence in encoded] or [np.empty(0, np.int32)]
    )
    if shape is None and options.deterministic:
        longest = max(map(len, inputs), default=1)
        shape = shapes.choose_shape(1, longest, options=options, max_length=max_length, machine=machine)
    grain = shape.chunk_length if shape is not None and options.deterministic else 1
    forest, places = trie.build(inputs, counts.tolist(), share=options.share_prefixes, grain=grain)
    if shape is None:
        size, height = forest.unique_tokens, forest.height
        shape = shapes.choose_shape(size, height, options=options, max_length=max_length, machine=machine)
    plan = lay_out(forest, places, targets, counts, shape, grain=grain)
    return dataclasses.replace(plan, request_tokens=sum(map(len, inputs)))


def lay_out(
    forest: trie.Trie,
    places: np.ndarray,
    targets: np.ndarray,
    counts: np.ndarray,
    shape: shapes.Shape,
    *,
    grain: int = 1,
) -> Plan:
    """The plan that scores `targets[i]` at preorder index `places[i]`; request r owns the next `counts[r]` of them.

    `shape.table_rows` grows where a step needs more. `grain`: that of the trie; above 1 it is the chunk length.
    """
    cuts = _cuts(forest, shape.num_rows, grain)
    rows = tuple(_row(forest, first, last, shape, grain) for first, last in itertools.pairwise(cuts.tolist()))
    num_steps = max((len(row.starts) - 1 for row in rows), default=0)
    # Every (token, target) pair once, every token once, in the order of their steps.
    pairs, pair_of_target = np.unique(places.astype(np.int64) << 32 | targets.astype(np.int64), return_inverse=True)
    position, num_pairs = np.unique(pairs >> 32, return_counts=True)
    step, group, token = _locate(forest, position, cuts, rows, shape)
    order = np.lexsort((token, group, step))
    num_entries = -(-num_pairs[order] // shape.table_targets)
    block = (step * shape.num_groups + group)[order]
    entry_block = np.repeat(block, num_entries)
    entry_start = np.searchsorted(entry_block, np.arange(num_steps * shape.num_groups + 1))
    shape = dataclasses.replace(
        shape, table_rows=max(shape.table_rows, shapes.power_of_two(int(np.diff(entry_start).max(initial=1))))
    )
    first_entry = np.cumsum(num_entries) - num_entries
    entry_targets, pair_place, pair_step, moved = _fill(
        pairs, num_pairs, order, first_entry, entry_start, entry_block, shape
    )
    return Plan(
        shape=shape,
        rows=rows,
        num_steps=num_steps,
        entry_token=np.repeat(token[order], num_entries).astype(np.int32),
        entry_targets=entry_targets,
        entry_start=entry_start,
        pair_place=pair_place,
        pair_start=np.searchsorted(pair_step, np.arange(num_steps + 1)),
        pair_of_target=moved[pair_of_target.reshape(-1)],
        num_targets=counts,
        request_tokens=forest.unique_tokens,
        unique_tokens=forest.unique_tokens,
        unique_entries=len(position),
        attended_tokens=int(forest.depth.sum(dtype=np.int64)) + forest.unique_tokens,
    )


def step_inputs(plan: Plan, step: int) -> tuple[np.ndarray, Table]:
    """The arrays of one step: int32 [5, B, T] in the order of `FIELDS`, and the table.

    Padding is a tree of its own, sees itself only, and is written nowhere.
    """
    shape = plan.shape
    length = shape.chunk_length
    inputs = np.zeros((len(FIELDS), shape.num_rows, length), np.int32)
    tokens, positions, end, base, slots = inputs
    end[:] = np.arange(1, length + 1)
    slots[:] = shape.cache_length
    for b, row in enumerate(plan.rows):
        if step + 1 >= len(row.starts):
            continue
        first, last = row.starts[step], row.starts[step + 1]
        chunk, depth, filled = slice(first, last), row.depth[first:last], slice(0, last - first)
        tokens[b, filled] = row.tokens[chunk]
        positions[b, filled] = depth
        end[b, filled] = np.minimum(row.end[chunk], last) - first
        base[b, filled] = np.minimum.accumulate(depth)
        # Only ancestors of what follows are needed later.
        slots[b, filled] = np.where(row.end[chunk] > last, depth, shape.cache_length)
    taken = np.zeros((shape.num_groups, shape.table_rows), np.int32)
    targets = np.zeros((shape.num_groups, shape.table_rows, shape.table_targets), np.int32)
    most = 0
    for group in range(shape.num_groups):
        first, last = plan.entry_start[step * shape.num_groups + group :][:2]
        taken[group, : last - first] = plan.entry_token[first:last]
        targets[group, : last - first] = plan.entry_targets[first:last]
        most = max(most, last - first)
    return inputs, Table(taken, targets, np.asarray(most, np.int32))


def needed_steps(plan: Plan, wanted: np.ndarray) -> np.ndarray:
    """The steps (in order) that must run for the targets of the `wanted` requests (bool), if nothing was run before.

    Those that score one of them, and those that forward a token on the path to such a step's first token. What else
    these compute may be wrong, for the paths to it are not all there; none of it is wanted.
    """
    if wanted.all():
        return np.arange(plan.num_steps)
    owners = np.repeat(np.arange(len(plan.num_targets)), plan.num_targets)
    pairs = plan.pair_of_target[wanted[owners]]
    scoring = np.unique(np.searchsorted(plan.pair_start, pairs, side="right") - 1)
    needed = np.zeros(plan.num_steps, bool)
    needed[scoring] = True
    for step in scoring.tolist():
        for row in plan.rows:
            if step + 1 < len(row.starts):
                path = np.flatnonzero(row.end[: row.starts[step]] > row.starts[step])
                needed[np.searchsorted(row.starts, path, side="right") - 1] = True
    return np.flatnonzero(needed)


def _cuts(forest: trie.Trie, num_rows: int, grain: int) -> np.ndarray:
    """Where each row's stretch begins (and the last ends): even shares, moved a little to where the path is short."""
    size = forest.unique_tokens
    reach = size // (num_rows * 16)
    cuts = [0]
    allowed = np.append(np.flatnonzero(forest.depth % grain == 0), size)
    depth = np.append(forest.depth, 0)
    for row in range(1, num_rows):
        middle = size * row // num_rows
        low, high = np.searchsorted(allowed, [max(cuts[-1], middle - reach), middle + reach + 1])
        near = allowed[low : max(high, low + 1)]
        cuts.append(int(near[depth[near].argmin()]))
    return np.asarray([*cuts, size], np.int64)


def _row(forest: trie.Trie, first: int, last: int, shape: shapes.Shape, grain: int) -> Row:
    """The stretch [first, last) of the trie, after the path to its first token."""
    if first >= last:
        nothing = np.empty(0, np.int32)
        return Row(nothing, nothing, nothing, np.zeros(1, np.int64))
    index = np.concatenate([trie.ancestors(forest, first), np.arange(first, last, dtype=np.int32)])
    shift = int(forest.depth[first]) - first  # preorder index -> index in this row
    end = np.minimum(forest.end[index], last) + shift
    depth = forest.depth[index]
    starts = np.arange(0, len(index), shape.chunk_length) if grain == 1 else np.flatnonzero(depth % grain == 0)
    return Row(forest.tokens[index], depth, end.astype(np.int32), np.append(starts, len(index)))


def _locate(
    forest: trie.Trie, position: np.ndarray, cuts: np.ndarray, rows: Sequence[Row], shape: shapes.Shape
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The step and the group in which each preorder index is forwarded, and its place in that group's tokens."""
    of_row = np.searchsorted(cuts[1:], position, side="right")
    step, column = np.empty_like(position), np.empty_like(position)
    for b, row in enumerate(rows):
        mine = of_row == b
        if not mine.any():
            continue
        index = position[mine] - cuts[b] + forest.depth[cuts[b]]
        step[mine] = np.searchsorted(row.starts, index, side="right") - 1
        column[mine] = index - row.starts[step[mine]]
    rows_per_group = shape.num_rows // shape.num_groups
    group, row_in_group = np.divmod(of_row, rows_per_group)
    return step, group, row_in_group * shape.chunk_length + column


def _fill(
    pairs: np.ndarray,
    num_pairs: np.ndarray,
    order: np.ndarray,
    first_entry: np.ndarray,
    entry_start: np.ndarray,
    entry_block: np.ndarray,
    shape: shapes.Shape,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Targets of the table rows; place and step of each pair, in step order; where each of `pairs` went in that order.

    `pairs` (position << 32 | target) are sorted; position p has `num_pairs[p]` of them. Positions in `order` have their
    table rows from `first_entry` on.
    """
    width, groups = shape.table_targets, shape.num_groups
    ordered = num_pairs[order]
    first_pair = (np.cumsum(num_pairs) - num_pairs)[order]
    rank = np.arange(len(pairs)) - np.repeat(np.cumsum(ordered) - ordered, ordered)
    source = np.repeat(first_pair, ordered) + rank  # index into `pairs`, in step order
    entry, column = np.repeat(first_entry, ordered) + rank // width, rank % width
    targets = np.zeros((len(entry_block), width), np.int32)
    targets[entry, column] = pairs[source] & 0xFFFFFFFF
    block = entry_block[entry]
    row = entry - entry_start[block]
    place = ((block % groups) * shape.table_rows + row) * width + column
    moved = np.empty(len(pairs), np.int64)
    moved[source] = np.arange(len(pairs))
    return targets, place, block // groups, moved

"""Which prompts share a stem, in which order they are prefilled, in which pieces, into how much cache: numpy only."""

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np

from evaljax.core import config
from evaljax.engine import shapes, trie

# Tokens of a prefill step: few lengths, each is an executable. On two cores a step costs as much as 70 of its tokens
# before it has forwarded any (measured, 135M parameters); an accelerator's fixed part is larger.
_CHUNK_LENGTHS = {"cpu": (64, 256)}
_CHUNK_LENGTHS_ACCELERATOR = (128, 1024)
# A shorter shared prefix saves less than the padding of a chunk: not worth leaving the longest-first order.
SHARED_LEAST = 16
SLOT_MULTIPLE = 128  # cache lengths are whole key blocks
_MAX_SLOTS = 64  # of each part of the mesh that rows are split over
_MAX_SLOTS_CPU = 32  # of all: on two cores 32 slots cost twice what one costs
DETERMINISTIC_SLOTS = 8
MIN_STEM = 64
# A stem saves every step the reading of its tokens for each slot; the price is that all its texts end before the next
# stem is there. In tokens of the stem that the group's prompts have together, for each slot.
STEM_PRICE = 500


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shape:
    """The static shapes of generation.

    Attributes:
      num_slots: B, texts that decode at once.
      slot_length: S, tokens of a slot's cache; the stem is not among them.
      path_length: tokens of the path's home (`prefill`).
      text_length: of a whole text, its prompt too.
      chunk_lengths: of a prefill step, (short, long).
      num_groups: parts of the mesh that slots are split over.
    """

    num_slots: int
    slot_length: int
    path_length: int
    text_length: int
    chunk_lengths: tuple[int, int]
    num_groups: int = 1

    def smaller(self) -> "Shape | None":
        """Half as many slots; None if there is no less."""
        each = self.num_slots // self.num_groups
        return dataclasses.replace(self, num_slots=each // 2 * self.num_groups) if each > 1 else None


@dataclasses.dataclass(frozen=True)
class Group:
    """Prompts that run one after another, by their index; the first `stem` tokens of all are the same."""

    stem: int
    members: tuple[int, ...]


def shape(
    groups: Sequence[Group],
    lengths: Sequence[int],
    limits: Sequence[int],
    *,
    machine: shapes.Machine,
    options: config.EngineOptions,
) -> Shape:
    """The shortest caches that hold every prompt (`lengths`) and its text (`limits`), in as many slots as pay.

    As many as the device decodes for little more than the price of one (its weights are read once a step, whatever the
    number of slots), as memory holds and as there are requests; or as `options` ask.
    """
    path_length = _round_up(max(lengths), SLOT_MULTIPLE)
    needed = max(lengths[i] - group.stem + limits[i] for group in groups for i in group.members)
    slot_length = _round_up(needed, SLOT_MULTIPLE)
    chunks = chunk_lengths(machine.platform, options.chunk_length)
    if options.deterministic:
        chunks = (chunks[1], chunks[1])
    budget = int(machine.memory_bytes * shapes.CACHE_SHARE) // machine.slot_bytes - path_length - chunks[1]
    slots = min(max_slots(len(lengths), machine, options), max(1, budget // slot_length) * machine.num_groups)
    if options.num_slots or options.deterministic:
        slots = max_slots(len(lengths), machine, options)
    return Shape(
        num_slots=_round_up(slots, machine.num_groups),
        slot_length=slot_length,
        path_length=path_length,
        text_length=_round_up(max(map(sum, zip(lengths, limits, strict=True))), SLOT_MULTIPLE),
        chunk_lengths=chunks,
        num_groups=machine.num_groups,
    )


def max_slots(num_prompts: int, machine: shapes.Machine, options: config.EngineOptions) -> int:
    """How many slots pay, whatever the memory."""
    if options.deterministic:
        return DETERMINISTIC_SLOTS
    most = _MAX_SLOTS_CPU if machine.platform == "cpu" else _MAX_SLOTS * machine.num_groups
    return min(num_prompts, options.num_slots or most)


def groups(prompts: Sequence[np.ndarray], costs: Sequence[int], num_slots: int, *, share: bool = True) -> list[Group]:
    """The prompts in groups, the costliest first, each in prefill order; those that share no stem are one group.

    A header of P tokens that M prompts have is a stem if it pays: P * M of all stems together, less STEM_PRICE for each
    stem and slot, is as large as can be. A header of all prompts costs nothing.
    """
    rows = sorted(range(len(prompts)), key=lambda i: (trie.sort_key(prompts[i]), i))
    found = _stems([prompts[i] for i in rows], STEM_PRICE * num_slots) if share else []
    result = [(stem, rows[low:high]) for stem, low, high in found]
    covered = {i for _, members in result for i in members}
    rest = [i for i in range(len(prompts)) if i not in covered]
    if rest:
        result.append((0, rest))
    result.sort(key=lambda group: -max(costs[i] for i in group[1]))
    return [Group(stem, tuple(_ordered(prompts, costs, members, share))) for stem, members in result]


def _stems(prompts: Sequence[np.ndarray], price: int) -> list[tuple[int, int, int]]:
    """(header's length, first prompt, place after the last) of the headers that pay best; `prompts` are sorted.

    The last token of a prompt is no part of a header: it is forwarded in the slot.
    """
    shared = [trie.common_prefix(a[:-1], b[:-1]) for a, b in itertools.pairwise(prompts)]
    # Headers are the runs of neighbours that share as much, found from the deepest to the shallowest. An open header:
    # (length, first prompt, value of the best stems within it, those stems).
    opened: list[tuple[int, int, int, list[tuple[int, int, int]]]] = [(0, 0, 0, [])]
    for place, length in enumerate([*shared, 0], start=1):
        first = place - 1
        inner: tuple[int, list[tuple[int, int, int]]] = (0, [])
        while opened[-1][0] > length or (place == len(prompts) and len(opened) > 1):
            header, first, value, chosen = opened.pop()
            inner = value + inner[0], chosen + inner[1]
            whole = first == 0 and place == len(prompts)
            worth = header * (place - first) - (0 if whole else price)
            if header >= MIN_STEM and worth > inner[0]:
                inner = worth, [(header, first, place)]
        if opened[-1][0] < length:
            opened.append((length, first, *inner))
        else:
            header, first, value, chosen = opened.pop()
            opened.append((header, first, value + inner[0], chosen + inner[1]))
    return opened[0][3]


def _ordered(prompts: Sequence[np.ndarray], costs: Sequence[int], members: list[int], share: bool) -> list[int]:
    """The members in prefill order."""
    places = order([prompts[i] for i in members], [costs[i] for i in members], share=share)
    return [members[place] for place in places]


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def order(prompts: Sequence[np.ndarray], costs: Sequence[int], *, share: bool = True) -> list[int]:
    """Indices of the prompts in prefill order: the trie of the prompts from its root, the costliest branch first.

    Longest first and sharing want different orders. Sharing wins: prompts that share >= SHARED_LEAST tokens stay side
    by side, so the shared tokens stay on the path; of the branches below a node, the one with the costliest prompt goes
    first. Prompts that share nothing are thereby in plain longest-first order. Equal costs: in token order.

        costs 9 . . . 8 . 3 . . 2      header A: 9 3 2, header B: 8      ->  A9 A3 A2 B8
    """
    cost = np.asarray(costs)
    if not share:
        return sorted(range(len(prompts)), key=lambda i: (-cost[i], trie.sort_key(prompts[i]), i))
    rows = sorted(range(len(prompts)), key=lambda i: (trie.sort_key(prompts[i]), i))
    shared = np.zeros(len(rows), dtype=np.int64)  # tokens shared with the row before, in whole SHARED_LEAST
    for place in range(1, len(rows)):
        common = trie.common_prefix(prompts[rows[place - 1]], prompts[rows[place]])
        shared[place] = common // SHARED_LEAST
    row_cost = cost[rows]
    result: list[int] = []
    todo = [(0, len(rows))]  # stretches of the sorted rows, the next one last
    while todo:
        low, high = todo.pop()
        inner = shared[low + 1 : high]
        if not inner.size:
            result.extend(rows[low:high])
            continue
        cuts = low + 1 + np.flatnonzero(inner == inner.min())
        edges = [low, *cuts.tolist(), high]
        branches = sorted(
            itertools.pairwise(edges), key=lambda branch: (-row_cost[branch[0] : branch[1]].max(), branch)
        )
        todo.extend(reversed(branches))
    return result


def chunk_lengths(platform: str, longest: int = 0) -> tuple[int, int]:
    """(short, long) static length of a prefill step; `longest` > 0 is the long one, as the options ask."""
    short, long = _CHUNK_LENGTHS.get(platform, _CHUNK_LENGTHS_ACCELERATOR)
    return (min(short, longest), longest) if longest else (short, long)


def chunks(start: int, stop: int, lengths: tuple[int, int]) -> list[tuple[int, int, int]]:
    """(begin, end, static length) of each prefill step over the tokens start..stop: long steps, then short ones.

    A remainder that would take more than half a long step in short ones takes a long one.
    """
    short, long = lengths
    pieces = []
    while start < stop:
        length = long if stop - start > long // 2 else short
        end = min(stop, start + length)
        pieces.append((start, end, length))
        start = end
    return pieces

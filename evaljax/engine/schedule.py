"""In which order prompts are prefilled, in which pieces, and into how much cache: numpy only, nothing runs here."""

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np

from evaljax.engine import trie

# Tokens of a prefill step: few lengths, each is an executable. On two cores a step costs as much as 70 of its tokens
# before it has forwarded any (measured, 135M parameters); an accelerator's fixed part is larger.
_CHUNK_LENGTHS = {"cpu": (64, 256)}
_CHUNK_LENGTHS_ACCELERATOR = (128, 1024)
# A shorter shared prefix saves less than the padding of a chunk: not worth leaving the longest-first order.
SHARED_LEAST = 16
SLOT_MULTIPLE = 128  # cache lengths are whole key blocks
_MAX_SLOTS = {"cpu": 32, "gpu": 64, "tpu": 64}  # on two cores 32 slots cost twice what one costs
_MAX_SLOTS_ELSEWHERE = 32
_CPU_CACHE_BYTES = 2 << 30
_CACHE_SHARE = 0.5  # of the memory that a device has left once the parameters are there


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shape:
    """Static shape of the decode step: B slots of S tokens, and the bytes of their cache."""

    num_slots: int
    length: int
    cache_bytes: int


def shape(
    lengths: Sequence[int],
    max_length: int,
    bytes_per_token: int,
    *,
    num_slots: int,
    platform: str,
    free_bytes: int | None,
) -> Shape:
    """The shortest cache that holds every request (`lengths` = prompt + max_gen_toks), in as many slots as pay.

    `num_slots` 0 chooses: as many as the device decodes for little more than the price of one (its weights are read
    once a step, whatever the number of slots), as memory holds and as there are requests.
    """
    length = -(-max(lengths) // SLOT_MULTIPLE) * SLOT_MULTIPLE
    length = min(length, -(-max_length // SLOT_MULTIPLE) * SLOT_MULTIPLE)
    slot_bytes = length * bytes_per_token
    if not num_slots:
        budget = _CPU_CACHE_BYTES if free_bytes is None else int(free_bytes * _CACHE_SHARE)
        fits = max(1, budget // slot_bytes - 1)  # one more row holds the path of the prefill
        num_slots = min(len(lengths), fits, _MAX_SLOTS.get(platform, _MAX_SLOTS_ELSEWHERE))
    return Shape(num_slots=num_slots, length=length, cache_bytes=(num_slots + 1) * slot_bytes)


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

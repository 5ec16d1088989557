"""All sequences as one token trie in preorder: what they share is there once.

    sequences        a b c d      a b e      f g

    preorder index   0 1 2 3 4 5 6
    token            a b c d e f g
    depth            0 1 2 3 2 0 1       position of the token in every sequence that holds it
    end              5 5 4 4 5 7 7       index just past the subtree that the token begins

Token q sees token k (k is q itself or its ancestor) iff k <= q < end[k]. There may be several roots: it is a forest.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class Trie:
    """A forest of tokens in preorder; three int32 arrays of one length."""

    tokens: np.ndarray
    depth: np.ndarray
    end: np.ndarray

    @property
    def unique_tokens(self) -> int:
        """Number of tokens: the least that any exact engine has to forward."""
        return len(self.tokens)

    @property
    def height(self) -> int:
        """Length of the longest sequence."""
        return int(self.depth.max(initial=-1)) + 1


def build(
    sequences: Sequence[np.ndarray], tails: Sequence[int] | None = None, *, share: bool = True, grain: int = 1
) -> tuple[Trie, np.ndarray]:
    """The trie of int32 `sequences` (none empty), and where each one's last tokens lie in it.

    The second value is flat: for sequence 0 the preorder indices of its last `tails[0]` tokens (default: of its last
    token), then for sequence 1, and so on, in the order of `sequences`. Sorting sequences by the index of their last
    token gives preorder. `share=False`: a tree for each sequence, in their own order. Prefixes are shared in whole
    blocks of `grain` tokens, counted from the root.
    """
    tails = [1] * len(sequences) if tails is None else tails
    members: dict[bytes | int, list[int]] = {}
    for i, sequence in enumerate(sequences):
        members.setdefault(sort_key(sequence) if share else i, []).append(i)
    order = sorted(members)
    starts = np.zeros(len(tails) + 1, np.int64)
    np.cumsum(tails, out=starts[1:])
    places = np.empty(starts[-1], np.int32)
    total = sum(len(sequences[members[key][0]]) for key in order)
    tokens, depth, end = (np.empty(total, np.int32) for _ in range(3))
    path = np.empty(max((len(sequence) for sequence in sequences), default=0), np.int32)  # the open branch, by depth
    previous, size = np.empty(0, np.int32), 0
    for key in order:
        sequence = sequences[members[key][0]]
        shared = common_prefix(previous, sequence) // grain * grain if share else 0
        end[path[shared : len(previous)]] = size  # these subtrees are complete
        new = slice(size, size + len(sequence) - shared)
        tokens[new] = sequence[shared:]
        depth[new] = np.arange(shared, len(sequence))
        path[shared : len(sequence)] = np.arange(new.start, new.stop)
        for i in members[key]:
            places[starts[i] : starts[i + 1]] = path[len(sequence) - tails[i] : len(sequence)]
        previous, size = sequence, new.stop
    end[path[: len(previous)]] = size
    return Trie(tokens[:size].copy(), depth[:size].copy(), end[:size].copy()), places


def ancestors(trie: Trie, index: int) -> np.ndarray:
    """Preorder indices of the path from the root to token `index`, without itself; the i-th has depth i."""
    return np.nonzero(trie.end[:index] > index)[0].astype(np.int32)


def sort_key(tokens: np.ndarray) -> bytes:
    """Bytes that sort as the token ids do, a prefix before what it begins."""
    return np.asarray(tokens).astype(">u4").tobytes()


def common_prefix(a: np.ndarray, b: np.ndarray) -> int:
    """Length of the longest common prefix."""
    shorter = min(len(a), len(b))
    different = a[:shorter] != b[:shorter]
    first = int(different.argmax()) if shorter else 0
    return first if shorter and different[first] else shorter

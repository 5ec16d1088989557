"""Prompts on their way into slots: what to forward in which chunk, and where each prompt's keys and values then lie.

Prompts in trie order are one stream of tokens in preorder: what a prompt shares with the one before it is forwarded
once, and a chunk of the stream may hold the ends of many prompts. The path is a cache of one row in two parts:

    home      slot == depth: the tokens above what comes next
    scratch   slot == S + t: token t of the chunk that was forwarded last

A token of the chunk that stands above what comes next changes places with what its home held, so that until the next
chunk the path still has every prompt that ended within the chunk: `Insert.source` says where.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from evaljax.engine import schedule, trie

FIELDS = ("tokens", "positions", "end", "base", "slots", "home")
DROPPED = np.iinfo(np.int32).max  # a slot that no cache has


class Extend(NamedTuple):
    """One chunk to forward: int32 [6, 1, T], fields in the order of `FIELDS`; the first `num_tokens` count."""

    inputs: np.ndarray
    num_tokens: int


class Insert(NamedTuple):
    """A prompt is complete: `prompt` of those given, and the path slot of each of its tokens."""

    prompt: int
    source: np.ndarray


class _Stream(NamedTuple):
    """Tokens in preorder; `end` is the place after each one's subtree, `stop` the place after each prompt's last."""

    tokens: np.ndarray
    depth: np.ndarray
    end: np.ndarray
    stop: list[int]


def steps(
    held: np.ndarray, prompts: Sequence[np.ndarray], size: int, lengths: tuple[int, int], *, grain: int = 1
) -> Iterator[Extend | Insert]:
    """What brings `prompts` to their slots, where the path's home holds `held` and has `size` slots.

    An Insert must be done before the next Extend. `lengths` are those of the chunks (`schedule.chunk_lengths`). What a
    prompt shares with the one before it is used in whole blocks of `grain` tokens; 0: not at all.
    """
    stream = _stream(held, prompts, grain)
    place = np.arange(size)  # of the open branch, by depth
    yield from (Insert(i, place[: prompts[i].size].copy()) for i, stop in enumerate(stream.stop) if not stop)
    for first, last, length in schedule.chunks(0, len(stream.tokens), lengths):
        chunk = slice(first, last)
        depth = stream.depth[chunk]
        slots = size + np.arange(len(depth))
        home = np.where(stream.end[chunk] > last - (last == len(stream.tokens)), depth, DROPPED)
        yield Extend(_inputs(stream, chunk, length, slots, home), last - first)
        kept = home < DROPPED
        place[:] = np.arange(size)
        place[depth[kept]] = slots[kept]
        done = first
        for i, stop in enumerate(stream.stop):
            if first < stop <= last:
                new = slice(done - first, stop - first)
                place[depth[new]] = np.where(kept[new], depth[new], slots[new])
                done = stop
                yield Insert(i, place[: prompts[i].size].copy())


def num_tokens(held: np.ndarray, prompts: Sequence[np.ndarray], grain: int = 1) -> int:
    """How many tokens `steps` forwards."""
    return len(_stream(held, prompts, grain).tokens)


def _stream(held: np.ndarray, prompts: Sequence[np.ndarray], grain: int) -> _Stream:
    """The stream of `prompts` after `held`."""
    total = sum(prompt.size for prompt in prompts)
    tokens, depth, end = (np.empty(total, np.int32) for _ in range(3))
    branch = np.full(max([held.size, *(prompt.size for prompt in prompts)]), -1)  # the open one's places; -1: held
    before, size, stop = held, 0, []
    for prompt in prompts:
        common = trie.common_prefix(before, prompt) // grain * grain if grain else 0
        closed = branch[common : before.size]
        end[closed[closed >= 0]] = size
        new = slice(size, size + prompt.size - common)
        tokens[new], depth[new] = prompt[common:], np.arange(common, prompt.size)
        branch[common : prompt.size] = np.arange(new.start, new.stop)
        before, size = prompt, new.stop
        stop.append(size)
    closed = branch[: before.size]
    end[closed[closed >= 0]] = size
    return _Stream(tokens[:size], depth[:size], end[:size], stop)


def _inputs(stream: _Stream, chunk: slice, length: int, slots: np.ndarray, home: np.ndarray) -> np.ndarray:
    """The arrays of a chunk. Padding is a tree of its own, sees itself only, and is written nowhere."""
    inputs = np.zeros((len(FIELDS), 1, length), np.int32)
    tokens, positions, end, base, slot, at_home = inputs[:, 0]
    filled = slice(0, len(slots))
    end[:] = np.arange(1, length + 1)
    slot[:] = at_home[:] = DROPPED
    tokens[filled] = stream.tokens[chunk]
    positions[filled] = stream.depth[chunk]
    end[filled] = np.minimum(stream.end[chunk], chunk.stop) - chunk.start
    base[filled] = np.minimum.accumulate(stream.depth[chunk])
    slot[filled], at_home[filled] = slots, home
    return inputs

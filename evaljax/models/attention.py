"""Attention of a chunk of tree-ordered tokens: to its own tokens, and to the path that the cache holds.

A chunk is a stretch of a token trie in preorder. Query q sees, of the chunk, its ancestors and itself,

    key k    iff  k <= q < end[k]          end[k]: index just past the subtree that token k begins

and, of a cache, whose slots hold what precedes the chunk, the token at depth s (or s after the stem) in slot s,

    slot s   iff  s < base[q]              base[q]: how many of q's ancestors the cache holds

A cache of one row is a stem: what all rows have before everything else, kept once and read by all of them together.

All parts meet in one softmax, summed online in float32 (Milakov and Gimelshein 2018). A token whose activations are
not finite reaches the tokens that see it, and no other.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

QUERY_BLOCK = 64  # queries that share one static key range
MAX_QUERY_BLOCKS = 16  # longer chunks take longer query blocks: the program stays short
KEY_BLOCK = 128  # cache slots read at a time by single queries; by several, twice as many
HIDDEN = -1e30  # score of a key that must not be seen; finite, so that no difference of scores is NaN


class Cache(NamedTuple):
    """Keys and values of the path above each row's next chunk."""

    keys: Float[Array, "L B K S H"]
    values: Float[Array, "L B K S H"]


class Reading(NamedTuple):
    """A cache, how many of its slots each query sees, and how many blocks of slots the longest of these spans."""

    cache: Cache
    base: Int[Array, "B T"]
    num_blocks: Int[Array, ""]


class Softmax(NamedTuple):
    """A softmax-weighted sum in the making: value / total, both relative to exp(top)."""

    top: Float[Array, "B K G T"]
    total: Float[Array, "B K G T"]
    value: Float[Array, "B K G T H"]


def attend(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B T K H"],
    value: Float[Array, "B T K H"],
    *,
    end: Int[Array, "B T"],
    readings: Sequence[Reading],
    layer: Int[Array, ""] | int,
) -> Float[Array, "B T N H"]:
    """What each query reads from the keys that it sees; `query` comes scaled by 1 / sqrt(H).

    The caches of `readings` are read at `layer` and do not hold this chunk yet.
    """
    batch, length, num_heads, head_dim = query.shape
    num_kv_heads = key.shape[2]
    grouped = query.reshape(batch, length, num_kv_heads, num_heads // num_kv_heads, head_dim)
    grouped = grouped.transpose(0, 2, 3, 1, 4)  # B K G T H: the G queries of a kv head are rows of one product
    softmax = _nothing(grouped)
    for reading in readings:
        is_stem = reading.cache.keys.shape[1] < batch
        softmax = (_attend_stem if is_stem else _attend_cache)(softmax, grouped, reading, layer)
    key, value = key.transpose(0, 2, 1, 3), value.transpose(0, 2, 1, 3)
    result = _attend_chunk(softmax, grouped, key, value, end)
    return result.transpose(0, 3, 1, 2, 4).reshape(batch, length, num_heads, head_dim).astype(query.dtype)


def reading(cache: Cache, base: Int[Array, "B T"]) -> Reading:
    """What the queries read of `cache`: slots below their `base`."""
    return Reading(cache, base, -(-jnp.max(base) // _key_block(cache, base)))


def contain_nonfinite(
    key: Float[Array, "B T K H"], value: Float[Array, "B T K H"]
) -> tuple[Float[Array, "B T K H"], Float[Array, "B T K H"]]:
    """The same where values are finite; else zero values under NaN keys.

    A hidden key's weight is exactly 0, but 0 * NaN is NaN: a broken value would reach tokens that do not see it.
    A NaN key is replaced by `HIDDEN` in their scores, and still breaks those that do see it.
    """
    broken = ~jnp.all(jnp.isfinite(value), axis=-1, keepdims=True)
    return jnp.where(broken, jnp.nan, key), jnp.where(broken, 0, value)


def write(
    cache: Cache,
    keys: Float[Array, "L B T K H"],
    values: Float[Array, "L B T K H"],
    slots: Int[Array, "B T"],
    place: jax.sharding.NamedSharding | None = None,
) -> Cache:
    """The cache with token t of row b at `slots[b, t]`; a slot >= S drops its token. In place if `cache` is donated.

    `place`: where the cache lies on a mesh; what is written is brought there first, so that the cache stays.
    """
    if place is not None:
        layers, rows, heads = (*place.spec, None, None, None)[:3]
        spec = jax.sharding.PartitionSpec(layers, rows, None, heads)
        keys, values = lax.with_sharding_constraint((keys, values), jax.sharding.NamedSharding(place.mesh, spec))

    where = (
        lax.ScatterDimensionNumbers(  # rows are a batch of the scatter: nothing is moved, and it stays split over them
            update_window_dims=(0, 3, 4),
            inserted_window_dims=(3,),
            scatter_dims_to_operand_dims=(3,),
            operand_batching_dims=(1,),
            scatter_indices_batching_dims=(0,),
        )
    )

    def put(old: Float[Array, "L B K S H"], new: Float[Array, "L B T K H"]) -> Float[Array, "L B K S H"]:
        return lax.scatter(old, slots[..., None], new.astype(old.dtype), where, mode=lax.GatherScatterMode.FILL_OR_DROP)

    return Cache(put(cache.keys, keys), put(cache.values, values))


def _nothing(query: Float[Array, "B K G T H"]) -> Softmax:
    """The softmax over no key."""
    rows = query.shape[:-1]
    zero = jnp.zeros(rows, jnp.float32)
    return Softmax(jnp.full(rows, HIDDEN, jnp.float32), zero, jnp.zeros(query.shape, jnp.float32))


def _add(
    softmax: Softmax,
    query: Float[Array, "B K G T H"],
    key: Float[Array, "B K S H"],
    value: Float[Array, "B K S H"],
    visible: Bool[Array, "B T S"],
) -> Softmax:
    """The softmax with these keys too.

    A row that sees none of its keys yet gathers weights exp(0) under top == HIDDEN; the first key that it sees (itself,
    at the latest) multiplies them by exp(HIDDEN - top) == 0.
    """
    scores = jnp.einsum("bkgth,bksh->bkgts", query, key, preferred_element_type=jnp.float32)
    scores = jnp.where(visible[:, None, None], scores, HIDDEN)
    top = lax.stop_gradient(jnp.maximum(softmax.top, scores.max(axis=-1)))
    weights = jnp.exp(scores - top[..., None])
    decay = jnp.exp(softmax.top - top)
    read = jnp.einsum("bkgts,bksh->bkgth", weights.astype(value.dtype), value, preferred_element_type=jnp.float32)
    return Softmax(top, softmax.total * decay + weights.sum(axis=-1), softmax.value * decay[..., None] + read)


def _attend_chunk(
    start: Softmax,
    query: Float[Array, "B K G T H"],
    key: Float[Array, "B K T H"],
    value: Float[Array, "B K T H"],
    end: Int[Array, "B T"],
) -> Float[Array, "B K G T H"]:
    """The finished weighted sums: `start`, and the chunk's own keys.

    Queries go in blocks, each against the keys up to its own last query only:

        keys      0    64   128
        block 0   ◣
        block 1   ■    ◣
        block 2   ■    ■    ◣
    """
    length = query.shape[3]
    block = max(QUERY_BLOCK, -(-length // MAX_QUERY_BLOCKS))
    results = []
    for first in range(0, length, block):
        last = min(first + block, length)
        q, k = jnp.arange(first, last)[:, None], jnp.arange(last)[None, :]
        visible = (k <= q) & (q < end[:, None, :last])
        part = Softmax(*(field[:, :, :, first:last] for field in start))
        part = _add(part, query[:, :, :, first:last], key[:, :, :last], value[:, :, :last], visible)
        results.append(part.value / part.total[..., None])
    return jnp.concatenate(results, axis=3) if len(results) > 1 else results[0]


def _attend_stem(
    start: Softmax, query: Float[Array, "B K G T H"], reading: Reading, layer: Int[Array, ""] | int
) -> Softmax:
    """`start`, and the stem: the queries of all rows are rows of one product, so its slots are read once."""
    batch, length = reading.base.shape

    def fold(x: Array) -> Array:
        return jnp.moveaxis(x, 0, 2).reshape(1, *x.shape[1:3], batch * length, *x.shape[4:])

    def unfold(x: Array) -> Array:
        return jnp.moveaxis(x.reshape(*x.shape[1:3], batch, length, *x.shape[4:]), 2, 0)

    flat = reading._replace(base=reading.base.reshape(1, -1))
    softmax = _attend_cache(Softmax(*map(fold, start)), fold(query), flat, layer)
    return Softmax(*map(unfold, softmax))


def _attend_cache(
    start: Softmax, query: Float[Array, "B K G T H"], reading: Reading, layer: Int[Array, ""] | int
) -> Softmax:
    """`start`, and the cache slots below `base`: block by block, as many blocks as the longest path has.

    Blocks are sliced from the whole cache: a layer, let alone the cache, is never copied.
    """
    cache, base, num_blocks = reading
    _, batch, num_kv_heads, size, head_dim = cache.keys.shape
    block = _key_block(cache, base)

    def body(index: Int[Array, ""], softmax: Softmax) -> Softmax:
        # The last block ends at S; where S is no multiple of the block it overlaps the block before, masked there.
        first = jnp.minimum(index * block, size - block)
        where = (layer, 0, 0, first, 0)
        shape = (1, batch, num_kv_heads, block, head_dim)
        key = lax.dynamic_slice(cache.keys, where, shape)[0].astype(query.dtype)
        value = lax.dynamic_slice(cache.values, where, shape)[0].astype(query.dtype)
        slot = first + jnp.arange(block)
        visible = (slot >= index * block) & (slot < base[:, :, None])
        return _add(softmax, query, key, value, visible)

    return lax.fori_loop(0, num_blocks, body, start)


def _key_block(cache: Cache, base: Int[Array, "B T"]) -> int:
    """Slots read at a time: more of them for more than one query to a row of the cache."""
    is_single = base.size == cache.keys.shape[1]
    return min(KEY_BLOCK if is_single else 2 * KEY_BLOCK, cache.keys.shape[3])

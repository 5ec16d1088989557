"""Attention against its definition: a full softmax in float64 over the keys that each query may see."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evaljax.models import attention

LAYERS, BATCH, KV_HEADS, GROUP, HEAD_DIM = 2, 2, 2, 3, 8


def random_forest(rng: np.random.Generator, length: int) -> tuple[np.ndarray, np.ndarray]:
    """(parent, end) of a random forest in preorder; a root's parent is -1."""
    parent, path = np.empty(length, np.int32), [-1]
    for token in range(length):
        path = path[: rng.integers(1, len(path) + 1)] if rng.random() < 0.2 else path
        parent[token] = path[-1]
        path = [*path, token]
    end = np.arange(1, length + 1, dtype=np.int32)
    for token in reversed(range(length)):
        if parent[token] >= 0:
            end[parent[token]] = max(end[parent[token]], end[token])
    return parent, end


def ancestors(parent: np.ndarray, token: int) -> list[int]:
    """The token's path from the root, itself included."""
    path = []
    while token >= 0:
        path.append(token)
        token = parent[token]
    return path[::-1]


def by_definition(query, keys, values) -> np.ndarray:
    """The softmax read of one query [H] over keys and values [S, H], in float64."""
    scores = np.asarray(keys, np.float64) @ np.asarray(query, np.float64)
    weights = np.exp(scores - scores.max())
    return weights @ np.asarray(values, np.float64) / weights.sum()


def draw(rng, *shape):
    return rng.normal(size=shape).astype(np.float32)


@jax.jit
def attend(query, key, value, *, end, bases, caches, layer):
    readings = [attention.reading(cache, base) for cache, base in zip(caches, bases, strict=True)]
    return attention.attend(query, key, value, end=end, readings=readings, layer=layer)


@pytest.mark.parametrize(("length", "size"), [(1, 5), (1, 300), (7, 128), (65, 130), (150, 257)])
@pytest.mark.parametrize("stem_length", [0, 1, 150])
def test_a_query_reads_the_stem_the_cache_slots_below_its_base_and_its_ancestors(length, size, stem_length):
    rng = np.random.default_rng(length)
    query = draw(rng, BATCH, length, KV_HEADS * GROUP, HEAD_DIM)
    key, value = draw(rng, BATCH, length, KV_HEADS, HEAD_DIM), draw(rng, BATCH, length, KV_HEADS, HEAD_DIM)
    cache = attention.Cache(*(draw(rng, LAYERS, BATCH, KV_HEADS, size, HEAD_DIM) for _ in range(2)))
    stem = attention.Cache(*(draw(rng, LAYERS, 1, KV_HEADS, 160, HEAD_DIM) for _ in range(2)))
    base = rng.integers(0, size + 1, (BATCH, length)).astype(np.int32)
    base[0, 0] = size
    forests = [random_forest(rng, length) for _ in range(BATCH)]
    end = np.stack([forest[1] for forest in forests])

    bases = (np.full_like(base, stem_length), base)
    got = attend(query, key, value, end=end, bases=bases, caches=(stem, cache), layer=1)

    for row in range(BATCH):
        for token in range(length):
            path, slots = ancestors(forests[row][0], token), base[row, token]
            for head in range(KV_HEADS * GROUP):
                kv = head // GROUP
                before = [stem.keys[1, 0, kv, :stem_length], cache.keys[1, row, kv, :slots]]
                keys = np.concatenate([*before, key[row, path, kv]])
                before = [stem.values[1, 0, kv, :stem_length], cache.values[1, row, kv, :slots]]
                values = np.concatenate([*before, value[row, path, kv]])
                want = by_definition(query[row, token, head], keys, values)
                np.testing.assert_allclose(got[row, token, head], want, atol=2e-6, rtol=2e-5)


def test_scores_far_from_zero_do_not_overflow():
    rng = np.random.default_rng(0)
    query, key = 1e3 * draw(rng, 1, 3, 1, 4), 1e3 * draw(rng, 1, 3, 1, 4)
    value = draw(rng, 1, 3, 1, 4)
    zero = jnp.zeros((1, 3), jnp.int32)
    got = attention.attend(query, key, value, end=zero + 3, readings=(), layer=0)
    for token in range(3):
        want = by_definition(query[0, token, 0], key[0, : token + 1, 0], value[0, : token + 1, 0])
        np.testing.assert_allclose(got[0, token, 0], want, rtol=1e-4, atol=1e-5)


def test_writing_puts_tokens_at_their_slots_and_drops_those_past_the_end():
    cache = attention.Cache(*(jnp.zeros((LAYERS, BATCH, KV_HEADS, 4, HEAD_DIM)) for _ in range(2)))
    rng = np.random.default_rng(0)
    keys, values = (draw(rng, LAYERS, BATCH, 3, KV_HEADS, HEAD_DIM) for _ in range(2))
    slots = jnp.array([[2, 4, 0], [9, 3, 4]])
    got = attention.write(cache, keys, values, slots)
    want = np.zeros(cache.keys.shape, np.float32)
    for row, token, slot in [(0, 0, 2), (0, 2, 0), (1, 1, 3)]:
        want[:, row, :, slot] = keys[:, row, token]
    np.testing.assert_array_equal(got.keys, want)
    np.testing.assert_array_equal(got.values[:, 1, :, 3], values[:, 1, 1])


def test_a_broken_value_reaches_only_the_tokens_that_see_it():
    rng = np.random.default_rng(0)
    query, key, value = draw(rng, 1, 4, 2, 4), draw(rng, 1, 4, 1, 4), draw(rng, 1, 4, 1, 4)
    value[0, 1, 0, 2] = np.inf
    end = jnp.array([[4, 3, 3, 4]])  # 0 -> (1 -> 2), 3
    key, value = attention.contain_nonfinite(jnp.array(key), jnp.array(value))
    got = attention.attend(query, key, value, end=end, readings=(), layer=0)
    assert np.isfinite(got).all(axis=(0, 2, 3)).tolist() == [True, False, False, True]

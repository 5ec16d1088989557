"""The decoder on trees: whatever is packed, chunked or decoded token by token gives what a plain sequence gives."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from evaljax.models import config, decoder, model

CONFIG = config.ModelConfig(
    vocab_size=61,
    num_layers=3,
    embed_dim=32,
    mlp_dim=48,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    rope_theta=500.0,
    norm_eps=1e-3,
    attention_bias=True,
    mlp_bias=True,
)
ROWS, CHUNK, SLOTS = 2, 24, 160
TOLERANCE = 1e-5  # of the largest hidden value, about 4


def random_model(seed: int = 0, **changes) -> model.Model:
    """A model whose weights are far from their initial values: norms away from 1, biases away from 0."""
    cfg = config.ModelConfig(**{**vars(CONFIG), **changes})
    made = model.of(decoder.create(cfg, nnx.Rngs(seed), std=0.25))
    rng = np.random.default_rng(seed)
    noise = jax.tree.map(lambda x: jnp.asarray(0.3 * rng.normal(size=x.shape) * (x.std() == 0), x.dtype), made.params)
    return model.Model(config=cfg, graphdef=made.graphdef, params=jax.tree.map(jnp.add, made.params, noise))


MODEL = random_model()


@functools.partial(jax.jit, static_argnums=0, donate_argnums=7)
def step(graphdef, params, tokens, positions, end, base, slots, cache):
    return decoder.forward(model.merge(graphdef, params), tokens, positions, end, base, slots, cache)


@functools.partial(jax.jit, static_argnums=0)
def plain_hidden(graphdef, params, tokens):
    """The hidden states of plain sequences [B, T], in one shot."""
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    end, zero = jnp.full_like(positions, tokens.shape[1]), jnp.zeros_like(positions)
    return decoder.forward(model.merge(graphdef, params), tokens, positions, end, zero, zero, None)[0]


def run(tokens, positions, end, base, slots, cache, made=MODEL):
    arrays = (jnp.asarray(np.asarray(a, np.int32)) for a in (tokens, positions, end, base, slots))
    return step(made.graphdef, made.params, *arrays, cache)


def new_cache(rows=ROWS, slots=SLOTS):
    return decoder.init_cache(CONFIG, rows, slots, jnp.float32)


def random_forest(rng: np.random.Generator, length: int, branching: float) -> dict[str, np.ndarray]:
    """token, depth, end and parent of a random forest in preorder."""
    parent, depth, path = np.empty(length, np.int32), np.empty(length, np.int32), [-1]
    for token in range(length):
        if rng.random() < branching:
            path = path[: rng.integers(1, len(path) + 1)]
        parent[token], depth[token] = path[-1], len(path) - 1
        path = [*path, token]
    end = np.arange(1, length + 1, dtype=np.int32)
    for token in reversed(range(length)):
        if parent[token] >= 0:
            end[parent[token]] = max(end[parent[token]], end[token])
    return {"token": rng.integers(0, CONFIG.vocab_size, length), "depth": depth, "end": end, "parent": parent}


def plain(forest: dict[str, np.ndarray], made=MODEL) -> np.ndarray:
    """Every token's hidden state, its path from the root forwarded alone."""
    length = len(forest["token"])
    rows, lengths = np.zeros((length, length), np.int32), forest["depth"] + 1
    for token in range(length):
        path, at = [], token
        while at >= 0:
            path.append(forest["token"][at])
            at = forest["parent"][at]
        rows[token, : len(path)] = path[::-1]
    hidden = np.asarray(plain_hidden(made.graphdef, made.params, jnp.asarray(rows)))
    return hidden[np.arange(length), lengths - 1]


def streamed(forests: list[dict[str, np.ndarray]], chunk: int) -> list[np.ndarray]:
    """Every token's hidden state, the forests streamed side by side in chunks through the cache of paths."""
    length = len(forests[0]["token"])
    cache, out = new_cache(len(forests)), []
    for first in range(0, length, chunk):
        last, columns = min(first + chunk, length), [[] for _ in range(5)]
        pad = chunk - (last - first)
        alone = np.arange(chunk - pad, chunk) + 1  # padding: every token its own tree
        for forest in forests:
            depth, end = forest["depth"][first:last], forest["end"][first:last]
            fields = (
                (forest["token"][first:last], np.zeros(pad)),
                (depth, np.zeros(pad)),
                (np.minimum(end, last) - first, alone),
                (np.minimum.accumulate(depth), np.zeros(pad)),
                (np.where(end > last, depth, SLOTS), np.full(pad, SLOTS)),
            )
            for column, parts in zip(columns, fields, strict=True):
                column.append(np.concatenate(parts))
        hidden, cache = run(*columns, cache)
        out.append(np.asarray(hidden)[:, : last - first])
    return list(np.concatenate(out, axis=1))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([0.02, 0.2, 0.6]))
def test_a_forest_streamed_in_chunks_equals_every_path_forwarded_alone(seed, branching):
    rng = np.random.default_rng(seed)
    forests = [random_forest(rng, 100, branching) for _ in range(ROWS)]
    for forest, got in zip(forests, streamed(forests, CHUNK), strict=True):
        np.testing.assert_allclose(got, plain(forest), atol=4 * TOLERANCE)


def test_a_chain_decoded_token_by_token_equals_one_shot():
    tokens = np.random.default_rng(0).integers(0, CONFIG.vocab_size, (ROWS, 140))
    cache, out = new_cache(), []
    for length in range(140):
        column = np.full((ROWS, 1), length)
        hidden, cache = run(tokens[:, length : length + 1], column, np.ones_like(column), column, column, cache)
        out.append(np.asarray(hidden))
    want = plain_hidden(MODEL.graphdef, MODEL.params, jnp.asarray(tokens, jnp.int32))
    np.testing.assert_allclose(np.concatenate(out, axis=1), want, atol=4 * TOLERANCE)


def test_a_neighbour_changes_no_bit_of_what_does_not_see_it():
    rng = np.random.default_rng(3)
    forests = [random_forest(rng, 2 * CHUNK, 0.3) for _ in range(ROWS)]
    before = streamed(forests, CHUNK)
    changed = 5
    forests[0]["token"][changed] = (forests[0]["token"][changed] + 7) % CONFIG.vocab_size
    after = streamed(forests, CHUNK)
    inside = np.arange(2 * CHUNK)
    inside = (inside >= changed) & (inside < forests[0]["end"][changed])
    assert 1 <= inside.sum() < 2 * CHUNK - changed
    np.testing.assert_array_equal(after[0][~inside], before[0][~inside])
    np.testing.assert_array_equal(after[1], before[1])
    assert np.abs(after[0][inside] - before[0][inside]).max(axis=-1).min() > 1e-3


def test_what_a_freed_slot_held_changes_no_bit_even_where_it_was_not_finite():
    rng = np.random.default_rng(4)
    tokens = rng.integers(0, CONFIG.vocab_size, (ROWS, 1))
    column = np.full((ROWS, 1), 30)
    filled = decoder.Cache(*(jnp.asarray(rng.normal(size=new_cache().keys.shape), jnp.float32) for _ in range(2)))
    stale = decoder.Cache(filled.keys.at[:, :, :, 30:].set(jnp.nan), filled.values.at[:, :, :, 30:].set(7e30))
    clean, _ = run(tokens, column, np.ones_like(column), column, column, filled)
    got, _ = run(tokens, column, np.ones_like(column), column, column, stale)
    np.testing.assert_array_equal(got, clean)


def test_a_copied_path_continues_as_its_source_does():
    tokens = np.random.default_rng(5).integers(0, CONFIG.vocab_size, (1, 10))
    positions = np.arange(10)[None]
    _, source = run(tokens, positions, np.full((1, 10), 10), np.zeros((1, 10)), positions, new_cache(rows=1))
    target = decoder.copy_path(source, new_cache(rows=3), 2)
    assert not np.asarray(target.keys[:, :2]).any()
    column = np.array([[10]])
    alone, _ = run([[7]], column, [[1]], column, column, source)
    three = np.repeat(column, 3, axis=0)
    together, _ = run([[1], [2], [7]], three, np.ones_like(three), three, three, target)
    np.testing.assert_allclose(together[2], alone[0], atol=TOLERANCE)
    want = plain_hidden(MODEL.graphdef, MODEL.params, jnp.asarray([[*tokens[0], 7]], jnp.int32))
    np.testing.assert_allclose(alone[0], want[0, -1:], atol=TOLERANCE)


def test_a_step_neither_copies_the_cache_nor_grows_with_it():
    def temporary_bytes(slots: int) -> tuple[int, int, int]:
        cache = decoder.init_cache(CONFIG, 1, slots, jnp.float32)
        column = jnp.zeros((1, 1), jnp.int32)
        lowered = step.lower(MODEL.graphdef, MODEL.params, column, column, column, column, column, cache)
        memory = lowered.compile().memory_analysis()
        return memory.temp_size_in_bytes, memory.alias_size_in_bytes, cache.keys.nbytes + cache.values.nbytes

    small, _, _ = temporary_bytes(256)
    large, aliased, size = temporary_bytes(16_384)
    assert aliased == size  # the donated buffers hold the result
    assert large == small < size / 20


@pytest.mark.parametrize("tie", [True, False])
def test_gradients_of_the_plain_forward_are_finite_and_reach_every_parameter(tie):
    made = random_model(tie_embeddings=tie)
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, CONFIG.vocab_size, (2, 70)), jnp.int32)

    def loss(params):
        logits = decoder.causal_logits(model.merge(made.graphdef, params), tokens)
        return -jnp.take_along_axis(jax.nn.log_softmax(logits[:, :-1]), tokens[:, 1:, None], axis=-1).mean()

    for path, gradient in jax.tree.leaves_with_path(jax.jit(jax.grad(loss))(made.params)):
        assert np.isfinite(gradient).all(), path
        # A shift of every key alike changes no softmax, but rotation makes it differ by position.
        assert np.abs(gradient).max() > 1e-7, path


def test_logits_are_float32_whatever_the_parameters_are():
    made = model.of(decoder.create(CONFIG, nnx.Rngs(0), dtype=jnp.bfloat16))
    assert made.dtype == "bfloat16"
    module = model.merge(made.graphdef, made.params)
    hidden, cache = decoder.forward(
        module, *(jnp.zeros((1, 2), jnp.int32) for _ in range(5)), decoder.init_cache(CONFIG, 1, 4, jnp.bfloat16)
    )
    assert (hidden.dtype, cache.keys.dtype) == (jnp.bfloat16, jnp.bfloat16)
    assert decoder.logits(module, hidden).dtype == jnp.float32


def test_two_models_of_one_configuration_share_their_executable():
    first, second = model.of(decoder.create(CONFIG, nnx.Rngs(0))), model.of(decoder.create(CONFIG, nnx.Rngs(1)))
    assert hash(first.graphdef) == hash(second.graphdef)
    assert first.graphdef == second.graphdef

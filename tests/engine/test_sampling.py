"""Sampling: draws follow the distribution that the policy names; randomness comes from the request alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evaljax.core import request
from evaljax.engine import sampling

Mode = sampling.Mode


def reference(logits: np.ndarray, temperature: float, top_k: int, top_p: float) -> np.ndarray:
    """Probabilities in plain numpy: temperature, then the k best, then the fewest best that hold top_p."""
    scores = logits.astype(np.float64) / temperature
    best = np.argsort(-scores, kind="stable")
    kept = best[:top_k] if top_k else best
    probabilities = np.zeros_like(scores)
    probabilities[kept] = np.exp(scores[kept] - scores.max())
    probabilities /= probabilities.sum()
    if top_p < 1:
        held = np.cumsum(probabilities[best])
        count = int(np.searchsorted(held, top_p)) + 1
        probabilities[best[count:]] = 0
        probabilities /= probabilities.sum()
    return probabilities


def draw(logits: np.ndarray, temperature: float, top_k: int, top_p: float, count: int, mode: Mode) -> np.ndarray:
    keys = jax.random.split(jax.random.key(7), count)
    rows = jnp.broadcast_to(jnp.asarray(logits), (count, logits.size))
    policy = (jnp.full(count, temperature), jnp.full(count, top_k), jnp.full(count, top_p))
    return np.asarray(jax.jit(sampling.sample, static_argnums=5)(rows, *policy, keys, mode))


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    [
        (1.0, 0, 1.0),
        (0.7, 0, 1.0),
        (1.0, 5, 1.0),
        (1.0, 0, 0.6),
        (1.5, 8, 0.8),
        (0.5, 3, 0.95),
        (1.0, 999, 0.3),
        (1.0, 0, 0.0),
    ],
)
def test_draws_follow_the_reference_distribution(temperature: float, top_k: int, top_p: float) -> None:
    logits = np.random.default_rng(3).normal(size=20).astype(np.float32) * 2
    count = 20_000
    expected = reference(logits, temperature, top_k, top_p)
    drawn = np.bincount(draw(logits, temperature, top_k, top_p, count, Mode.CUT), minlength=20)
    assert not drawn[expected == 0].any()
    allowed = 5 * np.sqrt(count * expected * (1 - expected)) + 1e-9
    assert (np.abs(drawn - count * expected) <= allowed).all()


def test_without_cuts_both_drawing_modes_draw_the_same() -> None:
    logits = np.random.default_rng(4).normal(size=50).astype(np.float32)
    free, cut = (draw(logits, 0.9, 0, 1.0, 500, mode) for mode in (Mode.FREE, Mode.CUT))
    assert (free == cut).all()


@pytest.mark.parametrize("mode", list(Mode))
def test_temperature_zero_is_the_argmax_in_every_mode(mode: Mode) -> None:
    logits = np.random.default_rng(5).normal(size=50).astype(np.float32)
    assert (draw(logits, 0.0, 3, 0.5, 20, mode) == logits.argmax()).all()


def test_of_equally_likely_tokens_the_first_is_greedy_and_no_number_is_no_token_beyond_the_last() -> None:
    logits = jnp.array([[0.0, 2.0, 1.0, 2.0], [jnp.nan, 0.0, 0.0, 0.0], [-jnp.inf] * 4])
    assert sampling.greedy(logits).tolist() == [1, 3, 0]


def test_top_k_one_is_the_argmax_at_any_temperature() -> None:
    logits = np.random.default_rng(6).normal(size=50).astype(np.float32)
    assert (draw(logits, 5.0, 1, 1.0, 200, Mode.CUT) == logits.argmax()).all()


def test_rows_of_one_batch_keep_their_own_policies() -> None:
    logits = np.random.default_rng(8).normal(size=(4, 30)).astype(np.float32)
    keys = jax.random.split(jax.random.key(1), 4)
    temperature, top_k, top_p = np.float32([0, 1, 0.5, 2]), np.int32([0, 4, 0, 7]), np.float32([1, 1, 0.4, 0.9])
    together = sampling.sample(jnp.asarray(logits), temperature, top_k, top_p, keys)
    for row in range(4):
        one = slice(row, row + 1)
        alone = sampling.sample(jnp.asarray(logits[one]), temperature[one], top_k[one], top_p[one], keys[one])
        assert together[row] == alone[0]


def test_the_key_is_a_function_of_prompt_seed_and_repeat() -> None:
    prompt = np.array([5, 6, 7], np.int32)
    key = sampling.request_key(prompt, seed=1, repeat=0)
    assert key.dtype == np.uint32
    assert key.shape == (2,)
    assert (key == sampling.request_key(np.array([5, 6, 7], np.int64), seed=1, repeat=0)).all()
    others = [
        sampling.request_key(prompt, seed=2, repeat=0),
        sampling.request_key(prompt, seed=1, repeat=1),
        sampling.request_key(prompt[:2], seed=1, repeat=0),
        sampling.request_key(prompt[::-1], seed=1, repeat=0),
    ]
    assert len({tuple(k.tolist()) for k in [key, *others]}) == 5


def test_each_step_has_its_own_key() -> None:
    base = np.stack([sampling.request_key(np.array([1]), 0, 0)] * 3)
    keys = jax.random.key_data(sampling.step_keys(jnp.asarray(base), jnp.array([0, 1, 0])))
    assert (keys[0] == keys[2]).all()
    assert (keys[0] != keys[1]).any()


@pytest.mark.parametrize(
    ("samplings", "mode"),
    [
        ([request.Sampling()], Mode.GREEDY),
        ([request.Sampling(top_k=5, top_p=0.5)], Mode.GREEDY),  # a greedy row's cuts change nothing
        ([request.Sampling(), request.Sampling(temperature=1.0)], Mode.FREE),
        ([request.Sampling(temperature=1.0), request.Sampling(temperature=1.0, top_k=5)], Mode.CUT),
        ([request.Sampling(temperature=1.0, top_p=0.9)], Mode.CUT),
    ],
)
def test_the_mode_is_the_least_that_serves_all(samplings: list[request.Sampling], mode: Mode) -> None:
    assert sampling.mode(samplings) is mode

"""The next token of every row, under that row's own policy. Policies are arrays, so one executable serves any mix.

The order is that of transformers: temperature, then top-k, then top-p. A row's randomness comes from its request's
content and its step alone, so a text is the same in any batch, in any slot, in any order.
"""

import enum
import hashlib
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt32

from evaljax.core import request


class Mode(enum.Enum):
    """The least that serves every row of the work: a static argument, so that greedy work never draws nor sorts."""

    GREEDY = "greedy"  # every row takes the argmax
    FREE = "free"  # rows draw from all of the vocabulary, or take the argmax
    CUT = "cut"  # rows may cut the vocabulary first (top-k, top-p): sorts it


def mode(samplings: Sequence[request.Sampling]) -> Mode:
    """The least mode that serves all of `samplings`."""
    drawn = [s for s in samplings if s.temperature > 0]
    if not drawn:
        return Mode.GREEDY
    return Mode.CUT if any(s.top_k > 0 or s.top_p < request.NUCLEUS_OFF for s in drawn) else Mode.FREE


def request_key(prompt: np.ndarray, seed: int, repeat: int) -> np.ndarray:
    """Key data [2] of one generation: a hash of what is asked, not of where it stands among other requests."""
    ids = np.ascontiguousarray(prompt, dtype="<u4")
    content = np.array([seed % (1 << 64), repeat, ids.size], dtype="<u8").tobytes() + ids.tobytes()
    return np.frombuffer(hashlib.sha256(content).digest()[:8], dtype="<u4").astype(np.uint32)


def step_keys(request_keys: UInt32[Array, "B 2"], steps: Int[Array, " B"]) -> Array:
    """One key for each row: its request's, folded with the number of tokens generated so far."""
    return jax.vmap(jax.random.fold_in)(jax.random.wrap_key_data(request_keys, impl="threefry2x32"), steps)


def sample(
    logits: Float[Array, "B V"],
    temperature: Float[Array, " B"],
    top_k: Int[Array, " B"],
    top_p: Float[Array, " B"],
    keys: Array,
    mode: Mode = Mode.CUT,
) -> Int[Array, " B"]:
    """Next tokens. `temperature` 0 is the argmax; `top_k` 0 and `top_p` 1 cut nothing; `keys` are one for each row.

    Equal logits at a cut stay or go together: they are as probable as each other.
    """
    likeliest = greedy(logits)
    if mode is Mode.GREEDY:
        return likeliest
    scores = logits / jnp.where(temperature > 0, temperature, 1.0)[:, None]
    if mode is Mode.CUT:
        scores = jnp.where(scores >= _threshold(scores, top_k, top_p)[:, None], scores, -jnp.inf)
    drawn = jax.vmap(jax.random.categorical)(keys, scores)
    return jnp.where(temperature > 0, drawn, likeliest)


def greedy(logits: Float[Array, "*rows V"]) -> Int[Array, "*rows"]:
    """The likeliest tokens; of equals the first. A minimum over places of the maximum vectorises, argmax does not."""
    vocab_size = logits.shape[-1]
    top = logits.max(axis=-1, keepdims=True)
    first = jnp.where(logits == top, jnp.arange(vocab_size), vocab_size).min(axis=-1)
    return jnp.minimum(first, vocab_size - 1)  # nothing equals a maximum that is no number


def _threshold(scores: Float[Array, "B V"], top_k: Int[Array, " B"], top_p: Float[Array, " B"]) -> Float[Array, " B"]:
    """The least score that stays. Top-p keeps a token iff those more probable hold less than `top_p` together.

    Among the k best, by falling score:   probability  .5   .2   .2   .1      top_p = .7
                                          held before   0   .5   .7   .9
                                          stays         *    *
    """
    falling = jnp.sort(scores, axis=-1, descending=True)
    vocab_size = scores.shape[-1]
    rank = jnp.arange(vocab_size)
    last = jnp.where(top_k > 0, jnp.minimum(top_k, vocab_size), vocab_size) - 1
    kth = jnp.take_along_axis(falling, last[:, None], axis=-1)
    probabilities = jax.nn.softmax(jnp.where(falling >= kth, falling, -jnp.inf), axis=-1)
    before = jnp.cumsum(probabilities, axis=-1) - probabilities
    stays = (falling >= kth) & ((before < top_p[:, None]) | (top_p >= request.NUCLEUS_OFF)[:, None] | (rank == 0))
    return jnp.min(jnp.where(stays, falling, jnp.inf), axis=-1)

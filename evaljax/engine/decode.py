"""The three device programs of generation: extend the path by a chunk, copy the path into a slot, decode every slot.

path    cache of one row: the prefill's place in the trie of prompts; slot == depth
slots   cache of B rows: one generation each; a slot's last token is not in its cache yet, the next step puts it there

    prompt    w0 w1 w2 w3            path / cache holds w0 w1 w2, `token` is w3, `length` is 3
    step 0    forward w3 at 3        gives g0; cache holds w0..w3, `token` is g0, `length` is 4, `steps` is 1
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Bool, Float, Int, UInt32

from evaljax.engine import sampling
from evaljax.models import config as model_config
from evaljax.models import decoder, model


class Slots(NamedTuple):
    """How far each slot is; slots that are not `active` stand still and are not read."""

    token: Int[Array, " B"]
    length: Int[Array, " B"]
    steps: Int[Array, " B"]
    active: Bool[Array, " B"]
    nonfinite: Bool[Array, " B"]  # whether a step's logits were not finite


class Policies(NamedTuple):
    """How each slot generates; `limit` is its max_gen_toks, `keys` are `sampling.request_key`."""

    temperature: Float[Array, " B"]
    top_k: Int[Array, " B"]
    top_p: Float[Array, " B"]
    limit: Int[Array, " B"]
    keys: UInt32[Array, "B 2"]
    eos_ids: Int[Array, " E"]  # of all slots


@partial(jax.jit, static_argnames=("config", "batch", "length", "dtype"))
def blank(config: model_config.ModelConfig, batch: int, length: int, dtype: jnp.dtype) -> decoder.Cache:
    """An empty cache, made on the device."""
    return decoder.init_cache(config, batch, length, dtype)


@partial(jax.jit, static_argnames="graphdef", donate_argnames="path")
def extend(
    graphdef: nnx.GraphDef,
    params: nnx.State,
    path: decoder.Cache,
    tokens: Int[Array, "1 T"],
    start: Int[Array, ""],
    count: Int[Array, ""],
) -> decoder.Cache:
    """The path, slots 0..start-1 of which hold a prefix, with the first `count` of `tokens` after it; the rest pads."""
    index = jnp.arange(tokens.shape[1], dtype=jnp.int32)
    real = index < count
    position = jnp.where(real, start + index, 0)[None]
    end = jnp.where(real, count, index + 1)[None]
    base = jnp.where(real, start, 0)[None]
    slots = jnp.where(real, start + index, path.keys.shape[3])[None]
    _, longer = decoder.forward(model.merge(graphdef, params), tokens, position, end, base, slots, path)
    assert longer is not None
    return longer


@partial(jax.jit, donate_argnames="cache")
def insert(path: decoder.Cache, cache: decoder.Cache, slot: Int[Array, ""]) -> decoder.Cache:
    """The cache of all slots, with the path in `slot`."""
    return decoder.copy_path(path, cache, slot)


@partial(jax.jit, static_argnames=("graphdef", "mode", "num_steps"), donate_argnames="cache")
def decode(
    graphdef: nnx.GraphDef,
    params: nnx.State,
    cache: decoder.Cache,
    slots: Slots,
    policies: Policies,
    enough: Int[Array, ""],
    *,
    mode: sampling.Mode,
    num_steps: int,
) -> tuple[decoder.Cache, Slots, Int[Array, "B n"]]:
    """At most `num_steps` tokens of every active slot, until no more than `enough` slots are active.

    A slot stops being active with an end-of-sequence token (which is among its tokens) or at its limit. Its new
    tokens are the first (steps after - steps before) of its row of the result.
    """
    module = model.merge(graphdef, params)
    rows = jnp.arange(slots.token.shape[0])
    dropped = cache.keys.shape[3]

    def going(carry: tuple[Array, decoder.Cache, Slots, Array]) -> Bool[Array, ""]:
        step, _, slots, _ = carry
        return (step < num_steps) & (jnp.sum(slots.active) > enough)

    def advance(carry: tuple[Array, decoder.Cache, Slots, Array]) -> tuple[Array, decoder.Cache, Slots, Array]:
        step, cache, slots, out = carry
        position = jnp.where(slots.active, slots.length, 0)[:, None]
        target = jnp.where(slots.active, slots.length, dropped)[:, None]
        one = jnp.ones_like(position)
        hidden, longer = decoder.forward(module, slots.token[:, None], position, one, position, target, cache)
        assert longer is not None
        logits = decoder.logits(module, hidden[:, 0])
        token = _next(logits, slots, policies, mode)
        out = out.at[rows, step].set(token)
        steps = slots.steps + slots.active
        ended = jnp.isin(token, policies.eos_ids) | (steps >= policies.limit)
        slots = Slots(
            token=jnp.where(slots.active, token, slots.token),
            length=slots.length + slots.active,
            steps=steps,
            active=slots.active & ~ended,
            nonfinite=slots.nonfinite | (slots.active & ~jnp.isfinite(jnp.max(logits, axis=-1))),
        )
        return step + 1, longer, slots, out

    out = jnp.zeros((rows.size, num_steps), jnp.int32)
    _, cache, slots, out = lax.while_loop(going, advance, (jnp.int32(0), cache, slots, out))
    return cache, slots, out


def _next(logits: Float[Array, "B V"], slots: Slots, policies: Policies, mode: sampling.Mode) -> Int[Array, " B"]:
    """The next token of every slot."""
    keys = sampling.step_keys(policies.keys, slots.steps)
    chosen = sampling.sample(logits, policies.temperature, policies.top_k, policies.top_p, keys, mode)
    return chosen.astype(jnp.int32)

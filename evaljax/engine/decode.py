"""The device programs of generation: make caches, extend the path by a chunk, copy it into a slot, decode every slot.

path    cache of one row: the prefill's place in the trie of prompts (`prefill`). Its first tokens, `stem_length` of
        them, are what all slots have before their own
slots   cache of B rows: what comes after the stem. A slot's last token is not in its cache yet, the next step puts it
        there

    prompt    w0 w1 w2 w3            stem is w0, cache holds w1 w2, the last token is w3, `length` is 3
    step 0    forward w3 at 3        gives g0; cache holds w1 w2 w3, `length` is 4, `steps` is 1
"""

import functools
from concurrent import futures
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jaxtyping import Array, Bool, Float, Int, UInt32

from evaljax.core import request
from evaljax.engine import executor, mesh, numerics, prefill, sampling, schedule
from evaljax.models import attention, decoder, sharding
from evaljax.models import config as model_config
from evaljax.models import model as models


class How(NamedTuple):
    """What is static in every program that forwards tokens."""

    graphdef: nnx.GraphDef
    precision: str
    layout: mesh.Layout


class Slots(NamedTuple):
    """How far each slot is; slots that are not `active` stand still and are not read."""

    text: Int[Array, "B N"]  # the tokens so far, the prompt's too
    length: Int[Array, " B"]  # tokens before the last, the stem's too
    steps: Int[Array, " B"]  # tokens generated
    active: Bool[Array, " B"]
    nonfinite: Bool[Array, " B"]  # whether a step's logits were not finite


class Policies(NamedTuple):
    """How each slot generates; `keys` are `sampling.request_key`."""

    temperature: Float[Array, " B"]
    top_k: Int[Array, " B"]
    top_p: Float[Array, " B"]
    least: Int[Array, " B"]  # min_tokens
    limit: Int[Array, " B"]  # max_gen_toks
    keys: UInt32[Array, "B 2"]
    eos_ids: Int[Array, " E"]  # of all slots


class Style(NamedTuple):
    """What is static in a stretch of steps: how tokens are drawn, and how many steps."""

    mode: sampling.Mode
    num_steps: int


class Programs(NamedTuple):
    """What a run needs, compiled or in the making."""

    extend: "dict[int, futures.Future[executor.Executable]]"  # by the chunk's length
    insert: "futures.Future[executor.Executable]"
    decode: "futures.Future[executor.Executable]"


def prepare(
    model: models.Model, shape: schedule.Shape, style: Style, num_eos: int, layout: mesh.Layout, *, precision: str
) -> Programs:
    """The programs for `shape`, compiled in the background; `model` may be without weights.

    Called from one thread only.
    """
    of_blank = {"config": model.config, "dtype": model.dtype, "shape": shape, "layout": layout}
    caches = jax.eval_shape(functools.partial(blank, **of_blank))
    places = path_place(model.config, layout), executor.cache_place(model.config, layout)
    path, cache = (_described(tree, place) for tree, place in zip(caches, places, strict=True))

    def integers(*size: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(size, jnp.int32, sharding=layout.replicated())

    how = How(model.graphdef, precision, layout)
    state = _described(vacant(shape, num_eos), layout.replicated())
    chunks = {length: integers(len(prefill.FIELDS), 1, length) for length in shape.chunk_lengths}
    return Programs(
        extend={
            length: executor.compile_ahead(extend, (model.params, path, inputs), {"how": how})
            for length, inputs in chunks.items()
        },
        insert=executor.compile_ahead(
            insert, (path, cache, integers(), integers(shape.slot_length)), {"place": places[1]}
        ),
        decode=executor.compile_ahead(
            decode,
            (model.params, cache, decoder.Stem(path, cast(Any, integers())), *state, integers()),
            {"how": how, "style": style},
        ),
    )


def path_place(config: model_config.ModelConfig, layout: mesh.Layout) -> jax.sharding.Sharding:
    """Where the path lies: whole on each part of the mesh that rows are split over."""
    if layout.mesh is None:
        return layout.replicated()
    heads = (*sharding.cache_sharding(config, layout.mesh).spec, None)[2]
    return jax.sharding.NamedSharding(layout.mesh, jax.sharding.PartitionSpec(None, None, heads))


def vacant(shape: schedule.Shape, num_eos: int) -> tuple[Slots, Policies]:
    """Slots that do nothing. Host arrays: the run fills them in, each call of `decode` carries them over."""

    def zeros(dtype: Any, *size: int) -> Any:
        return np.zeros((shape.num_slots, *size), dtype)

    slots = Slots(
        text=zeros(np.int32, shape.text_length),
        length=zeros(np.int32),
        steps=zeros(np.int32),
        active=zeros(bool),
        nonfinite=zeros(bool),
    )
    policies = Policies(
        temperature=zeros(np.float32),
        top_k=zeros(np.int32),
        top_p=zeros(np.float32) + np.float32(request.NUCLEUS_OFF),
        least=zeros(np.int32),
        limit=zeros(np.int32),
        keys=zeros(np.uint32, 2),
        eos_ids=cast(Any, np.full(num_eos, -1, np.int32)),
    )
    return slots, policies


@functools.partial(jax.jit, static_argnames=("config", "dtype", "shape", "layout"))
def blank(
    *, config: model_config.ModelConfig, dtype: str, shape: schedule.Shape, layout: mesh.Layout
) -> tuple[decoder.Cache, decoder.Cache]:
    """An empty path and an empty cache of the slots, made on the devices."""
    scratch = max(shape.chunk_lengths)
    path = decoder.init_cache(config, 1, shape.path_length + scratch, jnp.dtype(dtype))
    cache = decoder.init_cache(config, shape.num_slots, shape.slot_length, jnp.dtype(dtype))
    return mesh.placed(path, path_place(config, layout)), mesh.placed(cache, executor.cache_place(config, layout))


@functools.partial(jax.jit, static_argnames="how", donate_argnames="path")
def extend(
    params: nnx.State,
    path: decoder.Cache,
    inputs: Int[Array, "6 1 T"],
    *,
    how: How,
) -> decoder.Cache:
    """The path after one chunk (`prefill.Extend`): its tokens in scratch, those above what comes next at home."""
    tokens, positions, end, base, slots, home = inputs
    with numerics.matmul_precision(how.precision):
        module = models.merge(how.graphdef, params)
        where = path_place(module.config, how.layout)
        _, longer = decoder.forward(module, tokens, positions, end, base, slots, path, place=mesh.named(where))
    assert longer is not None
    scratch = jnp.where(home < prefill.DROPPED, slots, prefill.DROPPED)
    source, target = (jnp.concatenate(pair, axis=1) for pair in ((scratch, home), (home, scratch)))
    keys, values = (jnp.take(x, source[0], axis=3, mode="clip").swapaxes(2, 3) for x in longer)
    return mesh.placed(attention.write(longer, keys, values, target, mesh.named(where)), where)


@functools.partial(jax.jit, static_argnames="place", donate_argnames="cache")
def insert(
    path: decoder.Cache,
    cache: decoder.Cache,
    slot: Int[Array, ""],
    index: Int[Array, " S"],
    *,
    place: jax.sharding.Sharding,
) -> decoder.Cache:
    """The cache of all slots, with the path's slots `index` in `slot`."""
    row = decoder.Cache(*(jnp.take(x, index, axis=3, mode="clip") for x in path))
    return mesh.placed(decoder.copy_path(row, cache, slot), place)


@functools.partial(jax.jit, static_argnames=("how", "style"), donate_argnames="cache")
def decode(
    params: nnx.State,
    cache: decoder.Cache,
    stem: decoder.Stem,
    slots: Slots,
    policies: Policies,
    enough: Int[Array, ""],
    *,
    how: How,
    style: Style,
) -> tuple[decoder.Cache, Slots, Int[Array, ""]]:
    """At most `style.num_steps` steps of every active slot, until no more than `enough` slots are active.

    A slot stops being active with an end-of-sequence token (which is among its tokens) or at its limit. The last value
    is the number of steps.
    """
    module = models.merge(how.graphdef, params)
    where = executor.cache_place(module.config, how.layout)
    ends = jnp.isin(jnp.arange(module.config.vocab_size), policies.eos_ids)

    def going(carry: tuple[Array, decoder.Cache, Slots]) -> Bool[Array, ""]:
        step, _, slots = carry
        return (step < style.num_steps) & (jnp.sum(slots.active) > enough)

    def advance(carry: tuple[Array, decoder.Cache, Slots]) -> tuple[Array, decoder.Cache, Slots]:
        step, cache, slots = carry
        cache = mesh.placed(
            cache, where
        )  # at both ends of a step: else the compiler splits it another way between them
        tokens = jnp.take_along_axis(slots.text, slots.length[:, None], axis=1)
        tokens = mesh.placed(tokens, how.layout.rows())
        position = jnp.where(slots.active, slots.length, stem.length)[:, None]
        base = position - stem.length
        hidden, longer = decoder.forward(
            module,
            tokens,
            position,
            jnp.ones_like(position),
            base,
            jnp.where(slots.active[:, None], base, cache.keys.shape[3]),
            cache,
            stem=stem,
            place=mesh.named(where),
        )
        assert longer is not None
        logits = decoder.logits(module, hidden[:, 0])
        chosen = _choose(logits, slots, policies, ends, style.mode)
        slots = _append(slots, policies, chosen, jnp.isfinite(jnp.max(logits, axis=-1)))
        return step + 1, mesh.placed(longer, where), slots

    with numerics.matmul_precision(how.precision):
        step, cache, slots = lax.while_loop(going, advance, (jnp.int32(0), mesh.placed(cache, where), slots))
    return mesh.placed(cache, where), mesh.placed(slots, how.layout.replicated()), step


def _choose(
    logits: Float[Array, "B V"], slots: Slots, policies: Policies, ends: Bool[Array, " V"], mode: sampling.Mode
) -> Int[Array, " B"]:
    """The next token of every slot; none of `ends` before `min_tokens` tokens."""
    early = slots.steps < policies.least
    logits = jnp.where(early[:, None] & ends, -jnp.inf, logits)
    if mode is sampling.Mode.GREEDY:
        return sampling.greedy(logits).astype(jnp.int32)
    keys = sampling.step_keys(policies.keys, slots.steps)
    rules = (policies.temperature, policies.top_k, policies.top_p)
    return sampling.sample(logits, *rules, keys, mode).astype(jnp.int32)


def _append(slots: Slots, policies: Policies, chosen: Int[Array, " B"], finite: Bool[Array, " B"]) -> Slots:
    """The slots after a step that chose these tokens."""
    steps = slots.steps + slots.active
    ended = jnp.isin(chosen, policies.eos_ids) | (steps >= policies.limit)
    target = jnp.where(slots.active, slots.length + 1, slots.text.shape[1])
    put = jax.vmap(lambda text, where, token: text.at[where].set(token, mode="drop"))
    return Slots(
        text=put(slots.text, target, chosen),
        length=slots.length + slots.active,
        steps=steps,
        active=slots.active & ~ended,
        nonfinite=slots.nonfinite | (slots.active & ~finite),
    )


def _described(tree: Any, place: jax.sharding.Sharding) -> Any:
    """Arrays that are to come, by their shapes and their place."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place), tree)

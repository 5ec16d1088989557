"""The decoder: one step for scoring, prefill and decoding, and a plain causal forward for training.

Letters: B rows, T chunk tokens, S cache slots, L layers, N query heads, K kv heads, H head dim, D embed, F mlp,
V vocabulary.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jaxtyping import Array, Float, Int

from evaljax.models import attention, initial, sharding
from evaljax.models import config as config_lib

Cache = attention.Cache
ModelConfig = config_lib.ModelConfig

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "silu": jax.nn.silu,
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
    "relu": jax.nn.relu,
}


class Stem(NamedTuple):
    """What every row has before everything else: a cache of one row, of which the first `length` slots count."""

    cache: Cache
    length: Int[Array, ""]


class Blocks(nnx.Module):
    """The parameters of every block, the layer axis first; or, inside the scan, those of one block.

    Shapes are in `models.config.parameter_shapes`. Biases that the configuration lacks are None.
    """

    def __init__(self, parameters: dict[str, Array]):
        def own(name: str) -> nnx.Param:
            return nnx.Param(parameters[name])

        def own_if_given(name: str) -> nnx.Param | None:
            return nnx.Param(parameters[name]) if name in parameters else None

        self.attention_norm = own("attention_norm")
        self.query, self.query_bias = own("query"), own_if_given("query_bias")
        self.key, self.key_bias = own("key"), own_if_given("key_bias")
        self.value, self.value_bias = own("value"), own_if_given("value_bias")
        self.output, self.output_bias = own("output"), own_if_given("output_bias")
        self.mlp_norm = own("mlp_norm")
        self.gate, self.gate_bias = own("gate"), own_if_given("gate_bias")
        self.up, self.up_bias = own("up"), own_if_given("up_bias")
        self.down, self.down_bias = own("down"), own_if_given("down_bias")


class Decoder(nnx.Module):
    """A decoder-only language model. It holds parameters; the functions of this module compute."""

    def __init__(self, config: ModelConfig, parameters: dict[tuple[str, ...], Array]):
        self.config = config
        self.embedding = nnx.Param(parameters[("embedding",)])
        self.blocks = Blocks({path[1]: array for path, array in parameters.items() if path[0] == "blocks"})
        self.final_norm = nnx.Param(parameters[("final_norm",)])
        self.head = None if config.tie_embeddings else nnx.Param(parameters[("head",)])


def create(
    config: ModelConfig,
    rngs: nnx.Rngs,
    *,
    std: float = 0.02,
    dtype: jnp.dtype = jnp.float32,
    shardings: sharding.Shardings | None = None,
) -> Decoder:
    """A decoder with random weights: normal with `std`, norms at one, biases at zero; made in its shards, if given.

    Drawn by numpy on the host, seeded from `rngs.params()`: no program is compiled for every shape. The weights do not
    depend on `shardings`.
    """
    seed = tuple(int(word) for word in jax.random.key_data(rngs.params()))
    shapes = config_lib.parameter_shapes(config)

    def make(path: sharding.Path) -> Array:
        def draw(index: sharding.Index) -> np.ndarray:
            return initial.draw(path, shapes[path], index, seed, std).astype(jnp.dtype(dtype))

        return sharding.place(shapes[path], shardings[path] if shardings else None, draw)

    return Decoder(config, {path: make(path) for path in shapes})


def init_cache(
    config: ModelConfig, batch: int, length: int, dtype: jnp.dtype, place: jax.sharding.Sharding | None = None
) -> Cache:
    """An empty cache of `length` slots for `batch` rows; inside jit, in its shards if `place` is given."""
    shape = (config.num_layers, batch, config.num_kv_heads, length, config.head_dim)
    empty = Cache(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype))
    return empty if place is None else lax.with_sharding_constraint(empty, place)


def forward(  # noqa: PLR0913 (the one step: a chunk's five arrays, what precedes it, and where that lies)
    decoder: Decoder,
    tokens: Int[Array, "B T"],
    positions: Int[Array, "B T"],
    end: Int[Array, "B T"],
    base: Int[Array, "B T"],
    slots: Int[Array, "B T"],
    cache: Cache | None,
    *,
    stem: Stem | None = None,
    place: jax.sharding.NamedSharding | None = None,
) -> tuple[Float[Array, "B T D"], Cache | None]:
    """The hidden states after the final norm, and the cache with this chunk's keys and values at `slots`.

    Token q sees chunk token k iff k <= q < end[k], cache slot s, as it came in, iff s < base[q], and all of the stem. A
    slot >= S drops its token: no later chunk sees it.
    `place`: where the cache lies on a mesh.
    Decoding is T == 1 with end == 1, position == number of tokens so far, and base == slot == those after the stem.
    Without a cache (None) `base` and `slots` are unused and the function is reverse-differentiable.
    """
    config = decoder.config
    hidden = decoder.embedding[...][tokens]
    rotation = _rotation(config, positions)
    readings = []
    if stem is not None:
        readings.append(attention.reading(stem.cache, jnp.full_like(positions, stem.length)))
    if cache is not None:
        readings.append(attention.reading(cache, base))
    graphdef, stacked = nnx.split(decoder.blocks)

    def layer(hidden: Array, scanned: tuple[Array, nnx.State]) -> tuple[Array, tuple[Array, Array] | None]:
        index, parameters = scanned
        block = nnx.merge(graphdef, parameters)
        query, key, value = _project(config, block, hidden, rotation)
        key, value = attention.contain_nonfinite(key, value)
        read = attention.attend(query, key, value, end=end, readings=readings, layer=index)
        hidden = hidden + _linear("btnh,dnh->btd", read, block.output, block.output_bias)
        hidden = hidden + _mlp(config, block, hidden)
        return hidden, None if cache is None else (key, value)

    hidden, new = lax.scan(layer, hidden, (jnp.arange(config.num_layers), stacked))
    if cache is not None and new is not None:
        cache = attention.write(cache, new[0], new[1], slots, place)
    return _rms_norm(hidden, decoder.final_norm[...], config.norm_eps), cache


def logits(decoder: Decoder, hidden: Float[Array, "*rows D"]) -> Float[Array, "*rows V"]:
    """The logits of hidden states, in float32."""
    table = decoder.embedding if decoder.head is None else decoder.head
    return jnp.einsum("...d,vd->...v", hidden, table[...], preferred_element_type=jnp.float32)


def causal_logits(decoder: Decoder, tokens: Int[Array, "B T"]) -> Float[Array, "B T V"]:
    """The logits after every token of plain sequences; for training and tests (the engines never hold [B, T, V])."""
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1], dtype=jnp.int32), tokens.shape)
    end = jnp.full_like(positions, tokens.shape[1])
    zero = jnp.zeros_like(positions)
    hidden, _ = forward(decoder, tokens, positions, end, zero, zero, None)
    return logits(decoder, hidden)


def copy_path(path: Cache, cache: Cache, row: Int[Array, ""] | int) -> Cache:
    """`cache` with every slot of `row` taken from `path`, a cache of one row with as many slots.

    In place where `cache` is donated. The slots past the path's length come along: nobody sees them.
    """

    def copy(old: Float[Array, "L B K S H"], new: Float[Array, "L 1 K S H"]) -> Float[Array, "L B K S H"]:
        return lax.dynamic_update_slice_in_dim(old, new.astype(old.dtype), row, axis=1)

    return Cache(copy(cache.keys, path.keys), copy(cache.values, path.values))


def rotary_frequencies(config: ModelConfig) -> np.ndarray:
    """Radians per position of each of the H / 2 rotated pairs, scaling applied; float32, as models are trained."""
    exponent = np.arange(0, config.head_dim, 2, dtype=np.float32) / np.float32(config.head_dim)
    frequencies = (1.0 / np.float32(config.rope_theta) ** exponent).astype(np.float32)
    scaling = config.rope_scaling
    if scaling is None:
        return frequencies
    if scaling.kind == "linear":
        return frequencies / np.float32(scaling.factor)
    if scaling.kind == "factors":
        return frequencies / np.asarray(scaling.factors, np.float32)
    # llama3: how often a pair turns in the original context; up to low_freq_factor scaled, from high_freq_factor not.
    turns = scaling.original_max_position * frequencies / (2 * np.pi)
    smooth = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    smooth = np.clip(smooth, 0.0, 1.0)
    return ((1 - smooth) * frequencies / scaling.factor + smooth * frequencies).astype(np.float32)


def _rotation(
    config: ModelConfig, positions: Int[Array, "B T"]
) -> tuple[Float[Array, "B T 1 h"], Float[Array, "B T 1 h"]]:
    """Cosine and sine of each position's angles, h = H / 2."""
    angles = positions[..., None, None].astype(jnp.float32) * rotary_frequencies(config)
    return jnp.cos(angles), jnp.sin(angles)


def _rotate(x: Float[Array, "B T N H"], rotation: tuple[Array, Array], scale: float = 1.0) -> Float[Array, "B T N H"]:
    """`scale * x`, turned by its position; pairs are (i, i + H / 2)."""
    cos, sin = rotation
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return (turned * scale).astype(x.dtype)


def _rms_norm(x: Float[Array, "B T D"], weight: Float[Array, " D"], eps: float) -> Float[Array, "B T D"]:
    """`x` over its root mean square, times `weight`; the division in float32, the product in x's dtype."""
    wide = x.astype(jnp.float32)
    wide = wide * lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
    return wide.astype(x.dtype) * weight


def _linear(formula: str, x: Array, weight: nnx.Param, bias: nnx.Param | None) -> Array:
    """The product that `formula` names, and the bias if there is one."""
    result = jnp.einsum(formula, x, weight[...])
    return result if bias is None else result + bias[...]


def _project(
    config: ModelConfig, block: Blocks, hidden: Float[Array, "B T D"], rotation: tuple[Array, Array]
) -> tuple[Float[Array, "B T N H"], Float[Array, "B T K H"], Float[Array, "B T K H"]]:
    """Query (scaled by 1 / sqrt(H)), key and value of every token."""
    x = _rms_norm(hidden, block.attention_norm[...], config.norm_eps)
    query = _linear("btd,nhd->btnh", x, block.query, block.query_bias)
    key = _linear("btd,khd->btkh", x, block.key, block.key_bias)
    value = _linear("btd,khd->btkh", x, block.value, block.value_bias)
    return _rotate(query, rotation, config.head_dim**-0.5), _rotate(key, rotation), value


def _mlp(config: ModelConfig, block: Blocks, hidden: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
    """down(activation(gate) * up)."""
    x = _rms_norm(hidden, block.mlp_norm[...], config.norm_eps)
    gate = _linear("btd,fd->btf", x, block.gate, block.gate_bias)
    up = _linear("btd,fd->btf", x, block.up, block.up_bias)
    return _linear("btf,df->btd", ACTIVATIONS[config.activation](gate) * up, block.down, block.down_bias)

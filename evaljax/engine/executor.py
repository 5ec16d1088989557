"""The two executables of scoring, and the loop that runs a plan through them.

`forward_step` forwards one chunk of every row and puts the hidden states that predict targets in the pool.
`reduce_pool` multiplies pooled states with the vocabulary, block by block, and keeps the log-probabilities and greedy
flags of the targets: logits never exist for more than one block of rows.
"""

import collections
import dataclasses
import functools
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from evaljax.core import progress as reporting
from evaljax.engine import numerics, plan
from evaljax.models import config as model_config
from evaljax.models import decoder
from evaljax.models import model as models

LABEL = "scoring"
Executable = Any  # jax.stages.Compiled; called with arrays of the shapes that it was compiled for
RUN_AHEAD = 8  # steps that the host dispatches before it waits: enough to hide its own work
BLOCK_LOGITS = 1 << 24  # logits held at once (64 MB in float32), whatever the vocabulary
MAX_BLOCK = 128  # rows of a block: on average half a block of each reduce call is padding


@dataclasses.dataclass(frozen=True)
class Answers:
    """What a plan's targets got, in the places that `Plan.pair_of_target` names, and what it cost."""

    logprobs: np.ndarray
    greedy: np.ndarray
    compile_seconds: float = 0.0
    run_seconds: float = 0.0
    num_compiled: int = 0  # executables that no earlier call had compiled


@functools.partial(jax.jit, static_argnames=("graphdef", "precision"), donate_argnames=("cache", "pool"))
def forward_step(
    params: nnx.State,
    inputs: Int[Array, "6 B T"],
    fill: Int[Array, ""],
    cache: decoder.Cache,
    pool: Float[Array, "K D"],
    *,
    graphdef: nnx.GraphDef,
    precision: str,
) -> tuple[decoder.Cache | None, Float[Array, "K D"], Float[Array, ""]]:
    """The cache and the pool after one chunk of every row, and a number that is there when the step is done.

    `inputs` and `fill` are `plan.step_inputs`.
    """
    tokens, positions, end, base, slots, take = inputs
    with numerics.matmul_precision(precision):
        module = models.merge(graphdef, params)
        hidden, written = decoder.forward(module, tokens, positions, end, base, slots, cache)
    taken = hidden.reshape(-1, hidden.shape[-1])[take.reshape(-1)]
    pool = lax.dynamic_update_slice_in_dim(pool, taken.astype(pool.dtype), fill, axis=0)
    return written, pool, taken[0, 0]


@functools.partial(jax.jit, static_argnames=("graphdef", "precision"))
def reduce_pool(
    params: nnx.State,
    pool: Float[Array, "K D"],
    rows: Int[Array, " R"],
    targets: Int[Array, "R J"],
    count: Int[Array, ""],
    *,
    graphdef: nnx.GraphDef,
    precision: str,
) -> tuple[Float[Array, "R J"], Bool[Array, "R J"]]:
    """log P of each target after its pool row, and whether it is the likeliest token (of equals, the first).

    Only the first `count` of the R table rows are computed, in blocks; the others stay 0 and False.
    """
    module = models.merge(graphdef, params)
    vocabulary = module.config.vocab_size
    block = block_rows(vocabulary, rows.shape[0])

    def body(index: Int[Array, ""], answers: tuple[Array, Array]) -> tuple[Array, Array]:
        where = jnp.minimum(index * block, rows.shape[0] - block)
        hidden = pool[lax.dynamic_slice_in_dim(rows, where, block)]
        wanted = lax.dynamic_slice_in_dim(targets, where, block)
        with numerics.matmul_precision(precision):
            logits = decoder.logits(module, hidden)
        top = logits.max(axis=-1, keepdims=True)
        total = jnp.log(jnp.exp(logits - top).sum(axis=-1, keepdims=True))
        # A minimum over the places of the maximum is argmax, in a form that vectorises on every platform.
        best = jnp.where(logits == top, jnp.arange(vocabulary), vocabulary).min(axis=-1, keepdims=True)
        found = (jnp.take_along_axis(logits, wanted, axis=-1) - top) - total
        logprobs, greedy = answers
        logprobs = lax.dynamic_update_slice_in_dim(logprobs, found, where, axis=0)
        return logprobs, lax.dynamic_update_slice_in_dim(greedy, wanted == best, where, axis=0)

    start = jnp.zeros(targets.shape, jnp.float32), jnp.zeros(targets.shape, jnp.bool_)
    return lax.fori_loop(0, -(-count // block), body, start)


def block_rows(vocabulary: int, table_rows: int) -> int:
    """Rows whose logits are held at once: a power of two, by the size of the vocabulary."""
    fitting = max(1, BLOCK_LOGITS // vocabulary)
    return min(MAX_BLOCK, table_rows, 1 << (fitting.bit_length() - 1))


def run(
    model: models.Model, job: plan.Plan, *, precision: str, progress: reporting.Progress = reporting.silent
) -> Answers:
    """The answers of `job`. Steps are dispatched ahead of the device; nothing is fetched before the last one.

    Every transfer is explicit. `progress` hears of forwarded tokens.
    """
    if not job.num_steps:
        return Answers(np.empty(0, np.float32), np.empty(0, np.bool_))
    placement = replicated(model)
    cache, pool = jax.device_put(_zeros(model.config, model.dtype, job.shape), placement)
    began, known = time.perf_counter(), compiled.cache_info().misses
    common = {"graphdef": model.graphdef, "precision": precision}
    step = jax.device_put(plan.step_inputs(job, 0), placement)
    table = jax.device_put(plan.reduce_inputs(job, 0), placement)
    forward = compile_for(forward_step, (model.params, *step, cache, pool), common)
    reduce = compile_for(reduce_pool, (model.params, pool, *table), common)
    ready = time.perf_counter()
    outputs = _steps(model, job, placement, (forward, reduce), (cache, pool), progress)
    done = time.perf_counter()
    logprobs, greedy = (np.concatenate([output[i].reshape(-1) for output in outputs]) for i in (0, 1))
    return Answers(
        logprobs,
        greedy,
        compile_seconds=round(ready - began, 3),
        run_seconds=round(done - ready, 3),
        num_compiled=compiled.cache_info().misses - known,
    )


def _steps(
    model: models.Model,
    job: plan.Plan,
    placement: jax.sharding.Sharding,
    executables: tuple[Executable, Executable],
    buffers: tuple[decoder.Cache, Array],
    progress: reporting.Progress,
) -> list[tuple[np.ndarray, np.ndarray]]:
    """The answers of every reduce call, on the host."""
    forward, reduce = executables
    cache, pool = buffers
    ticks: collections.deque[Array] = collections.deque()
    outputs: list[tuple[Array, Array]] = []
    size = job.shape.num_rows * job.shape.chunk_length
    for step in range(job.num_steps):
        inputs, fill = jax.device_put(plan.step_inputs(job, step), placement)
        cache, pool, tick = forward(model.params, inputs, fill, cache, pool)
        ticks.append(tick)
        while len(outputs) < len(job.calls) and job.calls[len(outputs)][0] == step:
            table = jax.device_put(plan.reduce_inputs(job, len(outputs)), placement)
            outputs.append(reduce(model.params, pool, *table))
        if len(ticks) > RUN_AHEAD:
            ticks.popleft().block_until_ready()
            progress(LABEL, (step + 1 - RUN_AHEAD) * size, job.forward_tokens, "tokens")
    fetched = jax.device_get(outputs)
    progress(LABEL, job.forward_tokens, job.forward_tokens, "tokens")
    return fetched


def platform(model: models.Model) -> str:
    """The kind of device that holds the parameters: "cpu", "gpu" or "tpu"."""
    devices: set[Any] = replicated(model).device_set
    return next(iter(devices)).platform


def replicated(model: models.Model) -> jax.sharding.Sharding:
    """Where arrays go that every device holding the parameters needs whole."""
    sharding = jax.tree.leaves(model.params)[0].sharding
    if isinstance(sharding, jax.sharding.NamedSharding):
        return jax.sharding.NamedSharding(sharding.mesh, jax.sharding.PartitionSpec())
    return sharding


def compile_for(function: Any, arguments: tuple[Any, ...], static: dict[str, Any]) -> Executable:
    """The executable of a jitted function for arguments like these; compiled once for each shape in a process."""
    leaves, structure = jax.tree.flatten(arguments)
    shapes = tuple(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding) for leaf in leaves)
    return compiled(function, structure, shapes, tuple(static.items()))


@functools.lru_cache(maxsize=64)
def compiled(
    function: Any,
    structure: jax.tree_util.PyTreeDef,
    shapes: tuple[jax.ShapeDtypeStruct, ...],
    static: tuple[tuple[str, Any], ...],
) -> Executable:
    """The executable for these shapes; `compile_for` makes the key."""
    return function.lower(*jax.tree.unflatten(structure, shapes), **dict(static)).compile()


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _zeros(config: model_config.ModelConfig, dtype: str, shape: plan.Shape) -> tuple[decoder.Cache, Array]:
    """An empty cache and an empty pool, made on the device."""
    cache = decoder.init_cache(config, shape.num_rows, shape.cache_length, jnp.dtype(dtype))
    return cache, jnp.zeros((shape.pool_size, config.embed_dim), jnp.dtype(dtype))

"""The executable of scoring, and the loop that runs a plan through it.

`score_step` forwards one chunk of every row, meets the hidden states that predict targets with the vocabulary, block by
block, and gives the log-probabilities and greedy flags of the targets: logits never exist for more than one block.
"""

import collections
import functools
import time
from collections.abc import Iterable, Iterator
from concurrent import futures
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from evaljax.engine import mesh, numerics, plan, shapes
from evaljax.models import config as model_config
from evaljax.models import decoder, sharding
from evaljax.models import model as models

Executable = Any  # jax.stages.Compiled; called with arrays of the shapes that it was compiled for
RUN_AHEAD = 1  # steps that the host dispatches before it waits: enough to hide its own work; a crash loses them
BLOCK_LOGITS = 1 << 24  # logits held at once (64 MB in float32), whatever the vocabulary
MAX_BLOCK = 64  # rows of a block: on average half a block of each step is padding
OUT_OF_MEMORY = ("RESOURCE_EXHAUSTED", "Out of memory")  # how XLA says it, before a program runs and in one


class Answers(NamedTuple):
    """What the pairs of one step got, in the plan's order."""

    step: int
    logprobs: np.ndarray
    greedy: np.ndarray


@functools.partial(jax.jit, static_argnames=("graphdef", "precision", "layout"), donate_argnames=("cache",))
def score_step(
    params: nnx.State,
    inputs: Int[Array, "5 B T"],
    table: plan.Table,
    cache: decoder.Cache,
    *,
    graphdef: nnx.GraphDef,
    precision: str,
    layout: mesh.Layout,
) -> tuple[decoder.Cache, Float[Array, "G R J"], Bool[Array, "G R J"]]:
    """The cache after one chunk of every row; log P of each target after its token; whether it is the likeliest token.

    The other arguments are `plan.step_inputs`. Of equally likely tokens the first is the likeliest. Only the first
    `count` table rows of each group are computed, in blocks; the others stay 0 and False.
    """
    with numerics.matmul_precision(precision):
        module = models.merge(graphdef, params)
        where = cache_place(module.config, layout)
        tokens, positions, end, base, slots = inputs
        hidden, written = decoder.forward(module, tokens, positions, end, base, slots, cache, place=mesh.named(where))
        assert written is not None
        hidden = mesh.placed(hidden.reshape(table.tokens.shape[0], -1, hidden.shape[-1]), layout.rows())
        answers = _score_table(module, hidden, table)
    written = mesh.placed(written, where)
    return written, *mesh.placed(answers, layout.replicated())


def cache_place(config: model_config.ModelConfig, layout: mesh.Layout) -> jax.sharding.Sharding:
    """Where a cache with a row for each of the layout's groups lies."""
    return layout.replicated() if layout.mesh is None else sharding.cache_sharding(config, layout.mesh)


def _score_table(
    module: decoder.Decoder,
    hidden: Float[Array, "G N D"],
    table: plan.Table,
) -> tuple[Float[Array, "G R J"], Bool[Array, "G R J"]]:
    """The answers of `score_step` from the hidden states of its tokens."""
    vocabulary, table_rows = module.config.vocab_size, table.tokens.shape[1]
    block = block_rows(vocabulary, table_rows)

    def body(index: Int[Array, ""], answers: tuple[Array, Array]) -> tuple[Array, Array]:
        where = index * block
        rows = lax.dynamic_slice_in_dim(table.tokens, where, block, axis=1)
        wanted = lax.dynamic_slice_in_dim(table.targets, where, block, axis=1)
        logits = decoder.logits(module, jax.vmap(jnp.take, (0, 0, None))(hidden, rows, 0))
        top = logits.max(axis=-1, keepdims=True)
        total = jnp.log(jnp.exp(logits - top).sum(axis=-1, keepdims=True))
        # A minimum over the places of the maximum is argmax, in a form that vectorises on every platform.
        best = jnp.where(logits == top, jnp.arange(vocabulary), vocabulary).min(axis=-1, keepdims=True)
        found = (jnp.take_along_axis(logits, wanted, axis=-1) - top) - total
        logprobs, greedy = answers
        logprobs = lax.dynamic_update_slice_in_dim(logprobs, found, where, axis=1)
        return logprobs, lax.dynamic_update_slice_in_dim(greedy, wanted == best, where, axis=1)

    start = jnp.zeros(table.targets.shape, jnp.float32), jnp.zeros(table.targets.shape, jnp.bool_)
    return lax.fori_loop(0, -(-table.count // block), body, start)


def block_rows(vocabulary: int, table_rows: int) -> int:
    """Rows whose logits a group holds at once: a power of two, by the size of the vocabulary; it divides the table."""
    fitting = max(1, BLOCK_LOGITS // vocabulary)
    return min(MAX_BLOCK, table_rows, 1 << (fitting.bit_length() - 1))


def prepare(
    model: models.Model, shape: shapes.Shape, layout: mesh.Layout, *, precision: str
) -> "futures.Future[Executable]":
    """The program that runs plans of `shape`, compiled in the background; `model` may be without weights.

    Called from one thread only.
    """
    place = cache_place(model.config, layout)
    cache = jax.eval_shape(functools.partial(blank, **_of_blank(model, shape, layout)))
    cache = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place), cache)
    groups, table = shape.num_groups, (shape.table_rows, shape.table_targets)
    arguments = (
        model.params,
        _described((len(plan.FIELDS), shape.num_rows, shape.chunk_length), layout.rows(1)),
        plan.Table(
            tokens=_described((groups, table[0]), layout.rows()),
            targets=_described((groups, *table), layout.rows()),
            count=_described((), layout.replicated()),
        ),
        cache,
    )
    static = {"graphdef": model.graphdef, "precision": precision, "layout": layout}
    return compile_ahead(score_step, arguments, static)


def _of_blank(model: models.Model, shape: shapes.Shape, layout: mesh.Layout) -> dict[str, Any]:
    """The arguments of `blank` for plans of `shape`."""
    place = cache_place(model.config, layout)
    return {
        "config": model.config,
        "rows": shape.num_rows,
        "length": shape.cache_length,
        "dtype": model.dtype,
        "place": place,
    }


def run(
    model: models.Model, job: plan.Plan, layout: mesh.Layout, score: Executable, steps: Iterable[int]
) -> Iterator[Answers]:
    """The answers of each of the `steps` of `job`, in order. Steps are dispatched ahead of the device.

    `score`: what `prepare` compiled for the plan's shape.

    Every transfer is explicit. Whoever stops listening drops the steps under way.
    """
    ahead: collections.deque[tuple[int, Array, Array]] = collections.deque()
    cache = blank(**_of_blank(model, job.shape, layout))
    for step in steps:
        inputs, table = plan.step_inputs(job, step)
        placed = plan.Table(*(layout.put(array, split=array.ndim > 0) for array in table))
        cache, logprobs, greedy = score(model.params, layout.put(inputs, split=True, axis=1), placed, cache)
        ahead.append((step, logprobs, greedy))
        if len(ahead) > RUN_AHEAD:
            yield _fetch(job, layout, *ahead.popleft())
    while ahead:
        yield _fetch(job, layout, *ahead.popleft())


def _fetch(job: plan.Plan, layout: mesh.Layout, step: int, logprobs: Array, greedy: Array) -> Answers:
    """The answers of a step, on the host."""
    places = job.pair_place[job.pair_start[step] : job.pair_start[step + 1]]
    return Answers(step, *(layout.get(answer).reshape(-1)[places] for answer in (logprobs, greedy)))


def is_out_of_memory(error: Exception) -> bool:
    """Whether the device had no room."""
    return isinstance(error, jax.errors.JaxRuntimeError) and any(sign in str(error) for sign in OUT_OF_MEMORY)


def compile_ahead(function: Any, arguments: tuple[Any, ...], static: dict[str, Any]) -> "futures.Future[Executable]":
    """The executable of a jitted function for arguments like these, in the making; each shape once in a process.

    Called from one thread only.
    """
    leaves, structure = jax.tree.flatten(arguments)
    shapes = tuple(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding) for leaf in leaves)
    return compiled(function, structure, shapes, tuple(static.items()))


@functools.lru_cache(maxsize=64)
def compiled(
    function: Any,
    structure: jax.tree_util.PyTreeDef,
    shapes: tuple[jax.ShapeDtypeStruct, ...],
    static: tuple[tuple[str, Any], ...],
) -> "futures.Future[Executable]":
    """The executable for these shapes, in the making; `compile_ahead` makes the key."""

    def build() -> Executable:
        began = time.perf_counter()
        executable = function.lower(*jax.tree.unflatten(structure, shapes), **dict(static)).compile()
        COMPILED.append((function.__name__, time.perf_counter() - began))
        return executable

    return _COMPILER.submit(build)


# Every program that forwards tokens which this process compiled, or read from the cache, and its seconds; not the
# zeros that a cache begins with.
COMPILED: list[tuple[str, float]] = []
_COMPILER = futures.ThreadPoolExecutor(2, thread_name_prefix="compile")


@functools.partial(jax.jit, static_argnames=("config", "rows", "length", "dtype", "place"))
def blank(
    *, config: model_config.ModelConfig, rows: int, length: int, dtype: str, place: jax.sharding.Sharding
) -> decoder.Cache:
    """An empty cache, made on the devices."""
    return mesh.placed(decoder.init_cache(config, rows, length, jnp.dtype(dtype)), place)


def _described(shape: tuple[int, ...], place: jax.sharding.Sharding) -> jax.ShapeDtypeStruct:
    """An int32 array that is to come."""
    return jax.ShapeDtypeStruct(shape, jnp.int32, sharding=place)

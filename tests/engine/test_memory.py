"""What a step takes of a device, known before it runs."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from evaljax.core import config
from evaljax.engine import encode, executor, loglikelihood, memory, mesh, shapes
from evaljax.models import config as model_config
from evaljax.models import decoder, model, sharding

SMALL = model_config.ModelConfig(
    vocab_size=97, num_layers=2, embed_dim=16, mlp_dim=24, num_heads=4, num_kv_heads=2, head_dim=8, max_position=20_000
)
MB = 1 << 20


def outline(of: model_config.ModelConfig, dtype: str = "float32") -> model.Model:
    """A model without weights on the first device."""
    one = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return model.outline(of, dtype, dict.fromkeys(model_config.parameter_shapes(of), one))


def step_bytes(of: model_config.ModelConfig, shape: shapes.Shape) -> int:
    made = outline(of)
    program = executor.prepare(made, shape, mesh.layout_of(made.params), precision="highest").result()
    return memory.check(made, program, 1 << 62)["step"]


def test_logits_of_a_large_vocabulary_take_a_small_part_of_what_all_of_them_would() -> None:
    """A step of 4,096 tokens with 262,144 entries each: 4 GB of logits, of which there is never an eighth."""
    of = dataclasses.replace(SMALL, vocab_size=262_144)
    shape = shapes.Shape(num_rows=2, chunk_length=2048, cache_length=2048, table_rows=4096)
    assert step_bytes(of, shape) < 4096 * 262_144 * 4 / 8


def test_the_cache_is_not_copied_by_a_step() -> None:
    shape = shapes.Shape(num_rows=4, chunk_length=64, cache_length=16_384)
    cache = 4 * 16_384 * 2 * SMALL.num_layers * SMALL.num_kv_heads * SMALL.head_dim * 4
    assert cache > 8 * MB
    assert step_bytes(SMALL, shape) < 1.5 * cache


def test_a_row_of_sixteen_thousand_tokens_is_scored_after_short_ones() -> None:
    """C114: shapes are chosen for each job, the memory that there is stays the limit."""
    made = model.of(decoder.create(SMALL, nnx.Rngs(0), std=0.3))
    random = np.random.default_rng(0)
    options = config.EngineOptions(memory_bytes=32 * MB, num_rows=8)

    def ask(*lengths: int):
        asked = [encode.Encoded(random.integers(0, 97, n).astype(np.int32), 1) for n in lengths]
        return loglikelihood.score(made, asked, options=options, max_length=20_000, precision="highest")

    _, short = ask(*[20] * 60)
    (answer,), long = ask(16_000)
    assert np.isfinite(answer.logprob)
    assert short["shapes"][0]["cache"] == 256
    assert long["shapes"][0]["cache"] == 16_384
    assert long["shapes"][0]["rows"] < short["shapes"][0]["rows"] == 8
    assert max(short["memory"]["step"], long["memory"]["step"]) <= 32 * MB


def test_what_is_compiled_for_a_model_without_weights_serves_the_one_with_them() -> None:
    made = model.of(decoder.create(SMALL, nnx.Rngs(0), std=0.3))
    shape = shapes.Shape(num_rows=1, chunk_length=32, cache_length=256)
    layout = mesh.layout_of(made.params)
    ahead = executor.prepare(outline(SMALL), shape, layout, precision="highest")
    assert executor.prepare(made, shape, layout, precision="highest") == ahead


def test_a_slot_is_counted_on_the_device_that_holds_most_of_it() -> None:
    of = dataclasses.replace(SMALL, num_kv_heads=4)
    whole = memory.machine(outline(of), mesh.layout_of(outline(of).params), config.EngineOptions())
    assert whole.slot_bytes == 2 * of.num_layers * of.num_kv_heads * of.head_dim * 4
    made = jax.make_mesh((2, 4), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    split = model.outline(of, "bfloat16", sharding.parameter_shardings(of, made))
    machine = memory.machine(split, mesh.layout_of(split.params), config.EngineOptions(memory_bytes=7))
    assert (machine.slot_bytes, machine.num_groups, machine.memory_bytes) == (whole.slot_bytes // 8, 2, 7)


def test_a_program_that_does_not_fit_is_refused_in_the_devices_own_words() -> None:
    program = jax.jit(lambda x: x @ x).lower(jnp.ones((512, 512))).compile()
    with pytest.raises(
        memory.TooLargeError, match=r"RESOURCE_EXHAUSTED: a step needs [\d,]+ bytes .* has 1,000"
    ) as found:
        memory.check(outline(SMALL), program, 1000)
    assert executor.is_out_of_memory(found.value)

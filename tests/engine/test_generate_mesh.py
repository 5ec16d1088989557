"""Generation on every layout of 8 devices: the texts of one device, and caches that stay where they are."""

import functools
import re
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

from evaljax.core import config, request
from evaljax.engine import decode, generate, mesh, sampling, schedule
from evaljax.models import config as model_config
from evaljax.models import decoder, model, sharding

CONFIG = model_config.ModelConfig(
    vocab_size=264,
    num_layers=2,
    embed_dim=32,
    mlp_dim=48,
    num_heads=8,
    num_kv_heads=2,
    head_dim=8,
    rope_theta=500.0,
    max_position=160,
)
LAYOUTS = [(8, 1), (4, 2), (2, 4), (1, 8)]


class Numbers:
    """A tokenizer that shows ids."""

    eos_token_ids = frozenset([7])

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        return "".join(f"{i} " for i in ids if not (skip_special_tokens and i == 7))


def model_on(data: int, split: int) -> model.Model:
    options = config.EngineOptions(data=data, model=split)
    places = sharding.parameter_shardings(CONFIG, mesh.make(options, CONFIG, "float32"))
    return model.of(decoder.create(CONFIG, nnx.Rngs(0), std=0.4, shardings=places))


def texts(weights: model.Model, **options: Any) -> list[request.GenerateResponse]:
    """Greedy and sampled texts after prompts with a header, and after some without."""
    rng = np.random.default_rng(0)
    header = rng.integers(8, 264, 70)
    prompts = [np.append(header, rng.integers(8, 264, 1 + i % 5)).astype(np.int32) for i in range(30)]
    prompts += [rng.integers(8, 264, 1 + i).astype(np.int32) for i in range(3)]
    temperatures = [0.0, 0.8] if options.pop("hot", False) else [0.0]
    samplings = [
        request.Sampling(max_gen_toks=2 + i % 7, temperature=temperatures[i % len(temperatures)], min_tokens=i % 4)
        for i in range(len(prompts))
    ]
    how = {"tokenizer": Numbers(), "max_length": 160, "precision": "highest"}
    answers, figures = generate.generate(
        weights, prompts, samplings, [0] * len(prompts), options=config.EngineOptions(num_slots=3, **options), **how
    )
    assert figures["stems"] == 1
    return answers


@functools.cache
def expected(hot: bool) -> list[request.GenerateResponse]:
    return texts(model.of(decoder.create(CONFIG, nnx.Rngs(0), std=0.4)), hot=hot)


@pytest.mark.slow
@pytest.mark.parametrize("hot", [False, True])
@pytest.mark.parametrize(("data", "split"), LAYOUTS)
def test_texts_on_every_layout_are_those_of_one_device(data: int, split: int, hot: bool) -> None:
    assert texts(model_on(data, split), hot=hot) == expected(hot)


def test_texts_on_a_mesh_are_those_of_one_device() -> None:
    weights = model_on(2, 2)
    with jax.transfer_guard("disallow"):
        found = texts(weights, hot=True)
    assert found == expected(True)


@pytest.mark.parametrize(("data", "split"), [(4, 2), (2, 4)])
def test_caches_stay_where_they_are(data: int, split: int) -> None:
    weights = model_on(data, split)
    shape = schedule.Shape(
        num_slots=8, slot_length=128, path_length=256, text_length=256, chunk_lengths=(16, 16), num_groups=data
    )
    style = decode.Style(sampling.Mode.GREEDY, 4)
    layout = mesh.layout_of(weights.params)
    programs = decode.prepare(weights, shape, style, 1, layout, precision="highest")
    for program in (programs.insert, programs.decode, programs.extend[16]):
        compiled = program.result()
        moved = re.findall(r"= (\S+) (?:all-gather|all-to-all|collective-permute)", compiled.as_text())
        sizes = [
            int(np.prod([int(n) for n in re.findall(r"\d+", shape.partition("[")[2].partition("]")[0])]))
            for shape in moved
        ]
        assert max(sizes, default=0) <= 8 * 256  # the slots' texts; a layer of one device's cache has 8192 or 4096
    cache = decode.blank(config=weights.config, dtype=weights.dtype, shape=shape, layout=layout)[1]
    assert cache.keys.sharding.shard_shape(cache.keys.shape)[1] == 8 // data

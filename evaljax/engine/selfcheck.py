"""A look at the machine before it is trusted: requests packed together and one alone, and a product against float64."""

from typing import Any

import numpy as np

from evaljax.core import config, errors
from evaljax.engine import encode, executor, mesh, numerics, plan, shapes
from evaljax.models import model as models

EXACT = 1e-3  # nats by which float32 may differ; bfloat16 differs by tenths
ROUGH = 0.5
HEAD, TAIL = 9, 4  # tokens that the requests share, and that each has of its own


def run(
    model: models.Model, job: plan.Plan, layout: mesh.Layout, program: executor.Executable, *, precision: str
) -> dict[str, Any]:
    """What was found, for the manifest; two steps of `job`'s shape. Raises ConfigError for what cannot be trusted.

    `matmul_error`: relative, of a float32 product in this precision. `packed_against_alone`: nats between the last of
    three requests that share a head and what it gets alone.
    """
    requests = _requests(model.config.vocab_size, min(HEAD + TAIL, job.shape.cache_length))
    packed, alone = (_logprob(some, model, job.shape, layout, program) for some in (requests, requests[-1:]))
    exact = model.dtype == "float32" and precision == "highest"
    found = {
        "matmul_error": numerics.matmul_error(precision),
        "packed_against_alone": abs(packed - alone),
        "tolerance": EXACT if exact else ROUGH,
    }
    if np.isfinite([packed, alone]).all() and found["packed_against_alone"] > found["tolerance"]:
        raise errors.ConfigError(
            f"self-check: a request scores {packed} among others and {alone} alone on {layout.device.platform} "
            f"({model.dtype}, model.precision={precision}); expected a difference of at most {found['tolerance']}. "
            "Scores of this machine cannot be trusted"
        )
    return found


def _requests(vocab_size: int, length: int) -> list[encode.Encoded]:
    """Three sequences with one head and one target each; the last tokens differ."""
    random = np.random.default_rng(0)
    head = random.integers(0, vocab_size, max(1, length - TAIL))
    tails = np.sort(random.integers(0, vocab_size, (3, TAIL)), axis=0)  # in the order of the trie
    return [encode.Encoded(np.concatenate([head, tail]).astype(np.int32), 1) for tail in tails]


def _logprob(
    requests: list[encode.Encoded],
    model: models.Model,
    shape: shapes.Shape,
    layout: mesh.Layout,
    program: executor.Executable,
) -> float:
    """What the last request gets when these are asked together."""
    job = plan.plan_loglikelihood(requests, options=config.EngineOptions(), max_length=shape.cache_length, shape=shape)
    answers = list(executor.run(model, job, layout, program, range(job.num_steps)))
    place = int(job.pair_of_target[-1])
    return float(np.concatenate([step.logprobs for step in answers])[place])

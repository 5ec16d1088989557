#!/usr/bin/env python
"""evaljax on an accelerator: share of the device's peak (MFU) in bfloat16, and times faster than transformers.

    python tools/bench_gpu.py              # wherever JAX sees a GPU or TPU; under 8 minutes
    python tools/bench_gpu.py --tiny       # the same code with tiny shapes, on a CPU: whether it runs

Models have the shapes of Llama 3's 1B and 8B and random weights, drawn on the device straight into their shards. Work
is made of random tokens: for scoring, questions under few-shot headers with four choices of one token each; for
generation, prompts that share nothing, continued by sampling at temperature 1 to a fixed
length. Each piece of work runs twice, and the second time counts, planning included: nothing is compiled in it.

transformers runs on the same card, if torch sees one, in a process of its own, on some of the same work: one forward a
question with the four choices read off it, at the better of two batch sizes; generation of all prompts as one batch.
Useful FLOPs are those of `bench_machine`, of unique tokens only.
"""

import argparse
import dataclasses
import functools
import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import bench_machine
import numpy as np

from evaljax.models import config as model_config

LLAMA: dict[str, Any] = {
    "vocab_size": 128_256,
    "num_heads": 32,
    "num_kv_heads": 8,
    "rope_theta": 500_000.0,
    "max_position": 8192,
}
SHAPES = {
    "1B": model_config.ModelConfig(
        num_layers=16, embed_dim=2048, mlp_dim=8192, head_dim=64, tie_embeddings=True, **LLAMA
    ),
    "8B": model_config.ModelConfig(num_layers=32, embed_dim=4096, mlp_dim=14_336, head_dim=128, **LLAMA),
}
TINY_SHAPES = {
    "tiny": model_config.ModelConfig(
        vocab_size=512, num_layers=2, embed_dim=64, mlp_dim=128, num_heads=4, num_kv_heads=2, head_dim=16
    )
}
# Dense bfloat16 FLOPs a second, from the makers' data sheets, by what JAX calls the device; the first that fits.
PEAKS = {
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "A100": 312e12,
    "TPU v6": 918e12,
    "TPU v5 lite": 197e12,
    "TPU v5e": 197e12,
    "TPU v5": 459e12,
    "TPU v4": 275e12,
}
SIDE_SECONDS = 225  # of each of the two processes
STD = 0.02


@dataclasses.dataclass(frozen=True, kw_only=True)
class Work:
    """How much there is to do. `sample`: questions that transformers answers; `batches`: its batch sizes."""

    headers: int = 57
    questions: int = 30  # under each header
    header_length: int = 600
    question_length: int = 80
    prompts: int = 64
    prompt_length: int = 512
    new_tokens: int = 128
    sample: int = 128
    batches: tuple[int, int] = (16, 64)


TINY = Work(
    headers=2,
    questions=3,
    header_length=60,
    question_length=8,
    prompts=4,
    prompt_length=32,
    new_tokens=8,
    sample=4,
    batches=(2, 4),
)


class Words:
    """A tokenizer for tokens that mean nothing and never end a text."""

    eos_token_ids = frozenset[int]()

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """A letter for each token."""
        return "".join(chr(ord("a") + token % 26) for token in ids)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs both sides and prints; returns the exit code, 1 if evaljax's side did not finish."""
    parser = argparse.ArgumentParser(description="evaljax on an accelerator, against its peak and transformers.")
    parser.add_argument("--tiny", action="store_true", help="tiny shapes, on whatever device there is")
    parser.add_argument("--side", choices=sorted(SIDES), help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.side:
        for fact in SIDES[options.side](options.tiny):
            print(json.dumps(fact), flush=True)
        return 0
    ours, problem = run_side("evaljax", options.tiny)
    theirs, their_problem = run_side("transformers", options.tiny)
    for line in report(ours, theirs):
        print(line)
    for name, what in (("evaljax", problem), ("transformers", their_problem)):
        if what:
            print(f"{name}: {what}")
    return 1 if problem else 0


def run_side(name: str, tiny: bool) -> tuple[list[dict[str, Any]], str]:
    """What a process of its own found, and what went wrong in it."""
    command = [sys.executable, str(pathlib.Path(__file__).resolve()), "--side", name, *["--tiny"] * tiny]
    problem = ""
    try:
        done = subprocess.run(command, capture_output=True, timeout=SIDE_SECONDS, check=False)
        output = done.stdout
        if done.returncode:
            problem = f"failed ({done.returncode}):\n{done.stderr.decode(errors='replace')[-3000:]}"
    except subprocess.TimeoutExpired as error:
        output, problem = error.stdout or b"", f"not done in {SIDE_SECONDS} s"
    return [json.loads(line) for line in output.decode().splitlines() if line.startswith("{")], problem


def report(ours: Sequence[Mapping[str, Any]], theirs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The table's lines."""
    devices = [fact for fact in [*ours, *theirs] if "device" in fact]
    yield from (fact["device"] for fact in devices)
    seconds = {(fact["model"], fact["work"]): fact["seconds"] for fact in theirs if "work" in fact}
    yield f"{'model':6s} {'work':12s} {'MFU':>7s} {'over transformers':>18s}"
    for fact in ours:
        if "work" not in fact:
            continue
        peer = seconds.get((fact["model"], fact["work"]))
        ratio = f"{peer / fact['seconds']:.2f}x" if peer else "-"
        yield f"{fact['model']:6s} {fact['work']:12s} {fact['mfu']:7.2%} {ratio:>18s}"


def evaljax_side(tiny: bool) -> Iterator[dict[str, Any]]:
    """The device, and each model's MFU and seconds a question or text."""
    import jax

    if jax.default_backend() == "cpu" and not tiny:
        raise SystemExit("JAX sees no accelerator: see --tiny")
    devices = jax.devices()
    kind = devices[0].device_kind
    known = next((peak for name, peak in PEAKS.items() if name in kind), None)
    peak = (known or measured_peak(512 if tiny else 8192)) * len(devices)
    source = "its data sheet" if known else "a matrix product"
    yield {"device": f"evaljax: {len(devices)} x {kind}, peak {peak / 1e12:.3g} TFLOP/s in bfloat16 by {source}"}
    work = TINY if tiny else Work()
    for name, shape in (TINY_SHAPES if tiny else SHAPES).items():
        model = random_model(shape)
        for what, run in (("scoring", score), ("generation", generate)):
            run(model, work)
            start = time.perf_counter()
            count, flops = run(model, work)
            seconds = time.perf_counter() - start
            yield {"model": name, "work": what, "mfu": flops / seconds / peak, "seconds": seconds / count}
        del model


def measured_peak(size: int) -> float:
    """FLOPs a second of a bfloat16 product of two matrices of `size` x `size`."""
    import jax
    import jax.numpy as jnp

    square = jnp.ones((size, size), jnp.bfloat16)
    product = jax.jit(jnp.matmul)
    jax.block_until_ready(product(square, square))
    times = []
    for _ in range(bench_machine.TRIES):
        start = time.perf_counter()
        jax.block_until_ready(product(square, square))
        times.append(time.perf_counter() - start)
    return 2 * size**3 / min(times)


def random_model(shape: model_config.ModelConfig) -> Any:
    """The model, drawn on its devices, each parameter straight into its shards and a layer at a time."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    from evaljax.core import config
    from evaljax.engine import mesh
    from evaljax.models import decoder, sharding
    from evaljax.models import model as models

    shapes = model_config.parameter_shapes(shape)
    if len(jax.devices()) == 1:
        where: sharding.Shardings = dict.fromkeys(shapes, jax.sharding.SingleDeviceSharding(jax.devices()[0]))
    else:
        where = sharding.parameter_shardings(shape, mesh.make(config.EngineOptions(), shape, "bfloat16"))

    def draw(path: sharding.Path, key: jax.Array) -> jax.Array:
        size = shapes[path]
        if path[-1].endswith("norm"):
            return jnp.ones(size, jnp.bfloat16)
        if path[0] != "blocks":
            return STD * jax.random.normal(key, size, jnp.bfloat16)
        keys = jax.random.split(key, size[0])
        return lax.map(lambda one: STD * jax.random.normal(one, size[1:], jnp.bfloat16), keys)

    keys = jax.random.split(jax.random.key(0), len(shapes))
    made = {
        path: jax.jit(draw, static_argnums=0, out_shardings=where[path])(path, key)
        for path, key in zip(shapes, keys, strict=True)
    }
    return models.of(decoder.Decoder(shape, jax.block_until_ready(made)))


def questions(work: Work, vocabulary: int) -> tuple[np.ndarray, np.ndarray]:
    """int32 [headers * questions, header + question tokens], and the four choices of all of them."""
    draw = np.random.default_rng(0)
    headers = draw.integers(0, vocabulary, (work.headers, 1, work.header_length), np.int32)
    asked = draw.integers(0, vocabulary, (work.headers, work.questions, work.question_length), np.int32)
    whole = np.concatenate([np.broadcast_to(headers, (*asked.shape[:2], work.header_length)), asked], axis=-1)
    return whole.reshape(-1, whole.shape[-1]), draw.choice(vocabulary, 4, replace=False).astype(np.int32)


def prompts(work: Work, vocabulary: int) -> np.ndarray:
    """int32 [prompts, tokens]."""
    return np.random.default_rng(1).integers(0, vocabulary, (work.prompts, work.prompt_length), np.int32)


def policy(length: int) -> dict[str, Any]:
    """What every engine call is told; `length`: of the longest sequence."""
    from evaljax.core import config

    return {"options": config.EngineOptions(), "max_length": length, "precision": "default"}


def score(model: Any, work: Work) -> tuple[int, int]:
    """How many questions were answered, and useful FLOPs."""
    from evaljax.engine import encode, loglikelihood

    asked, choices = questions(work, model.config.vocab_size)
    encoded = [
        encode.Encoded(np.append(question, choice).astype(np.int32), 1) for question in asked for choice in choices
    ]
    _, figures = loglikelihood.score(model, encoded, **policy(asked.shape[1]))
    counts = (figures[name] for name in ("unique_tokens", "attended_tokens", "scored_positions"))
    return len(asked), bench_machine.useful_flops(model.config, *counts)


def generate(model: Any, work: Work) -> tuple[int, int]:
    """How many texts were generated, and useful FLOPs."""
    from evaljax.core import request
    from evaljax.engine import generate as engine

    asked = list(prompts(work, model.config.vocab_size))
    sampling = request.Sampling(max_gen_toks=work.new_tokens, temperature=1.0)
    length = work.prompt_length + work.new_tokens
    answers, _ = engine.generate(
        model, asked, [sampling] * len(asked), [0] * len(asked), tokenizer=Words(), **policy(length)
    )
    assert all(answer.num_tokens == work.new_tokens for answer in answers)
    tokens = length - 1  # the last token is never read
    attended = tokens * (tokens + 1) // 2
    counts = (len(asked) * count for count in (tokens, attended, work.new_tokens))
    return len(asked), bench_machine.useful_flops(model.config, *counts)


def transformers_side(tiny: bool) -> Iterator[dict[str, Any]]:
    """Each model's seconds a question or text."""
    import torch

    if not torch.cuda.is_available() and not tiny:
        yield {"device": "transformers: torch sees no GPU here, nothing to compare with"}
        return
    place = "cuda" if torch.cuda.is_available() else "cpu"
    yield {"device": f"transformers: on {torch.cuda.get_device_name() if place == 'cuda' else place}"}
    work = TINY if tiny else Work()
    for name, shape in (TINY_SHAPES if tiny else SHAPES).items():
        model = torch_model(shape, place)
        asked = torch.from_numpy(questions(work, shape.vocab_size)[0][: work.sample]).long()
        texts = torch.from_numpy(prompts(work, shape.vocab_size)).long().to(place)
        with torch.inference_mode():
            best = min(
                torch_seconds(functools.partial(torch_score, model, asked, size), place) for size in work.batches
            )
            yield {"model": name, "work": "scoring", "seconds": best / len(asked)}
            seconds = torch_seconds(functools.partial(torch_generate, model, texts, work.new_tokens), place)
            yield {"model": name, "work": "generation", "seconds": seconds / len(texts)}
        del model
        torch.cuda.empty_cache()  # the next one needs the room


def torch_model(shape: model_config.ModelConfig, place: str) -> Any:
    """transformers' model of the same shape, with random weights in bfloat16."""
    import torch
    import transformers

    settings = transformers.LlamaConfig(
        vocab_size=shape.vocab_size,
        num_hidden_layers=shape.num_layers,
        hidden_size=shape.embed_dim,
        intermediate_size=shape.mlp_dim,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        tie_word_embeddings=shape.tie_embeddings,
        max_position_embeddings=shape.max_position,
        initializer_range=STD,
    )
    with torch.device(place):
        return transformers.AutoModelForCausalLM.from_config(settings, dtype=torch.bfloat16).eval()


def torch_score(model: Any, asked: Any, size: int) -> None:
    """Forwards the questions, `size` at a time; logits of the last position only, as scoring needs."""
    for start in range(0, len(asked), size):
        batch = asked[start : start + size].to(model.device)
        model(batch, use_cache=False, logits_to_keep=1).logits.float().log_softmax(-1).cpu()


def torch_generate(model: Any, texts: Any, new_tokens: int) -> None:
    """Continues all texts by exactly `new_tokens`."""
    import torch

    model.generate(
        texts,
        attention_mask=torch.ones_like(texts),
        max_new_tokens=new_tokens,
        min_new_tokens=new_tokens,
        do_sample=True,
        top_k=0,
        pad_token_id=0,
    ).cpu()


def torch_seconds(run: Callable[[], None], place: str) -> float:
    """Seconds of the second run."""
    import torch

    for _ in range(2):
        start = time.perf_counter()
        run()
        if place == "cuda":
            torch.cuda.synchronize()
    return time.perf_counter() - start


SIDES: dict[str, Callable[[bool], Iterator[dict[str, Any]]]] = {
    "evaljax": evaljax_side,
    "transformers": transformers_side,
}

if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    sys.exit(main())

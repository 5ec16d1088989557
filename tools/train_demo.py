"""Trains the small language model that ships with evaljax, and writes its folder.

    python tools/train_demo.py --out evaljax/demo       # the folder must not hold params/ yet

It takes about five minutes on two idle cores. The text comes from `tools/demo_text.py`; nothing is downloaded.
Everything is seeded, but the order of sums on another machine may differ, and with it the last digits of the scores.
"""

import argparse
import functools
import json
import pathlib
import time
from collections.abc import Iterable

import demo_text
import jax
import jax.numpy as jnp
import numpy as np
import optax
import tokenizers
from flax import nnx
from jaxtyping import Array, Float, Int

from evaljax.models import config as config_lib
from evaljax.models import decoder, model, orbax_dir

BOS, EOS = "<bos>", "<eos>"
BOS_ID, EOS_ID = 0, 1  # the trainer numbers special tokens first, in order
MODEL = config_lib.ModelConfig(
    vocab_size=640,
    num_layers=3,
    embed_dim=128,
    mlp_dim=320,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    tie_embeddings=True,
    max_position=256,
)
STEPS, BATCH, PEAK_RATE, SEED = 1500, 4, 3e-3, 0
TOKENS_PER_DOCUMENT = 40  # fewer than there are, so that the documents suffice
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ message['content'] }}\n\n"
    "{% elif message['role'] == 'user' %}User:\n{{ message['content'] }}\n"
    "{% else %}Assistant:\n{{ message['content'] }}{% if not loop.last or add_generation_prompt %}\n\n{% endif %}"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}Assistant:\n{% endif %}"
)


def train_tokenizer(texts: Iterable[str], size: int) -> tokenizers.Tokenizer:
    """A byte-level BPE tokenizer that adds no special tokens by itself."""
    split = tokenizers.pre_tokenizers
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = split.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size, special_tokens=[BOS, EOS], initial_alphabet=split.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def write_tokenizer(tokenizer: tokenizers.Tokenizer, folder: pathlib.Path) -> None:
    """Write tokenizer.json and tokenizer_config.json, the chat template in it."""
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "model_max_length": MODEL.max_position,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def token_rows(
    tokenizer: tokenizers.Tokenizer, documents: list[str], count: int, length: int
) -> Int[np.ndarray, "R T1"]:
    """`count` rows of `length` + 1 tokens, cut from all documents in a line, each between BOS and EOS."""
    stream = [token for found in tokenizer.encode_batch(documents) for token in (BOS_ID, *found.ids, EOS_ID)]
    needed = count * (length + 1)
    if len(stream) < needed:
        raise ValueError(f"{len(documents)} documents give {len(stream)} tokens; expected at least {needed}")
    return np.asarray(stream[:needed], np.int32).reshape(count, length + 1)


def init(config: config_lib.ModelConfig, seed: int) -> decoder.Decoder:
    """An untrained decoder; what writes to the residual stream starts smaller, the deeper the model."""
    made = decoder.create(config, nnx.Rngs(seed), std=0.04)
    shrink = (2 * config.num_layers) ** -0.5
    for parameter in (made.blocks.output, made.blocks.down):
        parameter[...] = parameter[...] * shrink
    return made


def mean_loss(trained: decoder.Decoder, rows: Int[Array, "B T1"]) -> Float[Array, ""]:
    """The mean cross entropy of every next token, in nats."""
    logits = decoder.causal_logits(trained, rows[:, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(logits, rows[:, 1:]).mean()


def train(rows: Int[np.ndarray, "R T1"], steps: int, batch: int) -> model.Model:
    """The trained model; prints the loss on the way."""
    rate = optax.warmup_cosine_decay_schedule(0.0, PEAK_RATE, steps // 20, steps, PEAK_RATE / 20)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(rate, b2=0.98, weight_decay=0.05))
    graphdef, params = nnx.split(init(MODEL, SEED))
    state = optimizer.init(params)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params: nnx.State, state: optax.OptState, rows: Array) -> tuple[nnx.State, optax.OptState, Array]:
        loss, gradient = jax.value_and_grad(lambda p: mean_loss(nnx.merge(graphdef, p), rows))(params)
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, loss

    start = time.perf_counter()
    for index in range(steps):
        params, state, loss = step(params, state, rows[index * batch : (index + 1) * batch])
        if index % 50 == 0 or index == steps - 1:
            print(f"step {index:5d}  loss {float(loss):.3f}  {time.perf_counter() - start:.0f} s", flush=True)
    return model.of(nnx.merge(graphdef, params))


def main() -> None:
    """Make the text, train tokenizer and model, write the folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder to write the model to")
    parser.add_argument("--steps", type=int, default=STEPS)
    arguments = parser.parse_args()
    if (arguments.out / orbax_dir.PARAMS).exists():
        parser.error(f"{arguments.out / orbax_dir.PARAMS} exists; remove it, or name another folder")
    rows = arguments.steps * BATCH
    number = rows * (MODEL.max_position + 1) // TOKENS_PER_DOCUMENT + 1000
    documents = list(demo_text.training_documents(demo_text.world(), number))
    tokenizer = train_tokenizer(documents[:20_000], MODEL.vocab_size)
    data = token_rows(tokenizer, documents, rows, MODEL.max_position)
    print(f"{MODEL.num_parameters:,} parameters, {data.size:,} tokens", flush=True)
    trained = train(data, arguments.steps, BATCH)
    # Half of the bytes; whoever loads it in float32 gets these numbers exactly.
    small = jax.tree.map(lambda array: array.astype(jnp.bfloat16), trained.params)
    arguments.out.mkdir(parents=True, exist_ok=True)
    write_tokenizer(tokenizer, arguments.out)
    orbax_dir.write(model.Model(config=MODEL, graphdef=trained.graphdef, params=small), str(arguments.out))
    # Orbax notes there where the folder lay; nobody reads it.
    (arguments.out / orbax_dir.PARAMS / "commit_success.txt").unlink(missing_ok=True)


if __name__ == "__main__":
    main()

"""Generation on a real model, against transformers generating one prompt at a time."""

import pathlib

import numpy as np
import pytest

from evaljax.core import config, request
from evaljax.engine import generate, tokenizer
from evaljax.models import checkpoint

HEADER = "Question: What colour is the sky?\nAnswer: Blue.\n\nQuestion: Legs of a spider?\nAnswer: Eight.\n\n"
PROMPTS = [
    "The",
    "Once upon a time, in a village by the sea,",
    HEADER + "Question: What is the capital of France?\nAnswer:",
    HEADER + "Question: A farmer has 12 sheep and buys 7 more. How many sheep does he have now?\nAnswer:",
    HEADER * 4 + "Question: Which planet is closest to the sun?\nAnswer:",
    "def fibonacci(n):\n    if n < 2:\n        return n\n",
]


@pytest.mark.slow
@pytest.mark.parity
def test_greedy_texts_equal_transformers_token_for_token(test_models: pathlib.Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    folder = str(test_models / "smollm2")
    reader = tokenizer.read_tokenizer(folder)
    prompts = [np.array(reader.encode(text), np.int32) for text in PROMPTS]
    ours, _ = generate.generate(
        checkpoint.read_model(folder, dtype="float32"),
        prompts,
        [request.Sampling(max_gen_toks=24)] * len(prompts),
        [0] * len(prompts),
        tokenizer=reader,
        options=config.EngineOptions(num_slots=4),  # fewer than prompts: slots are refilled
        max_length=2048,
        precision="highest",
    )
    reference = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    for prompt, answer in zip(prompts, ours, strict=True):
        ids = torch.tensor(prompt, dtype=torch.long)[None]
        with torch.no_grad():
            generated = reference.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, do_sample=False, pad_token_id=0
            )
        new = generated[0, prompt.size :].tolist()
        assert answer.text == reader.decode(new)
        assert answer.num_tokens == len(new)

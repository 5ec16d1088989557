"""A real model: SmolLM2 from its folder and from GGUF, against transformers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evaljax.models import checkpoint, decoder, model

pytestmark = [pytest.mark.parity, pytest.mark.slow]

PROMPTS = (
    "The capital of France is Paris, and the capital of",
    "def fib(n):\n    ",
    "Question: what is 2 + 2?\nAnswer: 4\n\n" * 20,
)


def test_logits_are_those_of_transformers_from_the_folder_and_from_gguf(test_models):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    folder, file = test_models / "smollm2", test_models / "smollm2.gguf"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    reference = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    loaded = checkpoint.read_model(str(folder), dtype="float32")
    if file.is_file():
        dequantised = checkpoint.read_model(str(file), dtype="float32")
        assert dequantised.config == loaded.config
        for left, right in zip(jax.tree.leaves(dequantised.params), jax.tree.leaves(loaded.params), strict=True):
            np.testing.assert_array_equal(left, right)
    for prompt in PROMPTS:
        tokens = tokenizer(prompt).input_ids
        with torch.no_grad():
            want = reference(torch.tensor([tokens])).logits.numpy()
        with jax.default_matmul_precision("highest"):
            got = decoder.causal_logits(model.merge(loaded.graphdef, loaded.params), jnp.asarray([tokens], jnp.int32))
        np.testing.assert_allclose(got, want, atol=1e-3)

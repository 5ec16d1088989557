import importlib.util
import json
import subprocess
import sys

import numpy as np
import pytest

from evaljax import testing
from evaljax.backends import table
from evaljax.core import config, errors, request

REQUESTS = [
    request.LoglikelihoodRequest(context, continuation)
    for context in ("Q: which?\nA:", "", "A much longer context to be read before. ", "é")
    for continuation in (" the end", "x", "yes and no")
]


def open_torch(folder, **settings):
    spec = config.ModelSpec(path=str(folder), backend="torch", **settings)
    return table.open_backend(spec, config.EngineOptions())


def test_batches_score_as_one_plain_forward_of_each_request(tiny_model):
    torch = pytest.importorskip("torch")
    backend = open_torch(tiny_model, batch_size=5)
    answers = backend.loglikelihood(REQUESTS)
    for asked, answer in zip(REQUESTS, answers, strict=True):
        head = asked.context.rstrip()
        ids = backend.tokenizer.encode(asked.context + asked.continuation, add_special_tokens=False)
        first = len(backend.tokenizer.encode(head, add_special_tokens=False))
        ids, first = ([1, *ids], 1) if not head else (ids, first)  # 1 is BOS
        with torch.inference_mode():
            logits = backend.model(torch.tensor([ids])).logits[0].double().numpy()
        logprobs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        want = sum(logprobs[place - 1, ids[place]] for place in range(first, len(ids)))
        assert answer.logprob == pytest.approx(want, abs=1e-5)
        assert answer.num_tokens == len(ids) - first
        assert answer.is_greedy == all(logits[p - 1].argmax() == ids[p] for p in range(first, len(ids)))


def test_a_batch_generates_what_each_prompt_generates_alone(tiny_model):
    torch = pytest.importorskip("torch")
    backend = open_torch(tiny_model, batch_size=3)
    contexts = ["Q: which?\nA:", "x", "A much longer context to be read before.", "é", "One"]
    asked = [request.GenerateRequest(context, request.Sampling(max_gen_toks=6)) for context in contexts]
    for context, answer in zip(contexts, backend.generate_until(asked), strict=True):
        ids = backend.tokenizer.encode(context)
        for _ in range(6):
            with torch.inference_mode():
                ids.append(int(backend.model(torch.tensor([ids])).logits[0, -1].argmax()))
        assert answer.text == backend.tokenizer.decode(ids[-6:])


def test_no_text_ends_before_its_least_number_of_tokens_but_at_a_stop_string(tmp_path):
    pytest.importorskip("torch")
    folder = testing.tiny_model_folder(tmp_path, seed=3)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "eos_token": "<"}))
    backend = open_torch(folder)

    def answer(**settings):
        asked = request.GenerateRequest("Q: Which number follows 3?\nA:", request.Sampling(max_gen_toks=20, **settings))
        return backend.generate_until([asked])[0]

    stop, length = request.FinishReason.STOP, request.FinishReason.LENGTH
    assert answer() == request.GenerateResponse("SI:I:Q*GJJJSa", 14, stop)
    assert answer(min_tokens=13) == answer()  # the 14th ends it
    longer = answer(min_tokens=20)
    assert (longer.num_tokens, longer.finish_reason, longer.text[:13]) == (20, length, answer().text)
    assert "<" not in longer.text
    assert answer(min_tokens=20, until=("Q",)) == request.GenerateResponse("SI:I:", 6, stop)


def test_without_torch_the_error_says_what_to_install(tiny_model, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        errors.ConfigError, match=r"needs torch, which is not installed: pip install .* \(from a clone: pip install -e"
    ):
        open_torch(tiny_model)


def test_a_folder_that_is_not_hugging_faces_is_named(tmp_path):
    pytest.importorskip("torch")
    with pytest.raises(errors.CheckpointError, match=r"no config\.json; the torch backend reads Hugging Face folders"):
        open_torch(tmp_path)


def test_a_corrupt_weights_file_is_named(tiny_model, tmp_path):
    pytest.importorskip("torch")
    for file in tiny_model.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes()[: 100 if file.suffix == ".safetensors" else None])
    with pytest.raises(errors.CheckpointError, match="cannot load the model"):
        open_torch(tmp_path).loglikelihood(REQUESTS)


def test_asking_torch_does_not_import_jax(tiny_model):
    pytest.importorskip("torch")
    code = (
        "import sys\n"
        "from evaljax.backends import table\n"
        "from evaljax.core import config, request\n"
        f"spec = config.ModelSpec(path={str(tiny_model)!r}, backend='hf')\n"
        "backend = table.open_backend(spec, config.EngineOptions())\n"
        "backend.loglikelihood([request.LoglikelihoodRequest('a', 'b')])\n"
        "print([name for name in ('jax', 'flax') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().splitlines()[-1] == "[]"

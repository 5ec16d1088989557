"""Real tasks on a real model: every request against transformers alone, generations, plans, executables."""

import json
import pathlib

import numpy as np
import pytest

from evaljax import evaluation, recipe, run
from evaljax.backends import jax_backend
from evaljax.core import config as config_lib
from evaljax.core import progress
from evaljax.engine import encode

pytestmark = [pytest.mark.parity, pytest.mark.slow]

# (task, shots, documents): 0-shot, 5-shot with a fixed header, 25-shot with a header of its own for each document.
SCORED = (
    ("arc_easy", 0, 32),
    ("hellaswag", 0, 14),
    ("piqa", 0, 24),
    ("winogrande", 0, 24),
    ("openbookqa", 0, 16),
    ("sciq", 0, 4),
    ("boolq", 0, 12),
    ("blimp_adjunct_island", 0, 40),
    ("truthfulqa_mc1", 0, 2),
    ("lambada_openai", 0, 12),
    ("mmlu_anatomy", 5, 5),
    ("arc_challenge", 25, 2),
)
FIRST_LIST = (
    "arc_easy,arc_challenge,hellaswag,winogrande,piqa,boolq,openbookqa,sciq,lambada_openai,wikitext,gsm8k,truthfulqa_mc1,"
    "truthfulqa_mc2,truthfulqa_gen,mmlu_anatomy,blimp_adjunct_island,triviaqa"
)


def settings(hub_mirror, test_models, **values) -> config_lib.RunConfig:
    model = {"path": str(test_models / "smollm2"), **values.pop("model", {})}
    return recipe.run_config({"model": model, "data_mirror": str(hub_mirror), "bootstrap_iters": 100, **values})


@pytest.fixture(scope="module")
def torch_model(test_models):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.set_num_threads(1)  # more threads wait for each other on a busy machine
    return transformers.AutoModelForCausalLM.from_pretrained(test_models / "smollm2", dtype=torch.float32).eval()


def requests_of(hub_mirror, test_models, backend, spec):
    name, shots, limit = spec
    config = settings(hub_mirror, test_models, tasks=name, num_fewshot=shots, limit=limit)
    prepared = evaluation.prepare(evaluation.load_tasks(config), config, backend)
    by_type = evaluation.requests_by_type(prepared)
    return [r for kind, items in by_type.items() for r in evaluation.plain_requests(prepared, kind, items, config.seed)]


def test_500_real_requests_equal_transformers_one_at_a_time(hub_mirror, test_models, torch_model):
    import torch

    config = settings(hub_mirror, test_models, tasks="arc_easy")
    backend = jax_backend.JaxBackend.open(config.model, config.engine, progress.silent)
    asked = [r for spec in SCORED for r in requests_of(hub_mirror, test_models, backend, spec)]
    assert len(asked) >= 500
    answers = backend.loglikelihood(asked)
    encoded = encode.encode_loglikelihood(backend.tokenizer, asked, backend.max_length)
    known: dict[bytes, torch.Tensor] = {}  # choices of one token ask for the same forward: it is made once
    for answer, sequence in zip(answers, encoded, strict=True):
        inputs = sequence.tokens[:-1].astype(np.int64)
        if (key := inputs.tobytes()) not in known:
            with torch.no_grad():
                # float64 from the logits on: torch's float32 log_softmax is off by 8e-6 a token at this vocabulary.
                known = {key: torch_model(torch.tensor(inputs[None])).logits[0].double()}
        logits = known[key][-sequence.num_targets :]
        targets = torch.tensor(sequence.tokens[-sequence.num_targets :].astype(np.int64))
        expected = float(torch.log_softmax(logits, -1).gather(-1, targets[:, None]).sum())
        # Rounding grows with the tokens that a request reads: ours and torch's each lie up to 1e-4 from float64.
        assert answer.logprob == pytest.approx(expected, abs=1e-4 * max(1.0, len(sequence.tokens) / 20))
        close = float(logits.topk(2).values.diff().abs().min()) < 1e-4
        assert close or answer.is_greedy == bool((logits.argmax(-1) == targets).all())


def test_20_greedy_answers_equal_transformers_token_for_token(hub_mirror, test_models, torch_model):
    import torch

    config = settings(
        hub_mirror,
        test_models,
        tasks="gsm8k",
        num_fewshot=2,
        limit=20,
        gen_kwargs={"max_gen_toks": 40},
        engine={"num_slots": 6},  # fewer than prompts: slots are refilled
    )
    backend = jax_backend.JaxBackend.open(config.model, config.engine, progress.silent)
    prepared = evaluation.prepare(evaluation.load_tasks(config), config, backend)
    [items] = evaluation.requests_by_type(prepared).values()
    asked = evaluation.plain_requests(prepared, "generate_until", items, config.seed)
    for request, answer in zip(asked, backend.generate_until(asked), strict=True):
        ids = torch.tensor([backend.tokenizer.encode(request.context)])
        with torch.no_grad():
            out = torch_model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=40, do_sample=False, pad_token_id=0
            )
        text = backend.tokenizer.decode(out[0, ids.shape[1] :].tolist())
        for stop in request.sampling.until:
            text = text.split(stop)[0]
        assert answer.text == text


@pytest.mark.parametrize(("task", "shots", "limit"), [("mmlu", 5, 30), ("arc_challenge", 25, 30)])
def test_shared_tokens_are_forwarded_once(hub_mirror, test_models, tmp_path, task, shots, limit):
    config = settings(
        hub_mirror, test_models, tasks=task, num_fewshot=shots, limit=limit, dry_run=True, output_dir=str(tmp_path)
    )
    run.run(config)
    plan = json.loads(pathlib.Path(tmp_path, "plan.json").read_text())
    assert plan["forward_tokens"] <= 1.15 * plan["unique_tokens"]
    assert plan["request_tokens"] >= 3 * plan["unique_tokens"]


def test_the_first_task_list_runs_in_at_most_8_executables(hub_mirror, test_models, tmp_path):
    config = settings(
        hub_mirror,
        test_models,
        tasks=FIRST_LIST,
        limit=2,
        gen_kwargs={"max_gen_toks": 24},
        model={"max_length": 2048},
        output_dir=str(tmp_path),
    )
    outcome = run.run(config)
    assert outcome is not None
    assert set(outcome.tasks) == set(FIRST_LIST.split(","))
    manifest = json.loads(pathlib.Path(tmp_path, "manifest.json").read_text())
    assert 2 <= manifest["engine"]["executables"] <= 8
    for name in FIRST_LIST.split(","):
        assert pathlib.Path(tmp_path, f"samples_{name}.jsonl").stat().st_size > 0

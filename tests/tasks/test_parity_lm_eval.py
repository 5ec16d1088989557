"""Prompts of made-up tasks, in every mode, compared with those that lm-eval itself builds."""

import itertools
import json

import pytest

from evaljax.tasks import instances, prompt

pytestmark = [pytest.mark.parity, pytest.mark.slow]

CHOICE = {
    "output_type": "multiple_choice",
    "doc_to_text": "Q: {{question}}\nA:",
    "doc_to_target": "label",
    "doc_to_choice": "choices",
}
CONTEXTS = {
    "output_type": "multiple_choice",
    "doc_to_text": "{{label}}",
    "doc_to_choice": "{{[question ~ ' one', question ~ ' two']}}",
    "doc_to_target": "so {{answer}}",
}
GENERATE = {
    "output_type": "generate_until",
    "doc_to_text": "{{question}}",
    "doc_to_target": "{{choices}}",
    "generation_kwargs": {"until": ["\n"], "max_gen_toks": 5},
}
LIKELIHOOD = {"output_type": "loglikelihood", "doc_to_text": "{{question}} ", "doc_to_target": " {{answer}}"}
KINDS = {"choice": CHOICE, "contexts": CONTEXTS, "generate": GENERATE, "likelihood": LIKELIHOOD}
CHANGES = {
    "plain": {},
    "description": {"description": "About {{label}}.\n\n"},
    "glued": {"description": "Desc.", "target_delimiter": "", "fewshot_delimiter": "\n"},
    "prefix": {"gen_prefix": "Ans:"},
    "spaced prefix": {"gen_prefix": "Answer {{label}}: ", "target_delimiter": "\n"},
    "own examples": {
        "fewshot_config": {"sampler": "first_n", "doc_to_text": "Ex {{question}}", "target_delimiter": "=>"}
    },
    "given examples": {
        "fewshot_split": None,
        "fewshot_config": {
            "samples": [{"question": f"s{i}", "choices": ["x", "y"], "label": i % 2, "answer": "x"} for i in range(4)]
        },
    },
    "excluding": {"fewshot_split": "test"},
    "fallback": {"fewshot_split": None, "training_split": "train"},
}


def template(messages, add_generation_prompt):
    turns = "".join(f"<{m['role']}>{m['content']}</>" for m in messages)
    return turns + "<assistant>" if add_generation_prompt else turns.removesuffix("</>")


@pytest.fixture
def data(folder):
    files = {}
    for split, start, count in (("train", 100, 20), ("test", 0, 8)):
        files[split] = str(folder.jsonl(f"{split}.jsonl", folder.rows(count, start)))
    return folder, {"dataset_path": "json", "dataset_kwargs": {"data_files": files}}


# An example whose text is no index stops lm-eval where the contexts are the choices.
CASES = [case for case in itertools.product(KINDS, CHANGES) if case != ("contexts", "own examples")]


@pytest.mark.parametrize(("kind", "change"), CASES)
def test_requests_equal_lm_evals(data, kind, change):
    lm_task = pytest.importorskip("lm_eval.api.task")
    folder, dataset = data
    fields = {
        "task": "toy",
        "test_split": "test",
        "fewshot_split": "train",
        **dataset,
        **KINDS[kind],
        **CHANGES[change],
    }
    fields = {key: value for key, value in fields.items() if value is not None}
    for shots, chat, multiturn, system in itertools.product((0, 2), (False, True), (False, True), (None, "SYS")):
        if multiturn and not chat:
            continue
        theirs = lm_task.ConfigurableTask(config=json.loads(json.dumps(fields)))
        theirs.set_config("num_fewshot", shots)
        theirs.set_fewshot_seed(1234)
        theirs.build_all_requests(
            system_instruction=system,
            apply_chat_template=chat,
            fewshot_as_multiturn=multiturn,
            chat_template=lambda messages, add_generation_prompt=True: template(messages, add_generation_prompt),
        )
        folder.yaml("toy.yaml", **fields)
        ours = instances.build_examples(
            folder.load("toy", num_fewshot=shots).tasks["toy"],
            limit=None,
            chat=prompt.ChatFormat(template, multiturn) if chat else None,
            system_instruction=system,
            seed=1234,
        )
        expected = [(i.request_type, i.args, i.idx, i.metadata) for i in theirs.instances]
        assert [(i.request_type, i.args, i.idx, i.metadata) for e in ours for i in e.instances] == expected

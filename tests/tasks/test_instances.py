"""Requests of whole tasks: texts written out, selections, refusals."""

import pytest

from evaljax.core import errors
from evaljax.tasks import instances, prompt


def build(task, limit=None, samples=None, chat=None, system=None, seed=1234):
    return instances.build_examples(task, limit=limit, samples=samples, chat=chat, system_instruction=system, seed=seed)


def arguments(task, **options):
    return [item.args for example in build(task, **options) for item in example.instances]


def chat_format(multiturn=True):
    def apply(messages, add_generation_prompt):
        turns = "".join(f"<{m['role']}>{m['content']}" for m in messages)
        return turns + ("<assistant>" if add_generation_prompt else "")

    return prompt.ChatFormat(apply=apply, multiturn=multiturn)


def test_multiple_choice_asks_once_per_choice(toy_folder):
    (example,) = build(toy_folder.toy(repeats=2, metadata={"version": 3}), limit=1)
    assert [item.args for item in example.instances] == [("Q: 0+0?\nA:", " T0"), ("Q: 0+0?\nA:", " F0")]
    assert [(i.request_type, i.idx, i.metadata) for i in example.instances] == [
        ("loglikelihood", 0, ("toy", 0, 2)),
        ("loglikelihood", 1, ("toy", 0, 2)),
    ]
    assert (example.doc_id, example.target, example.gold, example.choices) == (0, 0, 0, ("T0", "F0"))
    assert (example.multiple_input, example.multiple_target) == (False, False)


def test_description_shots_and_delimiters_in_plain_text(toy_folder):
    task = toy_folder.toy(
        shots=1,
        fewshot_split="train",
        description="Desc.",
        fewshot_config={"sampler": "first_n"},
        fewshot_delimiter="\n#\n",
    )
    ((context, _), _) = arguments(task, limit=1, system="SYS")
    assert context == "SYS\n#\nDesc.Q: 100+100?\nA: T100\n#\nQ: 0+0?\nA:"


def test_mutual_information_asks_for_every_choice_alone_as_well(toy_folder):
    task = toy_folder.toy(metric_list=[{"metric": "acc"}, {"metric": "acc_mutual_info"}])
    assert arguments(task, limit=1)[2:] == [("", " T0"), ("", " F0")]
    assert [item.idx for item in build(task, limit=1)[0].instances] == [0, 1, 2, 3]


def test_choices_in_the_context_share_one_continuation(toy_folder):
    task = toy_folder.toy(
        shots=1,
        fewshot_split="train",
        fewshot_config={"sampler": "first_n"},
        doc_to_text="{{label}}",
        doc_to_choice="{{[question ~ ' one', question ~ ' two']}}",
        doc_to_target="it is {{answer}}",
    )
    first, second = build(task, limit=2)
    head = "100+100? one it is T100\n\n"
    assert [item.args for item in second.instances] == [
        (head + "1+1? one", " it is T1"),
        (head + "1+1? two", " it is T1"),
    ]
    assert second.multiple_input
    assert (first.gold, second.gold, second.target) == (0, 1, "it is T1")


def test_loglikelihood_adds_no_delimiter_and_rolling_takes_the_target(toy_folder):
    plain = {"doc_to_choice": None, "doc_to_target": " {{answer}}"}
    assert arguments(toy_folder.toy(output_type="loglikelihood", **plain), limit=1) == [("Q: 0+0?\nA:", " T0")]
    assert arguments(toy_folder.toy(output_type="loglikelihood_rolling", **plain), limit=1) == [(" T0",)]


def test_generation_has_kwargs_of_its_own_for_every_document(toy_folder):
    task = toy_folder.toy(
        output_type="generate_until", doc_to_choice=None, doc_to_target="answer", generation_kwargs={"until": ["\n"]}
    )
    first, second = arguments(task, limit=2)
    assert first == ("Q: 0+0?\nA:", {"until": ["\n"]})
    first[1]["until"].append("x")
    assert second[1] == {"until": ["\n"]}


def test_a_list_of_answers_shows_its_first_in_examples(toy_folder):
    task = toy_folder.toy(
        shots=1,
        fewshot_split="train",
        fewshot_config={"sampler": "first_n"},
        output_type="generate_until",
        doc_to_choice=None,
        doc_to_target="choices",
    )
    (example,) = build(task, limit=1)
    assert example.instances[0].args[0] == "Q: 100+100?\nA: T100\n\nQ: 0+0?\nA:"
    assert example.multiple_target
    assert example.target == ["T0", "F0"]


def test_in_chat_the_answer_opens_a_turn_so_no_delimiter_stands_before_it(toy_folder):  # case C43
    shots = {"shots": 1, "fewshot_split": "train", "fewshot_config": {"sampler": "first_n"}}
    task = toy_folder.toy(**shots)
    assert arguments(task, limit=1, chat=chat_format()) == [
        ("<user>Q: 100+100?\nA:<assistant>T100<user>Q: 0+0?\nA:<assistant>", choice) for choice in ("T0", "F0")
    ]
    assert arguments(task, limit=1, chat=chat_format(multiturn=False)) == [
        ("<user>Q: 100+100?\nA: T100\n\nQ: 0+0?\nA:<assistant>", choice) for choice in ("T0", "F0")
    ]


@pytest.mark.parametrize(
    ("prefix", "chat", "continuation"),
    [("The", True, " T0"), ("The ", True, "T0"), ("The", False, " T0"), ("The ", False, " T0")],
)
def test_a_prefix_goes_on_after_the_delimiter(toy_folder, prefix, chat, continuation):
    task = toy_folder.toy(gen_prefix=prefix)
    (context, first), _ = arguments(task, limit=1, chat=chat_format() if chat else None)
    assert context == (f"<user>Q: 0+0?\nA:<assistant>{prefix}" if chat else f"Q: 0+0?\nA: {prefix}")
    assert first == continuation


@pytest.mark.parametrize("samples", [[3, 7], [7, 3, 3]])
def test_selected_documents_have_the_prompts_of_the_full_run(toy_folder, samples):  # case C37
    task = toy_folder.toy(shots=3, fewshot_split="train")
    full, some = build(task), build(task, samples=samples)
    assert [example.doc_id for example in some] == [3, 7]
    assert [e.instances[0].args for e in some] == [full[i].instances[0].args for i in (3, 7)]
    assert [e.instances[0].args for e in build(task, limit=4)] == [e.instances[0].args for e in full[:4]]
    assert len({example.instances[0].args for example in full}) == 12


def test_the_seed_decides_the_examples(toy_folder):
    task = toy_folder.toy(shots=3, fewshot_split="train")
    assert arguments(task, seed=1) == arguments(task, seed=1)
    assert arguments(task, seed=1) != arguments(task, seed=2)


@pytest.mark.parametrize(
    "splits",
    [
        {},
        {"fewshot_split": "test"},
        {"test_split": None, "validation_split": "test"},
        {"test_split": None, "validation_split": "test", "training_split": "test"},
    ],
)
def test_no_document_stands_in_front_of_itself(toy_folder, splits):  # cases C39, C40
    for seed in range(20):
        for example in build(toy_folder.toy(shots=5, **splits), seed=seed):
            context = example.instances[0].args[0]
            assert context.count(f"Q: {example.doc['question']}\n") == 1
            assert context.count("Q: ") == 6


def test_a_row_of_the_split_that_reads_like_the_document_is_no_example(folder):
    rows = [{**row, "id": i} for i, row in enumerate(folder.rows(6) * 2)]
    folder.data(test=rows)
    for seed in range(20):
        for example in build(folder.toy(shots=4), seed=seed):
            assert example.instances[0].args[0].count(f"Q: {example.doc['question']}\n") == 1


def test_the_pool_is_looked_for_in_lm_evals_order(toy_folder):
    toy_folder.data(train=toy_folder.rows(3, 100), validation=toy_folder.rows(3, 200), test=toy_folder.rows(3))

    def first_shot(**fields):
        task = toy_folder.toy(shots=1, fewshot_config={"sampler": "first_n", **fields.pop("own", {})}, **fields)
        return arguments(task, limit=1)[0][0].split("\nA:")[0].removesuffix("?")

    assert first_shot(training_split="train", validation_split="validation", fewshot_split="validation") == "Q: 200+200"
    assert first_shot(training_split="train", validation_split="validation") == "Q: 100+100"
    assert first_shot(validation_split="validation") == "Q: 200+200"
    samples = [{"question": "given", "choices": ["a", "b"], "label": 1}]
    assert first_shot(training_split="train", own={"samples": samples}) == "Q: given"
    assert first_shot(training_split="train", own={"fewshot_indices": [2]}) == "Q: 102+102"


def test_examples_can_be_written_differently_from_the_question(toy_folder):
    own = {"sampler": "first_n", "doc_to_text": "Given {{question}}", "doc_to_target": "answer", "doc_to_choice": None}
    own |= {"target_delimiter": "=>", "fewshot_delimiter": "|"}
    task = toy_folder.toy(shots=1, fewshot_split="train", fewshot_config=own)
    assert arguments(task, limit=1)[0][0] == "Given 100+100?=>T100|Q: 0+0?\nA:"


@pytest.mark.parametrize(("limit", "count"), [(None, 12), (5, 5), (5.0, 5), (100, 12), (0.1, 2), (0.99, 12), (1.0, 1)])
def test_a_limit_is_a_number_or_a_fraction(toy_folder, limit, count):
    assert len(build(toy_folder.toy(), limit=limit)) == count


def test_a_tenth_of_100_is_10_and_of_1000_is_100(folder):  # case C51
    for count in (100, 1000):
        folder.data(f"data{count}", test=folder.rows(count))
        task = folder.toy(dataset_path=f"data{count}")
        assert len(build(task, limit=0.1)) == count // 10
        assert instances.num_docs(task) == count


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limit": 0}, "limit must be a whole number of documents or a fraction below 1, found 0"),
        ({"limit": -1}, "found -1"),
        ({"limit": 2.5}, "found 2.5"),
        ({"limit": float("nan")}, "found nan"),
        ({"samples": []}, r"samples must be one or more places from 0 to 11, found \[\]"),
        ({"samples": [12]}, "found 12"),
        ({"samples": [-1]}, "found -1"),
        ({"samples": [1], "limit": 1}, "limit and samples were both given"),
    ],
)
def test_a_selection_that_cannot_be_meant_is_refused(toy_folder, options, message):
    with pytest.raises(errors.ConfigError, match=f"task 'toy': .*{message}"):
        build(toy_folder.toy(), **options)


@pytest.mark.parametrize("label", [2, -1])
def test_a_gold_label_outside_the_choices_names_task_and_document(folder, label):  # case C27
    rows = folder.rows(3)
    rows[2]["label"] = label
    folder.data(test=rows)
    with pytest.raises(
        errors.TaskError, match=f"task 'toy', doc_to_target, document 2: the gold label is {label}, but"
    ):
        build(folder.toy())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"doc_to_target": "answer", "doc_to_choice": ["a", "b"]},
            "document 0: the gold label 'T0' is none of the 2 choices",
        ),
        ({"doc_to_target": []}, "the list of gold labels is empty"),
        ({"doc_to_target": [0, 5]}, "the gold label is 5"),
        ({"doc_to_target": None}, "task 'toy', doc_to_target, document 0: the task does not say how to make it"),
        ({"doc_to_text": None}, "task 'toy', doc_to_text, document 0: the task does not say how to make it"),
        ({"doc_to_choice": None}, "multiple_choice needs doc_to_choice"),
        ({"doc_to_text": "qestion"}, "'qestion' is no column, .* Did you mean 'question'"),
        (
            {"doc_to_text": "{{qestion}}"},
            "task 'toy', doc_to_text, document 0: 'qestion' is undefined. Did you mean 'question'",
        ),
        ({"doc_to_text": "choices"}, "document 0: expected text, found .* of type list"),
        ({"output_type": "loglikelihood", "doc_to_choice": None}, "doc_to_target, document 0: expected text, found 0"),
        ({"output_type": "loglikelihood", "doc_to_target": "{{''}}"}, "document 0: the target is empty"),
        ({"output_type": "loglikelihood_rolling", "doc_to_target": "choices"}, "expected text, found .* of type list"),
        ({"doc_to_text": 5}, "the gold label is 5"),
    ],
)
def test_fields_that_do_not_fit_the_documents_are_refused(toy_folder, fields, message):
    with pytest.raises(errors.TaskError, match=message):
        build(toy_folder.toy(**fields))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"doc_to_target": 7}, "few-shot document 0: the answer is 7, but"),
        ({"doc_to_target": "label", "doc_to_choice": None}, "few-shot document 0: expected text, found 0 of type int"),
        ({"doc_to_target": []}, "few-shot document 0: the list of answers is empty"),
        ({"samples": "x"}, "samples must be a list"),
    ],
)
def test_examples_that_cannot_be_written_are_refused(toy_folder, fields, message):
    own = {"sampler": "first_n", **fields}
    with pytest.raises(errors.TaskError, match=message):
        build(toy_folder.toy(shots=1, fewshot_split="train", fewshot_config=own))


def test_a_function_that_scores_may_have_targets_of_its_own(toy_folder):
    toy_folder.text("code.py", "def score(doc, results): return {'acc': 1}\n")
    task = toy_folder.toy(doc_to_target=7, process_results=toy_folder.function("code.score"), trust=True)
    assert build(task, limit=1)[0].target == 7


def test_each_field_and_each_example_is_rendered_once(toy_folder):
    toy_folder.text(
        "code.py", "seen = []\ndef text(doc):\n    seen.append(doc['question'])\n    return doc['question']\n"
    )
    text = toy_folder.function("code.text")
    task = toy_folder.toy(shots=20, fewshot_split="train", doc_to_text=text, trust=True)
    build(task)
    seen = task.config.doc_to_text.__globals__["seen"]
    assert len(seen) == 12 + 1 + 30  # every document, the first one to probe, every example of the pool
    assert len(set(seen)) == 42


@pytest.mark.parametrize("samples", ["12", 3, [True], ["1"], [1.0]])
def test_samples_that_are_no_whole_numbers_are_refused(toy_folder, samples):
    with pytest.raises(errors.ConfigError, match="samples must be a list of whole numbers, found"):
        build(toy_folder.toy(), limit=None, samples=samples)


def test_samples_may_be_numpys(toy_folder):
    import numpy as np

    found = build(toy_folder.toy(), limit=None, samples=np.array([7, 3]))
    assert [example.doc_id for example in found] == [3, 7]


def test_a_template_cannot_change_the_document(toy_folder):
    task = toy_folder.toy(doc_to_text="{% set _ = choices.append('x') %}{{question}}")
    with pytest.raises(errors.TaskError, match=r"doc_to_text, document 0: the template failed: SecurityError"):
        build(task, limit=1)

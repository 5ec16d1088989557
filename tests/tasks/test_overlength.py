"""Documents that are longer than the model reads. One character is one token here."""

import pytest

from evaljax.core import errors
from evaljax.tasks import instances, overlength, prompt

# 12 test documents, "Q: 0+0?\nA:" (10) to "Q: 11+11?\nA:" (12); a shot "Q: 100+100?\nA: T100\n\n" has 21.
SHOTS = {"shots": 4, "fewshot_split": "train", "fewshot_config": {"sampler": "first_n"}}


def lengths(items):
    return [len("".join(item.args)) for item in items]


def build(task, policy, max_length, count=lengths, chat=None, **options):
    rule = overlength.Rule(policy=policy, max_length=max_length, count=count)
    given = {"limit": None, "chat": chat, "system_instruction": None, "seed": 1, **options}
    return instances.build_examples(task, rule=rule, **given)


def contexts(examples):
    return [item.args[0] for example in examples for item in example.instances]


def test_shots_are_dropped_from_the_end_until_the_prompt_fits(toy_folder):
    task = toy_folder.toy(**SHOTS, description="Desc. ")
    examples = build(task, "drop_shots", 6 + 2 * 21 + 10 + 3)  # description, two shots, question, " T0"
    header = "Desc. Q: 100+100?\nA: T100\n\n"
    assert [e.shots_dropped for e in examples] == [2] * 10 + [3] * 2  # two digits more and an answer of one more
    assert contexts(examples)[0] == header + "Q: 101+101?\nA: F101\n\nQ: 0+0?\nA:"
    assert contexts(examples)[-1] == header + "Q: 11+11?\nA:"
    assert not any(example.skipped for example in examples)


def test_dropping_gives_the_prompts_of_a_run_with_fewer_shots(toy_folder):
    fewer = contexts(instances.build_examples(
        toy_folder.toy(**{**SHOTS, "shots": 1}), limit=None, chat=None, system_instruction=None, seed=1
    ))  # fmt: skip
    assert contexts(build(toy_folder.toy(**SHOTS), "drop_shots", 45)) == fewer


def test_all_requests_of_a_document_have_the_same_shots(folder):
    rows = folder.rows(3)
    rows[1]["choices"] = ["no", "a much longer choice, which needs the room of a shot"]
    folder.data(train=folder.rows(30, 100), test=rows)
    examples = build(folder.toy(**SHOTS), "drop_shots", 98)
    assert [e.shots_dropped for e in examples] == [0, 3, 0]
    assert len(set(contexts(examples)[2:4])) == 1


def test_choices_that_are_the_context_have_the_same_shots(folder):
    rows = [{**row, "long": "x" * 30 * (n == 1)} for n, row in enumerate(folder.rows(2))]
    folder.data(train=folder.rows(30, 100), test=rows)
    task = folder.toy(
        **SHOTS,
        doc_to_text="{{label}}",
        doc_to_choice="{{[question ~ ' one', question ~ ' two' ~ (long | default(''))]}}",
        doc_to_target="it is {{answer}}",
    )
    first, second = build(task, "drop_shots", 135)
    assert (first.shots_dropped, second.shots_dropped) == (0, 1)
    assert len({item.args[0].count("100+100") for item in second.instances}) == 1
    assert [item.args[0].count("it is") for item in second.instances] == [3, 3]


def test_a_document_that_does_not_fit_without_shots_keeps_none_and_is_left_to_the_cut(toy_folder):
    examples = build(toy_folder.toy(**SHOTS), "drop_shots", 5)
    assert {example.shots_dropped for example in examples} == {4}
    assert contexts(examples)[0] == "Q: 0+0?\nA:"


@pytest.mark.parametrize("multiturn", [True, False])
def test_shots_are_dropped_from_conversations_and_before_prefixes(toy_folder, multiturn):
    def apply(messages, add_generation_prompt):
        return "".join(f"<{m['role']}>{m['content']}" for m in messages) + "<assistant>" * add_generation_prompt

    task = toy_folder.toy(**SHOTS, gen_prefix="The")
    chat = prompt.ChatFormat(apply=apply, multiturn=multiturn)
    whole = build(task, "drop_shots", 10_000, chat=chat, system_instruction="SYS")[0]
    found = build(task, "drop_shots", len(contexts([whole])[0]) - 40, chat=chat, system_instruction="SYS")[0]
    assert (whole.shots_dropped, found.shots_dropped) == (0, 2)
    (context, continuation), _ = (item.args for item in found.instances)
    assert context.startswith("<system>SYS<user>Q: 100+100?\nA:")
    assert context.endswith("Q: 0+0?\nA:<assistant>The")
    assert (context.count("+"), continuation) == (3, " T0")


def test_only_what_is_too_long_is_counted_again(toy_folder):
    asked = []

    def count(items):
        asked.append(len(items))
        return lengths(items)

    build(toy_folder.toy(**SHOTS), "drop_shots", 98, count)
    assert asked == [24, 4]  # the last two documents, two choices each


def test_skipped_documents_keep_their_place_and_prompt(toy_folder):
    examples = build(toy_folder.toy(**SHOTS), "skip", 98)
    assert [example.doc_id for example in examples if example.skipped] == [10, 11]
    assert len(examples) == 12
    assert contexts(examples)[-1].count("Q:") == 5


def test_the_first_document_that_is_too_long_is_an_error_that_counts_the_others(toy_folder):
    message = (
        r"task 'toy', document 10: a request needs 100 tokens .*, the model reads at most 98; 2 of 12 documents are "
        "too long. Another `overlength`"
    )
    with pytest.raises(errors.RequestError, match=message):
        build(toy_folder.toy(**SHOTS), "error", 98)
    assert len(build(toy_folder.toy(**SHOTS), "error", 100)) == 12


def test_a_task_of_which_nothing_is_left_is_an_error(toy_folder):
    message = r"task 'toy': overlength='skip' leaves no document: the shortest of 12 needs 13 tokens, .* at most 12"
    with pytest.raises(errors.RequestError, match=message):
        build(toy_folder.toy(), "skip", 12)


@pytest.mark.parametrize("policy", ["drop_shots", "skip", "error"])
def test_rolling_texts_are_cut_into_windows_so_none_is_too_long(toy_folder, policy):
    task = toy_folder.toy(output_type="loglikelihood_rolling", doc_to_choice=None, doc_to_target="{{answer}}")
    examples = build(task, policy, 1)
    assert len(examples) == 12
    assert not any(example.skipped or example.shots_dropped for example in examples)

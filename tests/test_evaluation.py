"""From tasks to scores, documents among them that are longer than the model reads."""

import json

import pytest

from evaljax import evaluation, recipe, run, testing
from evaljax.core import errors
from evaljax.report import results_json, samples, table
from evaljax.tasks import manager

POLICIES = ("drop_shots", "skip", "error")
# With one byte a token: a question has 34 bytes ("Q: Which number follows 0?" and so on), a shot 38 more.


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tasks")
    for kind in ("multiple_choice", "generate_until"):
        testing.toy_task(folder, kind)
    rows = [json.loads(line) for line in (folder / "toy_multiple_choice_test.jsonl").read_text().splitlines()]
    rows[2]["question"] += " " + "Think. " * 30
    for kind in ("multiple_choice", "generate_until"):
        (folder / f"toy_{kind}_test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return manager.TaskManager(include_path=folder, include_defaults=False)


def evaluate(tasks, task, overlength, backend=None, **settings):
    config = recipe.run_config(
        {"tasks": task, "overlength": overlength, "bootstrap_iters": 0, **settings}, where="test"
    )
    loaded = evaluation.load_tasks(config, tasks)
    return evaluation.evaluate(config, backend or testing.FakeBackend(max_length=100), loaded=loaded)


def test_dropped_shots_are_counted_in_results_notes_and_samples(tasks):
    found = evaluate(tasks, "toy_multiple_choice", "drop_shots", num_fewshot=3)
    item = found.tasks["toy_multiple_choice"]
    assert [sample["shots_dropped"] for sample in item.samples] == [2, 2, 3, 2, 2, 2]
    assert [sample.get("truncated", False) for sample in item.samples] == [n == 2 for n in range(6)]
    assert (item.counts["shortened"], item.counts["shots_dropped"], item.counts["truncated"]) == (6, 13, 1)
    assert item.counts["tokens_dropped"] == item.samples[2]["tokens_dropped"] > 3 * 100  # three choices lose it
    assert results_json.results_dict(found)["health"]["toy_multiple_choice"]["shots_dropped"] == 13
    (line,) = table.health_lines(found)
    assert "6 documents with fewer examples to fit the model; 13 examples left out" in line
    assert (
        f"1 documents with a request cut on the left to fit the model; {item.counts['tokens_dropped']} tokens cut"
        in line
    )


def test_skipped_documents_have_no_part_in_the_score_and_stand_in_the_samples(tasks):
    found = evaluate(tasks, "toy_multiple_choice", "skip")
    item = found.tasks["toy_multiple_choice"]
    whole = evaluate(tasks, "toy_multiple_choice", "truncate_left", testing.FakeBackend()).tasks["toy_multiple_choice"]
    others = [sample["acc"] for sample in whole.samples if sample["doc_id"] != 2]
    assert item.metrics["acc", "none"] == pytest.approx(sum(others) / 5)
    assert results_json.results_dict(found)["n-samples"]["toy_multiple_choice"] == {"original": 6, "effective": 5}
    assert item.counts["skipped"] == 1
    assert "1 documents too long for the model, not scored" in table.health_lines(found)[0]
    assert "(5 documents)" in table.health_lines(found)[0]
    assert [sample.get("skipped", False) for sample in item.samples] == [n == 2 for n in range(6)]
    record, scored = list(samples.records(item))[2:4]
    assert set(scored) - set(record) == {"acc", "acc_norm"}  # lm-eval's keys, but for the values
    assert (record["metrics"], record["resps"], record["filtered_resps"]) == ([], [[], [], []], [])
    assert record["prompt_hash"] == whole.samples[2]["prompt_hash"]


def test_a_continuation_that_no_cut_makes_fit_is_skipped_too(tasks):
    task = {"task": "toy_multiple_choice", "doc_to_choice": "{{[question, answer]}}", "doc_to_target": 1}
    with pytest.raises(errors.RequestError, match=r"the continuation has 2.. tokens, the model reads at most 100"):
        evaluate(tasks, [task], "truncate_left")
    assert evaluate(tasks, [task], "skip").tasks["toy_multiple_choice"].counts["skipped"] == 1


def test_room_for_what_is_generated_is_part_of_what_is_needed(tasks):
    def dropped(**settings):
        found = evaluate(tasks, "toy_generate_until", "drop_shots", num_fewshot=1, **settings)
        return [sample.get("shots_dropped", 0) for sample in found.tasks["toy_generate_until"].samples]

    assert dropped() == [0, 0, 1, 0, 0, 0]
    assert dropped(gen_kwargs={"max_gen_toks": 60}) == [1] * 6


def test_too_long_is_an_error_before_weights_load(tasks, tmp_path):
    folder = testing.tiny_model_folder(tmp_path)
    (folder / "model.safetensors").unlink()
    config = recipe.run_config(
        {"tasks": "toy_multiple_choice", "overlength": "error", "model": {"path": str(folder)}}, where="test"
    )
    message = (
        r"task 'toy_multiple_choice', document 2: a request needs 2.. tokens .*, the model reads at most 128; 1 of 6"
    )
    with pytest.raises(errors.RequestError, match=message):
        evaluation.evaluate(
            config, run.open_backend(config, lambda *_: None), loaded=evaluation.load_tasks(config, tasks)
        )


@pytest.mark.parametrize("policy", POLICIES)
def test_a_backend_that_cannot_tell_lengths_takes_no_policy(tasks, policy):
    class Plain:
        loglikelihood = testing.FakeBackend().loglikelihood

    message = f"overlength='{policy}': Plain lacks count_tokens and max_length, .*; expected overlength='truncate_left'"
    with pytest.raises(errors.ConfigError, match=message):
        evaluate(tasks, "toy_multiple_choice", policy, Plain())
    assert (
        not evaluate(tasks, "toy_multiple_choice", "truncate_left", Plain()).tasks["toy_multiple_choice"].counts["ties"]
    )


@pytest.mark.parametrize("policy", POLICIES)
def test_for_a_backend_without_a_limit_nothing_is_too_long(tasks, policy):
    found = evaluate(tasks, "toy_multiple_choice", policy, testing.FakeBackend(), num_fewshot=3)
    plain = evaluate(tasks, "toy_multiple_choice", "truncate_left", testing.FakeBackend(), num_fewshot=3)
    assert found.tasks == plain.tasks


def test_a_backend_that_miscounts_is_named(tasks):
    class Miscounting(testing.FakeBackend):
        def count_tokens(self, requests):
            return super().count_tokens(requests)[:-1]

    with pytest.raises(errors.RequestError, match="count_tokens returned 17 numbers to 18 requests"):
        evaluate(tasks, "toy_multiple_choice", "skip", Miscounting(max_length=100))


def test_empty_answers_and_answers_without_anything_to_extract_are_noted(tasks):
    task = {
        "task": "toy_generate_until",
        "generation_kwargs": {"until": list("etaoinshrd "), "max_gen_toks": 8},
        "filter_list": [
            {"name": "digits", "filter": [{"function": "regex", "regex_pattern": "(0123)"}, {"function": "take_first"}]}
        ],
    }
    found = evaluate(tasks, [task], "truncate_left", testing.FakeBackend())
    counts = found.tasks["toy_generate_until"].counts
    assert counts["extraction_failures"] == 6
    assert counts["empty_generations"] > 0
    (line,) = table.health_lines(found)
    assert f"{counts['empty_generations']} empty answers" in line
    assert "6 answers from which a filter could extract nothing" in line


def test_a_policy_that_does_not_exist_is_refused():
    with pytest.raises(errors.ConfigError, match="test: overlength = 'drop'; expected drop_shots, error, skip, trunc"):
        recipe.run_config({"tasks": "t", "overlength": "drop"}, where="test")

"""The model and the tasks that ship with evaljax: what they are made from, and the scores that they must give."""

import functools
import json
import pathlib

import demo_text
import pytest

import evaljax
from evaljax import recipe

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODEL = ROOT / "evaljax" / "demo"
TASKS = ROOT / "tasks" / "demo"

# (task, "metric,filter"): (score, how far another machine's arithmetic may move it).
SCORES: dict[tuple[str, str], tuple[float, float]] = {
    ("demo_facts", "acc,none"): (0.867, 0.025),
    ("demo_facts", "acc_norm,none"): (0.867, 0.025),
    ("demo_grammar", "acc,none"): (0.811, 0.025),
    ("demo_cloze", "acc,none"): (0.925, 0.025),
    ("demo_cloze", "perplexity,none"): (1.297, 0.01),
    ("demo_stories", "word_perplexity,none"): (2.064, 0.002),
    ("demo_stories", "byte_perplexity,none"): (1.152, 0.002),
    ("demo_stories", "bits_per_byte,none"): (0.204, 0.002),
    ("demo_arithmetic", "exact_match,get-answer"): (0.370, 0.025),
}
CHANCE = {"demo_facts": 0.25, "demo_grammar": 0.5, "demo_cloze": 0.1, "demo_arithmetic": 0.1}


@functools.cache
def training_text() -> str:
    """Every document that the model read (24,200), and some more."""
    return "\n".join(demo_text.training_documents(demo_text.world(), 25_000))


@pytest.fixture(scope="module")
def results() -> dict:
    return evaljax.simple_evaluate("jax", {"path": "demo"}, ["demo"], bootstrap_iters=0)


def records(name: str) -> list[dict]:
    return [json.loads(line) for line in (TASKS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


def test_training_text_is_the_same_every_time():
    first, second = (list(demo_text.training_documents(demo_text.world.__wrapped__(), 300)) for _ in range(2))
    assert first == second
    assert first != list(demo_text.training_documents(demo_text.world(), 300, seed=1))


def test_shipped_documents_are_those_that_the_tool_writes():
    expected = demo_text.evaluation_documents(demo_text.world())
    assert {name: records(name) for name in expected} == expected
    assert sorted(path.stem for path in TASKS.glob("*.jsonl")) == sorted(expected)


def test_every_task_has_its_own_number_of_distinct_documents():
    for path in TASKS.glob("*.jsonl"):
        lines = path.read_text(encoding="utf-8").splitlines()
        assert len(set(lines)) == len(lines), path.name
        assert len(lines) >= (40 if path.stem.endswith("_test") else 25), path.name


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("facts_test", "question"),
        ("grammar_test", "good"),
        ("stories_test", "story"),
        ("arithmetic_test", "question"),
    ],
)
def test_evaluation_documents_never_occur_in_the_training_text(name, field):
    assert [record[field] for record in records(name) if record[field] in training_text()] == []


def test_evaluated_statements_never_occur_in_the_training_text():
    statements = [f"{r['passage'].rsplit('. ', 1)[-1]} {r['word']}." for r in records("cloze_test")]
    assert [statement for statement in statements if statement in training_text()] == []


def test_story_animals_never_live_in_the_evaluated_place_in_the_training_text():
    homes = {
        (animal, place)
        for animal, place in (
            (
                next(a for a in demo_text.ANIMALS if f" {a} " in record["story"].split(".")[0]),
                record["story"].split(".")[1].split()[-1],
            )
            for record in records("stories_test")
        )
    }
    assert homes <= demo_text.world().held_homes
    assert all(place in demo_text.PLACES for _, place in homes)


def test_few_shot_examples_are_taken_from_what_training_shows():
    examples = records("facts_train") + records("arithmetic_train")
    assert [example["question"] for example in examples if example["question"] not in training_text()] == []


def test_model_folder_is_at_most_three_megabytes():
    files = [path for path in MODEL.rglob("*") if path.is_file()]
    assert {"evaljax.json", "tokenizer.json", "tokenizer_config.json", "README.md"} <= {path.name for path in files}
    assert sum(path.stat().st_size for path in files) <= 3_000_000


@pytest.mark.slow
def test_scores_are_the_stated_ones(results):
    found = {key: results["results"][key[0]][key[1]] for key in SCORES}
    wrong = {
        key: (found[key], stated) for key, (stated, tolerance) in SCORES.items() if abs(found[key] - stated) > tolerance
    }
    assert wrong == {}


def test_every_kind_of_request_is_clearly_above_chance_and_below_perfect():
    for (task, metric), (score, _) in SCORES.items():
        if metric.split(",")[0] in ("acc", "acc_norm", "exact_match"):
            assert CHANCE[task] + 0.15 <= score <= 0.97, (task, metric)


def test_stated_scores_are_those_of_the_recipe_and_of_the_readme():
    header = (ROOT / "configs" / "quickstart.py").read_text(encoding="utf-8").split('"""')[1]
    readme = (TASKS / "README.md").read_text(encoding="utf-8")
    for (task, metric), (score, _) in SCORES.items():
        stated, name = f"{score:.3f}", metric.split(",")[0]
        for text in (header, readme):
            assert any(task in line and name in line and stated in line for line in text.splitlines()), (task, metric)


@pytest.mark.parametrize("name", ["quickstart", "smollm2", "mmlu"])
def test_recipes_read(name):
    assert recipe.read(str(ROOT / "configs" / f"{name}.py")).tasks


def test_quickstart_asks_for_the_shipped_model_on_the_demo_tasks():
    config = recipe.read(str(ROOT / "configs" / "quickstart.py"))
    assert (config.tasks, config.model.path, config.num_fewshot, config.limit) == (("demo",), "demo", None, None)

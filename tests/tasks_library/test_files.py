import pathlib

import pytest

from evaljax.core import config as config_lib
from evaljax.tasks import index, library, load, manager

ROOT = library.library_root()
# Folders of the demo tasks, whose numbers nobody else publishes, are not part of what is claimed here.
FOLDERS = sorted(folder for folder in ROOT.iterdir() if folder.is_dir() and not folder.name.startswith(("demo", "__")))
NAMES = {
    "arc": ["ai2_arc", "arc_challenge", "arc_easy"],
    "hellaswag": ["hellaswag", "multiple_choice"],
    "winogrande": ["winogrande"],
    "piqa": ["piqa"],
    "boolq": ["boolq", "boolq-seq2seq", "super-glue-lm-eval-v1", "super-glue-lm-eval-v1-seq2seq"],
    "openbookqa": ["openbookqa"],
    "sciq": ["sciq"],
    "lambada": ["lambada", "lambada_openai"],
    "wikitext": ["wikitext"],
    "gsm8k": ["gsm8k", "math_word_problems"],
    "truthfulqa": ["truthfulqa", "truthfulqa_gen", "truthfulqa_mc1", "truthfulqa_mc2"],
    "triviaqa": ["triviaqa"],
}
# Names, with the version that lm-eval 0.4.13 gives the task.
VERSIONS = {
    "arc_easy": 1.0,
    "arc_challenge": 1.0,
    "hellaswag": 1.0,
    "winogrande": 1.0,
    "piqa": 1.0,
    "boolq": 2.0,
    "boolq-seq2seq": 0.0,
    "openbookqa": 1.0,
    "sciq": 1.0,
    "lambada_openai": 1.0,
    "wikitext": 2.0,
    "gsm8k": 3.0,
    "truthfulqa_mc1": 2.0,
    "truthfulqa_mc2": 3.0,
    "truthfulqa_gen": 3.0,
    "triviaqa": 3.0,
    "mmlu_anatomy": 1.0,
    "blimp_wh_island": 1.0,
}


def loaded(*names: str) -> load.LoadedTasks:
    run = config_lib.RunConfig(tasks=names)
    return load.load_tasks(
        run.tasks,
        manager=manager.TaskManager(),
        num_fewshot=None,
        gen_kwargs={},
        trust_task_code=False,
        data_mirror=None,
    )


def test_every_file_of_every_folder_loads_as_a_task_or_a_group():
    found = index.build_index([ROOT])
    everything = loaded(*found.names("task"))
    assert sorted(everything.tasks) == found.names("task")
    groups = loaded(*found.names("group"))
    assert sorted(groups.groups) == found.names("group")
    assert len([path for folder in FOLDERS for path in folder.rglob("*.yaml")]) == 16 + 68 + 62
    assert not found.broken
    assert not found.duplicates


@pytest.mark.parametrize("folder", sorted(NAMES))
def test_a_folder_gives_the_names_that_lm_eval_gives(folder: str):
    assert index.build_index([ROOT / folder]).names() == NAMES[folder]


def test_versions_are_those_of_the_tasks_that_the_scores_agree_with():
    tasks = loaded(*VERSIONS).tasks
    assert {name: tasks[name].config.version for name in VERSIONS} == VERSIONS


def test_mmlu_is_57_subjects_in_4_categories_weighted_by_questions():
    found = loaded("mmlu")
    assert found.groups["mmlu"].children == ("mmlu_stem", "mmlu_other", "mmlu_social_sciences", "mmlu_humanities")
    sizes = {name: len(group.children) for name, group in found.groups.items() if name != "mmlu"}
    assert sizes == {"mmlu_stem": 19, "mmlu_other": 13, "mmlu_social_sciences": 12, "mmlu_humanities": 13}
    assert len(found.tasks) == 57
    assert all(group.metrics[0].weight_by_size for group in found.groups.values())
    subject = found.tasks["mmlu_high_school_world_history"].config
    described = "The following are multiple choice questions (with answers) about high school world history.\n\n"
    assert subject.description == described
    assert (subject.dataset_name, subject.task_alias) == ("high_school_world_history", "high_school_world_history")


def test_blimp_is_67_paradigms_each_with_the_same_weight():
    found = loaded("blimp")
    assert len(found.tasks) == len(found.groups["blimp"].children) == 67
    assert not found.groups["blimp"].metrics[0].weight_by_size
    assert all(item.config.dataset_name == name.removeprefix("blimp_") for name, item in found.tasks.items())


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_folder_says_where_its_task_comes_from(folder: pathlib.Path):
    text = (folder / "README.md").read_text(encoding="utf-8")
    if folder.name != "_forkme":
        for part in ("**Paper**", "**Data**", "**Scored**", "lm-evaluation-harness 0.4.13"):
            assert part in text, f"{folder.name}/README.md lacks {part}"


def test_the_file_to_copy_is_no_task_until_it_is_copied(tmp_path: pathlib.Path):
    assert index.build_index([ROOT / "_forkme"]).names() == []
    copy = tmp_path / "my_task.yaml"
    copy.write_bytes((ROOT / "_forkme" / "task.yaml.example").read_bytes())
    assert index.build_index([tmp_path]).names() == ["my_task", "my_tasks"]
    config = loaded(str(copy)).tasks["my_task"].config
    assert (config.output_type, config.test_split, config.version) == ("multiple_choice", "test", 1.0)

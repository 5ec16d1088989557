"""The index: names, kinds, tags, duplicates, broken files."""

import time

import pytest

from evaljax.core import errors
from evaljax.tasks import index, library, manager

LEAST = {"dataset_path": "d", "test_split": "test"}


def test_kinds_tags_and_fragments(folder):
    folder.yaml("a.yaml", task="a", tag=["t", "u"], **LEAST)
    folder.yaml("deep/b.yaml", task="b", tag="t", **LEAST)
    folder.yaml("g.yaml", group="g", task=["b", "a"])
    folder.yaml("c.yaml", task="c", **{"class": "x.Y"})
    folder.yaml("fragment.yaml", dataset_path="d")
    folder.yaml(".ipynb_checkpoints/a.yaml", task="a", **LEAST)
    found = index.build_index([folder.root])
    assert {name: entry.kind for name, entry in found.entries.items()} == {
        "a": "task", "b": "task", "g": "group", "c": "class", "t": "tag", "u": "tag",
    }  # fmt: skip
    assert found.entries["t"].members == ("a", "b")
    assert found.names("task", "class") == ["a", "b", "c"]


def test_a_tag_of_a_template_counts_for_all_who_include_it(folder):
    folder.yaml("_base", tag="t", **LEAST)
    for name in "xyz":
        folder.yaml(f"{name}.yaml", include="_base", task=name)
    assert index.build_index([folder.root]).entries["t"].members == ("x", "y", "z")


def test_a_later_root_replaces_an_earlier_ones_name(folder):
    folder.yaml("one/a.yaml", task="a", tag="t", **LEAST)
    folder.yaml("two/a.yaml", task="a", description="mine", **LEAST)
    folder.yaml("two/b.yaml", task="b", tag="t", **LEAST)
    found = index.build_index([folder.root / "one", folder.root / "two"])
    assert not found.duplicates
    assert found.find("a").config["description"] == "mine"
    assert found.find("t").members == ("a", "b")


def test_a_name_twice_in_one_root_is_an_error_naming_both_files(folder):
    folder.yaml("a.yaml", task="same", **LEAST)
    folder.yaml("b.yaml", task="same", **LEAST)
    folder.yaml("c.yaml", task="other", **LEAST)
    found = index.build_index([folder.root])
    assert found.find("other").name == "other"
    with pytest.raises(errors.TaskError, match=r"'same' is defined twice: in .*/a\.yaml and in .*/b\.yaml"):
        found.find("same")
    assert [name for name, _, _ in found.duplicates] == ["same"]


def test_a_broken_file_is_an_error_when_its_task_is_asked_for(folder):
    folder.yaml("good.yaml", task="good", **LEAST)
    folder.text("bad.yaml", "task: broken_one\ninclude: nowhere\n")
    found = index.build_index([folder.root])
    assert found.find("good").kind == "task"
    with pytest.raises(
        errors.TaskError, match=r"task 'broken_one' is in a file that cannot be used: .*include 'nowhere'"
    ):
        found.find("broken_one")
    [message] = found.broken.values()
    assert "include 'nowhere'" in message


def test_an_unknown_name_gives_the_nearest(folder):
    folder.yaml("a.yaml", task="arithmetic", **LEAST)
    with pytest.raises(errors.TaskError, match=r"unknown task 'arithmetik'\. Did you mean 'arithmetic'"):
        index.build_index([folder.root]).find("arithmetik")
    with pytest.raises(errors.TaskError, match="there is no folder of tasks"):
        index.build_index([folder.root / "nowhere"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("task: [a, b]\n", r"t\.yaml:1: task must be a name; for a list of tasks give the list a `group` name"),
        ("task: a\ngroup: [x, y]\n", r"t\.yaml:2: group must be one name; labels of a task go into `tag`"),
    ],
)
def test_lists_where_a_name_belongs_are_refused(folder, text, message):  # case C109
    path = folder.text("t.yaml", text)
    with pytest.raises(errors.TaskError, match=message):
        index.read_entry(path)


def test_the_shipped_tasks_are_sound_and_quick_to_list():
    start = time.perf_counter()
    found = index.build_index([library.library_root()])
    assert time.perf_counter() - start < 3.0  # 0.1 s on an idle core
    assert len(found.names("task")) > 100
    assert not found.broken
    assert not found.duplicates


def test_the_manager_has_lm_evals_properties(folder):
    folder.yaml("a.yaml", task="a_1", tag="t", **LEAST)
    folder.yaml("b.yaml", task="a_2", **LEAST)
    folder.yaml("g.yaml", group="g", task=["a_1"])
    tasks = manager.TaskManager(include_path=str(folder.root), include_defaults=False)
    assert tasks.all_tasks == ["a_1", "a_2", "g", "t"]
    assert (tasks.all_subtasks, tasks.all_groups, tasks.all_tags) == (["a_1", "a_2"], ["g"], ["t"])
    assert tasks.match_tasks(["a_*", "t"]) == ["a_1", "a_2", "t"]
    assert tasks.task_index["g"].kind == "group"
    assert "a_1" in manager.TaskManager(include_path=[folder.root]).all_tasks
    loaded = tasks.load(["g", "a_2"])
    assert list(loaded["tasks"]) == ["a_1", "a_2"]
    assert loaded["group_map"] == {"g": ["a_1"]}
    with pytest.raises(errors.ConfigError, match="verbosity has no effect"):
        manager.TaskManager(verbosity="INFO")


def test_making_a_manager_reads_nothing(folder):
    tasks = manager.TaskManager(include_path=folder.root / "later", include_defaults=False)
    folder.yaml("later/a.yaml", task="a", **LEAST)
    assert tasks.all_tasks == ["a"]


@pytest.mark.parametrize("tag", [5, [5], {"a": 1}, ""])
def test_a_tag_that_is_no_name_breaks_only_its_own_file(folder, tag):
    folder.yaml("a.yaml", task="a", tag=tag, **LEAST)
    folder.yaml("b.yaml", task="b", tag="t", **LEAST)
    found = index.build_index([folder.root])
    assert found.names() == ["b", "t"]
    with pytest.raises(errors.TaskError, match=r"a.yaml:2: tag must be a name or a list of names"):
        found.find("a")

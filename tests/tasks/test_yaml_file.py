"""Task files: includes, function references, places."""

import pytest

from evaljax.core import errors, task
from evaljax.tasks import yaml_file


def test_the_including_file_wins_and_a_later_include_wins_over_an_earlier_one(folder):
    folder.yaml("a", x=1, y=1, z=1, metadata={"version": 1, "deep": 1})
    folder.yaml("b", y=2, z=2)
    path = folder.yaml("t.yaml", include=["a", "b"], z=3, metadata={"version": 2})
    assert yaml_file.read_yaml(path) == {"x": 1, "y": 2, "z": 3, "metadata": {"version": 2}}


def test_includes_are_relative_to_the_file_that_names_them(folder):
    folder.yaml("shared/base", x=1)
    folder.yaml("shared/middle", include="base", y=2)
    path = folder.yaml("deep/t.yaml", include="../shared/middle", z=3)
    assert yaml_file.read_yaml(path) == {"x": 1, "y": 2, "z": 3}


def test_a_diamond_is_no_loop(folder):
    folder.yaml("base", x=1)
    folder.yaml("left", include="base", y=1)
    folder.yaml("right", include="base", z=1)
    assert yaml_file.read_yaml(folder.yaml("t.yaml", include=["left", "right"])) == {"x": 1, "y": 1, "z": 1}


def test_a_loop_of_includes_is_named_in_order(folder):  # case C108
    folder.yaml("a", include="b")
    folder.yaml("b", include="a")
    with pytest.raises(errors.TaskError, match=r"include each other in a loop: .*/a -> .*/b -> .*/a"):
        yaml_file.read_yaml(folder.yaml("t.yaml", include="a"))


def test_a_missing_include_names_the_nearest_file(folder):
    folder.yaml("_template_yaml", x=1)
    with pytest.raises(errors.TaskError, match=r"t\.yaml: include '_templat_yaml': .* Did you mean '_template_yaml'"):
        yaml_file.read_yaml(folder.yaml("t.yaml", include="_templat_yaml"))


def test_an_inline_task_cannot_include_a_relative_file(folder):  # case C108
    with pytest.raises(
        errors.TaskError, match=r"inline: include 'a' is relative, but a task given inline lies in no folder"
    ):
        yaml_file.merge_includes({"include": "a"}, source="inline", folder=None)
    path = folder.yaml("a", x=1)
    assert yaml_file.merge_includes({"include": str(path), "y": 2}, source="inline", folder=None) == {"x": 1, "y": 2}


def test_an_include_inside_a_groups_member_is_merged_there(folder):
    folder.yaml("base", dataset_path="d", num_fewshot=1)
    path = folder.yaml("g.yaml", group="g", task=["a", {"task": "b", "include": "base", "num_fewshot": 2}])
    assert yaml_file.read_yaml(path)["task"] == ["a", {"dataset_path": "d", "num_fewshot": 2, "task": "b"}]


def test_a_function_belongs_to_the_folder_of_the_file_that_names_it(folder):
    folder.text("shared/base", "process_docs: !function utils.clean\n")
    path = folder.yaml("t.yaml", include="shared/base")
    assert yaml_file.read_yaml(path) == {"process_docs": task.FunctionRef(str(folder.root / "shared"), "utils.clean")}


def test_a_function_without_a_module_is_refused(folder):
    path = folder.text("t.yaml", "task: t\nprocess_docs: !function clean\n")
    with pytest.raises(errors.TaskError, match=r"t\.yaml:2: !function 'clean' must read module\.function"):
        yaml_file.read_yaml(path)


def test_broken_yaml_names_file_and_line(folder):
    path = folder.text("t.yaml", "task: t\nmetric_list: [a\nx: 1\n")
    with pytest.raises(errors.TaskError, match=r"t\.yaml:3: not valid YAML"):
        yaml_file.read_yaml(path)
    with pytest.raises(errors.TaskError, match="expected a mapping of keys, found list"):
        yaml_file.read_yaml(folder.text("l.yaml", "- a\n"))
    with pytest.raises(errors.TaskError, match=r"nothing\.yaml: cannot be read: No such file"):
        yaml_file.read_yaml(folder.root / "nothing.yaml")


def test_an_edited_file_is_read_anew(folder):
    path = folder.yaml("t.yaml", x=1)
    assert yaml_file.read_yaml(path) == {"x": 1}
    folder.yaml("t.yaml", x=100)
    assert yaml_file.read_yaml(path) == {"x": 100}


def test_a_key_is_placed_in_the_file_that_says_it(folder):
    folder.text("base", "a: 1\nfewshot_config:\n  splt: x\n")
    path = folder.text("t.yaml", "include: base\ntask: t\ndoc_to_txt: q\n")
    assert yaml_file.locate(path, "doc_to_txt") == f"{path}:3"
    assert yaml_file.locate(path, "splt") == f"{folder.root / 'base'}:3"
    assert yaml_file.locate(path, "nowhere") == str(path)


@pytest.mark.parametrize("name", ["../x.f", "f", ".f", "a b.f", "x.f()"])
def test_a_function_that_is_no_dotted_name_is_refused(folder, name):
    path = folder.text("t.yaml", f"task: t\nprocess_docs: !function '{name}'\n")
    with pytest.raises(errors.TaskError, match=r"t.yaml:2: !function .* must read module.function"):
        yaml_file.read_yaml(path)


@pytest.mark.parametrize(
    "text",
    [
        "metadata: &a {inner: *a}\n",
        "a: &a [" + "x," * 99 + "]\nb: &b [" + "*a," * 99 + "]\nc: &c [" + "*b," * 99 + "]\nd: [" + "*c," * 99 + "]\n",
    ],
)
def test_aliases_that_never_end_or_nearly_so_are_refused(folder, text):
    path = folder.text("t.yaml", text)
    with pytest.raises(errors.TaskError, match=r"t\.yaml: its aliases stand for more than 1,000,000 values"):
        yaml_file.read_yaml(path)


def test_byte_order_marks_and_line_ends_of_other_systems_change_nothing(folder):
    (folder.root / "t.yaml").write_bytes(b"\xef\xbb\xbftask: t\r\ndoc_to_text: 'a'\r\n")
    assert yaml_file.read_yaml(folder.root / "t.yaml") == {"task": "t", "doc_to_text": "a"}

"""What names, files and mappings stand for: leaves once each, in order, with the right overrides."""

import pytest

from evaljax.core import errors, task
from evaljax.tasks import generation

LEAST = {"dataset_path": "d", "test_split": "test", "output_type": "multiple_choice"}


@pytest.fixture
def tree(folder):
    for name in "abcd":
        folder.yaml(f"{name}.yaml", task=name, tag="some" if name in "bd" else [], num_fewshot=1, **LEAST)
    folder.yaml("g.yaml", group="g", task=["c", "some"], aggregate_metric_list=[{"metric": "acc"}])
    folder.yaml("h.yaml", group="h", task=["a", "g"])
    return folder


def test_a_group_of_groups_gives_leaves_in_file_order_and_parents_first(tree):
    loaded = tree.load("h")
    assert list(loaded.tasks) == ["a", "c", "b", "d"]
    assert list(loaded.groups) == ["h", "g"]
    assert loaded.groups["h"].children == ("a", "g")
    assert loaded.groups["g"].children == ("c", "b", "d")
    assert loaded.groups["g"].metrics == (task.GroupMetric(metric="acc"),)


def test_a_leaf_that_is_reached_twice_is_loaded_once(tree):
    assert list(tree.load("c", "h", "some", "a").tasks) == ["c", "a", "b", "d"]


@pytest.mark.parametrize("spec", ["?", "[ac]", ["a", ["c"]], "some", "*"])
def test_patterns_and_nested_lists(tree, spec):
    expected = {"?": "abcd", "[ac]": "ac", "some": "bd", "*": "abcd"}.get(spec, "ac") if isinstance(spec, str) else "ac"
    assert sorted(tree.load(spec).tasks) == list(expected)


def test_files_folders_and_patterns_of_files(tree):
    assert list(tree.load(str(tree.root / "a.yaml")).tasks) == ["a"]
    assert list(tree.load(str(tree.root / "[ab].yaml")).tasks) == ["a", "b"]
    assert list(tree.load("h.yaml").tasks) == ["a", "c", "b", "d"]
    assert list(tree.load(str(tree.root)).tasks) == ["a", "b", "c", "d"]


def test_a_member_can_change_a_task_and_its_group_can_too(folder):
    folder.yaml("a.yaml", task="a", num_fewshot=1, description="own", **LEAST)
    folder.yaml("b.yaml", task="b", num_fewshot=1, **LEAST)
    folder.yaml("g.yaml", group="g", num_fewshot=2, task=["b", {"task": "a", "num_fewshot": 3, "task_alias": "A"}])
    loaded = folder.load("g").tasks
    assert (loaded["a"].config.num_fewshot, loaded["a"].config.task_alias, loaded["a"].config.description) == (
        3,
        "A",
        "own",
    )
    assert loaded["b"].config.num_fewshot == 2


def test_a_parents_setting_beats_its_groups_own(folder):
    folder.yaml("a.yaml", task="a", **LEAST)
    folder.yaml("inner.yaml", group="inner", num_fewshot=2, task=["a"])
    folder.yaml("outer.yaml", group="outer", task=[{"group": "inner", "num_fewshot": 5, "group_alias": "I"}])
    loaded = folder.load("outer")
    assert loaded.tasks["a"].config.num_fewshot == 5
    assert loaded.groups["inner"].group_alias == "I"


def test_inline_members_are_named_after_their_group(folder):
    folder.yaml("a.yaml", task="a", **LEAST)
    inline = {"group": "sub", "task": ["a", {"task": "new", **LEAST}], "aggregate_metric_list": [{"metric": "acc"}]}
    folder.yaml("g.yaml", group="g", task=[inline])
    loaded = folder.load("g")
    assert list(loaded.groups) == ["g", "g::sub"]
    assert list(loaded.tasks) == ["a", "g::sub::new"]


def test_a_changed_tag_or_group_keeps_the_names_of_its_members(tree):
    tree.yaml("k.yaml", group="k", task=[{"task": "some", "num_fewshot": 4}, {"task": "g", "num_fewshot": 4}])
    loaded = tree.load("k")
    assert list(loaded.tasks) == ["b", "d", "c"]
    assert {item.config.num_fewshot for item in loaded.tasks.values()} == {4}


def test_one_leaf_in_two_meanings_is_an_error(folder):
    folder.yaml("a.yaml", task="a", **LEAST)
    folder.yaml("g.yaml", group="g", task=[{"task": "a", "num_fewshot": 2}])
    with pytest.raises(errors.TaskError, match=r"'a' is asked for in two different meanings: .*differ in: num_fewshot"):
        folder.load("a", "g")


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([{"num_fewshot": 1}], r"g\.yaml: group 'g': task\[0\] needs a name under `task` or `group`"),
        (["a", ["b"]], r"task\[1\] must be a name or a mapping"),
        (["a", "aa"], r"task\[1\]: unknown task 'aa'"),
        ([], "group 'g' needs a list of members under `task`"),
        (["g"], "groups contain each other in a loop: g -> g"),
        ([{"task": "a", "doc_to_txt": "x"}], r"unknown key 'doc_to_txt' in task\. Did you mean 'doc_to_text'"),
    ],
)
def test_a_wrong_member_names_its_place(folder, members, message):  # case C109
    folder.yaml("a.yaml", task="a", **LEAST)
    folder.yaml("g.yaml", group="g", task=members)
    with pytest.raises(errors.TaskError, match=message):
        folder.load("g")


def test_a_key_that_is_neither_the_groups_nor_a_tasks_is_refused(folder):
    folder.yaml("a.yaml", task="a", **LEAST)
    folder.yaml("g.yaml", group="g", agregate_metric_list=[], task=["a"])
    with pytest.raises(
        errors.TaskError, match=r"g\.yaml:2: unknown key 'agregate_metric_list' .*'aggregate_metric_list'"
    ):
        folder.load("g")


def test_an_unknown_key_names_file_line_and_nearest(folder):  # case C107
    folder.yaml("a.yaml", task="a", doc_to_txt="x", **LEAST)
    with pytest.raises(
        errors.TaskError, match=r"a\.yaml:2: unknown key 'doc_to_txt' in task\. Did you mean 'doc_to_text'"
    ):
        folder.load("a")


def test_an_inline_mapping_changes_a_registered_task_or_stands_alone(tree):
    assert tree.load({"task": "a", "num_fewshot": 7}).tasks["a"].config.num_fewshot == 7
    alone = tree.load({"task": "a", "dataset_path": "other", "test_split": "x"}).tasks["a"].config
    assert (alone.output_type, alone.source) == ("generate_until", "inline")
    assert list(tree.load({"group": "mine", "task": ["a", "b"]}).groups["mine"].children) == ["a", "b"]
    with pytest.raises(errors.TaskError, match="a mapping needs a name under `task` or `group`"):
        tree.load({"dataset_path": "x"})


def test_num_fewshot_of_the_run_replaces_all_but_zero(folder):
    folder.yaml("none.yaml", task="none", **LEAST)
    folder.yaml("zero.yaml", task="zero", num_fewshot=0, **LEAST)
    folder.yaml("five.yaml", task="five", num_fewshot=5, **LEAST)
    run = {n: t.config.num_fewshot for n, t in folder.load("none", "zero", "five", num_fewshot=3).tasks.items()}
    assert run == {"none": 3, "zero": 0, "five": 3}
    own = {n: t.config.num_fewshot for n, t in folder.load("none", "zero", "five").tasks.items()}
    assert own == {"none": 0, "zero": 0, "five": 5}
    with pytest.raises(errors.ConfigError, match="num_fewshot must be a whole number, 0 or more, found -1"):
        folder.load("none", num_fewshot=-1)


def test_gen_kwargs_are_added_to_tasks_that_generate(folder):
    folder.yaml("a.yaml", task="a", **LEAST)
    folder.yaml(
        "b.yaml", task="b", dataset_path="d", test_split="t", generation_kwargs={"until": ["x"], "temperature": 1}
    )
    loaded = folder.load("a", "b", gen_kwargs={"temperature": 0.5, "max_gen_toks": 9}).tasks
    assert loaded["a"].config.generation_kwargs is None
    assert loaded["b"].config.generation_kwargs == {"until": ["x"], "temperature": 0.5, "max_gen_toks": 9}
    with pytest.raises(errors.TaskError, match=r"gen_kwargs: unknown key .* Did you mean 'max_gen_toks'"):
        folder.load("b", gen_kwargs={"max_gen_tok": 9})


def test_metadata_of_the_manager_is_added_to_every_task(folder):
    folder.yaml("a.yaml", task="a", metadata={"version": 2, "length": 1}, **LEAST)
    assert folder.load("a", metadata={"length": 4}).tasks["a"].config.metadata == {"version": 2, "length": 4}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("toy_", r"unknown task 'toy_'\. Did you mean 'toy'"),
        ("nothing.yaml", "there is no task file 'nothing.yaml'"),
        ("zz*", r"no task matches the pattern 'zz\*'"),
        (3, "a task must be a name, a file or a mapping, found 3"),
        ([], "no task to evaluate"),
    ],
)
def test_a_spec_that_stands_for_nothing_is_an_error(folder, spec, message):
    folder.yaml("toy.yaml", task="toy", **LEAST)
    with pytest.raises(errors.TaskError, match=message):
        folder.load(spec)


def test_a_task_that_is_a_class_is_refused_with_the_reason(folder):
    folder.text("c.yaml", "task: c\nclass: !function code.Task\n")
    with pytest.raises(errors.TaskError, match="task 'c': tasks that are a Python class are not supported"):
        folder.load("c")


@pytest.mark.parametrize("asked", [{"temperature": 5}, {"top_p": 0.9}, {"top_k": 40}])
@pytest.mark.parametrize("own", [None, {"do_sample": False, "until": ["x"]}])
def test_gen_kwargs_that_a_task_would_not_heed_are_refused(folder, asked, own):
    fields = {"output_type": "generate_until", **({"generation_kwargs": own} if own else {})}
    folder.toy(**fields)
    message = r"task 'toy' \(.*toy\.yaml\) says do_sample: false, .* add do_sample=True to gen_kwargs to sample"
    with pytest.raises(errors.TaskError, match=message):
        folder.load("toy", gen_kwargs=asked)
    heard = folder.load("toy", gen_kwargs={**asked, "do_sample": True}).tasks["toy"].config
    assert heard.generation_kwargs["do_sample"] is True
    folder.load("toy", gen_kwargs={"temperature": 0, "top_k": 1, "top_p": 1.0})


def test_a_tasks_own_temperature_beside_do_sample_false_stays_greedy(folder):
    own = {"do_sample": False, "temperature": 0.7, "until": ["x"]}
    config = folder.toy(output_type="generate_until", generation_kwargs=own).config
    assert generation.sampling(config.generation_kwargs, where="").temperature == 0.0


def test_gen_kwargs_are_checked_where_no_task_generates(folder):
    folder.yaml("a.yaml", task="a", **LEAST)
    with pytest.raises(errors.TaskError, match=r"gen_kwargs: .*temperature must be a number, 0 or more, found 'warm'"):
        folder.load("a", gen_kwargs={"temperature": "warm"})


def test_a_mirror_that_is_no_folder_is_refused(folder):
    folder.yaml("a.yaml", task="a", **LEAST)
    with pytest.raises(errors.ConfigError, match="data_mirror: there is no folder '/nowhere'"):
        folder.load("a", mirror="/nowhere")


def test_only_some_tasks_leave_their_groups_with_these_members(folder):
    for name in "abc":
        folder.yaml(f"{name}.yaml", task=name, **LEAST)
    folder.yaml("inner.yaml", group="inner", task=["a", "b"])
    folder.yaml("other.yaml", group="other", task=["c"])
    folder.yaml("outer.yaml", group="outer", task=["inner", "other"])
    kept = folder.load("outer").only(["b"])
    assert list(kept.tasks) == ["b"]
    assert {name: group.children for name, group in kept.groups.items()} == {"outer": ("inner",), "inner": ("b",)}


def test_a_path_is_a_task_file(folder):
    file = folder.yaml("a.yaml", task="a", **LEAST)
    assert list(folder.load(file).tasks) == ["a"]

"""`!function`: what runs, and only where it is trusted."""

import pytest

from evaljax.core import errors, task
from evaljax.tasks import library, manager, task_code
from evaljax.tasks import load as loading

TASK = "task: t\ndataset_path: data\ntest_split: test\noutput_type: loglikelihood\ndoc_to_text: !function code.text\n"


def test_code_that_does_not_ship_runs_only_if_trusted(folder):
    folder.text("t.yaml", TASK)
    folder.text("code.py", "open('ran', 'w').close()\ndef text(doc): return 'x'\n")
    with pytest.raises(
        errors.TaskError, match=r"!function code\.text would run code from .*code\.py.*trust_task_code=True"
    ):
        folder.load("t")
    assert not (folder.root / "ran").exists()
    assert folder.load("t", trust=True).tasks["t"].config.doc_to_text({}) == "x"


def test_shipped_code_needs_no_trust():
    tasks = manager.TaskManager()
    with_code = [n for n, e in tasks.index.entries.items() if "process_docs" in e.config]
    assert with_code
    loaded = loading.load_tasks(
        with_code[:1], manager=tasks, num_fewshot=None, gen_kwargs={}, trust_task_code=False, data_mirror=None
    )
    assert all(callable(item.config.process_docs) for item in loaded.tasks.values())
    assert library.library_root().is_dir()


def test_two_folders_can_each_have_a_module_of_one_name(folder):
    refs = []
    for name in "ab":
        folder.text(f"{name}/code.py", f"def text(doc): return {name!r}\n")
        refs.append(task.FunctionRef(str(folder.root / name), "code.text"))
    assert [task_code.load_function(ref, trust=True, where="t")({}) for ref in refs] == ["a", "b"]


def test_functions_deep_inside_a_mapping_are_found(folder):
    folder.text("code.py", "def score(x): return 1\n")
    ref = task.FunctionRef(str(folder.root), "code.score")
    made = task_code.resolve({"metric_list": [{"metric": ref, "k": 3}]}, trust=True, where="t")
    assert made["metric_list"][0]["metric"](0) == 1
    assert made["metric_list"][0]["k"] == 3


def test_a_module_that_is_installed_is_found_too(folder):
    ref = task.FunctionRef(str(folder.root), "json.dumps")
    assert task_code.load_function(ref, trust=True, where="t")([1]) == "[1]"


@pytest.mark.parametrize(
    ("code", "name", "message"),
    [
        ("def text(doc): return 1\n", "code.txt", r"code\.py has no 'txt'\. Did you mean 'text'"),
        (
            "import lm_eval.absent\n",
            "code.text",
            r"code\.py imports 'lm_eval\.?\w*', which comes with lm_eval: pip install .* \(from a clone: ",
        ),
        ("import not_there_at_all\n", "code.text", r"code\.py cannot be imported: No module named 'not_there_at_all'"),
        ("1/0\n", "code.text", r"importing .*code\.py failed: ZeroDivisionError"),
        ("", "cod.text", r"there is no file .*cod\.py, and no module 'cod' is installed"),
    ],
)
def test_code_that_cannot_be_used_is_an_error_naming_the_file(folder, code, name, message):
    folder.text("code.py", code)
    with pytest.raises(errors.TaskError, match=rf"where: !function {name}: .*{message}"):
        task_code.load_function(task.FunctionRef(str(folder.root), name), trust=True, where="where")


def test_edited_code_is_imported_anew(folder):
    ref = task.FunctionRef(str(folder.root), "code.text")
    path = folder.text("code.py", "def text(doc): return 1\n")
    assert task_code.load_function(ref, trust=True, where="t")({}) == 1
    folder.text("code.py", "def text(doc): return 22\n")
    import os

    os.utime(path, ns=(path.stat().st_mtime_ns + 10**9,) * 2)
    assert task_code.load_function(ref, trust=True, where="t")({}) == 22

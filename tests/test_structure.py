"""The shape of the code, held by tests: layers, sizes, tables, light imports."""

import ast
import importlib
import pathlib
import re
import subprocess
import sys

import pytest

import evaljax
from evaljax.tasks import library

ROOT = pathlib.Path(evaljax.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))
# What each layer may import of evaljax. A module at the top level (run, evaluation, ...) may import everything.
LAYERS = {
    "core": {"core"},
    "tasks": {"core", "tasks"},
    "scoring": {"core", "scoring"},
    "report": {"core", "report"},
    "models": {"core", "models"},
    "engine": {"core", "models", "engine"},
    "backends": {"core", "models", "engine", "backends"},
}
TEXT_HALF = {"core", "tasks", "scoring", "report"}
TOKEN_LIBRARIES = {"jax", "jaxlib", "flax", "optax", "orbax", "torch"}
# lm-eval's own signatures, which a notebook must be able to call unchanged.
MANY_PARAMETERS = {("api.py", "simple_evaluate"), ("api.py", "evaluate")}


def imports(path: pathlib.Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert all(alias.name != "*" for alias in node.names), f"{path}: star import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def functions(path: pathlib.Path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_layer_imports_only_what_lies_below_it(path):
    layer = path.relative_to(ROOT).parts[0]
    if layer not in LAYERS:
        return
    for name in imports(path):
        parts = name.split(".")
        if parts[0] == "evaljax" and len(parts) > 1:
            assert parts[1] in LAYERS[layer], f"{path}: {layer} imports {name}"
        if layer in TEXT_HALF:
            assert parts[0] not in TOKEN_LIBRARIES, f"{path}: the text half imports {name}"
        if layer == "core":
            assert parts[0] == "evaljax" or parts[0] in sys.stdlib_module_names, f"{path}: core imports {name}"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_modules_and_functions_stay_small(path):
    assert path.stem not in {"utils", "helpers", "common", "misc"}
    assert path.read_text().count("\n") <= 400
    for node in functions(path):
        doc = ast.get_docstring(node, clean=False) or ""
        exempt = (path.name, node.name) in MANY_PARAMETERS
        first = node.body[0].lineno if exempt else node.lineno
        length = node.end_lineno - first + 1 - (doc.count("\n") + 1 if doc else 0)
        assert length <= 60, f"{path}:{node.lineno} {node.name} has {length} lines"
        parameters = len(node.args.args) + len(node.args.kwonlyargs) + len(node.args.posonlyargs)
        if not exempt:
            assert parameters <= 9, f"{path}:{node.lineno} {node.name} has {parameters} parameters"


def test_no_benchmark_is_named_inside_the_package():
    names = {folder.name for folder in library.library_root().iterdir() if folder.is_dir()}
    names = {name for name in names if not name.startswith(("_", "demo"))}
    assert "hellaswag" in names
    pattern = re.compile(r"\b(" + "|".join(sorted(map(re.escape, names))) + r")(_\w+)?\b", re.IGNORECASE)
    for path in MODULES:
        code = "\n".join(line for line in path.read_text().splitlines() if "model.path" not in line)
        found = pattern.search(code)
        assert not found, f"{path} names {found.group(0)}"


@pytest.mark.parametrize(
    ("folder", "module", "table", "exempt"),
    [
        ("models/families", "evaljax.models.families.table", "FAMILIES", {"table"}),
        ("backends", "evaljax.backends.table", "BACKENDS", {"table", "opening", "kept"}),
    ],
)
def test_every_extension_file_is_in_its_table(folder, module, table, exempt):
    rows = str(vars(importlib.import_module(module))[table])
    for path in (ROOT / folder).glob("*.py"):
        if path.stem not in exempt | {"__init__"}:
            assert path.stem in rows, f"{path} is not in {module}.{table}"


@pytest.mark.parametrize(
    "statement",
    [
        "import evaljax",
        "from evaljax import __main__; __main__.main(['ls'])",
        "from evaljax.tasks import manager; manager.TaskManager().all_tasks",
    ],
)
def test_listing_tasks_needs_no_heavy_library(statement):
    heavy = ("torch", "lm_eval", "jax", "flax", "transformers", "datasets", "sklearn", "pandas")
    code = f"import sys; {statement}; print([m for m in {heavy!r} if m in sys.modules], file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip().splitlines()[-1] == "[]"


def test_the_core_imports_neither_torch_nor_lm_eval():
    code = (
        "import sys, evaljax\n"
        "from evaljax import api, run\n"
        "import evaljax.backends.jax_backend\n"
        "print([m for m in ('torch', 'lm_eval') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_public_surface_is_sorted_and_importable():
    assert list(evaljax.__all__) == sorted(evaljax.__all__)
    for name in evaljax.__all__:
        assert getattr(evaljax, name) is not None
    with pytest.raises(AttributeError, match="simple_evaluate"):
        evaljax.simple_evalute  # noqa: B018

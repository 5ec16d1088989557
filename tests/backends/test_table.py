import subprocess
import sys

import pytest

from evaljax.backends import table
from evaljax.core import config, errors, request


class WithSpec:
    def __init__(self, spec):
        self.path = spec.path

    def loglikelihood(self, requests):
        return [request.LoglikelihoodResponse(logprob=-1.0, is_greedy=False, num_tokens=1) for _ in requests]

    def loglikelihood_rolling(self, requests):
        return [request.RollingResponse(logprob=-1.0, num_tokens=1) for _ in requests]

    def generate_until(self, requests):
        return [
            request.GenerateResponse(text="", num_tokens=0, finish_reason=request.FinishReason.STOP) for _ in requests
        ]

    def apply_chat_template(self, messages, add_generation_prompt=True):
        return ""

    def info(self):
        return {"name": self.path}


class Incomplete:
    def loglikelihood(self, requests):
        return []

    info = "not a method"


def without_spec():
    return WithSpec(config.ModelSpec(path="made without a spec"))


def with_two(spec, other):
    return WithSpec(spec)


@pytest.fixture
def own_module(monkeypatch):
    """This file as an importable module, under a name of its own."""
    monkeypatch.setitem(sys.modules, "my_backends", sys.modules[__name__])
    return "my_backends"


def open_named(name, path="a/b"):
    return table.open_backend(config.ModelSpec(backend=name, path=path), config.EngineOptions())


def test_every_row_names_a_class_that_can_be_opened():
    pytest.importorskip("torch")
    for name, row in table.BACKENDS.items():
        assert callable(table._attribute(row).open), name


def test_a_class_of_ones_own_gets_the_spec(own_module):
    assert open_named(f"{own_module}:WithSpec").info() == {"name": "a/b"}


def test_a_function_without_arguments_is_called_without(own_module):
    assert open_named(f"{own_module}:without_spec").info() == {"name": "made without a spec"}


def test_all_missing_methods_are_in_one_error(own_module):
    missing = "Incomplete lacks loglikelihood_rolling, generate_until, apply_chat_template, info"
    with pytest.raises(errors.ConfigError, match=missing):
        open_named(f"{own_module}:Incomplete")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("jxa", r"model\.backend: unknown backend 'jxa'. Did you mean 'jax'\?"),
        ("my_backends:WithSpek", r"my_backends has no 'WithSpek'. Did you mean 'WithSpec'\?"),
        ("my_backends:with_two", "it needs other too"),
        ("my_backends:__name__", "expected a class or a function, found str"),
        ("no_such_module_here.models:A", "no module 'no_such_module_here'"),
        ("my_backends:", "expected module:attribute"),
        (":WithSpec", "expected module:attribute"),
    ],
)
def test_a_name_that_cannot_be_meant_says_what_was_expected(own_module, name, message):
    with pytest.raises(errors.ConfigError, match=message):
        open_named(name)


def fails(spec):
    raise KeyError("weights")


def refuses(spec):
    raise errors.CheckpointError("no weights here")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "my_backends:fails",
            r"model\.backend='my_backends:fails': called with the ModelSpec, it failed: KeyError: 'wei",
        ),
        ("os:getcwdb", r"model\.backend='os:getcwdb': bytes lacks loglikelihood"),
        ("os:system", r"model\.backend='os:system': called with the ModelSpec, it failed: TypeError: "),
        ("builtins:dict", r"model\.backend='builtins:dict': expected a class or a function of Python"),
    ],
)
def test_a_maker_that_fails_is_one_error_that_names_the_backend(own_module, name, message):
    with pytest.raises(errors.ConfigError, match=message) as caught:
        open_named(name)
    if "lacks" not in message:
        assert caught.value.__cause__ is not None


def test_what_a_maker_refuses_itself_is_shown_as_it_is(own_module):
    with pytest.raises(errors.CheckpointError, match=r"^no weights here$"):
        open_named("my_backends:refuses")


def test_an_import_that_fails_inside_ones_own_module_is_shown_as_it_is(tmp_path, monkeypatch):
    (tmp_path / "module_with_a_hole.py").write_text("import surely_not_installed_xyz\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="surely_not_installed_xyz"):
        open_named("module_with_a_hole:A")


def test_the_table_and_the_test_kit_import_no_array_library():
    heavy = "('jax', 'flax', 'torch', 'numpy', 'transformers', 'tokenizers', 'safetensors')"
    code = f"import sys, evaljax.backends.table, evaljax.testing; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

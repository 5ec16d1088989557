"""What every test may ask for. JAX runs on the CPU as 8 simulated devices; both are set before anything imports it."""

import os
import pathlib
from collections.abc import Generator
from typing import Any

import pytest

from evaljax import testing

os.environ.setdefault("JAX_PLATFORMS", "cpu")
_DEVICES = "--xla_force_host_platform_device_count=8"
if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_DEVICES}".strip()
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """A parity test that is skipped in CI has failed: nobody would notice that it no longer runs."""
    report = yield
    if report.skipped and os.environ.get("CI", "").lower() == "true" and item.get_closest_marker("parity"):
        report.outcome = "failed"
        report.longrepr = f"CI=true leaves no parity test out, and this one was skipped: {report.longrepr[2]}"
    return report


def _folder_of(variable: str) -> pathlib.Path:
    """The folder that an environment variable names; skips the test where it is unset."""
    value = os.environ.get(variable)
    if value:
        folder = pathlib.Path(value)
        if not folder.is_dir():
            pytest.fail(f"{variable}={value}: no such folder")
        return folder
    pytest.skip(f"{variable} is not set")


@pytest.fixture(scope="session")
def hub_mirror() -> pathlib.Path:
    """The folder of real data sets, laid out like the Hugging Face hub (EVALJAX_HUB_MIRROR)."""
    return _folder_of("EVALJAX_HUB_MIRROR")


@pytest.fixture(scope="session")
def test_models() -> pathlib.Path:
    """The folder of real models, for example `smollm2/` (EVALJAX_TEST_MODELS)."""
    return _folder_of("EVALJAX_TEST_MODELS")


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A llama of 2 layers with random weights, with its tokenizer and chat template. Read-only: tests share it."""
    return testing.tiny_model_folder(tmp_path_factory.mktemp("tiny_model"))

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("ci", "code", "said"), [("true", 1, "CI=true leaves no parity test out"), ("", 0, "1 skipped")]
)
def test_a_parity_test_that_is_skipped_fails_in_ci_only(ci, code, said):
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("EVALJAX_", "PYTEST_"))}
    command = [sys.executable, "-m", "pytest", "-n0", "-p", "no:cacheprovider", "tests/engine/test_tokenizer.py", "-k"]
    done = subprocess.run(
        [*command, "gguf_file_holds"], env={**environment, "CI": ci}, capture_output=True, text=True, check=False
    )
    assert done.returncode == code
    assert said in done.stdout
    assert "EVALJAX_TEST_MODELS is not set" in done.stdout

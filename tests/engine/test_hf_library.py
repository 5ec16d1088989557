import subprocess
import sys

CODE = """
import os, sys
sys.modules["torch"] = None  # as where it is not installed
from evaljax.engine import hf_library
transformers = hf_library.load_transformers()
assert not transformers.is_torch_available() and hf_library.QUIET not in os.environ
transformers.utils.logging.get_logger("transformers").warning_advice("still heard")
"""


def test_transformers_says_nothing_of_a_missing_torch_and_whatever_else_it_has_to_say() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert "PyTorch" not in done.stdout + done.stderr
    assert "still heard" in done.stderr

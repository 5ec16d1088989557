"""A failure of one request knows its place, whichever part of the engine found it."""

import pytest

from evaljax.core import errors
from evaljax.engine import failure


def test_a_failure_says_which_request_and_what():
    error = failure.PlacedError(3, "prompt of 0 tokens")
    assert (error.index, error.problem) == (3, "prompt of 0 tokens")
    with pytest.raises(errors.RequestError, match=r"^request 3: prompt of 0 tokens$"):
        raise error


def test_an_answer_that_is_no_number_names_the_option_that_goes_on():
    with pytest.raises(errors.RequestError, match=r"request 1: its log-probability is nan; .* engine\.allow_nonfinite"):
        raise failure.nonfinite(1, "its log-probability is nan")

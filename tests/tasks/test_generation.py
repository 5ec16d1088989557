"""`generation_kwargs` by lm-eval's rules."""

import pytest

from evaljax.core import errors, request
from evaljax.tasks import generation


def sampling(**kwargs):
    return generation.sampling(kwargs, where="task 't'", seed=7)


def test_nothing_given_is_greedy_up_to_256_tokens():
    assert sampling() == request.Sampling(until=("\n\n",), max_gen_toks=256, temperature=0.0, seed=7)


@pytest.mark.parametrize(
    ("kwargs", "temperature"),
    [
        ({"do_sample": False, "temperature": 0.7}, 0.0),
        ({"do_sample": True, "temperature": 0.7}, 0.7),
        ({"do_sample": True}, 1.0),
        ({"temperature": 0.7}, 0.7),
        ({"temperature": 0}, 0.0),
        ({"do_sample": False}, 0.0),
    ],
)
def test_do_sample_and_temperature(kwargs, temperature):
    assert sampling(**kwargs).temperature == temperature


def test_sampling_at_temperature_zero_cannot_be_meant():
    with pytest.raises(errors.TaskError, match="task 't': generation_kwargs: do_sample is true but temperature is 0"):
        sampling(do_sample=True, temperature=0.0)


@pytest.mark.parametrize(("until", "stops"), [("x", ("x",)), (["a", "", "b"], ("a", "b")), ([], ()), (None, ())])
def test_until_becomes_stop_strings(until, stops):
    assert sampling(until=until).until == stops


def test_lengths_have_lm_evals_priority():  # case C63
    assert sampling(max_new_tokens=5).max_gen_toks == 5
    assert sampling(max_completion_tokens=1, max_tokens=2, max_new_tokens=3, max_gen_toks=4).max_gen_toks == 4
    assert sampling(max_completion_tokens=1, max_tokens=2).max_gen_toks == 2


@pytest.mark.parametrize("key", ["min_tokens", "min_new_tokens", "min_gen_toks"])
def test_a_least_number_of_tokens_has_the_name_it_has_elsewhere(key):
    assert sampling(**{key: 8, "max_gen_toks": 8}).min_tokens == 8
    assert sampling(**{key: None}).min_tokens == sampling(**{key: 0}).min_tokens == 0


def test_of_several_least_numbers_the_first_counts():
    assert sampling(min_gen_toks=1, min_new_tokens=2, min_tokens=3).min_tokens == 3
    assert sampling(min_gen_toks=1, min_new_tokens=2).min_tokens == 2


def test_cuts_and_seed_count_only_where_something_is_drawn():
    drawn = sampling(temperature=0.5, top_p=0.9, top_k=3, seed=1)
    assert (drawn.top_p, drawn.top_k, drawn.seed) == (0.9, 3, 1)
    greedy = sampling(do_sample=False, top_p=0.9, top_k=3)
    assert (greedy.top_p, greedy.top_k) == (1.0, 0)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"num_beams": 2}, "num_beams must be 1"),
        ({"repetition_penalty": 1.1}, "repetition_penalty must be 1.0"),
        ({"untill": []}, "unknown key 'generation_kwargs.untill' .* Did you mean 'until'"),
        ({"until": [1]}, "until must be a stop string or a list of stop strings"),
        ({"top_p": 0}, "top_p must be a number above 0"),
        ({"min_tokens": -1}, "min_tokens must be a whole number, 0 or more, found -1"),
        ({"min_new_tokens": 9, "max_new_tokens": 8}, "task 't': .*min_tokens is 9; expected 0 to 8, the most"),
        ({"min_token": 9}, "Did you mean 'min_tokens'"),
    ],
)
def test_what_cannot_be_done_is_refused(kwargs, message):
    with pytest.raises(errors.TaskError, match=message):
        sampling(**kwargs)


def test_options_that_are_switched_off_are_welcome():
    assert sampling(num_beams=1, repetition_penalty=1.0) == sampling()


def test_a_generation_as_long_as_the_context_is_an_error_before_anything_is_loaded():  # case C62
    generation.check_length(sampling(max_gen_toks=127), 128, where="task 't'")
    with pytest.raises(errors.ConfigError, match="task 't': max_gen_toks is 128, but the model holds 128 tokens"):
        generation.check_length(sampling(max_gen_toks=128), 128, where="task 't'")

"""Where a generation ends, to the character; on a byte-level tokenizer with special tokens, as real ones are."""

import pathlib

import numpy as np
import pytest

from evaljax import testing
from evaljax.engine import stops, tokenizer


@pytest.fixture(scope="module")
def byte_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> tokenizer.Tokenizer:
    folder: pathlib.Path = testing.byte_tokenizer_files(tmp_path_factory.mktemp("bytes"))
    return tokenizer.read_tokenizer(str(folder))


def ids_of(byte_tokenizer: tokenizer.Tokenizer, text: str) -> list[int]:
    return byte_tokenizer.encode(text, add_special_tokens=False)


@pytest.mark.parametrize(
    ("text", "until", "expected"),
    [
        ("a S2 b S1 c", ("S1", "S2"), ("a ", True)),  # case C53: whatever the order of the stops
        ("a S2 b S1 c", ("S2", "S1"), ("a ", True)),
        (" 12.25 dollars", (".",), (" 12", True)),  # case C56: a stop may cut a number, as in lm-eval
        ("no stop here", ("\n\n",), ("no stop here", False)),
        ("Q: what", ("Q",), ("", True)),
        ("ab c", ("b", "ab c"), ("a", True)),  # each stop cuts what the stops before it left
        ("ab c", ("ab c", "b"), ("", True)),
        ("twice, twice", ("twice",), ("", True)),
        ("anything", ("",), ("anything", False)),  # an empty stop string stops nothing
        ("", ("a",), ("", False)),
        ("anything", (), ("anything", False)),
        ("naïve – 日本語", ("日",), ("naïve – ", True)),
    ],
)
def test_cut_keeps_what_lies_before_each_stop_in_turn(
    text: str, until: tuple[str, ...], expected: tuple[str, bool]
) -> None:
    assert stops.cut(text, until) == expected


def test_an_ending_takes_the_fewest_tokens_that_show_a_stop(byte_tokenizer: tokenizer.Tokenizer) -> None:
    ids = ids_of(byte_tokenizer, "fine\n\nQuestion: more\n\n")
    assert stops.ending(ids, ("\n\n",), byte_tokenizer) == stops.Ending(text="fine", num_tokens=6, found=True)


def test_an_ending_does_not_depend_on_what_was_generated_after_the_stop(byte_tokenizer: tokenizer.Tokenizer) -> None:
    ids = ids_of(byte_tokenizer, "xab c and ab c")
    until = ("ab c", "b")
    endings = {stops.ending(ids[:length], until, byte_tokenizer) for length in range(3, len(ids) + 1)}
    # "b" shows first, after 3 tokens; the longer stop, which comes first in the list, is not there yet.
    assert endings == {stops.Ending(text="xa", num_tokens=3, found=True)}


def test_a_stop_that_straddles_tokens_is_found(byte_tokenizer: tokenizer.Tokenizer) -> None:
    ids = ids_of(byte_tokenizer, "say the end")  # " the" is one token
    assert len(ids) < len("say the end")
    assert stops.ending(ids, ("y th",), byte_tokenizer).text == "sa"
    assert stops.ending(ids, ("e e",), byte_tokenizer).text == "say th"


def test_a_stop_that_straddles_two_looks_is_seen(byte_tokenizer: tokenizer.Tokenizer) -> None:
    ids = ids_of(byte_tokenizer, "x" * 50 + "STOP" + "y" * 3)
    for start in range(51, 54):  # the stop began before this look and ends in it
        assert stops.seen(ids, start, ("STOP",), byte_tokenizer)
    assert not stops.seen(ids[:53], 40, ("STOP",), byte_tokenizer)
    assert not stops.seen(ids, 40, (), byte_tokenizer)


class Recorder:
    """A tokenizer that remembers the longest sequence that it was asked to decode."""

    def __init__(self, words: tokenizer.Tokenizer) -> None:
        self.words, self.longest = words, 0

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        self.longest = max(self.longest, len(ids))
        return self.words.decode(ids, skip_special_tokens)


def test_a_look_decodes_the_tail_only(byte_tokenizer: tokenizer.Tokenizer) -> None:
    recorder = Recorder(byte_tokenizer)
    assert not stops.seen(ids_of(byte_tokenizer, "x" * 500), 490, ("STOP",), recorder)
    assert recorder.longest == 10 + 4 + 8


def test_a_multi_byte_character_is_never_cut(byte_tokenizer: tokenizer.Tokenizer) -> None:
    ids = ids_of(byte_tokenizer, "a€b語|c")
    assert len(ids) == 10  # € and 語 are three tokens each
    for length in range(1, 9):  # the tail may end within a character: no stop is seen, nothing ends
        assert not stops.ending(ids[:length], ("|", "語c"), byte_tokenizer).found
    assert stops.ending(ids, ("|",), byte_tokenizer).text == "a€b語"
    assert stops.ending(ids, ("語",), byte_tokenizer) == stops.Ending(text="a€b", num_tokens=8, found=True)


def test_a_stop_may_be_a_special_token(byte_tokenizer: tokenizer.Tokenizer) -> None:
    ids = [
        *ids_of(byte_tokenizer, "yes"),
        byte_tokenizer.backend.convert_tokens_to_ids("<pad>"),
        *ids_of(byte_tokenizer, "no"),
    ]
    assert stops.ending(ids, ("<pad>",), byte_tokenizer) == stops.Ending(text="yes", num_tokens=4, found=True)
    assert stops.seen(ids, 5, ("<pad>",), byte_tokenizer)


def test_a_stop_may_reach_into_a_special_token(byte_tokenizer: tokenizer.Tokenizer) -> None:
    special = byte_tokenizer.backend.convert_tokens_to_ids
    ids = [special("<bos>"), *ids_of(byte_tokenizer, "ok €\n"), special("<pad>")]
    assert stops.ending(ids, ("\n<pad>",), byte_tokenizer).text == "ok €"
    assert stops.ending(ids, ("ad>",), byte_tokenizer).text == "ok €\n"  # begins within <pad>, which shows nothing


def test_special_tokens_do_not_show_in_the_text(byte_tokenizer: tokenizer.Tokenizer) -> None:
    special = byte_tokenizer.backend.convert_tokens_to_ids
    ids = [*ids_of(byte_tokenizer, "a"), special("<bos>"), *ids_of(byte_tokenizer, "b.c")]
    assert stops.ending(ids, (), byte_tokenizer) == stops.Ending(text="ab.c", num_tokens=5, found=False)
    assert stops.ending(ids, (".",), byte_tokenizer) == stops.Ending(text="ab", num_tokens=4, found=True)
    assert stops.ending(ids, ("ab",), byte_tokenizer).text == ""  # the text that is returned counts, too


THINK = "</think>"


@pytest.mark.parametrize(
    ("text", "until", "expected"),
    [
        ("step\n\nstep</think> It is 4\n\nmore", ("\n\n",), ("It is 4", True)),  # case C58: a stop within the thought
        ("step</think>\n\nIt is 4\n\nmore", ("\n\n",), ("It is 4", True)),  # white space before the answer is no stop
        ("a</think>b</think>c", (), ("c", False)),  # case C60
        ("a</think>b</think>c.", (".",), ("c", True)),
        ("a</think>b.</think>c.", (".",), ("b", True)),  # a stop between two think ends ends the generation
        ("a</think> \n</think> c", ("\n",), ("c", False)),
        ("a</think>b</think>", ("c",), ("", False)),
        ("a</think>", (), ("", False)),
        ("a</think>.b", (".",), ("", True)),
        ("日本\n語</think>\u3000日本語é\n語", ("\n",), ("日本語é", True)),
        ("a</think>b </", (" </",), ("b", True)),  # a stop with which a think end begins
        ("a</think>b</think>c", ("</think>",), ("c", False)),  # the think end itself is part of no answer
    ],
)
def test_the_answer_stands_behind_the_last_think_end(byte_tokenizer, text, until, expected) -> None:
    ids = ids_of(byte_tokenizer, text)
    assert len(ids) > len(THINK)  # a think end straddles tokens
    end = stops.ending(ids, until, byte_tokenizer, THINK)
    assert (end.text, end.found) == expected
    assert not end.unfinished_thought


@pytest.mark.parametrize("text", ["step\n\nstep", "", "step</think", "</ think>"])
def test_an_unfinished_thought_is_no_answer(byte_tokenizer: tokenizer.Tokenizer, text: str) -> None:  # case C59
    ids = ids_of(byte_tokenizer, text)
    expected = stops.Ending(text="", num_tokens=len(ids), found=False, unfinished_thought=True)
    assert stops.ending(ids, ("\n\n", "think"), byte_tokenizer, THINK) == expected


def test_a_think_end_may_be_a_special_token(byte_tokenizer: tokenizer.Tokenizer) -> None:
    pad, bos = byte_tokenizer.backend.convert_tokens_to_ids(["<pad>", "<bos>"])
    thought, answer = (ids_of(byte_tokenizer, text) for text in ("€ the\n", "\n the €\nmore"))
    ids = [bos, *thought, pad, *answer]
    assert stops.ending(ids, ("\n",), byte_tokenizer, "<pad>") == stops.Ending(
        text="the €", num_tokens=len(ids) - 4, found=True
    )
    assert stops.ending(ids, (), byte_tokenizer, "<pad>").text == "the €\nmore"
    assert stops.ending(ids, (), byte_tokenizer, "\n<pad>\n").text == "the €\nmore"  # reaches out on both sides
    assert stops.ending(ids, (), byte_tokenizer, "ad").text == "the €\nmore"  # what is left of <pad> does not show
    assert stops.ending([*ids[:-4], bos, *ids], ("<bos>",), byte_tokenizer, "<pad>").text == "the €\n"
    assert stops.ending([pad, *thought, bos, *answer], ("\n<bos>",), byte_tokenizer, "<pad>").text == "€ the"
    assert stops.ending(ids, (), byte_tokenizer, THINK).unfinished_thought


def test_what_follows_a_think_end_within_its_token_belongs_to_the_answer(byte_tokenizer: tokenizer.Tokenizer) -> None:
    ids = ids_of(byte_tokenizer, "x the y")  # " the" is one token
    assert stops.ending(ids, (), byte_tokenizer, " t").text == "he y"
    assert stops.ending(ids, ("h",), byte_tokenizer, " t") == stops.Ending(text="", num_tokens=2, found=True)


def test_a_thinking_generation_ends_where_the_definition_says_however_often_one_looks(byte_tokenizer) -> None:
    pieces = [*"<>ab\n\n\n", "</t>", "</", "t>", " the", "€", "he"]
    num_found = 0
    for seed in range(300):
        rng = np.random.default_rng(seed)
        ids = ids_of(byte_tokenizer, "".join(rng.choice(pieces, 30)))
        until = tuple(rng.choice(["\n\n", "b", "€", "/", "e\n", "<>"], 2))
        expected = by_definition(ids, until, byte_tokenizer, "</t>")
        assert stops.ending(ids, until, byte_tokenizer, "</t>") == expected, (seed, ids, until)
        looks = sorted({*rng.integers(1, len(ids), 6).tolist(), len(ids)})
        watch = stops.Watch(until, byte_tokenizer, "</t>")
        found = next(filter(None, (watch.read(ids[:length]) for length in looks)), None)
        assert (found or watch.unstopped(ids)) == expected, (seed, ids, until, looks)
        num_found += expected.found
    assert 50 < num_found < 250


def by_definition(ids: list[int], until: tuple[str, ...], words: tokenizer.Tokenizer, think_end: str) -> stops.Ending:
    for length in range(1, len(ids) + 1):
        parts = words.decode(ids[:length]).split(think_end)
        answer = parts[-1].lstrip() if len(parts) > 1 else ""
        if any(stop in answer for stop in until):
            return stops.Ending(text=stops.cut(answer, until)[0], num_tokens=length, found=True)
    return stops.Ending(text=answer, num_tokens=len(ids), found=False, unfinished_thought=len(parts) == 1)


def test_a_look_at_a_thought_decodes_the_tail_only(byte_tokenizer: tokenizer.Tokenizer) -> None:
    recorder = Recorder(byte_tokenizer)
    ids = ids_of(byte_tokenizer, "thought\n\n" * 50)
    assert stops.ending(ids, ("\n\n",), recorder, THINK).unfinished_thought
    assert recorder.longest == 32 + len(THINK) + 8

import pathlib

import pytest
import tiny_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

from evaljax.core import errors, request
from evaljax.engine import encode, tokenizer

PLAIN = tiny_tokenizer.make()
BOS = tiny_tokenizer.make(adds_bos=True)
PREFIX = PLAIN.prefix_token_id


def one(context: str, continuation: str, tok: tokenizer.Tokenizer = PLAIN, max_length: int = 2048) -> encode.Encoded:
    return encode.encode_loglikelihood(tok, [request.LoglikelihoodRequest(context, continuation)], max_length)[0]


def parts(encoded: encode.Encoded) -> tuple[list[int], list[int]]:
    tokens = encoded.tokens.tolist()
    return tokens[: -encoded.num_targets], tokens[-encoded.num_targets :]


def windows(text: str, max_length: int, tok: tokenizer.Tokenizer = PLAIN) -> list[tuple[list[int], list[int]]]:
    (found,) = encode.encode_rolling(tok, [request.RollingRequest(text)], max_length)
    return [(w.tokens.tolist()[:-1], w.tokens.tolist()[-w.num_targets :]) for w in found]


def test_whitespace_that_ends_the_context_belongs_to_the_continuation() -> None:
    """C08 and C09."""
    assert parts(one("Answer: ", "A")) == parts(one("Answer:", " A"))
    assert parts(one("x = ", "1")) == (PLAIN.encode("x ="), PLAIN.encode(" 1"))


@pytest.mark.parametrize("context", ["", " ", "\n\n "])
@pytest.mark.parametrize("tok", [PLAIN, BOS])
def test_an_empty_or_blank_context_is_the_prefix_token(context: str, tok: tokenizer.Tokenizer) -> None:
    """C10."""
    expected = tok.encode(context + " A", add_special_tokens=False)
    assert parts(one(context, " A", tok)) == ([tok.prefix_token_id], expected)


def test_without_bos_the_prefix_token_is_eos() -> None:
    tok = tiny_tokenizer.make(with_bos=False)
    assert parts(one("", "A", tok))[0] == [next(iter(tok.eos_token_ids))]


def test_a_continuation_that_brings_its_own_bos_is_conditioned_on_it() -> None:
    assert parts(one("", "<s>A", BOS)) == parts(one("", "A", BOS))


def test_a_merge_across_the_join_is_scored_from_before_the_join() -> None:
    """C04: "cat" + "s" is the one token "cats": it is scored, after what precedes it."""
    merged = one("The cat", "s")
    assert parts(merged) == (PLAIN.encode("The "), PLAIN.encode("cats"))
    assert merged.boundary_merge
    assert not one("The cat", " A").boundary_merge


def test_scored_tokens_cover_the_whole_continuation_after_a_merge() -> None:
    context, targets = parts(one("http:", "//x.com"))
    assert PLAIN.decode(context) == "http"
    assert PLAIN.decode(targets) == "://x.com"


@pytest.mark.parametrize("tok", [PLAIN, BOS])
def test_a_context_that_merges_away_entirely_is_the_prefix_token(tok: tokenizer.Tokenizer) -> None:
    """C07, the one-token case."""
    merged = one("cat", "s", tok)
    assert parts(merged) == ([tok.prefix_token_id], tok.encode("cats", add_special_tokens=False))
    assert merged.boundary_merge


def test_text_that_is_split_inside_a_character_sequence_has_targets() -> None:
    """C07, byte tokens."""
    context, targets = parts(one("日本", "語"))
    assert PLAIN.decode(context) == "日本"
    assert len(targets) == 3


def test_bos_in_the_text_and_bos_from_the_tokenizer_give_the_same_ids() -> None:
    """C17."""
    assert parts(one("Answer:", " A", BOS)) == parts(one("<s>Answer:", " A", BOS))


def test_a_long_request_loses_its_left_end_and_says_how_much() -> None:
    """C14: the last 8 input tokens remain."""
    whole = PLAIN.encode("0123456789A")
    cut = one("0123456789", "A", max_length=8)
    assert parts(cut) == (whole[-9:-1], whole[-1:])
    assert len(cut.tokens[:-1]) == 8
    assert cut.num_truncated == 2
    assert one("01234567", "A", max_length=8).num_truncated == 0


def test_a_continuation_as_long_as_the_model_is_scored_and_a_longer_one_is_an_error() -> None:
    assert one("b", "x" * 8, max_length=8).num_targets == 8
    with pytest.raises(
        errors.RequestError, match=r"continuation 'xxxxxxxxx'\): the continuation has 9 tokens.*at most 8"
    ):
        one("b", "x" * 9, max_length=8)


def test_an_empty_continuation_is_an_error_that_shows_the_request() -> None:
    with pytest.raises(
        errors.RequestError, match=r"context '….*end of it', continuation ''\): the continuation is empty"
    ):
        one("x" * 300 + "the end of it", "")


def test_a_continuation_without_a_token_is_an_error() -> None:
    with pytest.raises(errors.RequestError, match="gives the continuation no token"):
        one("", "<s>", BOS)


@settings(deadline=None, max_examples=200)
@given(
    context=st.text("cats A:/x 日", max_size=12),
    continuation=st.text("cats A:/x 日", min_size=1, max_size=8),
    bos=st.booleans(),
)
def test_no_character_of_a_request_is_lost_or_left_unscored(context: str, continuation: str, bos: bool) -> None:
    tok = BOS if bos else PLAIN
    encoded = one(context, continuation, tok)
    before, targets = parts(encoded)
    assert before
    assert tok.decode(before + targets) == context + continuation
    scored = sum(len(tok.backend.convert_ids_to_tokens(i)) for i in targets)  # one letter a byte
    needed = len(continuation.encode()) + len(context.encode()) - len(context.rstrip().encode())
    assert scored >= needed if encoded.boundary_merge else scored == needed
    assert before.count(tok.prefix_token_id) == (1 if bos or not context.strip() or before == [PREFIX] else 0)


def test_answers_come_in_request_order_whatever_is_empty() -> None:
    queries = [("", "A"), ("b", "c"), (" ", "d"), ("e", "f"), ("b", "c")]
    requests = [request.LoglikelihoodRequest(*query) for query in queries]
    together = encode.encode_loglikelihood(PLAIN, requests, 99)
    assert [parts(e) for e in together] == [parts(one(*query)) for query in queries]


def test_rolling_windows_predict_every_token_once() -> None:
    """C20, with the tokens numbered as there."""
    ids = PLAIN.encode("0123456789")
    assert windows("0123456789", 4) == [
        ([PREFIX, *ids[:3]], ids[:4]),
        (ids[3:7], ids[4:8]),
        (ids[5:9], ids[8:]),
    ]


@settings(deadline=None, max_examples=100)
@given(length=st.integers(0, 40), max_length=st.integers(1, 12))
def test_windows_of_any_length_cover_the_text(length: int, max_length: int) -> None:
    text = ("0123456789" * 4)[:length]
    found = windows(text, max_length)
    assert [i for _, targets in found for i in targets] == PLAIN.encode(text)
    assert all(len(read) <= max_length for read, _ in found)
    assert all(read[0] != PREFIX for read, _ in found[1:])


def test_bos_is_context_in_a_window_and_never_scored() -> None:
    """C18: a text that fits is the continuation of an empty context, for tokenizers that add BOS too."""
    for tok in (PLAIN, BOS):
        assert windows("0123", 8, tok) == [
            ([tok.prefix_token_id, *tok.encode("012", False)], tok.encode("0123", False))
        ]
    assert windows("<s>0123", 8, BOS) == windows("0123", 8, BOS)


def test_an_empty_text_has_no_window() -> None:
    assert windows("", 8) == []


def test_prompts_lose_their_left_end_and_an_empty_one_is_the_prefix_token() -> None:
    asked = [request.GenerateRequest(text, request.Sampling(max_gen_toks=4)) for text in ("0123456789", "0123", "")]
    cut, whole, empty = encode.encode_prompts(PLAIN, asked, 8)
    assert (cut.tokens.tolist(), cut.num_truncated) == (PLAIN.encode("6789"), 6)
    assert (whole.tokens.tolist(), whole.num_truncated) == (PLAIN.encode("0123"), 0)
    assert (empty.tokens.tolist(), empty.num_truncated) == ([PREFIX], 0)


def test_a_prompt_leaves_room_for_what_it_asks_for() -> None:
    asked = [request.GenerateRequest("abcdef", request.Sampling(max_gen_toks=count)) for count in (3, 6, 3, 1)]
    prompts = encode.encode_prompts(PLAIN, asked, 8)
    assert [(PLAIN.decode(prompt.tokens), prompt.num_truncated) for prompt in prompts] == [
        ("bcdef", 1),
        ("ef", 4),
        ("bcdef", 1),
        ("abcdef", 0),
    ]


@pytest.mark.parametrize("count", [0, 8, 256])
def test_max_gen_toks_without_room_for_a_prompt_is_an_error(count: int) -> None:
    asked = [request.GenerateRequest("abc", request.Sampling(max_gen_toks=count))]
    with pytest.raises(errors.ConfigError, match=f"max_gen_toks is {count}; expected 1 to 7: model.max_length 8"):
        encode.encode_prompts(PLAIN, asked, 8)


def test_a_model_without_room_for_generation_says_so() -> None:
    asked = [request.GenerateRequest("abc", request.Sampling(max_gen_toks=1))]
    with pytest.raises(errors.ConfigError, match=r"model\.max_length is 1; generation needs 2 or more"):
        encode.encode_prompts(PLAIN, asked, 1)


@pytest.fixture(scope="module")
def smollm2(test_models: pathlib.Path) -> tokenizer.Tokenizer:
    return tokenizer.read_tokenizer(str(test_models / "smollm2"))


@pytest.mark.parity
def test_smollm2_splits_as_recorded(smollm2: tokenizer.Tokenizer) -> None:
    """C04, C07, C08, C09 with real merges."""
    assert parts(one("x = ", "1", smollm2)) == ([104, 446], [216, 33])
    assert parts(one("Answer: ", "C", smollm2)) == parts(one("Answer:", " C", smollm2))
    context, targets = parts(one("日本", "語", smollm2))
    assert smollm2.decode(context) == "日本"
    assert len(targets) == 3
    merged = one("The cat", "s", smollm2)
    assert smollm2.decode(parts(merged)[1]) == " cats"
    assert merged.boundary_merge


@pytest.mark.parametrize("tok", [PLAIN, BOS], ids=["plain", "bos"])
@pytest.mark.parametrize("max_length", [4, 8, 12])
def test_what_a_request_needs_beyond_the_limit_is_what_it_loses(tok: tokenizer.Tokenizer, max_length: int) -> None:
    pairs = [("0123456789", "A"), ("0123", "4567"), ("", "abcd"), ("x ", "y"), (" ", "z"), ("日本", "x")]
    scored = [request.LoglikelihoodRequest(*pair) for pair in pairs]
    prompts = [
        request.GenerateRequest(text, request.Sampling(max_gen_toks=limit))
        for text in ("0123456789", "")
        for limit in (1, 3)
    ]
    mixed = [scored[0], prompts[0], *scored[1:], *prompts[1:]]
    counts = dict(zip(map(id, mixed), encode.count_tokens(tok, mixed), strict=True))
    lost = [encoded.num_truncated for encoded in encode.encode_loglikelihood(tok, scored, max_length)]
    assert [max(0, counts[id(asked)] - max_length) for asked in scored] == lost
    lost = [prompt.num_truncated for prompt in encode.encode_prompts(tok, prompts, max_length)]
    assert [max(0, counts[id(asked)] - max_length) for asked in prompts] == lost


def test_a_continuation_that_no_model_could_read_is_counted_too() -> None:
    assert encode.count_tokens(PLAIN, [request.LoglikelihoodRequest("b", "x" * 5000)]) == [5000]

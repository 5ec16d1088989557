"""Generation on a tiny random model: each text equals its own plain loop, whatever the slots and the order."""

import dataclasses
import functools
from typing import Any

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import strategies

from evaljax import testing
from evaljax.core import config, errors, request
from evaljax.engine import executor, generate, hooks, tokenizer
from evaljax.models import config as model_config
from evaljax.models import decoder, model

MAX_LENGTH = 160
CONFIG = model_config.ModelConfig(
    vocab_size=262,
    num_layers=2,
    embed_dim=16,
    mlp_dim=24,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    rope_theta=500.0,
    max_position=MAX_LENGTH,
)
STOP, LENGTH = request.FinishReason.STOP, request.FinishReason.LENGTH


@functools.cache
def module() -> decoder.Decoder:
    return decoder.create(CONFIG, nnx.Rngs(0), std=0.4)


@pytest.fixture(scope="module")
def byte_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> tokenizer.Tokenizer:
    return tokenizer.read_tokenizer(str(testing.byte_tokenizer_files(tmp_path_factory.mktemp("bytes"))))


class Numbers:
    """A tokenizer that shows ids: tests read the tokens off the text."""

    def __init__(self, eos: int = 10_000):
        self.eos_token_ids = frozenset([eos])

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        return "".join(f"{i} " for i in ids if not (skip_special_tokens and i in self.eos_token_ids))


@functools.cache
def plain_logits() -> Any:
    weights = module()  # drawn outside the trace
    return jax.jit(lambda tokens: decoder.causal_logits(weights, tokens))


def plain_greedy(prompt: np.ndarray, count: int, eos: int | None = None) -> list[int]:
    """The argmax loop: the whole sequence forwarded again for each token."""
    sequence = prompt.tolist()
    while len(sequence) < prompt.size + count:
        padded = np.zeros((1, MAX_LENGTH), np.int32)
        padded[0, : len(sequence)] = sequence
        with jax.default_matmul_precision("highest"):
            logits = plain_logits()(jnp.asarray(padded))
        sequence.append(int(logits[0, len(sequence) - 1].argmax()))
        if sequence[-1] == eos:
            break
    return sequence[prompt.size :]


def text_of(ids: list[int]) -> str:
    return "".join(f"{i} " for i in ids)


def run(prompts: list[np.ndarray], samplings: list[request.Sampling], **kwargs: Any) -> list[request.GenerateResponse]:
    return run_with_figures(prompts, samplings, **kwargs)[0]


def run_with_figures(
    prompts: list[np.ndarray],
    samplings: list[request.Sampling],
    *,
    repeats: list[int] | None = None,
    reader: Any = None,
    max_length: int = MAX_LENGTH,
    progress: Any = None,
    found: Any = None,
    **options: Any,
) -> tuple[list[request.GenerateResponse], dict[str, Any]]:
    return generate.generate(
        model.of(module()),
        prompts,
        samplings,
        repeats or [0] * len(prompts),
        tokenizer=reader or Numbers(),
        options=config.EngineOptions(**{"num_slots": 4, "decode_steps": 5, **options}),
        max_length=max_length,
        precision="highest",
        hooks=dataclasses.replace(
            hooks.NOBODY, **({"progress": progress} if progress else {}), **({"found": found} if found else {})
        ),
    )


def random_prompts(seed: int, count: int) -> list[np.ndarray]:
    """Prompts of 1..100 tokens; many begin with one of three headers, which begin with one another."""
    rng = np.random.default_rng(seed)
    header = rng.integers(0, 262, 90)
    prompts = []
    for _ in range(count):
        shared = header[: rng.choice([0, 1, 20, 40, 90])]
        own = rng.integers(0, 262, rng.integers(0 if shared.size else 1, 11))
        prompts.append(np.concatenate([shared, own]).astype(np.int32))
    return prompts


@pytest.mark.parametrize("num_slots", [1, 4, 7])
def test_greedy_texts_equal_the_plain_loop_token_for_token(num_slots: int) -> None:
    prompts = random_prompts(num_slots, 20)
    counts = np.random.default_rng(num_slots).integers(1, 14, 20).tolist()
    answers = run(prompts, [request.Sampling(max_gen_toks=n) for n in counts], num_slots=num_slots)
    for prompt, count, answer in zip(prompts, counts, answers, strict=True):
        assert answer == request.GenerateResponse(text_of(plain_greedy(prompt, count)), count, LENGTH)


def test_order_slot_count_and_sharing_change_no_text() -> None:
    prompts = random_prompts(11, 15)
    samplings = [
        request.Sampling(max_gen_toks=1 + i % 9, temperature=(i % 3) * 0.7, top_k=i % 4, top_p=0.9) for i in range(15)
    ]
    expected = run(prompts, samplings)
    order = np.random.default_rng(0).permutation(15)
    shuffled = run([prompts[i] for i in order], [samplings[i] for i in order], num_slots=3, decode_steps=2)
    assert [expected[i] for i in order] == shuffled
    assert run(prompts, samplings, num_slots=15, decode_steps=64, share_prefixes=False) == expected
    for i in (0, 4, 8):  # and alone
        assert run([prompts[i]], [samplings[i]], num_slots=1) == [expected[i]]


def test_repeats_differ_from_each_other_and_come_again() -> None:
    prompt = np.array([3, 1, 4, 1, 5], np.int32)
    hot = request.Sampling(max_gen_toks=12, temperature=1.0)
    texts = [answer.text for answer in run([prompt] * 5, [hot] * 5, repeats=[0, 1, 2, 3, 4])]
    assert len(set(texts)) == 5
    assert [answer.text for answer in run([prompt] * 2, [hot] * 2, repeats=[3, 0], num_slots=1)] == [texts[3], texts[0]]
    other_seed = request.Sampling(max_gen_toks=12, temperature=1.0, seed=1)
    assert run([prompt], [other_seed])[0].text not in texts


def test_top_k_one_is_greedy() -> None:
    prompts = random_prompts(5, 6)
    narrow = run(prompts, [request.Sampling(max_gen_toks=8, temperature=3.0, top_k=1)] * 6)
    assert narrow == run(prompts, [request.Sampling(max_gen_toks=8)] * 6)


def test_requests_that_ask_the_same_are_answered_once() -> None:
    prompt = np.array([9, 8, 7], np.int32)
    answers, figures = run_with_figures([prompt] * 3, [request.Sampling(max_gen_toks=4)] * 3, repeats=[0, 1, 2])
    assert answers[0] == answers[1] == answers[2]
    assert figures["requests"] == 3
    assert figures["generations"] == 1


def test_end_of_sequence_at_the_first_token_is_an_empty_text() -> None:
    prompt = np.array([2, 7, 1, 8], np.int32)
    first = plain_greedy(prompt, 1)[0]
    answers = run([prompt], [request.Sampling(max_gen_toks=8)], reader=Numbers(eos=first))
    assert answers == [request.GenerateResponse("", 1, STOP)]


def test_end_of_sequence_ends_a_text_and_does_not_show() -> None:
    prompts = random_prompts(21, 12)
    plain = [plain_greedy(prompt, 12) for prompt in prompts]
    eos = max((ids[6] for ids in plain), key=lambda token: sum(token in ids for ids in plain))
    answers = run(prompts, [request.Sampling(max_gen_toks=12)] * 12, reader=Numbers(eos=eos))
    assert sum(answer.finish_reason is STOP for answer in answers) >= 1
    for ids, answer in zip(plain, answers, strict=True):
        kept = ids[: ids.index(eos)] if eos in ids else ids
        assert answer.text == text_of(kept)
        assert answer.num_tokens == len(kept) + (eos in ids)


@pytest.mark.parametrize("decode_steps", [1, 3, 16])
def test_a_stop_string_across_tokens_cuts_to_the_character(decode_steps: int) -> None:
    prompt = np.array([2, 7, 1, 8], np.int32)
    ids = plain_greedy(prompt, 10)
    stop = f"{str(ids[4])[-1]} {ids[5]} {str(ids[6])[0]}"  # the end of one token, a token, the beginning of another
    expected = text_of(ids).partition(stop)[0]
    sampling = request.Sampling(max_gen_toks=10, until=("never", stop))
    answer = run([prompt], [sampling], decode_steps=decode_steps)[0]
    assert answer == request.GenerateResponse(expected, 7, STOP)


def test_a_stop_at_the_first_character_is_an_empty_text() -> None:
    prompt = np.array([2, 7, 1, 8], np.int32)
    stop = str(plain_greedy(prompt, 1)[0])
    assert run([prompt], [request.Sampling(max_gen_toks=9, until=(stop,))]) == [request.GenerateResponse("", 1, STOP)]


def test_real_texts_stop_alike_however_often_the_host_looks(byte_tokenizer: tokenizer.Tokenizer) -> None:
    prompts = [
        np.array(byte_tokenizer.encode(f"the {word} he", add_special_tokens=False)) for word in ("cat", "sea", "€")
    ]
    hot = [request.Sampling(max_gen_toks=40, temperature=1.2, until=("e", "é", "\n"))] * 3
    answers = [run(prompts, hot, reader=byte_tokenizer, decode_steps=steps, num_slots=2) for steps in (1, 4, 40)]
    assert answers[0] == answers[1] == answers[2]
    for answer in answers[0]:
        assert "e" not in answer.text
        assert "\n" not in answer.text


def test_a_prompt_that_fills_the_model_but_for_one_token() -> None:
    prompt = np.arange(MAX_LENGTH - 1, dtype=np.int32)
    assert run([prompt], [request.Sampling(max_gen_toks=1)])[0].text == text_of(plain_greedy(prompt, 1))


def test_a_shared_header_is_forwarded_once() -> None:
    header = np.arange(100, 190)
    prompts = [np.append(header, [i, i + 1, i + 2]).astype(np.int32) for i in range(8)]
    _, figures = run_with_figures(prompts, [request.Sampling(max_gen_toks=3)] * 8)
    assert figures["prefill_tokens"] == 90 + 8 * 2  # the last token of a prompt is the first decode step's
    _, figures = run_with_figures(prompts, [request.Sampling(max_gen_toks=3)] * 8, share_prefixes=False)
    assert figures["prefill_tokens"] == 8 * 92


def test_figures_and_progress_tell_what_was_done() -> None:
    seen: list[tuple[str, int, int, str]] = []
    prompts = random_prompts(31, 9)
    answers, figures = run_with_figures(
        prompts,
        [request.Sampling(max_gen_toks=7)] * 9,
        progress=lambda *said: seen.append(said),
        num_slots=2,
        decode_steps=6,
    )
    prefill, generated = ([said for said in seen if said[0] == label] for label in ("prefill", "generate"))
    assert prefill[-1] == ("prefill", figures["prefill_tokens"], figures["prefill_tokens"], "tokens")
    assert 2 * 6 <= generated[0][1] <= 63  # two slots, six steps
    assert generated[-1] == ("generate", 63, 63, "tokens")
    for told in (prefill, generated):
        assert [done for _, done, _, _ in told] == sorted({done for _, done, _, _ in told})
    assert figures["generated_tokens"] == sum(answer.num_tokens for answer in answers) == 63
    assert figures["num_slots"] == 2
    assert figures["cache_length"] == 128
    assert figures["executables"] <= 4  # two prefill lengths, insert, decode
    assert figures["decode_steps"] >= 63 / 2
    _, again = run_with_figures(prompts, [request.Sampling(max_gen_toks=7)] * 9, num_slots=2, decode_steps=6)
    assert again["executables"] == 0


def test_progress_counts_a_text_that_ended_early_as_if_it_had_used_all_its_tokens() -> None:
    seen: list[tuple[int, int]] = []
    prompts = random_prompts(31, 3)
    first = run(prompts, [request.Sampling(max_gen_toks=40)] * 3)
    stop = first[0].text[4:8]
    answers, _ = run_with_figures(
        prompts,
        [request.Sampling(max_gen_toks=40, until=(stop,))] * 3,
        progress=lambda label, done, total, unit: seen.append((done, total)) if label == "generate" else None,
        num_slots=3,
        decode_steps=8,
    )
    assert min(answer.num_tokens for answer in answers) < 16
    assert seen[-1] == (120, 120)


def test_every_transfer_is_explicit() -> None:
    prompts = [np.arange(40, dtype=np.int32), np.arange(3, dtype=np.int32)]
    expected = run(prompts, [request.Sampling(max_gen_toks=4)] * 2)
    with jax.transfer_guard("disallow"):
        assert run(prompts, [request.Sampling(max_gen_toks=4)] * 2) == expected


def test_nothing_asked_is_nothing_answered() -> None:
    answers, figures = run_with_figures([], [])
    assert answers == []
    assert figures["executables"] == 0


@pytest.mark.parametrize(
    ("max_gen_toks", "expected"),
    [
        (160, "prompt of 1 tokens and max_gen_toks 160; expected at most max_length 160 together"),
        (1000, "prompt of 1 tokens and max_gen_toks 1000; expected at most max_length 160 together"),
        (0, "max_gen_toks is 0; expected at least 1"),
        (-1, "max_gen_toks is -1; expected at least 1"),
    ],
)
def test_max_gen_toks_without_room_for_a_prompt_is_an_error(max_gen_toks: int, expected: str) -> None:
    samplings = [request.Sampling(max_gen_toks=8), request.Sampling(max_gen_toks=max_gen_toks)]
    with pytest.raises(errors.RequestError, match=f"^request 1: {expected}$"):
        run([np.zeros(1, np.int32)] * 2, samplings)


def test_a_prompt_that_does_not_fit_is_an_error() -> None:
    prompts = [np.zeros(3, np.int32), np.zeros(151, np.int32)]
    with pytest.raises(
        errors.RequestError, match=r"request 1: prompt of 151 tokens and max_gen_toks 10; .* max_length 160"
    ):
        run(prompts, [request.Sampling(max_gen_toks=10)] * 2)


def test_a_prompt_without_a_token_is_an_error() -> None:
    with pytest.raises(errors.RequestError, match="request 0: prompt of 0 tokens"):
        run([np.zeros(0, np.int32)], [request.Sampling(max_gen_toks=10)])


def test_logits_that_are_not_finite_stop_the_run_and_name_the_request() -> None:
    broken = nnx.clone(module())
    broken.embedding[...] = broken.embedding[...].at[77].set(jnp.nan)
    prompts = [np.array([1, 2], np.int32), np.array([5, 77, 3], np.int32)]
    samplings = [request.Sampling(max_gen_toks=3)] * 2
    arguments = {"tokenizer": Numbers(), "max_length": MAX_LENGTH, "precision": "highest"}
    with pytest.raises(
        errors.RequestError, match=r"request 1: logits that are not finite within \d tokens after a prompt of 3"
    ):
        generate.generate(
            model.of(broken), prompts, samplings, [0, 0], options=config.EngineOptions(num_slots=2), **arguments
        )
    answers, figures = generate.generate(
        model.of(broken),
        prompts,
        samplings,
        [0, 0],
        options=config.EngineOptions(num_slots=2, allow_nonfinite=True),
        **arguments,
    )
    assert figures["nonfinite"] == 1
    assert answers[0] == run(prompts[:1], samplings[:1])[0]


def headed_prompts(seed: int, count: int) -> list[np.ndarray]:
    """Prompts of 67..100 tokens with one header of 66 to 90."""
    rng = np.random.default_rng(seed)
    header = rng.integers(0, 262, rng.integers(66, 91))
    return [np.append(header, rng.integers(0, 262, rng.integers(1, 11))).astype(np.int32) for _ in range(count)]


@hypothesis.settings(deadline=None, max_examples=12, derandomize=True)
@hypothesis.given(seed=strategies.integers(0, 10_000), with_others=strategies.booleans(), steps=strategies.just(3))
def test_texts_after_a_stem_are_those_of_single_runs(seed: int, with_others: bool, steps: int) -> None:
    prompts = headed_prompts(seed, 7) + (headed_prompts(seed + 1, 25) + random_prompts(seed, 3) if with_others else [])
    order = np.random.default_rng(seed).permutation(len(prompts))
    hot = [request.Sampling(max_gen_toks=1 + i % 9, temperature=i % 2 * 0.9) for i in range(len(prompts))]
    answers, figures = run_with_figures(
        [prompts[i] for i in order], [hot[i] for i in order], num_slots=3, decode_steps=steps
    )
    assert figures["stems"] == 1
    for place in range(0, len(prompts), 3):
        i = order[place]
        alone = run([prompts[i]], [hot[i]], num_slots=1, share_prefixes=False)
        assert answers[place] == alone[0]


def test_a_stem_is_not_in_the_slots() -> None:
    prompts = [np.append(np.arange(120), [i, i]).astype(np.int32) for i in range(6)]
    answers, figures = run_with_figures(prompts, [request.Sampling(max_gen_toks=30)] * 6)
    assert (figures["stems"], figures["cache_length"]) == (1, 128)
    assert figures["prefill_tokens"] == 120 + 6
    assert [answer.text for answer in answers[:2]] == [text_of(plain_greedy(prompt, 30)) for prompt in prompts[:2]]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_no_end_of_sequence_before_min_tokens(temperature: float) -> None:
    prompts = random_prompts(21, 6)
    how = request.Sampling(max_gen_toks=12, temperature=temperature)
    ids = [[int(i) for i in answer.text.split()] for answer in run(prompts, [how] * 6)]
    eos = ids[0][0]  # the first prompt's text would be empty
    late = [dataclasses.replace(how, min_tokens=least) for least in (5, 0, 5, 12, 5, 0)]
    answers = run(prompts, late, reader=Numbers(eos=eos), num_slots=3)
    assert answers[0].num_tokens >= 5
    assert answers[3].num_tokens == 12
    for kept, sampling, answer in zip(ids, late, answers, strict=True):
        if eos not in kept[: max(sampling.min_tokens, answer.num_tokens - 1)]:  # nothing was masked
            assert answer.text == text_of(kept[: answer.num_tokens - (answer.finish_reason is STOP)])


def test_texts_are_told_of_as_they_end() -> None:
    prompts = [*random_prompts(3, 8), np.array([1, 2], np.int32), np.array([1, 2], np.int32)]
    told: list[tuple[list[int], list[request.GenerateResponse]]] = []
    samplings = [request.Sampling(max_gen_toks=2 + 3 * i) for i in range(8)] + [request.Sampling(max_gen_toks=3)] * 2
    answers = run(prompts, samplings, num_slots=2, found=lambda *some: told.append(some))
    assert len(told) > 3
    assert all(len(places) == len(texts) > 0 for places, texts in told)
    assert {place: text for some in told for place, text in zip(*some, strict=True)} == dict(enumerate(answers))
    assert sum(len(places) for places, _ in told) == 10


def test_a_full_device_goes_on_with_half_the_slots_and_keeps_what_is_done() -> None:
    prompts = random_prompts(3, 9)
    samplings = [request.Sampling(max_gen_toks=1 + 3 * i) for i in range(9)]
    expected = run(prompts, samplings)
    told: list[list[int]] = []

    def full(times: int, places: list[int]) -> None:
        told.append(places)
        if len(told) <= times:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 99 bytes.")

    answers, figures = run_with_figures(prompts, samplings, found=lambda places, texts: full(2, places))
    assert answers == expected
    assert (figures["halved"], figures["num_slots"]) == (2, 1)
    assert sorted(place for places in told for place in places) == list(range(9))  # nothing twice
    told.clear()
    with pytest.raises(jax.errors.JaxRuntimeError, match="RESOURCE_EXHAUSTED"):  # a single slot has no half
        run(prompts, samplings, found=lambda places, texts: full(3, places))


def test_slots_that_do_not_fit_are_not_tried() -> None:
    prompts, samplings = random_prompts(3, 9), [request.Sampling(max_gen_toks=4)] * 9
    _, figures = run_with_figures(prompts, samplings, num_slots=8)
    room = figures["memory"]["step"] - 1
    answers, figures = run_with_figures(prompts, samplings, num_slots=8, memory_bytes=room)
    assert answers == run(prompts, samplings)
    assert (figures["num_slots"], figures["halved"]) == (4, 1)
    assert figures["memory"]["step"] <= room
    with pytest.raises(jax.errors.JaxRuntimeError, match="RESOURCE_EXHAUSTED"):
        run(prompts, samplings, memory_bytes=1000)


def test_programs_prepared_without_weights_are_those_that_run() -> None:
    prompts, samplings = random_prompts(3, 5), [request.Sampling(max_gen_toks=61)] * 5
    weights = model.of(module())
    outline = dataclasses.replace(
        weights,
        params=jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), weights.params),
    )
    how = {"options": config.EngineOptions(num_slots=5), "max_length": MAX_LENGTH, "precision": "highest"}
    generate.prepare(outline, prompts, samplings, tokenizer=Numbers(), **how)
    _, figures = generate.generate(weights, prompts, samplings, [0] * 5, tokenizer=Numbers(), **how)
    assert figures["executables"] <= 4
    known = len(executor.COMPILED)
    generate.generate(weights, prompts, samplings, [0] * 5, tokenizer=Numbers(), **how)
    assert len(executor.COMPILED) == known


def test_deterministic_texts_depend_on_no_other_request() -> None:
    prompts = random_prompts(11, 10)
    samplings = [request.Sampling(max_gen_toks=1 + i % 9, temperature=(i % 3) * 0.7) for i in range(10)]
    answers, figures = run_with_figures(prompts, samplings, deterministic=True)
    assert figures["num_slots"] == 8
    assert answers == run(prompts, samplings)
    greedy = run(prompts[::3], samplings[::3], deterministic=True, num_slots=1)
    assert greedy == answers[::3]


def test_a_slot_computes_the_same_bits_whoever_is_beside_it() -> None:
    rng = np.random.default_rng(0)
    weights = model.of(module())
    slots = 8

    @jax.jit
    def step(tokens: Any, base: Any, cache: decoder.Cache) -> Any:
        whole = model.merge(weights.graphdef, weights.params)
        hidden, _ = decoder.forward(whole, tokens, base, jnp.ones_like(tokens), base, base, cache)
        return decoder.logits(whole, hidden)

    tokens, base = (rng.integers(1, high, (slots, 1)).astype(np.int32) for high in (262, 120))
    cache = decoder.Cache(*(rng.normal(size=(2, slots, 2, 128, 8)).astype(np.float32) for _ in range(2)))
    expected = np.asarray(step(tokens, base, cache))
    for _ in range(5):
        order = rng.permutation(slots)
        moved = np.asarray(step(tokens[order], base[order], decoder.Cache(*(x[:, order] for x in cache))))
        assert (moved == expected[order]).all()
    tokens[1:], base[1:] = 3, 127
    assert (np.asarray(step(tokens, base, cache))[0] == expected[0]).all()

import pytest

from evaljax import testing
from evaljax.core import errors, request

fake = testing.FakeBackend()


def score(context, continuation):
    return fake.loglikelihood([request.LoglikelihoodRequest(context, continuation)])[0]


def generate(context, **settings):
    repeat = settings.pop("repeat", 0)
    return fake.generate_until([request.GenerateRequest(context, request.Sampling(**settings), repeat)])[0]


def test_the_same_text_gets_the_same_answer_in_every_process():
    answer = score("Q: one?\nA:", " two")
    assert (round(answer.logprob, 4), answer.is_greedy, answer.num_tokens) == (-15.9029, False, 4)


def test_log_probabilities_add_up_along_a_text():
    whole = score("", "one two").logprob
    assert whole == pytest.approx(score("", "one").logprob + score("one", " two").logprob, abs=1e-9)
    assert whole == pytest.approx(fake.loglikelihood_rolling([request.RollingRequest("one two")])[0].logprob, abs=1e-9)


def test_what_it_writes_greedily_it_calls_greedy():
    answer = generate("Once", max_gen_toks=20)
    assert answer.num_tokens == 20 == len(answer.text)
    assert answer.finish_reason == request.FinishReason.LENGTH
    assert score("Once", answer.text) == request.LoglikelihoodResponse(logprob=-5.0, is_greedy=True, num_tokens=20)
    assert not score("Once", answer.text[:-1] + "#").is_greedy


def test_text_is_cut_before_the_first_stop_string():
    whole = generate("Once", max_gen_toks=20).text
    answer = generate("Once", max_gen_toks=20, until=(whole[7:9], whole[5:7]))
    assert answer.text == whole[:5]
    assert answer.finish_reason == request.FinishReason.STOP


def test_samples_differ_by_repeat_and_by_seed_but_not_by_call():
    texts = [
        generate("Once", temperature=1.0, seed=seed, repeat=repeat).text for seed in (0, 1) for repeat in (0, 1, 1)
    ]
    assert texts[1] == texts[2]
    assert len(set(texts)) == 4


def test_with_a_limit_it_reads_what_is_left_of_a_request():  # case C14
    short = testing.FakeBackend(max_length=8)
    asked = [request.LoglikelihoodRequest(*pair) for pair in (("0123456789", "A"), ("23456789", "A"), ("", "12345678"))]
    cut, whole, full = short.loglikelihood(asked)
    assert (cut.num_truncated, whole.num_truncated, full.num_truncated) == (2, 0, 0)
    assert cut.logprob == whole.logprob == score("23456789", "A").logprob
    assert short.count_tokens(asked) == [10, 8, 8]
    prompts = [request.GenerateRequest(text, request.Sampling(max_gen_toks=3)) for text in ("0123456789", "56789", "")]
    cut, whole, _ = short.generate_until(prompts)
    assert (cut.text, cut.num_truncated, whole.num_truncated) == (whole.text, 5, 0)
    assert short.count_tokens(prompts) == [13, 8, 4]
    with pytest.raises(errors.RequestError, match="the continuation has 9 tokens, the model reads at most 8"):
        short.loglikelihood([request.LoglikelihoodRequest("b", "x" * 9)])


def test_an_empty_continuation_is_an_error_that_shows_the_context():
    with pytest.raises(errors.RequestError, match=r"context 'Q: one'.*the continuation is empty"):
        score("Q: one", "")

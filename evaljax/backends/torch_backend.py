"""The parity reference: any causal language model through transformers, batched, nothing shared between requests.

Text becomes token ids exactly as in the JAX backend, so a difference between the two is a difference between models.
"""

import functools
import importlib.util
import pathlib
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

from evaljax.backends import opening
from evaljax.core import config, errors, progress, request
from evaljax.engine import encode, stops, tokenizer
from evaljax.models import hub

LENGTH_KEYS = ("n_positions", "max_position_embeddings", "n_ctx")


class TorchBackend:
    """A transformers model in `spec.dtype`, `spec.batch_size` rows a step. Weights are read for the first question."""

    def __init__(
        self,
        *,
        spec: config.ModelSpec,
        source: str,
        words: tokenizer.Tokenizer,
        hf_config: Any,
        options: config.EngineOptions,
        report: progress.Progress = progress.silent,
    ):
        self.spec, self.source, self.tokenizer, self.hf_config = spec, source, words, hf_config
        self.options, self.report = options, report
        self.max_length = opening.max_length(spec, _own_length(hf_config, source))
        self.vocab_size: int = hf_config.get_text_config().vocab_size

    @classmethod
    def open(cls, spec: config.ModelSpec, engine: config.EngineOptions, progress: progress.Progress) -> "TorchBackend":
        """The backend for `spec.path` (a Hugging Face folder or hub id): reads configuration and tokenizer."""
        if importlib.util.find_spec("torch") is None:
            raise errors.ConfigError(
                f"model.backend={spec.backend!r} needs torch, which is not installed: "
                "pip install 'evaljax[torch]' (from a clone: pip install -e '.[torch]')."
            )
        import transformers

        source = opening.find_model(spec.path)
        if pathlib.Path(source).exists() and not (pathlib.Path(source) / "config.json").is_file():
            raise errors.CheckpointError(
                f"model.path={spec.path!r}: no config.json; the torch backend reads Hugging Face folders and hub ids."
                f"{hub.inner_models(pathlib.Path(source))}"
            )
        hub.check_available(source, revision=spec.revision)
        try:
            hf_config = transformers.AutoConfig.from_pretrained(source, revision=spec.revision)
        except (OSError, ValueError, KeyError) as error:
            raise errors.CheckpointError(f"model.path={spec.path!r}: cannot read its configuration: {error}") from error
        words = opening.read_tokenizer(spec, source)
        return cls(spec=spec, source=source, words=words, hf_config=hf_config, options=engine, report=progress)

    @functools.cached_property
    def model(self) -> Any:
        """The transformers model, read now if it was not before."""
        return _read_model(self.spec, self.source)

    def loglikelihood(self, requests: Sequence[request.LoglikelihoodRequest]) -> list[request.LoglikelihoodResponse]:
        """log P(continuation | context) of each request."""
        encoded = encode.encode_loglikelihood(self.tokenizer, requests, self.max_length)
        return opening.loglikelihood_responses(encoded, self._score(encoded, requests, "loglikelihood"))

    def loglikelihood_rolling(self, requests: Sequence[request.RollingRequest]) -> list[request.RollingResponse]:
        """log P(text) of each request, over its windows."""
        texts = encode.encode_rolling(self.tokenizer, requests, self.max_length)
        windows, owners = opening.flatten(texts, requests)
        return opening.rolling_responses(texts, self._score(windows, owners, "loglikelihood_rolling"))

    def generate_until(self, requests: Sequence[request.GenerateRequest]) -> list[request.GenerateResponse]:
        """One generated text for each request; sampled ones draw from their own seed, whatever the batch."""
        requests = opening.with_think_end(requests, self.spec)
        prompts = encode.encode_prompts(self.tokenizer, requests, self.max_length)
        opening.check_ids([prompt.tokens for prompt in prompts], requests, self.vocab_size)
        answers: dict[int, request.GenerateResponse] = {}
        for batch in _generation_batches(requests, [len(prompt.tokens) for prompt in prompts], self.spec.batch_size):
            answers.update(zip(batch, self._generate(batch, requests, prompts), strict=True))
            self.report("generate_until", len(answers), len(requests), "requests")
        return [answers[place] for place in range(len(requests))]

    def count_tokens(self, requests: Sequence[request.Countable]) -> list[int]:
        """Tokens that each request needs, nothing cut."""
        return encode.count_tokens(self.tokenizer, requests)

    def apply_chat_template(self, messages: Sequence[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """`messages` as one prompt, by the tokenizer's own template."""
        return self.tokenizer.apply_chat_template(messages, add_generation_prompt)

    def info(self) -> dict[str, Any]:
        """Facts for the manifest."""
        import torch

        return {
            "name": self.spec.path,
            "backend": "torch",
            "model_type": self.hf_config.model_type,
            "num_parameters": _num_parameters(self.__dict__.get("model"), self.hf_config),
            "dtype": self.spec.dtype,
            "precision": torch.get_float32_matmul_precision(),
            "batch_size": self.spec.batch_size,
            "max_length": self.max_length,
            "tokenizer": self.tokenizer.fingerprint,
            "adds_bos": self.tokenizer.adds_bos,
        }

    def _score(
        self, encoded: Sequence[encode.Encoded], owners: Sequence[request.Request], label: str
    ) -> list[tuple[float, bool]]:
        """(log-probability, greedy) of each sequence, the longest first; an error names the sequence's request."""
        opening.check_ids([sequence.tokens for sequence in encoded], owners, self.vocab_size)
        order = sorted(range(len(encoded)), key=lambda place: -len(encoded[place].tokens))
        results: dict[int, tuple[float, bool]] = {}
        for start in range(0, len(order), self.spec.batch_size):
            batch = order[start : start + self.spec.batch_size]
            results.update(zip(batch, _score_batch(self.model, [encoded[place] for place in batch]), strict=True))
            for place in batch:
                self._check_finite(results[place][0], owners[place])
            self.report(label, len(results), len(order), "sequences")
        return [results[place] for place in range(len(encoded))]

    def _check_finite(self, logprob: float, owner: request.Request) -> None:
        if not float("-inf") < logprob < float("inf") and not self.options.allow_nonfinite:
            raise errors.RequestError(
                f"{request.describe(owner)}: the log-probability is {logprob}; expected a finite number. Check the "
                "weights, or use model.dtype=float32; engine.allow_nonfinite=True goes on"
            )

    def _generate(
        self, batch: Sequence[int], requests: Sequence[request.GenerateRequest], prompts: Sequence[encode.Prompt]
    ) -> list[request.GenerateResponse]:
        """The texts of a batch of requests that share their sampling."""
        first = requests[batch[0]]
        eos_texts = (
            self.tokenizer.decode([token], skip_special_tokens=False) for token in self.tokenizer.eos_token_ids
        )
        until = tuple(dict.fromkeys([*first.sampling.until, *eos_texts]))
        seed = zlib.crc32(f"{first.sampling.seed} {first.repeat} {first.context}".encode())
        rows = [prompts[place].tokens.tolist() for place in batch]
        new_ids, broken = _generate_ids(self.model, rows, first.sampling, until, seed, self.tokenizer)
        if broken and not self.options.allow_nonfinite:
            raise errors.RequestError(
                f"{request.describe(requests[batch[min(broken)]])}: logits are not finite; check the weights, or use "
                "model.dtype=float32; engine.allow_nonfinite=True goes on"
            )
        answers = []
        for place, ids in zip(batch, new_ids, strict=True):
            end = stops.ending(ids, until, self.tokenizer, first.sampling.think_end)
            stopped = end.found or (bool(ids) and ids[-1] in self.tokenizer.eos_token_ids)
            answers.append(
                request.GenerateResponse(
                    text=end.text,
                    num_tokens=end.num_tokens,
                    finish_reason=request.FinishReason.STOP if stopped else request.FinishReason.LENGTH,
                    num_truncated=prompts[place].num_truncated,
                    unfinished_thought=end.unfinished_thought,
                )
            )
        return answers


def _own_length(hf_config: Any, source: str) -> int:
    """The longest input that the configuration allows."""
    text_config = hf_config.get_text_config()
    for key in LENGTH_KEYS:
        if isinstance(value := getattr(text_config, key, None), int):
            return value
    raise errors.CheckpointError(
        f"{source}: the configuration has none of {', '.join(LENGTH_KEYS)}; its length is unknown"
    )


def _read_model(spec: config.ModelSpec, source: str) -> Any:
    """The model in evaluation mode, on the GPU if torch has one; its own generation settings (penalties) dropped."""
    import torch
    import transformers

    bars = transformers.utils.logging.is_progress_bar_enabled()
    transformers.utils.logging.disable_progress_bar()
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            source, revision=spec.revision, dtype=getattr(torch, spec.dtype)
        )
    except Exception as error:  # transformers and safetensors raise anything from OSError to SafetensorError
        raise errors.CheckpointError(f"model.path={spec.path!r}: cannot load the model: {error}") from error
    finally:
        if bars:
            transformers.utils.logging.enable_progress_bar()
    model.generation_config = transformers.GenerationConfig()
    return model.eval().to("cuda" if torch.cuda.is_available() else "cpu")


def _num_parameters(model: Any, hf_config: Any) -> int:
    """Number of weights, counted on a model without storage where none is loaded."""
    if model is None:
        import torch
        import transformers

        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(hf_config)
    return sum(weight.numel() for weight in model.parameters())


def _score_batch(model: Any, encoded: Sequence[encode.Encoded]) -> list[tuple[float, bool]]:
    """(log-probability, greedy) of each sequence.

    Rows are padded on the right, where a causal model cannot see the padding: no mask, and positions count from 0.
    Logits are computed from the first column on that any row's targets need, and only targets become float32:

        tokens    c0 c1 c2 t0 t1      num_targets = 2
        inputs    c0 c1 c2 t0 .       the last input position, len(tokens) - 2, predicts t1
        predicts        t0 t1
    """
    import torch

    width = max(len(sequence.tokens) for sequence in encoded) - 1
    first = min(len(sequence.tokens) - 1 - sequence.num_targets for sequence in encoded)
    inputs = torch.zeros((len(encoded), width), dtype=torch.long)
    for row, sequence in enumerate(encoded):
        inputs[row, : len(sequence.tokens) - 1] = torch.from_numpy(sequence.tokens[:-1].astype("int64"))
    with torch.inference_mode():
        logits = model(
            input_ids=inputs.to(model.device),
            use_cache=False,
            logits_to_keep=torch.arange(first, width, device=model.device),
        ).logits
        results = []
        for row, sequence in enumerate(encoded):
            last = len(sequence.tokens) - 1 - first
            scores = logits[row, last - sequence.num_targets : last].float()
            targets = torch.from_numpy(sequence.tokens[-sequence.num_targets :].astype("int64")).to(model.device)
            # Not log_softmax: on CPUs its float32 sum over a large vocabulary is biased (8e-6 nats a token at 49,152).
            picked = scores.gather(1, targets[:, None])[:, 0] - torch.logsumexp(scores, dim=-1)
            results.append((float(picked.sum()), bool((scores.argmax(dim=-1) == targets).all())))
    return results


def _generation_batches(
    requests: Sequence[request.GenerateRequest], lengths: Sequence[int], batch_size: int
) -> Iterator[list[int]]:
    """Places of requests that may generate together: equal sampling, the longest prompts first; sampled ones alone."""
    groups: dict[request.Sampling, list[int]] = {}
    for place, asked in enumerate(requests):
        groups.setdefault(asked.sampling, []).append(place)
    for sampling, places in groups.items():
        size = 1 if sampling.temperature > 0 else batch_size
        places.sort(key=lambda place: -lengths[place])
        yield from (places[start : start + size] for start in range(0, len(places), size))


def _generate_ids(
    model: Any,
    prompts: Sequence[list[int]],
    sampling: request.Sampling,
    until: Sequence[str],
    seed: int,
    words: tokenizer.Tokenizer,
) -> tuple[list[list[int]], set[int]]:
    """New ids of each prompt, up to and with an end-of-sequence token (what follows a stop string is left on), and the
    rows whose logits were not finite.
    """
    import torch
    import transformers

    width = max(len(prompt) for prompt in prompts)
    padding = min(words.eos_token_ids, default=0)
    ids = torch.tensor([[padding] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])

    watches = [stops.Watch(until, words, sampling.think_end) for _ in prompts]

    def stopped(token_ids: Any, scores: Any, **unused: Any) -> Any:
        ends = [watch.read(row) for watch, row in zip(watches, token_ids[:, width:].tolist(), strict=True)]
        return torch.tensor([end is not None for end in ends], device=token_ids.device)

    broken: set[int] = set()

    def look(token_ids: Any, scores: Any) -> Any:
        # Not isfinite: top-k and top-p cut with -inf.
        broken.update((scores.isnan() | scores.isposinf()).any(dim=-1).nonzero()[:, 0].tolist())
        return scores

    with torch.inference_mode(), torch.random.fork_rng():
        torch.manual_seed(seed)  # of this block only
        out = model.generate(
            ids.to(model.device),
            attention_mask=mask.to(model.device),
            generation_config=_settings(sampling, words, padding),
            logits_processor=transformers.LogitsProcessorList([look]),
            stopping_criteria=transformers.StoppingCriteriaList([stopped]),
        )
    return [_through_eos(row, words.eos_token_ids) for row in out[:, width:].tolist()], broken


def _settings(sampling: request.Sampling, words: tokenizer.Tokenizer, padding: int) -> Any:
    """`sampling` as transformers says it; of the model's own settings (penalties, sampling) nothing is left."""
    import transformers

    drawn = {"temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": sampling.top_k}
    return transformers.GenerationConfig(
        max_new_tokens=sampling.max_gen_toks,
        min_new_tokens=sampling.min_tokens or None,
        do_sample=sampling.temperature > 0,
        eos_token_id=sorted(words.eos_token_ids) or None,
        pad_token_id=padding,
        **(drawn if sampling.temperature > 0 else {}),
    )


def _through_eos(ids: list[int], eos: frozenset[int]) -> list[int]:
    """`ids` up to and with the first end-of-sequence token; what follows is padding."""
    return ids[: next((place + 1 for place, token in enumerate(ids) if token in eos), len(ids))]

"""The JAX backend: text in, the engine's answers out. Weights are read for the first question, so a plan needs none."""

import contextlib
import dataclasses
import functools
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from evaljax.backends import opening
from evaljax.core import config, errors, progress, request
from evaljax.engine import encode, failure, generate, loglikelihood, tokenizer, trie
from evaljax.engine import plan as plans
from evaljax.models import checkpoint, hub
from evaljax.models import config as model_config
from evaljax.models import model as models

PLAN_KEYS = ("requests", "request_tokens", "unique_tokens", "forward_tokens")
OUT_OF_MEMORY = ("RESOURCE_EXHAUSTED", "Out of memory")  # how XLA says it, before a program runs and in one
# Seconds by stage, in the order in which they are reported.
STAGES = ("load", "tokenize", "plan", "compile", "run")


class JaxBackend:
    """A decoder of `evaljax.models` behind the engine; made by `open`.

    Attributes:
      source: the folder, file or hub id that `spec.path` means.
      tokenizer, config, max_length: what a plan needs; read by `open`.
    """

    def __init__(
        self,
        *,
        spec: config.ModelSpec,
        source: str,
        tokenizer: tokenizer.Tokenizer,
        model_config: model_config.ModelConfig,
        options: config.EngineOptions,
        report: progress.Progress = progress.silent,
    ):
        self.spec, self.source, self.tokenizer, self.config = spec, source, tokenizer, model_config
        self.options, self.report = options, report
        self.max_length = opening.max_length(spec, model_config.max_position)
        self._seconds = dict.fromkeys(STAGES, 0.0)
        self._executables = 0
        self._plans: dict[str, dict[str, Any]] = {}

    @classmethod
    def open(cls, spec: config.ModelSpec, engine: config.EngineOptions, progress: progress.Progress) -> "JaxBackend":
        """The backend for `spec.path` (see `ModelSpec`): reads configuration and tokenizer, no weights."""
        source = opening.find_model(spec.path)
        hub.check_available(source, revision=spec.revision)
        model_config = checkpoint.read_config(source, revision=spec.revision)  # first: it says what `source` is
        return cls(
            spec=spec,
            source=source,
            tokenizer=opening.read_tokenizer(spec, source),
            model_config=model_config,
            options=engine,
            report=progress,
        )

    @functools.cached_property
    def model(self) -> models.Model:
        """The model, read now if it was not before."""
        with self._timed("load"):
            return checkpoint.read_model(self.source, dtype=self.spec.dtype, revision=self.spec.revision)

    @property
    def figures(self) -> dict[str, Any]:
        """What was done so far: seconds by stage, executables, and the plan's figures by kind of request."""
        return {"seconds": dict(self._seconds), "executables": self._executables, "plans": dict(self._plans)}

    def loglikelihood(self, requests: Sequence[request.LoglikelihoodRequest]) -> list[request.LoglikelihoodResponse]:
        """log P(continuation | context) of each request."""
        with self._timed("tokenize"):
            encoded = encode.encode_loglikelihood(self.tokenizer, requests, self.max_length)
        return opening.loglikelihood_responses(encoded, self._score("loglikelihood", encoded, requests, len(requests)))

    def loglikelihood_rolling(self, requests: Sequence[request.RollingRequest]) -> list[request.RollingResponse]:
        """log P(text) of each request, over its windows."""
        with self._timed("tokenize"):
            texts = encode.encode_rolling(self.tokenizer, requests, self.max_length)
        windows, owners = opening.flatten(texts, requests)
        return opening.rolling_responses(texts, self._score("loglikelihood_rolling", windows, owners, len(requests)))

    def generate_until(self, requests: Sequence[request.GenerateRequest]) -> list[request.GenerateResponse]:
        """One generated text for each request."""
        requests = opening.with_think_end(requests, self.spec)
        prompts = self._prompts(requests)
        if not requests:
            return []
        with self._naming(requests):
            texts, figures = generate.generate(
                self.model,
                [prompt.tokens for prompt in prompts],
                [asked.sampling for asked in requests],
                [asked.repeat for asked in requests],
                tokenizer=self.tokenizer,
                progress=self.report,
                **self._policy,
            )
        self._note("generate_until", figures)
        return [
            dataclasses.replace(text, num_truncated=prompt.num_truncated)
            for text, prompt in zip(texts, prompts, strict=True)
        ]

    def count_tokens(self, requests: Sequence[request.Countable]) -> list[int]:
        """Tokens that each request needs, nothing cut."""
        return encode.count_tokens(self.tokenizer, requests)

    def apply_chat_template(self, messages: Sequence[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """`messages` as one prompt, by the tokenizer's own template."""
        return self.tokenizer.apply_chat_template(messages, add_generation_prompt)

    def info(self) -> dict[str, Any]:
        """Facts for the manifest."""
        return {
            "name": self.spec.path,
            "backend": "jax",
            "num_parameters": self.config.num_parameters,
            "dtype": self.spec.dtype,
            "precision": self.spec.precision,
            "max_length": self.max_length,
            "tokenizer": self.tokenizer.fingerprint,
            "adds_bos": self.tokenizer.adds_bos,
        }

    def plan(
        self,
        loglikelihood_requests: Sequence[request.LoglikelihoodRequest],
        rolling_requests: Sequence[request.RollingRequest],
        generate_requests: Sequence[request.GenerateRequest],
    ) -> dict[str, Any]:
        """What answering would compute, without weights: totals of what is scored, each kind's figures in `kinds`.

        How many tokens generation forwards is not known before it is done: it gives the tokens of the prompts, those
        that must be forwarded (`unique_tokens`), and the most that can be generated.
        """
        encoded = encode.encode_loglikelihood(self.tokenizer, loglikelihood_requests, self.max_length)
        texts = encode.encode_rolling(self.tokenizer, rolling_requests, self.max_length)
        windows, _ = opening.flatten(texts, rolling_requests)
        kinds = {"loglikelihood": encoded, "loglikelihood_rolling": windows}
        found = {kind: self._plan(sequences).summary() for kind, sequences in kinds.items() if sequences}
        if windows:
            found["loglikelihood_rolling"]["requests"] = len(rolling_requests)
        result: dict[str, Any] = {key: sum(figures[key] for figures in found.values()) for key in PLAN_KEYS}
        shapes = [shape for figures in found.values() for shape in figures["shapes"]]
        result["shapes"] = [shape for place, shape in enumerate(shapes) if shape not in shapes[:place]]
        result["buckets"] = {kind: figures["buckets"] for kind, figures in found.items()}
        if generate_requests:
            found["generate_until"] = _generation_plan(generate_requests, self._prompts(generate_requests))
            result["requests"] += len(generate_requests)
        return {**result, "kinds": found}

    @property
    def _policy(self) -> Any:
        """What every engine call is told."""
        return {"options": self.options, "max_length": self.max_length, "precision": self.spec.precision}

    def _plan(self, encoded: Sequence[encode.Encoded]) -> plans.Plan:
        """The plan that scoring `encoded` on this machine follows."""
        platform = jax.devices()[0].platform
        return plans.plan_loglikelihood(encoded, options=self.options, max_length=self.max_length, platform=platform)

    def _score(
        self, kind: str, encoded: Sequence[encode.Encoded], owners: Sequence[request.Request], num_requests: int
    ) -> Sequence[tuple[float, bool]]:
        """(log-probability, greedy) of each sequence; an error names the sequence's request."""
        opening.check_ids([sequence.tokens for sequence in encoded], owners, self.config.vocab_size)
        if not encoded:
            return []
        with self._naming(owners):
            answers, figures = loglikelihood.score(self.model, encoded, progress=self.report, **self._policy)
        self._note(kind, {**figures, "requests": num_requests})
        return answers

    def _prompts(self, requests: Sequence[request.GenerateRequest]) -> list[encode.Prompt]:
        """The prompts of the requests, cut so that what may be generated fits too."""
        with self._timed("tokenize"):
            prompts = encode.encode_prompts(self.tokenizer, requests, self.max_length)
        opening.check_ids([prompt.tokens for prompt in prompts], requests, self.config.vocab_size)
        return prompts

    def _note(self, kind: str, figures: dict[str, Any]) -> None:
        """Adds the figures of one engine call to the run's."""
        self._seconds["plan"] += figures.get("plan_seconds", 0.0)
        self._seconds["compile"] += figures["compile_seconds"]
        run_keys = ("run_seconds", "prefill_seconds", "decode_seconds")
        self._seconds["run"] += sum(figures.get(key, 0.0) for key in run_keys)
        self._executables += figures["executables"]
        before = self._plans.get(kind, {})
        totals = {key: before.get(key, 0) + figures[key] for key in PLAN_KEYS if key in figures}
        self._plans[kind] = {**figures, **totals}

    @contextlib.contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        """Adds the seconds of the block to `stage`."""
        start = time.perf_counter()
        yield
        self._seconds[stage] += time.perf_counter() - start

    @contextlib.contextmanager
    def _naming(self, owners: Sequence[request.Request]) -> Iterator[None]:
        """Puts the text of the request into the engine's error, which knows only the sequence's place.

        A device that is full is an error of the configuration: it names what takes the room.
        """
        try:
            yield
        except jax.errors.JaxRuntimeError as error:
            if not any(sign in str(error) for sign in OUT_OF_MEMORY):
                raise
            raise errors.ConfigError(
                f"{self.spec.path} ({self.config.num_parameters:,} parameters, {self.spec.dtype}): no room on the "
                f"device ({error}). Lower engine.num_rows, engine.chunk_length, engine.num_slots or "
                "model.max_length, or take model.dtype=bfloat16"
            ) from error
        except failure.PlacedError as error:
            raise errors.RequestError(f"{request.describe(owners[error.index])}: {error.problem}") from error


def _generation_plan(requests: Sequence[request.GenerateRequest], prompts: Sequence[encode.Prompt]) -> dict[str, Any]:
    """Figures of generation that are known before: prompts, what they share, the most that can follow."""
    tokens: list[np.ndarray] = [prompt.tokens for prompt in prompts]
    forest, _ = trie.build(tokens)
    return {
        "requests": len(requests),
        "request_tokens": sum(len(prompt) for prompt in tokens),
        "unique_tokens": forest.unique_tokens,
        "max_generated_tokens": sum(asked.sampling.max_gen_toks for asked in requests),
        "longest": max(
            len(prompt) + asked.sampling.max_gen_toks for prompt, asked in zip(tokens, requests, strict=True)
        ),
    }

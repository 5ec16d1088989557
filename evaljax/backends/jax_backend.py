"""The JAX backend: text in, the engine's answers out. Weights are read for the first question, so a plan needs none."""

import contextlib
import dataclasses
import functools
import pathlib
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from evaljax.backends import kept, opening
from evaljax.core import config, errors, progress, request
from evaljax.engine import (
    agree,
    encode,
    executor,
    failure,
    generate,
    hooks,
    journal,
    loglikelihood,
    memory,
    mesh,
    shapes,
    tokenizer,
    trie,
)
from evaljax.engine import plan as plans
from evaljax.models import checkpoint, fingerprint, hub, sharding
from evaljax.models import config as model_config
from evaljax.models import model as models

PLAN_KEYS = ("requests", "request_tokens", "unique_tokens", "forward_tokens")
CHARACTERS_PER_TOKEN = 4  # of a guess that a program is compiled ahead for
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
        self._kept: kept.Kept | None = None
        self._seconds = dict.fromkeys(STAGES, 0.0)
        self._num_compiled_before = len(executor.COMPILED)
        self._plans: dict[str, dict[str, Any]] = {}
        self._self_check: dict[str, Any] = {}

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
    def shardings(self) -> sharding.Shardings:
        """Where each parameter lies: on one device, or on a mesh if there are several.

        One process's CPU is one device, unless `engine.data` or `engine.model` ask for those that are simulated.
        """
        devices = jax.devices()
        on_host = devices[0].platform == "cpu" and jax.process_count() == 1
        if len(devices) == 1 or (on_host and not (self.options.data or self.options.model)):
            one = jax.sharding.SingleDeviceSharding(devices[0])
            return dict.fromkeys(model_config.parameter_shapes(self.config), one)
        made = mesh.make(self.options, self.config, self.spec.dtype)
        return sharding.parameter_shardings(self.config, made)

    @functools.cached_property
    def outline(self) -> models.Model:
        """The model without weights."""
        return models.outline(self.config, self.spec.dtype, self.shardings)

    @functools.cached_property
    def model(self) -> models.Model:
        """The model, read now if it was not before, straight to where it lies."""
        with self._timed("load"):
            read = checkpoint.read_model(self._place, dtype=self.spec.dtype, shardings=self.shardings)
        if self._kept is not None:
            self._kept.check_files()
        return read

    @functools.cached_property
    def _place(self) -> str:
        """The folder or file that the weights are in, fetched from the hub first if they are there."""
        if pathlib.Path(self.source).exists():
            return self.source
        return str(hub.folder(self.source, revision=self.spec.revision, weights=True))

    @property
    def figures(self) -> dict[str, Any]:
        """What was done so far: seconds by stage, programs compiled, the self-check, and figures by kind of request."""
        compiled = executor.COMPILED[self._num_compiled_before :]
        return {
            "seconds": dict(self._seconds),
            "executables": len(compiled),
            "compiled": [{"program": name, "seconds": round(seconds, 3)} for name, seconds in compiled],
            "self_check": self._self_check,
            "answers_kept": self._kept.num_found if self._kept else 0,
            "plans": dict(self._plans),
        }

    @property
    def notes(self) -> list[str]:
        """What should be known of this run beside its scores."""
        return self._kept.notes if self._kept else []

    def keep_answers(self, folder: pathlib.Path) -> None:
        """Keeps answers in `folder` as they come, and looks there first; until `close`."""
        self._kept = kept.Kept(folder)

    def close(self) -> None:
        """Lets go of the folder of `keep_answers`."""
        if self._kept:
            self._kept.close()

    def loglikelihood(self, requests: Sequence[request.LoglikelihoodRequest]) -> list[request.LoglikelihoodResponse]:
        """log P(continuation | context) of each request."""
        self._compile_ahead([(asked.context, asked.continuation) for asked in requests])
        with self._timed("tokenize"):
            encoded = encode.encode_loglikelihood(self.tokenizer, requests, self.max_length)
        return opening.loglikelihood_responses(encoded, self._score("loglikelihood", encoded, requests, len(requests)))

    def loglikelihood_rolling(self, requests: Sequence[request.RollingRequest]) -> list[request.RollingResponse]:
        """log P(text) of each request, over its windows."""
        self._compile_ahead([("", asked.text) for asked in requests])
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
        ends, lax = self.tokenizer.eos_token_ids, self.options.allow_nonfinite
        keys = [
            journal.generation_key(prompt.tokens, asked.sampling, asked.repeat, ends, allow_nonfinite=lax)
            for prompt, asked in zip(prompts, requests, strict=True)
        ]
        texts = [None if value is None else journal.generation_answer(value) for value in self._find(keys)]
        places = [place for place, text in enumerate(texts) if text is None]
        self._note("generate_until", {"requests": len(requests) - len(places)})
        if places:
            new = self._generate([requests[i] for i in places], [prompts[i] for i in places], [keys[i] for i in places])
            for place, text in zip(places, new, strict=True):
                texts[place] = text
        return [
            dataclasses.replace(text, num_truncated=prompt.num_truncated)
            for text, prompt in zip(texts, prompts, strict=True)
            if text is not None
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
        result["buckets"] = {kind: figures["steps"] for kind, figures in found.items()}
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
        return plans.plan_loglikelihood(
            encoded, options=self.options, max_length=self.max_length, machine=self._machine
        )

    @functools.cached_property
    def _machine(self) -> shapes.Machine:
        return memory.machine(self.outline, mesh.layout_of(self.outline.params), self.options)

    def _compile_ahead(self, texts: Sequence[tuple[str, str]]) -> None:
        """Begins to compile what (context, continuation) pairs will probably need, while they are tokenized.

        The tokens of the longest are counted, those of the others guessed. A guess that is wrong costs one program.
        """
        if not texts or "model" in vars(self):
            return  # a later call: most likely it is compiled
        if self._kept is not None and self._kept.knows(self.source, self.spec.dtype, self.config):
            return  # it is known only later whether anything must be computed
        guessed = (sum(map(len, {context for context, _ in texts})) + sum(len(text) for _, text in texts)) // (
            CHARACTERS_PER_TOKEN
        )
        longest = max((context + text for context, text in texts), key=len)
        height = min(self.max_length, len(self.tokenizer.encode_arrays([longest])[0]))
        shape = shapes.choose_shape(
            guessed, height, options=self.options, max_length=self.max_length, machine=self._machine
        )
        executor.prepare(self.outline, shape, mesh.layout_of(self.outline.params), precision=self.spec.precision)

    def _score(
        self, kind: str, encoded: Sequence[encode.Encoded], owners: Sequence[request.Request], num_requests: int
    ) -> Sequence[tuple[float, bool]]:
        """(log-probability, greedy) of each sequence; an error names the sequence's request."""
        opening.check_ids([sequence.tokens for sequence in encoded], owners, self.config.vocab_size)
        if not encoded:
            return []
        keys = [journal.loglikelihood_key(sequence.tokens, sequence.num_targets) for sequence in encoded]
        answers = [kept.answer(value, self.options) for value in self._find(keys)]
        missing = np.array([answer is None for answer in answers])
        if not missing.any():
            self._note(kind, {"requests": num_requests})
            return [answer for answer in answers if answer is not None]
        places = np.flatnonzero(self._kept.planned(kind, keys, missing) if self._kept else missing).tolist()

        def found(some: Sequence[int], values: Sequence[loglikelihood.Answer]) -> None:
            self._keep(
                [(keys[places[i]], journal.loglikelihood_value(*value)) for i, value in zip(some, values, strict=True)]
            )

        with self._naming([owners[place] for place in places]):
            new, figures = loglikelihood.score(
                self.model,
                [encoded[place] for place in places],
                check=not self._self_check,
                known=[answers[place] for place in places],
                hooks=hooks.Hooks(found=found, agree=agree.agree, progress=self.report),
                **self._policy,
            )
        for place, answer in zip(places, new, strict=True):
            answers[place] = answer
        self._note(kind, {**figures, "requests": num_requests})
        return [answer for answer in answers if answer is not None]

    def _find(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """What is kept under each key."""
        if self._kept is None or not self._kept.is_open:
            return [None] * len(keys)
        if not self._kept.scope:
            found = self._kept.find_parameters(
                self._place, self.spec.dtype, self.config, lambda: fingerprint.parameters(self.model)
            )
            self._kept.scope = kept.scope(
                found, self.spec, self.options, self.tokenizer, max_length=self.max_length, place=self.outline.params
            )
        return self._kept.find(keys)

    def _keep(self, items: Sequence[tuple[bytes, bytes]]) -> None:
        if self._kept is not None:
            self._kept.keep(items)

    def _generate(
        self, requests: Sequence[request.GenerateRequest], prompts: Sequence[encode.Prompt], keys: Sequence[bytes]
    ) -> Sequence[request.GenerateResponse]:
        """The texts of requests that nobody has answered; kept as they end."""
        asked = [prompt.tokens for prompt in prompts], [one.sampling for one in requests]
        generate.prepare(self.outline, *asked, tokenizer=self.tokenizer, **self._policy)

        def found(some: Sequence[int], texts: Sequence[request.GenerateResponse]) -> None:
            self._keep([(keys[i], journal.generation_value(text)) for i, text in zip(some, texts, strict=True)])

        with self._naming(requests):
            texts, figures = generate.generate(
                self.model,
                *asked,
                [one.repeat for one in requests],
                tokenizer=self.tokenizer,
                hooks=hooks.Hooks(found=found, agree=agree.agree, progress=self.report),
                **self._policy,
            )
        self._note("generate_until", figures)
        return texts

    def _prompts(self, requests: Sequence[request.GenerateRequest]) -> list[encode.Prompt]:
        """The prompts of the requests, cut so that what may be generated fits too."""
        with self._timed("tokenize"):
            prompts = encode.encode_prompts(self.tokenizer, requests, self.max_length)
        opening.check_ids([prompt.tokens for prompt in prompts], requests, self.config.vocab_size)
        return prompts

    def _note(self, kind: str, figures: dict[str, Any]) -> None:
        """Adds the figures of one engine call to the run's."""
        self._seconds["plan"] += figures.get("plan_seconds", 0.0)
        self._seconds["compile"] += figures.get("compile_seconds", 0.0)
        run_keys = ("run_seconds", "prefill_seconds", "decode_seconds")
        self._seconds["run"] += sum(figures.get(key, 0.0) for key in run_keys)
        self._self_check = self._self_check or figures.pop("self_check", {})
        before = self._plans.get(kind, {})
        totals = {key: before.get(key, 0) + figures[key] for key in PLAN_KEYS if key in figures}
        self._plans[kind] = {**before, **figures, **totals}

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
            if not executor.is_out_of_memory(error):
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

"""Generation with continuous batching: prompts in trie order into B slots, refilled as soon as a slot's text has ended.

    queue    prompts in trie order, the costliest branch first (`schedule.order`)
    path     cache of one row; each prompt forwards only what it does not share with the prompt before it
    slots    the path is copied into a free slot; all slots then decode together, some steps at a time (`decode.decode`)
    host     between two stretches of steps: stop strings, finished texts, refills

Texts depend on their request alone: not on the slot, the number of slots, the order, or who else was there.
"""

import dataclasses
import itertools
import time
from collections.abc import Collection, Sequence
from typing import Any, Protocol, cast

import jax
import jax.numpy as jnp
import numpy as np

from evaljax.core import config, progress, request
from evaljax.engine import decode, failure, numerics, sampling, schedule, stops, trie
from evaljax.models import decoder, model

# On a CPU a look of the host costs little beside a step; what a stopped slot wastes is half of the steps.
_DECODE_STEPS = {"cpu": 8}
_DECODE_STEPS_ACCELERATOR = 32


class Tokenizer(stops.Detokenizer, Protocol):
    """What generation needs of a tokenizer; `engine.tokenizer.Tokenizer` is one."""

    @property
    def eos_token_ids(self) -> Collection[int]:
        """The tokens that end a sequence."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Job:
    """One generation to do, and the place of its request, which errors name."""

    index: int
    prompt: np.ndarray
    sampling: request.Sampling
    repeat: int
    until: tuple[str, ...]


@dataclasses.dataclass
class _Occupant:
    """What a slot is generating."""

    job: int
    watch: stops.Watch
    token_ids: list[int] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class _Figures:
    """What the run did; becomes the figures dictionary."""

    prefill_tokens: int = 0
    forward_tokens: int = 0
    decode_steps: int = 0
    generated_tokens: int = 0
    nonfinite: int = 0
    executables: int = 0
    compile_seconds: float = 0.0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0

    def call(self, program: Any, *args: Any, **static: Any) -> Any:
        """`program(*args, **static)`; a call that had to compile first counts as an executable."""
        before = program._cache_size()
        start = time.perf_counter()
        result = program(*args, **static)
        if program._cache_size() > before:
            self.executables += 1
            self.compile_seconds += time.perf_counter() - start
        return result


def generate(  # noqa: PLR0913 (the engine's front door: what to generate, with what, how)
    model: model.Model,
    prompts: Sequence[np.ndarray],
    samplings: Sequence[request.Sampling],
    repeats: Sequence[int],
    *,
    tokenizer: Tokenizer,
    options: config.EngineOptions,
    max_length: int,
    precision: str,
    progress: progress.Progress = progress.silent,
) -> tuple[list[request.GenerateResponse], dict[str, Any]]:
    """What follows each prompt (token ids), in request order, and figures of the run.

    A prompt together with its `max_gen_toks` must fit into `max_length`: truncation, and the note of it in the
    response, is the caller's (`encode`).
    Requests that ask the same are answered once. `progress` hears of prompts' tokens forwarded, and of generated tokens
    out of the most that there can be: a text that has ended counts as if it had used all of its own.
    """
    _check_prompts(prompts, samplings, max_length)
    places, jobs = _jobs(prompts, samplings, repeats, tokenizer, once=options.share_prefixes)
    if not jobs:
        return [], {"requests": 0, "executables": 0, "compile_seconds": 0.0}
    with numerics.matmul_precision(precision):
        run = _Run(model, jobs, tokenizer, options, max_length, progress=progress)
        run.fill()
        while run.occupants:
            run.advance()
            run.fill()
    return [run.results[place] for place in places], {"requests": len(prompts), **run.report()}


class _Run:
    """One call of `generate`: the caches, what each slot is doing, what is left in the queue."""

    def __init__(
        self,
        model: model.Model,
        jobs: list[_Job],
        tokenizer: Tokenizer,
        options: config.EngineOptions,
        max_length: int,
        *,
        progress: progress.Progress,
    ):
        device = jax.devices()[0]
        self.model, self.jobs, self.tokenizer, self.options = model, jobs, tokenizer, options
        self.shape = _shape(model, jobs, options, max_length, device)
        costs = [job.prompt.size + job.sampling.max_gen_toks for job in jobs]
        queue = schedule.order([job.prompt for job in jobs], costs, share=options.share_prefixes)
        self.progress, self.limits = progress, [job.sampling.max_gen_toks for job in jobs]
        self.prompt_tokens = _to_prefill([jobs[place].prompt[:-1] for place in queue], share=options.share_prefixes)
        self.queue = queue[::-1]  # the next one last
        self.num_steps = options.decode_steps or _DECODE_STEPS.get(device.platform, _DECODE_STEPS_ACCELERATOR)
        self.chunk_lengths = schedule.chunk_lengths(device.platform, options.chunk_length)
        self.mode = sampling.mode([job.sampling for job in jobs])
        dtype = jnp.dtype(model.dtype)
        self.path_ids = np.zeros(0, np.int32)  # the tokens whose keys and values the path holds
        self.path = decode.blank(model.config, 1, self.shape.length, dtype)
        self.cache = decode.blank(model.config, self.shape.num_slots, self.shape.length, dtype)
        self.slots, self.policies = _vacant(self.shape.num_slots, sorted(tokenizer.eos_token_ids))
        self.occupants: dict[int, _Occupant] = {}
        self.results: dict[int, request.GenerateResponse] = {}
        self.figures = _Figures()

    def fill(self) -> None:
        """Puts the next prompts into the free slots."""
        start, compiled = time.perf_counter(), self.figures.compile_seconds
        for slot in range(self.shape.num_slots):
            if slot in self.occupants or not self.queue:
                continue
            job = self.queue.pop()
            self._prefill(self.jobs[job].prompt[:-1])
            self.cache = self.figures.call(decode.insert, self.path, self.cache, jax.device_put(np.int32(slot)))
            self._occupy(slot, job)
        jax.block_until_ready(self.cache)  # so that its seconds are its own
        self.figures.prefill_seconds += time.perf_counter() - start - (self.figures.compile_seconds - compiled)

    def advance(self) -> None:
        """Decodes some steps in every slot, and takes out the texts that have ended."""
        start, compiled = time.perf_counter(), self.figures.compile_seconds
        busy = len(self.occupants)
        enough = busy - max(1, self.shape.num_slots // 8) if self.queue else 0
        before = self.slots.steps
        self.cache, slots, out = self.figures.call(
            decode.decode,
            self.model.graphdef,
            self.model.params,
            self.cache,
            *jax.device_put((self.slots, self.policies, np.int32(max(0, enough)))),
            mode=self.mode,
            num_steps=self.num_steps,
        )
        slots, out = jax.device_get((slots, out))
        self.slots = jax.tree.map(np.array, slots)  # own, writable copies
        new = self.slots.steps - before
        self.figures.decode_steps += int(new.max())
        self.figures.forward_tokens += int(new.max()) * self.shape.num_slots
        for slot, occupant in list(self.occupants.items()):
            occupant.token_ids.extend(out[slot, : new[slot]].tolist())
            self._finish(slot, occupant)
        self.figures.decode_seconds += time.perf_counter() - start - (self.figures.compile_seconds - compiled)
        going = sum(len(occupant.token_ids) for occupant in self.occupants.values())
        self.progress("generate", going + sum(self.limits[job] for job in self.results), sum(self.limits), "tokens")

    def report(self) -> dict[str, Any]:
        """The figures of the run."""
        seconds = self.figures.prefill_seconds + self.figures.decode_seconds
        return {
            "generations": len(self.jobs),
            "prompt_tokens": sum(job.prompt.size for job in self.jobs),
            "num_slots": self.shape.num_slots,
            "cache_length": self.shape.length,
            "cache_bytes": self.shape.cache_bytes,
            **dataclasses.asdict(self.figures),
            "generated_tokens_per_second": self.figures.generated_tokens / seconds if seconds else 0.0,
        }

    def _prefill(self, token_ids: np.ndarray) -> None:
        """Brings the path to `token_ids`, forwarding what comes after the tokens that it has in common with them."""
        common = trie.common_prefix(self.path_ids, token_ids) if self.options.share_prefixes else 0
        for begin, end, length in schedule.chunks(common, token_ids.size, self.chunk_lengths):
            tokens = np.zeros((1, length), np.int32)
            tokens[0, : end - begin] = token_ids[begin:end]
            self.path = self.figures.call(
                decode.extend,
                self.model.graphdef,
                self.model.params,
                self.path,
                *jax.device_put((tokens, np.int32(begin), np.int32(end - begin))),
            )
            self.figures.prefill_tokens += end - begin
            self.figures.forward_tokens += length
            self.progress("prefill", self.figures.prefill_tokens, self.prompt_tokens, "tokens")
        self.path_ids = token_ids

    def _occupy(self, slot: int, job: int) -> None:
        """Makes `slot` generate `job`, whose prompt but for the last token is in its cache."""
        asked = self.jobs[job]
        self.slots.token[slot] = asked.prompt[-1]
        self.slots.length[slot] = asked.prompt.size - 1
        self.slots.steps[slot] = 0
        self.slots.active[slot] = True
        self.slots.nonfinite[slot] = False
        self.policies.temperature[slot] = asked.sampling.temperature
        self.policies.top_k[slot] = min(asked.sampling.top_k, self.model.config.vocab_size)
        self.policies.top_p[slot] = asked.sampling.top_p
        self.policies.limit[slot] = asked.sampling.max_gen_toks
        self.policies.keys[slot] = sampling.request_key(asked.prompt, asked.sampling.seed, asked.repeat)
        watch = stops.Watch(asked.until, self.tokenizer, asked.sampling.think_end)
        self.occupants[slot] = _Occupant(job=job, watch=watch)

    def _finish(self, slot: int, occupant: _Occupant) -> None:
        """Takes the text out of `slot` if it has ended."""
        job, ids = self.jobs[occupant.job], occupant.token_ids
        if self.slots.nonfinite[slot] and not self.options.allow_nonfinite:
            what = f"logits that are not finite within {len(ids)} tokens after a prompt of {job.prompt.size}"
            raise failure.nonfinite(job.index, what)
        end = occupant.watch.read(ids)
        if end is None:
            if self.slots.active[slot]:
                return
            end = occupant.watch.unstopped(ids)
        stopped = end.found or ids[-1] in self.tokenizer.eos_token_ids
        reason = request.FinishReason.STOP if stopped else request.FinishReason.LENGTH
        self.results[occupant.job] = request.GenerateResponse(
            text=end.text,
            num_tokens=end.num_tokens,
            finish_reason=reason,
            unfinished_thought=end.unfinished_thought,
        )
        self.figures.generated_tokens += end.num_tokens
        self.figures.nonfinite += int(self.slots.nonfinite[slot])
        self.slots.active[slot] = False
        del self.occupants[slot]


def _check_prompts(prompts: Sequence[np.ndarray], samplings: Sequence[request.Sampling], max_length: int) -> None:
    """Raises PlacedError for a prompt without a token, one that does not fit, or nothing to generate."""
    for index, (prompt, sampling_) in enumerate(zip(prompts, samplings, strict=True)):
        if not prompt.size:
            raise failure.PlacedError(index, "prompt of 0 tokens; expected at least 1")
        if sampling_.max_gen_toks < 1:
            raise failure.PlacedError(index, f"max_gen_toks is {sampling_.max_gen_toks}; expected at least 1")
        if prompt.size + sampling_.max_gen_toks > max_length:
            raise failure.PlacedError(
                index,
                f"prompt of {prompt.size} tokens and max_gen_toks {sampling_.max_gen_toks}; "
                f"expected at most max_length {max_length} together",
            )


def _jobs(
    prompts: Sequence[np.ndarray],
    samplings: Sequence[request.Sampling],
    repeats: Sequence[int],
    tokenizer: Tokenizer,
    *,
    once: bool,
) -> tuple[list[int], list[_Job]]:
    """(which job answers each request, the jobs): one job for all requests that must get the same text."""
    eos_texts = [tokenizer.decode([token], skip_special_tokens=False) for token in tokenizer.eos_token_ids]
    places: list[int] = []
    jobs: list[_Job] = []
    known: dict[Any, int] = {}
    for index, (prompt, sampling_, repeat) in enumerate(zip(prompts, samplings, repeats, strict=True)):
        ids = np.ascontiguousarray(prompt, np.int32)
        key = (ids.tobytes(), sampling_, repeat if sampling_.temperature > 0 else 0) if once else index
        if key not in known:
            known[key] = len(jobs)
            until = (*sampling_.until, *(text for text in eos_texts if text and text not in sampling_.until))
            jobs.append(_Job(index=index, prompt=ids, sampling=sampling_, repeat=repeat, until=until))
        places.append(known[key])
    return places, jobs


def _to_prefill(prompts: Sequence[np.ndarray], *, share: bool) -> int:
    """How many tokens of the prompts, in this order, must be forwarded."""
    total = sum(prompt.size for prompt in prompts)
    if share:
        total -= sum(trie.common_prefix(before, prompt) for before, prompt in itertools.pairwise(prompts))
    return total


def _shape(
    model: model.Model, jobs: list[_Job], options: config.EngineOptions, max_length: int, device: jax.Device
) -> schedule.Shape:
    """The static shape of the decode step for these jobs on this device."""
    cache = jax.eval_shape(lambda: decoder.init_cache(model.config, 1, 1, jnp.dtype(model.dtype)))
    bytes_per_token = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(cache))
    memory = device.memory_stats()
    return schedule.shape(
        [job.prompt.size + job.sampling.max_gen_toks for job in jobs],
        max_length,
        bytes_per_token,
        num_slots=options.num_slots,
        platform=device.platform,
        free_bytes=memory["bytes_limit"] - memory["bytes_in_use"] if memory else None,
    )


def _vacant(num_slots: int, eos_ids: list[int]) -> tuple[decode.Slots, decode.Policies]:
    """Slots that do nothing. Host arrays: `_Run` fills them in, each call of `decode` carries them over."""

    def zeros(dtype: Any, *shape: int) -> Any:
        return np.zeros((num_slots, *shape), dtype)

    slots = decode.Slots(
        token=zeros(np.int32), length=zeros(np.int32), steps=zeros(np.int32), active=zeros(bool), nonfinite=zeros(bool)
    )
    policies = decode.Policies(
        temperature=zeros(np.float32),
        top_k=zeros(np.int32),
        top_p=zeros(np.float32) + np.float32(request.NUCLEUS_OFF),
        limit=zeros(np.int32),
        keys=zeros(np.uint32, 2),
        eos_ids=cast(Any, np.array(eos_ids or [-1], np.int32)),
    )
    return slots, policies

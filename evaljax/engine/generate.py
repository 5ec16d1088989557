"""Generation with continuous batching: prompts in trie order into B slots, refilled as soon as slots' texts have ended.

    groups   prompts that have a long header in common, one group after another (`schedule.groups`)
    path     cache of one row; the prompts forward only what they do not share with those before them (`prefill`)
    slots    what comes after the header is copied into a free slot; the header stays on the path, where all slots read
             it: their stem. All slots decode together, some steps at a time (`decode.decode`)
    host     between two stretches of steps: stop strings, finished texts, refills

Texts depend on their request alone: not on the slot, the number of slots, the order, or who else was there.
"""

import dataclasses
import hashlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from evaljax.core import config, progress, request
from evaljax.engine import decode, executor, failure, jobs, memory, mesh, prefill, sampling, schedule, stops
from evaljax.engine import hooks as listening
from evaljax.models import decoder
from evaljax.models import model as models

# On a CPU a look of the host costs little beside a step; what a stopped slot wastes is half of the steps.
DECODE_STEPS = {"cpu": 8}
DECODE_STEPS_ACCELERATOR = 32


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Work:
    """What is to be done, in which shapes: the same in every process. Groups hold indices of `todo`."""

    todo: list[jobs.Job]
    groups: list[schedule.Group]
    shape: schedule.Shape
    style: decode.Style
    eos_ids: list[int]
    alone: bool  # whether a chunk holds one prompt only
    grain: int  # in what units prompts share what the path holds; 0: they do not

    @property
    def digest(self) -> str:
        """A hash of it."""
        asked = [(job.sampling, job.repeat) for job in self.todo]
        digest = hashlib.sha256(repr((asked, self.groups, self.shape, self.style, self.eos_ids)).encode())
        for job in self.todo:
            digest.update(job.prompt.tobytes())
        return digest.hexdigest()

    def smaller(self, done: set[int]) -> "_Work | None":
        """What is left when those of `done` are, in half as many slots; None if there is but one."""
        shape = self.shape.smaller()
        left = [[i for i in group.members if i not in done] for group in self.groups]
        groups = [
            dataclasses.replace(group, members=tuple(members))
            for group, members in zip(self.groups, left, strict=True)
            if members
        ]
        return dataclasses.replace(self, groups=groups, shape=shape) if shape else None


@dataclasses.dataclass
class _Occupant:
    """What a slot is generating."""

    job: int
    watch: stops.Watch


@dataclasses.dataclass
class _Figures:
    """What the run did; becomes the figures dictionary."""

    generations: int = 0
    prompt_tokens: int = 0
    prefill_tokens: int = 0
    forward_tokens: int = 0
    decode_steps: int = 0
    generated_tokens: int = 0
    nonfinite: int = 0
    halved: int = 0
    executables: int = 0
    compile_seconds: float = 0.0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0


def generate(  # noqa: PLR0913 (the engine's front door: what to generate, with what, how, and who hears of it)
    model: models.Model,
    prompts: Sequence[np.ndarray],
    samplings: Sequence[request.Sampling],
    repeats: Sequence[int],
    *,
    tokenizer: jobs.Tokenizer,
    options: config.EngineOptions,
    max_length: int,
    precision: str,
    hooks: listening.Hooks = listening.NOBODY,
) -> tuple[list[request.GenerateResponse], dict[str, Any]]:
    """What follows each prompt (token ids), in request order, and figures of the run.

    A prompt together with its `max_gen_toks` must fit into `max_length`: truncation, and the note of it in the
    response, is the caller's (`encode`). Requests that ask the same are answered once.

    Of `hooks`, `found` hears of texts as they end, and `progress` of prompts' tokens forwarded, and of generated tokens
    out of the most that there can be: a text that has ended counts as if it had used all of its own. If the device has
    no room, half the slots go on with what is left (but for `options.deterministic`); the error of a single one is the
    device's own.
    """
    asked = jobs.collect(prompts, samplings, repeats, tokenizer, max_length=max_length, once=options.share_prefixes)
    figures = _Figures(generations=len(asked), prompt_tokens=sum(job.prompt.size for job in asked))
    if not asked:
        return [], {"requests": 0, **dataclasses.asdict(figures)}
    layout = mesh.layout_of(model.params)
    work: _Work | None = _plan(model, asked, tokenizer, layout, options)
    results: dict[int, request.GenerateResponse] = {}
    facts: dict[str, Any] = {}

    def finish(texts: dict[int, request.GenerateResponse], going: int) -> None:
        results.update(texts)
        pairs = [(place, text) for job, text in texts.items() for place in asked[job].places]
        if pairs:
            hooks.found([place for place, _ in pairs], [text for _, text in pairs])
        limits = [job.sampling.max_gen_toks for job in asked]
        hooks.progress("generate", going + sum(limits[job] for job in results), sum(limits), "tokens")

    while work is not None:
        hooks.agree("the plan of generation", work.digest)
        try:
            run = _Run(model, work, layout, tokenizer, options, figures=figures, progress=hooks.progress, finish=finish)
            facts |= run.prepare(precision)
            run.go()
            break
        except jax.errors.JaxRuntimeError as error:
            again = executor.is_out_of_memory(error) and not options.deterministic
            work = work.smaller(set(results)) if again else None
            if work is None:
                raise
            figures.halved += 1
    answers = {place: results[i] for i, job in enumerate(asked) for place in job.places}
    seconds = figures.prefill_seconds + figures.decode_seconds
    rate = figures.generated_tokens / seconds if seconds else 0.0
    facts |= {"requests": len(prompts), **dataclasses.asdict(figures), "generated_tokens_per_second": rate}
    return [answers[place] for place in range(len(prompts))], facts


def prepare(
    model: models.Model,
    prompts: Sequence[np.ndarray],
    samplings: Sequence[request.Sampling],
    *,
    tokenizer: jobs.Tokenizer,
    options: config.EngineOptions,
    max_length: int,
    precision: str,
) -> None:
    """Has the programs compiled in the background that `generate` will want; `model` may be without weights.

    Called from the thread that calls `generate`.
    """
    repeats = range(len(prompts))  # what is drawn is taken to be drawn once for each request
    asked = jobs.collect(prompts, samplings, repeats, tokenizer, max_length=max_length, once=options.share_prefixes)
    if asked:
        layout = mesh.layout_of(model.params)
        work = _plan(model, asked, tokenizer, layout, options)
        decode.prepare(model, work.shape, work.style, len(work.eos_ids), layout, precision=precision)


def _plan(
    model: models.Model,
    asked: list[jobs.Job],
    tokenizer: jobs.Tokenizer,
    layout: mesh.Layout,
    options: config.EngineOptions,
) -> _Work:
    """The work for all of `asked`."""
    machine = memory.machine(model, layout, options)
    prompts = [job.prompt for job in asked]
    lengths, limits = [job.prompt.size for job in asked], [job.sampling.max_gen_toks for job in asked]
    costs = np.add(lengths, limits).tolist()
    slots = schedule.max_slots(len(asked), machine, options)
    alone = options.deterministic or not options.share_prefixes
    groups = schedule.groups(prompts, costs, slots, share=not alone)
    shape = schedule.shape(groups, lengths, limits, machine=machine, options=options)
    mode = sampling.Mode.CUT if options.deterministic else sampling.mode([job.sampling for job in asked])
    steps = options.decode_steps or DECODE_STEPS.get(machine.platform, DECODE_STEPS_ACCELERATOR)
    return _Work(
        todo=asked,
        groups=groups,
        shape=shape,
        style=decode.Style(mode=mode, num_steps=steps),
        eos_ids=sorted(tokenizer.eos_token_ids) or [-1],
        alone=alone,
        grain=(max(shape.chunk_lengths) if alone else 1) if options.share_prefixes else 0,
    )


class _Run:
    """One walk through the work: the caches, what each slot is doing, what is left in the queue."""

    def __init__(
        self,
        model: models.Model,
        work: _Work,
        layout: mesh.Layout,
        tokenizer: jobs.Tokenizer,
        options: config.EngineOptions,
        *,
        figures: _Figures,
        progress: progress.Progress,
        finish: Callable[[dict[int, request.GenerateResponse], int], None],
    ):
        self.model, self.work, self.layout, self.tokenizer, self.options = model, work, layout, tokenizer, options
        self.figures, self.progress, self.finish = figures, progress, finish
        self.slots, self.policies = decode.vacant(work.shape, len(work.eos_ids))
        self.policies.eos_ids[:] = work.eos_ids
        self.held = np.zeros(0, np.int32)  # the tokens whose keys and values the path holds at home
        self.stem = 0
        self.queue: list[int] = []  # jobs of the group, the next one last
        self.occupants: dict[int, _Occupant] = {}

    def prepare(self, precision: str) -> dict[str, Any]:
        """Waits for the programs, makes the caches; gives facts of both. TooLargeError if a step would not fit."""
        start, shape = time.perf_counter(), self.work.shape
        known = len(executor.COMPILED)
        programs = decode.prepare(
            self.model, shape, self.work.style, len(self.work.eos_ids), self.layout, precision=precision
        )
        self.extend = {length: program.result() for length, program in programs.extend.items()}
        self.insert, self.decode = programs.insert.result(), programs.decode.result()
        room = memory.machine(self.model, self.layout, self.options).memory_bytes
        facts = {"memory": memory.check(self.model, self.decode, room)}
        self.path, self.cache = decode.blank(
            config=self.model.config, dtype=self.model.dtype, shape=shape, layout=self.layout
        )
        self.figures.executables += len(executor.COMPILED) - known
        self.figures.compile_seconds += time.perf_counter() - start
        stems = sum(group.stem > 0 for group in self.work.groups)
        return {**facts, "num_slots": shape.num_slots, "cache_length": shape.slot_length, "stems": stems}

    def go(self) -> None:
        """Generates everything."""
        todo = self.work.todo
        prompts = [todo[job].prompt[:-1] for group in self.work.groups for job in group.members]
        self.prompt_tokens = self.figures.prefill_tokens + prefill.num_tokens(self.held, prompts, self.work.grain)
        for group in self.work.groups:
            self.queue, self.stem = list(group.members[::-1]), group.stem
            self.fill()
            while self.occupants:
                self.advance()
                self.fill()

    def fill(self) -> None:
        """Puts the next prompts into the free slots."""
        start = time.perf_counter()
        free = [slot for slot in range(self.work.shape.num_slots) if slot not in self.occupants]
        some = [self.queue.pop() for _ in free[: len(self.queue)]]
        for batch in [[job] for job in some] if self.work.alone else [some]:
            prompts = [self.work.todo[job].prompt[:-1] for job in batch]
            shape = self.work.shape
            for step in prefill.steps(
                self.held, prompts, shape.path_length, shape.chunk_lengths, grain=self.work.grain
            ):
                if isinstance(step, prefill.Extend):
                    self._extend(step)
                else:
                    self._occupy(free.pop(0), batch[step.prompt], step.source)
            self.held = prompts[-1] if prompts else self.held
        jax.block_until_ready(self.cache)  # so that its seconds are its own
        self.figures.prefill_seconds += time.perf_counter() - start

    def advance(self) -> None:
        """Decodes some steps in every slot, and takes out the texts that have ended."""
        start = time.perf_counter()
        busy, num_slots = len(self.occupants), self.work.shape.num_slots
        enough = max(0, busy - max(1, num_slots // 8)) if self.queue else 0
        stem = decoder.Stem(self.path, self._whole(np.int32(self.stem)))
        state = jax.tree.map(self._whole, (self.slots, self.policies, np.int32(enough)))
        self.cache, slots, steps = self.decode(self.model.params, self.cache, stem, *state)
        self.slots = jax.tree.map(lambda leaf: np.array(self.layout.get(leaf)), slots)  # own, writable copies
        self.figures.decode_steps += int(self.layout.get(steps))
        self.figures.forward_tokens += int(self.layout.get(steps)) * num_slots
        ended: dict[int, request.GenerateResponse] = {}
        for slot, occupant in list(self.occupants.items()):
            text = self._ended(slot, occupant)
            if text is not None:
                ended[occupant.job] = text
                self.slots.active[slot] = False
                del self.occupants[slot]
        self.figures.decode_seconds += time.perf_counter() - start
        self.finish(ended, int(sum(self.slots.steps[slot] for slot in self.occupants)))

    def _whole(self, array: Any) -> Array:
        """The array on every device."""
        return self.layout.put(np.asarray(array), split=False)

    def _extend(self, step: prefill.Extend) -> None:
        """Forwards a chunk of prompts."""
        length = step.inputs.shape[-1]
        self.path = self.extend[length](self.model.params, self.path, self._whole(step.inputs))
        self.figures.prefill_tokens += step.num_tokens
        self.figures.forward_tokens += length
        self.progress("prefill", self.figures.prefill_tokens, self.prompt_tokens, "tokens")

    def _occupy(self, slot: int, job: int, source: np.ndarray) -> None:
        """Makes `slot` generate `job`, whose prompt but for the last token lies at `source` in the path."""
        own = np.zeros(self.work.shape.slot_length, np.int32)
        own[: source.size - self.stem] = source[self.stem :]
        self.cache = self.insert(self.path, self.cache, self._whole(np.int32(slot)), self._whole(own))
        asked = self.work.todo[job]
        slots, policies, how = self.slots, self.policies, asked.sampling
        slots.text[slot, : asked.prompt.size] = asked.prompt
        slots.length[slot], slots.steps[slot] = asked.prompt.size - 1, 0
        slots.active[slot], slots.nonfinite[slot] = True, False
        policies.temperature[slot], policies.top_p[slot] = how.temperature, how.top_p
        policies.top_k[slot] = min(how.top_k, self.model.config.vocab_size)
        policies.least[slot], policies.limit[slot] = how.min_tokens, how.max_gen_toks
        policies.keys[slot] = sampling.request_key(asked.prompt, how.seed, asked.repeat)
        self.occupants[slot] = _Occupant(job=job, watch=stops.Watch(asked.until, self.tokenizer, how.think_end))

    def _ended(self, slot: int, occupant: _Occupant) -> request.GenerateResponse | None:
        """The text in `slot`, if it has ended."""
        job, length = self.work.todo[occupant.job], self.slots.length[slot]
        ids = self.slots.text[slot, job.prompt.size : length + 1].tolist()
        if self.slots.nonfinite[slot] and not self.options.allow_nonfinite:
            what = f"logits that are not finite within {len(ids)} tokens after a prompt of {job.prompt.size}"
            raise failure.nonfinite(job.places[0], what)
        end = occupant.watch.read(ids)
        if end is None:
            if self.slots.active[slot]:
                return None
            end = occupant.watch.unstopped(ids)
        self.figures.generated_tokens += end.num_tokens
        self.figures.nonfinite += int(self.slots.nonfinite[slot])
        stopped = end.found or ids[-1] in self.tokenizer.eos_token_ids
        return request.GenerateResponse(
            text=end.text,
            num_tokens=end.num_tokens,
            finish_reason=request.FinishReason.STOP if stopped else request.FinishReason.LENGTH,
            unfinished_thought=end.unfinished_thought,
        )

"""Requests of a task: every document with its few-shot prompt, its choices and its gold answer.

Each field of a document is rendered once, and so is each few-shot example of the pool, however often it is drawn.
"""

import copy
import dataclasses
import functools
import itertools
import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from evaljax.core import errors, instance, task
from evaljax.tasks import docs as documents
from evaljax.tasks import fewshot, fields, load, overlength, prompt

Doc = dict[str, Any]
Shot = list[prompt.Message]  # one few-shot example


def num_docs(loaded: load.Task) -> int:
    """How many documents the evaluated split has, before any limit."""
    return len(_eval_split(loaded).docs)


def build_examples(
    loaded: load.Task,
    *,
    limit: float | None,
    samples: Sequence[int] | None = None,
    chat: prompt.ChatFormat | None,
    system_instruction: str | None,
    seed: int,
    rule: overlength.Rule | None = None,
) -> list[task.Example]:
    """The documents of the task, or those that `limit` or `samples` select, each with its requests.

    Args:
      limit: number of documents; below 1 a fraction of them, rounded up.
      samples: places in the split; documents keep their order and their `doc_id`. Not together with `limit`.
      chat: None for plain text.
      system_instruction: stands in front of the task's description.
      seed: of the few-shot draws.
      rule: for documents that are too long; None leaves them as they are, and so does a task of rolling texts.
    """
    split = _eval_split(loaded)
    where = f"task {loaded.config.task!r}"
    wanted = _selected(len(split.docs), limit, samples, where)
    builder = _Builder(loaded.config, split, chat, system_instruction)
    drawn = list(_shots(loaded, split, wanted, builder, seed))
    examples = [builder.example(doc_id, shots) for doc_id, shots in zip(wanted, drawn, strict=True)]
    if rule is None or loaded.config.output_type == "loglikelihood_rolling":
        return examples
    return overlength.fitted(
        rule,
        examples,
        [len(shots) for shots in drawn],
        lambda place, dropped: builder.example(wanted[place], drawn[place], dropped=dropped),
    )


def _eval_split(loaded: load.Task) -> documents.Split:
    config = loaded.config
    return loaded.documents.split(str(config.eval_split), config.process_docs)  # type: ignore[arg-type]


def _selected(total: int, limit: float | None, samples: Sequence[int] | None, where: str) -> list[int]:
    if samples is not None:
        if limit is not None:
            raise errors.ConfigError(f"{where}: limit and samples were both given; give one of them.")
        places = _places(samples, where)
        wrong = [place for place in places if not 0 <= place < total]
        if wrong or not places:
            raise errors.ConfigError(
                f"{where}: samples must be one or more places from 0 to {total - 1}, "
                f"found {wrong[0] if wrong else list(samples)!r}."
            )
        return sorted(set(places))
    if limit is None:
        return list(range(total))
    if isinstance(limit, bool) or not 0 < limit < math.inf or (limit > 1 and limit != int(limit)):
        raise errors.ConfigError(
            f"{where}: limit must be a whole number of documents or a fraction below 1, found {limit!r}."
        )
    return list(range(min(total, math.ceil(total * limit) if limit < 1 else int(limit))))


def _places(samples: Sequence[int], where: str) -> list[int]:
    """`samples` as Python's whole numbers; numpy's are welcome."""
    try:
        if isinstance(samples, str) or any(isinstance(place, bool) for place in samples):
            raise TypeError
        return [operator.index(place) for place in samples]
    except TypeError:
        raise errors.ConfigError(f"{where}: samples must be a list of whole numbers, found {samples!r:.200}.") from None


def _shots(
    loaded: load.Task, split: documents.Split, wanted: Sequence[int], builder: "_Builder", seed: int
) -> Iterator[list[Shot]]:
    """The few-shot examples of each wanted document."""
    config = loaded.config
    if not config.num_fewshot:
        for _ in wanted:
            yield []
        return
    pool = _pool(loaded)

    @functools.cache
    def shot(place: int) -> Shot:
        return builder.shot(pool.docs[place], place)

    @functools.lru_cache(maxsize=1)
    def own_shot(doc_id: int) -> Shot | None:
        try:
            return builder.shot(split.docs[doc_id], doc_id)
        except errors.TaskError:
            return None  # what cannot be written as an example reads like none

    pool = dataclasses.replace(pool, reads_as=lambda place, doc_id: shot(place) == own_shot(doc_id))
    sampler, where = config.fewshot_config.sampler, f"task {config.task!r}"
    for places in fewshot.draws(
        pool, split.docs, wanted, sampler=sampler, num=config.num_fewshot, seed=seed, where=where
    ):
        yield [shot(place) for place in places]


def _pool(loaded: load.Task) -> fewshot.Pool:
    """The documents that examples are drawn from."""
    config, own = loaded.config, loaded.config.fewshot_config
    split = fewshot.pool_split(config)
    process = config.process_docs if own.split is None else own.process_docs
    rows: Sequence[Any] = (
        loaded.documents.split(split, process).docs  # type: ignore[arg-type]
        if split is not None
        else _given_rows(own.samples, f"task {config.task!r}: fewshot_config.samples")
    )
    if own.fewshot_indices is not None:
        wrong = [i for i in own.fewshot_indices if i >= len(rows)]
        if wrong:
            raise errors.TaskError(
                f"task {config.task!r}: fewshot_config.fewshot_indices: there is no row {wrong[0]}; "
                f"the pool has {len(rows)}."
            )
        rows = [rows[i] for i in own.fewshot_indices]
    # lm-eval compares the two names, and None with None is a match.
    return fewshot.Pool(
        docs=rows, exclude=own.split == config.test_split, same_split=split is not None and split == config.eval_split
    )


def _given_rows(samples: Any, where: str) -> Sequence[Any]:
    if callable(samples):
        try:
            samples = samples()
        except Exception as error:  # foreign code
            raise errors.TaskError(f"{where}: the function failed: {error!r}.") from error
    if not isinstance(samples, (list, tuple)) or not samples or not all(isinstance(row, dict) for row in samples):
        raise errors.TaskError(f"{where} must be a list of one or more documents, found {samples!r:.200}.")
    return samples


class _Builder:
    """Turns documents of one task into few-shot messages and examples."""

    def __init__(
        self,
        config: task.TaskConfig,
        split: documents.Split,
        chat: prompt.ChatFormat | None,
        system_instruction: str | None,
    ) -> None:
        self.config = config
        self.docs = split.docs
        self.columns = frozenset(split.columns)
        self.chat = chat
        self.system_instruction = system_instruction
        self.has_choices = config.doc_to_choice is not None
        self.with_unconditional = any(m.metric == "acc_mutual_info" for m in config.metric_list)
        for name in ("doc_to_text", "doc_to_target"):
            fields.check_column(getattr(config, name), self.columns, where=f"task {config.task!r}, {name}")
        # lm-eval's rule: the first document decides for all.
        self.multiple_input = self.has_choices and isinstance(self._text(split.docs[0], 0, digits_are_index=True), int)
        self.multiple_target = isinstance(self._target(split.docs[0], 0), list)

    def _where(self, field: str, doc_id: int, kind: str = "document") -> str:
        return f"task {self.config.task!r}, {field}, {kind} {doc_id}"

    def _text(self, doc: Doc, doc_id: int, digits_are_index: bool) -> Any:
        where = self._where("doc_to_text", doc_id)
        return fields.text(
            self.config.doc_to_text, doc, columns=self.columns, digits_are_index=digits_are_index, where=where
        )

    def _target(self, doc: Doc, doc_id: int) -> Any:
        return fields.target(
            self.config.doc_to_target,
            doc,
            columns=self.columns,
            has_choices=self.has_choices,
            where=self._where("doc_to_target", doc_id),
        )

    def shot(self, doc: Mapping[str, Any], place: int) -> Shot:
        """The messages of one example of the pool: its question and its answer."""
        own, config = self.config.fewshot_config, self.config
        kind = "few-shot document"
        where = self._where("doc_to_text", place, kind)
        text = fields.text(
            _first(own.doc_to_text, config.doc_to_text),
            doc,
            columns=self.columns,
            digits_are_index=self.multiple_input,
            where=where,
        )
        target = fields.target(
            _first(own.doc_to_target, config.doc_to_target),
            doc,
            columns=self.columns,
            has_choices=self.has_choices,
            where=self._where("doc_to_target", place, kind),
        )
        choices: tuple[str, ...] | None = None
        if own.doc_to_choice:
            choices = fields.choices(
                own.doc_to_choice, doc, columns=self.columns, where=self._where("doc_to_choice", place, kind)
            )
        if self.multiple_input:
            text, choices = _picked(choices, text, where), None
        return prompt.answered(
            _text_only(text, where),
            _answer(target, choices, self._where("doc_to_target", place, kind)),
            prefix=fields.optional(own.gen_prefix, doc, where=self._where("gen_prefix", place, kind)),
            delimiter=own.target_delimiter,
            end=own.fewshot_delimiter,
        )

    def example(self, doc_id: int, shots: Sequence[Shot], dropped: int = 0) -> task.Example:
        """One document with its requests, the last `dropped` shots left out."""
        doc, config = self.docs[doc_id], self.config
        text = self._text(doc, doc_id, digits_are_index=self.multiple_input)
        target = self._target(doc, doc_id)
        choices = (
            fields.choices(config.doc_to_choice, doc, columns=self.columns, where=self._where("doc_to_choice", doc_id))
            if self.has_choices
            else None
        )
        gold = text if self.multiple_input else target
        self._check_gold(gold, choices, doc_id)
        contexts = self._contexts(doc, doc_id, text, choices, shots[: len(shots) - dropped])
        arguments = self._arguments(contexts, target, choices, doc_id)
        kind = "loglikelihood" if config.output_type == "multiple_choice" else config.output_type
        metadata = (config.task, doc_id, config.repeats)
        return task.Example(
            doc_id=doc_id,
            doc=doc,
            target=target,
            choices=choices,
            gold=gold,
            multiple_input=self.multiple_input,
            multiple_target=self.multiple_target,
            instances=tuple(
                instance.Instance(request_type=kind, doc=doc, arguments=argument, idx=idx, metadata=metadata)
                for idx, argument in enumerate(arguments)
            ),
            shots_dropped=dropped,
        )

    def _contexts(
        self, doc: Doc, doc_id: int, text: Any, choices: tuple[str, ...] | None, shots: Sequence[Shot]
    ) -> list[str]:
        """The prompts: one, or one per choice where the choices are the contexts."""
        config = self.config
        if config.output_type == "loglikelihood_rolling":
            return [""]
        description = fields.optional(config.description, doc, where=self._where("description", doc_id))
        prefix = fields.optional(config.gen_prefix, doc, where=self._where("gen_prefix", doc_id))
        system = prompt.system_message(self.system_instruction, description, config.fewshot_delimiter)
        before = [*system, *itertools.chain.from_iterable(shots)]
        texts = choices if self.multiple_input and choices else [_text_only(text, self._where("doc_to_text", doc_id))]
        delimiter = "" if self.multiple_input else config.target_delimiter
        return [
            prompt.render(
                [*before, *prompt.question(one, prefix=prefix, delimiter=delimiter)], self.chat, prefix=prefix
            )
            for one in texts
        ]

    def _arguments(
        self, contexts: list[str], target: Any, choices: tuple[str, ...] | None, doc_id: int
    ) -> list[tuple[Any, ...]]:
        config = self.config
        where = self._where("doc_to_target", doc_id)
        if config.output_type == "loglikelihood_rolling":
            return [(_text_only(target, where),)]
        if config.output_type == "loglikelihood":
            if not _text_only(target, where):
                raise errors.TaskError(f"{where}: the target is empty: there is nothing to score.")
            return [(contexts[0], target)]
        if config.output_type == "generate_until":
            return [(contexts[0], copy.deepcopy(dict(config.generation_kwargs or {})))]
        if choices is None:
            raise errors.TaskError(f"task {config.task!r}: multiple_choice needs doc_to_choice.")
        gap = self._choice_delimiter()
        if self.multiple_input:
            conditional = [(context, f"{gap}{target}") for context in contexts]
        else:
            conditional = [(contexts[0], f"{gap}{choice}") for choice in choices]
        unconditional = [("", f"{gap}{choice}") for choice in choices] if self.with_unconditional else []
        return [*conditional, *unconditional]

    def _choice_delimiter(self) -> str:
        # In chat the answer opens a turn, so nothing separates it, unless it goes on from a prefix.
        config = self.config
        if self.chat is None:
            return config.target_delimiter
        goes_on = bool(config.gen_prefix) and not str(config.gen_prefix)[-1].isspace()
        return config.target_delimiter if goes_on else ""

    def _check_gold(self, gold: Any, choices: tuple[str, ...] | None, doc_id: int) -> None:
        config = self.config
        field = "doc_to_text" if self.multiple_input else "doc_to_target"
        where = self._where(field, doc_id)
        if config.process_results is not None:
            return  # the task's own function knows what its targets mean
        if config.output_type != "multiple_choice" or choices is None:
            if gold is None:
                raise errors.TaskError(f"{where}: the target is missing (None).")
            return
        golds = gold if isinstance(gold, list) else [gold]
        if not golds:
            raise errors.TaskError(f"{where}: the list of gold labels is empty.")
        for label in golds:
            if isinstance(label, str):
                if label not in choices:
                    raise errors.TaskError(
                        f"{where}: the gold label {label!r} is none of the {len(choices)} choices {list(choices)}."
                    )
            elif not isinstance(label, int):
                raise errors.TaskError(
                    f"{where}: a gold label must be an index or one of the choices, found {label!r}."
                )
            elif not 0 <= label < len(choices):
                raise errors.TaskError(
                    f"{where}: the gold label is {label}, but the {len(choices)} choices are 0 to {len(choices) - 1}."
                )


def _first(value: Any, otherwise: Any) -> Any:
    return otherwise if value is None else value


def _text_only(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise errors.TaskError(f"{where}: expected text, found {value!r:.200} of type {type(value).__name__}.")
    return value


def _picked(choices: tuple[str, ...] | None, index: Any, where: str) -> str:
    if choices is None or isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < len(choices):
        raise errors.TaskError(f"{where}: expected the index of one of {len(choices or ())} choices, found {index!r}.")
    return choices[index]


def _answer(target: Any, choices: tuple[str, ...] | None, where: str) -> str:
    """The text that answers an example; empty where there is none."""
    if target is None or target == "":
        return ""
    if choices and isinstance(target, int):
        if not 0 <= target < len(choices):
            raise errors.TaskError(
                f"{where}: the answer is {target}, but there are {len(choices)} choices (0 to {len(choices) - 1})."
            )
        return choices[target]
    if isinstance(target, list):
        if not target:
            raise errors.TaskError(f"{where}: the list of answers is empty.")
        target = target[0]
    return _text_only(target, where)

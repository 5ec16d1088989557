"""Tasks as data: the YAML's own spelling of its fields, defaults applied. Building these records does no I/O."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from evaljax.core import instance

OUTPUT_TYPES = ("loglikelihood", "loglikelihood_rolling", "multiple_choice", "generate_until")
DEFAULT_METRICS: Mapping[str, tuple[str, ...]] = {
    "loglikelihood": ("perplexity", "acc"),
    "loglikelihood_rolling": ("word_perplexity", "byte_perplexity", "bits_per_byte"),
    "multiple_choice": ("acc", "acc_norm"),
    "generate_until": ("exact_match",),
}


@dataclasses.dataclass(frozen=True)
class FunctionRef:
    """`!function module.name` in a YAML file: not imported until the task is loaded and its code is trusted.

    `folder` is the folder of the file that contains the tag.
    """

    folder: str
    name: str

    def __str__(self) -> str:
        return f"{self.folder}/{self.name}"


# What turns a document into something: a column name, a Jinja template, a literal, or (once resolved) a function.
Template = str | int | list[Any] | dict[str, Any] | Callable[..., Any] | FunctionRef | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class MetricConfig:
    """One entry of `metric_list`. `metric` is a registered name or a function; every unknown key goes to `kwargs`."""

    metric: str | Callable[..., Any] | FunctionRef
    aggregation: str | Callable[..., Any] | FunctionRef | None = None  # None: the metric's own default
    higher_is_better: bool | None = None  # None: the metric's own default
    hf_evaluate: bool = False
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FilterStep:
    """One step of a filter pipeline: a registered name or a class, and its parameters."""

    function: str | Callable[..., Any] | FunctionRef
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FilterPipeline:
    """One entry of `filter_list`."""

    name: str
    steps: tuple[FilterStep, ...]


TAKE_FIRST = FilterPipeline(name="none", steps=(FilterStep(function="take_first"),))


@dataclasses.dataclass(frozen=True, kw_only=True)
class FewshotConfig:
    """`fewshot_config`, every field that was left out filled in from the task."""

    sampler: str | Callable[..., Any] | FunctionRef = "default"
    split: str | None = None
    process_docs: Callable[..., Any] | FunctionRef | None = None
    samples: tuple[dict[str, Any], ...] | Callable[..., Any] | FunctionRef | None = None
    fewshot_indices: tuple[int, ...] | None = None
    doc_to_text: Template = None
    doc_to_choice: Template = None
    doc_to_target: Template = None
    gen_prefix: str | None = None
    fewshot_delimiter: str = "\n\n"
    target_delimiter: str = " "


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskConfig:
    """A task. Field names and meanings are lm-eval's YAML fields; `source` is the file that defined it, or "inline".

    `unsafe_code`, `should_decontaminate` and `doc_to_decontamination_query` are only written down with the results.
    """

    task: str
    source: str = "inline"
    task_alias: str | None = None
    tag: tuple[str, ...] = ()
    custom_dataset: Callable[..., Any] | FunctionRef | None = None
    dataset_path: str | None = None
    dataset_name: str | None = None
    dataset_kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    training_split: str | None = None
    validation_split: str | None = None
    test_split: str | None = None
    fewshot_split: str | None = None
    process_docs: Callable[..., Any] | FunctionRef | None = None
    doc_to_text: Template = None
    doc_to_target: Template = None
    doc_to_choice: Template = None
    unsafe_code: bool = False
    process_results: Callable[..., Any] | FunctionRef | None = None
    description: str | Callable[..., Any] | FunctionRef = ""
    target_delimiter: str = " "
    fewshot_delimiter: str = "\n\n"
    fewshot_config: FewshotConfig = FewshotConfig()
    num_fewshot: int | None = None
    metric_list: tuple[MetricConfig, ...] = ()
    output_type: str = "generate_until"
    generation_kwargs: Mapping[str, Any] | None = None
    repeats: int = 1
    filter_list: tuple[FilterPipeline, ...] = (TAKE_FIRST,)
    should_decontaminate: bool = False
    doc_to_decontamination_query: Template = None
    gen_prefix: str | None = None
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def eval_split(self) -> str | None:
        """The split whose documents are scored: `test_split`, else `validation_split`."""
        return self.test_split if self.test_split is not None else self.validation_split

    @property
    def version(self) -> Any:
        """`metadata.version`, or "Yaml" where the file gives none (lm-eval's default)."""
        return self.metadata.get("version", "Yaml")


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupMetric:
    """One entry of a group's `aggregate_metric_list`: a mean. `filters` None: every filter that the leaves have."""

    metric: str
    filters: tuple[str, ...] | None = None
    weight_by_size: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupConfig:
    """A group and its direct children (names of tasks and groups, in file order)."""

    group: str
    source: str = "inline"
    group_alias: str | None = None
    children: tuple[str, ...] = ()
    metrics: tuple[GroupMetric, ...] = ()
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Example:
    """A document with everything that scoring needs: its answers' places, its gold answer, its choices.

    Attributes:
      doc_id: index in the evaluated split, whatever the limit or the selection.
      doc: the document itself.
      target: what `doc_to_target` gives (int, str, list, ...).
      choices: what `doc_to_choice` gives, or None.
      gold: the label to score against: `doc_to_text`'s index where the choices are in the context (`multiple_input`),
        else `target`.
      instances: the document's requests, in order (choices, then unconditional choices for acc_mutual_info).
      shots_dropped: few-shot examples that were left out of the prompts so that the model can read them.
      skipped: longer than the model reads, so neither asked nor scored (`RunConfig.overlength`).
    """

    doc_id: int
    doc: dict[str, Any]
    target: Any
    choices: tuple[str, ...] | None
    gold: Any
    multiple_input: bool
    multiple_target: bool
    instances: tuple[instance.Instance, ...]
    shots_dropped: int = 0
    skipped: bool = False

"""Checked records from plain mappings: what a YAML file says becomes a `task.TaskConfig` or a `task.GroupConfig`.

Nothing is read or imported here. An unknown key, a wrong type or a value that cannot be meant is a `TaskError` that
names the place, the key, what was expected and the nearest known key. `locate(key)` gives the place (file and line)
where the caller knows it; without it the place is `source`.
"""

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from evaljax.core import errors, lookup, request, task

Locate = Callable[[str], str]
Check = tuple[str, Callable[[Any], bool]]  # what is expected, in words; whether a value is that


def is_function(value: Any) -> bool:
    """Whether `value` is a function, or a `!function` that has not been imported yet."""
    return isinstance(value, task.FunctionRef) or callable(value)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_names(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, (list, tuple)) and all(isinstance(v, str) for v in value))


def _is_template(value: Any) -> bool:
    return isinstance(value, str) or _is_whole(value) or is_function(value)


TEXT: Check = ("text", lambda v: isinstance(v, str))
FLAG: Check = ("true or false", lambda v: isinstance(v, bool))
COUNT: Check = ("a whole number, 0 or more", lambda v: _is_whole(v) and v >= 0)
POSITIVE: Check = ("a whole number, 1 or more", lambda v: _is_whole(v) and v >= 1)
NUMBER: Check = ("a number", lambda v: _is_whole(v) or isinstance(v, float))
FUNCTION: Check = ("!function module.name", is_function)
TEXT_OR_FUNCTION: Check = ("text or !function module.name", lambda v: isinstance(v, str) or is_function(v))
NAMES: Check = ("a name or a list of names", _is_names)
MAPPING: Check = ("a mapping", lambda v: isinstance(v, Mapping))
LIST: Check = ("a list", lambda v: isinstance(v, (list, tuple)))
ANYTHING: Check = ("anything", lambda v: True)
TEMPLATE: Check = ("a column name, a template, a whole number or !function module.name", _is_template)
TARGET: Check = (
    "a column name, a template, a whole number, a list or !function module.name",
    lambda v: _is_template(v) or isinstance(v, list),
)
CHOICES: Check = (
    "a column name, a template, a list, a mapping or !function module.name",
    lambda v: (_is_template(v) and not _is_whole(v)) or isinstance(v, (list, Mapping)),
)
OUTPUT_TYPE: Check = ("one of " + ", ".join(task.OUTPUT_TYPES), lambda v: v in task.OUTPUT_TYPES)
ROWS: Check = (
    "a list of documents (mappings) or !function module.name",
    lambda v: is_function(v) or (isinstance(v, (list, tuple)) and all(isinstance(row, Mapping) for row in v)),
)
INDICES: Check = (
    "a list of row numbers",
    lambda v: isinstance(v, (list, tuple)) and all(_is_whole(i) and i >= 0 for i in v),
)
UNTIL: Check = ("a stop string or a list of stop strings", _is_names)

TASK_FIELDS: Mapping[str, Check] = {
    "task": TEXT,
    "task_alias": TEXT,
    "tag": NAMES,
    "custom_dataset": FUNCTION,
    "dataset_path": TEXT,
    "dataset_name": TEXT,
    "dataset_kwargs": MAPPING,
    "training_split": TEXT,
    "validation_split": TEXT,
    "test_split": TEXT,
    "fewshot_split": TEXT,
    "process_docs": FUNCTION,
    "doc_to_text": TEMPLATE,
    "doc_to_target": TARGET,
    "doc_to_choice": CHOICES,
    "unsafe_code": FLAG,
    "process_results": FUNCTION,
    "description": TEXT_OR_FUNCTION,
    "target_delimiter": TEXT,
    "fewshot_delimiter": TEXT,
    "fewshot_config": MAPPING,
    "num_fewshot": COUNT,
    "metric_list": LIST,
    "output_type": OUTPUT_TYPE,
    "generation_kwargs": MAPPING,
    "repeats": POSITIVE,
    "filter_list": LIST,
    "should_decontaminate": FLAG,
    "doc_to_decontamination_query": TEMPLATE,
    "gen_prefix": TEXT,
    "metadata": ANYTHING,
}
FEWSHOT_FIELDS: Mapping[str, Check] = {
    "sampler": TEXT_OR_FUNCTION,
    "split": TEXT,
    "process_docs": FUNCTION,
    "samples": ROWS,
    "fewshot_indices": INDICES,
    "doc_to_text": TEMPLATE,
    "doc_to_choice": CHOICES,
    "doc_to_target": TARGET,
    "gen_prefix": TEXT,
    "fewshot_delimiter": TEXT,
    "target_delimiter": TEXT,
}
METRIC_FIELDS: Mapping[str, Check] = {
    "metric": TEXT_OR_FUNCTION,
    "aggregation": TEXT_OR_FUNCTION,
    "higher_is_better": FLAG,
    "hf_evaluate": FLAG,
}
PIPELINE_FIELDS: Mapping[str, Check] = {"name": TEXT, "filter": LIST}
GROUP_FIELDS: Mapping[str, Check] = {
    "group": TEXT,
    "group_alias": TEXT,
    "task": ("a name or a list of names and mappings", lambda v: isinstance(v, (str, list, tuple))),
    "aggregate_metric_list": ("a mapping or a list of mappings", lambda v: isinstance(v, (Mapping, list, tuple))),
    "metadata": ANYTHING,
}
GROUP_METRIC_FIELDS: Mapping[str, Check] = {
    "metric": TEXT,
    "filter_list": NAMES,
    "aggregation": TEXT_OR_FUNCTION,
    "weight_by_size": FLAG,
}
GENERATION_FIELDS: Mapping[str, Check] = {
    "until": UNTIL,
    "do_sample": FLAG,
    "temperature": ("a number, 0 or more", lambda v: NUMBER[1](v) and v >= 0),
    "top_p": ("a number above 0, at most 1", lambda v: NUMBER[1](v) and 0 < v <= 1),
    "top_k": COUNT,
    "seed": COUNT,
    **dict.fromkeys(("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens"), POSITIVE),
    **dict.fromkeys(("min_tokens", "min_new_tokens", "min_gen_toks"), COUNT),
}
# Decoding options that evaljax does not have: the value that switches one off is welcome, any other is refused.
GENERATION_OFF: Mapping[str, Any] = {
    "num_beams": 1,
    "num_return_sequences": 1,
    "repetition_penalty": 1.0,
    "length_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "no_repeat_ngram_size": 0,
    "typical_p": 1.0,
    "min_p": 0.0,
}
# lm-eval fields that would change what is asked, refused by name: none is silently without effect.
UNSUPPORTED: Mapping[str, str] = {
    "doc_to_image": "images are not supported",
    "doc_to_audio": "audio is not supported",
    "use_prompt": "prompt collections are not supported; write the template into doc_to_text",
    "class": "tasks that are a Python class are not supported",
}
# Keys that place a task in the index; the task itself does not know them.
INDEX_KEYS = ("group", "task_list")


def _fail(place: str, message: str) -> NoReturn:
    raise errors.TaskError(f"{place}: {message}")


def _place(source: str, locate: Locate | None) -> Locate:
    return locate if locate is not None else lambda key: source


def _checked(raw: Any, fields: Mapping[str, Check], *, what: str, place: Locate, path: str = "") -> dict[str, Any]:
    """The keys of `raw` that are not null, every one of them known and of the expected type."""
    if not isinstance(raw, Mapping):
        _fail(place(what), f"{what} must be a mapping, found {raw!r}.")
    for key, value in raw.items():
        name = f"{path}{key}"
        if key not in fields:
            _fail(
                place(str(key)),
                f"unknown key {name!r} in {what}.{lookup.nearest(str(key), fields)} "
                f"Known: {lookup.listing(fields, limit=40)}.",
            )
        if value is not None and not fields[key][1](value):
            _fail(place(str(key)), f"{name} must be {fields[key][0]}, found {_shown(value)}.")
    return {key: value for key, value in raw.items() if value is not None}


def _shown(value: Any) -> str:
    text = repr(value)
    text = text if len(text) <= 80 else text[:77] + "..."
    hint = " (YAML reads bare yes, no, on and off as true and false: quote them)" if isinstance(value, bool) else ""
    return f"{text} of type {type(value).__name__}{hint}"


def names(value: Any) -> tuple[str, ...]:
    """The names that a field of kind `NAMES` gives: none, one or several."""
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else tuple(value)


def metadata(value: Any) -> dict[str, Any]:
    """`metadata` as a mapping; what is none stands under `_metadata`, as in lm-eval."""
    if value is None:
        return {}
    return dict(value) if isinstance(value, Mapping) else {"_metadata": value}


def task_config(raw: Mapping[str, Any], *, source: str, locate: Locate | None = None) -> task.TaskConfig:
    """The task that `raw` (one YAML file, includes merged) describes, defaults applied."""
    place = _place(source, locate)
    for key, reason in UNSUPPORTED.items():
        if raw.get(key) is not None:
            _fail(place(key), f"{key}: {reason}.")
    kept = {key: value for key, value in raw.items() if key not in INDEX_KEYS and key not in UNSUPPORTED}
    fields = _checked(kept, TASK_FIELDS, what="task", place=place)
    if not fields.get("task"):
        _fail(source, "the task has no name: give it a `task` key.")
    output_type = fields.get("output_type", "generate_until")
    config = task.TaskConfig(
        **{key: value for key, value in fields.items() if key not in _CONVERTED},
        source=source,
        tag=names(fields.get("tag")),
        metadata=metadata(fields.get("metadata")),
        metric_list=metric_list(fields.get("metric_list"), source=source, output_type=output_type, locate=locate),
        filter_list=filter_list(fields.get("filter_list"), source=source, locate=locate),
        fewshot_config=fewshot_config(
            fields.get("fewshot_config", {}), task_fields=fields, source=source, locate=locate
        ),
        generation_kwargs=generation_kwargs(
            fields.get("generation_kwargs"),
            source=source,
            output_type=output_type,
            default_until=fields.get("fewshot_delimiter", "\n\n"),
            locate=locate,
        ),
    )
    _check_data(config, place)
    return config


_CONVERTED = ("tag", "metadata", "metric_list", "filter_list", "fewshot_config", "generation_kwargs")


def _check_data(config: task.TaskConfig, place: Locate) -> None:
    if config.eval_split is None:
        _fail(place("task"), f"task {config.task!r} has neither test_split nor validation_split: nothing to evaluate.")
    if config.dataset_path is None and config.custom_dataset is None:
        _fail(place("task"), f"task {config.task!r} has neither dataset_path nor custom_dataset: no documents.")


def fewshot_config(
    raw: Mapping[str, Any], *, task_fields: Mapping[str, Any], source: str, locate: Locate | None = None
) -> task.FewshotConfig:
    """`fewshot_config`, with every field that it leaves out taken from the task's own fields."""
    place = _place(source, locate)
    fields = _checked(raw, FEWSHOT_FIELDS, what="fewshot_config", place=place, path="fewshot_config.")
    inherited = {key: task_fields[key] for key in _INHERITED if key in task_fields and key not in raw}
    if "fewshot_split" in task_fields and "split" not in raw:
        inherited["split"] = task_fields["fewshot_split"]
    merged = {**inherited, **fields}
    if isinstance(merged.get("samples"), (list, tuple)):
        merged["samples"] = tuple(dict(row) for row in merged["samples"])
    if "fewshot_indices" in merged:
        merged["fewshot_indices"] = tuple(merged["fewshot_indices"])
    return task.FewshotConfig(**merged)


_INHERITED = tuple(key for key in FEWSHOT_FIELDS if key in TASK_FIELDS)


def metric_list(
    raw: Sequence[Any] | None, *, source: str, output_type: str, locate: Locate | None = None
) -> tuple[task.MetricConfig, ...]:
    """The metrics of `metric_list`, or the output type's own where the file gives none."""
    place = _place(source, locate)
    if raw is None:
        return tuple(task.MetricConfig(metric=name) for name in task.DEFAULT_METRICS[output_type])
    metrics = []
    for number, entry in enumerate(raw):
        path = f"metric_list[{number}]."
        if not isinstance(entry, Mapping) or entry.get("metric") is None:
            _fail(
                place("metric_list"),
                f"metric_list[{number}] must be a mapping with the key `metric`, found {_shown(entry)}.",
            )
        own = _checked(
            {k: v for k, v in entry.items() if k in METRIC_FIELDS},
            METRIC_FIELDS,
            what="metric_list",
            place=place,
            path=path,
        )
        extra = {key: value for key, value in entry.items() if key not in METRIC_FIELDS}
        for key in extra:
            # Other keys are parameters of the metric, so only a near miss of our own four is surely a slip.
            close = difflib.get_close_matches(str(key), METRIC_FIELDS, n=1, cutoff=0.85)
            if close:
                _fail(place(str(key)), f"unknown key {path + str(key)!r} in metric_list. Did you mean {close[0]!r}?")
        metrics.append(task.MetricConfig(**own, kwargs=extra))
    return tuple(metrics)


def filter_list(
    raw: Sequence[Any] | None, *, source: str, locate: Locate | None = None
) -> tuple[task.FilterPipeline, ...]:
    """The pipelines of `filter_list`; one that takes the first answer where the file gives none."""
    place = _place(source, locate)
    if raw is None:
        return (task.TAKE_FIRST,)
    pipelines: dict[str, task.FilterPipeline] = {}
    for number, entry in enumerate(raw):
        path = f"filter_list[{number}]"
        fields = _checked(entry, PIPELINE_FIELDS, what="filter_list", place=place, path=f"{path}.")
        if "name" not in fields or "filter" not in fields:
            _fail(place("filter_list"), f"{path} needs the keys `name` and `filter`, found {_shown(entry)}.")
        if fields["name"] in pipelines:
            _fail(place("filter_list"), f"{path} has the name {fields['name']!r} of an earlier pipeline.")
        steps = tuple(_step(step, f"{path}.filter[{i}]", place) for i, step in enumerate(fields["filter"]))
        pipelines[fields["name"]] = task.FilterPipeline(name=fields["name"], steps=steps)
    return tuple(pipelines.values())


def _step(raw: Any, path: str, place: Locate) -> task.FilterStep:
    if not isinstance(raw, Mapping) or not TEXT_OR_FUNCTION[1](raw.get("function")):
        _fail(
            place("filter_list"),
            f"{path} must be a mapping with the key `function` (a name or !function), found {_shown(raw)}.",
        )
    return task.FilterStep(
        function=raw["function"], kwargs={key: value for key, value in raw.items() if key != "function"}
    )


def generation_kwargs(
    raw: Mapping[str, Any] | None,
    *,
    source: str,
    output_type: str = "generate_until",
    default_until: str = "\n\n",
    locate: Locate | None = None,
) -> dict[str, Any] | None:
    """`generation_kwargs` with lm-eval's defaults, or None for a task that generates nothing and says nothing."""
    if raw is None:
        if output_type != "generate_until":
            return None
        length = request.DEFAULT_MAX_GEN_TOKS
        return {"temperature": 0.0, "do_sample": False, "max_gen_toks": length, "until": [default_until]}
    place = _place(source, locate)
    own = {key: value for key, value in raw.items() if key not in GENERATION_OFF}
    fields = _checked(own, GENERATION_FIELDS, what="generation_kwargs", place=place, path="generation_kwargs.")
    for key, off in GENERATION_OFF.items():
        if raw.get(key) is not None and raw[key] != off:
            _fail(
                place(key), f"generation_kwargs.{key} must be {off!r} (evaljax does not have it), found {raw[key]!r}."
            )
    merged = {key: value for key, value in raw.items() if key in fields or key in GENERATION_OFF}
    if "temperature" in merged:
        merged["temperature"] = float(merged["temperature"])
    if "until" not in raw:
        merged["until"] = [default_until]
    return merged


def group_config(
    raw: Mapping[str, Any], *, source: str, children: Sequence[str] = (), locate: Locate | None = None
) -> task.GroupConfig:
    """The group that `raw` describes, with the names of its direct children as the caller resolved them."""
    place = _place(source, locate)
    fields = _checked(raw, GROUP_FIELDS, what="group", place=place)
    if not fields.get("group"):
        _fail(source, "the group has no name: give it a `group` key.")
    return task.GroupConfig(
        group=fields["group"],
        source=source,
        group_alias=fields.get("group_alias"),
        children=tuple(children),
        metrics=_group_metrics(fields.get("aggregate_metric_list"), place),
        metadata=metadata(fields.get("metadata")),
    )


def _group_metrics(raw: Any, place: Locate) -> tuple[task.GroupMetric, ...]:
    entries = [] if raw is None else [raw] if isinstance(raw, Mapping) else raw
    metrics = []
    for number, entry in enumerate(entries):
        path = f"aggregate_metric_list[{number}]"
        fields = _checked(entry, GROUP_METRIC_FIELDS, what="aggregate_metric_list", place=place, path=f"{path}.")
        if "metric" not in fields:
            _fail(place("aggregate_metric_list"), f"{path} needs the key `metric`, found {_shown(entry)}.")
        aggregation = fields.pop("aggregation", "mean")
        if aggregation != "mean":
            _fail(place("aggregation"), f"{path}.aggregation must be 'mean', found {_shown(aggregation)}.")
        filters = fields.pop("filter_list", None)
        metrics.append(task.GroupMetric(**fields, filters=None if filters is None else names(filters)))
    return tuple(metrics)

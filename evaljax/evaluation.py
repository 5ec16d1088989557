"""The whole program on one screen: load tasks, build requests, ask the model once per kind, filter, score, roll up."""

import collections
import dataclasses
import numbers
import time
from collections.abc import Mapping, Sequence
from typing import Any

from evaljax.core import backend as backend_lib
from evaljax.core import config as config_lib
from evaljax.core import errors, instance, lookup, request, result, task
from evaljax.scoring import filters, groups, metrics, score
from evaljax.tasks import generation, instances, load, manager, overlength, prompt

RESPONSES: Mapping[str, type[request.Response]] = {
    "loglikelihood": request.LoglikelihoodResponse,
    "loglikelihood_rolling": request.RollingResponse,
    "generate_until": request.GenerateResponse,
}
Annotations = Mapping[str, Mapping[int, Mapping[str, Any]]]  # what the engine noted, by task and document


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prepared:
    """Loaded tasks with their documents rendered: everything that is asked, nothing that is answered."""

    loaded: load.LoadedTasks
    examples: Mapping[str, Sequence[task.Example]]


def evaluate(
    config: config_lib.RunConfig,
    backend: backend_lib.Backend,
    *,
    loaded: load.LoadedTasks | None = None,
    samples: Mapping[str, Sequence[int]] | None = None,
) -> result.EvalResult:
    """The scores of `config.tasks` (or of tasks `loaded` before) under `backend`.

    `samples` names the documents to score, by task. Raises an EvaljaxError for any input that cannot be meant.
    """
    prepared = prepare(loaded or load_tasks(config), config, backend, samples=samples)
    annotations = answer(prepared, backend, seed=config.seed)
    return score_all(prepared, config, annotations)


def load_tasks(config: config_lib.RunConfig, task_manager: manager.TaskManager | None = None) -> load.LoadedTasks:
    """The tasks and groups that `config` names, checked: no model is needed, no document read."""
    loaded = load.load_tasks(
        config.tasks,
        manager=task_manager or manager.TaskManager(include_path=list(config.task_path)),
        num_fewshot=config.num_fewshot,
        gen_kwargs=config.gen_kwargs,
        trust_task_code=config.trust_task_code,
        data_mirror=config.data_mirror,
    )
    check_tasks(loaded, config)
    return loaded


def check_tasks(loaded: load.LoadedTasks, config: config_lib.RunConfig) -> None:
    """Raises TaskError for a metric, filter, group or generation setting that cannot be meant."""
    for item in loaded.tasks.values():
        metrics.check_config(item.config)
        if item.config.output_type == "generate_until":
            sampling(item.config, config.seed)
    configs = {name: item.config for name, item in loaded.tasks.items()}
    for group in loaded.groups.values():
        groups.check_members(group, loaded.groups, configs)


def check_lengths(loaded: load.LoadedTasks, config: config_lib.RunConfig, max_length: int | None) -> None:
    """Raises ConfigError for a task whose generations leave no room for a prompt in `max_length` tokens."""
    for item in loaded.tasks.values():
        if max_length is not None and item.config.output_type == "generate_until":
            generation.check_length(sampling(item.config, config.seed), max_length, where=item.config.source)


def check_thinking(loaded: load.LoadedTasks, think_end_token: str | None) -> None:
    """Raises ConfigError for a task that begins the answer itself (`gen_prefix`), where the model would think first."""
    for item in loaded.tasks.values():
        if think_end_token and item.config.gen_prefix and item.config.output_type == "generate_until":
            raise errors.ConfigError(
                f"{item.config.source}: task {item.config.task} has gen_prefix={item.config.gen_prefix!r}, and "
                f"model.think_end_token={think_end_token!r}: an answer that has begun leaves no place for a thought. "
                "Leave one of them out"
            )


def prepare(
    loaded: load.LoadedTasks,
    config: config_lib.RunConfig,
    backend: backend_lib.Backend,
    *,
    samples: Mapping[str, Sequence[int]] | None = None,
) -> Prepared:
    """`loaded` with documents read and requests built.

    Of `backend` only chat template, `max_length` and, where `config.overlength` needs it, `count_tokens` are used.
    """
    if samples is not None and not (isinstance(samples, Mapping) and samples):
        raise errors.ConfigError(f"samples must map task names to lists of document indices, found {samples!r}.")
    for name in samples or ():
        lookup.check(loaded.tasks, name, what="task", where="samples")
    loaded = loaded if samples is None else loaded.only(samples)
    check_lengths(loaded, config, getattr(backend, "max_length", None))
    check_thinking(loaded, config.model.think_end_token)
    rule = overlength_rule(loaded, config, backend)
    chat = None
    if config.apply_chat_template:
        multiturn = True if config.fewshot_as_multiturn is None else config.fewshot_as_multiturn
        chat = prompt.ChatFormat(apply=backend.apply_chat_template, multiturn=multiturn)
    examples = {
        name: instances.build_examples(
            item,
            limit=config.limit,
            samples=None if samples is None else samples.get(name),
            chat=chat,
            system_instruction=config.system_instruction,
            seed=config.seed,
            rule=rule,
        )
        for name, item in loaded.tasks.items()
    }
    return Prepared(loaded=loaded, examples=examples)


def overlength_rule(
    loaded: load.LoadedTasks, config: config_lib.RunConfig, backend: backend_lib.Backend
) -> overlength.Rule | None:
    """What becomes of documents that the model cannot read whole; None: the backend cuts them, or has no limit."""
    if config.overlength == "truncate_left":
        return None
    missing = [name for name in ("count_tokens", "max_length") if not hasattr(backend, name)]
    if missing:
        raise errors.ConfigError(
            f"overlength={config.overlength!r}: {type(backend).__name__} lacks {' and '.join(missing)}, so what is too "
            "long is not known before it is asked; expected overlength='truncate_left', or a backend that has both."
        )
    measured: Any = backend  # the protocol promises neither
    if measured.max_length is None:
        return None
    unanswered = Prepared(loaded=loaded, examples={})

    def count(items: Sequence[instance.Instance]) -> Sequence[int]:
        asked = plain_requests(unanswered, items[0].request_type, items, config.seed) if items else []
        counted = list(measured.count_tokens(asked))
        if len(counted) != len(items):
            raise errors.RequestError(
                f"the backend's count_tokens returned {len(counted)} numbers to {len(items)} requests; "
                "a list of one number each, in order, is expected."
            )
        return counted

    return overlength.Rule(policy=config.overlength, max_length=measured.max_length, count=count)


def requests_by_type(prepared: Prepared) -> dict[str, list[instance.Instance]]:
    """Every instance under its request type, in lm-eval's order; each stands there `repeats` times in a row."""
    asked: dict[str, list[instance.Instance]] = {}
    for examples in prepared.examples.values():
        for item in asked_instances(examples):
            asked.setdefault(item.request_type, []).extend([item] * (item.repeats or 1))
    return asked


def asked_instances(examples: Sequence[task.Example]) -> list[instance.Instance]:
    """The requests of the documents that are not skipped."""
    return [item for example in examples if not example.skipped for item in example.instances]


def plain_requests(prepared: Prepared, request_type: str, items: Sequence[instance.Instance], seed: int) -> list[Any]:
    """What the backend is asked for `items`, in order."""
    if request_type == "loglikelihood":
        return [request.LoglikelihoodRequest(*item.args) for item in items]
    if request_type == "loglikelihood_rolling":
        return [request.RollingRequest(*item.args) for item in items]
    policies = {
        name: sampling(prepared.loaded.tasks[str(name)].config, seed) for name in {item.task_name for item in items}
    }
    repeat: collections.Counter[int] = collections.Counter()
    asked = []
    for item in items:
        asked.append(request.GenerateRequest(item.args[0], policies[item.task_name], repeat[id(item)]))
        repeat[id(item)] += 1
    return asked


def sampling(config: task.TaskConfig, seed: int) -> request.Sampling:
    """How the task's answers are generated."""
    return generation.sampling(
        config.generation_kwargs or {}, where=config.source, default_until=config.fewshot_delimiter, seed=seed
    )


def answer(prepared: Prepared, backend: backend_lib.Backend, *, seed: int) -> Annotations:
    """Fills every instance's `resps`, all tasks' requests of a kind in one call; returns what the engine noted."""
    noted: dict[str, dict[int, dict[str, Any]]] = collections.defaultdict(lambda: collections.defaultdict(dict))
    for request_type, items in requests_by_type(prepared).items():
        asked = plain_requests(prepared, request_type, items, seed)
        responses = getattr(backend, request_type)(asked)
        if not isinstance(responses, Sequence) or len(responses) != len(items):
            found = f"{len(responses)} answers" if isinstance(responses, Sequence) else type(responses).__name__
            raise errors.RequestError(
                f"the backend's {request_type} returned {found} to {len(items)} requests; "
                "a list of one answer each, in order, is expected."
            )
        for item, response in zip(items, responses, strict=True):
            item.resps.append(answer_value(response, request_type))
            document = noted[str(item.task_name)][int(item.doc_id or 0)]
            for key, value in notes(response).items():
                document[key] = document[key] + value if key in document else value
    return noted


def answer_value(response: request.Response, request_type: str) -> Any:
    """The response as task code sees it: (logprob, is_greedy), logprob, or text."""
    expected = RESPONSES[request_type]
    if not isinstance(response, expected):
        raise errors.RequestError(
            f"the backend's {request_type} returned {type(response).__name__}; "
            f"evaljax.core.request.{expected.__name__} is expected."
        )
    if isinstance(response, request.GenerateResponse):
        if not isinstance(response.text, str):
            raise errors.RequestError(f"the backend's {request_type} gave the text {response.text!r}; expected text.")
        return response.text
    if not isinstance(response.logprob, numbers.Real):
        raise errors.RequestError(
            f"the backend's {request_type} gave the log-probability {response.logprob!r}; expected a number."
        )
    return response.logprob if isinstance(response, request.RollingResponse) else (response.logprob, response.is_greedy)


def notes(response: request.Response) -> dict[str, Any]:
    """What a sample should say beside its score, additive over a document's requests; empty for an ordinary answer."""
    found: dict[str, Any] = {}
    if num_truncated := getattr(response, "num_truncated", 0):
        found["tokens_dropped"] = num_truncated
        found["truncated"] = 1
    if getattr(response, "boundary_merge", False):
        found["boundary_merges"] = 1
    if isinstance(response, request.GenerateResponse):
        found["finish_reasons"] = [str(response.finish_reason)]
        if response.unfinished_thought:
            found["unfinished_thoughts"] = 1
    return found


def score_all(prepared: Prepared, config: config_lib.RunConfig, annotations: Annotations) -> result.EvalResult:
    """Filters, scores and rolls up the answered instances."""
    scored = {}
    for name, examples in prepared.examples.items():
        item = prepared.loaded.tasks[name]
        apply_filters(item.config, examples)
        noted = annotations.get(name, {})
        outcome = score.score_task(
            item.config,
            examples,
            num_docs=instances.num_docs(item),
            num_fewshot=item.config.num_fewshot or 0,
            bootstrap_iters=config.bootstrap_iters,
            log_samples=config.log_samples,
            allow_nonfinite=config.engine.allow_nonfinite,
            annotations={example.doc_id: annotation(example, noted.get(example.doc_id, {})) for example in examples},
        )
        counts = {**length_counts(examples, noted), **engine_counts(noted), **outcome.counts}
        scored[name] = dataclasses.replace(outcome, counts=counts)
    return result.EvalResult(
        tasks=scored, groups=groups.roll_up(prepared.loaded.groups, scored), facts=run_facts(config)
    )


def annotation(example: task.Example, note: Mapping[str, Any]) -> dict[str, Any]:
    """What a document's samples say beside its values; nothing where nothing was out of the ordinary."""
    found = {**note, "truncated": note.get("truncated", 0) > 0} if note else {}
    if example.shots_dropped:
        found["shots_dropped"] = example.shots_dropped
    if example.skipped:
        found["skipped"] = True
    return found


def apply_filters(config: task.TaskConfig, examples: Sequence[task.Example]) -> None:
    """Fills every instance's `filtered_resps`, one entry for each pipeline."""
    items = asked_instances(examples)
    docs = [item.doc for item in items]
    for pipeline in config.filter_list:
        answers = filters.run_pipeline(pipeline, [item.resps for item in items], docs, where=config.source)
        for item, value in zip(items, answers, strict=True):
            item.filtered_resps[pipeline.name] = value


def length_counts(examples: Sequence[task.Example], noted: Mapping[int, Mapping[str, Any]]) -> dict[str, int]:
    """What was lost because the model reads no more: documents and tokens, documents and shots, documents."""
    counts = {
        "truncated": sum(bool(note.get("truncated")) for note in noted.values()),
        "tokens_dropped": sum(note.get("tokens_dropped", 0) for note in noted.values()),
        "shortened": sum(bool(example.shots_dropped) for example in examples),
        "shots_dropped": sum(example.shots_dropped for example in examples),
        "skipped": sum(example.skipped for example in examples),
    }
    return {key: count for key, count in counts.items() if count}


def engine_counts(noted: Mapping[int, Mapping[str, Any]]) -> dict[str, int]:
    """Merges at joins, generations cut at their length or before an answer."""
    counts = {
        "boundary_merges": sum(note.get("boundary_merges", 0) for note in noted.values()),
        "cut_generations": sum(note.get("finish_reasons", []).count("length") for note in noted.values()),
        "unfinished_thoughts": sum(note.get("unfinished_thoughts", 0) for note in noted.values()),
    }
    return {key: count for key, count in counts.items() if count}


def run_facts(config: config_lib.RunConfig) -> dict[str, Any]:
    """What a reader of the results needs to repeat the run."""
    return {"config": dataclasses.asdict(config), "date": time.time()}

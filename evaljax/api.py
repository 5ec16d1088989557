"""`simple_evaluate` and `evaluate` with lm-eval's names, defaults and result keys.

Every keyword of lm-eval 0.4.13's is here. One that evaljax does not support raises with its reason; none is ignored.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, cast

from evaljax import evaluation, recipe, run
from evaljax.core import backend as backend_lib
from evaljax.core import config as config_lib
from evaljax.core import errors, lookup
from evaljax.core import progress as progress_lib
from evaljax.report import results_json
from evaljax.tasks import load, manager

MODEL_ARGS: Mapping[str, str] = {
    "pretrained": "path",
    **{field.name: field.name for field in dataclasses.fields(config_lib.ModelSpec) if field.name != "backend"},
}
_NO_GLOBAL_SEED = "evaljax never seeds a global generator; the few-shot draw has fewshot_random_seed"
_UNSUPPORTED: Mapping[str, str] = {
    "max_batch_size": "the engine chooses its shapes; see RunConfig.engine",
    "device": "JAX chooses the device; set JAX_PLATFORMS before Python starts",
    "cache_requests": "requests are built in seconds and never cached",
    "rewrite_requests_cache": "requests are built in seconds and never cached",
    "delete_requests_cache": "requests are built in seconds and never cached",
    "check_integrity": "lm-eval's own integrity test no longer exists; use `evaljax validate`",
    "write_out": "use `evaljax show TASK`",
    "evaluation_tracker": "results come back as a dictionary; `evaljax.run` writes files",
    "verbosity": "evaljax does not log; it raises",
    "predict_only": "requests without scores are in the samples (log_samples=True)",
    "random_seed": _NO_GLOBAL_SEED,
    "numpy_random_seed": _NO_GLOBAL_SEED,
    "torch_random_seed": _NO_GLOBAL_SEED,
    "confirm_run_unsafe_code": "generated code is not run",
}
_DEFAULTS: Mapping[str, Any] = {
    "random_seed": 0,
    "numpy_random_seed": 1234,
    "torch_random_seed": 1234,
    "verbosity": "INFO",
}


def simple_evaluate(  # noqa: PLR0913 - lm-eval's signature
    model: str | backend_lib.Backend,
    model_args: str | Mapping[str, Any] | None = None,
    tasks: Sequence[str | dict[str, Any]] | str | None = None,
    num_fewshot: int | None = None,
    batch_size: int | str | None = None,
    max_batch_size: int | None = None,
    device: str | None = None,
    use_cache: str | None = None,
    cache_requests: bool = False,
    rewrite_requests_cache: bool = False,
    delete_requests_cache: bool = False,
    limit: float | None = None,
    samples: Mapping[str, Sequence[int]] | None = None,
    bootstrap_iters: int = 100_000,
    check_integrity: bool = False,
    write_out: bool = False,
    log_samples: bool = True,
    evaluation_tracker: Any = None,
    system_instruction: str | None = None,
    apply_chat_template: bool = False,
    fewshot_as_multiturn: bool = True,
    gen_kwargs: str | Mapping[str, Any] | None = None,
    task_manager: manager.TaskManager | None = None,
    verbosity: str | None = None,
    predict_only: bool = False,
    random_seed: int | None = 0,
    numpy_random_seed: int | None = 1234,
    torch_random_seed: int | None = 1234,
    fewshot_random_seed: int = 1234,
    confirm_run_unsafe_code: bool = False,
    metadata: Mapping[str, Any] | None = None,
    *,
    data_mirror: str | None = None,
    trust_task_code: bool = False,
    overlength: str = "truncate_left",
    progress: progress_lib.Progress = progress_lib.silent,
) -> dict[str, Any]:
    """lm-eval's result dictionary for `tasks` under `model`.

    Args:
      model: "jax", "torch" (or "hf"), "fake", "module:attribute", or an object with the methods of `evaljax.Backend`.
      model_args: "pretrained=DIR,dtype=float32" or a dictionary; keys are those of `ModelSpec`, and `pretrained`.
      batch_size: sequences that decode at once in the JAX backend, `ModelSpec.batch_size` of any other; None or
        "auto": chosen.
      samples: {task: document indices}; other tasks are left out, prompts are those of the full run.
      data_mirror: a folder laid out as the hub (owner/name), looked up before the network.
      trust_task_code: whether `!function` code outside evaljax's own tasks may run.
      use_cache: a folder where answers are kept as they come and found again (lm-eval: a file).
      overlength: what happens to requests longer than the model reads; see `RunConfig`.
      progress: told how far the work is.

    The other arguments are lm-eval's. A standard error that is not defined is None, not "N/A".

    Raises:
      EvaljaxError: for input that cannot be meant, and for a keyword that evaljax does not support.
    """
    _refuse_unsupported(locals())
    if samples is not None and limit is not None:
        raise errors.ConfigError("limit and samples exclude each other; give one of them.")
    config = recipe.run_config(
        {
            "tasks": [tasks] if isinstance(tasks, dict) else tasks,
            "num_fewshot": num_fewshot,
            "limit": limit,
            "model": _model_values(model, model_args, batch_size),
            "engine": _engine_values(model, batch_size),
            "data_mirror": data_mirror,
            "apply_chat_template": apply_chat_template,
            "fewshot_as_multiturn": fewshot_as_multiturn if apply_chat_template else None,
            "system_instruction": system_instruction,
            "gen_kwargs": gen_kwargs or {},
            "seed": fewshot_random_seed,
            "trust_task_code": trust_task_code,
            "overlength": overlength,
            "cache_dir": use_cache,
            "log_samples": log_samples,
            "bootstrap_iters": bootstrap_iters,
        },
        where="simple_evaluate",
    )
    known = _task_manager(task_manager, metadata)
    loaded = evaluation.load_tasks(config, known)
    backend = run.open_backend(config, progress) if isinstance(model, str) else _checked(model)
    if use_cache is not None and not hasattr(backend, "keep_answers"):
        raise errors.ConfigError(f"use_cache={use_cache!r}: {type(backend).__name__} cannot keep answers.")
    with run.keeping_answers(config, backend):
        outcome = evaluation.evaluate(config, backend, loaded=loaded, samples=samples)
    return results_json.results_dict(outcome, samples=log_samples)


def evaluate(  # noqa: PLR0913 - lm-eval's signature
    lm: backend_lib.Backend,
    task_dict: Mapping[str, Any],
    limit: float | None = None,
    samples: Mapping[str, Sequence[int]] | None = None,
    cache_requests: bool = False,
    rewrite_requests_cache: bool = False,
    bootstrap_iters: int = 100_000,
    write_out: bool = False,
    log_samples: bool = True,
    system_instruction: str | None = None,
    apply_chat_template: bool = False,
    fewshot_as_multiturn: bool = False,
    verbosity: str = "INFO",
    confirm_run_unsafe_code: bool = False,
    *,
    seed: int = 1234,
) -> dict[str, Any]:
    """lm-eval's result dictionary for tasks that are already loaded; see `simple_evaluate`.

    `task_dict` is what `TaskManager.load` returns, or its "tasks" alone.
    """
    _refuse_unsupported(locals())
    tasks = task_dict.get("tasks", task_dict) if isinstance(task_dict, Mapping) else None
    if not isinstance(tasks, Mapping) or {type(item) for item in tasks.values()} != {load.Task}:
        raise errors.ConfigError(f"task_dict: expected what TaskManager.load returns, found {task_dict!r:.200}.")
    loaded = load.LoadedTasks(dict(tasks), dict(task_dict.get("groups", {}) if tasks is not task_dict else {}))
    config = recipe.run_config(
        {
            "tasks": tuple(loaded.tasks),
            "limit": limit,
            "bootstrap_iters": bootstrap_iters,
            "log_samples": log_samples,
            "system_instruction": system_instruction,
            "apply_chat_template": apply_chat_template,
            "fewshot_as_multiturn": fewshot_as_multiturn if apply_chat_template else None,
            "seed": seed,
        },
        where="evaluate",
    )
    evaluation.check_tasks(loaded, config)
    outcome = evaluation.evaluate(config, _checked(lm), loaded=loaded, samples=samples)
    return results_json.results_dict(outcome, samples=log_samples)


def _refuse_unsupported(given: Mapping[str, Any]) -> None:
    for name, reason in _UNSUPPORTED.items():
        value = given.get(name)
        if value not in (None, False, _DEFAULTS.get(name)):
            raise errors.ConfigError(f"{name}={value!r} is not supported: {reason}.")


def _model_values(model: str | backend_lib.Backend, model_args: Any, batch_size: Any) -> dict[str, Any]:
    if not isinstance(model, str):
        if model_args:
            raise errors.ConfigError("model_args goes with a model's name; this model is an object.")
        return {}
    values: dict[str, Any] = {"backend": model}
    for key, value in recipe.mapping(model_args or {}, where="model_args").items():
        values[lookup.find(MODEL_ARGS, key, what="model argument", where="model_args")] = value
    if isinstance(batch_size, int) and not isinstance(batch_size, bool) and model != "jax":
        values["batch_size"] = batch_size
    return values


def _engine_values(model: str | backend_lib.Backend, batch_size: Any) -> dict[str, Any]:
    if batch_size is None or batch_size == "auto":
        return {}
    if not isinstance(batch_size, int) or isinstance(batch_size, bool) or not isinstance(model, str):
        raise errors.ConfigError(
            f"batch_size={batch_size!r}: expected a whole number or 'auto', and a model given by name."
        )
    return {"num_slots": batch_size} if model == "jax" else {}


def _task_manager(given: Any, metadata: Any) -> manager.TaskManager:
    if metadata is not None and not isinstance(metadata, Mapping):
        raise errors.ConfigError(f"metadata={metadata!r}: expected a mapping.")
    if given is None:
        return manager.TaskManager(metadata=metadata)
    if not isinstance(given, manager.TaskManager):
        raise errors.ConfigError(f"task_manager={given!r}: expected an evaljax.TaskManager.")
    if metadata:
        raise errors.ConfigError("metadata goes with the default tasks; give it to your own TaskManager.")
    return given


def _checked(model: Any) -> backend_lib.Backend:
    if isinstance(model, type):
        raise errors.ConfigError(f"model: {model.__name__} is a class; expected an object, for example one it makes.")
    missing = backend_lib.missing_methods(model)
    if missing:
        raise errors.ConfigError(f"model: {type(model).__name__} is no evaljax.Backend; it lacks {', '.join(missing)}.")
    return cast(backend_lib.Backend, model)

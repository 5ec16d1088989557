import dataclasses
import inspect
import json

import pytest

import evaljax
from evaljax import testing
from evaljax.core import errors, request


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("toy")
    for kind in ("multiple_choice", "generate_until", "loglikelihood_rolling"):
        testing.toy_task(folder, kind)
    return folder


@pytest.fixture
def manager(toy):
    return evaljax.TaskManager(include_path=str(toy))


def test_simple_evaluate_returns_lm_evals_keys(manager):
    made = evaljax.simple_evaluate(model="fake", tasks=["toy_multiple_choice"], task_manager=manager, num_fewshot=2)
    for key in (
        "results",
        "group_subtasks",
        "configs",
        "versions",
        "n-shot",
        "higher_is_better",
        "n-samples",
        "samples",
    ):
        assert key in made
    row = made["results"]["toy_multiple_choice"]
    assert {"alias", "acc,none", "acc_stderr,none", "acc_norm,none", "acc_norm_stderr,none", "sample_len"} <= set(row)
    assert made["n-shot"] == {"toy_multiple_choice": 2}
    assert len(made["samples"]["toy_multiple_choice"]) == 6
    json.dumps(made, allow_nan=False)


def test_an_object_with_the_five_methods_is_a_model(manager):
    backend = testing.FakeBackend()
    assert isinstance(backend, evaljax.Backend)
    by_object = evaljax.simple_evaluate(model=backend, tasks="toy_multiple_choice", task_manager=manager)
    by_name = evaljax.simple_evaluate(model="fake", tasks="toy_multiple_choice", task_manager=manager)
    assert by_object["results"] == by_name["results"]


def test_evaluate_takes_what_the_task_manager_loads(manager):
    made = evaljax.evaluate(testing.FakeBackend(), manager.load(["toy_generate_until"]), limit=2)
    assert made["n-samples"] == {"toy_generate_until": {"original": 6, "effective": 2}}


def test_samples_select_documents_and_keep_their_numbers_and_prompts(manager):
    def ask(**selection):
        made = evaljax.simple_evaluate(
            model="fake", tasks=["toy_multiple_choice"], task_manager=manager, num_fewshot=2, **selection
        )
        return {sample["doc_id"]: sample["prompt_hash"] for sample in made["samples"]["toy_multiple_choice"]}

    everything = ask()
    assert ask(samples={"toy_multiple_choice": [4, 1]}) == {i: everything[i] for i in (1, 4)}
    assert ask(limit=2) == {i: everything[i] for i in (0, 1)}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"limit": 2, "samples": {"toy_multiple_choice": [0]}}, "limit and samples exclude each other"),
        ({"samples": {"toy_multiple_choise": [0]}}, r"samples: unknown task 'toy_multiple_choise'\. Did you mean"),
        ({"samples": {"toy_multiple_choice": [99]}}, "samples must be one or more places from 0 to 5, found 99"),
        ({"device": "cuda:0"}, "device='cuda:0' is not supported: JAX chooses the device"),
        ({"torch_random_seed": 7}, "torch_random_seed=7 is not supported: evaljax never seeds a global generator"),
        ({"predict_only": True}, "predict_only=True is not supported"),
        ({"use_cache": "x"}, "use_cache='x': FakeBackend cannot keep answers"),
        ({"write_out": True}, "write_out=True is not supported: use `evaljax show TASK`"),
        ({"model_args": "pretraind=x"}, "unknown model argument 'pretraind'. Did you mean 'pretrained'"),
        ({"model_args": "pretrained=/a,b"}, "expected key=value pairs separated by commas"),
        ({"tasks": []}, "tasks = .*; expected at least one task name"),
        ({"batch_size": "many"}, "batch_size='many': expected a whole number or 'auto'"),
    ],
)
def test_an_argument_that_cannot_be_meant_says_why(manager, arguments, message):
    given = {"model": "fake", "tasks": ["toy_multiple_choice"], "task_manager": manager, **arguments}
    with pytest.raises(errors.ConfigError, match=message):
        evaljax.simple_evaluate(**given)


def test_an_object_that_is_no_model_names_what_it_lacks(manager):
    class Half:
        def loglikelihood(self, requests):
            return []

    with pytest.raises(errors.ConfigError, match=r"Half is no evaljax\.Backend; it lacks loglikelihood_rolling, gen"):
        evaljax.simple_evaluate(model=Half(), tasks=["toy_multiple_choice"], task_manager=manager)


def test_a_backend_that_loses_an_answer_is_named(manager):
    class Forgetful(testing.FakeBackend):
        def loglikelihood(self, requests):
            return super().loglikelihood(requests)[:-1]

    with pytest.raises(errors.RequestError, match="loglikelihood returned 17 answers to 18 requests"):
        evaljax.simple_evaluate(model=Forgetful(), tasks=["toy_multiple_choice"], task_manager=manager)


def test_what_the_engine_noted_stands_in_samples_and_health(manager):
    class Noting(testing.FakeBackend):
        def loglikelihood(self, requests):
            answers = super().loglikelihood(requests)
            noted = dataclasses.replace(answers[0], num_truncated=2, boundary_merge=True)
            return [noted, *answers[1:]]

        def generate_until(self, requests):
            return [request.GenerateResponse("x", 1, request.FinishReason.LENGTH) for _ in requests]

    tasks = ["toy_multiple_choice", "toy_generate_until"]
    made = evaljax.simple_evaluate(model=Noting(), tasks=tasks, task_manager=manager)
    first = made["samples"]["toy_multiple_choice"][0]
    assert (first["truncated"], first["tokens_dropped"], first["boundary_merges"]) == (True, 2, 1)
    assert "truncated" not in made["samples"]["toy_multiple_choice"][1]
    assert made["health"]["toy_multiple_choice"]["truncated"] == 1
    assert made["health"]["toy_multiple_choice"]["boundary_merges"] == 1
    assert made["health"]["toy_generate_until"]["cut_generations"] == 6
    assert made["samples"]["toy_generate_until"][0]["finish_reasons"] == ["length"]


def test_unfinished_thoughts_stand_in_samples_and_health(manager):  # case C59
    class Thinking(testing.FakeBackend):
        def generate_until(self, requests):
            cut = request.GenerateResponse("", 8, request.FinishReason.LENGTH, unfinished_thought=True)
            return [cut, cut, *super().generate_until(requests[2:])]

    made = evaljax.simple_evaluate(model=Thinking(), tasks=["toy_generate_until"], task_manager=manager)
    samples = made["samples"]["toy_generate_until"]
    assert [sample.get("unfinished_thoughts") for sample in samples] == [1, 1, None, None, None, None]
    assert samples[0]["resps"] == [[""]]
    assert made["health"]["toy_generate_until"]["unfinished_thoughts"] == 2
    assert made["health"]["toy_generate_until"]["empty_generations"] >= 2


def test_an_answer_that_has_begun_leaves_no_place_for_a_thought(manager):  # case C50
    def ask(task, **model_args):
        task = {"task": task, "gen_prefix": "So:"}
        return evaljax.simple_evaluate(model="fake", model_args=model_args, tasks=[task], task_manager=manager)

    with pytest.raises(
        errors.ConfigError,
        match=r"task toy_generate_until has gen_prefix='So:', and model\.think_end_token='</think>': .* Leave one",
    ):
        ask("toy_generate_until", think_end_token="</think>")
    ask("toy_generate_until")
    ask("toy_multiple_choice", think_end_token="</think>")  # nothing is generated: nothing is thought


def test_the_signatures_hold_every_keyword_of_lm_eval():
    names = list(inspect.signature(evaljax.simple_evaluate).parameters)
    assert names[:10] == [
        "model", "model_args", "tasks", "num_fewshot", "batch_size", "max_batch_size", "device", "use_cache",
        "cache_requests", "rewrite_requests_cache",
    ]  # fmt: skip
    assert {"gen_kwargs", "task_manager", "fewshot_random_seed", "metadata", "confirm_run_unsafe_code"} <= set(names)
    assert list(inspect.signature(evaljax.evaluate).parameters)[:2] == ["lm", "task_dict"]


def test_an_instance_has_lm_evals_fields():
    item = evaljax.Instance("loglikelihood", {"q": 1}, ("c", " a"), 2, ("task", 5, 1))
    assert (item.task_name, item.doc_id, item.repeats, item.args) == ("task", 5, 1, ("c", " a"))
    assert item.resps == []
    assert item.filtered_resps == {}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"samples": {}}, "samples must map task names to lists"),
        ({"samples": "toy_multiple_choice"}, "samples must map task names to lists"),
        ({"model": testing.FakeBackend}, "FakeBackend is a class; expected an object"),
        ({"task_manager": "tasks"}, "task_manager='tasks': expected an evaljax.TaskManager"),
        ({"metadata": {"a": 1}}, "metadata goes with the default tasks"),
        ({"metadata": "a", "task_manager": None}, "metadata='a': expected a mapping"),
        ({"batch_size": True}, "batch_size=True: expected a whole number"),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused(manager, given, message):
    with pytest.raises(errors.ConfigError, match=message):
        evaljax.simple_evaluate(**{"model": "fake", "tasks": ["toy_multiple_choice"], "task_manager": manager, **given})


def test_samples_of_one_member_leave_the_group_with_that_member(manager):
    group = {"group": "both", "task": ["toy_multiple_choice", "toy_generate_until"]}
    made = evaljax.simple_evaluate(
        model="fake", tasks=[group], task_manager=manager, samples={"toy_multiple_choice": [1, 4]}
    )
    assert set(made["results"]) == {"both", "toy_multiple_choice"}
    assert made["n-samples"]["toy_multiple_choice"]["effective"] == 2


@pytest.mark.parametrize("task_dict", [None, {}, {"toy": 1}])
def test_evaluate_needs_loaded_tasks(task_dict):
    with pytest.raises(errors.ConfigError, match=r"task_dict: expected what TaskManager\.load returns"):
        evaljax.evaluate(testing.FakeBackend(), task_dict)


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        (lambda asked: None, "returned NoneType to 18 requests"),
        (lambda asked: (one for one in asked), "returned generator to 18 requests"),
        (lambda asked: [request.RollingResponse(-1.0, 1)] * len(asked), "returned RollingResponse; .*Loglikelihood"),
        (lambda asked: [request.LoglikelihoodResponse(None, False, 1)] * len(asked), "log-probability None; expected"),
    ],
)
def test_a_backend_that_answers_with_something_else_is_named(manager, answers, message):
    class Odd(testing.FakeBackend):
        def loglikelihood(self, requests):
            return answers(requests)

    with pytest.raises(errors.RequestError, match=message):
        evaljax.simple_evaluate(model=Odd(), tasks=["toy_multiple_choice"], task_manager=manager)

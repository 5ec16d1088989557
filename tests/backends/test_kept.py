"""Which answers are found again, and which never: what is asked and what answers decide, no name does."""

import dataclasses
import json
import pathlib
import shutil
import sqlite3

import numpy as np
import pytest
from huggingface_hub import constants
from safetensors import numpy as safetensors_numpy

from evaljax import testing
from evaljax.backends import table
from evaljax.core import config, errors, request
from evaljax.engine import journal

ENGINE = config.EngineOptions(chunk_length=16)
CONTEXTS = [f"Q: Which number follows {n}?\nA:" for n in range(12)]
SCORED = [request.LoglikelihoodRequest(context, f" {n}") for n, context in enumerate(CONTEXTS)]
ROLLING = [request.RollingRequest(context) for context in CONTEXTS[:4]]
DRAWN = request.Sampling(max_gen_toks=4, temperature=1.0, seed=3)
WRITTEN = [
    *(request.GenerateRequest(context, request.Sampling(max_gen_toks=4)) for context in CONTEXTS[:3]),
    *(request.GenerateRequest(CONTEXTS[0], DRAWN, repeat) for repeat in range(3)),
]


@pytest.fixture
def ask(tiny_model, tmp_path):
    """Asks a new backend that keeps its answers in one folder; gives them, and how many sequences were found there."""

    def asked(*, scored=(), rolling=(), written=(), model=tiny_model, engine=ENGINE, folder="kept", **spec):
        backend = table.open_backend(config.ModelSpec(path=str(model), **spec), engine)
        backend.keep_answers(tmp_path / folder)
        try:
            answers = (
                backend.loglikelihood(scored), backend.loglikelihood_rolling(rolling), backend.generate_until(written)
            )  # fmt: skip
        finally:
            backend.close()
        return answers, backend.figures

    return asked


def change_tensor(folder: pathlib.Path, change) -> None:
    """Writes the model's weights again, in the same place, after `change` of the tensors."""
    file = folder / "model.safetensors"
    tensors = safetensors_numpy.load_file(str(file))
    change(tensors)
    safetensors_numpy.save_file(tensors, str(file), metadata={"format": "pt"})


@pytest.fixture
def own_model(tiny_model, tmp_path):
    """A copy of the model that a test may change."""
    return shutil.copytree(tiny_model, tmp_path / "model")


@pytest.mark.slow
def test_everything_is_found_again_without_weights_or_programs(ask):
    asked = {"scored": SCORED, "rolling": ROLLING, "written": WRITTEN}
    first, before = ask(**asked)
    again, after = ask(**asked)
    assert again == first
    assert before["answers_kept"] == 0
    assert after["answers_kept"] == len(SCORED) + len(ROLLING) + len(WRITTEN)
    assert (after["seconds"]["load"], after["compiled"]) == (0.0, [])
    assert {kind: figures["requests"] for kind, figures in after["plans"].items()} == {
        "loglikelihood": len(SCORED),
        "loglikelihood_rolling": len(ROLLING),
        "generate_until": len(WRITTEN),
    }
    assert len({text.text for text in first[2][3:]}) == 3, "three repeats are three draws"


@pytest.mark.slow
def test_what_is_new_is_all_that_is_computed(ask):
    (first, _, texts), _ = ask(scored=SCORED[:6], written=WRITTEN[:4])
    (second, _, more), figures = ask(scored=SCORED, written=WRITTEN)
    assert figures["answers_kept"] == 10
    assert figures["plans"]["loglikelihood"]["targets"] == sum(answer.num_tokens for answer in second[6:])
    assert figures["plans"]["generate_until"]["generations"] == 2
    assert (second[:6], more[:4]) == (first, texts)


@pytest.mark.parametrize(
    "other",
    [
        {"dtype": "bfloat16"},
        {"precision": "default"},
        {"add_bos_token": True},
        {"max_length": 100},
        {"engine": dataclasses.replace(ENGINE, deterministic=True)},
        {"engine": dataclasses.replace(ENGINE, share_prefixes=False)},
    ],
    ids=["dtype", "precision", "tokenizer", "max_length", "deterministic", "share_prefixes"],
)
def test_another_arithmetic_tokenizer_or_limit_finds_nothing(ask, other):
    ask(scored=SCORED[:2])
    assert ask(scored=SCORED[:2], **other)[1]["answers_kept"] == 0


@pytest.mark.slow
def test_deterministic_bits_are_those_of_one_chunk_length_and_one_mesh(ask):
    engine = dataclasses.replace(ENGINE, deterministic=True)
    ask(scored=SCORED[:2], engine=engine)
    for other, found in ({"chunk_length": 32}, 0), ({"data": 2, "model": 1}, 0), ({"num_rows": 2}, 2):
        assert ask(scored=SCORED[:2], engine=dataclasses.replace(engine, **other))[1]["answers_kept"] == found


@pytest.mark.slow
def test_texts_of_other_sampling_are_not_found(ask):
    ask(written=WRITTEN[3:4])
    changes = ({"seed": 4}, {"temperature": 0.5}, {"max_gen_toks": 5}, {"until": ("1",)}, {"top_k": 5}, {"top_p": 0.5})
    others = [request.GenerateRequest(CONTEXTS[0], dataclasses.replace(DRAWN, **change)) for change in changes]
    assert ask(written=others)[1]["answers_kept"] == 0
    assert ask(written=WRITTEN[3:4], think_end_token="9")[1]["answers_kept"] == 0
    assert ask(written=WRITTEN[3:4])[1]["answers_kept"] == 1


def test_one_weight_that_changed_in_place_finds_nothing_until_it_is_back(ask, own_model):
    file = own_model / "model.safetensors"
    before, content = file.stat(), file.read_bytes()
    (first, _, _), _ = ask(scored=SCORED, model=own_model)
    change_tensor(own_model, lambda tensors: tensors["model.norm.weight"].__setitem__(0, 9.0))
    assert file.stat().st_size == before.st_size
    (other, _, _), figures = ask(scored=SCORED, model=own_model)
    assert figures["answers_kept"] == 0
    assert [a.logprob for a in other] != [a.logprob for a in first]
    file.write_bytes(content)  # by what is in it, not by where it is or when it was written
    (again, _, _), figures = ask(scored=SCORED, model=own_model)
    assert (again, figures["answers_kept"]) == (first, len(SCORED))
    assert figures["seconds"]["load"] > 0


def test_a_copy_of_the_model_elsewhere_finds_everything(ask, own_model):
    first, _ = ask(scored=SCORED)
    again, figures = ask(scored=SCORED, model=own_model)
    assert (again, figures["answers_kept"]) == (first, len(SCORED))


def test_weights_that_can_no_longer_be_read_are_an_error_not_an_old_answer(ask, own_model):
    ask(scored=SCORED[:1], model=own_model)
    file = own_model / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(errors.CheckpointError, match=r"model\.safetensors"):
        ask(scored=SCORED[:1], model=own_model)


def test_a_configuration_that_changed_finds_nothing(ask, own_model):
    ask(scored=SCORED[:1], model=own_model)
    file = own_model / "config.json"
    file.write_text(file.read_text().replace('"rope_theta": 500.0', '"rope_theta": 600.0'))
    assert ask(scored=SCORED[:1], model=own_model)[1]["answers_kept"] == 0


def test_another_text_of_the_same_tokens_is_not_found(ask, own_model):
    ask(written=WRITTEN[:1], model=own_model)
    file = own_model / "tokenizer_config.json"
    settings = json.loads(file.read_text()) | {"clean_up_tokenization_spaces": True}
    file.write_text(json.dumps(settings))
    assert ask(written=WRITTEN[:1], model=own_model)[1]["answers_kept"] == 0


def test_weights_that_are_written_while_a_run_goes_on_end_it(tmp_path, own_model, ask):
    ask(scored=SCORED[:1], model=own_model)
    backend = table.open_backend(config.ModelSpec(path=str(own_model)), ENGINE)
    backend.keep_answers(tmp_path / "kept")
    assert len(backend.loglikelihood(SCORED[:1])) == 1  # found: the weights are not read
    change_tensor(own_model, lambda tensors: tensors["model.norm.weight"].__setitem__(0, 9.0))
    with pytest.raises(errors.CheckpointError, match="its files have changed since this run began"):
        backend.loglikelihood(SCORED)
    backend.close()


def test_a_backend_whose_journal_was_closed_still_answers(tmp_path, tiny_model):
    backend = table.open_backend(config.ModelSpec(path=str(tiny_model)), ENGINE)
    backend.keep_answers(tmp_path)
    backend.close()
    assert len(backend.loglikelihood(SCORED[:1])) == 1
    assert backend.notes == []
    assert backend.figures["answers_kept"] == 0


@pytest.fixture(scope="module")
def overflowing(tmp_path_factory):
    """A model that overflows where it reads an exclamation mark."""
    folder = testing.tiny_model_folder(tmp_path_factory.mktemp("overflowing"))
    mark = len(testing.SPECIALS)  # the first printable byte
    change_tensor(folder, lambda tensors: tensors["model.embed_tokens.weight"].__setitem__(mark, np.inf))
    return folder


def records(folder: pathlib.Path) -> int:
    """How many there are in the journal of a folder."""
    with sqlite3.connect(folder / journal.NAME) as connection:
        [(count,)] = connection.execute("SELECT count(*) FROM answers").fetchall()
    connection.close()
    return int(count)


def test_numbers_that_are_none_are_kept_only_where_they_are_allowed_and_stop_whoever_does_not(
    ask, tmp_path, overflowing
):
    bad = [request.LoglikelihoodRequest("a!", " b")]
    for _ in range(2):
        with pytest.raises(errors.RequestError, match="log-probability is nan"):
            ask(scored=bad, model=overflowing)
        assert records(tmp_path / "kept") == 2, "the model's fingerprint and what the run was to do, no answer"
    lax = dataclasses.replace(ENGINE, allow_nonfinite=True)
    assert ask(scored=bad, model=overflowing, engine=lax)[1]["answers_kept"] == 0
    ((answer,), _, _), figures = ask(scored=bad, model=overflowing, engine=lax)
    assert np.isnan(answer.logprob)
    assert figures["answers_kept"] == 1
    with pytest.raises(errors.RequestError, match="log-probability is nan"):
        ask(scored=bad, model=overflowing)


def test_a_text_from_numbers_that_are_none_stops_whoever_does_not_allow_them(ask, overflowing):
    bad = [request.GenerateRequest("a!", request.Sampling(max_gen_toks=2))]
    lax = dataclasses.replace(ENGINE, allow_nonfinite=True)
    first, _ = ask(written=bad, model=overflowing, engine=lax)
    again, figures = ask(written=bad, model=overflowing, engine=lax)
    assert (again, figures["answers_kept"]) == (first, 1)
    with pytest.raises(errors.RequestError, match="logits that are not finite"):
        ask(written=bad, model=overflowing)


@pytest.mark.slow
def test_a_model_of_the_hub_is_known_by_the_files_of_its_snapshot(ask, tiny_model, tmp_path, monkeypatch):
    cache = tmp_path / "hub" / "models--some--model"
    (cache / "refs").mkdir(parents=True)
    (cache / "refs" / "main").write_text("c1")
    shutil.copytree(tiny_model, cache / "snapshots" / "c1")
    other = testing.tiny_model_folder(cache / "snapshots" / "c2", seed=1)
    assert other.is_dir()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    first, _ = ask(scored=SCORED[:2], model="some/model")
    again, figures = ask(scored=SCORED[:2], model="some/model")
    assert (again, figures["answers_kept"], figures["seconds"]["load"]) == (first, 2, 0.0)
    (cache / "refs" / "main").write_text("c2")
    assert ask(scored=SCORED[:2], model="some/model")[1]["answers_kept"] == 0

import pathlib

import numpy as np
import pytest

import evaljax
from evaljax.backends import opening
from evaljax.core import config, errors, request


def test_demo_is_the_folder_inside_the_package():
    assert pathlib.Path(opening.find_model("demo")) == pathlib.Path(evaljax.__file__).parent / "demo"


@pytest.mark.parametrize("name", ["gpt2", "owner/name", "owner/name-1.5B_x"])
def test_what_may_be_a_hub_id_is_left_alone(name):
    assert opening.find_model(name) == name


def test_a_folder_may_have_any_name(tmp_path):
    folder = tmp_path / "step=10,lr=1e-3"
    folder.mkdir()
    assert opening.find_model(str(folder)) == str(folder)


@pytest.mark.parametrize(
    "name", ["./nope", "/no/such/folder", "a/b/c", "model.gguf", "~/surely-not-there", "name/", ""]
)
def test_what_looks_like_a_path_and_does_not_exist_is_named(name):
    with pytest.raises(errors.CheckpointError, match=f"model.path='{name}': no such folder or file"):
        opening.find_model(name)


def test_a_file_that_is_no_model_is_answered_with_its_folder(tmp_path):
    file = tmp_path / "model.safetensors"
    file.touch()
    message = f"model.path='{file}' is a file; give the folder that holds it, '{tmp_path}', or a .gguf file"
    with pytest.raises(errors.CheckpointError, match=message):
        opening.find_model(str(file))
    with pytest.raises(errors.CheckpointError, match=r"model\.tokenizer='.*' is a file; give the folder"):
        opening.read_tokenizer(config.ModelSpec(tokenizer=str(file)), "")


@pytest.mark.parametrize("name", ["~surely-no-such-user/model", "x" * 5000])
def test_what_cannot_be_looked_up_is_named(name):
    with pytest.raises(errors.CheckpointError, match=f"model.path='{name[:20]}.*': cannot be looked up"):
        opening.find_model(name)


def test_a_missing_folder_is_answered_with_what_there_is(tmp_path):
    (tmp_path / "smollm").mkdir()
    with pytest.raises(errors.CheckpointError, match=f"{tmp_path} exists and holds: smollm"):
        opening.find_model(str(tmp_path / "smolm"))


def test_the_limit_is_the_models_own_unless_a_smaller_one_is_asked_for():
    assert opening.max_length(config.ModelSpec(), 128) == 128
    assert opening.max_length(config.ModelSpec(max_length=64), 128) == 64
    with pytest.raises(errors.ConfigError, match=r"model\.max_length=129: expected 1 to 128"):
        opening.max_length(config.ModelSpec(max_length=129), 128)


def test_an_id_without_an_embedding_is_an_error_that_names_the_request():
    asked = [request.RollingRequest("fine"), request.RollingRequest("odd")]
    with pytest.raises(errors.RequestError, match=r"rolling request \(text 'odd'\): token id 9, .* has 9 entries"):
        opening.check_ids([np.array([8, 0]), np.array([9])], asked, 9)

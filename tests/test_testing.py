import json
import pathlib

import pytest

from evaljax import testing
from evaljax.core import errors, task


def test_tokenizer_gives_back_every_byte_and_knows_its_merges(tmp_path):
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_file(str(testing.byte_tokenizer_files(tmp_path) / "tokenizer.json"))
    text = "the é 日本 \x00\n the"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert tokenizer.encode(" the").tokens == ["Ġthe"]
    assert tokenizer.encode("the").tokens == ["t", "he"]


def test_a_tokenizer_that_adds_bos_adds_one(tmp_path):
    import tokenizers

    folder = testing.byte_tokenizer_files(tmp_path, add_bos=True)
    assert tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).encode("ab").tokens == ["<bos>", "a", "b"]


def test_models_of_one_seed_are_equal_and_of_two_seeds_differ(tmp_path):
    first, again, other = (
        (testing.tiny_model_folder(tmp_path / name, seed=seed) / "model.safetensors").read_bytes()
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert first == again
    assert first != other


@pytest.mark.parametrize("output_type", task.OUTPUT_TYPES)
def test_toy_task_is_a_yaml_file_beside_its_documents(tmp_path, output_type):
    import yaml

    file = testing.toy_task(tmp_path, output_type, num_docs=4)
    fields = yaml.safe_load(file.read_text(encoding="utf-8"))
    assert fields["task"] == f"toy_{output_type}"
    assert fields["output_type"] == output_type
    documents_file = pathlib.Path(fields["dataset_kwargs"]["data_files"]["test"])
    documents = [json.loads(line) for line in documents_file.read_text(encoding="utf-8").splitlines()]
    assert len(documents) == 4
    assert all(document["choices"][document["label"]] == document["answer"] for document in documents)


def test_toy_task_of_an_unknown_kind_names_the_nearest(tmp_path):
    with pytest.raises(
        errors.ConfigError, match=r"unknown output type 'multiple_choices'. Did you mean 'multiple_choice'"
    ):
        testing.toy_task(tmp_path, "multiple_choices")

import json
import os

import numpy as np
import pytest

from evaljax.core import errors
from evaljax.report import files, plain


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (np.array(2.0), 2.0),
        (np.array([1, 2]), [1, 2]),
        (float("nan"), None),
        (float("inf"), None),
        (np.float64("nan"), None),
        ((1, "a", None), [1, "a", None]),
        ({"b", "a"}, ["a", "b"]),
        ({1: 2.5}, {"1": 2.5}),
    ],
)
def test_values_become_plain_json(value, expected):  # cases C89, C90
    made = plain.plain(value)
    assert made == expected
    assert type(made) is type(expected)
    json.loads(json.dumps(made, allow_nan=False))


def test_a_function_is_written_as_its_source():
    assert "def test_a_function_is_written" in plain.plain(test_a_function_is_written_as_its_source)


def test_a_file_is_replaced_whole_and_leaves_no_temporary(tmp_path):
    path = tmp_path / "results.json"
    files.write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        files.write_text(path, 5)
    assert json.loads(path.read_text()) == {"a": 1}
    assert os.listdir(tmp_path) == ["results.json"]


def test_lone_surrogates_from_a_model_can_be_written(tmp_path):
    files.write_jsonl(tmp_path / "a.jsonl", [{"text": "\ud800"}])
    assert (tmp_path / "a.jsonl").stat().st_size > 0


def test_a_folder_that_cannot_be_written_is_refused_by_name(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.OutputError, match=r"output_dir .*file/below.* cannot be written"):
        files.check_writable(tmp_path / "file" / "below")


def test_a_folder_that_becomes_a_file_is_one_error(tmp_path):
    (tmp_path / "out").write_text("")
    with pytest.raises(errors.OutputError, match="cannot be written"):
        files.write_text(tmp_path / "out" / "results.json", "{}")
    with pytest.raises(errors.OutputError, match="cannot be removed: Not a directory"):
        files.remove(tmp_path / "out" / "results.json")


def test_names_that_cannot_be_files_are_refused_before_a_run(tmp_path):
    (tmp_path / "results.json").mkdir()
    with pytest.raises(errors.OutputError, match=r"results\.json: is a folder"):
        files.check_names(tmp_path, ["manifest.json", "results.json"])
    with pytest.raises(errors.OutputError, match="is longer than 220 bytes"):
        files.check_names(tmp_path, ["é" * 111])

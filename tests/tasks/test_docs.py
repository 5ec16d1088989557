"""Documents from a mirror, a folder, files, a function; and what is said when there are none."""

import os
import socket
import stat
import sys

import pytest

from evaljax.core import errors
from evaljax.tasks import instances


def documents(folder, mirror=None, trust=False, shots=None):
    return folder.load("toy", mirror=mirror, trust=trust, num_fewshot=shots).tasks["toy"].documents


def test_a_mirror_is_looked_up_first(folder):
    folder.data("hub/owner/name", test=folder.rows(2))
    folder.toy(dataset_path="owner/name")
    split = documents(folder, mirror=str(folder.root / "hub")).split("test")
    assert split.docs == folder.rows(2)
    assert split.columns == ("question", "choices", "label", "answer")


def test_a_mirror_that_may_not_be_written_is_read(folder):
    hub = folder.data("hub/owner/name", test=folder.rows(2)).parent.parent
    folder.toy(dataset_path="owner/name")
    before = sorted(str(p) for p in hub.rglob("*"))
    for path in [hub, *hub.rglob("*")]:
        os.chmod(path, stat.S_IRUSR | (stat.S_IXUSR if path.is_dir() else 0))
    assert len(documents(folder, mirror=str(hub)).split("test").docs) == 2
    assert sorted(str(p) for p in hub.rglob("*")) == before
    for path in [hub, *hub.rglob("*")]:
        os.chmod(path, 0o755)


def test_parquet_needs_neither_datasets_nor_pandas(folder, monkeypatch):
    folder.data(test=folder.rows(2))
    task = folder.toy()
    monkeypatch.setitem(sys.modules, "datasets", None)
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert instances.num_docs(task) == 2


def test_the_configuration_is_chosen_by_name(folder):
    folder.data(config="easy", test=folder.rows(2))
    readme = folder.root / "data" / "README.md"
    hard = '- config_name: hard\n  data_files:\n  - split: test\n    path: "easy/test-*.parquet"\n'
    readme.write_text(readme.read_text().replace("---\n# toy", hard + "---\n# toy"))
    assert len(folder.toy(dataset_name="hard").documents.split("test").docs) == 2
    with pytest.raises(errors.DataError, match=r"task 'toy': .*unknown dataset_name 'hrd'. Did you mean 'hard'"):
        folder.toy(dataset_name="hrd").documents.split("test")
    with pytest.raises(errors.DataError, match=r"has several configurations: give dataset_name. Known: easy, hard"):
        folder.toy().documents.split("test")


def test_an_unknown_split_names_the_known_ones(toy_folder):
    with pytest.raises(
        errors.DataError, match=r"task 'toy': .*unknown split 'tests'. Did you mean 'test'\? Known: test, train"
    ):
        instances.num_docs(toy_folder.toy(test_split="tests"))


def test_a_fewshot_split_that_is_missing_matters_only_with_shots(toy_folder):
    task = toy_folder.toy(fewshot_split="dev")
    build = {"limit": 1, "chat": None, "system_instruction": None, "seed": 1}
    assert len(instances.build_examples(task, **build)) == 1
    with pytest.raises(errors.DataError, match="unknown split 'dev'"):
        instances.build_examples(toy_folder.toy(fewshot_split="dev", shots=1), **build)


def test_an_empty_split_is_an_error(toy_folder):
    toy_folder.text("code.py", "def nothing(dataset): return dataset.select([])\n")
    task = toy_folder.toy(process_docs=toy_folder.function("code.nothing"), trust=True)
    with pytest.raises(errors.DataError, match="task 'toy': split 'test' of data is empty"):
        instances.num_docs(task)


def test_process_docs_sees_a_dataset_and_changes_documents_and_columns(toy_folder):
    toy_folder.text(
        "code.py", "def double(dataset): return dataset.map(lambda d: {'twice': d['label'] * 2}).select([1, 3])\n"
    )
    task = toy_folder.toy(process_docs=toy_folder.function("code.double"), trust=True)
    split = task.documents.split("test", task.config.process_docs)
    assert [(doc["question"], doc["twice"]) for doc in split.docs] == [("1+1?", 2), ("3+3?", 2)]
    assert split.columns[-1] == "twice"
    assert instances.num_docs(task) == 2


def test_a_process_docs_that_fails_names_task_and_split(toy_folder):
    toy_folder.text("code.py", "def wrong(dataset): return dataset['absent']\n")
    task = toy_folder.toy(process_docs=toy_folder.function("code.wrong"), trust=True)
    with pytest.raises(errors.DataError, match=r"task 'toy': process_docs wrong failed on split 'test': ValueError"):
        instances.num_docs(task)


def test_local_jsonl_is_read_beside_the_task_file_without_a_network(folder, monkeypatch):  # case C112
    asked = []

    def refuse(*args, **kwargs):
        asked.append(args)
        raise OSError("there is no network")

    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    import datasets
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", folder.root / "cache")
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    (folder.root / "tasks").mkdir()
    folder.jsonl("tasks/rows.jsonl", folder.rows(3))
    folder.yaml(
        "tasks/toy.yaml",
        task="toy",
        dataset_path="json",
        dataset_kwargs={"data_files": {"test": "rows.jsonl"}, "trust_remote_code": True},
        test_split="test",
    )
    assert documents(folder).split("test").docs == folder.rows(3)
    with pytest.raises(errors.DataError, match=r"there is no split 'train' in json\. Known: test"):
        documents(folder).split("train")
    assert asked == []  # not even where the answer would not matter: `datasets` counts its readers' uses


def test_hub_addresses_of_data_files_are_found_in_the_mirror(folder):
    from evaljax.tasks import docs

    hub = folder.root / "hub"
    folder.data("hub/owner/name", test=folder.rows(1))
    folder.jsonl("hub/owner/name/x.jsonl", [])
    urls = [
        "hf://datasets/owner/name/x.jsonl",
        "hf://datasets/owner/name@main/x.jsonl",
        "https://huggingface.co/datasets/owner/name/resolve/main/x.jsonl",
    ]
    assert docs._map_files({"test": urls}, hub, folder.root) == {"test": [str(hub / "owner/name/x.jsonl")] * 3}
    other = "https://huggingface.co/datasets/owner/other/resolve/main/x.jsonl"
    assert docs._map_files(other, hub, folder.root) == other


@pytest.mark.parametrize("files", ["absent.jsonl", ["absent.jsonl"], {"test": "absent.jsonl"}])
def test_a_file_that_does_not_exist_is_named_where_it_is_looked_for_first(folder, files):
    folder.toy(dataset_path="json", dataset_kwargs={"data_files": files})
    with pytest.raises(errors.DataError, match=rf"task 'toy': there is no data file {folder.root}/absent\.jsonl\."):
        documents(folder).split("test")


def test_a_file_in_the_current_folder_is_read_where_none_is_beside_the_task(folder, monkeypatch):
    (folder.root / "elsewhere").mkdir()
    folder.jsonl("elsewhere/here.jsonl", folder.rows(2))
    monkeypatch.chdir(folder.root / "elsewhere")
    folder.toy(dataset_path="json", dataset_kwargs={"data_files": {"test": "here.jsonl"}})
    assert len(documents(folder).split("test").docs) == 2


def test_an_unreached_hub_is_asked_once_and_the_ways_out_are_named(folder, monkeypatch, caplog):
    from huggingface_hub import constants

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{free.getsockname()[1]}"
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, endpoint)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    folder.toy(dataset_path="nobody/nothing")
    message = r"nobody/nothing cannot be read: .*\. Give data_mirror=FOLDER, .* or set HF_HUB_OFFLINE=1 and use cached"
    with pytest.raises(errors.DataError, match=message):
        documents(folder).split("test")
    assert not caplog.records  # the library tells of every attempt
    assert constants.HF_HUB_OFFLINE is False
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(errors.DataError, match=r"Give data_mirror=FOLDER, .* or unset HF_HUB_OFFLINE\."):
        documents(folder).split("test")


def test_a_broken_parquet_file_is_a_data_error(folder):
    file = folder.data(test=folder.rows(1)) / "default" / "test-0.parquet"
    file.write_bytes(b"PAR1 no more")
    with pytest.raises(errors.DataError, match=r"test-0\.parquet: cannot be read as parquet"):
        folder.toy().documents.split("test")


def test_a_custom_dataset_gets_metadata_and_dataset_kwargs(folder):
    folder.text("code.py", "def make(size, word, **rest): return {'test': [{'q': word} for _ in range(size)]}\n")
    head = "task: toy\ntest_split: test\ncustom_dataset: !function code.make\nmetadata: {size: 2}\n"
    folder.text("toy.yaml", head + "dataset_kwargs: {word: x}\n")
    assert documents(folder, trust=True).split("test").docs == [{"q": "x"}, {"q": "x"}]
    folder.text("toy.yaml", head + "dataset_kwargs: {size: 3}\n")
    with pytest.raises(errors.TaskError, match="'size' is both in metadata and in dataset_kwargs"):
        documents(folder, trust=True).split("test")
    folder.text("code.py", "def make(**rest): return []\n")
    folder.text("toy.yaml", head)
    with pytest.raises(errors.DataError, match="custom_dataset must return documents by split, found list"):
        documents(folder, trust=True).split("test")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "json cannot be read: a file is empty"),
        (b"no json\n", "json cannot be read: ArrowInvalid: JSON parse error"),
        (b'{"question": "\xe9"}\n', "split 'test' of json is not UTF-8"),
    ],
)
def test_a_file_that_is_no_json_lines_says_why(folder, content, message, monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", folder.root / "cache")
    (folder.root / "toy.jsonl").write_bytes(content)
    task = folder.toy(dataset_path="json", dataset_kwargs={"data_files": {"test": "toy.jsonl"}})
    with pytest.raises(errors.DataError, match=f"task 'toy': {message}"):
        task.documents.split("test")

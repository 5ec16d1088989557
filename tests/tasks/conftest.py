"""Task files and documents in a folder of the test's own."""

import json
import pathlib

import pyarrow
import pyarrow.parquet
import pytest
import yaml

from evaljax.tasks import load as loading
from evaljax.tasks import manager

FIELDS = {
    "task": "toy",
    "dataset_path": "data",
    "test_split": "test",
    "output_type": "multiple_choice",
    "doc_to_text": "Q: {{question}}\nA:",
    "doc_to_target": "label",
    "doc_to_choice": "choices",
}


class _Function(str):
    """Written as `!function name`."""


class _Dumper(yaml.SafeDumper):
    """YAML with functions."""


_Dumper.add_representer(_Function, lambda dumper, name: dumper.represent_scalar("!function", str(name)))


class Folder:
    """A folder of task files; `data/` holds splits as parquet, laid out like a hub data set."""

    def __init__(self, root: pathlib.Path) -> None:
        self.root = root

    @staticmethod
    def function(name: str) -> str:
        """A field that names a function."""
        return _Function(name)

    @staticmethod
    def rows(count: int, start: int = 0) -> list[dict]:
        """Documents with two choices each, the first one right where the number is even."""
        return [
            {"question": f"{n}+{n}?", "choices": [f"T{n}", f"F{n}"], "label": n % 2, "answer": f"T{n}"}
            for n in range(start, start + count)
        ]

    def yaml(self, name: str, **fields) -> pathlib.Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.dump(fields, Dumper=_Dumper, sort_keys=False))
        return path

    def text(self, name: str, text: str) -> pathlib.Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def data(self, name: str = "data", config: str = "default", **splits) -> pathlib.Path:
        folder = self.root / name
        lines = ["---", "configs:", f"- config_name: {config}", "  data_files:"]
        for split, rows in splits.items():
            file = folder / config / f"{split}-0.parquet"
            file.parent.mkdir(parents=True, exist_ok=True)
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)
            lines += [f"  - split: {split}", f'    path: "{config}/{split}-*.parquet"']
        (folder / "README.md").write_text("\n".join([*lines, "---", "# toy"]))
        return folder

    def jsonl(self, name: str, rows) -> pathlib.Path:
        path = self.root / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    def load(
        self, *specs, num_fewshot=None, gen_kwargs=None, trust=False, mirror=None, metadata=None
    ) -> loading.LoadedTasks:
        tasks = manager.TaskManager(include_path=self.root, include_defaults=False, metadata=metadata)
        return loading.load_tasks(
            specs or ["toy"],
            manager=tasks,
            num_fewshot=num_fewshot,
            gen_kwargs=gen_kwargs or {},
            trust_task_code=trust,
            data_mirror=mirror,
        )

    def toy(self, shots=None, trust=False, **fields) -> loading.Task:
        """The task "toy" of this folder with some fields changed."""
        self.yaml("toy.yaml", **{**FIELDS, **fields})
        return self.load("toy", num_fewshot=shots, trust=trust).tasks["toy"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder that is also the working folder."""
    monkeypatch.chdir(tmp_path)
    return Folder(tmp_path)


@pytest.fixture
def toy_folder(folder):
    """A folder with 30 training and 12 test documents."""
    folder.data(train=folder.rows(30, 100), test=folder.rows(12))
    return folder

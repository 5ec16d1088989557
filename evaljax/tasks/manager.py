"""`TaskManager`: which tasks there are, and the tasks that names, patterns, files and mappings stand for."""

import fnmatch
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from evaljax.core import errors
from evaljax.tasks import index as indexing
from evaljax.tasks import library, load


class TaskManager:
    """lm-eval's TaskManager. Files are read when the first question is asked.

    `include_path`: folders whose tasks are added; of two with one name the last folder's holds.
    `include_defaults`: whether the tasks that ship with evaljax are there.
    `metadata`: added to the metadata of every task, for data sets that a function makes.
    """

    def __init__(
        self,
        verbosity: str | None = None,
        include_path: str | pathlib.Path | Sequence[str | pathlib.Path] | None = None,
        include_defaults: bool = True,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        if verbosity is not None:
            raise errors.ConfigError("TaskManager: verbosity has no effect: set the level with Python's logging.")
        given = [include_path] if isinstance(include_path, (str, pathlib.Path)) else list(include_path or ())
        self.roots = [pathlib.Path(root).expanduser() for root in given]
        self.include_defaults = include_defaults
        self.metadata = dict(metadata or {})
        self._index: indexing.TaskIndex | None = None

    @property
    def index(self) -> indexing.TaskIndex:
        """The index, read on the first call."""
        if self._index is None:
            defaults = [library.library_root()] if self.include_defaults else []
            self._index = indexing.build_index([*defaults, *self.roots])
        return self._index

    @property
    def task_index(self) -> dict[str, indexing.Entry]:
        """Every name and its entry."""
        return dict(self.index.entries)

    @property
    def all_tasks(self) -> list[str]:
        """The names of all tasks, groups and tags, sorted."""
        return self.index.names()

    @property
    def all_subtasks(self) -> list[str]:
        """The names of the tasks proper."""
        return self.index.names("task", "class")

    @property
    def all_groups(self) -> list[str]:
        """The names of the groups."""
        return self.index.names("group")

    @property
    def all_tags(self) -> list[str]:
        """The names of the tags."""
        return self.index.names("tag")

    def match_tasks(self, task_list: str | Sequence[str]) -> list[str]:
        """The names that match any of the patterns (`*`, `?`, `[...]`), sorted."""
        patterns = [task_list] if isinstance(task_list, str) else task_list
        return sorted({name for pattern in patterns for name in fnmatch.filter(self.all_tasks, pattern)})

    def load(
        self,
        task_list: str | Mapping[str, Any] | Sequence[Any],
        *,
        trust_task_code: bool = False,
        data_mirror: str | None = None,
    ) -> dict[str, Any]:
        """{"tasks": by name, "groups": by name, "group_map": names of direct children by group}, as in lm-eval."""
        specs = [task_list] if isinstance(task_list, (str, Mapping)) else list(task_list)
        loaded = load.load_tasks(
            specs,
            manager=self,
            num_fewshot=None,
            gen_kwargs={},
            trust_task_code=trust_task_code,
            data_mirror=data_mirror,
        )
        return {
            "tasks": dict(loaded.tasks),
            "groups": dict(loaded.groups),
            "group_map": {name: list(group.children) for name, group in loaded.groups.items()},
        }

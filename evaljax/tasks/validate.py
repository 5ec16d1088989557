"""What is wrong, or unwise, in task files: found without data and without running their code.

Errors are what would stop a run. Advice is what lm-eval does faithfully and its authors hardly meant: whitespace
written twice or not at all, a stop string that cuts numbers, a pattern that loses a character.
"""

import ast
import contextlib
import dataclasses
import importlib.util
import pathlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import jinja2
import yaml

from evaljax.core import build, errors, lookup, task
from evaljax.tasks import fewshot, generation, index, library, template, yaml_file

# A greedy quantifier, then a look-ahead for one character of any kind, at the end of a pattern.
_LOSES_LAST = re.compile(r"[*+}]\)*\(\?=\.\)$")
# What advice is given on; a task that knows better lists such fields under `metadata.accepted_advice`.
ADVICE = ("doc_to_text", "doc_to_choice", "description", "until", "regex_pattern", "num_fewshot")
_ACCEPTED = "accepted_advice"
_TEMPLATES = ("doc_to_text", "doc_to_target", "doc_to_choice", "description", "gen_prefix")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing to mend. `line` is None where it concerns no line; `advice` is not an error."""

    file: str
    line: int | None
    key: str
    message: str
    advice: bool = False

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{place}: {'advice' if self.advice else 'error'}: {self.message}"


def validate_tree(
    path: pathlib.Path | str,
    *,
    metrics: Collection[str] | None = None,
    filters: Collection[str] | None = None,
    aggregations: Collection[str] | None = None,
    check_scoring: Callable[[task.TaskConfig], object] | None = None,
) -> list[Finding]:
    """The findings of one task file or of all under a folder, by file.

    Names of metrics, filters and aggregations are checked where the known ones are given, and where these are right
    `check_scoring` raises a TaskError for what does not go together. Members of groups may also be tasks that ship with
    evaljax.
    """
    root = pathlib.Path(path).expanduser().resolve()
    if not root.exists():
        raise errors.TaskError(f"there is no file or folder {path}.")
    files = list(index.yaml_paths(root)) if root.is_dir() else [root]
    if not files:
        raise errors.TaskError(f"there is no task file (*.yaml) in the folder {path}.")
    own = index.build_index([root]) if root.is_dir() else index.TaskIndex(entries=dict(_neighbours(root)))
    known = {*index.build_index([library.library_root()]).entries, *own.entries}
    findings = [
        _found(second, "task", f"{name!r} is already defined in {first}.") for name, first, second in own.duplicates
    ]
    names = _Names(metrics=metrics, filters=filters, aggregations=aggregations, members=known, check=check_scoring)
    for file in files:
        findings += _file_findings(file, names)
    return sorted(set(findings), key=lambda finding: (finding.file, finding.line or 0, finding.message))


def _neighbours(file: pathlib.Path) -> Iterator[tuple[str, index.Entry]]:
    """The names that the files of the same folder define: a group's members mostly stand beside it."""
    for path in sorted(file.parent.glob("*.yaml")):
        with contextlib.suppress(errors.TaskError):  # told when that file is validated
            entry = index.read_entry(path)
            if entry is not None:
                yield entry.name, entry


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Names:
    metrics: Collection[str] | None
    filters: Collection[str] | None
    aggregations: Collection[str] | None
    members: Collection[str]
    check: Callable[[task.TaskConfig], object] | None


def _file_findings(file: pathlib.Path, names: _Names) -> Iterator[Finding]:
    try:
        yield from _repeated_keys(file)
        entry = index.read_entry(file)
    except errors.TaskError as error:
        yield _from_error(error, file, "include" if "include" in str(error) else "")
        return
    if entry is None or entry.kind == "class":
        return
    config = _checked(file, entry)
    if isinstance(config, Finding):
        yield config
        return
    for key, message, advice in _messages(entry.config, config, names):
        yield _found(file, key, message, advice=advice)


def _checked(file: pathlib.Path, entry: index.Entry) -> task.TaskConfig | task.GroupConfig | Finding:
    asked: list[str] = []

    def locate(key: str) -> str:
        asked.append(key)
        return yaml_file.locate(file, key)

    try:
        if entry.kind == "task":
            return build.task_config(entry.config, source=str(file), locate=locate)
        fields = {key: value for key, value in entry.config.items() if key in build.GROUP_FIELDS}
        return build.group_config(fields, source=str(file), locate=locate)
    except errors.TaskError as error:
        return _from_error(error, file, asked[-1] if asked else "")


def _from_error(error: errors.TaskError, file: pathlib.Path, key: str) -> Finding:
    found = re.match(r"(?P<file>.+?\.?\w*):(?P<line>\d+): (?P<message>.*)", str(error), re.DOTALL)
    if found:
        return Finding(file=found["file"], line=int(found["line"]), key=key, message=found["message"])
    return _found(file, key, str(error).removeprefix(f"{file}: "))


def _found(file: pathlib.Path, key: str, message: str, *, advice: bool = False) -> Finding:
    # What an included file says is told of that file, and once however many files include it.
    place, _, line = yaml_file.locate(file, key).rpartition(":")
    if line.isdigit():
        return Finding(file=place, line=int(line), key=key, message=message, advice=advice)
    return Finding(file=str(file), line=None, key=key, message=message, advice=advice)


def _repeated_keys(file: pathlib.Path) -> Iterator[Finding]:
    try:
        root = yaml.compose(file.read_bytes(), Loader=yaml_file.SAFE_LOADER)
    except (OSError, yaml.YAMLError):
        return  # told by whoever reads the file next
    seen: set[str] = set()
    for name, _ in root.value if isinstance(root, yaml.MappingNode) else ():
        if not isinstance(name, yaml.ScalarNode):
            continue
        if name.value in seen:
            line = name.start_mark.line + 1
            message = f"the key {name.value!r} stands there twice; only the last one counts."
            yield Finding(file=str(file), line=line, key=name.value, message=message)
        seen.add(name.value)


Message = tuple[str, str, bool]  # key, what is wrong, whether it is only advice


def _messages(raw: Mapping[str, Any], config: Any, names: _Names) -> Iterator[Message]:
    for ref in _references(raw):
        yield from _reference_messages(ref)
    if isinstance(config, task.GroupConfig):
        yield from _member_messages(raw, names)
        return
    yield from _template_messages(config)
    unknown = list(_name_messages(config, names))
    yield from unknown or _scoring_messages(config, names)
    yield from _generation_messages(config)
    yield from _accepted_messages(config)
    accepted = build.names(config.metadata.get(_ACCEPTED))
    for advice in (*_stop_advice(config), *_whitespace_advice(config), *_pattern_advice(config), *_pool_advice(config)):
        if advice[0] not in accepted:
            yield advice


def _references(value: Any) -> Iterator[task.FunctionRef]:
    if isinstance(value, task.FunctionRef):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _references(inner)


def _reference_messages(ref: task.FunctionRef) -> Iterator[Message]:
    module, _, name = ref.name.rpartition(".")
    file = pathlib.Path(ref.folder, module.replace(".", "/") + ".py")
    if not file.is_file():
        if importlib.util.find_spec(module.split(".")[0]) is None:
            yield ref.name, f"!function {ref.name}: there is no file {file} and no module {module!r}.", False
        return
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except SyntaxError as error:
        yield ref.name, f"!function {ref.name}: {file}:{error.lineno}: {error.msg}.", False
        return
    defined = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            defined.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            defined |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    if name not in defined and "*" not in defined:
        yield ref.name, f"!function {ref.name}: {file} has no {name!r}.{lookup.nearest(name, defined)}", False


def _member_messages(raw: Mapping[str, Any], names: _Names) -> Iterator[Message]:
    members = raw.get("task")
    if not members:
        yield "group", "the group has no members: give it a list under `task`.", False
    for number, member in enumerate(members if isinstance(members, list) else [members] if members else []):
        if isinstance(member, str):
            if member not in names.members:
                yield "task", f"task[{number}]: unknown task {member!r}.{lookup.nearest(member, names.members)}", False
        elif not isinstance(member, Mapping) or not isinstance(member.get("group", member.get("task")), str):
            yield "task", f"task[{number}] must be a name or a mapping with a name under `task` or `group`.", False
    known = [*build.TASK_FIELDS, *build.GROUP_FIELDS]
    for key in raw:
        if key not in known:
            yield key, f"unknown key {key!r} in group.{lookup.nearest(key, known)}", False


def _template_messages(config: task.TaskConfig) -> Iterator[Message]:
    for owner in (config, config.fewshot_config):
        for key in _TEMPLATES:
            value = getattr(owner, key, None)
            if isinstance(value, str):
                try:
                    template.compiled(value)
                except jinja2.TemplateSyntaxError as error:
                    yield key, f"{key}: the template cannot be read: {error.message} (its line {error.lineno}).", False


def _name_messages(config: task.TaskConfig, names: _Names) -> Iterator[Message]:
    for metric in config.metric_list:
        # A task that computes its own results may call them whatever it likes.
        free = config.process_results is not None or metric.hf_evaluate
        if not free:
            yield from _unknown("metric_list", "metric", metric.metric, names.metrics)
        yield from _unknown("metric_list", "aggregation", metric.aggregation, names.aggregations)
    for pipeline in config.filter_list:
        for step in pipeline.steps:
            yield from _unknown("filter_list", "filter", step.function, names.filters)
    yield from _unknown("sampler", "fewshot_config.sampler", config.fewshot_config.sampler, fewshot.SAMPLERS)


def _unknown(key: str, what: str, name: Any, known: Collection[str] | None) -> Iterator[Message]:
    if isinstance(name, str) and known is not None and name not in known:
        yield key, f"unknown {what} {name!r}.{lookup.nearest(name, known)} Known: {lookup.listing(known)}.", False


def _generation_messages(config: task.TaskConfig) -> Iterator[Message]:
    if config.output_type != "generate_until":
        return
    try:
        generation.sampling(config.generation_kwargs or {}, where=config.source)
    except errors.TaskError as error:
        yield "generation_kwargs", str(error).removeprefix(f"{config.source}: "), False


def _scoring_messages(config: task.TaskConfig, names: _Names) -> Iterator[Message]:
    try:
        if names.check is not None:
            names.check(config)
    except errors.TaskError as error:
        message = str(error).removeprefix(f"task {config.task!r} ({config.source}): ")
        yield "filter_list" if message.startswith("filter") else "metric_list", message, False


def _accepted_messages(config: task.TaskConfig) -> Iterator[Message]:
    value = config.metadata.get(_ACCEPTED, [])
    if not isinstance(value, list) or not all(isinstance(key, str) for key in value):
        yield _ACCEPTED, f"metadata.{_ACCEPTED} is {value!r}; expected a list of fields.", False
        return
    for key in value:
        yield from _unknown(_ACCEPTED, f"field in metadata.{_ACCEPTED}", key, ADVICE)


def _stop_advice(config: task.TaskConfig) -> Iterator[Message]:
    for stop in build.names((config.generation_kwargs or {}).get("until")):
        if stop in (".", ",") and config.output_type == "generate_until":
            yield "until", f"the stop string {stop!r} may cut numbers: 12.25 becomes 12.", True


def _whitespace_advice(config: task.TaskConfig) -> Iterator[Message]:
    text, gap, description = config.doc_to_text, config.target_delimiter, config.description
    if (
        isinstance(text, str)
        and text[-1:].isspace()
        and gap[:1].isspace()
        and config.output_type != "loglikelihood_rolling"
    ):
        yield (
            "doc_to_text",
            f"doc_to_text ends in {text[-1]!r} and target_delimiter {gap!r} follows: the whitespace is written twice. "
            'Set target_delimiter: "" or drop the end of the text.',
            True,
        )
    choices = config.doc_to_choice
    if (
        isinstance(choices, list)
        and gap[-1:].isspace()
        and any(isinstance(c, str) and c[:1].isspace() for c in choices)
    ):
        yield "doc_to_choice", f"a choice begins with whitespace and target_delimiter {gap!r} stands before it.", True
    if isinstance(description, str) and description and not description[-1].isspace() and description[-1] != "}":
        yield (
            "description",
            f"description ends in {description[-1]!r}, and nothing separates it from what follows: add a newline.",
            True,
        )


def _pattern_advice(config: task.TaskConfig) -> Iterator[Message]:
    for pipeline in config.filter_list:
        for step in pipeline.steps:
            pattern = step.kwargs.get("regex_pattern")
            if isinstance(pattern, str) and _LOSES_LAST.search(pattern):
                message = (
                    f"regex_pattern {pattern!r} loses the last character: the look-ahead keeps it out of the match."
                )
                yield "regex_pattern", message, True


def _pool_advice(config: task.TaskConfig) -> Iterator[Message]:
    if config.num_fewshot and fewshot.pool_split(config) == config.eval_split:
        message = (
            f"num_fewshot is {config.num_fewshot}, and examples come from {config.eval_split!r}, the split that is "
            "scored; name another split as training_split or fewshot_split."
        )
        yield "num_fewshot", message, True

"""Prompts: messages with delimiters, as plain text or through a chat template.

plain text   content + delimiter of every message, joined
multiturn    every message a chat turn; delimiters are not written
single turn  system | all user and assistant text in one user turn | an open assistant turn, if there is a prefix
"""

import dataclasses
from collections.abc import Callable, Sequence

ANSWER_JOIN = " "  # between gen_prefix and a few-shot answer, whatever the task's delimiter (lm-eval's rule)


@dataclasses.dataclass(frozen=True, slots=True)
class Message:
    """One turn. `delimiter` follows it in plain text and means nothing in chat."""

    role: str
    content: str
    delimiter: str = ""


@dataclasses.dataclass(frozen=True)
class ChatFormat:
    """How a prompt becomes chat: `apply(messages, add_generation_prompt)`; whether examples are turns of their own."""

    apply: Callable[[list[dict[str, str]], bool], str]
    multiturn: bool


def system_message(instruction: str | None, description: str, delimiter: str) -> list[Message]:
    """The system turn that opens a prompt, or nothing."""
    content = join(instruction or "", description, delimiter)
    return [Message("system", content)] if content else []


def question(text: str, *, prefix: str, delimiter: str) -> list[Message]:
    """The turn that is to be answered, the answer already begun where there is a `prefix`."""
    if not prefix:
        return [Message("user", text)]
    return [Message("user", text, _before_prefix(text, prefix, delimiter)), Message("assistant", prefix)]


def answered(text: str, answer: str, *, prefix: str, delimiter: str, end: str) -> list[Message]:
    """A few-shot example: the question and its answer, `end` after it. An empty answer leaves the question alone."""
    if not answer:
        return question(text, prefix=prefix, delimiter=delimiter)
    gap = _before_prefix(text, prefix, delimiter) if prefix else delimiter
    return [Message("user", text, gap), Message("assistant", join(prefix, answer, ANSWER_JOIN), end)]


def join(left: str, right: str, delimiter: str) -> str:
    """`left` and `right` with the delimiter between them, unless either is empty or brings whitespace of its own."""
    if not left or not right:
        return left or right
    return left + ("" if left[-1].isspace() or right[0].isspace() else delimiter) + right


def _before_prefix(text: str, prefix: str, delimiter: str) -> str:
    return delimiter if text and not (text[-1].isspace() or prefix[0].isspace()) else ""


def plain(messages: Sequence[Message]) -> str:
    """The messages as plain text."""
    return "".join([part for m in messages for part in (m.content, m.delimiter)])


def render(messages: Sequence[Message], chat: ChatFormat | None, *, prefix: str) -> str:
    """The whole prompt. With a prefix the last assistant turn stays open, so no generation prompt is added."""
    if chat is None:
        return plain(messages)
    turns = list(messages) if chat.multiturn else _single_turn(messages)
    return chat.apply([{"role": m.role, "content": m.content} for m in turns], not prefix)


def _single_turn(messages: Sequence[Message]) -> list[Message]:
    system = [m for m in messages[:1] if m.role == "system"]
    rest = messages[len(system) :]
    opened = [m for m in rest[-1:] if m.role == "assistant"]
    said = rest[: len(rest) - len(opened)]
    # The delimiter that would come before the answer belongs to the template now.
    content = plain(said[:-1]) + said[-1].content
    return [*system, Message("user", content), *opened]

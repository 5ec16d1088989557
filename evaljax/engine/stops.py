"""Where a generation ends: stop strings, exact to the character, on tokens that know nothing of characters.

The end is a function of the token stream alone, never of when the host looked at it:

    n     = the fewest tokens whose answer contains a stop string
    text  = those n tokens' answer, cut by lm-eval's rule (each stop in turn: what lies before its first occurrence)

The answer is the text; of a model that thinks first, what follows the last think end in it, without white space at its
beginning (lm-eval's rule). What comes before a think end, and that white space, stops nothing:

    a\\n\\na</think>\\n\\nb\\n\\nc   stop "\\n\\n": the answer is "b"
    a</think>b</think>c        no stop: "c". A stop in b would have ended the generation there: no second thought, no c
    a\\n\\na                     "": an unfinished thought is no answer (lm-eval: "a")

Text means both readings of the tokens: without special tokens (what is returned) and with them (so that "<|im_end|>" or
"\\n<|im_end|>" can be a stop although the returned text never shows it). A think end is looked for in the latter.
"""

import bisect
import dataclasses
from collections.abc import Sequence
from typing import Protocol

_LOOK_TOKENS = 32
_SLACK_TOKENS = 8  # some tokenizers decode the first tokens of a text differently (a dropped space, a lone UTF-8 byte)


class Detokenizer(Protocol):
    """What stops need of a tokenizer; `engine.tokenizer.Tokenizer` is one."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of the tokens."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class Ending:
    """`text` of a generation, the tokens it took (a stop's own included), and whether a stop string ended it.

    `unfinished_thought`: there was no think end, so the text is empty.
    """

    text: str
    num_tokens: int
    found: bool
    unfinished_thought: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class _Answer:
    """Where an answer begins: so many characters into either reading of the tokens from `first` on.

    `num_tokens` of the generation end with the last token of the think end; 0: there is none, the answer is the text.
    """

    first: int = 0
    num_tokens: int = 0
    plain: int = 0
    whole: int = 0

    def read(self, token_ids: Sequence[int], tokenizer: Detokenizer, *, special: bool = False) -> str:
        """The answer within a generation's `token_ids`, `special` tokens left out or not."""
        text = tokenizer.decode(token_ids[self.first :], skip_special_tokens=not special)
        return text[self.whole if special else self.plain :].lstrip() if self.num_tokens else text


class Watch:
    """One generation as it grows. What is found does not depend on how many tokens came between two looks."""

    def __init__(self, until: Sequence[str], tokenizer: Detokenizer, think_end: str = ""):
        self.until, self.tokenizer, self.think_end = tuple(until), tokenizer, think_end
        self._answer = None if think_end else _Answer()
        self._num_read = 0

    def read(self, token_ids: Sequence[int]) -> Ending | None:
        """The end, if a stop string ends the text within `token_ids`, which go on from those of the call before."""
        start, self._num_read = self._num_read, len(token_ids)
        signs = (self.think_end, *self.until) if self._answer else (self.think_end,)
        if not seen(token_ids, start, signs, self.tokenizer):
            return None
        while True:
            later = _next_answer(token_ids, self._answer, self.think_end, self.tokenizer) if self.think_end else None
            if self._answer:
                ids = token_ids[: later.num_tokens - 1] if later else token_ids
                if end := _stopped(ids, self._answer, self.until, self.tokenizer):
                    return end
            if later is None:
                return None
            self._answer = later

    def unstopped(self, token_ids: Sequence[int]) -> Ending:
        """The end of a generation in which `read` found no stop, and to which nothing will be added."""
        text = self._answer.read(token_ids, self.tokenizer) if self._answer else ""
        return Ending(text=text, num_tokens=len(token_ids), found=False, unfinished_thought=self._answer is None)


def cut(text: str, until: Sequence[str]) -> tuple[str, bool]:
    """(`text` before the stops, whether there was one): for each stop in order, what lies before its first occurrence.

    An empty stop string stops nothing, as in lm-eval.
    """
    rest = text
    for stop in until:
        if stop:
            rest = rest.partition(stop)[0]
    return rest, len(rest) < len(text)


def seen(token_ids: Sequence[int], start: int, until: Sequence[str], tokenizer: Detokenizer) -> bool:
    """Whether a stop string ends in `token_ids[start:]`; decodes only the tail that such a stop can reach into.

    A stop of b bytes spans at most b tokens, so looking b tokens back finds one that straddles `start`.
    """
    reach = max((_num_bytes(stop) for stop in until), default=0)
    if not reach:
        return False
    tail = token_ids[max(0, start - reach - _SLACK_TOKENS) :]
    return _contains(tail, _Answer(), until, tokenizer)


def ending(token_ids: Sequence[int], until: Sequence[str], tokenizer: Detokenizer, think_end: str = "") -> Ending:
    """The end of a generation whose tokens so far are `token_ids` (an end-of-sequence token may be the last)."""
    watch = Watch(until, tokenizer, think_end)
    for length in range(_LOOK_TOKENS, len(token_ids) + _LOOK_TOKENS, _LOOK_TOKENS):
        if end := watch.read(token_ids[:length]):
            return end
    return watch.unstopped(token_ids)


def _next_answer(
    token_ids: Sequence[int], answer: _Answer | None, think_end: str, tokenizer: Detokenizer
) -> _Answer | None:
    """The answer that begins with the next think end after `answer` began; None: there is no further one."""
    before = answer or _Answer()
    ids = token_ids[before.first :]

    def rest(length: int) -> str:
        return tokenizer.decode(ids[:length], skip_special_tokens=False)[before.whole :]

    if think_end not in rest(len(ids)):
        return None
    lengths = range(max(1, before.num_tokens - before.first), len(ids) + 1)
    length = lengths[bisect.bisect_left(lengths, True, key=lambda length: think_end in rest(length))]
    overhang = len(rest(length).partition(think_end)[2])  # the last token may go on after the think end
    num_tokens = before.first + length
    first = max(0, num_tokens - _num_bytes(think_end) - _SLACK_TOKENS)
    tail = token_ids[first:num_tokens]
    whole = len(tokenizer.decode(tail, skip_special_tokens=False)) - overhang
    return _Answer(first=first, num_tokens=num_tokens, plain=len(_visible(tail, whole, tokenizer)), whole=whole)


def _stopped(token_ids: Sequence[int], answer: _Answer, until: Sequence[str], tokenizer: Detokenizer) -> Ending | None:
    """The end, if `answer` contains a stop string within `token_ids`."""
    lengths = range(max(1, answer.num_tokens), len(token_ids) + 1)
    if not lengths or not _contains(token_ids, answer, until, tokenizer):
        return None
    place = bisect.bisect_left(
        lengths, True, key=lambda length: _contains(token_ids[:length], answer, until, tokenizer)
    )
    ids = token_ids[: lengths[place]]
    text, found = cut(answer.read(ids, tokenizer), until)
    if not found:  # the stop shows only where special tokens do
        whole = answer.read(ids, tokenizer, special=True)
        behind = len(whole) - len(cut(whole, until)[0])
        tail = ids[answer.first :]
        kept = len(tokenizer.decode(tail, skip_special_tokens=False)) - behind
        text = _visible(tail, kept, tokenizer)[answer.plain :]
        text = text.lstrip() if answer.num_tokens else text
    return Ending(text=text, num_tokens=len(ids), found=True)


def _contains(token_ids: Sequence[int], answer: _Answer, until: Sequence[str], tokenizer: Detokenizer) -> bool:
    plain = answer.read(token_ids, tokenizer)
    whole = answer.read(token_ids, tokenizer, special=True)
    return any(stop and (stop in plain or stop in whole) for stop in until)


def _num_bytes(text: str) -> int:
    return len(text.encode(errors="surrogatepass"))


def _visible(token_ids: Sequence[int], num_characters: int, tokenizer: Detokenizer) -> str:
    """The first `num_characters` of the text with special tokens, special tokens left out.

    whole    a b <|user|> c d \\n <|im_end|>      num_characters counts up to the \\n
    visible  a b          c d
    """
    whole = tokenizer.decode(token_ids, skip_special_tokens=False)
    for count in range(len(token_ids), -1, -1):
        head = tokenizer.decode(token_ids[:count], skip_special_tokens=False)
        if len(head) <= num_characters:
            break
    text = tokenizer.decode(token_ids[:count], skip_special_tokens=True)
    straddling = token_ids[count : count + 1]  # the token in which the stop begins; a special one shows nothing
    if straddling and tokenizer.decode(straddling, skip_special_tokens=True):
        text += whole[len(head) : num_characters]
    return text

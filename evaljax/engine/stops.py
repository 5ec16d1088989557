"""Where a generation ends: stop strings, exact to the character, on tokens that know nothing of characters.

The end is a function of the token stream alone, never of when the host looked at it:

    n     = the fewest tokens whose text contains a stop string
    text  = those n tokens' text, cut by lm-eval's rule (each stop in turn: what lies before its first occurrence)

Text means both readings of the tokens: without special tokens (what is returned) and with them (so that "<|im_end|>" or
"\\n<|im_end|>" can be a stop although the returned text never shows it).
"""

import bisect
import dataclasses
from collections.abc import Sequence
from typing import Protocol

_SLACK_TOKENS = 8  # some tokenizers decode the first tokens of a text differently (a dropped space, a lone UTF-8 byte)


class Detokenizer(Protocol):
    """What stops need of a tokenizer; `engine.tokenizer.Tokenizer` is one."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of the tokens."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class Ending:
    """`text` of a generation, the tokens it took (a stop's own included), and whether a stop string ended it."""

    text: str
    num_tokens: int
    found: bool


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
    reach = max((len(stop.encode()) for stop in until), default=0)
    if not reach:
        return False
    tail = token_ids[max(0, start - reach - _SLACK_TOKENS) :]
    return _contains(tail, until, tokenizer)


def ending(token_ids: Sequence[int], until: Sequence[str], tokenizer: Detokenizer) -> Ending:
    """The end of a generation whose tokens so far are `token_ids` (an end-of-sequence token may be the last)."""
    if not _contains(token_ids, until, tokenizer):
        return Ending(
            text=tokenizer.decode(token_ids, skip_special_tokens=True), num_tokens=len(token_ids), found=False
        )
    lengths = range(1, len(token_ids) + 1)
    first = bisect.bisect_left(lengths, True, key=lambda length: _contains(token_ids[:length], until, tokenizer))
    ids = token_ids[: lengths[first]]
    text, found = cut(tokenizer.decode(ids, skip_special_tokens=True), until)
    if not found:  # the stop shows only where special tokens do
        text = _visible(ids, len(cut(tokenizer.decode(ids, skip_special_tokens=False), until)[0]), tokenizer)
    return Ending(text=text, num_tokens=len(ids), found=True)


def _contains(token_ids: Sequence[int], until: Sequence[str], tokenizer: Detokenizer) -> bool:
    plain = tokenizer.decode(token_ids, skip_special_tokens=True)
    whole = tokenizer.decode(token_ids, skip_special_tokens=False)
    return any(stop and (stop in plain or stop in whole) for stop in until)


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

"""WikiText's tokens turned back into running text, by the steps that published perplexities were measured with."""

import re
from typing import Any

# In order; each step works on what the steps before it left. (what it looks for, what it puts there)
LITERALS_BEFORE = (
    ("s '", "s'"),  # a plural's possessive
)
SEPARATORS = tuple((f" @{mark}@ ", mark) for mark in "-,.")
PUNCTUATION = tuple((f" {mark} ", f"{mark} ") for mark in ":;.!?,")
# The text between a pair of marks loses the blanks at both ends. A quotation mark closes the nearest open one.
PAIRS = (
    (re.compile(r"\(\s*([^\)]*?)\s*\)"), r"(\1)"),
    (re.compile(r"\[\s*([^\]]*?)\s*\]"), r"[\1]"),
    (re.compile(r"{\s*([^}]*?)\s*}"), r"{\1}"),
    (re.compile(r'"\s*([^"]*?)\s*"'), r'"\1"'),
    (re.compile(r"'\s*([^']*?)\s*'"), r"'\1'"),
)
LITERALS_AFTER = (
    ("= = = =", "===="),  # headings, deepest first
    ("= = =", "==="),
    ("= =", "=="),
    (" ° ", "°"),
    (" \n", "\n"),
    ("\n ", "\n"),
    (" N ", " 1 "),
    (" 's", "'s"),
)
# A pattern whose slashes came along from a language that delimits patterns with them: it meets "/' 5/" and nothing
# else, and writes itself into the text. Kept, because the published numbers include it.
SLASHED = re.compile(r"/' [0-9]/")


def detokenize(doc: dict[str, Any]) -> str:
    """The page of `doc` as running text."""
    text = doc["page"]
    for old, new in LITERALS_BEFORE:
        text = text.replace(old, new)
    text = SLASHED.sub("/'[0-9]/", text)
    for old, new in SEPARATORS + PUNCTUATION:
        text = text.replace(old, new)
    for pattern, replacement in PAIRS:
        text = pattern.sub(replacement, text)
    for old, new in LITERALS_AFTER:
        text = text.replace(old, new)
    return text


def weigh_by_original_text(doc: dict[str, Any], results: list[float]) -> dict[str, tuple[float, int]]:
    """(log-likelihood, weight) for each metric: the words or the UTF-8 bytes of the page before detokenization."""
    (loglikelihood,) = results
    num_words = len(re.split(r"\s+", doc["page"]))
    num_bytes = len(doc["page"].encode("utf-8"))
    return {
        "word_perplexity": (loglikelihood, num_words),
        "byte_perplexity": (loglikelihood, num_bytes),
        "bits_per_byte": (loglikelihood, num_bytes),
    }

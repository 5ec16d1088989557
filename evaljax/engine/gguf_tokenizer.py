"""The tokenizer inside a GGUF file, built from its keys: no torch, and no guess about how a text is split.

A GGUF file holds tokens, merges and special ids; how a text is cut before the merges it only names (`pre`):

    "a 12"    smollm: digits alone      a | Ġ | 1 | 2
              gpt-2:  words             a | Ġ12
"""

import importlib.util
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from evaljax.core import errors, lookup
from evaljax.engine import hf_library
from evaljax.models import gguf_reader

PREFIX = "tokenizer.ggml."
# The kinds of tokens (`token_type`) that are cut out of a text before anything else, and which of them are special.
CONTROL, USER_DEFINED = 3, 4
SPECIAL = {"bos_token": "bos_token_id", "eos_token": "eos_token_id", "unk_token": "unknown_token_id"}
SPECIAL |= {"pad_token": "padding_token_id"}
# Expressions that cut a text, by `pre`; None: GPT-2's own words. From the tokenizer.json of these models.
_LLAMA = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_QWEN = _LLAMA.replace(r"\p{N}{1,3}", r"\p{N}")
SPLITS: Mapping[str, str | None] = {
    "gpt-2": None,
    "llama-bpe": _LLAMA,
    "llama-v3": _LLAMA,
    "llama3": _LLAMA,
    "qwen2": _QWEN,
    "smollm": None,
}
DIGITS_ALONE = ("smollm",)
# Llama 3: a piece that is a token is taken whole, and a text begins with BOS unless the file says otherwise.
LLAMA = ("llama-bpe", "llama-v3", "llama3")


def read_backend(file: pathlib.Path) -> Any:
    """The file's tokenizer as a Hugging Face fast tokenizer.

    What is not byte-level BPE of a known `pre` is left to transformers, which needs torch for it; CheckpointError
    where that is not installed.
    """
    keys, _ = gguf_reader.read_keys(file, lambda name: name.startswith("tokenizer."))
    found = {name.removeprefix(PREFIX): value for name, value in keys.items()}
    transformers = hf_library.load_transformers()  # after the file: it takes seconds
    if found.get("model") != "gpt2" or found.get("pre") not in SPLITS:
        _refuse_without_torch(file, found)
        return transformers.PreTrainedTokenizerFast.from_pretrained(str(file.parent), gguf_file=file.name)
    tokens = _texts(file, found, "tokens")
    names = {name: _token(file, found, key, tokens) for name, key in SPECIAL.items() if found.get(key) is not None}
    backend = transformers.PreTrainedTokenizerFast(
        tokenizer_object=_byte_level_bpe(file, found, tokens), clean_up_tokenization_spaces=False, **names
    )
    backend.chat_template = found.get("tokenizer.chat_template")
    return backend


def _refuse_without_torch(file: pathlib.Path, found: Mapping[str, Any]) -> None:
    """Nothing where torch is installed."""
    if importlib.util.find_spec("torch") is None:
        raise errors.CheckpointError(
            f"{file}: the tokenizer inside a GGUF file of model {found.get('model')!r}, pre {found.get('pre')!r} needs "
            f"torch; only byte-level BPE ('gpt2') with pre {lookup.listing(SPLITS)} is read without. Install it: "
            "pip install 'evaljax[torch]' (from a clone: pip install -e '.[torch]'), or name a tokenizer folder: "
            "model.tokenizer=FOLDER."
        )


def _byte_level_bpe(file: pathlib.Path, found: Mapping[str, Any], tokens: Sequence[str]) -> Any:
    """The `tokenizers.Tokenizer` that the keys describe."""
    import tokenizers
    from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

    pre, split = found["pre"], SPLITS[found["pre"]]
    merges: list[Any] = [tuple(merge.split(" ")) for merge in _texts(file, found, "merges")]
    vocabulary = {token: place for place, token in enumerate(tokens)}
    try:
        built = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=pre in LLAMA))
    except Exception as error:  # the Rust library raises bare Exceptions
        raise errors.CheckpointError(f"{file}: {PREFIX}merges do not fit {PREFIX}tokens: {error}.") from error
    steps: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if pre in DIGITS_ALONE else []
    if split is not None:
        steps.append(pre_tokenizers.Split(tokenizers.Regex(split), behavior="isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split is None))
    built.pre_tokenizer = pre_tokenizers.Sequence(steps)
    built.decoder = decoders.ByteLevel()
    if pre == "qwen2":
        built.normalizer = normalizers.NFC()
    kinds = found.get("token_type") or []
    for kind in (CONTROL, USER_DEFINED):
        special = kind == CONTROL
        texts = [token for token, own in zip(tokens, kinds, strict=False) if own == kind and token]
        added = [tokenizers.AddedToken(text, normalized=False, special=special) for text in texts]
        built.add_special_tokens(added) if special else built.add_tokens(added)
    if found.get("add_bos_token", pre in LLAMA):
        bos = _token(file, found, SPECIAL["bos_token"], tokens)
        built.post_processor = processors.TemplateProcessing(
            single=[bos, "$A"], special_tokens=[(bos, vocabulary[bos])]
        )
    return built


def _texts(file: pathlib.Path, found: Mapping[str, Any], key: str) -> list[str]:
    """The list of texts under `key`."""
    value = found.get(key)
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise errors.CheckpointError(f"{file}: {PREFIX}{key} is {str(value)[:60]}; expected a list of texts.")
    return value


def _token(file: pathlib.Path, found: Mapping[str, Any], key: str, tokens: Sequence[str]) -> str:
    """The token whose id is under `key`."""
    place = found.get(key)
    if not isinstance(place, int) or not 0 <= place < len(tokens):
        raise errors.CheckpointError(
            f"{file}: {PREFIX}{key} is {place!r}; expected the place of one of the {len(tokens)} tokens."
        )
    return tokens[place]

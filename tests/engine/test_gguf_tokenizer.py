"""The tokenizer of a GGUF file, against the byte-level tokenizer whose tokens and merges it holds."""

import pathlib
import sys
from typing import Any

import pytest
from tokenizers import pre_tokenizers

from evaljax import testing
from evaljax.core import errors
from evaljax.engine import gguf_tokenizer, tokenizer

gguf = pytest.importorskip("gguf")

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
MERGES = [("h", "e"), ("Ġ", "t"), ("Ġt", "he"), ("1", "2"), ("Ġ", "12"), ("c", "a")]
TOKENS = ["<pad>", "<bos>", "<eos>", *ALPHABET, *(left + right for left, right in MERGES), "cat", "  two  "]
KINDS = [3, 3, 3, *[1] * (len(TOKENS) - 4), 4]


def write(path: pathlib.Path, **changes: Any) -> str:
    """A GGUF file with a tokenizer and nothing else; a change of None leaves the key out."""
    values: dict[str, Any] = {
        "model": "gpt2",
        "pre": "smollm",
        "tokens": TOKENS,
        "token_type": KINDS,
        "merges": [" ".join(pair) for pair in MERGES],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "add_bos_token": None,
        "chat_template": None,
        **changes,
    }
    writer = gguf.GGUFWriter(path / "m.gguf", "llama")
    template = values.pop("chat_template")
    if template:
        writer.add_chat_template(template)
    for key, value in values.items():
        kind = {bool: writer.add_bool, int: writer.add_uint32, str: writer.add_string, list: writer.add_array}
        if value is not None:
            kind[type(value)](f"tokenizer.ggml.{key}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return str(path / "m.gguf")


def pieces(file: str, text: str) -> list[str]:
    words = tokenizer.read_tokenizer(file)
    return [TOKENS[place] for place in words.encode(text)]


@pytest.mark.parametrize(
    ("pre", "text", "expected"),
    [
        ("gpt-2", "the 12", ["t", "he", "Ġ12"]),
        ("smollm", "the 12", ["t", "he", "Ġ", "1", "2"]),
        ("smollm", " the", ["Ġthe"]),
        ("smollm", "é", ["Ã", "©"]),
        ("qwen2", "the 12", ["t", "he", "Ġ", "1", "2"]),
        ("qwen2", "e\u0301", ["Ã", "©"]),  # composed, as Qwen's own tokenizer does
        ("llama-bpe", "the 12", ["<bos>", "t", "he", "Ġ", "12"]),
        # A piece that is a token is taken whole, although no merge makes it.
        ("llama-bpe", "cat", ["<bos>", "cat"]),
        ("smollm", "cat", ["ca", "t"]),
    ],
)
def test_a_text_is_cut_as_the_file_says(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, pre: str, text: str, expected: list[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # as where it is not installed
    assert pieces(write(tmp_path, pre=pre), text) == expected


def test_control_and_user_tokens_are_kept_whole_and_only_control_tokens_are_special(tmp_path: pathlib.Path) -> None:
    file = write(tmp_path)
    assert pieces(file, "a<eos>  two  b") == ["a", "<eos>", "  two  ", "b"]
    words = tokenizer.read_tokenizer(file)
    assert words.decode(words.encode("a<eos>  two  b")) == "a  two  b"
    assert (words.prefix_token_id, words.eos_token_ids, words.vocab_size) == (1, {2}, len(TOKENS))


@pytest.mark.parametrize(
    ("changes", "adds"),
    [
        ({}, False),
        ({"add_bos_token": True}, True),
        ({"pre": "llama-bpe"}, True),
        ({"pre": "llama-bpe", "add_bos_token": False}, False),
    ],
)
def test_a_text_begins_with_bos_where_the_file_says_so(
    tmp_path: pathlib.Path, changes: dict[str, Any], adds: bool
) -> None:
    assert tokenizer.read_tokenizer(write(tmp_path, **changes)).adds_bos is adds


def test_the_chat_template_is_the_files(tmp_path: pathlib.Path) -> None:
    words = tokenizer.read_tokenizer(write(tmp_path, chat_template=testing.CHAT_TEMPLATE))
    assert words.apply_chat_template([{"role": "user", "content": "Hi"}]) == "<|user|>\nHi\n<|assistant|>\n"


@pytest.mark.parametrize("changes", [{"model": "llama"}, {"pre": "tekken"}, {"pre": None}])
def test_what_only_transformers_can_read_needs_torch_and_says_so(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(errors.CheckpointError, match=r"needs torch; .* name a tokenizer folder: model\.tokenizer="):
        gguf_tokenizer.read_backend(pathlib.Path(write(tmp_path, **changes)))


def test_the_gguf_package_is_asked_for_first(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path)
    monkeypatch.setitem(sys.modules, "gguf", None)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(errors.CheckpointError, match=r"needs the gguf package: .*\(from a clone: pip install -e"):
        tokenizer.read_tokenizer(file)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": None}, "tokenizer.ggml.tokens is None; expected a list of texts"),
        ({"merges": None}, "tokenizer.ggml.merges is None; expected a list of texts"),
        ({"merges": ["zz q"]}, "tokenizer.ggml.merges do not fit tokenizer.ggml.tokens"),
        ({"merges": ["h"]}, "tokenizer.ggml.merges do not fit tokenizer.ggml.tokens"),
        ({"eos_token_id": 5000}, "eos_token_id is 5000; expected the place of one of the"),
        ({"bos_token_id": None, "add_bos_token": True}, "bos_token_id is None; expected the place"),
    ],
)
def test_a_broken_tokenizer_is_named(tmp_path: pathlib.Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(errors.CheckpointError, match=message):
        tokenizer.read_tokenizer(write(tmp_path, **changes))

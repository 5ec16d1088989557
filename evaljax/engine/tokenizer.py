"""Text to token ids and back, with one rule for the beginning of a sequence.

A sequence starts with the tokenizer's *leading* ids (BOS, for the models that want one) exactly once: a text that
already begins with the BOS string is not given another. End-of-sequence ids are never appended.
"""

import dataclasses
import hashlib
import json
import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from evaljax.core import errors
from evaljax.engine import gguf_tokenizer, hf_library

BATCH = 1024  # texts that the tokenizer encodes at once, on all cores
GENERATION = "generation_config.json"
MAX_ID = 1 << 31
SURROGATE = re.compile("[\ud800-\udfff]")
# Tokenizer classes that are nothing but their tokenizer.json: read without the import of every model (torch included).
PLAIN_CLASSES = (None, "PreTrainedTokenizerFast", "TokenizersBackend")


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Tokenizer:
    """A fast tokenizer and the facts that the engine needs of it; made by `read_tokenizer` or `wrap`.

    Attributes:
      backend: the Hugging Face fast tokenizer.
      path: where it came from, for messages.
      leading: ids that every sequence starts with; empty, or BOS.
      prefix_token_id: what an empty context is replaced with: BOS, else EOS.
      eos_token_ids: each of them ends a generation.
      fingerprint: sha256 of the tokenizer's JSON and its leading ids.
    """

    backend: Any
    path: str
    leading: tuple[int, ...]
    prefix_token_id: int
    eos_token_ids: frozenset[int]
    vocab_size: int
    fingerprint: str

    @property
    def adds_bos(self) -> bool:
        """Whether a sequence starts with BOS although its text does not."""
        return bool(self.leading)

    def encode(self, text: str, add_special_tokens: bool | None = None) -> list[int]:
        """Token ids of `text`; the leading ids unless `add_special_tokens` is False."""
        return self.encode_batch([text], add_special_tokens)[0]

    def encode_batch(self, texts: Sequence[str], add_special_tokens: bool | None = None) -> list[list[int]]:
        """Token ids of each text, in order."""
        return [ids.tolist() for ids in self.encode_arrays(texts, add_special_tokens)]

    def encode_arrays(self, texts: Sequence[str], add_special_tokens: bool | None = None) -> list[np.ndarray]:
        """Token ids of each text, in order, as read-only int32 arrays; equal texts are encoded once."""
        leading = [] if add_special_tokens is False else list(self.leading)
        bos = self.backend.bos_token
        known: dict[str, np.ndarray] = {}
        # Slices, because a Rust encoding holds far more than its ids.
        for batch in _batches(list(dict.fromkeys(texts))):
            try:
                encodings = self.backend.backend_tokenizer.encode_batch_fast(batch, add_special_tokens=False)
            except TypeError as error:
                _refuse_surrogates(batch)
                raise errors.RequestError(f"{self.path}: cannot encode a text: {error}") from error
            for text, encoding in zip(batch, encodings, strict=True):
                own = not leading or (bos and text.startswith(bos))
                known[text] = np.asarray(encoding.ids if own else leading + encoding.ids, np.int32)
                known[text].flags.writeable = False
        return [known[text] for text in texts]

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """The text of token ids."""
        return self.backend.decode([int(i) for i in ids], skip_special_tokens=skip_special_tokens)

    def apply_chat_template(self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool = True) -> str:
        """`messages` as one prompt; without a generation prompt the last message stays open, to be continued.

        A template that refuses system messages is given the others (as in lm-eval). Raises ConfigError where the
        tokenizer has no template, or its template fails.
        """
        if not self.backend.chat_template:
            raise errors.ConfigError(
                f"{self.path}: the tokenizer has no chat template; set apply_chat_template=False, "
                "or name a tokenizer that has one"
            )
        without_system = [message for message in messages if message["role"] != "system"]
        for attempt in (list(messages), without_system):
            try:
                return self.backend.apply_chat_template(
                    attempt,
                    tokenize=False,
                    add_generation_prompt=add_generation_prompt,
                    continue_final_message=not add_generation_prompt,
                )
            except Exception as error:  # a template is anybody's program, and transformers has its own ValueErrors
                failure = error
        raise errors.ConfigError(f"{self.path}: the chat template fails: {failure}") from failure


def read_tokenizer(path: str, *, revision: str | None = None, add_bos_token: bool | None = None) -> Tokenizer:
    """The tokenizer of a Hugging Face folder or hub id, of a folder with a tokenizer.json, or inside a .gguf file.

    `add_bos_token`: whether sequences start with BOS; None: as the tokenizer itself does. Raises CheckpointError.
    """
    try:
        backend = _read_backend(path, revision)
    except errors.EvaljaxError:
        raise
    except Exception as error:  # transformers raises anything from OSError to KeyError
        raise errors.CheckpointError(f"{path}: cannot read a tokenizer: {type(error).__name__}: {error}") from error
    if not getattr(backend, "is_fast", False):
        raise errors.CheckpointError(
            f"{path}: {type(backend).__name__} is not a fast tokenizer (one with a tokenizer.json)"
        )
    return wrap(backend, path=path, add_bos_token=add_bos_token, extra_eos=_generation_eos(path, revision))


def wrap(
    backend: Any, *, path: str = "<memory>", add_bos_token: bool | None = None, extra_eos: Iterable[int] = ()
) -> Tokenizer:
    """A Hugging Face fast tokenizer as a `Tokenizer`; its truncation and padding are switched off."""
    rust = backend.backend_tokenizer
    rust.no_truncation()
    rust.no_padding()
    bos, eos = backend.bos_token_id, backend.eos_token_id
    if bos is None and eos is None:
        raise errors.CheckpointError(f"{path}: the tokenizer names neither a BOS nor an EOS token; one is needed")
    if add_bos_token and bos is None:
        raise errors.ConfigError(f"{path}: add_bos_token=True, but the tokenizer names no BOS token")
    leading = {None: _own_leading(backend), False: (), True: (bos,)}[add_bos_token]
    text = json.dumps([rust.to_str(), leading])
    return Tokenizer(
        backend=backend,
        path=path,
        leading=leading,
        prefix_token_id=bos if bos is not None else eos,
        eos_token_ids=frozenset(extra_eos) | ({eos} if eos is not None else frozenset()),
        vocab_size=len(backend),
        fingerprint=hashlib.sha256(text.encode()).hexdigest(),
    )


def _read_backend(path: str, revision: str | None) -> Any:
    """The Hugging Face tokenizer at `path`."""
    where = pathlib.Path(path)
    if where.is_file():
        return gguf_tokenizer.read_backend(where)
    transformers = hf_library.load_transformers()
    if where.is_dir():
        if not (where / "tokenizer.json").is_file():
            known = ", ".join(sorted(p.name for p in where.iterdir())[:12])
            raise FileNotFoundError(f"no tokenizer.json in the folder, which holds: {known or 'nothing'}")
        settings = where / "tokenizer_config.json"
        kind = json.loads(settings.read_text("utf-8")).get("tokenizer_class") if settings.is_file() else None
        if kind in PLAIN_CLASSES:
            return transformers.PreTrainedTokenizerFast.from_pretrained(path)
    return transformers.AutoTokenizer.from_pretrained(path, revision=revision)


def _generation_eos(path: str, revision: str | None) -> list[int]:
    """The EOS ids in the model's generation_config.json; none where there is no such file."""
    where = pathlib.Path(path)
    file = where / GENERATION if where.exists() else _hub_file(path, GENERATION, revision)
    if file is None or not file.is_file():
        return []
    try:
        eos = json.loads(file.read_text("utf-8")).get("eos_token_id")
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise errors.CheckpointError(f"{file}: not readable as a JSON mapping: {error}") from error
    ids = [] if eos is None else eos if isinstance(eos, list) else [eos]
    if not all(isinstance(i, int) and not isinstance(i, bool) and 0 <= i < MAX_ID for i in ids):
        raise errors.CheckpointError(f"{file}: eos_token_id is {eos!r}; expected a token id or a list of them")
    return ids


def _hub_file(path: str, name: str, revision: str | None) -> pathlib.Path | None:
    """The local copy of a hub model's file, fetched if it is not there yet; None where the model has no such file.

    None, too, where the hub is switched off (HF_HUB_OFFLINE) and the file is not among those fetched before.
    """
    import huggingface_hub
    from huggingface_hub import constants
    from huggingface_hub import errors as hub_errors

    try:
        return pathlib.Path(huggingface_hub.hf_hub_download(path, name, revision=revision))
    except (OSError, ValueError, hub_errors.EntryNotFoundError) as error:
        unreached = isinstance(error, hub_errors.LocalEntryNotFoundError) and not constants.HF_HUB_OFFLINE
        if isinstance(error, hub_errors.EntryNotFoundError) and not unreached:
            return None
        raise errors.CheckpointError(f"{path}: cannot fetch {name}: {error}") from error


def _own_leading(backend: Any) -> tuple[int, ...]:
    """The ids that the tokenizer itself puts before a text."""
    rust = backend.backend_tokenizer
    marked, plain = (rust.encode("a", add_special_tokens=special).ids for special in (True, False))
    for start in range(len(marked) - len(plain) + 1):
        if marked[start : start + len(plain)] == plain:
            return tuple(marked[:start])
    return ()


def _refuse_surrogates(texts: Sequence[str]) -> None:
    """Raises RequestError for a text with half of a surrogate pair: JSON can write one, Unicode text has none."""
    for text in texts:
        found = SURROGATE.search(text)
        if found:
            shown = text[max(0, found.start() - 30) : found.end() + 30]
            raise errors.RequestError(
                f"text {shown!r}: character {found.start()} is {found[0]!r}, half of a surrogate pair; expected "
                "Unicode text: mend the document"
            )


def _batches(texts: list[str]) -> Iterator[list[str]]:
    """`texts`, `BATCH` at a time."""
    for first in range(0, len(texts), BATCH):
        yield texts[first : first + BATCH]

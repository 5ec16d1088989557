"""A byte-level BPE tokenizer of a few merges, made on the spot: every text has tokens, every merge is known."""

import tokenizers
import transformers
from tokenizers import decoders, models, pre_tokenizers, processors

from evaljax.engine import tokenizer

MERGES = [("c", "a"), ("ca", "t"), ("cat", "s"), ("Ġ", "A"), (":", "/"), (":/", "/"), ("Ġ", "x")]
BOS, EOS = "<s>", "</s>"


def make(*, adds_bos: bool = False, with_bos: bool = True, add_bos_token: bool | None = None) -> tokenizer.Tokenizer:
    """The tokenizer: `with_bos` it names a BOS token, `adds_bos` its own post-processor puts it first."""
    return tokenizer.wrap(backend(adds_bos=adds_bos, with_bos=with_bos), add_bos_token=add_bos_token)


def backend(*, adds_bos: bool = False, with_bos: bool = True) -> transformers.PreTrainedTokenizerFast:
    specials = [EOS, BOS] if with_bos else [EOS]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = specials + alphabet + ["".join(pair) for pair in MERGES]
    rust = tokenizers.Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, MERGES))
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    rust.decoder = decoders.ByteLevel()
    rust.add_special_tokens(specials)
    if adds_bos:
        rust.post_processor = processors.TemplateProcessing(
            single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, rust.token_to_id(BOS))]
        )
    named = {"bos_token": BOS} if with_bos else {}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=rust, eos_token=EOS, **named)

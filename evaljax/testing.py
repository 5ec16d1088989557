"""Small stand-ins for tests, ours and yours: a tiny model, a byte tokenizer, a fake backend, toy tasks.

    folder = testing.tiny_model_folder(tmp_path / "model")     # a Hugging Face folder, 2 layers, random weights
    task = testing.toy_task(tmp_path / "tasks", "multiple_choice")
    evaljax.simple_evaluate(model="jax", model_args={"path": str(folder)}, tasks=[str(task)])

Nothing is downloaded, and nothing here needs torch.
"""

import json
import pathlib
from typing import TYPE_CHECKING, Any

from evaljax.backends import fake
from evaljax.core import lookup, task

if TYPE_CHECKING:
    import numpy as np

FakeBackend = fake.FakeBackend

BOS = "<bos>"
EOS = "<eos>"
PAD = "<pad>"
SPECIALS = (PAD, BOS, EOS)
# Merges make the join of context and continuation interesting: "the" after a space is one token, "he" is another.
MERGES = (("h", "e"), ("Ġ", "t"), ("Ġt", "he"))
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>\n{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


def byte_tokenizer_files(path: str | pathlib.Path, *, add_bos: bool = False, max_length: int = 128) -> pathlib.Path:
    """`path`, after writing the files of a byte-level tokenizer with three merges and a chat template into it.

    `add_bos`: whether the tokenizer itself begins every text with BOS, as Llama's does.
    """
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, processors

    folder = pathlib.Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    words = [*SPECIALS, *sorted(pre_tokenizers.ByteLevel.alphabet()), *(left + right for left, right in MERGES)]
    vocabulary = {word: index for index, word in enumerate(words)}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=list(MERGES)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIALS))
    if add_bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{BOS} $A", special_tokens=[(BOS, vocabulary[BOS])]
        )
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": PAD,
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    _write_json(folder / "tokenizer_config.json", settings)
    return folder


def tiny_model_folder(
    path: str | pathlib.Path,
    *,
    num_layers: int = 2,
    embed_dim: int = 32,
    max_length: int = 128,
    tie_embeddings: bool = False,
    add_bos: bool = False,
    seed: int = 0,
) -> pathlib.Path:
    """`path`, after writing a random llama with 4 query and 2 key heads into it, in Hugging Face's layout.

    Large weights, norms away from 1 and unusual theta and eps make a wrong model show: at the usual scale a wrong theta
    moves a log-probability by less than 1e-4. Output rows of what is not printable ASCII are small, so that greedy text
    is text.
    """
    import numpy as np
    from safetensors import numpy as safetensors_numpy

    folder = byte_tokenizer_files(path, add_bos=add_bos, max_length=max_length)
    vocabulary = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    settings = _llama_config(num_layers, embed_dim, max_length, tie_embeddings, len(vocabulary))
    rng = np.random.default_rng(seed)
    rows = np.array([1.0 if len(word) == 1 and word.isascii() else 0.02 for word in vocabulary], np.float32)
    tensors = _llama_tensors(rng, settings, rows)
    safetensors_numpy.save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})
    _write_json(folder / "config.json", settings)
    return folder


def toy_task(path: str | pathlib.Path, output_type: str, *, num_docs: int = 6) -> pathlib.Path:
    """The YAML file of a task `toy_<output_type>`, written into folder `path` beside its documents (JSON lines)."""
    lookup.check(task.OUTPUT_TYPES, output_type, what="output type", where="testing.toy_task")
    folder = pathlib.Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    name = f"toy_{output_type}"
    files = {split: str((folder / f"{name}_{split}.jsonl").resolve()) for split in ("train", "test")}
    _write_documents(pathlib.Path(files["train"]), range(100, 100 + num_docs))
    _write_documents(pathlib.Path(files["test"]), range(num_docs))
    lines = [
        f"task: {name}",
        "dataset_path: json",
        f"dataset_kwargs: {json.dumps({'data_files': files})}",
        "training_split: train",
        "test_split: test",
        "fewshot_split: train",
        f"output_type: {output_type}",
        *_TOY_FIELDS[output_type],
        "metadata: {version: 1.0}",
    ]
    yaml_file = folder / f"{name}.yaml"
    yaml_file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return yaml_file


_QUESTION = r'doc_to_text: "Q: {{question}}\nA:"'
_TOY_FIELDS: dict[str, tuple[str, ...]] = {
    "loglikelihood": (_QUESTION, 'doc_to_target: " {{answer}}"'),
    "loglikelihood_rolling": ('doc_to_text: ""', 'doc_to_target: "{{question}} It is {{answer}}."'),
    "multiple_choice": (_QUESTION, "doc_to_target: label", "doc_to_choice: choices"),
    "generate_until": (
        _QUESTION,
        'doc_to_target: "{{answer}}"',
        r'generation_kwargs: {until: ["\n"], max_gen_toks: 8, do_sample: false}',
    ),
}


def _write_documents(file: pathlib.Path, numbers: range) -> None:
    """Writes one question a line: which number follows `n`?"""
    documents = []
    for n in numbers:
        label = n % 3  # the right answer, n + 1, at place n % 3
        choices = [str(n + 1 + place - label) for place in range(3)]
        documents.append(
            {"question": f"Which number follows {n}?", "answer": str(n + 1), "choices": choices, "label": label}
        )
    file.write_text("".join(json.dumps(document) + "\n" for document in documents), encoding="utf-8")


def _llama_config(
    num_layers: int, embed_dim: int, max_length: int, tie_embeddings: bool, vocab_size: int
) -> dict[str, Any]:
    """config.json of a llama whose settings all differ from the defaults."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "vocab_size": vocab_size,
        "hidden_size": embed_dim,
        "intermediate_size": 2 * embed_dim,
        "num_hidden_layers": num_layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "hidden_act": "silu",
        "max_position_embeddings": max_length,
        "rms_norm_eps": 1e-3,
        "rope_theta": 500.0,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "initializer_range": 0.02,
        "tie_word_embeddings": tie_embeddings,
        "pad_token_id": SPECIALS.index(PAD),
        "bos_token_id": SPECIALS.index(BOS),
        "eos_token_id": SPECIALS.index(EOS),
        "use_cache": True,
    }


def _llama_tensors(
    rng: "np.random.Generator", settings: dict[str, Any], rows: "np.ndarray[Any, Any]"
) -> dict[str, "np.ndarray[Any, Any]"]:
    """Random tensors under Hugging Face's names; `rows` [V] scales the rows of the output matrix."""
    import numpy as np

    embed, mlp, head = settings["hidden_size"], settings["intermediate_size"], settings["head_dim"]
    query, key = settings["num_attention_heads"] * head, settings["num_key_value_heads"] * head

    def matrix(rows_out: int, columns_in: int) -> "np.ndarray[Any, Any]":
        return (1.2 / np.sqrt(columns_in) * rng.standard_normal((rows_out, columns_in))).astype(np.float32)

    def norm() -> "np.ndarray[Any, Any]":
        return rng.uniform(0.5, 1.5, embed).astype(np.float32)

    tensors = {"model.embed_tokens.weight": rows[:, None] * matrix(settings["vocab_size"], embed)}
    for layer in range(settings["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        tensors |= {
            prefix + "input_layernorm.weight": norm(),
            prefix + "self_attn.q_proj.weight": matrix(query, embed),
            prefix + "self_attn.k_proj.weight": matrix(key, embed),
            prefix + "self_attn.v_proj.weight": matrix(key, embed),
            prefix + "self_attn.o_proj.weight": matrix(embed, query),
            prefix + "post_attention_layernorm.weight": norm(),
            prefix + "mlp.gate_proj.weight": matrix(mlp, embed),
            prefix + "mlp.up_proj.weight": matrix(mlp, embed),
            prefix + "mlp.down_proj.weight": matrix(embed, mlp),
        }
    tensors["model.norm.weight"] = norm()
    if not settings["tie_word_embeddings"]:
        # Larger than the rest: the log-probabilities of a tiny model should lie far apart.
        tensors["model.embed_tokens.weight"] = matrix(settings["vocab_size"], embed)
        tensors["lm_head.weight"] = 2 * rows[:, None] * matrix(settings["vocab_size"], embed)
    return tensors


def _write_json(file: pathlib.Path, content: dict[str, Any]) -> None:
    """Writes `content`, readable."""
    file.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

import json
import pathlib

import pytest
import tiny_tokenizer
from huggingface_hub import constants

from evaljax import testing
from evaljax.core import errors
from evaljax.engine import tokenizer

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]


def test_bos_comes_first_exactly_once_whatever_the_text_begins_with() -> None:
    """C17."""
    tok = tiny_tokenizer.make(adds_bos=True)
    bos = tok.prefix_token_id
    assert tok.adds_bos
    assert tok.encode("cat A")[0] == bos
    assert tok.encode("<s>cat A") == tok.encode("cat A")
    assert tok.encode("cat A").count(bos) == 1
    assert tok.encode("cat A", add_special_tokens=False) == tok.encode("cat A")[1:]


def test_a_tokenizer_that_adds_no_bos_is_left_alone_unless_told() -> None:
    plain, told, forbidden = (tiny_tokenizer.make(add_bos_token=value) for value in (None, True, False))
    assert not plain.adds_bos
    assert not forbidden.adds_bos
    assert told.encode("cat") == [told.prefix_token_id, *plain.encode("cat")]
    assert not tiny_tokenizer.make(adds_bos=True, add_bos_token=False).adds_bos


def test_the_prefix_token_is_bos_else_eos() -> None:
    with_bos, without = tiny_tokenizer.make(), tiny_tokenizer.make(with_bos=False)
    assert with_bos.decode([with_bos.prefix_token_id], skip_special_tokens=False) == "<s>"
    assert without.decode([without.prefix_token_id], skip_special_tokens=False) == "</s>"
    assert without.eos_token_ids == {without.prefix_token_id}


def test_asking_for_bos_where_there_is_none_is_an_error() -> None:
    with pytest.raises(errors.ConfigError, match="add_bos_token=True, but the tokenizer names no BOS token"):
        tiny_tokenizer.make(with_bos=False, add_bos_token=True)


def test_a_tokenizer_without_bos_and_eos_is_refused() -> None:
    backend = tiny_tokenizer.backend(with_bos=False)
    backend.eos_token = None
    with pytest.raises(errors.CheckpointError, match="names neither a BOS nor an EOS token"):
        tokenizer.wrap(backend, path="here")


def test_a_batch_is_its_texts_one_by_one_in_order() -> None:
    tok = tiny_tokenizer.make(adds_bos=True)
    texts = ["cat", "http://x", "cat", "", "日本語"]
    assert tok.encode_batch(texts) == [tok.encode(text) for text in texts]
    assert tok.encode_batch([]) == []


def test_truncation_and_padding_in_the_file_are_ignored() -> None:
    backend = tiny_tokenizer.backend()
    backend.backend_tokenizer.enable_truncation(2)
    backend.backend_tokenizer.enable_padding(length=50)
    assert len(tokenizer.wrap(backend).encode("abcdef")) == 6


def test_decoding_gives_the_text_back() -> None:
    tok = tiny_tokenizer.make(adds_bos=True)
    assert tok.decode(tok.encode("cats A: 日本\n")) == "cats A: 日本\n"


def test_the_fingerprint_tells_vocabularies_and_bos_rules_apart() -> None:
    prints = [tiny_tokenizer.make(**kw).fingerprint for kw in ({}, {"adds_bos": True}, {"with_bos": False})]
    assert len(set(prints)) == 3
    assert tiny_tokenizer.make(add_bos_token=True).fingerprint != prints[0]
    assert tiny_tokenizer.make().fingerprint == prints[0]


def test_a_folder_is_read_with_the_eos_ids_of_its_generation_config(tmp_path: pathlib.Path) -> None:
    tiny_tokenizer.backend(adds_bos=True).save_pretrained(tmp_path)
    assert tokenizer.read_tokenizer(str(tmp_path)).eos_token_ids == {0}
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 7]}))
    read = tokenizer.read_tokenizer(str(tmp_path))
    assert read.eos_token_ids == {0, 7}
    assert read.encode("cats A") == tiny_tokenizer.make(adds_bos=True).encode("cats A")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", r"generation_config\.json: not readable as a JSON mapping"),
        ("[]", r"generation_config\.json: not readable as a JSON mapping"),
        ('{"eos_token_id": "</s>"}', r"generation_config\.json: eos_token_id is '</s>'; expected a token id or a list"),
        ('{"eos_token_id": [0, -1]}', r"eos_token_id is \[0, -1\]; expected a token id or a list"),
        ('{"eos_token_id": 1.5}', r"eos_token_id is 1\.5; expected a token id or a list"),
    ],
)
def test_a_broken_generation_config_is_named(tmp_path: pathlib.Path, content: str, message: str) -> None:
    tiny_tokenizer.backend().save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text(content)
    with pytest.raises(errors.CheckpointError, match=message):
        tokenizer.read_tokenizer(str(tmp_path))


@pytest.mark.parametrize(("extra", "eos"), [({"eos_token_id": [2, 7]}, {2, 7}), (None, {2})])
def test_a_hub_model_is_read_with_the_eos_ids_of_its_generation_config(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, extra: dict | None, eos: set[int]
) -> None:
    cache = tmp_path / "models--owner--name"  # as the hub's client lays it out; conftest keeps the hub offline
    snapshot = cache / "snapshots" / "abc"
    testing.tiny_model_folder(snapshot)
    if extra is not None:
        (snapshot / "generation_config.json").write_text(json.dumps(extra))
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text("abc")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    assert tokenizer.read_tokenizer("owner/name").eos_token_ids == eos


@pytest.mark.parametrize("content", [None, "{"])
def test_a_missing_or_broken_tokenizer_is_a_checkpoint_error(tmp_path: pathlib.Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(errors.CheckpointError, match=f"{tmp_path.name}: cannot read a tokenizer"):
        tokenizer.read_tokenizer(str(tmp_path))


def test_a_chat_template_makes_one_prompt_of_messages() -> None:
    backend = tiny_tokenizer.backend()
    turns = "{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}"
    backend.chat_template = turns + "{% if add_generation_prompt %}[bot]{% endif %}"
    tok = tokenizer.wrap(backend)
    assert tok.apply_chat_template(MESSAGES) == "[system]Be brief.\n[user]Hi\n[bot]"
    assert tok.apply_chat_template(MESSAGES, add_generation_prompt=False) == "[system]Be brief.\n[user]Hi"


def test_a_template_that_refuses_system_messages_gets_the_others() -> None:
    backend = tiny_tokenizer.backend()
    backend.chat_template = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        "{{ m.content }};{% endfor %}"
    )
    assert tokenizer.wrap(backend).apply_chat_template(MESSAGES) == "Hi;"


def test_a_missing_or_failing_chat_template_is_an_error_that_names_the_model() -> None:
    backend = tiny_tokenizer.backend()
    with pytest.raises(errors.ConfigError, match="some/model: the tokenizer has no chat template"):
        tokenizer.wrap(backend, path="some/model").apply_chat_template(MESSAGES)
    backend.chat_template = "{{ raise_exception('never') }}"
    with pytest.raises(errors.ConfigError, match="some/model: the chat template fails: never"):
        tokenizer.wrap(backend, path="some/model").apply_chat_template(MESSAGES)


@pytest.mark.parity
def test_a_gguf_file_holds_the_tokenizer_of_its_folder_form(test_models: pathlib.Path) -> None:
    if not (test_models / "smollm2.gguf").is_file():
        pytest.skip("no smollm2.gguf beside the folder")
    pytest.importorskip("gguf")
    folder = tokenizer.read_tokenizer(str(test_models / "smollm2"))
    file = tokenizer.read_tokenizer(str(test_models / "smollm2.gguf"))
    text = "Hello  world's 日本語  123 4.5\n\n x\t<|im_start|>user"
    assert file.encode(text) == folder.encode(text)
    assert (file.prefix_token_id, file.eos_token_ids) == (folder.prefix_token_id, folder.eos_token_ids)


def test_half_a_surrogate_pair_is_named_with_its_place() -> None:
    with pytest.raises(
        errors.RequestError, match=r"text 'ab.ud83d': character 2 is '.ud83d', half of a surrogate pair"
    ):
        tiny_tokenizer.make().encode_batch(["cat", "ab\ud83d"])


def test_any_failure_of_a_chat_template_is_an_error_that_names_the_model() -> None:
    words = tiny_tokenizer.backend()
    words.chat_template = "{{ messages[0].content + 1 }}"
    with pytest.raises(errors.ConfigError, match="<memory>: the chat template fails: can only concatenate str"):
        tokenizer.wrap(words).apply_chat_template(MESSAGES)
    words.chat_template = "{{ messages[0].content }}"
    with pytest.raises(errors.ConfigError, match=r"the chat template fails: .* empty conversation"):
        tokenizer.wrap(words).apply_chat_template([])

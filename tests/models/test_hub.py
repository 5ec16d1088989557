"""What is said of a model that is not here; a server of our own stands for the hub, and is counted."""

import http.server
import pathlib
import socket
import threading
from collections.abc import Iterator

import pytest
from huggingface_hub import constants

from evaljax.core import errors
from evaljax.models import hf_config, hub

ANSWERS = {
    "gone": (401, "RepoNotFound"),
    "gated": (403, "GatedRepo"),
    "old": (404, "RevisionNotFound"),
    "bare": (404, "EntryNotFound"),
}
ASKED: list[str] = []


class Hub(http.server.BaseHTTPRequestHandler):
    """Answers as the hub does, by the first part of the path."""

    def do_HEAD(self) -> None:
        ASKED.append(self.path)
        status, code = ANSWERS.get(self.path.split("/")[1], (200, ""))
        self.send_response(status)
        for name, value in (("X-Error-Code", code), ("ETag", "1"), ("X-Repo-Commit", "1"), ("Content-Length", "0")):
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *message: object) -> None:
        pass


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> Iterator[list[str]]:
    """The paths that the hub was asked for; the cache is empty."""
    ASKED.clear()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        online(monkeypatch, tmp_path, f"http://127.0.0.1:{server.server_port}")
        yield ASKED
        server.shutdown()


def online(monkeypatch: pytest.MonkeyPatch, cache: pathlib.Path, endpoint: str) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, endpoint)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))


@pytest.fixture
def unreached(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    """A hub that nobody answers for; the cache is empty."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    online(monkeypatch, tmp_path, f"http://127.0.0.1:{port}")


def cache(folder: pathlib.Path, name: str) -> None:
    """A cached model, laid out as the hub's client does."""
    snapshot = folder / f"models--{name.replace('/', '--')}" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (snapshot.parent.parent / "refs").mkdir()
    (snapshot.parent.parent / "refs" / "main").write_text("abc")


def test_a_model_that_the_hub_has_is_asked_for_once(asked: list[str]) -> None:
    hub.check_available("owner/name")
    hub.check_available("bare/model")  # without config.json: told by who reads it
    assert asked == ["/owner/name/resolve/main/config.json", "/bare/model/resolve/main/config.json"]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("gone", r"model\.path='gone' is no folder or file here, so .* which has no such model that you may read"),
        ("gated/one", r"which has it, but gives it to those only who accepted its terms"),
        ("old/one", r"which has it, but no revision 'v9'\. Give a folder or a \.gguf file\."),
    ],
)
def test_what_the_hub_answers_is_told_in_one_error(asked: list[str], path: str, message: str) -> None:
    with pytest.raises(errors.CheckpointError, match=message):
        hub.check_available(path, revision="v9")
    assert len(asked) == 1


def test_a_hub_that_cannot_be_reached_is_asked_once_and_the_ways_out_are_named(
    unreached: None, caplog: pytest.LogCaptureFixture
) -> None:
    message = (
        r"model\.path='demoo' is no folder or file here, so it was looked for on the Hugging Face hub, which cannot be "
        r"reached \(Connect.*\)\. Give a folder or a \.gguf file, or set HF_HUB_OFFLINE=1 and use a cached model\. "
        r"Did you mean 'demo'\?$"
    )
    with pytest.raises(errors.CheckpointError, match=message):
        hub.check_available("demoo")
    assert not caplog.records  # the library tells of every attempt


def test_a_cached_model_needs_no_hub(unreached: None, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache(tmp_path, "owner/name")
    hub.check_available("owner/name")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.check_available("owner/name")
    with pytest.raises(errors.CheckpointError, match=r"model\.tokenizer='owner/other' .* not among the cached models"):
        hub.check_available("owner/other", key="model.tokenizer")


def test_what_can_be_no_hub_id_is_not_asked_for() -> None:
    with pytest.raises(errors.CheckpointError, match=r"model\.path='a b' is no folder or file here, and no hub id"):
        hub.check_available("a b")


def test_a_folder_of_models_names_them(tmp_path: pathlib.Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    (tmp_path / "three.gguf").touch()
    with pytest.raises(errors.CheckpointError, match=r"It holds the models one, three\.gguf, two; give one of them"):
        hf_config.load_config(tmp_path)

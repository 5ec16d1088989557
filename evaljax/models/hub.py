"""Model paths: a local folder, or a hub id fetched into the local hub cache."""

import pathlib
import re

from evaljax.core import errors, lookup

CONFIG_FILES = ("config.json", "evaljax.json")
WEIGHT_FILES = ("model.safetensors", "model-*.safetensors", "model.safetensors.index.json")
OWN_NAMES = ("demo",)
UNREACHED = "cannot be reached"
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")


def folder(path: str, *, revision: str | None, weights: bool) -> pathlib.Path:
    """The local folder of a model: `path` itself if it exists, else the hub's files of that name, only those needed."""
    local = pathlib.Path(path)
    if local.is_dir():
        refuse_revision(path, revision)
        return local
    if local.exists():
        raise errors.CheckpointError(f"{path}: a file; expected a model folder, a .gguf file or a hub id")
    if not HUB_ID.fullmatch(path):
        raise errors.CheckpointError(f"{path}: no such folder; expected a model folder, a .gguf file or a hub id")
    import huggingface_hub  # heavy, and not needed for local models

    patterns = [*CONFIG_FILES, *(WEIGHT_FILES if weights else ())]
    try:
        return pathlib.Path(huggingface_hub.snapshot_download(path, revision=revision, allow_patterns=patterns))
    except (OSError, ValueError) as error:
        at = f" at revision {revision!r}" if revision else ""
        raise errors.CheckpointError(f"{path}: no such folder, and not to be had from the hub{at}: {error}") from error


def check_available(path: str, *, revision: str | None = None, key: str = "model.path") -> None:
    """Nothing for a local path, and for a model that the hub or its cache has; CheckpointError for any other.

    The hub is asked once, for the head of a small file: its own library asks six times, half a minute long, for every
    file. `key`: what named the path, for the message.
    """
    if pathlib.Path(path).exists():
        return
    missing = f"{key}={path!r} is no folder or file here, "
    give = f"Give a folder or a .gguf file{{}}.{lookup.nearest(path, OWN_NAMES)}"
    if not HUB_ID.fullmatch(path):
        raise errors.CheckpointError(f"{missing}and no hub id (owner/name). {give.format('')}")
    import huggingface_hub  # heavy, and not needed for local models
    from huggingface_hub import constants

    cached = isinstance(huggingface_hub.try_to_load_from_cache(path, CONFIG_FILES[0], revision=revision), str)
    if constants.HF_HUB_OFFLINE:
        if not cached:
            raise errors.CheckpointError(
                f"{missing}and not among the cached models, the only ones with HF_HUB_OFFLINE. "
                f"{give.format(', or unset HF_HUB_OFFLINE to fetch it')}"
            )
        return
    problem = _ask(path, revision)
    unreached = problem.startswith(UNREACHED)
    if problem and not (unreached and cached):
        hint = ", or set HF_HUB_OFFLINE=1 and use a cached model" if unreached else ""
        raise errors.CheckpointError(
            f"{missing}so it was looked for on the Hugging Face hub, which {problem}. {give.format(hint)}"
        )


def _ask(path: str, revision: str | None) -> str:
    """What the hub answers to the question for a model, where that is not the model."""
    import huggingface_hub
    from huggingface_hub import errors as hub_errors

    try:
        huggingface_hub.get_hf_file_metadata(huggingface_hub.hf_hub_url(path, CONFIG_FILES[0], revision=revision))
    except hub_errors.GatedRepoError:
        return "has it, but gives it to those only who accepted its terms there and are logged in (hf auth login)"
    except hub_errors.RepositoryNotFoundError:
        return "has no such model that you may read (ids are owner/name; for private ones log in: hf auth login)"
    except hub_errors.RevisionNotFoundError:
        return f"has it, but no revision {revision!r}"
    except hub_errors.EntryNotFoundError:
        return ""  # the model is there; what it lacks is told by who reads it
    except Exception as error:  # of whichever HTTP library it uses
        return f"{UNREACHED} ({type(error).__name__}: {error})"
    return ""


def inner_models(folder: pathlib.Path) -> str:
    """` It holds the models a, b; give one of them.` for the models that lie in `folder`; an empty text for none."""
    files = [file for name in CONFIG_FILES for file in folder.glob(f"*/{name}")] if folder.is_dir() else []
    names = {str(file.parent.relative_to(folder)) for file in files} | {file.name for file in folder.glob("*.gguf")}
    return f" It holds the models {lookup.listing(names)}; give one of them." if names else ""


def refuse_revision(path: str, revision: str | None) -> None:
    """Nothing, if no revision is asked of a local path: it has none."""
    if revision is not None:
        raise errors.ConfigError(f"{path}: revision {revision!r} of a local path; expected a hub id, or no revision")

"""Data sets on the Hugging Face hub: asked for once, and what to say where they are not to be had."""

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def asked_once(path: str) -> Iterator[None]:
    """Within it `datasets` looks only into its cache if the hub does not answer one question for the data set `path`.

    By itself it asks six times, half a minute long, and tells of each.
    """
    import huggingface_hub
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = before or not _answers(
        huggingface_hub.hf_hub_url(path, "README.md", repo_type="dataset")
    )
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def _answers(url: str) -> bool:
    """Whether anybody answers at `url`, be it with an error."""
    import huggingface_hub
    from huggingface_hub import errors as hub_errors

    try:
        huggingface_hub.get_hf_file_metadata(url)
    except (hub_errors.HfHubHTTPError, ValueError):
        return True
    except Exception:  # of whichever HTTP library it uses
        return False
    return True


def ways_out(error: BaseException) -> str:
    """What else can be done where the hub could not be reached; an empty text after any other error."""
    if not isinstance(error, ConnectionError):
        return ""
    from huggingface_hub import constants

    cached = "unset HF_HUB_OFFLINE" if constants.HF_HUB_OFFLINE else "set HF_HUB_OFFLINE=1 and use cached data"
    return f" Give data_mirror=FOLDER, a folder laid out as the hub is (owner/name/...), or {cached}."

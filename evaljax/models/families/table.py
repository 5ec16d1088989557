"""The table of model families: config.json's `model_type` -> how to read it. A new family is one file and one row."""

from evaljax.models import family
from evaljax.models.families import llama

FAMILIES: dict[str, family.Family] = {
    "llama": llama.FAMILY,
}

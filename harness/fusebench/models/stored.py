"""Records of models with the explanation that the project's stored runs give them today."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

import msgspec

from ..errors import RunRecordError
from ..schema.models import EagerFile, ModelRecord
from ..store.baselines import load_baseline
from .measuring.explanation import explained

EAGER_FILE = "eager.json"
"""Name of the file beside the models' records with what eager torch launches in their steps."""


def explained_today(records: Mapping[str, ModelRecord], results: Path) -> dict[str, ModelRecord]:
    """`records`, each explained by the baseline of its GPU model in the folder `results`; as it was written where there is none.

    Raises:
        RunRecordError: a baseline, or the file of eager times, cannot be read.
    """
    baseline = functools.cache(lambda device: load_baseline(results, device) if device else None)
    eager = read_eager(results)
    found = {}
    for name, record in records.items():
        stored = baseline(str(record.environment.get("device_name") or ""))
        fits = eager is not None and stored is not None and eager.stored == stored.id
        found[name] = explained(record, stored, eager.models.get(record.model) if eager is not None and fits else None)
    return found


def read_eager(results: Path) -> EagerFile | None:
    """The eager times of the models in the folder `results`; None where it has none.

    Raises:
        RunRecordError: the file cannot be read.
    """
    file = results / "models" / EAGER_FILE
    try:
        return msgspec.json.decode(file.read_bytes(), type=EagerFile)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise RunRecordError(
            f"{file}: cannot be read ({error}); make it anew: `python -m fusebench.models.eager_times {results}`"
        ) from error

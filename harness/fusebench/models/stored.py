"""Records of models with the explanation that the project's stored runs give them today."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

from ..schema.models import ModelRecord
from ..store.baselines import load_baseline
from .measuring.explanation import explained


def explained_today(records: Mapping[str, ModelRecord], results: Path) -> dict[str, ModelRecord]:
    """`records`, each explained by the baseline of its GPU model in the folder `results`; as it was written where there is none.

    Raises:
        RunRecordError: a baseline cannot be read.
    """
    baseline = functools.cache(lambda device: load_baseline(results, device) if device else None)
    return {name: explained(record, baseline(str(record.environment.get("device_name") or ""))) for name, record in records.items()}

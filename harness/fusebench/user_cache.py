"""The folder for files that fusebench can make again."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "FUSEBENCH_CACHE_DIR"


def own_cache() -> Path:
    """The folder in `FUSEBENCH_CACHE_DIR`, else one in the user's cache folder."""
    if override := os.environ.get(VARIABLE):
        return Path(override)
    import platformdirs

    return platformdirs.user_cache_path("fusebench", appauthor=False)

"""Where fusebench keeps what it can make anew."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "FUSEBENCH_CACHE_DIR"


def own_cache() -> Path:
    """The folder that `FUSEBENCH_CACHE_DIR` names, else one in the user's cache folder."""
    if override := os.environ.get(VARIABLE):
        return Path(override)
    import platformdirs

    return platformdirs.user_cache_path("fusebench", appauthor=False)

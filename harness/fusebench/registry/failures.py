"""What a kernel raised, in words that point at the kernel's own files."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from pathlib import Path


def describe_exception(error: Exception, roots: Sequence[Path]) -> str:
    """`Type: message`, cut to its first lines, and the innermost line of a kernels folder that raised it."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    message = " | ".join(line.strip() for line in lines[:6]) + (" | …" if len(lines) > 6 else "")
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if any(Path(frame.filename).is_relative_to(root) for root in roots)
    ]
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {message}{where}"

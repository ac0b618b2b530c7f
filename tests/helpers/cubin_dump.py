"""What CUDA's object dumper says of a cubin; read by static_compile.py and by the fixture `cuda_code`."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import tempfile
from pathlib import Path


def cuobjdump() -> Path | None:
    """The program that Triton's package holds; None where it holds none."""
    spec = importlib.util.find_spec("triton")
    if spec is None or not spec.submodule_search_locations:
        return None
    path = Path(spec.submodule_search_locations[0]) / "backends" / "nvidia" / "bin" / "cuobjdump"
    return path if path.is_file() else None


def dump(cubin: bytes, option: str) -> str:
    """Output of `cuobjdump option`: `-sass` for the machine code."""
    program = cuobjdump()
    assert program is not None, "this Triton brings no cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run([program, option, file.name], check=True, capture_output=True, text=True).stdout


def resources(cubin: bytes) -> dict[str, int]:
    """REG, STACK, LOCAL, SHARED of the only function in `cubin`."""
    return {name: int(value) for name, value in re.findall(r"\b(REG|STACK|LOCAL|SHARED):(\d+)", dump(cubin, "--dump-resource-usage"))}

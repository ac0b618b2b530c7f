"""`ci/unpack_sglang` takes the kernels out of a wheel and leaves nothing of the server."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "ci" / "unpack_sglang"
FILES = {
    "sglang/kernels/__init__.py": "raise ImportError('a server')",
    "sglang/kernels/registry.py": "",
    "sglang/kernels/jit/utils.py": "",
    "sglang/kernels/kda_kernels/one.py": "",
    "sglang/kernels/ops/diffusion/__init__.py": (
        "from sglang.multimodal_gen.runtime.platforms import current_platform\n"
        "from sglang.srt.utils import get_cuda_version, is_cuda, is_hip\n"
        "from sglang.srt.utils.custom_op import register_custom_op\n"
        "@register_custom_op\ndef kernel(): return is_cuda(), is_hip(), current_platform.is_cuda(), current_platform.is_rocm()\n"
    ),
    "sglang/kernels/ops/layernorm/one.py": "",
    "sglang/kernels/ops/attention/one.py": "",
    "sglang/kernels/ops/moe/one.py": "",
    "sglang/srt/environ.py": "",
    "sglang/srt/server.py": "",
}


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """A Python whose pip finds a small wheel of SGLang."""
    wheel = tmp_path / "sglang-0.5.23-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in FILES.items():
            archive.writestr(name, text)
    stub = tmp_path / "python"
    download = f'[[ "$*" == *"pip download"*"sglang==0.5.23"* ]] && {{ cp {wheel} "${{@: -1}}"; exit; }}'
    stub.write_text(f'#!/usr/bin/env bash\n{download}\nexec {sys.executable} "$@"\n')
    stub.chmod(0o755)
    return stub


def test_the_kernels_load_without_the_server(tmp_path: Path, python: Path) -> None:
    call = ["bash", str(SCRIPT), str(tmp_path / "peers")]
    done = subprocess.run(call, env=os.environ | {"PYTHON": str(python)}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    found = {str(file.relative_to(tmp_path / "peers")) for file in (tmp_path / "peers").rglob("*.py")}
    assert "sglang/kernels/ops/diffusion/__init__.py" in found
    assert not {"sglang/srt/server.py", "sglang/kernels/ops/moe/one.py"} & found
    program = "from sglang.kernels.ops.diffusion import kernel; print(kernel())"
    loaded = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": str(tmp_path / "peers")}, capture_output=True, text=True, check=False
    )
    assert loaded.stdout == "(True, False, True, False)\n", loaded.stderr
    again = subprocess.run(call, env=os.environ | {"PYTHON": str(python)}, capture_output=True, text=True, check=False)
    assert (again.returncode, "remove it" in again.stderr) == (2, True)

"""What is installed, judged without importing it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fusebench.device import resolve_device, toolchain
from fusebench.device.toolchain import TorchBuild, require_torch_for, requirements, torch_build
from fusebench.errors import DeviceUnfitError


def test_requirements_are_compared_with_what_is_installed() -> None:
    met, low, absent = requirements(["msgspec>=0.1", "psutil>=999", "no-such-package>=1", "ruff>=1; extra == 'dev'"])
    assert met.met
    assert (low.met, low.wanted) == (False, ">=999")
    assert low.found
    assert (absent.met, absent.found) == (False, "")


def test_a_local_build_tag_is_within_a_range() -> None:
    (torch,) = requirements(["torch>=2.11,<2.14"])
    assert torch.met, torch


@pytest.fixture
def torch_folder(tmp_path, monkeypatch):
    """`torch_folder(version, text)`: an installed torch of this version whose version.py holds `text`."""

    def install(version: str, text: str | None) -> None:
        folder = tmp_path / "torch"
        folder.mkdir(exist_ok=True)
        (folder / "__init__.py").write_text("raise AssertionError('torch was executed')")
        if text is not None:
            (folder / "version.py").write_text(text)
        monkeypatch.setattr(toolchain, "distribution_version", lambda _: version)
        monkeypatch.setattr(toolchain.importlib.util, "find_spec", lambda _: type("Spec", (), {"origin": str(folder / "__init__.py")}))

    return install


@pytest.mark.parametrize(
    ("version", "text", "cuda"),
    [
        (
            "2.11.0+cu130",
            "from typing import Optional\n__version__ = '2.11.0+cu130'\ncuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n",
            "13.0",
        ),
        ("2.13.0+cpu", "cuda: Optional[str] = None\n", ""),
        ("2.11.0", "cuda = '12.8'\n", "12.8"),
        ("2.11.0+cu130", "", "13.0"),
        ("2.11.0+cu130", None, "13.0"),
        ("2.11.0", None, ""),
    ],
)
def test_the_build_is_read_without_executing_torch(torch_folder, version, text, cuda) -> None:
    torch_folder(version, text)
    assert torch_build() == TorchBuild(version, cuda)


def test_the_installed_torch_is_judged_as_it_judges_itself() -> None:
    torch = pytest.importorskip("torch")
    assert torch_build() == TorchBuild(torch.__version__, torch.version.cuda or "")


def test_a_cpu_build_is_refused_for_a_gpu_and_fine_for_the_cpu(monkeypatch, fake_gpu) -> None:
    gpu = resolve_device("cuda", fake_gpu(), environ={})
    monkeypatch.setattr(toolchain, "torch_build", lambda: TorchBuild("2.13.0+cpu", ""))
    require_torch_for(resolve_device("cpu"))
    with pytest.raises(DeviceUnfitError, match="without CUDA"):
        require_torch_for(gpu)
    monkeypatch.setattr(toolchain, "torch_build", lambda: TorchBuild("2.13.0", "13.0"))
    require_torch_for(gpu)
    monkeypatch.setattr(toolchain, "torch_build", lambda: None)
    with pytest.raises(DeviceUnfitError, match="not installed"):
        require_torch_for(gpu)


def test_the_device_layer_imports_no_torch_triton_or_nvml() -> None:
    code = (
        "import sys, fusebench.device, fusebench.device.doctor, fusebench.cli.doctor_command\n"
        "print([m for m in ('torch', 'triton', 'pynvml', 'rich.table', 'filelock', 'scipy') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"

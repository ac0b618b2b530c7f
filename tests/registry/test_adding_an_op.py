"""The guide docs/adding_an_op.md is a project that works: its files, written into an empty folder, are listed and checked."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result
from typer.testing import CliRunner

from fusebench.cli.main import app
from fusebench.registry import Collection, load_collection

pytestmark = pytest.mark.usefixtures("forked_workers")
PAGE = Path(__file__).parents[2] / "docs" / "adding_an_op.md"
FILES = {
    code.partition("\n")[0].removeprefix("# "): code
    for code in re.findall(r"^```(?:python|toml)\n(.*?)^```", PAGE.read_text(), re.S | re.M)
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with the guide's files."""
    for name, code in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(code)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def collection(project: Path) -> Collection:
    loaded = load_collection([project / "kernels"], entry_points=False)
    assert not loaded.problems, loaded.problems
    return loaded


def fusebench(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def test_an_op_with_a_split_chain_and_a_triton_kernel_takes_fewer_than_120_lines() -> None:
    assert {"pyproject.toml", "kernels/silu_mul/op.py", "kernels/silu_mul/split_torch.py", "suites/silu_mul.toml"} < set(FILES)
    assert sum(len(code.splitlines()) for code in FILES.values()) < 120


@pytest.mark.usefixtures("project")
def test_its_kernels_are_listed_and_right() -> None:
    commands = re.findall(r"^fusebench (?:list|check) .*$", PAGE.read_text(), re.MULTILINE)
    assert commands == ["fusebench list kernels --op silu_mul", 'fusebench check --suite silu_mul --kernel "*_t*"']
    listed = fusebench("list", "kernels", "--op", "silu_mul", "--json")
    assert listed.exit_code == 0, listed.output
    ids = [one["id"] for one in json.loads(listed.stdout)]
    assert ids == ["silu_mul/compiled@1", "silu_mul/fused_triton@1", "silu_mul/split_torch@1"]
    checked = fusebench("check", "--suite", "silu_mul", "--kernel", "*_t*")
    assert checked.exit_code == 0, checked.output
    assert "fused_triton@1" in checked.output


@pytest.mark.usefixtures("project")
def test_a_planted_error_in_its_kernel_fails_the_check(project: Path) -> None:
    file = project / "kernels" / "silu_mul" / "fused_triton_v1.py"
    file.write_text(file.read_text().replace("gate * tl.sigmoid(gate) * x", "gate * tl.sigmoid(gate) * x * 1.01"))
    assert fusebench("check", "--suite", "silu_mul", "--kernel", "fused_triton").exit_code == 5


def test_its_kernel_is_a_torch_operator_that_torch_compile_traces(collection: Collection, device: torch.device) -> None:
    fused = collection.kernel("silu_mul/fused_triton@1")
    x, gate = (torch.randn(3, 40, device=device) for _ in range(2))
    assert fused.torch_op is not None
    torch.library.opcheck(fused.torch_op, (x, gate))
    split = collection.kernel("silu_mul/split_torch@1")
    for kernel in (fused, split):
        traced: Any = torch.compile(lambda x, gate, kernel=kernel: kernel(x, gate) + 1, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(traced(x, gate), torch.nn.functional.silu(gate) * x + 1)


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")

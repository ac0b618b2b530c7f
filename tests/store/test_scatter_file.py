from __future__ import annotations

from pathlib import Path

import pytest

from fusebench.errors import RunRecordError
from fusebench.schema import CacheState, ClassScatter, Reference, RunScatter
from fusebench.store.scatter_file import load_scatter, scatter_file, write_scatter

SCATTER = RunScatter(
    version=1,
    device_name="NVIDIA H200",
    created="2026-07-27T07:25:47Z",
    timer="cupti",
    cache=CacheState.COLD,
    runs=8,
    boards=1,
    classes=(
        ClassScatter(
            reference=Reference.MACHINE,
            several_launches=True,
            low_us=50.0,
            high_us=float("inf"),
            process=0.003,
            board=None,
            placement=0.002,
            same_board=900,
            other_board=0,
        ),
    ),
)


def test_a_scatter_is_kept_per_device_model(tmp_path: Path) -> None:
    assert load_scatter(tmp_path, "NVIDIA H200") is None
    assert write_scatter(tmp_path, SCATTER) == scatter_file(tmp_path, "NVIDIA H200") == tmp_path / "calibration/nvidia_h200.scatter.json"
    assert load_scatter(tmp_path, "NVIDIA H200") == SCATTER
    assert load_scatter(tmp_path, "NVIDIA B200") is None


@pytest.mark.parametrize(
    ("content", "told"),
    [('{"version": 99}', "newer than this fusebench reads"), ("{", "history RUNS --scatter"), ('{"version": 1}', "not a")],
)
def test_a_garbled_or_newer_scatter_is_refused(tmp_path: Path, content: str, told: str) -> None:
    file = scatter_file(tmp_path, "NVIDIA H200")
    file.parent.mkdir()
    file.write_text(content)
    with pytest.raises(RunRecordError, match=told):
        load_scatter(tmp_path, "NVIDIA H200")

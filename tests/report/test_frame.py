"""A run as a table: `load_run` for pandas and `report --format csv` hold the record's own figures."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

import fusebench
from fusebench.cli.main import app
from fusebench.errors import RunRecordError
from fusebench.report.wording import error_ratio
from fusebench.schema import Status
from fusebench.store.run_folder import read_run

BASELINE = Path(__file__).parents[2] / "results" / "baselines" / "nvidia_h200"


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return fusebench.load_run(BASELINE)


def test_there_is_a_row_per_result_with_the_records_figures(frame: pd.DataFrame) -> None:
    run = read_run(BASELINE)
    assert len(frame) == len(run.results)
    place = next(at for at, one in enumerate(run.results) if one.status is Status.MEASURED and one.measurement.speedup is not None)  # type: ignore[union-attr]
    result, row = run.results[place], frame.iloc[place]
    timing = result.measurement
    assert timing is not None
    assert timing.speedup is not None
    assert (row.kernel, row.case, row.time_us, row.speedup_low) == (result.kernel, result.case, timing.time_us.value, timing.speedup.low)
    params = next(one.case.params for one in run.cases if one.case.key == result.case_key)
    assert {name: row[f"param.{name}"] for name in params} == params
    unmeasured = frame[frame.status == "unsupported"]
    assert unmeasured.time_us.isna().all()


def test_the_error_is_the_one_of_the_reports(frame: pd.DataFrame) -> None:
    """Planted defect: the table gave the absolute errors' ratio, 0.98 where every report of the same run said 0.73x."""
    measured = [(at, one) for at, one in enumerate(read_run(BASELINE).results) if one.status is Status.MEASURED]
    assert {error_ratio(one.accuracy) for _, one in measured} == {f"{frame.iloc[at].error_over_split:.2f}x" for at, _ in measured}


def test_csv_is_the_same_table(frame: pd.DataFrame) -> None:
    result = CliRunner().invoke(app, ["report", str(BASELINE), "--format", "csv"])
    assert result.exit_code == 0, result.output
    read = pd.read_csv(io.StringIO(result.stdout))
    assert list(read.columns) == list(frame.columns)
    pd.testing.assert_series_equal(read.time_us, frame.time_us, check_exact=False)


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunRecordError):
        fusebench.load_run(tmp_path)


def test_importing_fusebench_imports_no_pandas() -> None:
    subprocess.run([sys.executable, "-c", "import sys, fusebench; assert 'pandas' not in sys.modules"], check=True)

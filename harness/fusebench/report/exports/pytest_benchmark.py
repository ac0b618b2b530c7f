"""A run as pytest-benchmark's own JSON, which `pytest-benchmark compare` and `pytest --benchmark-compare` read.

Its statistics are of single calls, in seconds, so they are taken from the run's raw samples; fusebench's estimate and interval, which
cover placements and processes, are in `extra_info`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import RunRecordError
from ...schema import Run
from ...store.run_folder import SAMPLES_FILE, read_samples
from ..escape import one_line
from .series import Exported, device_facts, document, exported

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FORMAT_VERSION = "5.1.0"
"""The release of pytest-benchmark whose format this is; it has not changed since, and readers only show it."""


def pytest_benchmark_json(run: Run, folder: Path) -> str:
    """The document: `machine_info`, `commit_info` and one entry in `benchmarks` per kernel and case, grouped by case.

    Raises:
        RunRecordError: the samples are missing, or hold none of a kernel that was measured.
    """
    samples = read_samples(folder)
    times = {key: spans.to_numpy() * 1e-9 for key, spans in _counted(run, samples).groupby(["case", "arm"], observed=True)["span_ns"]}
    return document(
        {
            "machine_info": {
                "node": one_line(run.environment.device_name),
                "processor": one_line(run.environment.cpu),
                "machine": one_line(run.environment.platform),
                "python_version": one_line(run.environment.python),
                "cpu": {"brand_raw": one_line(run.environment.cpu), "count": run.environment.cpu_count},
                **device_facts(run),
            },
            "commit_info": {
                "id": one_line(run.environment.git_commit),
                "time": run.created,
                "author_time": run.created,
                "dirty": run.environment.git_dirty,
                "project": "fusebench",
                "branch": "",
            },
            "benchmarks": [_benchmark(one, _times_of(one, times, folder)) for one in exported(run)],
            "datetime": run.created,
            "version": FORMAT_VERSION,
        }
    )


def _counted(run: Run, samples: Any) -> Any:
    """The samples that the run's figures stand on: of a case that was measured again in fresh processes, theirs alone."""
    again = {summary.case.key for summary in run.cases if summary.suspicion}
    return samples[~(samples["case"].isin(again) & (samples["process"] == 0))]


def _times_of(one: Exported, times: dict[Any, NDArray[np.float64]], folder: Path) -> NDArray[np.float64]:
    case = one.summary.same_as or one.summary.case.key
    found = times.get((case, one.result.kernel))
    if found is None or not len(found):
        raise RunRecordError(f"{folder / SAMPLES_FILE}: holds no samples of {one.result.kernel} on {case}; run again")
    return found


def _benchmark(one: Exported, seconds: NDArray[np.float64]) -> dict[str, Any]:
    timing = one.timing
    info: dict[str, Any] = {"time_us": timing.time_us.value, "low_us": one.low_us, "high_us": one.high_us, **one.facts()}
    return {
        "group": one_line(one.summary.case.key),
        "name": one.name,
        "fullname": one.name,
        "params": None,
        "param": None,
        "extra_info": {name: value for name, value in info.items() if value is not None},
        "options": {"timer": "fusebench", "disable_gc": False, "min_rounds": len(seconds), "warmup": True},
        "stats": _statistics(seconds),
    }


def _statistics(seconds: NDArray[np.float64]) -> dict[str, Any]:
    """pytest-benchmark's own figures of one list of times."""
    from pytest_benchmark.stats import Stats

    found: Any = Stats()  # type: ignore[no-untyped-call]
    found.data = seconds.tolist()
    figures: dict[str, Any] = found.as_dict()
    return figures | {"iterations": 1}

"""Records that hold what no measurement gives, one planted fault each."""

from __future__ import annotations

import math
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from fusebench.errors import RunRecordError
from fusebench.schema import Estimate, ExitCode, OutputError, Run, Status
from fusebench.stats.weighted import BEST_FUSED
from fusebench.store.history_file import read_history_file
from fusebench.store.run_folder import read_run
from fusebench.verdict.record_validation import faults, impossible, require_showable, require_valid

RESULTS = Path(__file__).parents[2] / "results"
SOUND_OUTPUT = {"name": "y", "unit": "channel", "rms": 1.7e-3, "split_rms": 1.7e-3, "floor": 0.0, "rounding": 1.6e-3}


def with_measurement(run: Run, **changes: Any) -> Run:
    """`run` with its first result's measurement changed."""
    first = run.results[0]
    changed = msgspec.structs.replace(first, measurement=msgspec.structs.replace(first.measurement, **changes))
    return msgspec.structs.replace(run, results=[changed, *run.results[1:]])


def with_accuracy(run: Run, **changes: Any) -> Run:
    first = run.results[0]
    changed = msgspec.structs.replace(first, accuracy=msgspec.structs.replace(first.accuracy, **changes))
    return msgspec.structs.replace(run, results=[changed, *run.results[1:]])


def with_suite(run: Run, name: str, figure: float | None) -> Run:
    """`run` with that figure of its suite's best fused kernels changed, or taken away."""
    (suite,) = run.suites
    figures = {key: value for key, value in getattr(suite, name).items() if key != BEST_FUSED}
    if figure is not None:
        figures[BEST_FUSED] = figure
    return msgspec.structs.replace(run, suites=[msgspec.structs.replace(suite, **{name: figures})])


def with_control(run: Run, value: float) -> Run:
    summary = msgspec.structs.replace(run.cases[0], control_ratio=Estimate(value, value, value))
    return msgspec.structs.replace(run, cases=[summary, *run.cases[1:]])


def test_a_sound_record_has_no_faults(synthetic: ModuleType) -> None:
    assert faults(synthetic.make_run()) == []


def test_the_stored_records_are_sound() -> None:
    kept = read_history_file(RESULTS / "history" / "nvidia_h200.parquet")
    assert len(kept) == 41, "the baseline, seven nightlies and 33 repeated runs"
    assert [run.id for run in (*kept, read_run(RESULTS / "baselines" / "nvidia_h200")) if faults(run)] == []


IMPOSSIBLE = pytest.mark.parametrize(
    ("plant", "said"),
    [
        *((lambda run, value=value: with_control(run, value), f"control_ratio is {value}") for value in (0.0, -1.0, math.nan)),
        *(
            (lambda run, name=name, value=value: with_suite(run, name, value), f"suite qknorm_rope: {name} of best_fused is {value!r}")
            for name in ("weighted_speedup", "covered_weight", "baseline_us_per_step")
            for value in (0.0, -1.0, math.nan, math.inf)
        ),
        (lambda run: with_suite(run, "saved_us_per_step", math.nan), "saved_us_per_step of best_fused is nan"),
        *(
            (lambda run, name=name: with_suite(run, name, None), f"best_fused has saved_us_per_step and no {name}")
            for name in ("covered_cases", "covered_weight", "baseline_us_per_step")
        ),
        (
            lambda run: msgspec.structs.replace(
                run, results=[msgspec.structs.replace(run.results[0], status=Status.WRONG), *run.results[1:]]
            ),
            "its status is wrong and it has a time",
        ),
        (lambda run: with_measurement(run, time_us=Estimate(math.nan, 1.0, 2.0)), "time_us is nan"),
        (lambda run: with_measurement(run, time_us=Estimate(-3.0, -4.0, -2.0)), "time_us is -3.0"),
        (lambda run: with_measurement(run, time_us=Estimate(math.inf, 1.0, math.inf)), "time_us is inf"),
        (lambda run: with_measurement(run, time_us=Estimate(3.0, 3.5, 4.0)), "outside of its interval"),
        (lambda run: with_measurement(run, speedup=Estimate(0.0, 0.0, 1.0)), "speedup is 0.0"),
        (lambda run: with_measurement(run, time_us=Estimate(3.0, 2.5, 4.0, -1.0)), "its interval's level is -1.0"),
        (lambda run: with_measurement(run, speedup=Estimate(3.0, 2.5, 4.0, math.nan)), "its interval's level is nan"),
        (lambda run: with_measurement(run, sol=math.nan), "sol is nan"),
        (lambda run: with_measurement(run, sol=0.0), "sol is 0.0"),
        (lambda run: with_measurement(run, busy_us=-1.0), "busy_us is -1.0"),
        (lambda run: with_measurement(run, gb_per_s=math.inf), "gb_per_s is inf"),
        (lambda run: with_accuracy(run, rms_error=math.nan), "rms_error is nan"),
        (lambda run: with_accuracy(run, max_error=-1.0), "max_error is -1.0"),
        (lambda run: with_accuracy(run, rms_error=math.inf), "rms_error is inf"),
        (lambda run: with_accuracy(run, split_channel_rms_error=math.inf), "split_channel_rms_error is inf"),
        (lambda run: with_accuracy(run, channel_rms_error=math.nan), "channel_rms_error is nan"),
        *(
            (
                lambda run, name=name, value=value: with_accuracy(run, outputs=(OutputError(**(SOUND_OUTPUT | {name: value})),)),
                f"{name} of output 'y' is {value!r}",
            )
            for name in ("rms", "split_rms", "floor", "rounding")
            for value in (-1.0, math.nan, math.inf)
        ),
        (lambda run: msgspec.structs.replace(run, cases=[*run.cases, run.cases[0]]), "is there 2 times"),
        (lambda run: msgspec.structs.replace(run, results=[*run.results, run.results[0]]), "is there 2 times"),
        (
            lambda run: msgspec.structs.replace(run, results=[msgspec.structs.replace(run.results[0], measurement=None), *run.results[1:]]),
            "has no time",
        ),
        (
            lambda run: msgspec.structs.replace(
                run, cases=[msgspec.structs.replace(run.cases[0], copy_us=Estimate(math.nan, 1.0, 2.0)), *run.cases[1:]]
            ),
            "copy_us is nan",
        ),
    ],
)
TOO_LITTLE = pytest.mark.parametrize(
    ("plant", "said"),
    [
        (lambda run: with_measurement(run, replicates=1), "too few samples, 1 replicates"),
        (lambda run: msgspec.structs.replace(run, cases=[]), "holds 0 cases"),
        (lambda run: msgspec.structs.replace(run, results=[]), "0 results"),
    ],
)


@IMPOSSIBLE
def test_what_no_measurement_gives_is_neither_judged_nor_shown(synthetic: ModuleType, plant: Any, said: str) -> None:
    bad = plant(synthetic.make_run())
    with pytest.raises(RunRecordError, match=r"^baseline r1 cannot be judged: ") as judged:
        require_valid(bad, "baseline")
    with pytest.raises(RunRecordError, match=r"^run r1 cannot be shown: ") as shown:
        require_showable(bad)
    assert (said in str(judged.value), said in str(shown.value)) == (True, True)
    assert judged.value.exit_code is shown.value.exit_code is ExitCode.USAGE


@TOO_LITTLE
def test_what_is_too_little_to_judge_can_be_shown(synthetic: ModuleType, plant: Any, said: str) -> None:
    with pytest.raises(RunRecordError, match=r"^baseline r1 cannot be judged: ") as caught:
        require_valid(plant(synthetic.make_run()), "baseline")
    assert said in str(caught.value)
    assert impossible(plant(synthetic.make_run())) == []


def test_suites_of_older_records_lack_the_figures_per_step(synthetic: ModuleType) -> None:
    run = synthetic.make_run()
    older = msgspec.structs.replace(run.suites[0], covered_weight={}, baseline_us_per_step={}, saved_us_per_step={})
    assert faults(msgspec.structs.replace(run, suites=[older])) == []


def test_what_is_not_known_is_no_fault(synthetic: ModuleType) -> None:
    assert faults(with_measurement(synthetic.make_run(), sol=None, host_us=None, gap_us=None, speedup=None)) == []


def test_many_faults_are_counted_not_listed(synthetic: ModuleType) -> None:
    run = synthetic.make_run()
    bad = [msgspec.structs.replace(one, measurement=msgspec.structs.replace(one.measurement, replicates=1)) for one in run.results]
    with pytest.raises(RunRecordError, match="and 26 more"):
        require_valid(msgspec.structs.replace(run, results=bad))

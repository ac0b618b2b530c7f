"""The document of `fusebench eval` keeps its keys: a consumer of version 1 finds all of them, under the same names."""

from __future__ import annotations

import msgspec

from fusebench.schema import Estimate
from fusebench.schema.evaluation import EVALUATION_VERSION, CaseEvaluation, Evaluation, EvaluationStatus, IsolationMeasure, Stage

KEYS = [
    "schema_version",
    "status",
    "reason",
    "op",
    "kernel",
    "stage",
    "device",
    "file",
    "file_sha256",
    "cases",
    "first_failure",
    "speedup",
    "registers",
    "spills",
    "shared_bytes",
    "remarks",
    "isolation",
    "output_tail",
    "spent_s",
    "phases_s",
    "start_s",
    "kernels_compiled",
    "compile_s",
    "next_command",
]
CASE_KEYS = [
    "case",
    "suite",
    "shape",
    "status",
    "reason",
    "accuracy",
    "time_us",
    "baseline_us",
    "speedup",
    "sol",
    "limit_us",
    "calls_compared",
    "calls",
]
STATUSES = [
    "passed",
    "wrong",
    "crashed",
    "hung",
    "compile_error",
    "out_of_memory",
    "suspicious",
    "hacked",
    "unsupported",
    "invalid",
    "undecided",
    "unfit",
]


def test_the_keys_of_version_1_are_fixed() -> None:
    document = Evaluation(
        status=EvaluationStatus.PASSED,
        op="toy",
        stage=Stage.QUICK,
        cases=(CaseEvaluation(case="a", suite="s", shape="1x1", status=EvaluationStatus.PASSED, speedup=Estimate(2.0, 1.9, 2.1)),),
        isolation=(IsolationMeasure(name="landlock", active=True),),
    )
    read = msgspec.json.decode(msgspec.json.encode(document))
    assert EVALUATION_VERSION == read["schema_version"] == 1
    assert list(read) == KEYS
    assert list(read["cases"][0]) == CASE_KEYS
    assert read["cases"][0]["speedup"] == {"value": 2.0, "low": 1.9, "high": 2.1, "level": 0.95}
    assert read["isolation"] == [{"name": "landlock", "active": True, "reason": ""}]
    assert [status.value for status in EvaluationStatus] == STATUSES
    assert [stage.value for stage in Stage] == ["check", "quick", "final"]
    assert msgspec.json.decode(msgspec.json.encode(document), type=Evaluation) == document

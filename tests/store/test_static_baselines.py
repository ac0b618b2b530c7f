"""Static baselines: what is promoted is read back whole, and nothing is overwritten by mistake."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fusebench.evidence.disassembly import Instructions
from fusebench.evidence.occupancy import Occupancy
from fusebench.evidence.records import Code, KernelEvidence, Launch, StaticReport, StaticStatus, Toolchain
from fusebench.schema import Language, Role
from fusebench.store.baselines import list_baselines
from fusebench.store.static_baselines import StaticBaselineError, load_static, promote_static, read_static, targets_with_baselines

TOOLS = Toolchain(triton="3.9.0", ptxas="12.9.86", ptxas_blackwell="13.4.59", nvrtc="13.4.92", nvdisasm="13.1.80")
CODE = Code(
    entry="k", compiler="triton 3.9.0", sha256="a" * 64, size=9600, registers=64, stack=0, spill_stores=0, spill_loads=0,
    block_barriers=1, static_shared=0, threads=128, instructions=Instructions(total=600, global_loads={16: 8, 4: 1}, global_stores={16: 4}),
)  # fmt: skip
LAUNCH = Launch(
    grid=(132, 1, 1),
    threads=128,
    dynamic_shared=16,
    occupancy=Occupancy(blocks=8, warps=32, share=0.5, limited_by=("registers",)),
    code=CODE,
)


def evidence(case: str, **changes: Any) -> KernelEvidence:
    values: dict[str, Any] = {
        "case": f"s:{case}", "op": "o", "shape": "4096", "params": "p", "kernel": "o/k@1", "role": Role.FUSED,
        "language": Language.TRITON, "status": StaticStatus.COMPILED, "launches": (LAUNCH, LAUNCH),
    }  # fmt: skip
    return KernelEvidence(**(values | changes))


def report(*results: KernelEvidence, toolchain: Toolchain = TOOLS) -> StaticReport:
    return StaticReport(target="sm_90", toolchain=toolchain, results=results or (evidence("one"), evidence("two")))


def test_what_is_promoted_is_read_back(tmp_path: Path) -> None:
    file = promote_static(report(), tmp_path)
    assert file.relative_to(tmp_path).as_posix() == "baselines/static/sm_90/triton-3.9.0_nvrtc-13.4.92.parquet"
    assert read_static(file) == report()
    assert load_static(tmp_path, "sm_90", TOOLS) == (file, report())
    assert targets_with_baselines(tmp_path) == ["sm_90"]


def test_the_file_does_not_depend_on_the_order_of_the_results(tmp_path: Path) -> None:
    first = promote_static(report(evidence("one"), evidence("two")), tmp_path).read_bytes()
    assert promote_static(report(evidence("two"), evidence("one")), tmp_path).read_bytes() == first


def test_only_what_compiled_is_kept(tmp_path: Path) -> None:
    declined = evidence("two", status=StaticStatus.UNSUPPORTED, reason="no", launches=())
    assert read_static(promote_static(report(evidence("one"), declined), tmp_path)).results == (evidence("one"),)


def test_another_toolchains_baseline_is_found_where_there_is_no_own(tmp_path: Path) -> None:
    other = msgspec.structs.replace(TOOLS, triton="3.8.0")
    file = promote_static(report(toolchain=other), tmp_path)
    found = load_static(tmp_path, "sm_90", TOOLS)
    assert found is not None
    assert (found[0], found[1].toolchain) == (file, other)
    own = promote_static(report(), tmp_path)
    assert load_static(tmp_path, "sm_90", TOOLS) == (own, report())
    assert load_static(tmp_path, "sm_80", TOOLS) is None


def test_nothing_is_lost_by_mistake(tmp_path: Path) -> None:
    file = promote_static(report(), tmp_path)
    kept = file.read_bytes()
    failed = evidence("two", status=StaticStatus.COMPILE_ERROR, reason="no", launches=())
    for refused in (report(evidence("one")), report(evidence("one"), failed)):
        with pytest.raises(StaticBaselineError, match="not replaced"):
            promote_static(refused, tmp_path)
    with pytest.raises(StaticBaselineError, match="nothing compiled"):
        promote_static(report(failed), tmp_path, force=True)
    assert file.read_bytes() == kept
    promote_static(report(evidence("one")), tmp_path, force=True)
    assert read_static(file).results == (evidence("one"),)


def as_json(file: Path, of: StaticReport) -> Path:
    """Write `of` beside `file` as an older fusebench did: each machine code once, named by the launches that have it."""
    codes, results = {}, []
    for one in of.results:
        entry = msgspec.to_builtins(one, str_keys=True)
        for launch in entry["launches"]:
            name = hashlib.sha256(msgspec.json.encode(launch["code"])).hexdigest()[:12]
            codes[name], launch["code"] = launch["code"], name
        results.append(entry)
    document = {"schema_version": 2, "target": of.target, "toolchain": of.toolchain, "codes": codes, "results": results}
    older = file.with_suffix(".json")
    older.parent.mkdir(parents=True, exist_ok=True)
    older.write_bytes(msgspec.json.encode(document))
    return older


def test_a_baseline_of_an_older_fusebench_is_read_and_replaced(tmp_path: Path) -> None:
    file = promote_static(report(), tmp_path)
    older = as_json(file, report())
    file.unlink()
    assert targets_with_baselines(tmp_path) == ["sm_90"]
    assert load_static(tmp_path, "sm_90", TOOLS) == (older, report())
    assert load_static(tmp_path, "sm_90", msgspec.structs.replace(TOOLS, triton="3.8.0")) == (older, report())
    with pytest.raises(StaticBaselineError, match="not replaced"):
        promote_static(report(evidence("one")), tmp_path)
    assert promote_static(report(), tmp_path) == file
    assert (older.exists(), load_static(tmp_path, "sm_90", TOOLS)) == (False, (file, report()))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (b'"target"', b'"tar', "corrupted"),
        (b'"registers":64', b'"registers":"many"', "corrupted"),
        (b'"schema_version":2', b'"schema_version":3', "newer than this fusebench reads"),
        (b'"schema_version":2', b'"schema_version":1', "promote it anew"),
        (b'"code":"', b'"code":"0', "names .* and does not hold it"),
        (b'"schema_version":2', b'"schema_version":' + b"[" * 200_000, "corrupted"),
    ],
)
def test_a_damaged_baseline_of_an_older_fusebench_is_refused_and_left_alone(tmp_path: Path, old: bytes, new: bytes, words: str) -> None:
    file = as_json(tmp_path / "baselines" / "static" / "sm_90" / f"{TOOLS.slug}.parquet", report())
    refused(tmp_path, file, file.read_bytes().replace(old, new), words)


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"fusebench.evidence_version": "3"}, "newer than this fusebench reads"),
        ({"fusebench.evidence_version": "1"}, "promote it anew"),
        ({"fusebench.evidence_version": "two"}, "corrupted"),
        ({"toolchain": "{"}, "corrupted"),
        (None, "does not hold it"),
    ],
)
def test_a_baseline_of_another_version_or_without_its_facts_is_refused(tmp_path: Path, metadata: dict[str, str] | None, words: str) -> None:
    import pyarrow.parquet

    file = promote_static(report(), tmp_path)
    table = pyarrow.parquet.read_table(file)
    known = {key.decode(): value.decode() for key, value in table.schema.metadata.items() if not key.startswith(b"ARROW")}
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(table.replace_schema_metadata({} if metadata is None else {**known, **metadata}), sink)
    refused(tmp_path, file, sink.getvalue().to_pybytes(), words)


def test_a_truncated_baseline_is_refused_and_left_alone(tmp_path: Path) -> None:
    file = promote_static(report(), tmp_path)
    for share in (0.0, 0.5, 0.99):
        content = file.read_bytes()
        refused(tmp_path, file, content[: int(len(content) * share)], "corrupted: .*truncated or garbled")
        file.write_bytes(content)


def refused(results: Path, file: Path, damaged: bytes, words: str) -> None:
    """Neither read nor replaced, with these words, and as it was afterwards."""
    assert damaged != file.read_bytes()
    file.write_bytes(damaged)
    with pytest.raises(StaticBaselineError, match=words):
        load_static(results, "sm_90", TOOLS)
    with pytest.raises(StaticBaselineError, match=words):
        promote_static(report(), results)
    assert file.read_bytes() == damaged


def test_static_evidence_is_no_run(tmp_path: Path) -> None:
    promote_static(report(), tmp_path)
    assert list_baselines(tmp_path) == []

"""What is said of a kernel whose code changed, on planted defects; and of one whose code did not."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from fusebench.config import find_project
from fusebench.evidence.attached import EvidenceTarget, attachments_of
from fusebench.evidence.evidence_cache import EvidenceCache
from fusebench.evidence.records import KernelEvidence, StaticReport, StaticStatus
from fusebench.evidence.static_attachment import NEITHER, EvidenceReply, EvidenceRequest, EvidenceSource, StaticEvidence, compiled_source
from fusebench.evidence.static_process import Progress
from fusebench.evidence.targets import TARGETS, NoTargetError, Target, target_of
from fusebench.registry import load_collection
from fusebench.schema import Attachment, Case

CASE = Case(suite="unit_sum", name="rows", op="unit_sum", params={"rows": 4096, "columns": 1024})


def suspect(name: str) -> EvidenceTarget:
    return EvidenceTarget(f"unit_sum/{name}@1", CASE)


def told(report: StaticReport, name: str, *notes: str) -> EvidenceSource:
    return lambda wanted: EvidenceReply(report=report, name=name, notes=notes)


def explained(before: StaticReport, after: StaticReport, name: str, *notes: str) -> Attachment:
    evidence = StaticEvidence(lambda: TARGETS["sm_90"], told(before, "commit 1a2b3c"), told(after, "this checkout", *notes))
    return evidence.explain([suspect(name)])[suspect(name).key]


def changed(report: StaticReport, name: str, **fields: object) -> StaticReport:
    def change(one: KernelEvidence) -> KernelEvidence:
        return msgspec.structs.replace(one, **fields) if one.kernel == f"unit_sum/{name}@1" else one

    return msgspec.structs.replace(report, results=tuple(change(one) for one in report.results))


def without(report: StaticReport, name: str) -> StaticReport:
    return msgspec.structs.replace(report, results=tuple(one for one in report.results if one.kernel != f"unit_sum/{name}@1"))


@pytest.mark.parametrize(
    ("name", "figures"),
    [
        ("spilling", {"bytes of spill stores", "bytes of spill loads", "bytes of stack", "local-memory instructions"}),
        ("narrower", {"global loads", "global stores"}),
        ("fewer_warps", {"resident warps"}),
        ("longer", {"instructions"}),
    ],
)
def test_a_planted_defect_is_shown_as_what_became_worse(sound: StaticReport, spoiled: StaticReport, name: str, figures: set[str]) -> None:
    attachment = explained(sound, spoiled, name)
    assert (attachment.kind, attachment.notes) == ("static", ())
    assert attachment.title == "static evidence for sm_90 (NVIDIA H200): commit 1a2b3c → this checkout"
    assert all(len(row) == len(attachment.columns) for row in attachment.rows)
    assert figures <= {row[1] for row in attachment.rows if row[4] == "worse"}


def test_the_other_way_round_it_became_better(sound: StaticReport, spoiled: StaticReport) -> None:
    rows = {row[1]: row for row in explained(spoiled, sound, "spilling").rows}
    assert (rows["bytes of spill stores"][3:], rows["threads per block"][2:]) == (("0", "better"), ("32", "128", ""))


def test_that_nothing_changed_in_the_code_is_said_too(sound: StaticReport, spoiled: StaticReport) -> None:
    for name in ("unchanged", "in_cuda"):
        attachment = explained(sound, spoiled, name)
        assert (attachment.rows, attachment.notes) == ((), ("compiled to the same code in both revisions and launched alike",))


def test_the_same_code_in_another_grid_is_told_from_other_code(sound: StaticReport) -> None:
    (one,) = [one for one in sound.results if one.key == ("unit_sum:rows", "unit_sum/unchanged@1")]
    wider = tuple(msgspec.structs.replace(launch, grid=(8192, 1, 1)) for launch in one.launches)
    attachment = explained(sound, changed(sound, "unchanged", launches=wider), "unchanged")
    assert attachment.rows == (("1", "blocks", "4096", "8192", ""),)
    assert attachment.notes == ("compiled to the same code in both revisions and launched differently",)


def test_what_cannot_be_held_against_each_other_says_why(sound: StaticReport) -> None:
    broken = changed(sound, "longer", status=StaticStatus.LAUNCH_ERROR, reason="planted", launches=())
    assert explained(broken, sound, "longer").notes == ("commit 1a2b3c: launch error: planted",)
    assert explained(sound, broken, "longer").notes == ("planted",)
    assert explained(without(sound, "longer"), sound, "longer").notes == ("commit 1a2b3c does not have this kernel on this case",)
    assert explained(sound, changed(sound, "longer", params="other"), "longer").notes[0].startswith("the case has other parameters")
    neither = explained(without(sound, "longer"), without(sound, "longer"), "longer", "longer.py: not loaded")
    assert neither.notes == (NEITHER, "longer.py: not loaded")


def test_both_sides_are_asked_for_the_suspects_alone(sound: StaticReport) -> None:
    asked: list[EvidenceRequest] = []

    def side(wanted: EvidenceRequest) -> EvidenceReply:
        asked.append(wanted)
        return EvidenceReply(report=sound, name="side")

    suspects = [suspect("longer"), suspect("narrower"), EvidenceTarget("unit_sum/longer@1", msgspec.structs.replace(CASE, name="again"))]
    StaticEvidence(lambda: TARGETS["sm_90"], side, side).explain(suspects)
    for wanted in asked:
        assert [case.key for case in wanted.cases] == ["unit_sum:rows", "unit_sum:again"]
        assert wanted.kernels == ("unit_sum/longer@1", "unit_sum/narrower@1")
    assert len(asked) == 2


def test_a_gpu_without_a_target_is_a_reason_and_no_crash(sound: StaticReport) -> None:
    def target() -> Target:
        return target_of("cuda", "NVIDIA L40S", (8, 9))

    evidence = StaticEvidence(target, told(sound, "a"), told(sound, "b"))
    with pytest.raises(NoTargetError):
        evidence.explain([suspect("longer")])
    (attachment,) = attachments_of([suspect("longer")], [evidence])[suspect("longer").key]
    assert attachment.notes[0].startswith("not collected: there is no static target for NVIDIA L40S (sm_89)")


def test_compiling_two_kernels_of_a_folder_and_no_more(spoiled_project: Path, spoiled: StaticReport, cache: EvidenceCache) -> None:
    """From the cache that holds the spoiled project, so that no process starts."""
    project = find_project(spoiled_project)
    ops = load_collection(project.kernels, kernels=False, entry_points=False).ops
    progress: list[Progress] = []
    side = compiled_source(project.kernels, "here", ops=ops, jobs=1, cache=cache, on_progress=progress.append)
    kernels = ("unit_sum/spilling@1", "unit_sum/absent@1", "unit_sum/longer@1")
    found = side(EvidenceRequest(target=TARGETS["sm_90"], cases=(CASE,), kernels=kernels))
    assert [one.kernel for one in found.report.results] == ["unit_sum/spilling@1", "unit_sum/longer@1"]
    assert found.report.results[0] == next(one for one in spoiled.results if one.key == ("unit_sum:rows", "unit_sum/spilling@1"))
    assert (found.name, found.notes, progress) == ("here", (), [])

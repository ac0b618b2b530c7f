"""Counters as evidence: both revisions of a few suspects, and one note wherever there is nothing to be had."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from fusebench.counters import attachment
from fusebench.counters.attachment import COLUMNS, LEFT_OUT, MOST, UNCHANGED, CountersEvidence, KernelFolders, OnCapture
from fusebench.counters.metric_sets import FULL
from fusebench.device import Device, device_lock, idle_findings, require_idle, resolve_device
from fusebench.device import nvml as nvml_backend
from fusebench.device.lock import lock_path, read_holder
from fusebench.errors import UsageError
from fusebench.evidence.attached import EvidenceTarget, attachments_of
from fusebench.registry import Collection, load_collection
from fusebench.report.evidence.counters_table import changed_rows, readings
from fusebench.schema import CacheState, Case
from helpers.strangers import NOBODY, STRANGER

TOY_KERNELS = Path(__file__).parents[1] / "toy_project" / "kernels"
FAST, SPLIT = "scale/fast@2", "scale/split@1"
MANY_REGISTERS, FEW_REGISTERS = {"rows": [0]}, {"rows": [1]}  # two versions of one kernel on an H200: 96 and 72


def suspect(size: int = 8, kernel: str = FAST, **changes: Any) -> EvidenceTarget:
    return EvidenceTarget(kernel, Case(suite="scale", name=f"n{size}", op="scale", params={"size": size}), **changes)


@pytest.fixture
def gpu(fake_gpu: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`gpu(**changes)`: the machine's one H200 reads like this from now on; idle at first."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setitem(idle_findings.__kwdefaults__, "sleep", lambda _: None)
    monkeypatch.setitem(require_idle.__kwdefaults__, "sleep", lambda _: None)

    def install(**changes: object) -> None:
        monitor = fake_gpu(**changes)
        monkeypatch.setattr(nvml_backend, "open_monitor", lambda: monitor)

    install()
    return install


@pytest.fixture
def device(gpu: Callable[..., None]) -> Device:
    return resolve_device("cuda")


@pytest.fixture
def collection() -> Collection:
    return load_collection([TOY_KERNELS], entry_points=False)


Make = Callable[..., CountersEvidence]


@pytest.fixture
def evidence(device: Device, collection: Collection, tmp_path: Path, fake_ncu: Any) -> Make:
    """`evidence(before=…)`: of a kernel that needs 96 registers now and needed 72 in another folder."""
    fake_ncu.behave(kernels={FAST: MANY_REGISTERS}, base_kernels={FAST: FEW_REGISTERS})

    def make(
        before: Callable[[], AbstractContextManager[KernelFolders]] = lambda: nullcontext(
            KernelFolders((tmp_path,), "commit abc", ("kept in a drawer",))
        ),
        cache: CacheState = CacheState.COLD,
        heard: list[tuple[str, int, int]] | None = None,
    ) -> CountersEvidence:
        @contextmanager
        def progress() -> Iterator[OnCapture]:
            yield lambda *said: None if heard is None else heard.append(said)

        return CountersEvidence(
            device, collection, before, cache=cache, silence_s=30.0, rows=changed_rows, sentences=readings, progress=progress
        )

    return make


def captures(fake_ncu: Any) -> list[list[str]]:
    return [call["arguments"] for call in fake_ncu.calls if "--export" in call["arguments"]]


def test_a_kernel_that_needs_more_registers_shows_them_and_what_that_means(evidence: Make, fake_ncu: Any) -> None:
    heard: list[tuple[str, int, int]] = []
    (found,) = evidence(heard=heard).explain([suspect()]).values()
    assert (found.kind, found.columns) == ("counters", COLUMNS)
    assert found.title == "hardware counters of NVIDIA H200, caches flushed: commit abc → this checkout"
    rows = {row[0]: row[1:] for row in found.rows}
    assert rows["registers per thread"] == ("72", "96", "+33.3 % (worse)")
    assert "threads per block" not in rows, "which is the same in both revisions"
    assert all(abs(float(row[3].split()[0])) >= 1 for row in found.rows if "from none" not in row[3])
    assert any(note.startswith("this checkout: limited by registers: 96 per thread") for note in found.notes)
    assert any(note.startswith("commit abc: latency-bound") for note in found.notes)
    assert found.notes[-1] == "kept in a drawer"
    assert heard == [("scale/fast@2 on scale:n8, commit abc", 0, 2), ("scale/fast@2 on scale:n8, this checkout", 1, 2)]
    for arguments in captures(fake_ncu):
        assert arguments[arguments.index("--metrics") + 1] == ",".join(FULL), "stall reasons are among them"
        assert "--set" not in arguments, "nobody opens this report in the viewer"
        assert arguments[arguments.index("--cache-control") + 1] == "all"


def test_counters_that_are_the_same_are_said_to_be(evidence: Make, fake_ncu: Any) -> None:
    fake_ncu.behave()
    (found,) = evidence().explain([suspect()]).values()
    assert (found.rows, found.notes[0]) == ((), UNCHANGED)


def test_another_number_of_launches_is_said(evidence: Make, fake_ncu: Any) -> None:
    fake_ncu.behave(kernels={FAST: {"rows": [3, 4]}})
    (found,) = evidence().explain([suspect()]).values()
    assert found.notes[0] == "launches per call: commit abc 1, this checkout 2"


def test_caches_are_as_they_were_when_the_times_were_taken(evidence: Make, fake_ncu: Any) -> None:
    (found,) = evidence(cache=CacheState.WARM).explain([suspect()]).values()
    assert "caches as they were" in found.title
    assert {arguments[arguments.index("--cache-control") + 1] for arguments in captures(fake_ncu)} == {"none"}


def test_the_device_is_locked_while_captures_are_made_and_free_again(
    evidence: Make, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    note, real, held = lock_path(device).with_suffix(".json"), attachment.capture, []

    def watched(*arguments: Any, **options: Any) -> Any:
        held.append(read_holder(note))
        return real(*arguments, **options)

    monkeypatch.setattr(attachment, "capture", watched)
    evidence().explain([suspect()])
    assert (len(held), None in held, read_holder(note)) == (2, False, None)


def no_ncu(monkeypatch: pytest.MonkeyPatch, **_: Any) -> None:
    monkeypatch.setenv("FUSEBENCH_NCU", "/nowhere/ncu")


def forbidden(fake_ncu: Any, **_: Any) -> None:
    fake_ncu.behave(forbidden=True)


def busy(gpu: Callable[..., None], monkeypatch: pytest.MonkeyPatch, **_: Any) -> None:
    gpu(processes=(STRANGER,))
    monkeypatch.setattr(attachment, "SETTLE_S", 0.0)


@pytest.mark.parametrize(
    ("obstacle", "said"),
    [
        (no_ncu, "FUSEBENCH_NCU='/nowhere/ncu' is no program that can be run; name the file `ncu` itself"),
        (forbidden, "Nsight Compute may not read performance counters (ERR_NVGPUCTRPERM); "),
        (busy, f"train (pid {NOBODY}"),
    ],
)
def test_what_keeps_counters_from_being_read_is_one_note_with_the_remedy(
    evidence: Make, fake_ncu: Any, gpu: Any, *, monkeypatch: pytest.MonkeyPatch, obstacle: Callable[..., None], said: str
) -> None:
    obstacle(fake_ncu=fake_ncu, gpu=gpu, monkeypatch=monkeypatch)
    first, second = suspect(8), suspect(16)
    found = evidence().explain([first, second])
    assert list(found) == [first.key]
    (note,) = found[first.key].notes
    assert note.startswith("not collected: ")
    assert said in note
    assert note.endswith(" (nor of 1 more that are slower)")
    assert "\n" not in note
    assert len(captures(fake_ncu)) == (obstacle is forbidden), "it is not tried again"


def test_a_device_that_another_run_has_taken_meanwhile_is_a_note(evidence: Make, device: Device, fake_ncu: Any) -> None:
    with device_lock(device):
        (found,) = evidence().explain([suspect()]).values()
    assert "in use by another fusebench run" in found.notes[0]
    assert not captures(fake_ncu)


def test_a_device_that_is_about_to_fall_idle_is_waited_for(evidence: Make, gpu: Any, gpu_reading: Any) -> None:
    """Right after a measurement its last process may still be listed."""
    gpu(script=[*[gpu_reading(processes=(STRANGER,))] * 5, gpu_reading()])
    (found,) = evidence().explain([suspect()]).values()
    assert found.rows


def test_a_base_revision_that_cannot_be_had_is_a_note(evidence: Make, fake_ncu: Any) -> None:
    def gone() -> AbstractContextManager[KernelFolders]:
        raise UsageError("nothing to hold it against: this repository does not have commit abc")

    (found,) = evidence(gone).explain([suspect()]).values()
    assert found.notes == ("not collected: nothing to hold it against: this repository does not have commit abc",)
    assert not captures(fake_ncu)


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ({"raises": "ValueError: planted"}, "this checkout: failed: ValueError: planted"),
        ({"no_launch": True}, "this checkout: no launch: the call launched nothing on the GPU"),
    ],
)
def test_a_capture_that_fails_is_told_in_its_place_and_the_others_go_on(
    evidence: Make, fake_ncu: Any, plan: dict[str, Any], said: str
) -> None:
    """Above all it does not take the report of the capture before it for its own."""
    fake_ncu.behave(kernels={FAST: plan, SPLIT: MANY_REGISTERS}, base_kernels={SPLIT: FEW_REGISTERS})
    failed, fine = suspect(), suspect(kernel=SPLIT)
    found = evidence().explain([failed, fine])
    assert (found[failed.key].rows, found[failed.key].notes[0]) == ((), said)
    assert any(note.startswith("commit abc: latency-bound") for note in found[failed.key].notes), "the evidence about the base revision"
    assert found[fine.key].rows


def test_a_few_are_counted_each_kernels_first_before_any_kernels_second_and_the_rest_is_named(evidence: Make, fake_ncu: Any) -> None:
    fast, split = [suspect(8 * n) for n in range(1, MOST + 2)], [suspect(8 * n, SPLIT) for n in range(1, 3)]
    found = evidence().explain([*fast, *split])
    counted = {key for key, one in found.items() if one.columns}
    assert counted == {one.key for one in (fast[0], fast[1], split[0], split[1])}
    assert {found[one.key].notes for one in fast[2:]} == {(LEFT_OUT,)}
    assert len(captures(fake_ncu)) == 2 * MOST


def test_one_work_under_several_names_is_counted_once(evidence: Make, fake_ncu: Any) -> None:
    again = EvidenceTarget(FAST, Case(suite="models/toy", name="block", op="scale", params={"size": 8}))
    found = evidence().explain([suspect(), again])
    assert found[again.key] == found[suspect().key]
    assert len(captures(fake_ncu)) == 2


def test_what_is_not_slower_is_not_counted(evidence: Make, fake_ncu: Any) -> None:
    assert evidence().explain([suspect(slower=False)]) == {}
    assert fake_ncu.calls == []


def test_ctrl_c_keeps_what_was_counted_before_it(evidence: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    real, made = attachment.capture, []

    def interrupted(*arguments: Any, **options: Any) -> Any:
        made.append(arguments)
        if len(made) > 2:
            raise KeyboardInterrupt
        return real(*arguments, **options)

    monkeypatch.setattr(attachment, "capture", interrupted)
    first, second = suspect(8), suspect(16)
    found = attachments_of([first, second], [evidence()])
    assert found[first.key][0].rows
    assert found[second.key][0].notes == ("not collected: interrupted by Ctrl-C",)

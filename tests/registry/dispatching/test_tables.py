"""Dispatch by measurement: what a table decides, and that a table that cannot be used is said and not used."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
import torch

import fusebench
from fusebench.registry import Dispatcher, Selection, dispatch, load_collection
from fusebench.registry.dispatching import dispatcher
from fusebench.registry.dispatching.other_code import check_tables, code_today, compared_code
from fusebench.registry.dispatching.tables import default_order, encode_table, read_table, table_name
from fusebench.schema import KernelId, Role
from fusebench.schema.dispatch import KernelTime, TableGroup
from helpers.dispatch_tables import ENTRIES, GPU, SECOND, TRITON, entry, table

MakeRoot = Callable[..., Path]
FILE = "nvidia_h200.triton-3.6.json"

KERNELS = """
from fusebench import kernel

@kernel("scale", "first", version=1, role="fused", language="torch")
def first(x, *, factor=2.0):
    x.mul_(factor)

@kernel("scale", "second", version=1, role="fused", language="torch")
def second(x, *, factor=2.0):
    x.mul_(factor)

@second.supports
def _(params):
    return params.size != 96 or "size is 96"
"""
NEWER = KERNELS.replace('"first", version=1', '"first", version=2')


@pytest.fixture
def scale(make_root: MakeRoot, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Dispatcher]:
    """`scale(content)`: the dispatcher on a GPU that this machine lacks, with this content of the table's file; none for None."""

    def make(
        content: bytes | None = None, *, name: str = FILE, gpu: str = GPU, prefer: str = "fused", kernels: str = KERNELS
    ) -> Dispatcher:
        monkeypatch.setattr(dispatcher, "_gpu_of", lambda device, args, kwargs: gpu)
        monkeypatch.setattr(dispatcher, "_triton_version", lambda: TRITON)
        root = make_root(files={"fused.py": kernels})
        if content is not None:
            (root / "scale" / "dispatch").mkdir(exist_ok=True)
            (root / "scale" / "dispatch" / name).write_bytes(content)
        loaded = load_collection([root], entry_points=False)
        assert not loaded.problems
        return dispatch("scale", prefer=prefer, collection=loaded)

    return make


def chosen(dispatcher: Dispatcher, size: int) -> tuple[str, str]:
    found = dispatcher.explain(torch.ones(size))
    assert not found.fallback
    return found.kernel.partition("/")[2], found.decided_by


def test_the_kernel_measured_fastest_runs_and_its_measurement_is_told(scale: Callable[..., Dispatcher]) -> None:
    found = scale(encode_table(table()))
    kernel, why = chosen(found, 64)
    assert kernel == "second@1"
    assert why == (
        "measured on NVIDIA H200 with Triton 3.6: s:size_64: second@1 1.00 us [0.98, 1.02], then first@1 1.50 us [1.48, 1.52], "
        "in run abc at commit f3d79e900d16"
    )
    assert chosen(found, 1024)[0] == "first@1"
    x = torch.ones(64)
    found(x, factor=3.0)
    assert x.tolist() == [3.0] * 64


@pytest.mark.parametrize(
    ("size", "kernel", "said"),
    [
        (80, "second@1", "the nearest: s:size_64: second@1 1.00 us [0.98, 1.02], then first@1 1.50 us"),  # both neighbours agree
        (512, "first@1", "in run abc at commit f3d79e900d16 (size 1024)"),  # the nearer and larger loss decides
        (256, "second@1", "second@1, then first@1 4.0 % behind it; the nearest"),  # 10 % at 2x is less than 150 % at 4x
        (8192, "first@1", "predicted from 3 cases measured on NVIDIA H200 with Triton 3.6: first@1, then "),
    ],
)
def test_between_entries_the_predicted_losses_decide(scale: Callable[..., Dispatcher], size: int, kernel: str, said: str) -> None:
    entries = ENTRIES
    if size == 256:
        entries = (entry(128, ("first@1", 2.0), ("second@1", 2.2)), entry(1024, ("second@1", 4.0), ("first@1", 10.0)))
    found, why = chosen(scale(encode_table(table(entries))), size)
    assert found == kernel, why
    assert said in why


def test_a_kernel_that_is_faster_by_noise_alone_wins_nothing_between_entries(scale: Callable[..., Dispatcher]) -> None:
    same = [entry(size, ("second@1", 1.0), ("first@1", 0.995)) for size in (64, 128)]
    entries = (*same, entry(1024, ("second@1", 1.0), ("first@1", 1.001)))
    assert chosen(scale(encode_table(table(entries))), 80)[0] == "second@1"


@pytest.mark.parametrize(
    ("order", "due"),
    [
        (("fast", "split"), ["fast@2", "fast@1", "other@1"]),
        (("fast@1", "fast"), ["fast@1", "fast@2", "other@1"]),
        (("fast@1", "other"), ["fast@1", "other@1", "fast@2"]),
        ((), ["fast@2", "fast@1", "other@1"]),
    ],
)
def test_an_order_names_the_newest_version_or_one_alone(order: tuple[str, ...], due: list[str]) -> None:
    kernels = [SimpleNamespace(id=KernelId("scale", *one), role=Role.FUSED) for one in (("other", 1), ("fast", 1), ("fast", 2))]
    other_role = SimpleNamespace(id=KernelId("scale", "split", 1), role=Role.SPLIT)
    found = default_order([other_role, *kernels], order, Role.FUSED)
    assert [f"{kernel.id.name}@{kernel.id.version}" for kernel in found] == due


@pytest.mark.parametrize(
    ("larger", "size", "said"),
    [
        (1, 2**19, "the nearest measured case (size 1024; distance 5.3) is too far; 5.0 is the limit"),
        (2**10, 2, "the nearest measured case (size 65536; distance 8.8) is too far"),
    ],
)
def test_far_from_every_entry_the_default_order_is_taken_and_said(
    scale: Callable[..., Dispatcher], larger: int, size: int, said: str
) -> None:
    entries = tuple(msgspec.structs.replace(one, sizes={"size": larger * one.sizes["size"]}) for one in ENTRIES)
    kernel, why = chosen(scale(encode_table(table(entries))), size)
    assert kernel == "first@1"
    assert why.startswith("default order: ")
    assert said in why


def test_a_table_keeps_everything_in_its_file_and_mixed_names_are_refused(tmp_path: Path) -> None:
    odd = msgspec.structs.replace(entry(24, *SECOND), traits=("unaligned",))
    whole = table(groups=(TableGroup(kinds={"dtype": "float16"}, entries=(*ENTRIES, odd)),))
    (tmp_path / "table.json").write_bytes(encode_table(whole))
    assert msgspec.structs.replace(read_table(tmp_path / "table.json"), digest="") == whole
    other = TableGroup(kinds={"layout": "neox"}, entries=ENTRIES)
    with pytest.raises(ValueError, match="entries of different sizes or kinds"):
        encode_table(table(groups=(*whole.groups, other)))


def test_a_measured_kernel_that_declines_a_call_leaves_it_to_the_next(scale: Callable[..., Dispatcher]) -> None:
    selection = scale(encode_table(table())).explain(torch.ones(96))
    assert selection.kernel == "scale/first@1"
    assert selection.declined == (("scale/second@1", "size is 96"),)


def test_a_kernel_that_the_table_lacks_comes_after_the_measured_ones(scale: Callable[..., Dispatcher]) -> None:
    only_second = table(tuple(msgspec.structs.replace(one, times=(KernelTime("second@1", 1.0, 0.0),)) for one in ENTRIES))
    found = scale(encode_table(only_second), kernels=NEWER)
    assert chosen(found, 64)[0] == "second@1"
    assert found.explain(torch.ones(96)).kernel == "scale/first@2"


def edited(content: bytes) -> bytes:
    return content.replace(b'"second@1",1.0', b'"second@1",9.0')


BAD = {
    "edited by hand": (edited(encode_table(table())), FILE, "it was edited by hand"),
    "of another GPU": (encode_table(table(gpu="NVIDIA B200")), FILE, "it is of another GPU model: found nvidia_b200, expected nvidia_h200"),
    "of another op": (encode_table(table(op="other")), FILE, "it is of another op: found other, expected scale"),
    "renamed from another Triton": (encode_table(table(triton="3.5")), FILE, "it is of another Triton: found 3.5, expected 3.6"),
    "for another Triton": (encode_table(table()), table_name(GPU, "3.9.1"), "for another Triton than 3.6.0: nvidia_h200.triton-3.9.json"),
    "of a kernel that is gone": (
        encode_table(table((entry(64, ("gone@7", 1.0)),))),
        FILE,
        "it names kernels that are not declared: gone@7",
    ),
    "without its run": (encode_table(table(runs={})), FILE, "without times or without its run"),
    "of an impossible time": (encode_table(table((entry(64, ("first@1", 0.0)),))), FILE, "a time that is not positive and finite"),
    "cut short": (encode_table(table())[:200], FILE, "cannot be read as a dispatch table"),
    "no text": (b"\xff\xfe\x00", FILE, "cannot be read as a dispatch table"),
    "of another format": (encode_table(table(schema_version=99)), FILE, "found version 99 of the format, expected 2"),
    "with a line of too many sizes": (encode_table(table()).replace(b"[[64],", b"[[64,8],"), FILE, "2 values for size"),
    "a list": (b"[]", FILE, "cannot be read as a dispatch table"),
}


@pytest.fixture
def logged() -> Iterator[list[logging.LogRecord]]:
    """Records of the dispatch's logger, as they come.  pytest's `caplog` is off (see `addopts`)."""
    records: list[logging.LogRecord] = []
    logger, handler = logging.getLogger("fusebench.dispatch"), logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    logger.addHandler(handler)
    yield records
    logger.removeHandler(handler)


@pytest.mark.parametrize("defect", BAD)
def test_a_table_that_cannot_be_used_is_said_once_and_the_default_order_taken(
    scale: Callable[..., Dispatcher], logged: list[logging.LogRecord], defect: str
) -> None:
    content, name, said = BAD[defect]
    found = scale(content, name=name)
    for size in (64, 128, 64):
        kernel, why = chosen(found, size)
        assert kernel == "first@1"
        assert why.startswith("default order: ")
        assert said in why
        assert "fusebench tune" in why
    (only,) = logged
    assert said in only.getMessage()


@pytest.mark.parametrize(
    ("gpu", "prefer", "said"),
    [
        ("NVIDIA B200", "fused", f"default order: op scale has no dispatch table for NVIDIA B200, only {FILE}"),
        ("", "fused", "default order: a CPU has no dispatch table"),
        (GPU, "split", "default order: tables rank fused kernels, and split ones are preferred"),
    ],
)
def test_without_a_table_the_default_order_is_said_and_nothing_is_logged(
    scale: Callable[..., Dispatcher], logged: list[logging.LogRecord], gpu: str, prefer: str, said: str
) -> None:
    assert scale(encode_table(table()), gpu=gpu, prefer=prefer).explain(torch.ones(64)).decided_by == said
    assert not logged


def test_a_gpu_without_a_table_takes_that_of_another_model_of_its_architecture(
    scale: Callable[..., Dispatcher], logged: list[logging.LogRecord]
) -> None:
    found = scale(encode_table(table()), gpu="NVIDIA GH200 480GB")
    kernel, why = chosen(found, 64)
    assert kernel == "second@1"
    assert why.startswith(
        "op scale has no dispatch table for NVIDIA GH200 480GB: by that of NVIDIA H200, which has its architecture (sm_90); "
    )
    assert "NVIDIA H200" in why.partition("; ")[2]
    assert not logged


@pytest.mark.parametrize(
    ("gpu", "content"),
    [
        ("NVIDIA H200 MIG 1g.18gb", encode_table(table())),
        ("NVIDIA A100-SXM4-80GB", encode_table(table())),
        ("NVIDIA GH200 480GB", encode_table(table()).replace(b"1.5", b"0.5")),
        ("NVIDIA Unheard 1", encode_table(table())),
    ],
    ids=["a part of a GPU", "another architecture", "edited by hand", "an unknown name"],
)
def test_no_table_of_another_model_is_taken_that_does_not_fit(scale: Callable[..., Dispatcher], gpu: str, content: bytes) -> None:
    kernel, why = chosen(scale(content, gpu=gpu), 64)
    assert kernel == "first@1"
    assert why == f"default order: op scale has no dispatch table for {gpu}, only {FILE}"


def test_calls_are_counted_by_kernel_whatever_measurement_decided(scale: Callable[..., Dispatcher]) -> None:
    found = scale(encode_table(table()))
    with fusebench.count_calls() as calls:
        for size in (64, 128, 72):
            found(torch.ones(size))
    assert calls == {Selection(kernel="scale/second@1", fallback=False): 3}


def test_a_graph_of_any_size_takes_its_examples_choice_without_a_guard(scale: Callable[..., Dispatcher]) -> None:
    found = scale(encode_table(table()), kernels=KERNELS.replace('params.size != 96 or "size is 96"', "True"))
    graphs = []

    def backend(module: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., object]:
        graphs.append(module)
        return fusebench.counting_backend("aot_eager")(module, inputs)

    compiled = torch.compile(lambda x: found(x * 2), fullgraph=True, backend=backend, dynamic=True)
    with fusebench.count_calls() as calls:
        for size in (64, 1024, 2048):
            compiled(torch.ones(size))
    assert {selection.kernel: count for selection, count in calls.items()} == {"scale/second@1": 3}
    assert len(graphs) == 1


def test_a_file_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / FILE
    file.write_bytes(encode_table(table()))
    again = read_table(file)
    assert msgspec.structs.replace(again, digest="") == table()
    assert json.loads(file.read_bytes())["digest"] == again.digest
    assert len(file.read_text().splitlines()) == 18, "one line per entry, so that a diff shows what changed"


def test_explain_says_which_kernels_were_measured_with_other_code(scale: Callable[..., Dispatcher]) -> None:
    scale()
    (root,) = (root for root in scale().roots if (root / "scale" / "fused.py").is_file())
    code = code_today("scale", ["first@1", "second@1"], [root])
    measured = table(runs={"abc": msgspec.structs.replace(table().runs["abc"], code=code)})
    unchanged = scale(encode_table(measured))
    assert read_table(root / "scale" / "dispatch" / FILE).runs["abc"].code == code
    assert "other code" not in chosen(unchanged, 64)[1]
    planted = KERNELS.replace("    x.mul_(factor)\n\n@second", "    x.mul_(factor).add_(0)\n\n@second")
    changed = scale(encode_table(measured), kernels=planted)
    decided = chosen(changed, 64)[1]
    assert decided.endswith(
        "measured with other code: the source has changed of second@1 since run abc; the machine code of a case may be the same"
    )
    assert "of second@1 since run abc (3 of 3 cases)" in chosen(changed, 80)[1], "a prediction rests on all cases"
    assert set(changed._code) == {"first@1", "second@1"}, "read once per dispatcher"
    called = scale(encode_table(measured), kernels=planted)
    called(torch.ones(64))
    assert called._code == {}, "a call reads no source"
    (checked,) = check_tables(["scale"], [root])
    assert [(one.kernel, one.entries, one.other, one.unknown) for one in checked.kernels] == [("first@1", 3, 0, 0), ("second@1", 3, 3, 0)]
    scale(encode_table(table()))
    (checked,) = check_tables(["scale"], [root])
    assert [one.unknown for one in checked.kernels] == [3, 3], "a table without digests"


def test_a_source_is_known_by_the_run_that_timed_the_kernel() -> None:
    """An entry may rest on runs of different kernels."""
    one, today = table().runs["abc"], {"first@1": "1", "second@1": "2"}
    entries = [msgspec.structs.replace(entry, runs=("abc", "def")) for entry in table().entries]

    def unknown(abc: dict[str, str], other: dict[str, str]) -> list[int]:
        runs = {"abc": msgspec.structs.replace(one, code=abc), "def": msgspec.structs.replace(one, code=other)}
        return [found.unknown for found in compared_code(table(runs=runs), entries, today)]

    assert unknown({"first@1": "1"}, {"first@1": "1", "second@1": "2"}) == [0, 0]
    assert unknown({"first@1": "1"}, {"first@1": "1"}) == [0, 3]
    assert unknown({"first@1": "1", "second@1": "2"}, {}) == [3, 3], "a run whose sources are not known"

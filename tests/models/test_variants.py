"""Variants taken apart, the blocks that are compiled, captures that fail, and errors in words."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fusebench.errors import NotCapturableError, UsageError
from fusebench.models.op_calls import OpCalls
from fusebench.models.variants import VariantName, captured, parse_variant, refused_waits, repeated_blocks, require_peer, told
from fusebench.registry import load_collection

KERNELS = Path(__file__).parents[2] / "kernels"


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("split", VariantName(substituted=False, compiled=False, graph=False)),
        ("fused_compiled_graph", VariantName(substituted=True, compiled=True, graph=True)),
        ("peer:sglang_graph", VariantName(substituted=True, compiled=False, graph=True, peer="sglang")),
    ],
)
def test_a_name_taken_apart(name: str, parts: VariantName) -> None:
    assert parse_variant(name) == parts
    assert parse_variant(name).fused is (name == "fused_compiled_graph")


@pytest.mark.parametrize("name", ["", "peer:", "graph", "compiled_fused"])
def test_no_such_variant(name: str) -> None:
    with pytest.raises(UsageError, match=f"no variant '{name}'; expected one of split, .*peer:NAME"):
        parse_variant(name)


class _Block(torch.nn.Module):
    pass


class _Fused(_Block):
    pass


class _Transformer(torch.nn.Module):
    _repeated_blocks = ("_Block",)

    def __init__(self, *blocks: torch.nn.Module) -> None:
        super().__init__()
        self.refiner, self.blocks = torch.nn.ModuleList(blocks[:1]), torch.nn.ModuleList(blocks[1:])


def test_every_repeated_block_is_compiled_whatever_replaced_its_class() -> None:
    blocks = _Block(), _Fused(), torch.nn.Linear(2, 2)
    assert repeated_blocks(_Transformer(*blocks)) == [*blocks[:2]]
    with pytest.raises(RuntimeError, match="has none of the blocks that diffusers compiles: _Block"):
        repeated_blocks(_Transformer(torch.nn.Linear(2, 2)))


def test_the_context_refiners_of_z_image_are_compiled_too() -> None:
    pytest.importorskip("diffusers")
    from fusebench.models.building import build, full_config
    from fusebench.models.catalogue import load_model

    model = load_model("z_image_turbo")
    found = build(model, full_config(model, tiny=True), device=torch.device("meta"), dtype=torch.bfloat16)
    assert set(found.context_refiner) | set(found.noise_refiner) | set(found.layers) == set(repeated_blocks(found))


class _Graph:
    """A graph whose capture ends with an error once a call inside it failed, as CUDA's does."""

    def __init__(self, *, ends: bool = True) -> None:
        self.capturing, self._ends = False, ends

    def capture_begin(self, capture_error_mode: str) -> None:
        assert capture_error_mode == "thread_local"
        self.capturing = True

    def capture_end(self) -> None:
        self.capturing = False
        if not self._ends:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")


def _copies_a_list() -> torch.Tensor:
    raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nCUDA kernel errors might be reported later")


@pytest.mark.parametrize("ends", [True, False])
def test_a_capture_that_fails_is_ended_and_named_by_its_first_error(ends: bool) -> None:
    graph = _Graph(ends=ends)
    with pytest.raises(NotCapturableError, match=r"at test_variants.py:\d+: CUDA error: operation not permitted when stream is capturing$"):
        captured(graph, _copies_a_list)
    assert not graph.capturing
    assert torch.equal(captured(_Graph(), lambda: torch.ones(2)), torch.ones(2))


def test_a_capture_that_only_fails_at_its_end() -> None:
    with pytest.raises(NotCapturableError, match="no CUDA graph can hold the step: CUDA error"):
        captured(_Graph(ends=False), lambda: torch.ones(2))


def test_a_step_that_waits_for_the_device_is_refused_before_its_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[object] = []
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    with pytest.raises(NotCapturableError, match=r"the host waits for the device in every step, at test_variants.py:\d+"), refused_waits():
        raise RuntimeError("called a synchronizing CUDA operation")
    assert modes == ["error", 0]


def test_an_error_is_told_by_the_lines_that_say_something() -> None:
    error = RuntimeError(
        "Unexpected type in sourceless builder\n  Explanation: no wrap of <class Params>\n  Hint: a bug of Dynamo\n\n"
        "  Developer debug context: fusebench Params\nfrom user code:\n  File x"
    )
    said = "Unexpected type in sourceless builder; Explanation: no wrap of <class Params>; Developer debug context: fusebench Params"
    assert told(error) == said
    assert told(KeyError()) == "KeyError"


def test_a_peer_must_have_a_kernel_that_runs_here() -> None:
    collection = load_collection([KERNELS])
    with pytest.raises(UsageError, match=r"no kernel is named peer_sglung; expected peer:NAME with one of .*flash_attn, .*sglang"):
        require_peer("sglung", collection, "cuda")
    with pytest.raises(UsageError, match=r"peer:sglang: none of its \d+ kernels runs on cuda: not installed: sglang"):
        require_peer("sglang", collection, "cuda")


def test_a_peers_variant_tries_kernels_of_its_library_alone() -> None:
    collection = load_collection([KERNELS])
    for library, names in {"sglang": {"peer_sglang"}, "liger": {"peer_liger"}, "flash": set()}.items():
        calls = OpCalls(collection=collection, peer=library)
        assert not calls.at("qknorm_rope", "site", "place").takes_packed, "some libraries take dense rows alone"
        assert {kernel.id.name for kernel in calls._dispatchers["qknorm_rope"].candidates} == names

"""Adapters to other libraries: each calls the documented function with the right arguments and passes the accuracy gate with it.

The libraries are stand-ins (documented.py), so this holds for the signatures that the adapters were written for, not for a library.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fusebench.registry import Collection
from fusebench.schema import Accuracy, Role

from .conftest import LIBRARIES

ROOT = Path(__file__).parents[3]
Judge = Callable[..., Accuracy]

QK = {"batch": 2, "tokens": 24, "heads": 4, "kv_heads": 2, "head_dim": 64}
ROPE = {**QK, "layout": "neox"}
NORM = {"batch": 2, "tokens": 24, "hidden": 256}
WIDE = {**NORM, "affine": True, "modulation_dtype": "float32"}
RMS = {**NORM, "norm": "rms", "affine": True}
SGLANG = "sglang.kernels.ops.diffusion"

WHOLE: list[tuple[str, dict[str, Any], list[str]]] = [
    (
        "qknorm_rope/peer_sglang@1",
        {**QK, "layout": "interleaved", "packed": True, "position_offset": 3},
        [f"{SGLANG}:fused_inplace_qknorm_rope"],
    ),
    ("qknorm_rope/peer_sglang@1", {**QK, "layout": "neox", "rope_dim": 32, "dtype": "float16"}, [f"{SGLANG}:fused_inplace_qknorm_rope"]),
    (
        "qknorm_rope/peer_flashinfer@1",
        {**QK, "layout": "interleaved", "rope_dim": 32, "position_offset": 3},
        ["flashinfer.norm:rmsnorm"] * 2 + ["flashinfer.rope:apply_rope_with_cos_sin_cache_inplace"],
    ),
    (
        "qknorm_rope/peer_vllm@1",
        {**QK, "layout": "neox", "position_offset": 3},
        ["vllm._custom_ops:rms_norm"] * 2 + ["vllm._custom_ops:rotary_embedding"],
    ),
    ("qknorm_across_heads_rope/peer_sglang@1", {**QK, "packed": True}, [f"{SGLANG}:fused_rmsnorm_interleaved_rope_"] * 2),
    (
        "qknorm_across_heads_rope/peer_flashinfer@1",
        {**QK, "packed": True},
        ["flashinfer.norm:rmsnorm"] * 2 + ["flashinfer.rope:apply_rope_with_cos_sin_cache_inplace"],
    ),
    (
        "rotary_embedding/peer_flashinfer@1",
        {**ROPE, "packed": True, "rope_dim": 32},
        ["flashinfer.rope:apply_rope_with_cos_sin_cache_inplace"],
    ),
    (
        "rotary_embedding/peer_flashinfer@1",
        {**ROPE, "layout": "interleaved", "rank": 4, "position_offset": 3, "positions": "int32"},
        ["flashinfer.rope:apply_rope_with_cos_sin_cache_inplace"],
    ),
    ("rotary_embedding/peer_vllm@1", {**ROPE, "rank": 2, "packed": True, "position_offset": 3}, ["vllm._custom_ops:rotary_embedding"]),
    ("rotary_embedding/peer_vllm@1", {**ROPE, "kv_heads": 0, "layout": "interleaved"}, ["vllm._custom_ops:rotary_embedding"]),
    (
        "rotary_embedding/peer_flash_attn@1",
        {**ROPE, "rank": 4, "packed": True, "positions": "index", "caches": "separate", "cache_dtype": "activation", "position_offset": 3},
        ["flash_attn.layers.rotary:apply_rotary_emb"] * 2,
    ),
    (
        "rotary_embedding/peer_flash_attn@1",
        {**ROPE, "batch": 1, "rank": 2, "layout": "interleaved", "positions": "index", "caches": "separate", "dtype": "float32"},
        ["flash_attn.layers.rotary:apply_rotary_emb"] * 2,
    ),
    ("qknorm_rope/peer_comfy@1", {**QK, "layout": "interleaved", "packed": True, "position_offset": 3}, ["comfy_kitchen:rms_rope_"]),
    (
        "qknorm_rope/peer_comfy@1",
        {**QK, "kv_heads": 4, "layout": "neox", "rope_dim": 32, "dtype": "float16", "position_dtype": "int32"},
        ["comfy_kitchen:rms_rope_split_half_"],
    ),
    ("norm_scale_shift/peer_comfy@1", NORM, ["comfy_kitchen:adaln"]),
    ("norm_scale_shift/peer_comfy@1", {**NORM, "modulation": "frame", "frames": 4, "dtype": "float16"}, ["comfy_kitchen:adaln"]),
    ("norm_scale_shift/peer_comfy@1", {**NORM, "norm": "rms", "modulation": "token"}, ["comfy_kitchen:rms_adaln"]),
    ("norm_scale_shift/peer_comfy@1", {**NORM, "norm": "rms", "modulation": "channel"}, ["comfy_kitchen:rms_adaln"]),
    ("norm_scale_shift/peer_sglang@1", {**WIDE, "modulation": "frame", "frames": 4}, [f"{SGLANG}:fused_norm_scale_shift"]),
    ("norm_scale_shift/peer_sglang@1", {**RMS, "modulation": "token"}, [f"{SGLANG}:fused_norm_scale_shift"]),
    (
        "residual_gate_norm_scale_shift/peer_sglang@1",
        {**WIDE, "modulation": "frame", "gate": "frame", "frames": 4},
        [f"{SGLANG}:fused_scale_residual_norm_scale_shift"],
    ),
    ("residual_gate_norm_scale_shift/peer_sglang@1", {**NORM, "gate": "none"}, [f"{SGLANG}:fused_scale_residual_norm_scale_shift"]),
    (
        "norm_scale_shift_gate_select01/peer_sglang@1",
        {**NORM, "affine": True},
        [f"{SGLANG}:fuse_layernorm_scale_shift_gate_select01_kernel"],
    ),
    (
        "residual_norm_scale_shift_gate_select01/peer_sglang@1",
        {**NORM, "index_dtype": "int64"},
        [f"{SGLANG}:fuse_residual_layernorm_scale_shift_gate_select01_kernel"],
    ),
]
PARTS: list[tuple[str, dict[str, Any], list[str]]] = [
    ("qknorm_rope/peer_quack@1", {**QK, "layout": "neox"}, ["quack.rmsnorm:rmsnorm"] * 2),
    ("norm_scale_shift/peer_flashinfer@1", RMS, ["flashinfer.norm:rmsnorm"]),
    ("norm_scale_shift/peer_flashinfer@1", WIDE, ["flashinfer.norm:layernorm"]),
    ("norm_scale_shift/peer_vllm@1", {**RMS, "modulation": "scalar"}, ["vllm._custom_ops:rms_norm"]),
    ("norm_scale_shift/peer_quack@1", RMS, ["quack.rmsnorm:rmsnorm"]),
    ("norm_scale_shift/peer_quack@1", WIDE, ["quack.rmsnorm:layernorm_fwd"]),
    ("residual_gate_norm_scale_shift/peer_quack@1", RMS, ["quack.rmsnorm:rmsnorm"]),
]


@pytest.mark.parametrize(("kernel_id", "params", "calls"), WHOLE + PARTS)
def test_an_adapter_passes_the_gate_by_calling_the_library(
    libraries: Any, judge: Judge, kernel_id: str, params: dict[str, Any], calls: list[str]
) -> None:
    accuracy = judge(kernel_id, params)
    assert accuracy.passed, accuracy.reason
    assert libraries.called()[: len(calls)] == calls
    assert libraries.called() == calls * (len(libraries.calls) // len(calls)), "every call of the kernel calls the same"


def test_whole_and_partial_adapters_say_which_they_are(collection: Collection) -> None:
    assert [collection.kernel(kernel_id).covers for kernel_id, _, _ in WHOLE] == [""] * len(WHOLE)
    assert {collection.kernel(kernel_id).covers for kernel_id, _, _ in PARTS} == {
        "norm only: no rotation",
        "norm only: no scale, no shift",
        "residual + x and norm only: no gate, no scale, no shift",
    }
    peers = [kernel for kernel in collection.kernels.values() if kernel.role is Role.PEER]
    assert all(kernel.requires and kernel.install and kernel.note for kernel in peers)


DECLINED = [
    ("qknorm_rope/peer_comfy@1", {**QK, "head_dim": 80, "layout": "neox"}, "multiples of 32 dimensions, not 80"),
    ("qknorm_rope/peer_comfy@1", {**QK, "layout": "interleaved", "rope_dim": 32}, "rotates whole heads"),
    ("qknorm_rope/peer_comfy@1", {**QK, "layout": "neox", "rope_dim": 32}, "where q and k differ in heads"),
    ("norm_scale_shift/peer_comfy@1", WIDE, "no weight and no bias"),
    ("norm_scale_shift/peer_comfy@1", {**NORM, "modulation_dtype": "float32"}, "told one dtype"),
    ("norm_scale_shift/peer_comfy@1", {**NORM, "strided": True}, "column slice"),
    ("qknorm_rope/peer_sglang@1", {**QK, "head_dim": 96, "layout": "neox"}, "head_dim 64, 128 and 256, not 96"),
    ("qknorm_rope/peer_sglang@1", {**QK, "layout": "neox", "mode": "round_norm"}, "rounds once"),
    ("qknorm_rope/peer_sglang@1", {**QK, "layout": "neox", "rope_dim": 48}, "neox layout does not take rope_dim 48"),
    ("qknorm_rope/peer_flashinfer@1", {**QK, "layout": "neox", "cache_dtype": "activation"}, "float32 table"),
    ("qknorm_rope/peer_vllm@1", {**QK, "layout": "neox", "position_dtype": "int32"}, "int64 positions"),
    ("qknorm_rope/peer_liger@1", {**QK, "layout": "interleaved"}, "neox layout, only"),
    ("qknorm_across_heads_rope/peer_sglang@1", {**QK, "heads": 4, "head_dim": 96}, "no head_dim 96 in rows of 384 and 192"),
    ("qknorm_across_heads_rope/peer_sglang@1", {**QK, "heads": 50, "head_dim": 128}, "at most 6144 channels, not 6400"),
    ("qknorm_across_heads_rope/peer_flashinfer@1", {**QK, "affine": False}, "needs a weight"),
    ("rotary_embedding/peer_flash_attn@1", ROPE, "takes no positions"),
    ("rotary_embedding/peer_flashinfer@1", {**ROPE, "kv_heads": 0}, "q and k together"),
    ("rotary_embedding/peer_liger@1", {**ROPE, "packed": True}, "packed projection"),
    ("norm_scale_shift/peer_sglang@1", {**NORM, "hidden": 264}, "multiples of 256"),
    ("norm_scale_shift/peer_liger@1", NORM, "an RMS norm only"),
    ("norm_scale_shift/peer_flashinfer@1", {**NORM, "affine": True}, "float32 parameters only"),
    ("norm_scale_shift/peer_vllm@1", {**RMS, "strided": True}, "column slice"),
    ("residual_gate_norm_scale_shift/peer_liger@1", {**NORM, "norm": "rms"}, "needs a weight"),
]


@pytest.mark.parametrize(("kernel_id", "params", "reason"), DECLINED)
def test_what_a_library_does_not_take_is_declined(collection: Collection, kernel_id: str, params: dict[str, Any], reason: str) -> None:
    kernel = collection.kernel(kernel_id)
    assert kernel.op is not None
    assert reason in (kernel.reason_unsupported(kernel.op.parse_params(params)) or "accepted")


def test_a_library_that_computes_something_else_is_wrong(stage: Any, judge: Judge) -> None:
    def other_layout(*arguments: Any) -> None:
        *others, is_neox = arguments
        stage.documented.vllm_rotary_embedding(*others, not is_neox)

    stage.put("vllm._custom_ops:rotary_embedding", other_layout)
    accuracy = judge("rotary_embedding/peer_vllm@1", ROPE)
    assert not accuracy.passed
    assert "output 'q'" in accuracy.reason


def test_an_older_address_is_used_where_the_newest_is_absent(stage: Any, judge: Judge) -> None:
    older = "sglang.jit_kernel.diffusion.cutedsl.scale_residual_norm_scale_shift:fused_norm_scale_shift"
    stage.put(older, lambda x, weight, bias, scale, shift, norm_type, eps=1e-5: torch.full_like(x, torch.nan))
    assert not judge("norm_scale_shift/peer_sglang@1", NORM).passed
    assert set(stage.called()) == {older}


def test_a_library_of_an_unknown_version_is_told_what_was_looked_for(stage: Any, judge: Judge) -> None:
    stage.put("quack.elsewhere:rmsnorm", lambda x: x)
    with pytest.raises(ImportError, match=r"quack\.rmsnorm:rmsnorm .*quack:rmsnorm .*docs/peers\.md"):
        judge("qknorm_rope/peer_quack@1", {**QK, "layout": "neox"})


def test_loading_the_kernels_imports_no_library() -> None:
    """In a process where importing any of them fails, the adapters load, and say what they need."""
    program = f"""
        import sys
        from pathlib import Path

        LIBRARIES = {LIBRARIES}

        class Forbidden:
            def find_spec(self, name, path=None, target=None):
                assert name.partition(".")[0] not in LIBRARIES, name

        sys.meta_path.insert(0, Forbidden())
        from fusebench.registry import load_collection

        loaded = load_collection([Path("kernels")], entry_points=False)
        mine = [problem for problem in loaded.problems if "peer_" in str(problem.file)]
        print(len(mine), sum("/peer_" in name for name in loaded.kernels))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], cwd=ROOT, capture_output=True, text=True, check=True)
    problems, peers = map(int, done.stdout.split())
    assert problems == 0
    assert peers >= 20


def test_variables_of_triton_that_a_library_sets_at_its_import_are_put_back(
    collection: Collection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every kernel of the process would be compiled otherwise: FlashInfer names an assembler."""
    (tmp_path / "library_of_a_test.py").write_text(
        "import os\nos.environ |= {'TRITON_PLANTED': '1', 'TRITON_KNOWN': 'theirs', 'THEIR_OWN': '1'}\n\n\ndef function(): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("TRITON_KNOWN", "ours")
    monkeypatch.setenv("THEIR_OWN", "0")
    peers = next(module for name, module in sys.modules.items() if name.startswith("_fusebench_root_") and name.endswith("._shared.peers"))
    assert callable(peers.library_function("library_of_a_test:function"))
    assert (os.environ.get("TRITON_PLANTED"), os.environ["TRITON_KNOWN"], os.environ["THEIR_OWN"]) == (None, "ours", "1")

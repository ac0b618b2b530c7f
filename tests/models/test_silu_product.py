"""The product with a SiLU in one launch: what it computes, when it is not used and why, its machine code, and FLUX.2 with it.

Without a GPU, Triton's interpreter runs the kernel.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import silu

from fusebench.accuracy.interpreter import install_exact_casts, install_remembered_builtins
from fusebench.models import silu_product
from fusebench.models.op_calls import OpCall, OpCalls
from fusebench.models.silu_product import SILU_PRODUCT, SiluProduct, distance_of_rows
from fusebench.models.verification import verify_calls
from fusebench.registry.launching import interpreting

pytest.importorskip("diffusers")

from fusebench.models.building import build, full_config
from fusebench.models.catalogue import load_model
from fusebench.models.measuring.breakdown import stage_of

HARNESS = Path(__file__).parents[2] / "harness"


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """A GPU, or the interpreter on a CPU."""
    if not interpreting():
        return torch.device("cuda", 0)
    install_exact_casts()
    install_remembered_builtins()
    monkeypatch.setattr(silu_product, "DEVICES", ("cpu",))
    return torch.device("cpu")


def halves(rows: int, channels: int, *, gap: int = 0, dtype: torch.dtype, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Gate and value as FLUX.2 has them: halves of the last columns of a wider tensor."""
    torch.manual_seed(0)
    wide = (4 * torch.randn(1, rows, gap + 2 * channels)).to(device=device, dtype=dtype)[..., gap:]
    return wide[..., :channels], wide[..., channels:]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(("rows", "channels", "gap"), [(3, 2048, 0), (5, 64, 96), (2, 4101, 7), (1, 1, 1)])
@torch.no_grad()
def test_it_rounds_as_two_launches_do(rows: int, channels: int, gap: int, dtype: torch.dtype, device: torch.device) -> None:
    gate, value = halves(rows, channels, gap=gap, dtype=dtype, device=device)
    op = SiluProduct()
    found, due = op(gate, value), silu(gate) * value
    assert op.fallbacks == []
    assert (found.shape, found.dtype, found.is_contiguous()) == (due.shape, due.dtype, True)
    if dtype == torch.float32:
        torch.testing.assert_close(found, due, rtol=1e-6, atol=1e-30)
    else:  # of two libraries' exponentials, a few round to neighbours
        assert (found != due).sum() <= 1 + found.numel() // 1000
        torch.testing.assert_close(found, due, rtol=2 * torch.finfo(dtype).eps, atol=1e-6)
    once = (silu(gate.float()) * value.float()).to(dtype)
    assert dtype == torch.float32 or channels < 64 or (found != once).double().mean() > 0.01, "the SiLU is not rounded by itself"


@torch.no_grad()
def test_values_at_the_ends_of_the_range(device: torch.device) -> None:
    gate = torch.tensor([float("inf"), 0.0, -200.0, 200.0, float("nan"), -0.0, 1e30, 3.0], device=device).bfloat16()
    value = torch.full_like(gate, 2.0)
    torch.testing.assert_close(SiluProduct()(gate, value), silu(gate) * value, equal_nan=True)


def test_the_distance_of_rows() -> None:
    wide = torch.empty(2, 3, 4, 10)
    assert distance_of_rows(wide) == 10
    assert distance_of_rows(wide[..., 5:]) == 10
    assert distance_of_rows(wide[:1, 1:2, :1, :5]) == 5
    assert distance_of_rows(wide[:, :, 0]) == 40
    assert distance_of_rows(wide[:, :2]) is None
    assert distance_of_rows(wide[..., ::2]) is None
    assert distance_of_rows(wide.transpose(0, 1)) is None


def test_reasons(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.empty(2, 3, 8, device=device, dtype=torch.bfloat16)
    assert "autograd" in SiluProduct().reason_split(x, x)
    with torch.no_grad():
        assert SiluProduct().reason_split(x, x) == ""
        assert "differ" in SiluProduct().reason_split(x, x.float())
        assert "differ" in SiluProduct().reason_split(x, x[:1])
        assert "float64 is none of" in SiluProduct().reason_split(x.double(), x.double())
        assert "strides" in SiluProduct().reason_split(x, x.transpose(0, 1).reshape(2, 3, 8).flip(-1)[..., ::2].repeat(1, 1, 4)[..., ::2])
        assert "not of sglang" in OpCalls(peer="sglang").at(SILU_PRODUCT, "site", "place")._dispatcher.reason_split(x, x)  # type: ignore[union-attr]
        monkeypatch.setattr(silu_product, "DEVICES", ("cuda",))
        there = torch.empty(2, 8, device="meta")
        op = SiluProduct()
        assert op(there, there).shape == there.shape
        (fallback,) = op.fallbacks
        assert fallback.reason == "triton silu_product: needs a GPU, found meta"


@torch.no_grad()
def test_a_traced_call_is_left_to_the_compiler(device: torch.device) -> None:
    op, targets = SiluProduct(), list[Any]()

    def noted(graph: torch.fx.GraphModule, inputs: Any) -> torch.fx.GraphModule:
        targets.extend(node.target for node in graph.graph.nodes if node.op.startswith("call"))
        return graph

    gate, value = halves(3, 64, dtype=torch.bfloat16, device=device)
    torch.compile(op.__call__, fullgraph=True, backend=noted)(gate, value)
    assert len(targets) == 2
    assert silu in targets


COMPILE = """
import json, sys, torch, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from fusebench.models.silu_product_triton import BLOCK, WARPS, silu_product_kernel
kinds = {"gate": "*bf16", "value": "*bf16", "out": "*bf16", "channels": "i32", "gate_distance": "i32", "value_distance": "i32"}
divisible = {(place,): [["tt.divisibility", 16]] for place in range(len(kinds))}
source = ASTSource(silu_product_kernel, kinds | {"block": "constexpr"}, {(len(kinds),): BLOCK}, divisible)
compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": WARPS})
json.dump({"ptx": compiled.asm["ptx"]}, sys.stdout)
"""


def test_for_an_h200_it_loads_16_bytes_at_a_time(tmp_path: Path) -> None:
    """FLUX.2's rows: channels, and distances of rows, divide by 16."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(HARNESS)}
    done = subprocess.run([sys.executable, "-c", COMPILE], env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    ptx = json.loads(done.stdout)["ptx"]
    assert ".target sm_90" in ptx
    assert [len(re.findall(rf"{kind}\.global\S*\.v4\.b32", ptx)) for kind in ("ld", "st")] == [2, 1]
    assert len(re.findall(r"(?:ld|st)\.global", ptx)) == 3
    assert "ld.local" not in ptx


def test_a_profile_counts_it_as_elementwise() -> None:
    assert stage_of("silu_product_kernel", ()) == "elementwise"


class Example:
    """Tiny FLUX.2 in bfloat16, and the recorded calls of one step of it."""

    def __init__(self, device: torch.device) -> None:
        self.model = load_model("flux2_dev")
        self.config = full_config(self.model, tiny=True)
        self.transformer = build(self.model, self.config, device=device, dtype=torch.bfloat16)
        generator = torch.Generator(device).manual_seed(1)
        self._latents = self.model.latents(self.model.tiny_shapes, self.config, generator=generator)
        self._given = self.model.conditioning(self.model.tiny_shapes, self.config, dtype=torch.bfloat16, generator=generator)

    def predict(self) -> torch.Tensor:
        return self.model.predict(self.transformer, self._latents, torch.tensor(500.0, device=self._latents.device), self._given)


@torch.no_grad()
def test_flux2_by_the_kernel(device: torch.device) -> None:
    example = Example(device)
    own = example.predict()
    calls = OpCalls()
    with example.model.substituted(example.transformer, calls), calls.record() as recorded:
        fused = example.predict()
    mine: list[OpCall] = [call for call in recorded if call.op == SILU_PRODUCT]
    assert {call.kernel for call in mine} == {SiluProduct.kernel}
    assert len(mine) == 2 * example.config["num_layers"] + example.config["num_single_layers"]
    torch.testing.assert_close(fused, own, rtol=2e-2, atol=2e-2)
    assert "fused" not in vars(example.transformer.single_transformer_blocks[0].attn.mlp_act_fn)


@torch.no_grad()
def test_planted_in_a_real_model_one_activation_left_alone_and_one_that_falls_back(device: torch.device) -> None:
    example = Example(device)
    calls = OpCalls()
    with example.model.substituted(example.transformer, calls), calls.record() as recorded:
        alone = example.transformer.transformer_blocks[1].ff.act_fn
        alone.forward = lambda x: silu(x[..., : x.shape[-1] // 2]) * x[..., x.shape[-1] // 2 :]
        apart = example.transformer.single_transformer_blocks[0].attn.mlp_act_fn
        apart.register_forward_pre_hook(lambda module, given: given[0].repeat_interleave(2, dim=-1)[..., ::2])
        example.predict()
    texts = [one.text for one in verify_calls(example.model, example.config, recorded, device="cuda") if SILU_PRODUCT in one.text]
    assert texts[0].startswith("1 of 5 silu_product calls fell back: triton silu_product: strides: expected rows without gaps")
    assert texts[0].endswith("at single_transformer_blocks.0.attn")
    assert texts[1:] == ["found 1 silu_product calls a step, expected 2; none at transformer_blocks.1.ff"]

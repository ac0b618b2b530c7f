"""Stages of activities, and the time in which any of them runs."""

from __future__ import annotations

import pytest
import torch

from fusebench.models.measuring.breakdown import Activity, busy_time, marks, profile_step, stage_of, summarise

ELEMENTWISE = "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<at::native::BinaryFunctor<float>>>"
COPY = "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)>"
IN_ATTENTION, IN_NORM, IN_ACTIVATION = "fusebench stage attention", "fusebench stage norm", "fusebench stage activation"


@pytest.mark.parametrize(
    ("name", "parents", "stage"),
    [
        # As recorded on an H200, torch 2.11.
        ("nvjet_sm90_tst_192x192_64x4_2x1_v_bz_coopB_bias_TNN", (), "matmul"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_cga1x1x1_kernel0", (), "attention"),
        ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float, true>(int)", (), "norm"),
        ("_qk_kernel", ("fusebench_1::qknorm_rope",), "rope"),
        ("_rotary", (), "rope"),
        ("_modulated_norm", (), "norm"),
        ("_norm_tanh", (), "norm"),
        ("_select01", (), "norm"),
        ("triton_red_fused__fused_rms_norm__scaled_dot_product_cudnn_attention__to_copy_add_mul_neg_permute_st", (), "norm"),
        ("triton_poi_fused_cat_gelu_permute_view_3", (), "elementwise"),
        ("triton_poi_fused_addmm_cat_view_3", (), "elementwise"),
        ("triton_poi_fused_cat_view_2", (), "copies"),
        ("triton_tem_fused_addmm_1", (), "matmul"),
        ("Memset (Device)", ("aten::addmm",), "copies"),
        ("Memcpy DtoD (Device -> Device)", (), "copies"),
        ("void at::native::(anonymous namespace)::CatArrayBatchedCopy_vectorized<>", ("aten::cat", IN_ATTENTION), "copies"),
        # The same kernel by what surrounds its launch.
        (ELEMENTWISE, ("aten::mul", IN_ATTENTION), "rope"),
        (ELEMENTWISE, ("aten::mul", IN_NORM, IN_ATTENTION), "norm"),
        (ELEMENTWISE, ("aten::mul", IN_ACTIVATION, IN_ATTENTION), "elementwise"),
        (ELEMENTWISE, ("aten::mul", IN_ACTIVATION, IN_NORM), "norm"),
        (ELEMENTWISE, ("aten::mul",), "elementwise"),
        (COPY, ("aten::copy_", "aten::to"), "copies"),
        (COPY, ("aten::copy_", IN_ATTENTION), "rope"),
        ("some_gemm_with_gelu", ("aten::_addmm_activation",), "matmul"),
        ("unheard_of", (), "other"),
    ],
)
def test_stage(name: str, parents: tuple[str, ...], stage: str) -> None:
    assert stage_of(name, parents) == stage


def test_overlap_counts_once_and_gaps_are_idle() -> None:
    activities = [Activity("gemm", 0.0, 10.0, ()), Activity("gemm", 5.0, 12.0, ()), Activity("_rotary", 20.0, 25.0, ())]
    assert busy_time(activities) == 17.0
    found = summarise("fused", activities, marked=True)
    assert (found.span_us, found.busy_us, found.idle_us) == (25.0, 17.0, 8.0)
    assert {stage.stage: (stage.time_us, stage.launches) for stage in found.stages} == {"matmul": (17.0, 2), "rope": (5.0, 1)}
    assert [(kernel.name, kernel.launches) for kernel in found.kernels] == [("gemm", 2), ("_rotary", 1)]


def test_time_inside_attention_modules_is_told_by_stage_where_they_are_marked() -> None:
    activities = [
        Activity(ELEMENTWISE, 0.0, 3.0, ("aten::mul", IN_NORM, IN_ATTENTION)),
        Activity(ELEMENTWISE, 3.0, 8.0, ("aten::mul", IN_NORM)),
    ]
    (norm,) = summarise("split", activities, marked=True).stages
    assert (norm.time_us, norm.attention_us) == (8.0, 3.0)
    (norm,) = summarise("compiled", activities, marked=False).stages
    assert (norm.time_us, norm.attention_us) == (8.0, None)


def test_nothing_ran() -> None:
    assert summarise("fused", [], marked=True).span_us == 0.0


class _Attention(torch.nn.Module):
    processor = None

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x) * 2


def test_modules_are_marked_and_unmarked() -> None:
    module, x = torch.nn.Sequential(_Attention(), torch.nn.Linear(64, 64)), torch.ones(512, 64)
    found = profile_step("split", lambda: module(x), module, device=torch.device("cpu"), marked=True)
    launches = {stage.stage: stage.launches for stage in found.stages}
    assert launches["rope"] >= 1, "the product inside the attention module"
    assert {"norm", "matmul"} <= launches.keys()
    assert "elementwise" not in launches
    inside = {stage.stage: stage.attention_us for stage in found.stages}
    assert inside["norm"]
    assert inside["rope"]
    assert inside["matmul"] == 0.0
    unmarked = profile_step("split", lambda: module(x), module, device=torch.device("cpu"), marked=False)
    assert "elementwise" in {stage.stage for stage in unmarked.stages}
    with marks(module):
        assert module[0]._forward_hooks
    assert not module[0]._forward_hooks


class _SwiGLU(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, dim=-1)
        return torch.nn.functional.silu(first) * second


class _ParallelAttention(torch.nn.Module):
    """As FLUX.2's single-stream blocks, whose attention modules hold the feed-forward."""

    processor = None

    def __init__(self) -> None:
        super().__init__()
        self.mlp_act_fn = _SwiGLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.mlp_act_fn(x)
        return made


def test_an_activation_inside_an_attention_module_is_no_rotation() -> None:
    module, x = _ParallelAttention(), torch.ones(512, 64)
    found = profile_step("split", lambda: module(x), module, device=torch.device("cpu"), marked=True)
    launches = {stage.stage: stage.launches for stage in found.stages}
    assert launches["elementwise"] == 2
    assert "rope" not in launches

"""The fused kernels of the norm_tanh ops on a GPU: many rows, offsets past 32 bits, addresses off 16 bytes, and the accuracy gate."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fusebench.accuracy import check_kernel

pytestmark = pytest.mark.gpu

FUSED = ("fused_triton@1", "fused_triton@2", "fused_triton@3", "fused_triton@5", "fused_cuda@1")
Z_IMAGE = {"tokens": 4128, "hidden": 3840, "affine": True, "affine2": True}


def outputs_of(returned: Any) -> tuple[torch.Tensor, ...]:
    return returned if isinstance(returned, tuple) else (returned,)


@pytest.mark.parametrize("kernel", [*FUSED, "split_triton@1", "compiled@1"])
@pytest.mark.parametrize(
    "changes",
    [{}, {"batch": 2, "tokens": 1001}, {"dtype": "float32", "tokens": 1200}, {"modulation_dtype": "float32", "norm": "layer"}],
    ids=str,
)
def test_a_kernel_passes_the_gate_on_z_images_rows(tanh_bench: Any, tanh_case: Any, kernel: str, changes: dict[str, Any]) -> None:
    accuracy = check_kernel(
        tanh_bench.kernel(kernel),
        tanh_bench.op,
        tanh_case(**(Z_IMAGE | changes)),
        split=tanh_bench.split,
        others=tanh_bench.collection.kernels,
        device=tanh_bench.device,
        seed=5,
    )
    assert accuracy.passed, accuracy.reason


@pytest.mark.parametrize("kernel", FUSED)
@pytest.mark.parametrize(("rows", "hidden"), [(100_003, 1536), (560_001, 3840)])
def test_the_last_of_many_rows_are_those_of_few(tanh_bench: Any, tanh_case: Any, kernel: str, rows: int, hidden: int) -> None:
    """560001 x 3840 elements pass 2^31: what is computed there must equal the same rows in a small launch."""
    needed = (2 + len(tanh_bench.op.outputs)) * rows * hidden * 2
    free, _ = torch.cuda.mem_get_info()
    if free < 1.2 * needed:
        pytest.skip(f"needs {needed * 1.2 / 2**30:.0f} GiB of free GPU memory")
    params = tanh_case(hidden=hidden, tokens=8, affine=True)
    arguments = dict(tanh_bench.op.arguments(params, tanh_bench.buffers(params)))
    repeats = -(-rows // 8)
    many = {name: arguments[name].repeat(1, repeats, 1)[:, :rows] for name in ("x", "residual")}
    found = outputs_of(tanh_bench.kernel(kernel)(**(arguments | many)))
    # Few rows may be cut otherwise, which adds up a row in another order; so they are compared with the first rows of the same launch.
    last = (rows - 8) // 8 * 8
    for output in found:
        assert torch.equal(output[:, last : last + 8], output[:, :8])
        assert torch.equal(output[:, rows - 1], output[:, (rows - 1) % 8])
        assert output[:, rows // 2].isfinite().all()


@pytest.mark.parametrize("kernel", FUSED)
@pytest.mark.parametrize("unaligned", ["x", "residual", "gate", "weight", "scale2"])
def test_addresses_off_16_bytes_are_as_right(tanh_bench: Any, tanh_case: Any, one_rounding: Any, kernel: str, unaligned: str) -> None:
    params = tanh_case(hidden=264, tokens=9, affine=True)
    arguments = dict(tanh_bench.op.arguments(params, tanh_bench.buffers(params)))
    if unaligned not in arguments:
        pytest.skip("this op has no second norm")
    tensor = arguments[unaligned]
    arguments[unaligned] = torch.cat((tensor.new_zeros(1), tensor.flatten()))[1:].view(tensor.shape)
    found = outputs_of(tanh_bench.kernel(kernel)(**arguments))
    assert one_rounding(found[0], tanh_bench.op.reference(params, arguments)["y"]) <= 1


@pytest.mark.parametrize("kernel", FUSED)
def test_a_second_call_with_other_values_at_other_addresses_is_as_right(
    tanh_bench: Any, tanh_case: Any, gated_error: Any, kernel: str
) -> None:
    """Later calls of a layout repeat the first one's launch with new addresses."""
    params = tanh_case(hidden=3840, tokens=33, affine=True, affine2=True)
    for seed in range(3):
        buffers = tanh_bench.buffers(params, seed)
        assert gated_error(params, buffers, tanh_bench.run(kernel, params, buffers)) <= 1

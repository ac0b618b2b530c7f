"""The straight code that empties the instruction caches is as long as it must be; on a GPU it makes a call's company irrelevant."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import pytest

from fusebench.registry import Kernel, load_collection
from fusebench.schema import CacheState, Role, SamplingPlan
from fusebench.timing import instruction_caches
from fusebench.timing.instruction_caches import INSTRUCTIONS
from fusebench.timing.measure import measure_case
from fusebench.timing.placement import arm_specs
from fusebench.timing.timers.select import select_timer

KERNELS = Path(__file__).parents[2] / "kernels"

INSTRUCTION_BYTES = 16

PROGRAM = """
import json, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from fusebench.evidence.disassembly import code_of
from fusebench.timing.instruction_caches import straight_code

source = ASTSource(straight_code, {"target": "*fp32"}, {})
lengths = []
for capability in json.loads(sys.argv[1]):
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 4})
    lengths.append(len(code_of(compiled.asm["cubin"], "straight_code").text))
json.dump(lengths, sys.stdout)
"""


def test_the_assembler_keeps_every_instruction(tmp_path: Path) -> None:
    """Four chains with one factor would be computed once, and leave a quarter."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"} | {"TRITON_CACHE_DIR": str(tmp_path)}
    program = [sys.executable, "-c", PROGRAM, json.dumps([90])]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert all(INSTRUCTION_BYTES * INSTRUCTIONS <= length < 1.1 * INSTRUCTION_BYTES * INSTRUCTIONS for length in json.loads(done.stdout))


@pytest.mark.gpu
@pytest.mark.alone
def test_a_kernel_takes_as_long_beside_few_others_as_beside_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """And less without the straight code, which therefore does what it is for."""
    import torch

    device = torch.device("cuda")
    collection = load_collection([KERNELS], only={"norm_scale_shift"}, operators=False, entry_points=False)
    op = collection.op("norm_scale_shift")
    params = op.parse_params({"batch": 1, "tokens": 1024, "hidden": 1024})
    many = [
        kernel
        for key, kernel in collection.kernels.items()
        if kernel.info.role in (Role.FUSED, Role.SPLIT) and "__" not in key and kernel.reason_unsupported(params) is None
    ]
    baseline, fused = (collection.kernels[f"norm_scale_shift/{name}"] for name in ("split_triton@1", "fused_cuda@1"))
    plan = SamplingPlan(replicates=4, rounds=16, cache=CacheState.COLD, trim=0.1)

    def typical_us(kernels: Sequence[Kernel]) -> float:
        timings = measure_case(
            "suite:case", op, params, arm_specs(kernels, baseline), device=device, plan=plan, timer=select_timer("cuda", "auto")[0], seed=1
        )
        return median(sample.span_ns for sample in timings.samples if sample.arm == str(fused.id)) / 1e3

    few, all_of_them = typical_us([baseline, fused]), typical_us(many)
    monkeypatch.setattr(instruction_caches, "make_code_evictor", lambda device: lambda: None)
    kept = typical_us([baseline, fused])
    print(f"{few:.3f} us beside 4 arms, {all_of_them:.3f} beside {len(many) + 2}; {kept:.3f} beside 4 with its code in the caches")
    assert few == pytest.approx(all_of_them, rel=0.015)
    assert kept < 0.985 * few

"""The straight code that empties the instruction caches is as long as it must be; on a GPU it makes a call's company irrelevant."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from fusebench.timing.arm import Arm
from fusebench.timing.instruction_caches import INSTRUCTIONS

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
def test_a_call_after_itself_takes_as_long_as_after_other_kernels() -> None:
    """And less where its code stays in the caches, so the straight code does what it is for."""
    import torch

    from fusebench.timing.cupti import CuptiTimer
    from fusebench.timing.preparation import last_level_cache_bytes, make_evictor

    device = torch.device("cuda")
    x = torch.randn(2048, 2048, device=device, dtype=torch.bfloat16)
    words = torch.ones(4 * last_level_cache_bytes(device) // 4, device=device)
    evict = make_evictor(device)
    others: list[Callable[[], Any]] = [
        lambda: x[:256].float().sort(),
        lambda: x[:256, :256] @ x[:256, :256],
        lambda: x[:256].float().cumsum(0),
        lambda: x[:64].float().topk(5),
    ]
    arm = Arm("softmax", lambda: torch.softmax(x, -1), lambda: None)

    def typical_us(before: Callable[[], Any], empty: Callable[[], Any]) -> float:
        def prepare(_: Arm) -> None:
            before()
            torch.cuda._sleep(400_000)  # type: ignore[no-untyped-call]  # the host queues all of it meanwhile
            empty()

        return median(timing.span_ns for timing in CuptiTimer().time_calls([arm] * 200, prepare)) / 1e3

    def strangers() -> None:
        for call in others:
            call()

    typical_us(arm.call, evict)  # warm-up
    kept = typical_us(arm.call, words.sum)
    after_itself, after_others = typical_us(arm.call, evict), typical_us(strangers, evict)
    print(f"{kept:.3f} us with its code in the caches, {after_itself:.3f} us without, {after_others:.3f} us after other kernels")
    assert after_itself == pytest.approx(after_others, rel=0.01)
    assert kept < 0.99 * after_itself

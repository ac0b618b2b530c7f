"""Entry point of the process that compiles a candidate: `python -m fusebench.judge.candidate.compiled_code_main READ WRITE`.

It confines itself, imports the candidate, records its launches for each case on tensors without memory, and compiles them.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..channel.protocol import CompiledLaunch
    from ..compiled_code import Compiled, CompilerStart, CompileTask


def main(read_fd: int, write_fd: int) -> None:
    """Answer one task."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from ..channel.protocol import Channel
    from ..compiled_code import STARTS, TASKS
    from ..confinement.isolation import confine_candidate

    channel = Channel(read_fd, write_fd)
    start = channel.receive(STARTS)
    confine_candidate(start, seconds=None, gpu=False, descriptors=(read_fd, write_fd))
    _compile_first_kernel(start.target)
    channel.send(_compiled(start, channel.receive(TASKS)))


def _compile_first_kernel(target: str) -> None:
    """Import what every candidate needs, and have Triton's compiler read what it reads once, while the process waits for its candidate."""
    from contextlib import suppress

    with suppress(Exception):  # a toolchain that does not work is a remark on the first candidate that needs it
        from triton.backends.compiler import GPUTarget
        from triton.compiler.compiler import compile as triton_compile

        from ...evidence import compiling, disassembly, recording, static_worker  # noqa: F401
        from ...evidence.targets import TARGETS, WARP
        from . import loading  # noqa: F401
        from .first_kernel import first_source

        triton_compile(first_source(), target=GPUTarget("cuda", TARGETS[target].capability, WARP))


def _compiled(start: CompilerStart, task: CompileTask) -> Compiled:
    from ...evidence.recording import record, recording
    from ...evidence.targets import TARGETS
    from ...schema import Language
    from ..channel.protocol import COMPILED_LAUNCHES
    from ..compiled_code import Compiled
    from .loading import load_candidate, load_op

    target = TARGETS[start.target]
    compilers = dict.fromkeys((str(Language.TRITON), str(Language.CUDA)), "")  # their versions tell apart entries of caches: there is none
    found: dict[str, Any] = {}
    failure = ""
    with recording(target, compilers) as recorder:
        op, kernel = load_candidate(load_op(tuple(Path(root) for root in start.roots), task.op), Path(task.file), task.source)
        if kernel.language is Language.TORCH:
            return Compiled(token=task.token)
        for case in task.cases:
            try:
                if kernel.reason_unsupported(op.parse_params(case.params)) is None:
                    for launch in record(recorder, kernel, case)[0]:
                        found.setdefault(launch.specialisation.key, launch)
            except Exception as error:  # noqa: BLE001 - whatever a launch raises is a remark on it
                failure = failure or f"{type(error).__name__}: {error}"
    launches = []
    for recorded in list(found.values())[:COMPILED_LAUNCHES]:
        try:
            launches.append(_launch(recorded, target))
        except Exception as error:  # noqa: BLE001
            failure = failure or str(error)
    return Compiled(token=task.token, launches=tuple(launches), failure=" ".join(failure.split())[:1000])


def _launch(recorded: Any, target: Any) -> CompiledLaunch:
    from ...evidence.compiling import compile_for
    from ...evidence.disassembly import code_of
    from ...evidence.static_worker import RESERVED_SHARED
    from ..channel.protocol import CompiledLaunch

    made = compile_for(recorded.specialisation, target)
    static = code_of(made.cubin, made.entry).static_shared_bytes
    static -= RESERVED_SHARED if target.major >= 9 and static else 0
    dynamic = made.dynamic_shared if made.dynamic_shared is not None else recorded.dynamic_shared_bytes or 0
    return CompiledLaunch(
        registers=made.registers,
        spills=made.spill_stores + made.spill_loads,
        shared=static + dynamic,
        threads=made.threads if made.threads is not None else recorded.threads or 1,
        barriers=made.block_barriers,
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
    os._exit(0)

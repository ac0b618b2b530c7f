"""The process that loads kernels, records their launches and compiles them: `python -m fusebench.evidence.static_worker`.

One request on stdin, messages on stdout.  Each request has a new process, because Triton's compiler and torch's CUDA functions are replaced
in it.  It never sees a GPU, so it does the same on every machine.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as Keys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ..device.triton_programs import tool
from ..errors import FusebenchError
from ..schema import Language, Role
from .amd_code import compile_for_amd
from .amd_targets import AmdTarget
from .compiling import Compiled, compile_for
from .disassembly import DisassemblyError, Instructions, MachineCode, code_of, disassemble
from .evidence_cache import EvidenceCache
from .forked import Failed, run_forked
from .listed_choices import ListedChoices
from .records import CapturedCase, CapturedKernel, CapturedLaunch, Code, StaticStatus, matches_id
from .static_process import Assembled, Broken, Done, Importing, Message, NotCompiled, Progress, Recorded, Request
from .targets import AnyTarget, Target
from .targets import target as target_named

if TYPE_CHECKING:
    from ..registry import Kernel
    from ..schema import Case
    from .recording import RecordedLaunch, Recorder, Specialisation

Say = Callable[[Message], None]
COMPILE_TIMEOUT_S = 300.0
"""Seconds for one specialisation: most take 0.1 to 0.3 s, a spilling giant a minute."""
RESERVED_SHARED = 1024
"""Bytes at the start of a block's shared memory that belong to the system; cubins for compute capability 9.0 and later count them as the
function's own."""


def main() -> None:
    """Answer the request on stdin."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of a kernel file or a compiler is no message

    def say(message: Message) -> None:
        answers.write(msgspec.json.encode(message) + b"\n")
        answers.flush()

    try:
        request = msgspec.json.decode(sys.stdin.buffer.read(), type=Request)
        _answer(request, say)
        say(Done())
    except FusebenchError as error:
        say(Broken(str(error)))
    answers.flush()
    os._exit(0)  # stand-ins for drivers and devices need no clean-up


def _answer(request: Request, say: Say) -> None:
    from ..registry import load_collection
    from ..registry.loading.watching import IMPORTING, Watch
    from .recording import recording

    target = target_named(request.target)
    say(Progress("load the kernels", 0, 0))
    specialisations: dict[str, Specialisation] = {}
    with recording(target, request.compilers) as recorder:
        watch = Watch(
            request.excluded, lambda text: say(Importing(text.removeprefix(f"{IMPORTING} ") if text.startswith(IMPORTING) else ""))
        )
        collection = load_collection([Path(root) for root in request.roots], entry_points=False, operators=False, watch=watch)
        name_no_compiler()
        choices = ListedChoices(target.name, collection.roots, request.kernel)
        for index, case in enumerate(request.cases):
            listed = choices.listed(collection.kernels_of(case.op, choices=True), collection.ops.get(case.op), case)
            kernels = _record_kernels(listed, case, recorder, request.kernel, specialisations)
            problems = tuple(str(problem) for problem in collection.problems if problem.op == case.op)
            say(Recorded(index, CapturedCase(kernels=kernels, not_loaded=problems)))
            say(Progress("record launches", index + 1, len(request.cases)))
    cache = EvidenceCache(Path(request.cache) if request.cache is not None else None)
    wanted = [one for one in _not_trusted(specialisations.values(), frozenset(request.trusted)) if cache.code(one.key) is None]
    if isinstance(target, AmdTarget):
        _compile_all_for_amd(wanted, target, request, say)
    else:
        _compile_all(wanted, target, request, say)


def _not_trusted(specialisations: Iterable[Specialisation], trusted: Keys[str]) -> Iterator[Specialisation]:
    """What must be compiled: all code that is not trusted, and the first specialisation of a device function whose code is."""
    sampled = set[str]()
    for one in specialisations:
        if one.key not in trusted or one.entry not in sampled:
            yield one
        if one.key in trusted:
            sampled.add(one.entry)


def name_no_compiler() -> None:
    """Let the entries of Triton's cache name no version of Triton, in this process and those that it forks.

    Its folder is theirs alone, empty, and never read again.  For the name, each of them read all of Triton: half a second of processor time
    for the 500 MB of Triton 3.9.
    """
    from triton.runtime import cache

    cache.triton_key = lambda: ""


def _record_kernels(
    kernels: Iterable[Kernel],
    case: Case,
    recorder: Recorder,
    pattern: str | Sequence[str] | None,
    specialisations: dict[str, Specialisation],
) -> tuple[CapturedKernel, ...]:
    """The launches of each of `kernels` for the case; those to compile go into `specialisations`."""
    captured = []
    launches: Sequence[RecordedLaunch]
    for kernel in kernels:
        if kernel.role is Role.PEER:
            continue  # another library's code depends on versions outside this toolchain
        if isinstance(recorder.target, AmdTarget) and kernel.language in _DECLINED_ON_AMD:
            reason = f"{recorder.target.name} is an AMD GPU: {_DECLINED_ON_AMD[kernel.language]}"
            status, launches, calls = StaticStatus.UNSUPPORTED, (), ""
        elif kernel.language is Language.TORCH:
            continue  # torch compiles its code elsewhere
        else:
            status, reason, launches, calls = _record_kernel(kernel, case, recorder)
        if matches_id(str(kernel.id), pattern):
            specialisations |= {launch.specialisation.key: launch.specialisation for launch in launches}
        captured.append(
            CapturedKernel(
                kernel=str(kernel.id),
                role=kernel.role,
                language=kernel.language,
                status=status,
                reason=reason,
                launches=tuple(CapturedLaunch(one.specialisation.key, one.grid, one.threads, one.dynamic_shared_bytes) for one in launches),
                calls=calls,
            )
        )
    return tuple(captured)


def _record_kernel(kernel: Kernel, case: Case, recorder: Recorder) -> tuple[StaticStatus, str, Sequence[RecordedLaunch], str]:
    from ..registry.kernel import reason_not_runnable
    from .recording import record

    assert kernel.op is not None, "the loader binds the op"
    if reason := reason_not_runnable(kernel, "cuda"):
        return StaticStatus.NOT_RUNNABLE, reason, (), ""
    try:
        if reason := kernel.reason_unsupported(kernel.op.parse_params(case.params)):
            return StaticStatus.UNSUPPORTED, reason, (), ""
        launches, calls = record(recorder, kernel, case)
    except FusebenchError as error:
        return StaticStatus.LAUNCH_ERROR, str(error), (), ""
    except (Exception, SystemExit) as error:  # noqa: BLE001 - any error of a kernel concerns that kernel alone
        if reason := _declined_option(error, recorder.target):
            return StaticStatus.UNSUPPORTED, reason, (), ""
        return StaticStatus.LAUNCH_ERROR, f"{type(error).__name__}: {error}", (), ""
    return StaticStatus.COMPILED, "", launches, calls


_DECLINED_ON_AMD = {
    Language.CUDA: "CUDA C++ is compiled for NVIDIA GPUs only",
    Language.TORCH: "static evidence needs a Triton kernel, and torch chooses its machine code at run time",
}
_UNKNOWN_OPTION = re.compile(r"Keyword argument (\w+) was specified but unrecognised")


def _declined_option(error: BaseException, target: AnyTarget) -> str:
    """Why a launch for AMD was refused, where it passes an option that Triton has for NVIDIA only, such as `maxnreg`; else empty."""
    from triton.backends.nvidia.compiler import CUDAOptions

    found = _UNKNOWN_OPTION.search(str(error)) if isinstance(target, AmdTarget) and isinstance(error, KeyError) else None
    if found is None or found[1] not in CUDAOptions.__dataclass_fields__:
        return ""
    return f"{target.name} is an AMD GPU: the launch passes {found[1]!r}, which Triton accepts for NVIDIA GPUs only"


def _compile_all_for_amd(wanted: Sequence[Specialisation], target: AmdTarget, request: Request, say: Say) -> None:
    compiler = request.compilers[Language.TRITON]
    outcomes = run_forked(lambda one: compile_for_amd(one, target, compiler), wanted, Code, jobs=request.jobs, timeout_s=COMPILE_TIMEOUT_S)
    for done, (index, outcome) in enumerate(outcomes, start=1):
        say(Progress("compile", done, len(wanted)))
        key = wanted[index].key
        say(NotCompiled(key, outcome.reason) if isinstance(outcome, Failed) else Assembled(key, outcome))


def _compile_all(wanted: Sequence[Specialisation], target: Target, request: Request, say: Say) -> None:
    compiled: dict[str, Compiled] = {}
    outcomes = run_forked(lambda one: compile_for(one, target), wanted, Compiled, jobs=request.jobs, timeout_s=COMPILE_TIMEOUT_S)
    for done, (index, outcome) in enumerate(outcomes, start=1):
        say(Progress("compile", done, len(wanted)))
        if isinstance(outcome, Failed):
            say(NotCompiled(wanted[index].key, outcome.reason))
        else:
            compiled[wanted[index].key] = outcome
    languages = {one.key: Language.CUDA if one.options is None else Language.TRITON for one in wanted}
    machine_code = {}
    for key, one in compiled.items():
        try:
            machine_code[key] = code_of(one.cubin, one.entry)
        except FusebenchError as error:
            say(NotCompiled(key, str(error)))
    for key, counted in _count_all(machine_code, target, request.jobs):
        if isinstance(counted, Instructions):
            compiler = request.compilers[languages[key]]
            say(Assembled(key, _evidence(compiled[key], machine_code[key], counted, compiler, target)))
        else:
            say(NotCompiled(key, counted))


def _count_all(codes: dict[str, MachineCode], target: Target, jobs: int) -> list[tuple[str, Instructions | str]]:
    """Instructions by key, or the reason for their absence."""
    nvdisasm = tool("nvdisasm")
    keys = list(codes)
    size = max(1, -(-len(keys) // jobs))
    batches = [keys[start : start + size] for start in range(0, len(keys), size)]

    def count_batch(batch: Sequence[str]) -> list[tuple[str, Instructions | str]]:
        try:
            return list(zip(batch, disassemble([codes[key].text for key in batch], target.disassembly, nvdisasm), strict=True))
        except DisassemblyError as error:
            if len(batch) == 1:
                return [(batch[0], str(error))]
            return [entry for key in batch for entry in count_batch([key])]  # one of them is the cause; count each by itself

    with ThreadPoolExecutor(max_workers=jobs) as threads:  # nvdisasm does the work; nothing forks from here on
        return [entry for found in threads.map(count_batch, batches) for entry in found]


def _evidence(compiled: Compiled, code: MachineCode, instructions: Instructions, compiler: str, target: Target) -> Code:
    reserved = RESERVED_SHARED if target.major >= 9 and code.static_shared_bytes else 0
    return Code(
        entry=compiled.entry,
        compiler=compiler,
        sha256=code.sha256,
        size=len(code.text),
        registers=compiled.registers,
        stack=compiled.stack,
        spill_stores=compiled.spill_stores,
        spill_loads=compiled.spill_loads,
        block_barriers=compiled.block_barriers,
        static_shared=code.static_shared_bytes - reserved,
        dynamic_shared=compiled.dynamic_shared,
        threads=compiled.threads,
        instructions=instructions,
    )


if __name__ == "__main__":
    main()

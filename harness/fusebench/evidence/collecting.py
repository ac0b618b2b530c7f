"""Static evidence for a selection and a target: from the cache, or else from a worker process."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from ..registry.lookup import require_match
from ..schema import Case, KernelId, Language
from ..suites import Ops
from .amd_targets import AmdTarget
from .evidence_cache import EvidenceCache
from .fingerprint import case_key, fingerprint, toolchain
from .occupancy import amd_occupancy, occupancy
from .records import CapturedCase, CapturedKernel, CapturedLaunch, Code, KernelEvidence, Launch, StaticReport, StaticStatus, matches_id
from .static_process import Assembled, ForeignMessageError, NotCompiled, Progress, Recorded, Request, answers
from .targets import AnyTarget

OnProgress = Callable[[Progress], None]


def collect(
    cases: Sequence[Case],
    target: AnyTarget,
    *,
    ops: Ops,
    roots: Sequence[Path],
    kernel: str | Sequence[str] | None = None,
    jobs: int = 1,
    cache: EvidenceCache | None = None,
    trusted: Mapping[str, Code] | None = None,
    on_progress: OnProgress = lambda progress: None,
) -> StaticReport:
    """The compiled form of every Triton and CUDA C++ kernel of each case for `target`, in the order of the cases.

    Of tunable choices those that a dispatch table of the target's architecture takes for the case, and those that `kernel` names.

    Args:
        ops: the cases' ops; their kernels need not be loaded.
        roots: the kernels' folders; a worker process loads them unless the cache has everything.
        kernel: glob of kernels to report, or their ids; the folders may lack some of these.
        trusted: code by the digest of all that decides it (`Launch.inputs`); of each device function one specialisation is compiled anyway.

    Raises:
        UnknownNameError: no kernel matches the glob.
        CacheError: an entry of the cache is corrupted; nothing is overwritten.
        StaticWorkerError, ToolError: the worker was lost, or the toolchain is missing.
    """
    cache = cache if cache is not None else EvidenceCache(None)
    tools = toolchain()
    digest = fingerprint(roots, tools)
    distinct = {case_key(digest, target.name, case, kernel): case for case in cases}
    captured = {key: found for key in distinct if (found := cache.case(key)) is not None}
    trusted = trusted or {}
    codes = _known_codes(captured.values(), kernel, cache, trusted)
    missing = [key for key in distinct if key not in captured or not _covered(captured[key], kernel, codes)]
    reasons: dict[str, str] = {}
    if missing:
        amd = isinstance(target, AmdTarget)
        request = Request(
            roots=tuple(str(root) for root in roots),
            target=target.name,
            cases=tuple(distinct[key] for key in missing),
            compilers={str(language): tools.compiler(language, amd=amd) for language in (Language.TRITON, Language.CUDA)},
            kernel=kernel if kernel is None or isinstance(kernel, str) else tuple(kernel),
            cache=str(cache.folder) if cache.folder is not None else None,
            jobs=jobs,
            trusted=tuple(trusted),
        )
        for message in answers(request):
            if isinstance(message, Recorded):
                if message.index >= len(missing):
                    raise ForeignMessageError(f"sent the launches of case {message.index} of {len(missing)}")
                captured[missing[message.index]] = message.case
            elif isinstance(message, Assembled):
                codes[message.key] = message.code
                cache.keep_code(message.key, message.code)
            elif isinstance(message, NotCompiled):
                reasons[message.key] = message.reason
            elif isinstance(message, Progress):
                on_progress(message)
        if unheard := [distinct[key].key for key in missing if key not in captured]:
            raise ForeignMessageError(f"ended without the launches of {unheard[0]}")
        codes = _known_codes(captured.values(), kernel, cache, trusted) | codes
        for key in missing:  # cases last, so that an interrupted run leaves no case without its code
            if captured[key].valid:
                cache.keep_case(key, captured[key])
    shapes = {case.key: str(ops[case.op].facts(case.params).known("shape")) for case in cases}
    ordered = [(case, captured[case_key(digest, target.name, case, kernel)]) for case in cases]
    problems = tuple(dict.fromkeys(problem for _, found in ordered for problem in found.not_loaded))
    if isinstance(kernel, str):
        known = sorted({one.kernel for _, found in ordered for one in found.kernels})
        require_match(kernel, [KernelId.parse(one) for one in known], what="Triton or CUDA C++ kernel", problems=problems)
    return StaticReport(
        target=target.name,
        toolchain=tools,
        results=tuple(
            _evidence(case, shapes[case.key], one, _launches(one, target, codes), reasons)
            for case, found in ordered
            for one in found.kernels
            if matches_id(one.kernel, kernel)
        ),
        not_loaded=problems,
    )


def _known_codes(
    captured: Iterable[CapturedCase], kernel: str | Sequence[str] | None, cache: EvidenceCache, trusted: Mapping[str, Code]
) -> dict[str, Code]:
    """What this machine compiled before, else trusted code."""
    keys = {key for case in captured for key in _wanted(case, kernel)}
    return {key: code for key in sorted(keys) if (code := cache.code(key) or trusted.get(key)) is not None}


def _wanted(case: CapturedCase, kernel: str | Sequence[str] | None) -> list[str]:
    return [launch.code for one in case.kernels if matches_id(one.kernel, kernel) for launch in one.launches]


def _covered(case: CapturedCase, kernel: str | Sequence[str] | None, codes: Mapping[str, Code]) -> bool:
    return all(key in codes for key in _wanted(case, kernel))


def _evidence(case: Case, shape: str, kernel: CapturedKernel, launches: tuple[Launch, ...], reasons: Mapping[str, str]) -> KernelEvidence:
    status, reason = kernel.status, kernel.reason
    failures = [reasons[launch.code] for launch in kernel.launches if launch.code in reasons]
    if failures:
        status, reason, launches = StaticStatus.COMPILE_ERROR, failures[0], ()
    return KernelEvidence(
        case=case.key,
        op=case.op,
        shape=shape,
        params=hashlib.sha256(msgspec.json.encode([case.op, sorted(case.params.items())])).hexdigest()[:16],
        kernel=kernel.kernel,
        role=kernel.role,
        language=kernel.language,
        status=status,
        reason=reason,
        launches=launches,
    )


def _launches(kernel: CapturedKernel, target: AnyTarget, codes: Mapping[str, Code]) -> tuple[Launch, ...]:
    """The launches that compiled."""
    return tuple(_launch(launch, codes[launch.code], target) for launch in kernel.launches if launch.code in codes)


def _launch(recorded: CapturedLaunch, code: Code, target: AnyTarget) -> Launch:
    threads = code.threads if code.threads is not None else recorded.threads
    shared = code.dynamic_shared if code.dynamic_shared is not None else recorded.dynamic_shared or 0
    if threads is None:  # either the compiler or the launch says it
        raise ForeignMessageError(f"sent code of {code.entry!r} without its number of threads")
    used = code.static_shared + shared
    if isinstance(target, AmdTarget):
        if code.amd is msgspec.UNSET:  # `compile_for_amd` reads them
            raise ForeignMessageError(f"sent code of {code.entry!r} without an AMD GPU's registers")
        held = amd_occupancy(target, threads=threads, vgprs=code.registers, sgprs=code.amd.scalar, shared_bytes=used)
    else:
        held = occupancy(target, threads=threads, registers=code.registers, shared_bytes=used, block_barriers=code.block_barriers)
    return Launch(grid=recorded.grid, threads=threads, dynamic_shared=shared, occupancy=held, code=code, inputs=recorded.code)

"""What Triton says of the kernels that this process compiles: registers and spills by its assembler, and the time that each step took."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, get_args

from ...evidence.compiling import CompileError, assembler_figures
from ...evidence.targets import WARP
from ..channel.protocol import COMPILED_LAUNCHES, CompiledLaunch, CompileStep

_STARTS = "Compiling entry function"
_STEPS = frozenset(get_args(CompileStep))


class CompilerLog:
    """Listens to Triton's compiler."""

    def __init__(self) -> None:
        self.launches: list[CompiledLaunch] = []
        """The first `COMPILED_LAUNCHES` kernels since `listen`."""
        self.compiled = 0
        """All of them, those out of a cache left out."""
        self.compile_us: dict[CompileStep, int] = {}
        """Microseconds that they took by step."""
        self._said = ""

    def listen(self) -> None:
        """Hear of every kernel that Triton compiles for NVIDIA's GPUs from now on.

        Raises:
            Exception: a Triton without these means.
        """
        from triton import knobs
        from triton.backends.nvidia import compiler

        compiler.print = self._print  # Triton prints the assembler's log, and keeps it nowhere
        knobs.nvidia.dump_ptxas_log = True
        knobs.compilation.listener = self._heard

    def _print(self, *values: Any, **options: Any) -> None:
        text = " ".join(map(str, values))
        if text.lstrip().startswith("ptxas") and _STARTS in text:
            self._said = text
        else:
            print(*values, **options)

    def _heard(self, *, metadata: Any, times: Any = None, cache_hit: bool = False, **_: Any) -> None:
        said, self._said = self._said, ""
        if not cache_hit:
            self._count(times)
        try:
            used = assembler_figures(said, metadata["name"])
            threads = int(metadata["num_warps"]) * WARP
            launch = CompiledLaunch(
                registers=used.registers,
                spills=used.spill_stores + used.spill_loads,
                shared=int(metadata["shared"]),
                threads=threads,
                barriers=used.block_barriers,
            )
        except (CompileError, KeyError, TypeError, ValueError):
            return  # found in a cache, or not as Triton writes it
        if len(self.launches) < COMPILED_LAUNCHES:
            self.launches.append(launch)

    def _count(self, times: Any) -> None:
        """`times`: Triton's `CompileTimes`, in microseconds."""
        self.compiled += 1
        with suppress(AttributeError, TypeError, ValueError):  # not as Triton 3.5 to 3.9 tell them
            for step, us in (("ir", times.ir_initialization), *times.lowering_stages, ("store", times.store_results)):
                if step in _STEPS:
                    self.compile_us[step] = self.compile_us.get(step, 0) + int(us)

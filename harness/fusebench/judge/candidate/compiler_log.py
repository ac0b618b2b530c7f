"""What Triton's assembler says of the kernels that this process compiles: their registers and spills, without a second compilation."""

from __future__ import annotations

from typing import Any

from ...evidence.compiling import CompileError, assembler_figures
from ...evidence.targets import WARP
from ..channel.protocol import COMPILED_LAUNCHES, CompiledLaunch

_STARTS = "Compiling entry function"


class CompilerLog:
    """Listens to Triton's compiler."""

    def __init__(self) -> None:
        self.launches: list[CompiledLaunch] = []
        """The first `COMPILED_LAUNCHES` kernels since `listen`."""
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

    def _heard(self, *, metadata: Any, **_: Any) -> None:
        said, self._said = self._said, ""
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

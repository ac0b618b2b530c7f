"""torch.compile of a split chain: what a user gets for free."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class CompiledChain:
    """`chain`, compiled when it is first called.

    Not before: `torch.compile` imports its compiler, which takes longer than importing torch, and every process that loads the kernels
    would pay for it, whether it calls this one or not.
    """

    def __init__(self, chain: Callable[..., Any], **options: Any) -> None:
        """`options`: Inductor's, as `torch.compile` takes them."""
        self.chain = chain
        self._options = options
        self._compiled: Callable[..., Any] | None = None

    def __call__(self, *args: Any) -> Any:
        if self._compiled is None:
            # Static shapes, because a benchmark's shapes are fixed; fullgraph, so that a graph break or an exhausted recompile limit
            # raises instead of quietly timing the eager chain under this kernel's name.
            self._compiled = torch.compile(self.chain, fullgraph=True, dynamic=False, options=self._options or None)
        return self._compiled(*args)

"""Draws of one magnitude, pooled: a judgement of their errors by a contract, and whether luck may explain a failure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from ..schema import Close, Contract
from .contracts import BIAS_ELEMENTS, BIAS_ROWS, bounds, floor_ulps, judge_close
from .metrics import ErrorMetrics, merge
from .one_draw import OutputErrors

_CONFIRM_BELOW = 1 << 20
"""Elements of a draw below which any broken error bound needs more draws: errors of a few thousand elements rest on a handful of large
ones, and their luck is not the kernel's fault.  From here on only maxima do.  Of 78 checks of three right float32 kernels on 4.6 million
elements, five failed by the maximum of one draw, at most 1.4 times its bound; three of them shared a draw whose split chain erred less than
usual."""

_GROSS = 4.0
"""Multiple of the bound that no luck explains: it fails at once."""

_GROSS_OF_FEW = 16.0
"""The same for pools of fewer than `BIAS_ELEMENTS` elements, which an interpreter's check has at magnitudes other than 1.  On 3 x 96
elements with one outlier channel a right kernel's maximum was 4.5 times its bound: the split chain had rounded three large values well."""


class Pool:
    """Errors by output, of a kernel and of the split chain."""

    def __init__(self, names: Sequence[str], contract: Contract) -> None:
        """`names`: names of the outputs."""
        self.draws = 0
        self.kernel: dict[str, list[ErrorMetrics]] = {name: [] for name in names}
        self.split: dict[str, list[ErrorMetrics]] = {name: [] for name in names}
        self._contract = contract
        self._dtypes: dict[str, torch.dtype] = {}

    def add(self, outputs: Mapping[str, OutputErrors]) -> None:
        """Add a draw."""
        for name, errors in outputs.items():
            self.kernel[name].append(errors.kernel)
            self.split[name].append(errors.split)
            self._dtypes[name] = errors.dtype
        self.draws += 1

    def merged(self, name: str) -> tuple[ErrorMetrics, ErrorMetrics]:
        """The kernel's errors and the split chain's on one output."""
        return merge(self.kernel[name]), merge(self.split[name])

    def judge(self) -> str:
        """How the first failing output breaks the contract, or an empty string.  Bits are compared draw by draw, not here."""
        return self._judge(maxima=True)

    def _judge(self, *, maxima: bool) -> str:
        if not isinstance(self._contract, Close):
            return ""
        for name in self.kernel:
            kernel, split = self.merged(name)
            if reason := judge_close(kernel, split, self._contract.factor, floor_ulps(self._dtypes[name]), maxima=maxima):
                return f"output {name!r}: {reason}"
        return ""

    def use_of_bound(self, name: str) -> float:
        """The worst error of one output, as a multiple of its limit."""
        kernel, split = self.merged(name)
        factor = self._contract.factor if isinstance(self._contract, Close) else 1.0
        return max(bound.use for bound in bounds(kernel, split, factor, floor_ulps(self._dtypes[name])))

    def may_be_luck(self) -> bool:
        """Whether more draws may change the judgement: errors near their bounds, all of draws of few elements or rows, maxima of others."""
        elements = max(part.elements for parts in self.kernel.values() for part in parts)
        rows = max(part.rows for parts in self.kernel.values() for part in parts)
        few = sum(part.elements for parts in self.kernel.values() for part in parts) < BIAS_ELEMENTS * len(self.kernel)
        if max(self.use_of_bound(name) for name in self.kernel) >= (_GROSS_OF_FEW if few else _GROSS):
            return False
        return elements < _CONFIRM_BELOW or rows < BIAS_ROWS or not self._judge(maxima=False)

    def draws_for_bias(self) -> int:
        """Draws that fill `BIAS_ELEMENTS` and `BIAS_ROWS` for every output, by the fullest draw so far."""
        need = 1
        for parts in self.kernel.values():
            elements, rows = max((part.elements, part.rows) for part in parts)
            if elements:
                need = max(need, -(-BIAS_ELEMENTS // elements), -(-BIAS_ROWS // rows))
        return need

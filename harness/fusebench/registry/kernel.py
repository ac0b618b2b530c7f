"""A kernel, and whether it can run on a device.

A `Kernel` is callable with the arguments of its op.  Inside `torch.compile` the call goes through the torch operator that
the loader registered for it, so that it can be traced; otherwise it goes straight to the function, so that eager callers pay
no operator dispatch.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..errors import KernelDeclarationError
from ..schema import Bitwise, Close, Contract, KernelId, KernelInfo, Language, Role
from .arguments import taken_by
from .declared import DeclaredKernel
from .launches.repeats import Layout
from .launches.replay import Call, Replay
from .part import Part

if TYPE_CHECKING:
    from .op import Op, Supports

Promise = Callable[[Any], Contract]


class Kernel:
    """One implementation of an op, bound to its op by the loader (`op` is None until then)."""

    def __init__(
        self,
        function: Callable[..., Any],
        kernel_id: KernelId,
        *,
        role: Role,
        language: Language,
        contract: Contract,
        requires: tuple[str, ...],
        note: str,
        replay: bool = False,
        part: Part | None = None,
        install: str = "",
        choice_of: Kernel | None = None,
        choice: Any = None,
        compile: Mapping[str, Any] | None = None,
    ) -> None:
        """`choice_of`, `choice`: the kernel whose `supports` and `promises` hold for this one too, and the value that `function` gets."""
        functools.update_wrapper(self, function)
        self.file = inspect.getsourcefile(inspect.unwrap(function)) or "<unknown>"
        declared = taken_by(function)
        if declared is not None:
            taking = function if choice_of is None else functools.update_wrapper(functools.partial(_chosen, function, choice), function)
            function = declared.bind(taking)
        if compile is not None:
            function = _torch_compiled(function, {**compile, **getattr(choice, "options", {})})
        self.function = function
        """Takes the op's arguments as its schema names them, also when the author's function takes them as one object."""
        self._replay = Replay(function) if replay else None
        self._replayed = self._replay.call if self._replay is not None else None
        self.id = kernel_id
        self.role = role
        self.language = language
        self.contract = contract
        self.requires = requires
        self.note = note
        self.part = part
        """The part of the op that the kernel computes; None for the whole op."""
        self.install = install
        self.op: Op | None = None
        self.compiled = compile is not None
        """Whether `function` is torch.compile of the function that it wraps."""
        self.torch_op: Callable[..., Any] | None = None
        """The torch operator of a fused kernel, once registered."""
        self.is_compiling: Callable[[], bool] = _never
        """`torch.compiler.is_compiling`, once the torch operator is registered."""
        self._supports: Supports = lambda params: True
        self._promises: Promise | None = None
        if choice_of is not None:
            self._supports = lambda params: choice_of.reason_unsupported(params) or True
            self._promises = choice_of.contract_for

    def supports(self, predicate: Supports) -> Supports:
        """Decorator: `predicate(params)` returns True, or the reason why the kernel declines."""
        self._supports = predicate
        return predicate

    def promises(self, contract_of: Promise) -> Promise:
        """Decorator: `contract_of(params)` returns the contract where it depends on the case."""
        self._promises = contract_of
        return contract_of

    def reason_unsupported(self, params: Any) -> str | None:
        """None when the kernel takes `params`, else the reason."""
        try:
            answer = self._supports(params)
        except Exception as error:  # noqa: BLE001 - `dispatch` never raises for a shape; the reason is recorded instead
            return f"the `supports` of {self.id} raised {type(error).__name__}: {error}"
        if answer is True or (type(answer).__name__ == "SymBool" and answer):  # of a traced size: the condition becomes a guard
            return None
        return answer if isinstance(answer, str) else f"{self.id} declines this case without a reason"

    def contract_for(self, params: Any) -> Contract:
        """The numerical contract of the kernel for `params`.

        Raises:
            KernelDeclarationError: `promises` gives a contract that no kernel may promise.
        """
        if self._promises is None:
            return self.contract
        contract = self._promises(params)
        if refused := refused_contract(self.id, contract, self.op):
            raise KernelDeclarationError(refused)
        return contract

    @property
    def covers(self) -> str:
        """The part of the op that the kernel computes, in words; empty for the whole op."""
        return self.part.covers if self.part is not None else ""

    @property
    def replays(self) -> bool:
        """Whether a repeated call of a layout repeats the earlier launches without running `function`."""
        return self._replay is not None

    def recorded(self, call: Call) -> Layout | None:
        """The launches that `call` would repeat, if there are any."""
        return None if self._replay is None else self._replay.recorded(call)

    @contextmanager
    def without_replay(self) -> Iterator[None]:
        """Let every call within the block run `function`."""
        kept = self._replay, self._replayed
        self._replay, self._replayed = None, None
        try:
            yield
        finally:
            self._replay, self._replayed = kept

    @property
    def declared(self) -> DeclaredKernel:
        """The kernel as plain data."""
        return self._declared_with(tuple(missing_modules(self)))

    @property
    def info(self) -> KernelInfo:
        return self._declared_with(()).info

    def _declared_with(self, absent: tuple[str, ...]) -> DeclaredKernel:
        return DeclaredKernel(
            id=self.id,
            role=self.role,
            language=self.language,
            contract=str(self.contract),
            note=self.note,
            file=self.file,
            covers=self.covers,
            requires=self.requires,
            install=self.install,
            absent=absent,
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.torch_op is not None and self.is_compiling():
            return self.torch_op(*args, **kwargs)
        replayed = self._replayed  # as `call_eagerly`, without its call
        return self.function(*args, **kwargs) if replayed is None else replayed(args, kwargs)

    def call_eagerly(self, *args: Any, **kwargs: Any) -> Any:
        """As `self(*args, **kwargs)` outside torch.compile."""
        replayed = self._replayed
        return self.function(*args, **kwargs) if replayed is None else replayed(args, kwargs)

    def call_described(self, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """As `call_eagerly`, for a caller that has described the call already."""
        return self.function(*args, **kwargs) if self._replay is None else self._replay.described(call, args, kwargs, write=False)

    def of_part(self, part: Part) -> Kernel:
        """The split chain of `part` as a kernel that replaces this one, the split reference of the whole op."""
        return Kernel(
            part.split,
            KernelId(self.id.op, f"{self.id.name}_of_part", self.id.version),
            role=Role.SPLIT,
            language=Language.TORCH,
            contract=self.contract,
            requires=(),
            note=f"split chain of the part that covers {part.covers}",
        )

    def __repr__(self) -> str:
        return f"<Kernel {self.id} {self.role} {self.language}>"


def _chosen(function: Callable[..., Any], choice: Any, call: Any) -> Any:
    """Call `function` with one of its choices."""
    return function(call, choice)


def refused_contract(kernel_id: KernelId, contract: Any, op: Op | None) -> str:
    """Why no kernel called `kernel_id` may promise `contract`; empty if it may.

    Args:
        op: gives the largest factor of `Close`; None where it is not known yet.
    """
    if isinstance(contract, Bitwise):
        if contract.to == str(kernel_id):
            return f"kernel {kernel_id} promises to equal itself bit for bit, which says nothing; name another kernel, or promise Close()"
        return ""
    if not isinstance(contract, Close):
        return f"kernel {kernel_id} promises {contract!r}, expected Close(factor) or Bitwise(kernel id)"
    if not (math.isfinite(contract.factor) and contract.factor > 0):
        return f"kernel {kernel_id} promises Close({contract.factor}); the factor must be positive and finite"
    if op is not None and contract.factor > op.largest_factor:
        return (
            f"kernel {kernel_id} promises Close({contract.factor:g}), which is {contract.factor:g} x the split chain's error, but op "
            f"{op.name} allows at most {op.largest_factor:g} x; make the kernel more accurate, or raise `largest_factor` in op.py"
        )
    return ""


def _torch_compiled(function: Callable[..., Any], options: Mapping[str, Any]) -> Callable[..., Any]:
    compiled: list[Callable[..., Any]] = []

    def call(*args: Any, **kwargs: Any) -> Any:
        if not compiled:
            import torch

            # Compiled at the first call: torch.compile imports its compiler, which takes longer than importing torch.
            # Static shapes, because a benchmark's shapes are fixed. Fullgraph, so that a graph break or an exhausted recompile limit
            # raises instead of timing the eager chain under this kernel's name.
            compiled.append(torch.compile(function, fullgraph=True, dynamic=False, options=dict(options) or None))
        return compiled[0](*args, **kwargs)

    call.__wrapped__ = function  # type: ignore[attr-defined]
    return call


def _never() -> bool:
    return False


EXTRAS = {"cuda.core": "'fusebench[gpu]'"}
"""What installs the modules that a kernel may require, where the kernel does not say."""


def reason_not_runnable(kernel: Kernel | DeclaredKernel, device: str, *, interpreter: bool = False) -> str | None:
    """None when `kernel` can run on `device` (`cpu` or `cuda`), else the reason.

    With `interpreter`, Triton kernels count as runnable on the CPU: right for checking, meaningless for timing.
    """
    if absent := missing_modules(kernel):
        install = kernel.install or " ".join(sorted({EXTRAS[module] for module in absent if module in EXTRAS}))
        return f"not installed: {', '.join(absent)}" + (f" (pip install {install})" if install else "")
    if device == "cuda" or kernel.language is Language.TORCH:
        return None
    if kernel.language is Language.TRITON:
        if kernel.role is Role.PEER:
            # Libraries are written for the compiler; the interpreter refuses some of their calls, such as methods of scalar arguments.
            return "another library's Triton kernel needs a GPU; only this project's own are checked in the interpreter"
        return None if interpreter else "a Triton kernel needs a GPU to be timed; it is checked in the interpreter"
    return "CUDA C++ needs a GPU"


def missing_modules(kernel: Kernel | DeclaredKernel) -> Sequence[str]:
    """The kernel's required modules that are not installed. Only the parents of dotted names are imported."""
    if isinstance(kernel, DeclaredKernel):
        return kernel.absent
    return [module for module in kernel.requires if not _installed(module)]


def _installed(module: str) -> bool:
    if sys.modules.get(module) is not None:
        return True
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # a parent package is absent: `cuda` of `cuda.core`
        return False

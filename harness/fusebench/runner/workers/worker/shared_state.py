"""The state that kernels share in a worker's process, and what of it was left changed.

Taken when everything but the kernels is loaded, and compared after every import of a kernel file, first call and task.  A kernel that
changes something and puts it back leaves nothing changed; nor does a library that is imported late and wraps a function of its own.

What the comparison finds are accidents, not attacks: a kernel can change memory that no Python object holds.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from operator import is_
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

SHOWN = 3
"""Changes that a reason names."""
MODULES = (
    "builtins", "gc", "math", "os", "random", "signal", "statistics", "sys", "threading", "time",
    "torch", "torch._C", "torch.autograd.profiler", "torch.backends.cuda", "torch.backends.cudnn", "torch.cuda", "torch.cuda.memory",
    "torch.cuda.streams", "torch.fft", "torch.library", "torch.linalg", "torch.nn", "torch.nn.functional", "torch.profiler", "torch.random",
    "torch.special", "torch.utils._python_dispatch",
    "triton", "triton.language", "triton.runtime", "triton.runtime.jit", "triton.testing",
)  # fmt: skip
"""Modules whose functions, classes and submodules every kernel may use; the harness's own are added."""
CLASSES = (
    "torch.Tensor", "torch.Generator", "torch.nn.Module", "torch.nn.Parameter", "torch.cuda.Event", "torch.cuda.Stream",
    "torch.cuda.CUDAGraph", "triton.runtime.jit.JITFunction", "threading.Thread",
)  # fmt: skip
LIBRARIES = ("torch", "triton", "numpy")
"""Packages whose late wrappers of their own functions are no change: torch.compile wraps `torch.manual_seed` when it is imported."""
COMPILERS = ("torch._dynamo", "torch._functorch", "torch._inductor")
"""Modules whose functions replace some of `torch.nn.Module` when something is compiled first."""
VARIABLES = ("CUBLAS_", "CUDA_", "FUSEBENCH_", "MKL_", "NVIDIA_", "OMP_", "PYTHON", "PYTORCH_", "TORCH", "TRITON_")
"""Beginnings of the names of environment variables that change how other kernels run."""
COMPILERS_OWN = frozenset(
    {"PYTORCH_NVML_BASED_CUDA_CHECK", "TORCHINDUCTOR_CACHE_DIR", "TORCHINDUCTOR_COMPILE_THREADS", "TRITON_CACHE_DIR", "TRITON_PTXAS_PATH"}
)
"""Variables that torch, its compiler and the harness set themselves."""
UNWATCHED = frozenset({("sys", "excepthook")})
"""Functions that concern no other kernel, by module and name.  The hook decides what is printed of an exception that ends the process.
CuTe DSL replaces it when it is imported, which torch.compile does where it is installed."""
SHARED_OPERATORS = "aten/"
"""Begins the name of every implementation of an operator of torch."""

_ABSENT: Any = object()


class SharedState:
    """The state as it was when this was made."""

    def __init__(self) -> None:
        self._owners: dict[str, _Owner] = {}
        self._settings = _settings()
        self._registered, self._operators = _registered(), _operators()
        self.extend()

    def extend(self) -> None:
        """Take in the modules that were imported meanwhile."""
        for name, owner in _owners():
            if name not in self._owners:
                known = {key: value for key, value in vars(owner).items() if _is_watched(value) and (name, key) not in UNWATCHED}
                self._owners[name] = _Owner(owner, tuple(known), tuple(known.values()), len(vars(owner)))

    def changes(self) -> list[str]:
        """What differs now, in words."""
        return [text for text, _ in self._changes()]

    def changed_by(self) -> str:
        """The file whose code one of the replaced functions is; empty where none of them tells."""
        for _, value in self._changes():
            code = getattr(value, "__code__", None)
            module = sys.modules.get(getattr(value, "__module__", None) or "")
            file = code.co_filename if code is not None else getattr(module, "__file__", None) or ""
            if "_fusebench_root_" in (getattr(value, "__module__", None) or ""):
                return str(file)
        return ""

    def _changes(self) -> Iterator[tuple[str, Any]]:
        for name, one in self._owners.items():
            if not one.is_same:
                yield from one.changes(name)
        settings = _settings()
        for key in dict.fromkeys((*self._settings, *settings)):
            before, now = self._settings[key], settings[key]
            if now != before and not _is_harmless(key, before, now):
                yield f"changed {key} from {_shown(before)} to {_shown(now)}", None
        if _registered() == self._registered:
            return
        for operator in sorted(_operators() - self._operators):
            yield f"registered another implementation of operator {operator}", None


class _Owner(NamedTuple):
    """A module or class, and the functions, classes and submodules that it had."""

    owner: Any
    keys: tuple[str, ...]
    values: tuple[Any, ...]
    size: int
    """Number of all its attributes."""

    @property
    def is_same(self) -> bool:
        """Whether nothing was replaced; for a class also, whether nothing was added, which may hide what it inherits."""
        current = vars(self.owner)
        return all(map(is_, map(current.get, self.keys), self.values)) and (len(current) == self.size or isinstance(self.owner, ModuleType))

    def changes(self, name: str) -> Iterator[tuple[str, Any]]:
        """What was replaced or removed, in words, and the new value."""
        current = vars(self.owner)
        for key, value in zip(self.keys, self.values, strict=True):
            now = current.get(key, _ABSENT)
            if now is not value and not _is_librarys_own(self.owner, value, now):
                yield (f"removed {name}.{key}" if now is _ABSENT else f"replaced {name}.{key}"), now
        if isinstance(self.owner, type):
            for key, now in list(current.items()):
                if key not in self.keys and isinstance(now, FunctionType) and any(key in vars(base) for base in self.owner.__mro__[1:]):
                    yield f"replaced {name}.{key}", now


def in_words(changes: list[str]) -> str:
    """The reason of a kernel that left these changes."""
    more = f", and {len(changes) - SHOWN} more" if len(changes) > SHOWN else ""
    return f"it {', '.join(changes[:SHOWN])}{more}, which all kernels of a process share, and did not put it back"


def _owners() -> Iterator[tuple[str, Any]]:
    """The modules and classes that are watched and exist, by name."""
    for name in (*MODULES, *(name for name in list(sys.modules) if name.partition(".")[0] == "fusebench")):
        module = sys.modules.get(name)
        if module is not None:
            yield name, module
        if module is not None and name.startswith("fusebench"):
            yield from ((f"{name}.{key}", value) for key, value in list(vars(module).items()) if _is_class_of(value, name))
    for name in CLASSES:
        home, _, key = name.rpartition(".")
        owner = getattr(sys.modules.get(home), key, None)
        if isinstance(owner, type):
            yield name, owner


def _is_class_of(value: Any, module: str) -> bool:
    return isinstance(value, type) and value.__module__ == module


def _is_watched(value: Any) -> bool:
    return callable(value) or isinstance(value, ModuleType | staticmethod | classmethod | property)


def _is_librarys_own(owner: Any, before: Any, now: Any) -> bool:
    """Whether a library replaced a function of its own, by a wrapper of it or by one of its compiler."""
    home = (owner.__name__ if isinstance(owner, ModuleType) else owner.__module__).partition(".")[0]
    if home not in LIBRARIES or now is _ABSENT:
        return False
    code = getattr(now, "__code__", None)
    folder = (getattr(sys.modules.get(home), "__file__", None) or "").rpartition(os.sep)[0]
    if code is None or not folder or not code.co_filename.startswith(folder + os.sep):
        return False
    wrapped = getattr(now, "__wrapped__", None) or getattr(now, "_torchdynamo_orig_callable", None)
    return wrapped is before or str(getattr(now, "__module__", None)).startswith(COMPILERS)


def _settings() -> dict[str, Any]:
    """Settings of the process that decide how every kernel runs, by their name in words."""
    import torch

    known: dict[str, Any] = {name: _value(read) for name, read in _READERS.items()}
    known |= {f"torch's {name}": _value(read) for name, read in _torch_readers(torch).items()}
    for number in _SIGNALS:
        known[f"the handler of {signal.Signals(number).name}"] = signal.getsignal(number)
    for name, value in os.environ.items():
        if name.startswith(VARIABLES) and name not in COMPILERS_OWN:
            known[f"the environment variable {name}"] = value
    return _Settings(known)


class _Settings(dict[str, Any]):
    """Settings; one that is absent is None."""

    def __missing__(self, key: str) -> None:
        return None


def _value(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except Exception as error:  # noqa: BLE001  a torch without this setting, or a folder that was removed
        return type(error).__name__


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


_ONE = float("1")
_SIGNALS = sorted(signal.valid_signals() & set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP})
_READERS: Mapping[str, Callable[[], Any]] = {
    "the working directory": os.getcwd,
    "the umask": _umask,
    "the recursion limit": sys.getrecursionlimit,
    "the switch interval of threads": sys.getswitchinterval,
    "the trace function": sys.gettrace,
    "the profile function": sys.getprofile,
    "sys.stdout": lambda: id(sys.stdout),
    "sys.stderr": lambda: id(sys.stderr),
    "the garbage collector": gc.isenabled,
    "the garbage collector's thresholds": gc.get_threshold,
    "the interval timer": lambda: signal.getitimer(signal.ITIMER_REAL)[0] > 0,
    "the blocked signals": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, ()),
    "the flushing of denormals": lambda: _ONE * 5e-324 == 0.0,
    "the hook of threads": lambda: id(threading.excepthook),
}


def _torch_readers(torch: Any) -> Mapping[str, Callable[[], Any]]:
    core = torch._C
    return {
        "default dtype": torch.get_default_dtype,
        "grad mode": torch.is_grad_enabled,
        "inference mode": torch.is_inference_mode_enabled,
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled,
        "precision of float32 matmuls": torch.get_float32_matmul_precision,
        "TF32 of cuBLAS": core._get_cublas_allow_tf32,
        "TF32 of cuDNN": core._get_cudnn_allow_tf32,
        "reduced precision of float16 matmuls": core._get_cublas_allow_fp16_reduced_precision_reduction,
        "reduced precision of bfloat16 matmuls": core._get_cublas_allow_bf16_reduced_precision_reduction,
        "cuDNN benchmark mode": core._get_cudnn_benchmark,
        "cuDNN deterministic mode": core._get_cudnn_deterministic,
        "cuDNN": core._get_cudnn_enabled,
        "number of threads": torch.get_num_threads,
        "autocast on the GPU": lambda: torch.is_autocast_enabled("cuda"),
        "autocast on the CPU": lambda: torch.is_autocast_enabled("cpu"),
        "active dispatch modes": core._len_torch_dispatch_stack,
        "active function modes": core._len_torch_function_stack,
        "current device": lambda: torch.cuda.current_device() if torch.cuda.is_initialized() else None,
        "current stream": lambda: torch.cuda.current_stream().cuda_stream if torch.cuda.is_initialized() else None,
    }


def _is_harmless(key: str, before: Any, now: Any) -> bool:
    """Whether the change of a setting concerns no other kernel."""
    if key == "the recursion limit":  # compilers raise it
        return bool(now >= before)
    # The first use of a GPU makes a device and its default stream current.
    return key in ("torch's current device", "torch's current stream") and before is None


def _registered() -> int:
    """Number of implementations of operators that Python has registered."""
    import torch

    return len(getattr(torch.library, "_impls", ()))


def _operators() -> frozenset[str]:
    """Implementations that Python has registered for operators that belong to no kernel."""
    import torch

    return frozenset(
        name for name in getattr(torch.library, "_impls", ()) if name.startswith(SHARED_OPERATORS) and not name.endswith("/Meta")
    )


def _shown(value: Any) -> str:
    return getattr(value, "__qualname__", None) or str(value)

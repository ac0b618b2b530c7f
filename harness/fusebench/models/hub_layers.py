"""Fused ops as layers of Hugging Face's `kernels` library: a mapping for `kernels.use_kernel_mapping`, without a repository on the hub.

The library gives a module another `forward` where its class is marked with a layer's name, and asks a mapping what stands for that name on
a device.  A value of the mapping needs a `load()` alone, so that nothing is fetched.  The library takes no hold of attention processors,
which are no modules; `fusebench.kernelize` does.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from ..errors import UsageError
from ..registry.dispatching.dispatcher import Dispatcher, dispatch
from ..registry.signature import keyword_names, positional_names

if TYPE_CHECKING:
    from types import ModuleType

    import torch

DEVICES = ("cuda",)
FUNCTIONS = (
    "norm_scale_shift",
    "norm_scale_shift_gate_select01",
    "norm_tanh_mul_add",
    "norm_tanh_mul_add_norm_scale",
    "qknorm_across_heads_rope",
    "qknorm_rope",
    "residual_gate_norm_scale_shift",
    "residual_norm_scale_shift_gate_select01",
    "rotary_embedding",
)
"""Ops that a marked function of a model can be replaced by: the function has the op's name and arguments."""


class NormLayer(msgspec.Struct, frozen=True):
    """Source of the layer for one of diffusers' modulated norms."""

    layer_name: str

    def load(self) -> type[torch.nn.Module]:
        """The layer's class, which has neither constructor nor members.  The library binds its `forward` to diffusers' module."""
        norms = _norms()
        (make,) = (make for kind, make in norms.NORM_LAYERS.items() if kind.__name__ == self.layer_name)
        layer: type[torch.nn.Module] = make(dispatch(norms.NORM_OP))
        return layer


class FunctionLayer(msgspec.Struct, frozen=True):
    """Source of the layer for a function that has the name and the arguments of an op."""

    layer_name: str

    def load(self) -> type[torch.nn.Module]:
        """The layer's class, whose `forward` takes the op's arguments: tensors by position, options by name."""
        return _function_layer(dispatch(self.layer_name))


def mapping(devices: Sequence[str] = DEVICES) -> dict[str, dict[str, NormLayer | FunctionLayer]]:
    """The layers by name and device, for `kernels.use_kernel_mapping` or `kernels.register_kernel_mapping`.

    They serve inference, eager and under `torch.compile`.  For training the library keeps a module's own forward: no op has a backward.

    Args:
        devices: device types as the library names them.

    Raises:
        UsageError: diffusers is not installed.
    """
    layers: list[NormLayer | FunctionLayer] = [NormLayer(kind.__name__) for kind in _norms().NORM_LAYERS]
    layers += map(FunctionLayer, FUNCTIONS)
    return {layer.layer_name: dict.fromkeys(devices, layer) for layer in layers}


@contextlib.contextmanager
def offered(devices: Sequence[str] = DEVICES) -> Iterator[None]:
    """Offer the layers to `kernels.kernelize` for the time of the block: diffusers' norms are marked, and the mapping is in use.

    A module whose norm is no call of the op keeps its own forward.  Forwards that the library replaced in the block stay after it.

    Raises:
        UsageError: the `kernels` library or diffusers is not installed.
    """
    library, norms = _library(), _norms()
    before = {kind: {name: kind.__dict__[name] for name in MARKS if name in kind.__dict__} for kind in norms.NORM_LAYERS}
    try:
        for kind in norms.NORM_LAYERS:
            library.replace_kernel_forward_from_hub(kind, kind.__name__, condition=_can_replace)
        with library.use_kernel_mapping(mapping(devices)):
            yield
    finally:
        for kind, marks in before.items():
            for name in MARKS:
                if name in marks:
                    setattr(kind, name, marks[name])
                elif name in kind.__dict__:
                    delattr(kind, name)


MARKS = ("kernel_layer_name", "kernel_condition")
"""Attributes by which the library marks a class."""


def _can_replace(module: Any) -> bool:
    return not _norms().reason_kept(module)


def _function_layer(op: Dispatcher) -> type[torch.nn.Module]:
    import torch

    class OpLayer(torch.nn.Module):
        can_torch_compile, has_backward = True, False

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return op(*args, **kwargs)

    named: Mapping[Any, tuple[str, ...]] = {
        inspect.Parameter.POSITIONAL_OR_KEYWORD: ("self", *positional_names(op.op.schema)),
        inspect.Parameter.KEYWORD_ONLY: keyword_names(op.op.schema),
    }
    # The library compares the arguments with those of the function that is replaced.
    OpLayer.forward.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, kind) for kind, names in named.items() for name in names]
    )
    return OpLayer


def _library() -> ModuleType:
    advice = "install it with pip install 'fusebench[kernelize]'"
    try:
        library = importlib.import_module("kernels")
    except ImportError as error:
        raise UsageError(f"layers need the `kernels` library: {error}; {advice}") from error
    if not hasattr(library, "replace_kernel_forward_from_hub"):  # a folder of that name, as projects of fusebench have one
        raise UsageError(f"layers need the `kernels` library, found {list(library.__path__)}; {advice}")
    return library


def _norms() -> ModuleType:
    try:
        return importlib.import_module(".configurations.norms", __package__)
    except ImportError as error:
        raise UsageError(f"layers need diffusers: {error}; install it with pip install 'fusebench[models]'") from error

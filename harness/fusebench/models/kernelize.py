"""Fused ops in a person's own diffusers transformer, by one line: `fusebench.kernelize(pipe.transformer)`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import UnknownNameError, UsageError
from .catalogue import TRANSFORMERS, load_model
from .diffusion_model import DiffusionModel
from .op_calls import OpCalls
from .substitution import Substitution

OTHER_NORM = "modulated norm"
"""Site of the norms of a transformer that has no configuration here."""


class Kernelized:
    """What `kernelize` put into a transformer, until `undo`.  As a context manager it is undone at the end of the block."""

    def __init__(self, transformer: Any, calls: OpCalls, into: Substitution, kept: Mapping[str, str]) -> None:
        self._calls, self._into, self._class = calls, into, type(transformer).__name__
        self.replaced: Mapping[str, tuple[str, ...]] = {site: tuple(places) for site, places in calls.places.items()}
        """Paths of the modules that call an op, by site."""
        self.kept = kept
        """Why a module stayed diffusers' own, by its path: modulated norms that are no call of an op."""

    @property
    def fallbacks(self) -> Mapping[str, tuple[str, ...]]:
        """Why calls so far took the split chain instead of a fused kernel, by op: distinct reasons.  Empty if no call did."""
        found = {op: tuple(dict.fromkeys(one.reason for one in each.fallbacks)) for op, each in self._calls.dispatchers.items()}
        return {op: reasons for op, reasons in found.items() if reasons}

    def undo(self) -> None:
        """Put back diffusers' own forwards and processors."""
        self._into.undo()

    def __enter__(self) -> Kernelized:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()

    def __str__(self) -> str:
        count = sum(len(places) for places in self.replaced.values())
        lines = [f"{self._class}: {count} calls of fused ops"]
        lines += [f"  {len(places):4} {site}" for site, places in self.replaced.items()]
        lines += [f"  kept {place}: {reason}" for place, reason in self.kept.items()]
        lines += [f"  fell back: {op}: {reason}" for op, reasons in self.fallbacks.items() for reason in reasons]
        return "\n".join(lines)


def kernelize(transformer: Any) -> Kernelized:
    """Put the fused ops into a diffusers transformer, in place, through `dispatch`.

    A transformer of `catalogue.TRANSFORMERS` gets them at every site: attention processors, norms and blocks.  Another one gets them in
    its modulated norms (`AdaLayerNormZero`, `AdaLayerNormZeroSingle`, `AdaLayerNormContinuous`).  Parameters stay the same objects
    with the same values; the weights of q, k and v move next to each other in memory, for one product of all three.  Call it on the
    transformer's device and in its dtype, and before `torch.compile` or a CUDA graph.

    Raises:
        UsageError: not a transformer, nothing to replace, fused ops are in it already, parts of it that the substitution does not know,
            no ops found, or diffusers is missing or of another version.
    """
    _require_transformer(transformer)
    calls, into = OpCalls(), Substitution(transformer)
    kept: dict[str, str] = {}
    try:
        if type(transformer).__name__ in TRANSFORMERS:
            model = _suitable(transformer)
            model.arrange(transformer)
            model.substitute(transformer, calls, into)
        else:
            kept = _replace_norms(transformer, calls, into)
    except BaseException as error:
        into.undo()
        if isinstance(error, TypeError):  # a part of another class than the substitution replaces
            raise UsageError(f"{type(transformer).__name__} has parts that fusebench does not know: {error}; use it as it is") from error
        if isinstance(error, UnknownNameError):
            raise UsageError(
                f"{error} The ops of the working directory's project and those of an installed wheel are searched; "
                "install fusebench, or call kernelize inside its checkout"
            ) from error
        raise
    return Kernelized(transformer, calls, into, kept)


def _require_transformer(transformer: Any) -> None:
    import torch

    if not isinstance(transformer, torch.nn.Module):
        inside = "its `transformer`" if hasattr(transformer, "transformer") else "a diffusers transformer"
        raise UsageError(f"found {type(transformer).__name__}, which is no torch module; pass {inside}")
    if hasattr(transformer, "_orig_mod"):  # the wrapper that torch.compile returns
        raise UsageError("the transformer is compiled; call kernelize first, then torch.compile")
    package = __name__.partition(".")[0]
    if any(type(module).__module__.partition(".")[0] == package for module in transformer.modules()):
        raise UsageError(f"{type(transformer).__name__} has fused ops already; call `undo()` of what kernelize returned first")


def _suitable(transformer: Any) -> DiffusionModel:
    reasons = []
    for name in TRANSFORMERS[type(transformer).__name__]:
        model = load_model(name)
        if not isinstance(transformer, model.transformer):
            raise UsageError(f"found a {type(transformer).__name__} of {type(transformer).__module__}, expected the class of diffusers")
        model.require_known_classes()
        reason = model.reason_not_for(transformer.config)
        if not reason:
            return model
        reasons.append(f"{name}: {reason}")
    raise UsageError(f"no substitution suits this {type(transformer).__name__}: {'; '.join(reasons)}")


def _replace_norms(transformer: Any, calls: OpCalls, into: Substitution) -> dict[str, str]:
    """Replace the modulated norms of a transformer that has no configuration.  Returns why others stay, by path."""
    try:
        from .configurations.norms import FUSED_NORMS, NORM_OP, reason_kept
    except ImportError as error:
        raise UsageError(f"kernelize needs diffusers: {error}; install it with pip install 'fusebench[models]'") from error
    norms = [(name, module) for name, module in transformer.named_modules() if type(module) in FUSED_NORMS]
    kept = {name: reason for name, module in norms if (reason := reason_kept(module))}
    if len(kept) == len(norms):
        found = "; ".join(f"{name}: {reason}" for name, reason in kept.items()) or "it has no modulated norm"
        raise UsageError(
            f"nothing to replace in {type(transformer).__name__}: {found}; expected {', '.join(TRANSFORMERS)}, "
            f"or a transformer with {', '.join(kind.__name__ for kind in FUSED_NORMS)}"
        )
    for name, module in norms:
        if name not in kept:
            into.swap(module, FUSED_NORMS[type(module)], fused=calls.at(NORM_OP, OTHER_NORM, name))
    return kept

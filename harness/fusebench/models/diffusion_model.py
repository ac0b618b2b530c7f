"""A model configuration: which transformer, its shapes and inputs, its scheduler, and where fused ops sit in it."""

from __future__ import annotations

import contextlib
import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from ..errors import UsageError
from .substitution import Substitution

if TYPE_CHECKING:
    import torch

    from .op_calls import OpCalls

Conditioning = Mapping[str, Any]
"""What a transformer is given beside latents and timestep: text embeddings, position ids, guidance."""


class Shapes(msgspec.Struct, frozen=True, kw_only=True):
    """What is generated: pixels, frames and text tokens."""

    height: int
    width: int
    frames: int = 1
    text_tokens: int
    negative_text_tokens: int = 0
    """Text tokens of the negative prompt, where the model uses classifier-free guidance."""

    reference: tuple[int, int] | None = None
    """Height and width of the reference image, where the model edits one."""


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """A place where the model runs an op.  Its calls are counted under this name and held against the suite's weights."""

    name: str
    """Unique in the model, such as `double block: image q and k`."""

    op: str
    stack: str = ""
    """Constructor argument with the number of the blocks that have this site; empty for a site outside the blocks: one call per forward."""

    per_block: int = 1
    beyond: int = 0
    """Calls per forward beyond those of the blocks: -1 where the last block has none."""

    def calls(self, config: Mapping[str, Any]) -> int:
        """Calls per forward of a transformer with these constructor arguments."""
        return self.per_block * (config[self.stack] if self.stack else 1) + self.beyond


class DiffusionModel(ABC):
    """One model configuration.  Subclasses stand in `configurations`, one file per family of transformers."""

    name: ClassVar[str]
    """Name of the configuration; its suite is `models/NAME`."""

    title: ClassVar[str]
    transformer: ClassVar[Any]
    """diffusers' transformer class."""

    config: ClassVar[Mapping[str, Any]]
    """Constructor arguments of the published model."""

    tiny_config: ClassVar[Mapping[str, Any]]
    """Constructor arguments that differ in the tiny model, which has every kind of block at least twice and runs on a CPU."""

    stacks: ClassVar[Mapping[str, str]]
    """Attribute of each stack of equal blocks, by the constructor argument that holds its number of blocks."""

    shapes: ClassVar[Shapes]
    tiny_shapes: ClassVar[Shapes]
    steps: ClassVar[int]
    """Denoise steps that the model's authors recommend."""

    forwards: ClassVar[int] = 1
    """Forwards of the transformer per denoise step: 2 with classifier-free guidance."""

    sites: ClassVar[tuple[Site, ...]]

    forward_arguments: ClassVar[Mapping[Any, tuple[str, ...]]]
    """The arguments of `forward` (or of a processor's `__call__`) of each diffusers class that substitution replaces.  Another version of
    diffusers, whose classes differ, is refused by them."""

    def expected_calls(self, config: Mapping[str, Any]) -> dict[str, int]:
        """Calls per denoise step of each site, by its name, of a transformer with these constructor arguments: a smaller model's too."""
        return {site.name: self.forwards * site.calls(config) for site in self.sites}

    def reason_not_for(self, config: Mapping[str, Any]) -> str:
        """Why the substitution does not suit a transformer of the class with these constructor arguments; empty if it does."""
        return ""

    def require_known_classes(self) -> None:
        """Refuse a diffusers whose classes take other arguments than those that the substitution replaces.

        Raises:
            UsageError: names the class, the arguments found and expected, and the version.
        """
        import diffusers

        for kind, expected in self.forward_arguments.items():
            method = getattr(kind, "forward", None) or kind.__call__
            found = tuple(name for name in inspect.signature(method).parameters if name not in ("self", "args", "kwargs"))
            if found != expected:
                raise UsageError(
                    f"model {self.name!r}: diffusers {diffusers.__version__} has {kind.__name__}({', '.join(found)}), "
                    f"expected ({', '.join(expected)}); install diffusers 0.42, for which the substitution was written"
                )

    def arrange(self, transformer: Any) -> None:  # noqa: B027  most models need none
        """Move weights to where the substitution reads them best, with the same values; for good, and before any CUDA graph."""

    @contextlib.contextmanager
    def substituted(self, transformer: Any, calls: OpCalls) -> Iterator[None]:
        """The transformer with its fused ops, for the time of the block.

        Raises:
            UsageError: the installed diffusers has other classes than the substitution was written for.
        """
        self.require_known_classes()
        self.arrange(transformer)
        into = Substitution(transformer)
        try:
            self.substitute(transformer, calls, into)
            yield
        finally:
            into.undo()

    @abstractmethod
    def latents(self, shapes: Shapes, config: Mapping[str, Any], *, generator: torch.Generator) -> torch.Tensor:
        """Normal noise in the shape that the denoise loop holds, float32 on the generator's device."""

    @abstractmethod
    def conditioning(self, shapes: Shapes, config: Mapping[str, Any], *, dtype: torch.dtype, generator: torch.Generator) -> Conditioning:
        """Inputs beside the latents, as the model's pipeline makes them, with random text embeddings."""

    @abstractmethod
    def predict(self, transformer: Any, latents: torch.Tensor, timestep: torch.Tensor, conditioning: Conditioning) -> torch.Tensor:
        """The noise prediction of one denoise step, shaped as `latents`: all forwards, and the guidance that joins them."""

    @abstractmethod
    def scheduler(self, shapes: Shapes, config: Mapping[str, Any], steps: int, *, device: torch.device) -> Any:
        """diffusers' scheduler of the model's pipeline, with its timesteps set."""

    @abstractmethod
    def substitute(self, transformer: Any, calls: OpCalls, into: Substitution) -> None:
        """Put the fused ops into `transformer` through `into`; every op is called through `calls`."""

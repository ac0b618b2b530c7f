"""Fused ops in the place of a transformer's own: subclasses of diffusers' blocks, norms and processors, put in and taken out again."""

from __future__ import annotations

from typing import Any


class Substitution:
    """Replaces parts of one transformer in place, and puts them back."""

    def __init__(self, transformer: Any) -> None:
        self._undo: list[tuple[Any, type, tuple[str, ...]]] = []
        self._processors: list[tuple[Any, Any]] = []
        self._names = {id(module): name for name, module in transformer.named_modules()}
        self._transformer = transformer
        self._repeated = transformer.__dict__.get("_repeated_blocks")

    def place(self, module: Any) -> str:
        """Path of a module in the transformer, such as `transformer_blocks.3.attn`."""
        return str(self._names[id(module)])

    def swap(self, module: Any, kind: type, **attributes: Any) -> None:
        """Make `module` an instance of `kind`, a subclass of its class that overrides `forward`, with further `attributes`."""
        if not issubclass(kind, type(module)):
            raise TypeError(f"{kind.__name__} is no subclass of {type(module).__name__}")
        self._undo.append((module, type(module), tuple(attributes)))
        repeated = getattr(self._transformer, "_repeated_blocks", None) or ()
        if type(module).__name__ in repeated and kind.__name__ not in repeated:  # `compile_repeated_blocks` finds blocks by these names
            object.__setattr__(self._transformer, "_repeated_blocks", [*repeated, kind.__name__])
        module.__class__ = kind
        for name, value in attributes.items():
            object.__setattr__(module, name, value)  # plain attributes: torch would register a module as a child

    def set_processor(self, attention: Any, processor: Any) -> None:
        """Give an attention module another processor, of a subclass of its processor's class."""
        if not isinstance(processor, type(attention.processor)):
            raise TypeError(f"{type(processor).__name__} is no subclass of {type(attention.processor).__name__}")
        self._processors.append((attention, attention.processor))
        attention.set_processor(processor)

    def undo(self) -> None:
        """Put everything back."""
        for module, kind, attributes in reversed(self._undo):
            module.__class__ = kind
            for name in attributes:
                del module.__dict__[name]
        for attention, processor in reversed(self._processors):
            attention.set_processor(processor)
        self._transformer.__dict__.pop("_repeated_blocks", None)
        if self._repeated is not None:
            self._transformer.__dict__["_repeated_blocks"] = self._repeated
        self._undo.clear()
        self._processors.clear()

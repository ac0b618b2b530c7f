"""Helpers for adapters to other libraries' kernels: find a library's function, and state which cases it does not take.

An adapter calls the library as its users do and copies no tensor itself. If the library would copy an input first, the adapter declines the
case or its note says so. docs/peers.md lists the library versions that the adapters were written for.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class PeerInterfaceError(ImportError):
    """An installed library has none of the functions that its adapter knows."""


@functools.cache
def library_function(*targets: str) -> Callable[..., Any]:
    """The first of `module:name` that the installed library has; several where it moved between versions, newest first.

    Imported at the first call and remembered, so that a timed call pays a look-up.  Variables of Triton that the import sets are put back.

    Raises:
        PeerInterfaceError: the library has none of them.
    """
    failures = []
    for target in targets:
        module, _, name = target.partition(":")
        try:
            with _tritons_variables_kept():
                found: Callable[..., Any] = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            failures.append(f"{target} ({type(error).__name__}: {error})")
        else:
            return found
    raise PeerInterfaceError(
        f"the installed version has none of the functions that this adapter knows: {'; '.join(failures)}; "
        "docs/peers.md lists the versions that it was written for"
    )


@contextmanager
def _tritons_variables_kept() -> Iterator[None]:
    """FlashInfer 0.7 names an assembler for Triton when it is imported: every kernel of the process would be compiled by it."""
    before = {name: value for name, value in os.environ.items() if name.startswith("TRITON_")}
    try:
        yield
    finally:
        for name in [name for name in os.environ if name.startswith("TRITON_") and name not in before]:
            del os.environ[name]
        os.environ.update(before)


def taken(*rules: tuple[bool, str]) -> bool | str:
    """The answer of a `supports`: True when every rule holds, else the text of the first broken rule."""
    return next((text for holds, text in rules if not holds), True)

"""The signature of an op's kernels in torch's schema language: the names of its arguments."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any


@functools.cache
def argument_names(schema: str) -> tuple[str, ...]:
    """Names of the arguments of `schema`, in order: `(Tensor(a!) q, *, float eps) -> ()` gives `("q", "eps")`."""
    return positional_names(schema) + keyword_names(schema)


def positional_names(schema: str) -> tuple[str, ...]:
    """Names of the arguments before the `*`: the tensors, by convention."""
    names = _names(schema)
    return names[: names.index("*")] if "*" in names else names


def keyword_names(schema: str) -> tuple[str, ...]:
    """Names of the keyword-only arguments."""
    names = _names(schema)
    return names[names.index("*") + 1 :] if "*" in names else ()


def refused_signature(kernel: str, function: Callable[..., Any], schema: str) -> str:
    """Why a kernel's function cannot be called as its op's schema says; empty if it can, or if it does not tell its parameters.

    Most often the annotation of its only parameter is missing: `def fused(call)` in place of `def fused(call: Arguments)`.
    """
    positional, keywords = positional_names(schema), keyword_names(schema)
    try:
        takes = inspect.signature(function)
    except (TypeError, ValueError):
        return ""
    try:
        takes.bind(*positional, **dict.fromkeys(keywords))
    except TypeError as error:
        spelled = ", ".join([*positional, *(["*", *keywords] if keywords else [])])
        return f"kernel {kernel} takes {takes}, expected (call: Arguments), or the arguments spelled out, ({spelled}): {error}"
    return ""


def _names(schema: str) -> tuple[str, ...]:
    inside = schema[schema.index("(") + 1 : schema.rindex("->")].rstrip().removesuffix(")")
    arguments = (part.split("=", 1)[0].strip() for part in _split_top_level(inside))
    return tuple(argument.rsplit(" ", 1)[-1] for argument in arguments if argument)


def _split_top_level(text: str) -> Sequence[str]:
    parts, depth, current = [], 0, ""
    for character in text:
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append(current)
            current = ""
        else:
            current += character
    return [*parts, current]

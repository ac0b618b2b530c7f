"""Random cases of ops' parameter spaces, and the suite file that holds them."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import UsageError
from ..registry import DeclaredOp, Op
from ..registry.declared import OpDeclaration
from ..schema import Case

MOST_TRIES = 1000
"""Draws of one case.  An op refuses up to nine in ten: frames that do not divide the tokens, heads that do not fit together."""
_PROBE = 5040
"""Tokens of which bytes are asked: divisible by most numbers of frames."""
_ALIGNMENTS = (64, 1)
"""Tokens of half the cases are a multiple of 64, as those of most models are; the others are any number."""


def random_cases(
    ops: Sequence[Op | DeclaredOp], *, suite: str, source: str = "", count: int, seed: int, at_least: int, at_most: int
) -> list[Case]:
    """`count` cases, of each op in turn, whose minimum bytes lie between two bounds: a run that ends early has measured all ops alike.

    Every case depends on `seed`, the bounds, its op and its number among the op's cases alone: more cases or other ops leave it as it is.
    Bytes are drawn on a logarithmic scale.

    Args:
        source: of every case, for the record: the command that draws them.

    Raises:
        UsageError: an op does not say which values a parameter takes, or has no case between the bounds.
    """
    declared = [op.declaration for op in ops]
    for one in declared:
        _require_space(one)
    cases = []
    for index in range(count):
        number, place = divmod(index, len(ops))
        op = ops[place]
        rng = random.Random(f"{seed} {op.name} {number}")
        params = _drawn(op, declared[place], rng, at_least, at_most)
        cases.append(Case(suite=suite, name=f"{op.name}_{number:03d}", op=op.name, params=params, source=source))
    return cases


def suite_text(suite: str, description: str, cases: Sequence[Case]) -> str:
    """The TOML file of a suite of `cases`."""
    lines = ["[suite]", f"name = {json.dumps(suite)}", f"description = {json.dumps(description)}"]
    for case in cases:
        params = ", ".join(f"{name} = {json.dumps(value)}" for name, value in case.params.items())
        lines += ["", "[[case]]", f"name = {json.dumps(case.name)}", f"op = {json.dumps(case.op)}", f"params = {{ {params} }}"]
        lines += [f"source = {json.dumps(case.source)}"] if case.source else []
    return "\n".join(lines) + "\n"


def _require_space(op: OpDeclaration) -> None:
    for name, default in op.params.items():
        if default == "required" and name not in op.space and name != op.tokens:
            example = f'space = {{"{name}": (64, 128)}}'
            raise UsageError(f"op {op.name} does not say which values {name} takes in a random case; add `{example}` to it in {op.file}")


def _drawn(op: Op | DeclaredOp, declared: OpDeclaration, rng: random.Random, at_least: int, at_most: int) -> dict[str, Any]:
    space, tokens = declared.space, declared.tokens
    for _ in range(MOST_TRIES):
        params = {name: rng.choice(rng.choice(groups)) for name, groups in space.items() if name != tokens}
        target, alignment = math.exp(rng.uniform(math.log(at_least), math.log(at_most))), rng.choice(_ALIGNMENTS)
        params = {name: value for name, value in params.items() if value is not None}
        if tokens:
            params = _with_tokens(op, tokens, params, target, alignment)
        size = _bytes(op, params)
        if size is not None and at_least <= size <= at_most:
            return params
    raise UsageError(
        f"op {op.name}: {MOST_TRIES} draws gave no case of {at_least / 1e6:g} to {at_most / 1e6:g} MB; choose wider bounds, or other ops"
    )


def _with_tokens(op: Op | DeclaredOp, name: str, params: Mapping[str, Any], target: float, alignment: int) -> dict[str, Any]:
    """`params` with as many tokens (in `name`) as move `target` bytes: bytes grow linearly with them.  Empty if the op refuses that."""
    first, second = (_bytes(op, {**params, name: tokens}) for tokens in (_PROBE, 2 * _PROBE))
    if first is None or second is None or second <= first:
        return {}
    each = (second - first) / _PROBE
    tokens = round((target - (first - each * _PROBE)) / each / alignment) * alignment
    return {name: max(1, tokens), **params}


def _bytes(op: Op | DeclaredOp, params: Mapping[str, Any]) -> int | None:
    """Bytes that any implementation must move; None where the op refuses the parameters."""
    return None if not params or op.refusal(params) is not None else int(op.facts(params).known("minimum_bytes"))

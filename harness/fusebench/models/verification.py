"""Whether a substituted model calls its ops where its sites say, by the preferred kernels, and as often as its suite says.

A function from recorded calls, sites and suite cases to findings; only `count_without_weights` runs a model.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, Literal

import msgspec

from ..registry import Collection, Op
from ..schema import Case
from .building import build
from .diffusion_model import DiffusionModel, Site
from .op_calls import EXTRA_CALLS, OpCall, OpCalls

NOT_COMPARED = ("eps", "mode", "position_offset", "index", "packed")
"""Parameters that a call and its case may differ in: they change values or strides, not the bytes that are read and written.  Whether q and
k are packed is up to the user: `fuse_qkv_projections` packs them."""
SAME_AS = {"kv_heads": "heads", "rope_dim": "head_dim"}
"""Sizes that a case may leave out, with the size that they then equal."""
Described = tuple[tuple[str, Any], ...]
"""The compared parameters of a call or a case, by name."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is not as it should be."""

    kind: Literal["fallback", "site", "undescribed", "weight"]
    """A call ran the split chain; a site was called too often or too seldom; no case describes a call; a case's weight is another."""

    where: str
    """The site, or the case's name in the suite."""

    text: str
    """What was found, what was expected, and the place in the model."""


def verify_calls(
    model: DiffusionModel,
    config: Mapping[str, Any],
    calls: Sequence[OpCall],
    *,
    device: str,
    cases: Sequence[Case] = (),
    ops: Mapping[str, Op] | None = None,
) -> tuple[Finding, ...]:
    """All findings on the calls of one denoise step.

    Args:
        config: constructor arguments of the transformer.  Stacks may have fewer blocks than `model.config`; the calls of each site then
            stand for those of the whole model.
        device: `cuda` or another kind.  Fused kernels need a GPU, so elsewhere a fallback is no finding.
        cases: the cases of the suite `models/NAME`; none for a tiny model, whose shapes no suite has.
        ops: the ops of these cases, by name.
    """
    fallbacks = fallback_findings(calls) if device == "cuda" else []
    findings = site_findings(calls, model.sites, config, forwards=model.forwards)
    silent = [site.name for site in model.sites if not site.calls(config)] if cases else []
    if cases and silent:
        text = "has no calls in stacks as short as these, so that they cannot be held against the suite; take 2 blocks or more of each"
        findings += [_site(name, text) for name in silent]
    elif cases and not findings:  # missing calls would be missing in the suite's counts too: one finding says it
        whole = {site.name: Fraction(site.calls(model.config), site.calls(config)) for site in model.sites}
        of_ops = [call for call in calls if call.op not in EXTRA_CALLS]
        findings = suite_findings(of_ops, cases, ops or {}, whole)
    return (*fallbacks, *findings)


def fallback_findings(calls: Sequence[OpCall]) -> list[Finding]:
    """Calls for which no kernel of the preferred role ran, by op and reason: `12 of 57 qknorm_rope calls fell back: strides`."""
    total = Counter(call.op for call in calls)
    fallen: dict[tuple[str, str], list[OpCall]] = defaultdict(list)
    for call in calls:
        if call.fallback:
            fallen[call.op, call.fallback].append(call)
    return [
        Finding(
            kind="fallback",
            where=", ".join(dict.fromkeys(call.site for call in group)),
            text=f"{len(group)} of {total[op]} {op} calls fell back: {reason}; they ran {group[0].kernel}, at {_places(group)}",
        )
        for (op, reason), group in fallen.items()
    ]


def site_findings(calls: Sequence[OpCall], sites: Sequence[Site], config: Mapping[str, Any], *, forwards: int) -> list[Finding]:
    """Sites that were called too often, too seldom or by another op, with the blocks where calls are missing."""
    by_site: dict[str, list[OpCall]] = defaultdict(list)
    for call in calls:
        by_site[call.site].append(call)
    findings = []
    for site in sites:
        found, expected = by_site.pop(site.name, []), forwards * site.calls(config)
        if other := sorted({call.op for call in found} - {site.op}):
            findings.append(_site(site.name, f"found calls of {', '.join(other)}, expected {site.op}; at {_places(found)}"))
        if len(found) != expected:
            where = _uneven(found, site, config)
            findings.append(_site(site.name, f"found {len(found)} {site.op} calls a step, expected {expected}{where}"))
    for name, found in by_site.items():
        findings.append(_site(name, f"found {len(found)} calls at {_places(found)}, expected none: the model has no such site"))
    return findings


def suite_findings(
    calls: Sequence[OpCall], cases: Sequence[Case], ops: Mapping[str, Op], whole: Mapping[str, Fraction] | None = None
) -> list[Finding]:
    """Calls that no case describes, and cases whose weight is not the number of their calls.  Cases of a variant are left out.

    A call belongs to the cases of its op with the same parameters, except for those of NOT_COMPARED.  A modulation is compared by the rows
    that it holds, so that one row for the only sample of a batch is the same as one row for all.

    Args:
        whole: calls of the whole model for one call of this one, by site; 1 for a site that is not named.
    """
    described: dict[tuple[str, Described], list[Case]] = defaultdict(list)
    for case in cases:
        if not case.variant:
            described[case.op, describe(ops[case.op].parse_params(case.params))].append(case)
    counted: dict[tuple[str, Described], Counter[str]] = defaultdict(Counter)
    for call in calls:
        counted[call.op, describe(call.params)][call.site] += 1
    scale = dict(whole or {})
    found = {key: {site: count * scale.get(site, Fraction(1)) for site, count in sites.items()} for key, sites in counted.items()}
    findings = []
    for (op, params), sites in found.items():
        if (op, params) not in described:
            text = f"{_number(sum(sites.values()))} {op} calls a step have no case in the suite: {_told(params)}"
            findings.append(Finding(kind="undescribed", where=", ".join(sites), text=f"{text}; {_nearest(op, params, described)}"))
    for key, group in described.items():
        weight, sites = sum(case.weight for case in group), found.get(key, {})
        if weight != sum(sites.values()):
            names = ", ".join(case.name for case in group)
            split = "; ".join(f"{_number(count)} at {site!r}" for site, count in sites.items())
            text = f"suite says {_number(weight)}, the model calls {_number(sum(sites.values()))}{f' ({split})' if split else ''}"
            findings.append(Finding(kind="weight", where=names, text=text))
    return findings


def describe(params: Any) -> Described:
    """The parameters of a call or a case that decide which bytes an op reads and writes."""
    fields = msgspec.structs.asdict(params)
    samples, tokens, frames = fields.get("batch", 1), fields.get("tokens", 1), fields.get("frames", 1)
    rows = {"scalar": "one value", "channel": 1, "batch": samples, "token": samples * tokens, "frame": samples * frames}
    found = {}
    for name, value in fields.items():
        if name in NOT_COMPARED or name == "frames":
            continue
        given = fields[SAME_AS[name]] if value is None and name in SAME_AS else value
        found[name] = rows.get(given, given) if isinstance(given, str) else given
    return tuple(found.items())


def count_without_weights(
    model: DiffusionModel, config: Mapping[str, Any], *, collection: Collection | None = None, tiny: bool = False
) -> list[OpCall]:
    """The calls of one denoise step in bfloat16 on torch's meta device, which computes shapes alone: no memory, no GPU, seconds.

    Dispatch runs the split chains there, so the calls' kernels and fallbacks say nothing.
    """
    import torch

    device, shapes, generator = torch.device("meta"), model.tiny_shapes if tiny else model.shapes, torch.Generator()
    transformer = build(model, config, device=device, dtype=torch.bfloat16)
    latents = model.latents(shapes, config, generator=generator).to(device, torch.bfloat16)
    conditioning = model.conditioning(shapes, config, dtype=torch.bfloat16, generator=generator)
    calls = OpCalls(collection=collection)
    with torch.no_grad(), model.substituted(transformer, calls), calls.record() as recorded:
        model.predict(transformer, latents, torch.zeros((), device=device), moved(dict(conditioning), device))
    return recorded


def moved(value: Any, device: Any) -> Any:
    if isinstance(value, dict):
        return {key: moved(each, device) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(moved(each, device) for each in value)
    return value.to(device) if hasattr(value, "to") else value


def _site(name: str, text: str) -> Finding:
    return Finding(kind="site", where=name, text=text)


def _places(calls: Iterable[OpCall]) -> str:
    """The first three modules of some calls."""
    places = list(dict.fromkeys(call.place for call in calls))
    return ", ".join(places[:3]) + (f" and {len(places) - 3} more" if len(places) > 3 else "")


def _uneven(calls: Sequence[OpCall], site: Site, config: Mapping[str, Any]) -> str:
    """Where calls of a site are missing: the blocks with the fewest of them."""
    if not calls:
        return ": the site is not substituted"
    count = Counter(call.place for call in calls)
    if not site.stack:
        return f"; calls at {_places(calls)}"
    block = re.compile(r"(?<=\.)\d+(?=\.|$)")
    template = next(iter(count))
    blocks = config[site.stack] + min(0, site.beyond)
    places = [block.sub(str(number), template, count=1) for number in range(blocks)]
    least = min(count[place] for place in places)
    fewest = [place for place in places if count[place] == least]
    if len(fewest) == len(places):
        return f"; {least} at each block"
    return f"; {least or 'none'} at {', '.join(fewest[:3])}" + (f" and {len(fewest) - 3} more" if len(fewest) > 3 else "")


def _nearest(op: str, params: Described, described: Mapping[tuple[str, Described], Sequence[Case]]) -> str:
    """The case of the op that differs least, and in what."""
    others = [(key[1], cases[0].name) for key, cases in described.items() if key[0] == op]
    if not others:
        return "the suite has no case of this op"
    found = dict(params)
    unlike, name = min((({key: value for key, value in other if found.get(key) != value}, name) for other, name in others), key=_size)
    return f"the nearest, {name}, has {_told(tuple(unlike.items()))}"


def _size(pair: tuple[dict[str, Any], str]) -> int:
    return len(pair[0])


def _told(params: Described) -> str:
    return ", ".join(f"{name} {value}" for name, value in params)


def _number(value: float | Fraction) -> str:
    return f"{float(value):g}"

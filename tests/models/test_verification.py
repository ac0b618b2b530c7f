"""Recorded calls of real models against their sites and suites, and every kind of finding on a planted defect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
import torch

from fusebench.config import find_project
from fusebench.models import linear_gelu
from fusebench.models.building import build, full_config
from fusebench.models.catalogue import load_model
from fusebench.models.op_calls import EXTRA_CALLS, OpCall, OpCalls
from fusebench.models.verification import Finding, count_without_weights, describe, verify_calls
from fusebench.models.work import ModelTask, work
from fusebench.registry import Collection, Kernel, kernel, load_collection
from fusebench.schema import Case, Role
from fusebench.suites import load_suite

pytest.importorskip("diffusers")

from diffusers.models.transformers.transformer_qwenimage import QwenImageTransformerBlock

NAMES = (
    "flux1_dev",
    "flux2_dev",
    "hunyuan_video",
    "wan2_1_t2v_1_3b",
    "wan2_1_t2v_14b",
    "wan2_2_ti2v_5b",
    "qwen_image",
    "qwen_image_edit_2511",
    "z_image_turbo",
)
SHORT = 2
"""Blocks of each stack where a short model stands for the whole one."""


@pytest.fixture(scope="module")
def collection() -> Collection:
    return load_collection(find_project().kernels)


@pytest.fixture(scope="module")
def flux_calls(collection: Collection) -> list[OpCall]:
    """Calls of FLUX.1-dev at its real shapes, as a GPU's fused kernels would take them, with two blocks of each stack."""
    model = load_model("flux1_dev")
    calls = count_without_weights(model, short_config("flux1_dev"), collection=collection)
    return [msgspec.structs.replace(call, kernel="fused@1", fallback="") for call in calls]


def short_config(name: str) -> dict[str, Any]:
    model = load_model(name)
    return full_config(model, layers=dict.fromkeys(model.stacks, SHORT))


def cases_of(name: str, collection: Collection) -> tuple[Case, ...]:
    return load_suite(f"models/{name}", find_project(), collection.ops).cases


def found_in(calls: Sequence[OpCall], collection: Collection, *, cases: Sequence[Case] = (), device: str = "cuda") -> list[Finding]:
    model = load_model("flux1_dev")
    return list(verify_calls(model, short_config("flux1_dev"), calls, device=device, cases=cases, ops=collection.ops))


def cases_from(calls: Sequence[OpCall]) -> list[Case]:
    """A case per kind of call of an op, with the weights of the whole FLUX.1-dev."""
    weights = load_model("flux1_dev").expected_calls(load_model("flux1_dev").config)
    kinds: dict[Any, list[OpCall]] = {}
    for call in {call.site: call for call in calls if call.op not in EXTRA_CALLS}.values():
        kinds.setdefault((call.op, describe(call.params)), []).append(call)
    return [
        Case(
            suite="s",
            name=first.site,
            op=first.op,
            params=msgspec.to_builtins(first.params),
            weight=sum(weights[call.site] for call in (first, *others)),
        )
        for first, *others in kinds.values()
    ]


def test_calls_as_they_should_be(flux_calls: list[OpCall], collection: Collection) -> None:
    assert found_in(flux_calls, collection, cases=cases_from(flux_calls)) == []


def test_a_case_matches_by_the_rows_of_its_modulation_and_its_own_defaults(flux_calls: list[OpCall], collection: Collection) -> None:
    qk = next(call for call in flux_calls if call.op == "qknorm_rope" and call.params.tokens == 512)
    params = {"tokens": 512, "heads": 24, "head_dim": 128, "layout": "interleaved", "eps": 1e-5}
    assert describe(collection.ops["qknorm_rope"].parse_params(params)) == describe(qk.params)
    norm = next(call for call in flux_calls if call.op == "norm_scale_shift" and call.params.tokens == 512)
    assert norm.params.modulation == "channel"
    for form, equal in (("batch", True), ("token", False), ("scalar", False)):
        params = {"tokens": 512, "hidden": 3072, "modulation": form}
        assert (describe(collection.ops["norm_scale_shift"].parse_params(params)) == describe(norm.params)) is equal, form


def test_a_layer_that_is_not_replaced_is_named(flux_calls: list[OpCall], collection: Collection) -> None:
    missing = [call for call in flux_calls if call.place != "transformer_blocks.1.attn"]
    findings = found_in(missing, collection, cases=cases_from(flux_calls))
    text = "found 1 qknorm_rope calls a step, expected 2; none at transformer_blocks.1.attn"
    assert [(one.kind, one.where, one.text) for one in findings] == [
        ("site", "double block: image q and k", text),
        ("site", "double block: text q and k", text),
    ]


def test_a_site_that_is_not_substituted_or_not_known(flux_calls: list[OpCall], collection: Collection) -> None:
    last = "last single block: residual, output norm"
    without = [call for call in flux_calls if call.site != last]
    assert [one.text for one in found_in(without, collection)] == [
        "found 0 residual_gate_norm_scale_shift calls a step, expected 1: the site is not substituted"
    ]
    moved = [msgspec.structs.replace(call, site="elsewhere") if call.site == last else call for call in flux_calls]
    assert [one.text for one in found_in(moved, collection)][1:] == [
        "found 1 calls at single_transformer_blocks.1, expected none: the model has no such site"
    ]
    other = [msgspec.structs.replace(call, op="norm_tanh_mul_add") if call.site == last else call for call in flux_calls]
    assert found_in(other, collection)[0].text.startswith(
        "found calls of norm_tanh_mul_add, expected residual_gate_norm_scale_shift; at single_transformer_blocks.1"
    )


def test_a_site_that_the_last_block_does_not_have(collection: Collection) -> None:
    model = load_model("wan2_1_t2v_1_3b")
    site, config = "block: feed-forward residual, norm1 of the next", full_config(model, tiny=True)
    calls = count_without_weights(model, config, collection=collection, tiny=True)
    assert verify_calls(model, config, calls, device="cuda", ops=collection.ops)[0].kind == "fallback"  # as on every CPU
    assert verify_calls(model, config, calls, device="meta") == ()
    (one,) = verify_calls(model, config, [call for call in calls if (call.site, call.place) != (site, "blocks.1")], device="meta")
    assert one.text == "found 2 residual_gate_norm_scale_shift calls a step, expected 4; none at blocks.1"
    single = {**config, "num_layers": 1}
    calls = count_without_weights(model, single, collection=collection, tiny=True)
    (one,) = verify_calls(model, single, calls, device="meta", cases=cases_of("wan2_1_t2v_1_3b", collection), ops=collection.ops)
    assert one.where == site
    assert one.text.startswith("has no calls in stacks as short as these")


def test_a_wrong_weight_and_a_case_that_nobody_calls(flux_calls: list[OpCall], collection: Collection) -> None:
    cases = [
        msgspec.structs.replace(case, weight=39) if case.name == "double block: image residual, norm2" else case
        for case in cases_from(flux_calls)
    ]
    text = (
        "suite says 39, the model calls 38 (19 at 'double block: image residual, norm2'; 18 at 'double block: image feed-forward residual, "
        "norm1 of the next'; 1 at 'last single block: residual, output norm')"
    )
    assert [(one.kind, one.text) for one in found_in(flux_calls, collection, cases=cases)] == [("weight", text)]
    extra = Case(suite="s", name="more", op="norm_scale_shift", params={"tokens": 9, "hidden": 3072}, weight=3)
    variant = msgspec.structs.replace(extra, name="half", variant="tp2")
    findings = found_in(flux_calls, collection, cases=[*cases_from(flux_calls), extra, variant])
    assert [(one.where, one.text) for one in findings] == [("more", "suite says 3, the model calls 0")]


def test_a_call_that_no_case_describes(flux_calls: list[OpCall], collection: Collection) -> None:
    cases = [case for case in cases_from(flux_calls) if case.name != "single block: residual, norm of the next"]
    (one,) = found_in(flux_calls, collection, cases=cases)
    assert (one.kind, one.where) == ("undescribed", "single block: residual, norm of the next")
    assert one.text.startswith(
        "37 residual_gate_norm_scale_shift calls a step have no case in the suite: batch 1, tokens 4608, hidden 3072"
    )
    assert one.text.endswith("the nearest, double block: image residual, norm2, has tokens 4096")


def test_fallbacks_are_counted_by_reason_unless_nothing_else_can_run(flux_calls: list[OpCall], collection: Collection) -> None:
    fallen = [
        msgspec.structs.replace(call, kernel="split_torch@1", fallback="strides") if call.site == "single block: q and k" else call
        for call in flux_calls
    ]
    (one,) = found_in(fallen, collection)
    assert one.kind == "fallback"
    assert one.text == (
        "2 of 6 qknorm_rope calls fell back: strides; they ran split_torch@1, "
        "at single_transformer_blocks.0.attn, single_transformer_blocks.1.attn"
    )
    assert found_in(fallen, collection, device="cpu") == []


class OnCpu:
    """The project's kernels, with one fused kernel per op that runs on a CPU and takes q and k of one projection alone."""

    def __init__(self, collection: Collection) -> None:
        self._collection, self.op, self.kernel, self.roots = collection, collection.op, collection.kernel, collection.roots

    def kernels_of(self, op: str, *, choices: bool = False) -> list[Kernel]:
        split = self._collection.kernel(f"{op}/split_torch@1").function

        def fused(*args: Any, **kwargs: Any) -> Any:
            made = split(*args, **kwargs)
            for target, value in zip(args, made, strict=False) if self.op(op).in_place else ():
                target.copy_(value)
            return None if self.op(op).in_place else made

        planted = kernel(op, "planted", version=1, role=str(Role.FUSED), language="torch")(fused)
        planted.op = self.op(op)
        planted.supports(lambda params: getattr(params, "packed", True) or "strides: q and k lie apart")
        return [planted]


@torch.no_grad()
def test_planted_in_a_real_model_one_block_left_alone_and_one_with_projections_apart(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear_gelu, "DEVICES", ("cpu",))
    model = load_model("qwen_image")
    config = full_config(model, tiny=True)
    transformer = build(model, config, device=torch.device("cpu"), dtype=torch.bfloat16)
    generator = torch.Generator().manual_seed(0)
    latents = model.latents(model.tiny_shapes, config, generator=generator).to(torch.bfloat16)
    conditioning = model.conditioning(model.tiny_shapes, config, dtype=torch.bfloat16, generator=generator)
    first, second = transformer.transformer_blocks
    calls = OpCalls(collection=OnCpu(collection))  # type: ignore[arg-type]
    with model.substituted(transformer, calls), calls.record() as recorded:
        model.predict(transformer, latents, torch.tensor(500.0), conditioning)
        assert verify_calls(model, config, recorded, device="cuda") == ()
        recorded.clear()
        second.__class__ = LeftAlone
        first.attn.to_q = torch.nn.Sequential(first.attn.to_q)  # as an adapter: no plain layer, so that it is called by itself
        model.predict(transformer, latents, torch.tensor(500.0), conditioning)
    findings = verify_calls(model, config, recorded, device="cuda")
    assert findings[0].text == (
        "4 of 8 qknorm_rope calls fell back: qknorm_rope/planted@1: strides: q and k lie apart; "
        "they ran qknorm_rope/split_torch@1, at transformer_blocks.0.attn"
    )
    assert [one.text.partition("; ")[2] for one in findings[1:]] == ["none at transformer_blocks.1"] * 4


class LeftAlone(QwenImageTransformerBlock):
    """diffusers' own block, among blocks that take their modulations made ahead."""

    def __call__(self, *args: Any, temb: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, temb=temb.tensor, **kwargs)


@pytest.mark.parametrize("name", NAMES)
def test_suite_against_the_model(name: str, collection: Collection) -> None:
    check_suite(name, short_config(name), collection)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", NAMES)
def test_suite_against_the_whole_model(name: str, collection: Collection) -> None:
    check_suite(name, full_config(load_model(name)), collection)


def check_suite(name: str, config: dict[str, Any], collection: Collection) -> None:
    calls = count_without_weights(load_model(name), config, collection=collection)
    for call in {(call.op, call.params): call for call in calls if call.op not in EXTRA_CALLS}.values():
        fused = [each for each in collection.kernels_of(call.op) if each.role is Role.FUSED]
        assert any(each.reason_unsupported(call.params) is None for each in fused), f"{call.site}: no fused kernel takes {call.params}"
    findings = verify_calls(load_model(name), config, calls, device="meta", cases=cases_of(name, collection), ops=collection.ops)
    assert [(one.kind, one.where, one.text) for one in findings] == []


def test_findings_reach_the_record(collection: Collection) -> None:
    case = Case(suite="s", name="more", op="norm_scale_shift", params={"tokens": 9, "hidden": 3072}, weight=3)
    roots = tuple(str(root) for root in collection.roots)
    task = ModelTask(
        model="z_image_turbo", device="cpu", variants=("fused",), kernels=roots, tiny=True, steps=0, budget_s=0.01, cases=(case,)
    )
    assert "more: suite says 3, the model calls 0" in work(task, lambda line: None).findings

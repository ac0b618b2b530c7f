"""The definition against Wan's own modules, what is refused, and the bytes and operations of a case."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
import torch

from fusebench.errors import KernelArgumentError

CPU = torch.device("cpu")
WAN = {"tokens": 32760, "heads": 12, "head_dim": 128}


def arguments_of(op: Any, params: Any) -> dict[str, Any]:
    return dict(op.arguments(params, op.buffers(params, device=CPU, generator=torch.Generator().manual_seed(7))))


@pytest.mark.parametrize("changes", [{}, {"batch": 2, "packed": True}, {"heads": 4, "kv_heads": 2, "head_dim": 80, "eps": 1e-3}])
def test_the_reference_is_a_norm_over_all_channels_then_a_complex_product_per_head(op: Any, parse: Any, changes: dict[str, Any]) -> None:
    params = parse(**changes)
    arguments = arguments_of(op, params)
    half = params.head_dim // 2
    table = arguments["cos_sin_cache"].double()
    turn = torch.complex(table[:, :half], table[:, half:]).repeat(params.batch, 1).unsqueeze(1)
    for name, output in op.reference(params, arguments).items():
        x, weight = arguments[name].double().flatten(1), arguments[f"{name}_weight"].double()
        y = (x / (x.pow(2).mean(-1, keepdim=True) + params.eps).sqrt() * weight).view(arguments[name].shape)
        due = torch.view_as_real(torch.view_as_complex(y.unflatten(-1, (half, 2)).contiguous()) * turn).flatten(-2)
        torch.testing.assert_close(output, due, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_split_chain_is_wans_own_bit_for_bit(collection: Any, op: Any, parse: Any, dtype: str) -> None:
    """diffusers' attention processor: `norm_q`, `norm_k`, then `apply_rotary_emb` with every cosine and sine twice."""
    wan = pytest.importorskip("diffusers.models.transformers.transformer_wan")
    params = parse(tokens=2 * 3 * 4, heads=2, head_dim=64, dtype=dtype)
    arguments = arguments_of(op, params)
    cos, sin = wan.WanRotaryPosEmbed(64, (1, 2, 2), 32)(torch.zeros(1, 1, 2, 6, 8))
    arguments["cos_sin_cache"] = torch.cat((cos[0, :, 0, ::2], sin[0, :, 0, ::2]), dim=-1)
    own = wan.WanAttention(128, heads=2, dim_head=64, eps=1e-6, processor=wan.WanAttnProcessor()).to(arguments["q"].dtype)
    due = {}

    def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **_: Any) -> torch.Tensor:
        due.update(q=query, k=key)
        return value

    projected = {"q": arguments["q"], "k": arguments["k"], "v": arguments["q"]}
    for name, x in projected.items():
        setattr(own, f"to_{name}", torch.nn.Sequential(_Constant(x.flatten(1).unsqueeze(0))))
    own.norm_q.weight.data, own.norm_k.weight.data = arguments["q_weight"], arguments["k_weight"]
    monkey = pytest.MonkeyPatch()
    with monkey.context() as patched, torch.no_grad():
        patched.setattr(wan, "dispatch_attention_fn", attention)
        own(torch.zeros(1, 24, 128, dtype=arguments["q"].dtype), rotary_emb=(cos, sin))
    outputs = collection.kernel("qknorm_across_heads_rope/split_torch@1")(**arguments)
    for name, output in zip(("q", "k"), outputs, strict=True):
        assert torch.equal(output, due[name].squeeze(0)), name


class _Constant(torch.nn.Module):
    def __init__(self, value: torch.Tensor) -> None:
        super().__init__()
        self._value = value

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._value


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": 0}, "tokens is 0"),
        ({"heads": 32, "kv_heads": 5}, r"kv_heads is 5; it must be positive and divide heads \(32\)"),
        ({"head_dim": 72}, "head_dim is 72; it must be one of 64, 80, 96, 128, 256"),
        ({"heads": 65}, "heads is 65; it must be at most 64 with head_dim 128"),
        ({"eps": 0.0}, "eps is 0.0"),
        ({"dtype": "float64"}, "dtype"),
        ({"rope_dim": 64}, "unknown field `rope_dim`"),
    ],
)
def test_an_impossible_case_is_refused_by_key_and_value(parse: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=message):
        parse(**changes)


@pytest.mark.parametrize("changes", [{}, {"batch": 2, "kv_heads": 1, "packed": True}, {"dtype": "float16", "cache_dtype": "activation"}])
def test_a_calls_arguments_amount_to_the_case_they_were_made_from(op: Any, parse: Any, changes: dict[str, Any]) -> None:
    params = parse(**changes)
    assert op.params_of(**arguments_of(op, params)) == msgspec.structs.replace(params, kv_heads=params.key_heads)


BAD: dict[str, tuple[str, Any, str, str]] = {
    "a weight of one head": ("q_weight", lambda a: a["q_weight"][:128], "[128]", "contiguous [384] in torch.bfloat16, or None"),
    "one weight alone": ("k_weight", lambda a: None, "None beside the other weight", "both weights or neither"),
    "a table that fits no sample": (
        "cos_sin_cache",
        lambda a: a["cos_sin_cache"][:2],
        "2 rows",
        "a number of rows that divides q's 3 tokens",
    ),
    "an empty table": ("cos_sin_cache", lambda a: a["cos_sin_cache"][:0], "0 rows", "a number of rows that divides"),
    "a table of half a head": ("cos_sin_cache", lambda a: a["cos_sin_cache"][:, :64].contiguous(), "[3, 64]", "contiguous [T, 128]"),
    "heads apart": ("q", lambda a: a["q"].new_ones(3, 6, 128)[:, ::2], "strides (768, 256, 1)", "heads packed within a token"),
    "too wide a row": ("k", lambda a: a["k"].new_ones(3, 65, 128), "[3, 65, 128]", "at most 8192 channels"),
    "no epsilon": ("eps", lambda a: 0.0, "0.0", "a positive finite number"),
}


@pytest.mark.parametrize("defect", BAD)
def test_a_bad_argument_is_refused_by_name(collection: Any, op: Any, parse: Any, defect: str) -> None:
    argument, make, found, accepted = BAD[defect]
    call = arguments_of(op, parse())
    call[argument] = make(call)
    message = rf"argument {argument}: found .*{re.escape(found)}.*; accepted is .*{re.escape(accepted)}"
    for refusing in (op.params_of, *(kernel for kernel in collection.kernels_of(op.name) if str(kernel.role) == "fused")):
        with pytest.raises(KernelArgumentError, match=message):
            refusing(**call)


def test_bytes_and_flops_of_wan_are_those_counted_by_hand(op: Any) -> None:
    params = op.parse_params(WAN)
    activations = 2 * (32760 * 12 * 128 * 2) * 2  # q and k, read and written, two bytes each
    assert op.minimum_bytes(params) == activations + 2 * 1536 * 2 + 32760 * 128 * 4 == 419_334_144
    assert op.bytes_written(params) == activations // 2
    # Per channel: square, add, scale, weight, and half of a pair's six; per token and tensor: mean, eps, reciprocal root.
    assert op.flops(params) == 32760 * 2 * (1536 * 7 + 3)
    both = op.parse_params(WAN | {"batch": 2, "kv_heads": 4, "cache_dtype": "activation", "affine": False})
    assert op.minimum_bytes(both) == 2 * 2 * 32760 * 16 * 128 * 2 + 32760 * 128 * 2  # samples share the table


def test_a_cases_label_names_what_differs_from_the_usual(op: Any) -> None:
    assert op.shape(op.parse_params(WAN)) == "32760x12x128 bf16"
    changes = {"batch": 2, "kv_heads": 4, "dtype": "float32", "packed": True, "affine": False}
    assert op.shape(op.parse_params(WAN | changes)) == "2x32760x12/4x128 fp32 packed no affine"

"""One declaration of an op's arguments gives its schema, checks, fake outputs, Params and the signature of its kernels."""

from __future__ import annotations

import inspect
from typing import Any, Literal

import msgspec
import pytest
import torch

import fusebench
from fusebench import axis, option, tensor
from fusebench.errors import KernelArgumentError, KernelDeclarationError
from fusebench.registry.arguments import taken_by


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    tokens: int
    hidden: int
    dtype: Literal["bfloat16", "float32"]
    eps: float
    affine: bool

    def __post_init__(self) -> None:
        if self.tokens > 100:
            raise ValueError(f"tokens is {self.tokens}; it must be at most 100")


class Arguments(
    fusebench.Arguments, axes={"N": "tokens", "D": axis("hidden", multiple_of=8, least=8, most=64)}, most_rows=1000, returns={"y": "x"}
):
    x: torch.Tensor = tensor("N D", last_stride_one=True)
    weight: torch.Tensor | None = tensor("D", dtype=("x", "float32"), contiguous=True)
    other: torch.Tensor = tensor(like="x")
    free: torch.Tensor
    eps: float = option(1e-6, positive=True)
    mode: Literal["plain", "wide"] = "plain"
    offset: int = option(0, least=0)
    exact: bool = False

    @staticmethod
    def plan(laid: Any) -> int:
        return int(laid.x.shape[0])

    @staticmethod
    def case(laid: Any) -> dict[str, Any]:
        return {"affine": laid.weight is not None}


class InPlace(fusebench.Arguments):
    q: torch.Tensor = tensor("N D", mutable=True)
    k: torch.Tensor | None = tensor("N D", mutable=True)
    factor: float


def call(**changes: Any) -> Arguments:
    x = torch.ones(4, 16)
    return Arguments(**{"x": x, "weight": torch.ones(16), "other": x, "free": torch.ones(3)} | changes)


def test_the_schema_is_torchs() -> None:
    assert Arguments.schema == (
        "(Tensor x, Tensor? weight, Tensor other, Tensor free, *, "
        "float eps=1e-06, str mode='plain', int offset=0, bool exact=False) -> Tensor"
    )
    assert InPlace.schema == "(Tensor(a!) q, Tensor(b!)? k, *, float factor) -> ()"
    for schema in (Arguments.schema, InPlace.schema):
        torch._C.parse_schema(f"a::b{schema}")


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "rank": (
        {"x": torch.ones(16)},
        r"x: found \[16\] in torch.float32; accepted is \[N, D\] in bfloat16, float16 or float32, D a",
    ),
    "size": ({"x": torch.ones(4, 12), "other": torch.ones(4, 12)}, "x: found .*; accepted is .* D a multiple of 8 from 8 to 64"),
    "dtype": ({"x": torch.ones(4, 16).double()}, "x: found .* in torch.float64"),
    "stride": ({"x": torch.ones(4, 32)[:, ::2]}, r"x: found strides \(32, 2\); accepted is a last stride of 1"),
    "rows": ({"x": torch.ones(1, 8).expand(1001, 8)}, "x: found 1001 rows; accepted is at most 1000"),
    "another size of a bound axis": (
        {"weight": torch.ones(8)},
        r"weight: found \[8\] .*; accepted is contiguous \[16\] in float32, or",
    ),
    "gaps": ({"weight": torch.ones(32)[::2]}, r"weight: found .* with strides \(2,\); accepted is contiguous \[16\]"),
    "shape of another": ({"other": torch.ones(4, 8)}, r"other: found \[4, 8\] .*; accepted is \[4, 16\] in torch.float32, like x"),
    "dtype of another": ({"other": torch.ones(4, 16).half()}, "other: found .*torch.float16"),
    "device": ({"free": torch.ones(3, device="meta")}, "free: found device meta; accepted is cpu, like x"),
    "choice": ({"mode": "odd"}, "mode: found 'odd'; accepted is 'plain' or 'wide'"),
    "sign": ({"eps": 0.0}, "eps: found 0.0; accepted is a positive finite number"),
    "minimum": ({"offset": -1}, "offset: found -1; accepted is zero or more"),
}


@pytest.mark.parametrize("defect", BAD)
def test_a_call_that_breaks_a_declared_rule_is_refused_by_name(defect: str) -> None:
    changes, message = BAD[defect]
    for _ in range(2):  # the second time from the cache
        with pytest.raises(KernelArgumentError, match=f"op: argument {message}"):
            call(**changes).checked()
        with pytest.raises(KernelArgumentError, match=f"op: argument {message}"):
            call(**changes).params(Params)


def test_a_good_call_gives_the_ops_plan_and_params() -> None:
    assert call().checked() == 4
    assert call(weight=None).params(Params) == Params(tokens=4, hidden=16, dtype="float32", eps=1e-6, affine=False)
    empty = torch.ones(0, 16)
    assert call(x=empty, other=empty).params(Params).tokens == 1, "an empty batch is a call like any other"
    long = torch.ones(101, 16)
    with pytest.raises(KernelArgumentError, match="op: tokens is 101; it must be at most 100"):
        call(x=long, other=long).params(Params)


def test_outputs_are_allocated_as_declared() -> None:
    x = torch.ones(4, 32, dtype=torch.bfloat16)[:, :16]
    y = call(x=x).allocate()
    assert (y.shape, y.dtype, y.is_contiguous()) == (x.shape, x.dtype, True)
    assert InPlace(x, None, factor=1.0).allocate() is None


def test_a_kernel_of_one_object_has_the_declared_signature_and_is_traced() -> None:
    def body(call: Arguments) -> torch.Tensor:
        return call.x * call.eps

    assert taken_by(body) is Arguments
    assert taken_by(lambda x: x) is None
    bound = Arguments.bind(body)
    assert str(inspect.signature(bound)) == "(x, weight, other, free, *, eps=1e-06, mode='plain', offset=0, exact=False)"
    x = torch.ones(2)
    traced = torch.compile(bound, fullgraph=True, backend="eager")
    assert torch.equal(traced(x, None, x, x, eps=2.0), bound(x, None, x, x, eps=2.0))
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'free'"):
        bound(x, None, x)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"eps": (float, 1e-6)}, "declares no tensor"),
        ({"eps": (float, 1e-6), "x": ("torch.Tensor", tensor())}, "tensors come before options"),
        ({"x": ("torch.Tensor", tensor(like="y"))}, "names 'y'; the tensors are x"),
        ({"x": ("torch.Tensor", tensor()), "kind": (list, None)}, "an option is a float, int, bool, str or a Literal"),
        ({"plan": ("torch.Tensor", tensor())}, "is a name of Arguments itself"),
    ],
)
def test_a_declaration_that_cannot_be_is_refused(body: dict[str, tuple[Any, Any]], message: str) -> None:
    namespace: dict[str, Any] = {name: value for name, (_, value) in body.items()}
    annotations = {name: annotation for name, (annotation, _) in body.items()}
    with pytest.raises(KernelDeclarationError, match=message):
        type("Bad", (fusebench.Arguments,), {**namespace, "__annotations__": annotations, "__module__": __name__})

"""The float64 reference against the operator's definition, written out row by row with NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

CPU = torch.device("cpu")


def inputs(op: Any, params: Any) -> dict[str, Any]:
    return dict(op.arguments(params, op.buffers(params, device=CPU, generator=torch.Generator().manual_seed(7))))


def definition(arguments: dict[str, Any], b: int, t: int, eps: float) -> dict[str, np.ndarray]:
    """The outputs of token t of sample b."""
    number = 0 if arguments["index"][b, t] == 0 else 1
    scale, shift, gate = (arguments[f"{kind}{number}"][b].astype(np.float64) for kind in ("scale", "shift", "gate"))
    v = arguments["x"][b, t].astype(np.float64)
    deviation = v - sum(v) / len(v)
    y = deviation / np.sqrt(sum(deviation * deviation) / len(v) + eps)
    if arguments["weight"] is not None:
        y = y * arguments["weight"] + arguments["bias"]
    return {"y": y * (1.0 + scale) + shift, "gate_out": gate}


@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("index", ["step", "zeros", "ones", "alternating", "random"])
def test_the_reference_is_the_definition(op: Any, parse: Any, index: str, affine: bool, strided: bool) -> None:
    params = parse(batch=2, tokens=4, hidden=16, index=index, affine=affine, strided=strided, eps=1e-3)
    arguments = inputs(op, params)
    found = op.reference(params, arguments)
    assert set(found) == set(op.outputs)
    plain = {
        name: value if not isinstance(value, torch.Tensor) else value.double().numpy() if value.is_floating_point() else value.numpy()
        for name, value in arguments.items()
    }
    for b in range(2):
        for t in range(4):
            for name, due in definition(plain, b, t, 1e-3).items():
                np.testing.assert_allclose(found[name][b, t].numpy(), due, rtol=1e-12, atol=1e-13, err_msg=name)


def test_the_reference_leaves_its_arguments_alone(op: Any, parse: Any) -> None:
    params = parse(affine=True)
    arguments = inputs(op, params)
    before = {name: value.clone() for name, value in arguments.items() if isinstance(value, torch.Tensor)}
    op.reference(params, arguments)
    assert all(torch.equal(arguments[name], value) for name, value in before.items())


def test_whatever_is_not_zero_is_set_one(op: Any, parse: Any) -> None:
    params = parse(tokens=4, index_dtype="int64")
    arguments = inputs(op, params) | {"index": torch.tensor([[0, 2**32, -1, 7]])}
    gate_out = op.reference(params, arguments)["gate_out"]
    due = torch.stack([arguments[f"gate{number}"][0] for number in (0, 1, 1, 1)])
    assert torch.equal(gate_out[0], due.double())

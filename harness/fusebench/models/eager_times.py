"""The time of eager torch's launches in the split model's step, and of those that the fused model leaves, by a stored run's torch chains.

Makes the file that explanations of a results folder read; it needs torch and diffusers, and no GPU:

    python -m fusebench.models.eager_times results
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from ..config import find_project
from ..errors import FusebenchError, UsageError
from ..registry import Collection, load_collection
from ..schema import Case, Run, Status
from ..schema.models import EagerFile, EagerTimes, ModelRecord
from ..store.baselines import load_baseline
from ..store.model_folder import newest_models
from . import linear_gelu
from .building import build, full_config
from .catalogue import load_model
from .denoise import Denoising
from .diffusion_model import DiffusionModel, Shapes
from .measuring.eager_launches import Amounts, Costs, Tracer, fit_costs, traced
from .measuring.explanation import TORCH
from .op_calls import OpCall, OpCalls, SiteOp
from .silu_product import SILU_PRODUCT
from .stored import EAGER_FILE

HOST = torch.device("cpu")
ANY_TIMESTEP = 500.0
"""A step launches the same at each."""
COST_OF_FLOP = {"float32": 989.4 / 66.9}
"""Time of a product's operation in the time of one in bfloat16 or float16, by the peaks of H100 and H200 in NVIDIA's data sheets, TFLOP/s
without sparsity.  Torch multiplies float32 outside of tensor cores unless `allow_tf32` is set, and diffusers does not set it."""


class _Unseen:
    """A `SiteOp` whose launches the tracer does not note: a stored run holds its kernel's time.

    Args:
        streams: whether it is an extra call of one launch instead, which no stored run holds, and which reads and writes in order.
    """

    def __init__(self, op: SiteOp, tracer: Tracer, *, streams: bool) -> None:
        self._op, self._tracer, self._streams = op, tracer, streams
        self.takes_packed = op.takes_packed

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self._tracer.unseen():
            made = self._op(*args, **kwargs)
        if self._streams:
            self._tracer.note({"launch": 1, "stream": sum(one.numel() * one.element_size() for one in (*args, made)) / 1e6})
        return made


class _UnseenCalls(OpCalls):
    def __init__(self, tracer: Tracer, collection: Collection) -> None:
        super().__init__(collection=collection)
        self._tracer = tracer

    def at(self, op: str, site: str, place: str) -> Any:
        return _Unseen(super().at(op, site, place), self._tracer, streams=op == SILU_PRODUCT)


@contextlib.contextmanager
def _plain_layers() -> Iterator[None]:
    """Linear layers pass for those of a GPU, for the time of the block: a fake weight is no `Parameter`, and lies nowhere in memory."""

    def reason(layer: Any) -> str:
        return "the block has no such layer" if layer is None else ""

    streams = importlib.import_module(f"{__package__}.configurations.streams")
    with (
        mock.patch.object(linear_gelu, "DEVICES", (HOST.type,)),
        mock.patch.object(linear_gelu, "reason_of_layer", reason),
        mock.patch.object(streams, "reason_of_layer", reason),
        mock.patch.object(streams, "_adjacent", return_value=False),
    ):
        yield


def chain_costs(stored: Run, collection: Collection) -> Costs:
    """The costs of launches by the times of a stored run's torch chains, of all suites: in those of models, norms of
    heads always come with concatenations, so that they alone do not tell the two apart."""
    times = {
        result.case_key: result.measurement.time_us.value
        for result in stored.results
        if result.kernel.partition("/")[2] == TORCH and result.status is Status.MEASURED and result.measurement is not None
    }
    cases = [one.case for one in stored.cases if one.case.key in times]
    return fit_costs((chain_amounts(collection, case), times[case.key]) for case in cases)


def chain_amounts(collection: Collection, case: Case) -> Amounts:
    """The launches of an op's torch chain on one case."""
    op, chain = collection.ops[case.op], collection.kernels[f"{case.op}/{TORCH}"]
    params = op.Params(**case.params)
    with FakeTensorMode(allow_non_fake_inputs=True):
        arguments = op.arguments(params, op.buffers(params, device=HOST, generator=torch.Generator().manual_seed(0)))
        return traced(lambda: chain(**arguments)).total()


def eager_times(model: DiffusionModel, layers: Mapping[str, int], costs: Costs, collection: Collection) -> EagerTimes:
    """Split and fused steps of a model with stacks of `layers` blocks, at its published shapes in bfloat16."""
    config = full_config(model, layers=layers)
    split, _ = step_amounts(model, config, model.shapes)
    left, noted = step_amounts(model, config, model.shapes, fused=collection)
    moved = Counter[str]()
    for call in noted:
        moved[call.site] += call.minimum_bytes
    split_us, left_us = ({place: costs.time_us(found) for place, found in one.amounts.items()} for one in (split, left))
    before, after = (sum(COST_OF_FLOP.get(dtype, 1.0) * flops for dtype, flops in one.product_flops.items()) for one in (split, left))
    return EagerTimes(
        layers=dict(layers), moved_bytes=dict(moved), split_us=split_us, left_us=left_us, products_left_out=1 - after / before
    )


def step_amounts(
    model: DiffusionModel, config: Mapping[str, Any], shapes: Shapes, *, fused: Collection | None = None
) -> tuple[Tracer, list[OpCall]]:
    """The launches of one step of the model as diffusers runs it, or with the ops of `fused`, whose calls are noted in their place."""
    tracer, noted = Tracer(), list[OpCall]()
    with FakeTensorMode(allow_non_fake_inputs=True), contextlib.ExitStack() as stack:
        transformer = build(model, config, device=HOST, dtype=torch.bfloat16)
        denoising = Denoising(model, config, shapes, device=HOST, dtype=torch.bfloat16)
        predict, latents, timestep = denoising.predictor(transformer), denoising.noise.to(torch.bfloat16), torch.tensor(ANY_TIMESTEP)
        if fused is not None:
            calls = _UnseenCalls(tracer, fused)
            stack.enter_context(_plain_layers())
            stack.enter_context(model.substituted(transformer, calls))
            noted = stack.enter_context(calls.record())
        traced(lambda: predict(latents, timestep), transformer=transformer, tracer=tracer)
    return tracer, noted


def eager_file(records: Mapping[str, ModelRecord], stored: Run, collection: Collection) -> EagerFile:
    """Times for the models of `records`, at the stacks that they ran."""
    costs = chain_costs(stored, collection)
    models = {name: eager_times(load_model(name), record.layers, costs, collection) for name, record in sorted(records.items())}
    return EagerFile(stored=stored.id, costs_us=dict(costs.by_kind), scatter=costs.scatter, models=models)


def main(arguments: list[str]) -> None:
    """Write the file of the models stored in a results folder, all of one GPU model, by its baseline.

    Raises:
        UsageError: no folder is named, or it lacks records or the baseline of their GPU model.
    """
    if len(arguments) != 1:
        raise UsageError("expected one argument, the folder of results: `python -m fusebench.models.eager_times results`")
    results = Path(arguments[0])
    records = {name: record for name, (_, record) in newest_models(results / "models").items()}
    devices = sorted({str(record.environment.get("device_name", "no GPU")) for record in records.values()})
    if len(devices) != 1:
        raise UsageError(f"{results / 'models'} holds records of {', '.join(devices) or 'no model'}; expected those of one GPU model")
    stored = load_baseline(results, devices[0])
    if stored is None:
        raise UsageError(f"{results} holds no baseline of {devices[0]}: promote a run first")
    found = eager_file(records, stored, load_collection(find_project().kernels, entry_points=False))
    (results / "models" / EAGER_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except FusebenchError as refused:
        sys.exit(f"error: {refused}")

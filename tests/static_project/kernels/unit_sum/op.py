"""unit_sum: divide every row by its sum, in place."""

import msgspec

from fusebench import Op, define_op


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    rows: int
    columns: int


@define_op
class UnitSum(Op):
    name = "unit_sum"
    Params = Params
    schema = "(Tensor(a!) x) -> ()"
    outputs = ("x",)
    in_place = True
    split_reference = "split@1"
    baselines = ("split@1",)

    def buffers(self, params, *, device, generator, magnitude=1.0):
        import torch

        return {"x": torch.rand((params.rows, params.columns), device=device, generator=generator) * magnitude}

    def arguments(self, params, buffers):
        return {"x": buffers["x"]}

    def reference(self, params, arguments):
        x = arguments["x"].double()
        return {"x": x / x.sum(dim=-1, keepdim=True)}

    def params_of(self, x):
        return Params(rows=x.shape[0], columns=x.shape[1])

    def minimum_bytes(self, params):
        return 8 * params.rows * params.columns

    def flops(self, params):
        return 2 * params.rows * params.columns

    def shape(self, params):
        return f"{params.rows}x{params.columns} fp32"

    def shrink(self, params, rows):
        return Params(rows=min(params.rows, rows), columns=params.columns)

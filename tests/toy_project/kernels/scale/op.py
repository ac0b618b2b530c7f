"""scale: multiply a vector in place.

The smallest op that the tests of discovery, dispatch and the command line can do with.
"""

import msgspec

from fusebench import Op, define_op
from fusebench.errors import KernelArgumentError


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    size: int

    def __post_init__(self):
        if self.size <= 0:
            raise ValueError(f"size is {self.size}; it must be positive")


@define_op
class Scale(Op):
    name = "scale"
    Params = Params
    schema = "(Tensor(a!) x, *, float factor=2.0) -> ()"
    outputs = ("x",)
    in_place = True
    split_reference = "split@1"
    baselines = ("split@1",)
    dispatch_order = ("fast",)
    parts = ("._parts:COPY",)

    def buffers(self, params, *, device, generator, magnitude=1.0):
        import torch

        return {"x": torch.randn(params.size, device=device, generator=generator) * magnitude}

    def arguments(self, params, buffers):
        return {"x": buffers["x"], "factor": 2.0}

    def reference(self, params, arguments):
        return {"x": arguments["x"].double() * arguments["factor"]}

    def params_of(self, x, *, factor=2.0):
        if x.dim() != 1:
            raise KernelArgumentError(f"scale: argument x: found {x.dim()} dimensions; accepted is one")
        return Params(size=x.shape[0])

    def minimum_bytes(self, params):
        return 8 * params.size

    def flops(self, params):
        return params.size

    def shape(self, params):
        return str(params.size)

    def shrink(self, params, rows):
        return Params(size=min(params.size, rows))

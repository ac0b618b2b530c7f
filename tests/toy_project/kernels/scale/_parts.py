"""The part of the op `scale` that a library computes: it copies and leaves the factor out."""

from fusebench import Part

COPY = Part(
    covers="copy only: no factor",
    reference=lambda params, arguments: {"x": arguments["x"].double()},
    split=lambda x, *, factor: (x.clone(),),
    minimum_bytes=lambda params: 2 * params.size,
)

"""Fused ops in a person's own transformer, by `fusebench.kernelize` and by the `kernels` library, without a network."""

from __future__ import annotations

import socket
import subprocess
import sys
from typing import Any

import pytest
import torch

import fusebench
from fusebench.errors import UnknownNameError, UsageError
from fusebench.models import hub_layers
from fusebench.models.building import build, full_config
from fusebench.models.catalogue import MODELS, TRANSFORMERS, load_model
from fusebench.models.kernelize import OTHER_NORM, Kernelized

pytest.importorskip("diffusers")

SEVEN = 7
"""Modulated norms of the tiny FLUX.1: two in each of two double-stream blocks, one in each of two single-stream blocks, and the last."""


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a test of kernelize opened a connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


class Example:
    """A tiny model, and one prediction of it."""

    def __init__(self, name: str, dtype: torch.dtype = torch.bfloat16, **config: Any) -> None:
        self.model = load_model(name)
        self.config = full_config(self.model, tiny=True) | config
        self.transformer = build(self.model, self.config, device=torch.device("cpu"), dtype=dtype)
        generator = torch.Generator().manual_seed(1)
        self.latents = self.model.latents(self.model.tiny_shapes, self.config, generator=generator).to(dtype)
        self._given = self.model.conditioning(self.model.tiny_shapes, self.config, dtype=dtype, generator=generator)

    @torch.no_grad()
    def predict(self, **also: Any) -> torch.Tensor:
        return self.model.predict(self.transformer, self.latents, torch.tensor(500.0), {**self._given, **also})


@pytest.fixture(scope="module")
def flux() -> Example:
    return Example("flux1_dev")


def test_one_line_fuses_every_site_and_is_undone(flux: Example) -> None:
    own = flux.predict()
    classes = [type(module) for module in flux.transformer.modules()]
    done = fusebench.kernelize(flux.transformer)
    assert {site: len(places) for site, places in done.replaced.items()} == flux.model.expected_calls(flux.config)
    assert done.replaced["single block: q and k"] == ("single_transformer_blocks.0.attn", "single_transformer_blocks.1.attn")
    with fusebench.count_calls() as counted:
        assert torch.equal(flux.predict(), own)
    assert sum(counted.values()) == sum(flux.model.expected_calls(flux.config).values())
    assert "needs a GPU" in done.fallbacks["qknorm_rope"][0], "on a CPU the split chain runs, and the result says so"
    assert "FluxTransformer2DModel: 23 calls of fused ops" in str(done)
    assert "fell back: qknorm_rope" in str(done)
    done.undo()
    assert [type(module) for module in flux.transformer.modules()] == classes
    assert torch.equal(flux.predict(), own)


def compile_blocks(transformer: Any) -> list[Any]:
    transformer.compile_repeated_blocks(fullgraph=True, backend="eager")
    return [module for module in transformer.modules() if module._compiled_call_impl is not None]


def test_repeated_blocks_compile_as_before(flux: Example) -> None:
    with fusebench.kernelize(flux.transformer):
        names = type(flux.transformer)._repeated_blocks
        assert set(flux.transformer._repeated_blocks) == {*names, "FusedDoubleBlock", "FusedSingleBlock"}
        compiled = compile_blocks(flux.transformer)
        assert len(compiled) == 4
        for module in compiled:
            module._compiled_call_impl = None
    assert "_repeated_blocks" not in vars(flux.transformer)


@pytest.mark.exhaustive
@pytest.mark.parametrize("how", ["kernelize", "library"])
def test_compiled_blocks_keep_the_bits_without_a_graph_break(how: str) -> None:
    example = Example("flux1_dev")
    own = example.predict()
    if how == "kernelize":
        fusebench.kernelize(example.transformer)
    else:
        library = pytest.importorskip("kernels")
        with hub_layers.offered(devices=("cpu",)):
            library.kernelize(example.transformer, mode=library.Mode.INFERENCE | library.Mode.TORCH_COMPILE, device="cpu")
    assert len(compile_blocks(example.transformer)) == 4
    assert torch.equal(example.predict(), own)


@pytest.mark.parametrize("name", ["qwen_image_edit_2511", "wan2_1_t2v_1_3b"])
def test_the_configuration_is_found_by_class_and_arguments(name: str) -> None:
    example = Example(name)
    with fusebench.kernelize(example.transformer) as done:
        forwards = example.model.forwards
        assert {site: forwards * len(places) for site, places in done.replaced.items()} == example.model.expected_calls(example.config)


def test_every_transformer_is_found() -> None:
    by_class = {name: load_model(name).transformer.__name__ for name in MODELS}
    assert set(by_class.values()) == set(TRANSFORMERS)
    for kind, names in TRANSFORMERS.items():
        assert all(by_class[name] == kind for name in names)


def other_transformer() -> torch.nn.Module:
    from diffusers.models.normalization import AdaLayerNormContinuous, AdaLayerNormZero, AdaLayerNormZeroSingle

    torch.manual_seed(0)
    return torch.nn.ModuleDict(
        {
            "first": AdaLayerNormZero(64, norm_type="fp32_layer_norm"),
            "classes": AdaLayerNormZero(64, num_embeddings=4),
            "single": AdaLayerNormZeroSingle(64),
            "last": AdaLayerNormContinuous(64, 64, elementwise_affine=False),
            "affine": AdaLayerNormContinuous(64, 64),
            "rms": AdaLayerNormContinuous(64, 64, norm_type="rms_norm"),
        }
    ).to(torch.bfloat16)


KEPT = {
    "classes": "it embeds timestep and class itself",
    "affine": "its LayerNorm has weights of its own",
    "rms": "its norm is RMSNorm",
}


def outputs(transformer: Any) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    x, emb = (torch.randn(shape, generator=generator).to(torch.bfloat16) for shape in ((2, 5, 64), (2, 64)))
    with torch.no_grad():
        found = [transformer["first"](x, emb=emb), transformer["single"](x, emb=emb)]
        found += [(transformer[name](x, emb),) for name in ("last", "affine", "rms")]
    return [tensor for one in found for tensor in one]


def test_norms_of_another_transformer_are_replaced_and_the_others_named() -> None:
    other = other_transformer()
    own = outputs(other)
    with fusebench.kernelize(other) as done:
        assert done.replaced == {OTHER_NORM: ("first", "single", "last")}
        assert {name: reason.partition(",")[0] for name, reason in done.kept.items()} == KEPT
        assert "kept rms: its norm is RMSNorm" in str(done)
        with fusebench.count_calls() as counted:
            assert all(map(torch.equal, outputs(other), own))
        assert sum(counted.values()) == 3
    assert all(map(torch.equal, outputs(other), own))


def refusal(transformer: Any) -> str:
    with pytest.raises(UsageError) as refused:
        fusebench.kernelize(transformer)
    return str(refused.value)


def test_what_cannot_be_fused_is_refused_and_left_alone(flux: Example) -> None:
    from diffusers.models.transformers.transformer_flux import FluxIPAdapterAttnProcessor

    class Pipeline:
        transformer = flux.transformer

    assert "found Pipeline, which is no torch module; pass its `transformer`" in refusal(Pipeline())
    assert "call kernelize first, then torch.compile" in refusal(torch.compile(flux.transformer, backend="eager"))
    assert "nothing to replace in Linear: it has no modulated norm" in refusal(torch.nn.Linear(2, 2))
    assert "nothing to replace" in refusal(torch.nn.ModuleDict({"rms": other_transformer()["rms"]}))
    with fusebench.kernelize(flux.transformer):
        assert "has fused ops already" in refusal(flux.transformer)
    assert "image_dim given, expected a model that attends to text alone" in refusal(Example("wan2_1_t2v_1_3b", image_dim=8).transformer)
    attention = flux.transformer.transformer_blocks[1].attn
    own, adapter = attention.processor, FluxIPAdapterAttnProcessor(128, 32)
    classes = [type(module) for module in flux.transformer.modules()]
    attention.set_processor(adapter)
    assert "FusedAttnProcessor is no subclass of FluxIPAdapterAttnProcessor" in refusal(flux.transformer)
    assert attention.processor is adapter
    attention.set_processor(own)
    assert [type(module) for module in flux.transformer.modules()] == classes


def test_a_place_without_ops_is_refused(flux: Example, monkeypatch: pytest.MonkeyPatch) -> None:
    def find_none(op: str, **_: Any) -> None:
        raise UnknownNameError("op", op, ())

    monkeypatch.setattr("fusebench.models.op_calls.dispatch", find_none)
    classes = [type(module) for module in flux.transformer.modules()]
    assert "unknown op 'qknorm_rope'; there are none. The ops of the working directory's project" in refusal(flux.transformer)
    assert [type(module) for module in flux.transformer.modules()] == classes


def test_the_kernels_library_replaces_the_norms(flux: Example) -> None:
    library = pytest.importorskip("kernels")
    from diffusers.models.normalization import AdaLayerNormZero

    own = flux.predict()
    inference = library.Mode.INFERENCE | library.Mode.TORCH_COMPILE
    try:
        with hub_layers.offered(devices=("cpu",)):
            library.kernelize(flux.transformer, mode=inference, device="cpu", use_fallback=False)
        replaced = [module for module in flux.transformer.modules() if "forward" in vars(module)]
        assert len(replaced) == SEVEN
        with fusebench.count_calls() as counted:
            assert torch.equal(flux.predict(), own)
        assert sum(counted.values()) == SEVEN
        assert not hasattr(AdaLayerNormZero, "kernel_layer_name"), "the class is marked after the block"
        with hub_layers.offered(devices=("cpu",)):
            library.kernelize(flux.transformer, mode=library.Mode.TRAINING, device="cpu")
        with fusebench.count_calls() as counted:
            assert torch.equal(flux.predict(), own)
        assert not counted, "no op has a backward: a module that is trained keeps its own forward"
    finally:
        for module in flux.transformer.modules():
            vars(module).pop("forward", None)


def test_the_kernels_library_leaves_norms_that_are_no_call_of_the_op() -> None:
    library = pytest.importorskip("kernels")
    other = other_transformer()
    own = outputs(other)
    with hub_layers.offered(devices=("cpu",)):
        library.kernelize(other, mode=library.Mode.INFERENCE, device="cpu")
    assert {name for name, module in other.named_children() if "forward" in vars(module)} == {"first", "single", "last"}
    assert all(map(torch.equal, outputs(other), own))


@pytest.mark.parametrize("op", hub_layers.FUNCTIONS)
def test_a_marked_function_with_an_ops_arguments_becomes_its_call(op: str) -> None:
    library = pytest.importorskip("kernels")
    from fusebench.registry.signature import keyword_names, positional_names

    schema = fusebench.dispatch(op).op.schema
    arguments = ", ".join([*positional_names(schema), "*", *(f"{name}=None" for name in keyword_names(schema))])
    scope: dict[str, Any] = {}
    exec(f"def {op}({arguments}): return None", scope)
    function = library.use_kernel_forward_from_hub(op)(scope[op])

    @library.use_kernelized_func(function)
    class Block(torch.nn.Module):
        pass

    block = Block()
    with library.use_kernel_mapping(hub_layers.mapping(devices=("cpu",))):
        library.kernelize(block, mode=library.Mode.INFERENCE, device="cpu", use_fallback=False)
    if op == "norm_scale_shift":
        x, scale = torch.randn(1, 3, 64), torch.randn(1, 1, 64)
        with fusebench.count_calls() as counted:
            y = function(x, None, None, scale, scale, eps=1e-6, norm="layer")
        assert torch.equal(y, fusebench.dispatch(op)(x, None, None, scale, scale, eps=1e-6, norm="layer"))
        assert [one.kernel.partition("/")[0] for one in counted] == [op]


def test_every_op_is_offered_as_a_function() -> None:
    from fusebench.config import find_project
    from fusebench.registry.collection import load_collection

    assert set(hub_layers.FUNCTIONS) == set(load_collection(find_project().kernels).ops)


def test_without_the_kernels_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kernels", None)
    with pytest.raises(UsageError, match=r"need the `kernels` library: .*pip install 'fusebench\[kernelize\]'"), hub_layers.offered():
        pass
    folder = type(sys)("kernels")
    folder.__path__ = ["kernels"]
    monkeypatch.setitem(sys.modules, "kernels", folder)
    with pytest.raises(UsageError, match=r"need the `kernels` library, found \['kernels'\]"), hub_layers.offered():
        pass


def test_importing_fusebench_imports_neither_torch_nor_kernels() -> None:
    code = "import fusebench, sys; fusebench.kernelize; print({'torch', 'diffusers', 'kernels'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
    assert Kernelized.__doc__


def test_a_float16_model_leaves_no_sum_that_diffusers_clips() -> None:
    """No op clips a sum before its norm: an overflow would reach the norm as infinity."""
    example = Example("flux1_dev", dtype=torch.float16)
    for block in (*example.transformer.transformer_blocks, *example.transformer.single_transformer_blocks):
        (block.proj_out if hasattr(block, "proj_out") else block.ff_context.net[2]).weight.data.mul_(1e5)
    own = example.predict()
    with fusebench.kernelize(example.transformer) as done:
        assert torch.equal(example.predict(), own)
    assert own.isfinite().all()
    assert "last single block: residual, output norm" not in done.replaced


def test_the_residuals_of_a_controlnet_are_added_between_blocks() -> None:
    example = Example("flux1_dev", dtype=torch.float32)
    rows, tokens = example.transformer.inner_dim, example.latents.shape[1]
    samples = [torch.randn(1, tokens, rows, generator=torch.Generator().manual_seed(3)) for _ in range(2)]
    given = {"controlnet_block_samples": samples, "controlnet_single_block_samples": samples}
    without, own = example.predict(), example.predict(**given)
    with fusebench.kernelize(example.transformer):
        fused = example.predict(**given)
    torch.testing.assert_close(fused, own, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(own, without, rtol=1e-2, atol=1e-2)

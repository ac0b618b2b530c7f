"""What the interpreter replaces in triton.language is the same once it is remembered, and is put back as before."""

from __future__ import annotations

import inspect
import types
from typing import Any

import pytest
import triton.language as tl
from triton.runtime import interpreter

from fusebench.accuracy.interpreter import install_remembered_builtins

NAMESPACES = {"tl": tl, "tensor": tl.tensor, "math": tl.math, "core": tl.core, "descriptor": tl.core.tensor_descriptor_base}


@pytest.fixture(autouse=True, scope="module")
def remembered() -> None:
    install_remembered_builtins()


@pytest.fixture
def scope() -> Any:
    found = interpreter._LangPatchScope()
    yield found
    found.restore()


def builtins_of(namespace: Any) -> dict[str, Any]:
    """What the interpreter looks for at every call, as triton itself looks for it."""
    return {name: member for name, member in inspect.getmembers(namespace) if tl.core.is_builtin(member)}


def replace(namespace: Any, scope: Any) -> None:
    interpreter._patch_builtin(namespace, interpreter.interpreter_builder, scope)


@pytest.mark.parametrize("name", NAMESPACES)
def test_exactly_the_builtins_are_replaced_once_and_come_back(scope: Any, name: str) -> None:
    namespace = NAMESPACES[name]
    before = builtins_of(namespace)
    replace(namespace, scope)
    changed = {attribute: original for _, attribute, original in scope._changes}
    assert changed == before
    assert builtins_of(namespace) == {}
    replace(namespace, scope)  # a device function called within the launch
    assert len(scope._changes) == len(before)
    scope.restore()
    assert builtins_of(namespace) == before


def test_the_language_has_builtins_to_replace() -> None:
    assert {"load", "store", "arange"} <= builtins_of(tl).keys()


def test_a_namespace_of_its_own_is_looked_through_as_ever(scope: Any) -> None:
    namespace = types.ModuleType("extra")
    vars(namespace).update(load=tl.load, other=1)
    replace(namespace, scope)
    assert [attribute for _, attribute, _ in scope._changes] == ["load"]


def test_installing_twice_changes_nothing() -> None:
    before = interpreter._patch_builtin
    install_remembered_builtins()
    assert interpreter._patch_builtin is before


def function_that_sees(**globals_: Any) -> types.FunctionType:
    return types.FunctionType((lambda: None).__code__, globals_)


def test_a_device_function_within_a_launch_replaces_only_what_the_launch_has_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tl.core, "static_assert", tl.static_assert)  # a device function of an earlier test may have left its replacement
    before = {name: builtins_of(namespace) for name, namespace in NAMESPACES.items()}
    launch = interpreter._patch_lang(function_that_sees(tl=tl))
    try:
        assert builtins_of(tl) == {}
        assert interpreter._patch_lang(function_that_sees(tl=tl, other=1))._changes == []
        further = interpreter._patch_lang(function_that_sees(core=tl.core))
        assert "static_assert" in {attribute for namespace, attribute, _ in further._changes if namespace is tl.core}
        further.restore()
    finally:
        launch.restore()
    assert {name: builtins_of(namespace) for name, namespace in NAMESPACES.items()} == before


def test_tensors_of_one_shape_are_as_triton_makes_them_and_share_its_lengths() -> None:
    handle = object()
    for element in (tl.float32, tl.bfloat16, tl.pointer_type(tl.float32)):
        for shape in ([8, 64], (8, 64), [tl.constexpr(8), 64], tl.tuple([tl.constexpr(8), tl.constexpr(64)])):
            block = tl.block_type(element, shape)
            assert (str(block), block.numel, list(block.shape), block.scalar) == (
                f"<{tl.tuple([8, 64])}, {element}>",
                512,
                [8, 64],
                element,
            )
            assert block == tl.block_type(element, [8, 64]) != tl.block_type(element, [64, 8])
            tensor = tl.tensor(handle, block)
            assert (tensor.handle, tensor.type, tensor.dtype, tensor.numel.value) == (handle, block, element, 512)
            assert [type(one) for one in tensor.shape] == [tl.constexpr] * 2
            assert [one.value for one in tensor.shape] == [8, 64]
            assert tensor.shape is tl.tensor(handle, tl.block_type(tl.int1, [8, 64])).shape
        scalar = tl.tensor(handle, element)
        assert (len(scalar.shape), scalar.numel.value, scalar.dtype) == (0, 1, element)


@pytest.mark.parametrize(("shape", "error"), [([], TypeError), ([8, 3], ValueError), ([8.0], TypeError), ([2**21], ValueError)])
def test_shapes_that_triton_refuses_are_refused_each_time(shape: list[Any], error: type[Exception]) -> None:
    tl.block_type(tl.float32, [8])
    for _ in range(2):
        with pytest.raises(error):
            tl.block_type(tl.float32, shape)


def test_a_replaced_function_runs_in_the_interpreter_whatever_its_caller_passes(scope: Any) -> None:
    replace(tl.core, scope)
    assert not tl.core.is_builtin(tl.core.program_id)
    interpreter.interpreter_builder.set_grid_dim(3, 1, 1)
    interpreter.interpreter_builder.set_grid_idx(2, 0, 0)
    for more in ({}, {"_semantic": None}):
        assert tl.core.program_id(0, **more).handle.data == 2

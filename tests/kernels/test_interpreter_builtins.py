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

"""Triton's interpreter made to round as the hardware does, and to spend its time on the kernel.

The interpreter (triton 3.6 to 3.9) converts float32 to bfloat16 by dropping the low bits; the GPU rounds to nearest even.  An accuracy gate
on that would see a bias that no kernel has.  So the conversion is replaced by torch's, which rounds to nearest even, keeps NaN and
overflows to infinity.  The conversion back is wrong for subnormals, and is replaced by a shift.

At every launch, and at every call of a device function within one, the interpreter searches all of triton.language for the functions that
it replaces: up to a quarter of a check's time.  The functions never change, so the search is made once.  A launch has replaced them for its
device functions too, so their calls replace nothing.  For every tensor it also makes a table of numpy's types, and wraps the lengths of its
axes one by one, which took a third of a check's time; both are remembered as well.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any


def install_exact_casts() -> None:
    """Replace the interpreter's conversions between float32 and bfloat16 in this process; calling it again changes nothing."""
    import numpy as np
    import torch
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    original = InterpreterBuilder.cast_impl
    if getattr(original, "exact", False):
        return

    to_bfloat16, to_float32 = (tl.float32.name, tl.bfloat16.name), (tl.bfloat16.name, tl.float32.name)

    def cast_impl(self: Any, src: Any, dst_type: Any) -> Any:
        names = src.dtype.scalar.name, dst_type.scalar.name
        if names == to_bfloat16:
            rounded = torch.from_numpy(src.data.copy()).to(torch.bfloat16).view(torch.uint16).numpy()
            return TensorHandle(rounded, dst_type.scalar)
        if names == to_float32:
            return TensorHandle((src.data.astype(np.uint32) << 16).view(np.float32), dst_type.scalar)
        return original(self, src, dst_type)

    cast_impl.exact = True  # type: ignore[attr-defined]
    InterpreterBuilder.cast_impl = cast_impl


def install_remembered_builtins() -> None:
    """Make the interpreter remember its replacements in triton.language; calling it again changes nothing.

    Call it before the first launch, while nothing is replaced.
    """
    import triton.language as tl
    from triton.runtime import interpreter

    original = interpreter._patch_builtin
    if getattr(original, "remembers", False):
        return
    is_builtin = tl.core.is_builtin
    names = {
        namespace: [name for name, member in inspect.getmembers(namespace) if is_builtin(member)]
        for namespace in (tl, tl.core, tl.tensor, tl.math, tl.core.tensor_descriptor_base)
    }

    @functools.cache
    def interpreted(member: Any) -> Any:
        """As `interpreter._patch_attr` makes it, at every launch and with a new dictionary at every call."""

        def call(*args: Any, **kwargs: Any) -> Any:
            kwargs["_semantic"] = interpreter.interpreter_semantic
            return member(*args, **kwargs)

        return call

    def patch_builtin(namespace: Any, builder: Any, scope: Any) -> None:
        if namespace not in names:
            original(namespace, builder, scope)
            return
        for name in names[namespace]:
            member = getattr(namespace, name)
            if is_builtin(member):  # false within a launch, which has replaced it already
                scope.set_attr(namespace, name, interpreted(member))

    patch_lang = interpreter._patch_lang

    def patch_lang_once(fn: Any) -> Any:
        languages = [member for member in fn.__globals__.values() if member is tl or member is tl.core]
        # The interpreter never puts back what a device function alone sees; `tl.tensor` it puts back at the end of every launch.
        if languages and not any(is_builtin(member) for member in (tl.tensor.to, *(language.static_assert for language in languages))):
            return interpreter._LangPatchScope()
        return patch_lang(fn)

    numpy_type = interpreter._get_np_dtype
    known: dict[str, Any] = {}

    def numpy_type_once(dtype: Any) -> Any:
        scalar = dtype.scalar
        if type(scalar) is not tl.dtype:  # a pointer
            return numpy_type(dtype)
        if scalar.name not in known:
            known[scalar.name] = numpy_type(scalar)
        return known[scalar.name]

    patch_builtin.remembers = True  # type: ignore[attr-defined]
    interpreter._patch_builtin = patch_builtin
    interpreter._patch_lang = patch_lang_once
    interpreter._get_np_dtype = numpy_type_once
    _remember_shapes()


def _remember_shapes() -> None:
    """Make tensors and types of blocks of one shape share the objects that hold its lengths; nothing changes them."""
    import triton.language as tl

    make_block, make_tensor = tl.block_type.__init__, tl.tensor.__init__
    blocks: dict[tuple[Any, ...], dict[str, Any]] = {}
    tensors: dict[tuple[Any, ...], dict[str, Any]] = {}

    def block_once(self: Any, element_ty: Any, shape: Any) -> None:
        lengths = tuple([one.value if type(one) is tl.constexpr else one for one in shape])
        if set(map(type, lengths)) != {int}:  # refused
            make_block(self, element_ty, shape)
            return
        known = blocks.get((element_ty.name, *lengths))
        if known is None:
            make_block(self, element_ty, shape)
            blocks[element_ty.name, *lengths] = {name: value for name, value in vars(self).items() if name != "element_ty"}
            return
        vars(self).update(known)
        self.element_ty = element_ty

    def tensor_once(self: Any, handle: Any, type: Any) -> None:
        lengths = tuple(type.shape) if type.is_block() else ()
        known = tensors.get(lengths)
        if known is None:
            make_tensor(self, handle, type)
            tensors[lengths] = {name: value for name, value in vars(self).items() if name not in ("handle", "type", "dtype")}
            return
        vars(self).update(known)
        self.handle, self.type, self.dtype = handle, type, type.scalar

    tl.block_type.__init__ = block_once
    tl.tensor.__init__ = tensor_once

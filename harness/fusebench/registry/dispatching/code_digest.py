"""One digest of the source that a kernel's machine code is made of, so that a time can be told from a time of other code.

`sources.source_digests` compares whole files, and an op's definition with them: right for `ab`, which then compares machine code. A
dispatch table has no machine code to compare: that of another day's Triton differs for reasons of its own. So this digest leaves out what
compiles to nothing: comments, docstrings, blank space, definitions that the kernel does not use, and in CUDA C++ lines that stand under
a macro that nothing of the kernel names.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from ...schema import KernelId

DIGITS = 8
"""Hexadecimal digits of a digest: two versions of one kernel are equal by chance once in 4e9."""
_C_SOURCES = frozenset({".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".inl", ".ptx"})
_UNUSED = frozenset({"ctx", "kind", "type_comment", "type_params"})
"""Fields of the syntax tree that versions of Python fill in differently, or that change no instruction."""
_HINTS = frozenset({"annotation", "returns"})
_C_COMMENT = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_C_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
_C_MACRO = re.compile(r"^\s*#\s*define\s+(\w+)", re.MULTILINE)
_C_CONDITION = re.compile(r"\s*#\s*(if|ifdef|ifndef|elif|else|endif)\b\s*(\w*)")


def code_digest(kernel: str, roots: Sequence[Path]) -> str:
    """The first digits of a SHA-256 over the source of `kernel`; empty if no file declares it by a plain `@kernel(op, name, version=...)`.

    Its function counts, and every definition of `roots` that this uses, in Python and in CUDA C++ (a file that a used definition names by
    a text, with its includes). Statements of a used module that define nothing count too. What `supports` says, the op's definition beyond
    the names that the kernel uses, fusebench's own code, compilers, and files opened by a name made at run time do not.

    Args:
        kernel: `op/name@version`; a tunable choice has the source of its kernel.
        roots: folders of kernels; the first that declares the kernel counts, and relative imports are looked up there first.

    Raises:
        SyntaxError, OSError: a file cannot be read as Python.
    """
    one = KernelId.parse(kernel)
    name = one.name.partition("__")[0]
    for root in roots:
        for file in sorted((root / one.op).glob("*.py")):
            module = _Module(file)
            if (found := module.declaring(one.op, name, one.version)) is not None:
                return _Source([root, *(other for other in roots if other != root)]).digest(module, found)
    return ""


class _Module:
    """A Python file by its top-level statements."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.body = [one for one in ast.parse(file.read_bytes()).body if not _for_types_only(one)]

    def declaring(self, op: str, name: str, version: int) -> str | None:
        """Name of the function that is declared as this kernel."""
        for one in self.body:
            if isinstance(one, ast.FunctionDef):
                for call in one.decorator_list:
                    if isinstance(call, ast.Call) and [getattr(value, "value", None) for value in call.args[:2]] == [op, name]:
                        versions = [getattr(given.value, "value", None) for given in call.keywords if given.arg == "version"]
                        if versions == [version]:
                            return one.name
        return None

    @cached_property
    def defined(self) -> dict[str, list[ast.stmt]]:
        """The statements that bind each name; imports are not among them."""
        found: dict[str, list[ast.stmt]] = {}
        for one in self.body:
            for name in _bound(one):
                found.setdefault(name, []).append(one)
        return found

    @cached_property
    def imported(self) -> dict[str, tuple[ast.ImportFrom, str]]:
        """Relative imports by the name that they bind: the statement, and the name there."""
        relative = [one for part in self.body for one in ast.walk(part) if isinstance(one, ast.ImportFrom) and one.level > 0]
        return {name.asname or name.name: (one, name.name) for one in relative for name in one.names}

    @cached_property
    def loose(self) -> list[ast.stmt]:
        """Statements that bind nothing and run at import, without docstrings and imports."""
        return [one for one in self.body if not _bound(one) and not isinstance(one, ast.Import | ast.ImportFrom) and not _is_text(one)]


class _Source:
    """The definitions that a kernel uses."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self._roots = [root.resolve() for root in roots]
        self._modules: dict[Path, _Module] = {}
        self._seen: set[tuple[Path, str]] = set()
        self._parts: dict[str, str] = {}
        self._c_texts: dict[str, str] = {}
        """The C++ files without comments, by their names."""
        self._macros: set[str] = set()
        """Names that may be defined where the C++ files are compiled: what they define, and every text of the Python code."""

    def digest(self, module: _Module, name: str) -> str:
        self._modules[module.file.resolve()] = module
        for one in module.defined[name]:
            assert isinstance(one, ast.FunctionDef)
            one.decorator_list = [call for call in one.decorator_list if not isinstance(call, ast.Call)]  # the declaration
        self._use(module.file.resolve(), name)
        for file, text in self._c_texts.items():
            plain = " ".join(_without_undefined(text, self._macros).split())
            self._parts[file] = hashlib.sha256(plain.encode()).hexdigest()
        return hashlib.sha256(repr(sorted(self._parts.items())).encode()).hexdigest()[:DIGITS]

    def _module(self, file: Path) -> _Module:
        if file not in self._modules:
            self._modules[file] = _Module(file)
        return self._modules[file]

    def _use(self, file: Path, name: str) -> None:
        """Count what `name` means in `file`, and everything that it uses."""
        if (file, name) in self._seen:
            return
        self._seen.add((file, name))
        module = self._module(file)
        for one in [*module.defined.get(name, ()), *module.loose]:
            self._count(file, one)
        if name in module.imported:
            self._follow(file, *module.imported[name])

    def _count(self, file: Path, statement: ast.stmt) -> None:
        key = hashlib.sha256(repr(_plain(statement)).encode()).hexdigest()
        if key in self._parts:
            return
        self._parts[key] = ""
        for one in _walk(statement):
            if isinstance(one, ast.Name):
                self._use(file, one.id)
            elif isinstance(one, ast.Constant) and isinstance(one.value, str):
                self._macros.add(one.value)
                self._read(file, one.value)
            elif isinstance(one, ast.ImportFrom) and one.level > 0:
                for name in one.names:
                    self._follow(file, one, name.name)

    def _follow(self, file: Path, statement: ast.ImportFrom, name: str) -> None:
        """Count `name` where the import finds it: a definition, or a whole module."""
        folder = file.parents[statement.level - 1]
        base = folder.joinpath(*(statement.module or "").split(".")) if statement.module else folder
        for path in (base.with_name(f"{base.name}.py"), base / "__init__.py"):
            if (there := self._there(path)) is not None:
                module = self._module(there)
                if name in module.defined or name in module.imported:
                    self._use(there, name)
                    return
        for path in (base / f"{name}.py", base / name / "__init__.py", base.with_name(f"{base.name}.py")):
            if (there := self._there(path)) is not None:
                for one in (*self._module(there).defined, *self._module(there).imported):
                    self._use(there, one)
                return

    def _read(self, file: Path, text: str) -> None:
        """Count the C++ file that a text names: `norm.cu` beside the module, or `.cu` for the module's own name."""
        if text in _C_SOURCES:
            self._count_c(file.with_suffix(text))
        elif f".{text.rpartition('.')[2]}" in _C_SOURCES:
            self._count_c(file.parent / text)

    def _count_c(self, path: Path) -> None:
        there = self._there(path)
        if there is None or self._named(there) in self._c_texts:
            return
        text = there.read_text()
        plain = _C_COMMENT.sub(lambda found: found[0] if found[0].startswith('"') else " ", text)
        self._c_texts[self._named(there)] = plain
        self._macros.update(_C_MACRO.findall(plain))
        for name in _C_INCLUDE.findall(text):
            self._count_c(there.parent / name)

    def _there(self, path: Path) -> Path | None:
        """`path`, or the same path in another root where its own lacks it."""
        path = path.resolve()
        home = next((root for root in self._roots if path.is_relative_to(root)), None)
        if home is None:
            return None
        return next((file for root in (home, *self._roots) if (file := root / path.relative_to(home)).is_file()), None)

    def _named(self, file: Path) -> str:
        return next(file.relative_to(root).as_posix() for root in self._roots if file.is_relative_to(root))


def _without_undefined(text: str, macros: Collection[str]) -> str:
    """C++ without comments as a preprocessor leaves it where `#ifdef` and `#ifndef` ask for a name outside `macros`.

    Names with a leading underscore are the compiler's, and may be defined.  Other conditions stay as they are, and a text whose conditions
    do not fit together stays whole.
    """
    kept = []
    open_: list[bool | None] = []
    """Of each condition that surrounds the line, the outermost first: whether it holds; None where that is not known."""
    for line in text.splitlines():
        condition = _C_CONDITION.match(line)
        word, name = condition.groups() if condition else ("", "")
        if word in ("ifdef", "ifndef") and name not in macros and not name.startswith("_"):
            open_.append(word == "ifndef")
            continue
        if word.startswith("if"):
            open_.append(None)
        elif word and not open_:
            return text
        elif word and open_[-1] is not None:
            if word == "elif":
                return text
            if word == "else":
                open_[-1] = not open_[-1]
            else:
                open_.pop()
            continue
        if False not in open_:
            kept.append(line)
        if word == "endif":
            open_.pop()
    return text if open_ else "\n".join(kept)


def _for_types_only(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and getattr(statement.test, "id", "") == "TYPE_CHECKING"


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _bound(statement: ast.stmt) -> set[str]:
    """The names that a top-level statement defines."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return set()
    inner = [one for one in ast.walk(statement) if isinstance(one, ast.FunctionDef | ast.ClassDef)]
    stored = {one.id for one in ast.walk(statement) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
    return stored | {one.name for one in inner}


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a statement, without type hints."""
    yield node
    for name, value in ast.iter_fields(node):
        if name not in _HINTS:
            for one in value if isinstance(value, list) else [value]:
                if isinstance(one, ast.AST):
                    yield from _walk(one)


def _plain(node: Any) -> Any:
    """A syntax tree as lists, the same in every version of Python; without docstrings."""
    if isinstance(node, ast.AST):
        fields = {name: value for name, value in ast.iter_fields(node) if name not in _UNUSED and value is not None and value != []}
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            fields["body"] = [one for one in node.body if not _is_text(one)]
        return [type(node).__name__, *((name, _plain(value)) for name, value in fields.items())]
    return [_plain(one) for one in node] if isinstance(node, list) else repr(node)

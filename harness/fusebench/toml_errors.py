"""A TOML file that can say where it is wrong: file, line and key path, what was found, what was expected, what to do.

Values are checked by msgspec, which names a path but no line, and the standard library's parser keeps no positions.  Lines are
therefore found when an error is to be reported, and only then: a key stands where the shortest prefix of lines that parses and
holds the key ends.
"""

from __future__ import annotations

import re
import reprlib
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from .errors import SuiteError, nearest

Keys = tuple[str | int, ...]
"""A path into a document: table keys, and indexes of array elements."""

T = TypeVar("T")

_PATH = re.compile(r" - at `\$(?P<path>.*)`$")
_STEP = re.compile(r"\.(?P<key>[^.\[\]]+)|\[(?P<index>\d+)\]")
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<key>.*)`")
_MISSING = re.compile(r"Object missing required field `(?P<key>.*)`")
_TYPE = re.compile(r"Expected `(?P<expected>.*)`, got `(?P<found>.*)`")
_CHOICE = re.compile(r"Invalid enum value (?P<found>.*)")
_SYNTAX = re.compile(r" \(at (?:line (?P<line>\d+), column \d+|end of document)\)$")

_TOML_TYPES = {"object": "table", "str": "string", "int": "integer", "bool": "boolean"}
_REMEDIES = {
    "int": "write a whole number without quotes",
    "float": "write a number without quotes",
    "str": "write it in quotes",
    "bool": "write true or false without quotes",
    "object": "write a table: { key = value, … } or a [header]",
    "array": "write an array: [ … ], or [[header]] with two brackets for a list of tables",
}


class Refusal(msgspec.Struct, frozen=True, tag=True):
    """Why a value is refused, without the type that refuses it: another process may know the type alone."""

    message: str
    steps: tuple[str | int, ...] = ()
    """Keys from the value to the part that is refused."""
    keys: tuple[str, ...] = ()
    """Keys that the type accepts there, where an unknown one was found."""
    choices: tuple[str | int, ...] = ()
    """Values that the type accepts there, where another one was found."""


@dataclass(frozen=True)
class TomlFile:
    """A parsed file with its text; `label` is the path as messages give it."""

    label: str
    text: str
    document: dict[str, Any]

    @classmethod
    def read(cls, path: Path, label: str) -> TomlFile:
        """Read and parse `path`; SuiteError for a file that cannot be read, is not UTF-8 or is not TOML."""
        try:
            text = path.read_bytes().decode("utf-8")
        except OSError as error:
            raise SuiteError(f"{label}: cannot be read ({error.strerror}); check the path and its permissions") from error
        except UnicodeDecodeError as error:
            line = error.object.count(b"\n", 0, error.start) + 1
            found = f"byte 0x{error.object[error.start]:02x}"
            raise SuiteError(f"{label}:{line}: found {found}, expected UTF-8 text; save the file as UTF-8") from error
        try:
            return cls(label, text, tomllib.loads(text))
        except tomllib.TOMLDecodeError as error:
            message, match = str(error), _SYNTAX.search(str(error))
            line = int(match["line"]) if match and match["line"] else text.rstrip().count("\n") + 1
            what = message[: match.start()] if match else message
            raise SuiteError(f"{label}:{line}: not valid TOML: {what}; correct this line") from error
        except (ValueError, RecursionError) as error:  # a number of thousands of digits, brackets in brackets
            raise SuiteError(f"{label}: not valid TOML: {error}; correct the file") from error

    def value(self, keys: Keys) -> Any:
        """The value at `keys`; KeyError or IndexError when there is none."""
        return _value(self.document, keys)

    def line_of(self, keys: Keys) -> int:
        """The line, from 1, on which `keys` starts, or its nearest enclosing table when the key is absent."""
        while keys and not _holds(self.document, keys):
            keys = keys[:-1]
        if not keys:
            return 1
        lines = self.text.replace("\r\n", "\n").split("\n")
        before, after = 0, len(lines)  # the first `before` lines parse and lack the keys; the first `after` lines hold them
        while (prefix := _parseable_between(lines, before, after)) is not None:
            count, document = prefix
            before, after = (before, count) if _holds(document, keys) else (count, after)
        return before + 1

    def where(self, keys: Keys) -> str:
        """`file:line: key.path`, the elements of an array going by their names."""
        path = f": {self._spell(keys)}" if keys else ""
        return f"{self.label}:{self.line_of(keys)}{path}"

    def error(self, keys: Keys, message: str) -> SuiteError:
        """The refusal of what stands at `keys`."""
        return SuiteError(f"{self.where(keys)}: {message}")

    def convert(self, value: Any, to: type[T], keys: Keys = ()) -> T:
        """`value`, which stands at `keys`, as the msgspec type `to`; SuiteError for the first thing wrong with it."""
        try:
            return msgspec.convert(value, to, strict=True)
        except ValueError as error:
            raise self.explain(error, to, keys) from error

    def explain(self, error: ValueError, to: Any, keys: Keys) -> SuiteError:
        """The SuiteError for `error`, which msgspec or a struct's own checks raised for the value at `keys`."""
        return self.refuse(refusal_of(error, to), keys)

    def refuse(self, refusal: Refusal, keys: Keys) -> SuiteError:
        """The SuiteError for what `refusal` says of the value at `keys`."""
        message = refusal.message
        keys = (*keys, *refusal.steps)
        if match := _UNKNOWN.fullmatch(message):
            return self.error((*keys, match["key"]), _unknown_key(match["key"], refusal.keys))
        if match := _MISSING.fullmatch(message):
            key = match["key"]
            return self.error((*keys, key), f"found no key {key!r}, expected one; add `{key} = …`")
        found = reprlib.repr(self.value(keys)) if _holds(self.document, keys) else "nothing"
        if match := _TYPE.fullmatch(message):
            expected = match["expected"].split(" | ")
            wanted = " or ".join(_TOML_TYPES.get(name, name) for name in expected if name != "null")
            kind = _TOML_TYPES.get(match["found"], match["found"])
            return self.error(keys, f"found {found} ({kind}), expected {wanted}; {_REMEDIES.get(expected[0], 'correct the value')}")
        if _CHOICE.fullmatch(message):
            return self.error(keys, f"found {found}, expected {_choices(self.value(keys), refusal.choices)}")
        table = self.value(keys)
        culprit = message.split(" ", 1)[0]
        if isinstance(table, dict) and culprit in table:
            keys = (*keys, culprit)
        return self.error(keys, f"{message}; correct the value")

    def _spell(self, keys: Keys) -> str:
        parts: list[str] = []
        for depth, key in enumerate(keys):
            if isinstance(key, str):
                parts.append(f".{key}" if parts else key)
            else:
                element = self.value(keys[: depth + 1]) if _holds(self.document, keys[: depth + 1]) else None
                name = element.get("name") if isinstance(element, dict) else None
                parts.append(f"[{name}]" if isinstance(name, str) else f"[{key}]")
        return "".join(parts)


def refusal_of(error: ValueError, to: Any) -> Refusal:
    """What `error` says, which msgspec or a struct's own checks raised while a value was converted to the type `to`."""
    message = str(error)
    steps: Keys = ()
    at = _PATH.search(message)
    if at is not None:
        message = message[: at.start()]
        steps = tuple(int(step["index"]) if step["index"] else step["key"] for step in _STEP.finditer(at["path"]))
    kind = _type_at(to, steps) if _UNKNOWN.fullmatch(message) or _CHOICE.fullmatch(message) else None
    keys = tuple(field.encode_name for field in getattr(kind, "fields", ()))
    choices = tuple(value for one in _alternatives(kind) for value in getattr(one, "values", ()))
    return Refusal(message, steps, keys, choices)


def _unknown_key(key: str, known: Sequence[str]) -> str:
    close = nearest(key, known)
    expected = f", expected one of {', '.join(known)}" if known else ""
    return f"found an unknown key{expected}; " + (f"did you mean {close!r}?" if close else "remove it")


def _choices(found: Any, values: Sequence[Any]) -> str:
    close = nearest(str(found), [str(value) for value in values])
    return f"one of {', '.join(map(repr, values))}; " + (f"did you mean {close!r}?" if close else "choose one of them")


def _type_at(to: Any, steps: Keys) -> Any:
    """msgspec's description of the type that `to` gives to the value at `steps`; None if the type does not say."""
    import msgspec.inspect

    kind: Any = msgspec.inspect.type_info(to)
    for step in steps:
        kinds: list[Any] = []
        for one in _alternatives(kind):
            kinds += [field.type for field in getattr(one, "fields", ()) if field.encode_name == step]
            kinds += [one.item_type] if isinstance(step, int) and hasattr(one, "item_type") else []
        kind = kinds[0] if kinds else None
    return kind


def _alternatives(kind: Any) -> tuple[Any, ...]:
    return tuple(getattr(kind, "types", (kind,)))


def _value(document: Any, keys: Keys) -> Any:
    for key in keys:
        document = document[key]
    return document


def _holds(document: Any, keys: Keys) -> bool:
    try:
        _value(document, keys)
    except (KeyError, IndexError, TypeError):
        return False
    return True


def _parseable_between(lines: list[str], low: int, high: int) -> tuple[int, dict[str, Any]] | None:
    """A prefix of more than `low` and fewer than `high` lines that parses, the nearest to their middle; a multi-line value has none."""
    middle = (low + high) // 2
    for count in sorted(range(low + 1, high), key=lambda count: abs(count - middle)):
        try:
            return count, tomllib.loads("\n".join(lines[:count]))
        except (ValueError, RecursionError):
            continue
    return None

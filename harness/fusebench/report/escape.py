"""Foreign text made safe for every format that shows it.

Names, reasons and commands in a record come from kernels, libraries and other people's machines.  `cleaned` takes out of a whole record
all that is dangerous in any format: terminal control sequences, invisible direction marks, and prefixes that CI systems take for commands.
The other functions quote text for one format each.  HTML is quoted by jinja's autoescape and, in pictures, by `html`.
"""

from __future__ import annotations

import html as _html
import re
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_CONTROL = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b-\u200f\u2028\u2029\u202a-\u202e\u2060-\u2069\ufeff\ufffe\uffff\ud800-\udfff]"
)
"""Characters that a terminal obeys, that reorder or hide text, that XML 1.0 forbids or UTF-8 cannot hold. Tabs and line feeds stay."""
_COMMAND = re.compile(r"##(?=\[|[a-z]+\[)|(?m:^(?P<indent>[ \t]*)::(?=[a-z]))")
"""`##[error]` (Azure, GitHub), `##vso[` (Azure), `##teamcity[` anywhere, and GitHub's `::error` where a line starts."""
_SUSPECT = re.compile(f"{_CONTROL.pattern}|\r|##|::")
_UNCLEAN = re.compile(f"{_SUSPECT.pattern}|[\n\t]")

_MARKDOWN: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    (re.compile(r"\\(?=[!-/:-@\[-`{-~])"), r"\\\\"),
    (re.compile(r"`"), r"\\`"),
    (re.compile(r"&(?=#?\w+;)"), "&amp;"),
    (re.compile(r"<(?=[A-Za-z/!?])"), "&lt;"),
    (re.compile(r"\](?=[\[(])"), r"]\\"),
    (re.compile(r"(?<![A-Za-z0-9_])_+|_+(?![A-Za-z0-9_])"), lambda match: "\\_" * len(match[0])),
    (re.compile(r"~(?=~)|(?<=~)~"), r"\\~"),
    (re.compile(r"(?<![\w/`])@(?=[A-Za-z])"), "&#64;"),
    (re.compile(r"(?i)\b(https?|ftp):(?=//)"), r"\1:\\"),
    (re.compile(r"(?i)\bwww(?=\.)"), r"www\\"),
    (re.compile(r"^([#>=]|[+-](?=[\s+-])|\[(?=[^\]]*\]:))"), r"\\\1"),
)
_PAIRED = "*$"
"""Marks that mean something only in pairs: a single one stays as it is."""


_NUMBERS = frozenset({float, int, bool, type(None)})
_CONTAINERS = frozenset({list, tuple, dict})


class Markup(str):
    """Text that is Markdown already: `markdown` leaves it alone.  An f-string around it is plain text again."""

    __slots__ = ()


def cleaned(record: T) -> T:
    """`record` (a struct, a container or a text) with every text in it on one line and safe to print; the same object where all are."""
    return _cleaned(record, {""})  # type: ignore[no-any-return]


def text(foreign: str) -> str:
    """`foreign` with control characters written out (`\\x1b`), other line ends as line feeds, and CI commands broken by a space."""
    if not _SUSPECT.search(foreign):
        return foreign
    plain = foreign.replace("\r\n", "\n").replace("\r", "\n")
    plain = _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), plain)
    return _COMMAND.sub(lambda match: "# #" if match["indent"] is None else f"{match['indent']}: :", plain)


def one_line(foreign: str, limit: int = 400) -> str:
    """`foreign` as one safe line (a kernel's own error may be a traceback), its middle cut out beyond `limit` characters."""
    flat = text(" ".join(foreign.split()))
    return flat if len(flat) <= limit else f"{flat[: limit // 2]} … {flat[-limit // 2 :]}"


def markdown(foreign: str) -> str:
    """One line of GitHub-flavoured Markdown that shows `foreign` as it is written: no HTML, link, mention or formatting of its own."""
    if isinstance(foreign, Markup):
        return foreign
    quoted = text(" ".join(foreign.split()))
    for pattern, replacement in _MARKDOWN:
        quoted = pattern.sub(replacement, quoted)
    for mark in _PAIRED:
        if quoted.count(mark) > 1:
            quoted = quoted.replace(mark, f"\\{mark}")
    return Markup(quoted)


def cell(foreign: str) -> str:
    """`markdown` for a cell of a table, whose columns are divided by pipes."""
    return Markup(re.sub(r"(?<!\\)\|", r"\\|", markdown(foreign)))


def code(foreign: str) -> Markup:
    """`foreign` as a code span, with a fence that it does not hold."""
    plain = text(" ".join(foreign.split()))
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", plain)), default=0))
    space = " " if plain.startswith("`") or plain.endswith("`") else ""
    return Markup(f"{fence}{space}{plain}{space}{fence}")


def code_block(foreign: str) -> list[str]:
    """`foreign` as the lines of a fenced code block."""
    plain = text(foreign)
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", plain)), default=0))
    return [fence, plain, fence]


def html(foreign: str) -> str:
    """`foreign` as the text of an HTML or SVG element, or inside a quoted attribute."""
    return _html.escape(text(foreign), quote=True)


def annotation(foreign: str, *, in_property: bool = False) -> str:
    """Percent-encoding as GitHub's workflow commands define it: line ends everywhere, separators in properties too."""
    quoted = text(foreign).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return quoted.replace(":", "%3A").replace(",", "%2C") if in_property else quoted


def json_document(encoded: str) -> str:
    """The JSON document `encoded` with the same values: `\\u` escapes stand for control characters and for the marks of CI commands."""
    shown = _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", encoded)
    return re.sub(r"##(?=\[|[a-z]+\[)", r"#\\u0023", shown)


def picture(foreign: str) -> str:
    """`foreign` for matplotlib, which reads dollar signs as mathematics."""
    return text(foreign).replace("$", r"\$")


def _cleaned(value: Any, clean: set[str]) -> Any:
    """`cleaned`; `clean` holds the texts seen so far that may stay as they are: years of runs repeat a few."""
    # By exact type: an enumeration of texts is a text too, and one of the project's own.
    if type(value) is str:
        return _cleaned_text(value, clean)
    if isinstance(value, msgspec.Struct):
        changed = {}
        for name in value.__struct_fields__:
            old = getattr(value, name)
            kind = type(old)
            if kind in _NUMBERS or (kind is str and old in clean) or (kind in _CONTAINERS and not old):
                continue  # a history's runs have a hundred thousand of these
            if (new := _cleaned(old, clean)) is not old:
                changed[name] = new
        return msgspec.structs.replace(value, **changed) if changed else value
    if type(value) in (list, tuple):
        if _NUMBERS.issuperset(map(type, value)):  # years of times: a million items hold no text
            return value
        items = [_cleaned(item, clean) for item in value]
        return type(value)(items) if any(new is not old for new, old in zip(items, value, strict=True)) else value
    if type(value) is dict:
        found = {_cleaned(key, clean): _cleaned(item, clean) for key, item in value.items()}
        same = len(found) == len(value) and all(key in found and found[key] is item for key, item in value.items())
        return value if same else found
    return value


def _cleaned_text(value: str, clean: set[str]) -> str:
    if value not in clean and _UNCLEAN.search(value):
        return text(value).replace("\n", " ").replace("\t", " ")
    clean.add(value)
    return value


def file_name(suite: str) -> str:
    """A suite's name as a file name: every character but letters, digits, `_`, `.` and `-` becomes `_`, and it hides no file."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", suite).lstrip(".") or "_"

"""Compiled CUDA C++ on disk, as Triton and torch.compile keep theirs: the next process that needs a kernel does not compile it again.

A nightly needs 221 specialisations in each of its measuring processes, and NVRTC takes some 0.15 s for each on an H200's host.  The files
and their keys are cuda-core's (`FileStreamProgramCache`).  This module adds to a key all that cuda-core does not see: the content of every
included file, and the compiler's own library.  A source whose includes are not all found beside it is not kept.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..user_cache import own_cache

MOST_BYTES = 2**30
"""Size of the folder above which the entries that were not read for longest go; a cubin takes 10 to 100 kB."""
_INCLUDE = re.compile(r"^[ \t]*#[ \t]*(include|embed)\b[ \t]*(.*)$", re.MULTILINE)
_QUOTED = re.compile(r'"([^"\n]+)"')


def kept(file: Path, options: Any, compiled: Callable[[], Any], load: Callable[[Any], Any]) -> tuple[Any, Any]:
    """The object code of the `.cu` file, from disk or else from `compiled`, and what `load` makes of it.

    A cache that cannot be read or written, or an entry that does not load, costs a compilation and nothing else.

    Args:
        options: cuda-core's ProgramOptions.
        compiled: compiles, to cuda-core's ObjectCode.
        load: loads the object code; called again, with code compiled anew, if it raises for an entry of the cache.

    Raises:
        Exception: of `compiled`, or of `load` for code that was just compiled.
    """
    cache, key = _cache(), _key(file, options)
    if cache is None or key is None:
        made = compiled()
        return made, load(made)
    with suppress(Exception):  # whatever is wrong with the entry: it is written anew
        if (content := cache.get(key)) is not None:
            from cuda.core import ObjectCode

            found = ObjectCode.from_cubin(bytes(content), name=file.name)
            return found, load(found)
    made = compiled()
    loaded = load(made)
    with suppress(OSError):  # a full disk, or a folder of somebody else: the next process compiles, too
        cache[key] = made
    return made, loaded


def included(file: Path) -> tuple[dict[Path, bytes], bool]:
    """The content of `file` and of every file that it includes, by path; and whether all were found, as a header of the toolkit is not.

    Every `#include` counts, also in a part that the preprocessor leaves out.  Files are looked for beside the one that includes them, then
    beside `file`, as NVRTC does with `include_path`.
    """
    found: dict[Path, bytes] = {}
    whole = True
    waiting = [file]
    while waiting:
        one = waiting.pop()
        if one in found:
            continue
        try:
            found[one] = one.read_bytes()
        except OSError:
            whole = False
            continue
        for _, rest in _INCLUDE.findall(found[one].decode(errors="replace")):
            quoted = _QUOTED.match(rest)
            places = [folder / quoted[1] for folder in (one.parent, file.parent)] if quoted is not None else []
            place = next((place for place in places if place.is_file()), None)
            whole = whole and place is not None
            waiting += [place.resolve()] if place is not None else []
    return found, whole


def _key(file: Path, options: Any) -> bytes | None:
    """The key of the compiled file; None where it has none, so that it is not kept."""
    contents, whole = included(file)
    if not whole:
        return None
    digest = hashlib.sha256(repr(_compiler()).encode())
    for content in contents.values():
        digest.update(hashlib.sha256(content).digest())
    with suppress(ValueError):  # an option that cuda-core keeps no code of
        from cuda.core.utils import make_program_cache_key

        source = contents[file].decode()
        key: bytes = make_program_cache_key(
            code=source, code_type="c++", options=options, target_type="cubin", extra_digest=digest.digest()
        )
        return key
    return None


@functools.cache
def _compiler() -> tuple[str, int, int]:
    """NVRTC's library: cuda-core's keys hold its version without the patch level.  Path, bytes, nanoseconds of its last change.

    Raises:
        ImportError: cuda-core brings no way to find it.
    """
    from cuda.pathfinder import load_nvidia_dynamic_lib

    path = Path(load_nvidia_dynamic_lib("nvrtc").abs_path)
    return str(path), path.stat().st_size, path.stat().st_mtime_ns


@functools.cache
def _cache() -> Any:
    """cuda-core's cache; None where the installed version has none, or its folder cannot be made."""
    try:
        from cuda.core.utils import FileStreamProgramCache

        _compiler()
        return FileStreamProgramCache(own_cache() / "nvrtc", max_size_bytes=MOST_BYTES)
    except Exception:  # noqa: BLE001  without a cache everything is compiled, as it was before there was one
        return None

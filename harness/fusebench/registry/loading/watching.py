"""Imports of kernel files, watched: which file is being executed, which files are left out, and what a file did to its process.

A file may end its process while it is imported, or never return. A name in memory that outlives the process then says which file it was. A
file that ended one process is left out of every later one. A file that changes the working directory or a signal handler fails to load, and
the change is undone, because later files and kernels depend on both.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import Any

from ...errors import FusebenchError

IMPORTING, ASKING = "import", "ask"
"""What is done with a file: it is imported, or a function that it declares is called."""


class KernelFileError(FusebenchError, ImportError):
    """A kernel file that is left out, or that did something to its process that no file may do."""


class Watch:
    """The watch over the kernel files of one process."""

    def __init__(self, excluded: Mapping[str, str] | None = None, tell: Callable[[str], None] = lambda text: None) -> None:
        """
        Args:
            excluded: files that are not imported, each with the reason.
            tell: called with `import FILE` or `ask FILE` before a file's code runs, and with the enclosing text or nothing after it.
        """
        self.excluded = dict(excluded or {})
        self._tell = tell
        self._current = ""

    @contextmanager
    def on(self, file: str, what: str = ASKING) -> Iterator[None]:
        """Run the code of `file` within the block.

        Raises:
            KernelFileError: it raised something that would end the process, other than the SystemExit of an import.
        """
        before = self._current
        self._current = f"{what} {file}"
        self._tell(self._current)
        try:
            yield
        except Exception:
            raise
        except BaseException as error:
            if isinstance(error, SystemExit) and what == IMPORTING:
                raise
            raise KernelFileError(f"its code raised {type(error).__name__}{f': {error}' if str(error) else ''}") from error
        finally:
            self._current = before
            self._tell(before)

    @contextmanager
    def importing(self, file: str) -> Iterator[None]:
        """Import `file` within the block.

        Raises:
            KernelFileError: the file is left out, or it changed the process.
        """
        if file in self.excluded:
            raise KernelFileError(f"{file} is not imported: {self.excluded[file]}")
        with self.on(file, IMPORTING), _unchanged_process():
            yield


@contextmanager
def _unchanged_process() -> Iterator[None]:
    """Undo a change of the working directory or of signal handlers, and raise KernelFileError for it unless the block failed anyway."""
    folder, handlers = _folder(), _handlers()
    try:
        yield
    finally:
        changed = []
        if (now := _folder()) != folder:
            changed.append(f"the working directory (to {now or 'a folder that is gone'})")
            if folder:
                os.chdir(folder)
        for number, handler in _handlers().items():
            if handler is not handlers.get(number):
                changed.append(f"the handler of {signal.Signals(number).name}")
                if threading.current_thread() is threading.main_thread():
                    signal.signal(number, handlers[number])
        failed = sys.exc_info()[1]
        if changed and failed is None:
            raise KernelFileError(f"its import changed {' and '.join(changed)}, which other kernels depend on; leave that to the caller")


def _folder() -> str:
    try:
        return os.getcwd()  # noqa: PTH109 - a Path would be compared by its parts
    except OSError:
        return ""


def _handlers() -> dict[int, Any]:
    """The handlers that Python can put back."""
    return {number: handler for number in signal.valid_signals() if (handler := signal.getsignal(number)) is not None}


def watch_imports(prefix: str, watch: Watch) -> None:
    """Watch the imports of every module below the package `prefix`, also those that come later."""
    _finder.watches[prefix] = watch
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


class _Finder:
    """Finds what Python's own finder finds, and gives source files a loader that is watched."""

    def __init__(self) -> None:
        self.watches: dict[str, Watch] = {}

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        watch = self.watches.get(fullname.partition(".")[0])
        if watch is None:
            return None
        found = PathFinder.find_spec(fullname, path, target)
        if found is not None and type(found.loader) is SourceFileLoader:
            found.loader = _WatchedLoader(fullname, found.loader.path, watch)
        return found


class _WatchedLoader(SourceFileLoader):
    def __init__(self, fullname: str, path: str, watch: Watch) -> None:
        super().__init__(fullname, path)
        self._watch = watch

    def exec_module(self, module: ModuleType) -> None:
        with self._watch.importing(self.path):
            super().exec_module(module)


_finder = _Finder()

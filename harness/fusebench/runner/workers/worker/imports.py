"""The import of kernel files in a worker: each file's name is known while it runs, and what it leaves changed is known afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from ....registry.loading.watching import IMPORTING, Watch
from .shared_state import SharedState, in_words


class TamperingImportError(BaseException):
    """A kernel file left shared state changed.  No `Exception`: the file's own importer must not take it for a file that does not load."""

    def __init__(self, file: str, reason: str) -> None:
        super().__init__(file, reason)
        self.file, self.reason = file, reason


class ImportWatch(Watch):
    """A watch over kernel files that also compares the shared state before and after each; until it is closed.

    Files may import one another, so what changed before an inner import began is the outer file's.
    """

    def __init__(self, state: SharedState, excluded: Mapping[str, str], on_file: Callable[[str], None]) -> None:
        """
        Args:
            excluded: files that are not imported, each with the reason.
            on_file: called with the path of the file whose code runs, and with an empty text when there is none.
        """
        super().__init__(excluded, self._told)
        self._state, self._on_file = state, on_file
        self._files: list[str] = []
        self._closed = False

    def close(self) -> None:
        """From now on what is changed is compared by whoever calls kernels."""
        self._closed = True

    @contextmanager
    def importing(self, file: str) -> Iterator[None]:
        """Import `file` within the block.

        Raises:
            KernelFileError: as for any watch.
            ImportError: the file raises what would end a process.
            TamperingImportError: the file, or the one that imports it, left shared state changed.
        """
        if self._files:
            self._examine(self._files[-1])
        self._files.append(file)
        try:
            with super().importing(file):
                yield
        except (Exception, SystemExit, TamperingImportError):
            raise
        except BaseException as error:  # a KeyboardInterrupt of the file's own concerns that file alone
            raise ImportError(f"it raised {type(error).__name__}: {error}") from error
        finally:
            self._files.pop()
            self._examine(file)

    def _told(self, text: str) -> None:
        what, _, file = text.partition(" ")
        if not self._closed:
            self._on_file(file if what == IMPORTING else "")

    def _examine(self, file: str) -> None:
        if self._closed:
            return
        if changes := self._state.changes():
            raise TamperingImportError(file, in_words(changes))
        self._state.extend()

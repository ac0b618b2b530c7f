"""The process that loads kernel files: it executes them, and answers questions about what they declare.

Whatever a file prints goes to the parent's bounded buffer. Every answer repeats the random token of its question, so that a process that
ends early, with whatever exit code, has not answered.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import msgspec

from ...schema import Case
from ...shared_text import SharedText
from ...toml_errors import Refusal
from ..collection import load_collection
from ..declared import CaseFacts, OpDeclaration
from ..lookup import Collection
from .messages import Answer, AskFacts, AskKernels, AskOps, Failed, FoundKernels, FoundOps, FoundProblem, LoaderSetup, Question, Reply
from .watching import Watch

NAME_BYTES = 4096
"""Room for the name of the file whose code is running, in memory that outlives the process."""
_PR_SET_PDEATHSIG = 1
"""Linux's prctl option: the signal that the process gets when its parent dies (linux/prctl.h)."""


def loader_main(connection: Connection, output: Connection, doing: SharedText, setup: LoaderSetup) -> None:
    """Entry point of the process: answers every question with one reply, until the parent goes away.

    Args:
        connection: questions, each with its token, and replies.
        output: takes what the kernel files write to stdout and stderr.
        doing: shared with the parent: the file whose code is running.
    """
    with suppress(OSError):
        os.setsid()  # the parent ends this process with all that kernel files start, and a Ctrl-C is for the parent alone
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    for descriptor in (1, 2):
        os.dup2(output.fileno(), descriptor)
    # New ones, which write what they hold line by line: the process may end at any moment.
    sys.stdout, sys.stderr = (open(one, "w", buffering=1, errors="replace", closefd=False) for one in (1, 2))  # noqa: SIM115
    sys.dont_write_bytecode = not setup.bytecode

    def tell(text: str) -> None:
        doing.value = text.encode("utf-8", "surrogateescape")[: NAME_BYTES - 1]

    loader = _Loader(setup, Watch(setup.excluded, tell))
    with suppress(EOFError, OSError):
        while True:
            token, question = connection.recv()
            connection.send_bytes(msgspec.msgpack.encode(Reply(token, loader.answer(question)), enc_hook=repr))
    os._exit(0)  # no `atexit` of a kernel file is run


class _Loader:
    def __init__(self, setup: LoaderSetup, watch: Watch) -> None:
        self._roots, self._watch = setup.roots, watch
        self._ops: Collection | None = None
        self._kernels: Collection | None = None

    def answer(self, question: Question) -> Answer:
        try:
            if isinstance(question, AskOps):
                ops = self._loaded()
                return FoundOps(_declarations(ops), list(map(FoundProblem.of, ops.problems)))
            if isinstance(question, AskKernels):
                return self._load_kernels(question)
            if isinstance(question, AskFacts):
                return self._facts(question.op, question.params)
            if self._kernels is None:
                return Failed("the question which kernels take a case came before the kernels were loaded")
            return self._kernels.support(Case(suite="", name="", op=question.op, params=question.params))
        except Exception as error:  # noqa: BLE001 - the parent says it
            return Failed(f"{type(error).__name__}: {error}")

    def _loaded(self) -> Collection:
        if self._ops is None:
            self._ops = load_collection(self._roots, kernels=False, entry_points=False, watch=self._watch)
        return self._ops

    def _facts(self, op: str, params: Mapping[str, Any]) -> CaseFacts | Refusal:
        found = (self._kernels or self._loaded()).op(op)
        with self._watch.on(found.declaration.file):
            refusal = found.refusal(params)
            return refusal if refusal is not None else found.facts(params)

    def _load_kernels(self, question: AskKernels) -> FoundKernels:
        with suppress(ImportError):
            import torch  # noqa: F401 - its import takes seconds, and no kernel file is to blame for them
        loaded = load_collection(
            self._roots,
            entry_points=False,
            only=question.only,
            kernel=question.kernel,
            operators=question.operators,
            watch=self._watch,
        )
        self._kernels = loaded
        return FoundKernels(
            _declarations(loaded),
            [kernel.declared for kernel in loaded.kernels.values()],
            list(map(FoundProblem.of, loaded.problems)),
            sorted({file for module in list(sys.modules.values()) if isinstance(file := getattr(module, "__file__", None), str)}),
        )


def _declarations(collection: Collection) -> list[OpDeclaration]:
    return [op.declaration for op in collection.ops.values()]

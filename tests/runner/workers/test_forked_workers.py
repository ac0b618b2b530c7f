"""The server that forks the tests' processes serves as long as the session."""

from __future__ import annotations

import os
import socket
from multiprocessing import forkserver

from helpers.forked_workers import end_by_import_of, forking


def test_the_server_outlives_a_client_that_is_killed_before_it_has_asked() -> None:
    """As tests kill their children at any moment: Python's server ended then, and with it the next test that asked it."""
    context = forking()
    server = forkserver._forkserver  # type: ignore[attr-defined]
    pid = server._forkserver_pid
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(server._forkserver_address)
    process = context.Process(target=os._exit, args=(7,))
    process.start()
    process.join()
    assert (process.exitcode, server._forkserver_pid) == (7, pid)


def test_processes_inherit_what_the_server_imported_for_the_tests() -> None:
    process = forking().Process(target=end_by_import_of, args=("helpers.preloaded",))
    process.start()
    process.join()
    assert process.exitcode == 7

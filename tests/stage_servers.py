"""Fork servers of stages, forked from a process that has imported what they import.

A fork server (``tvmopt.stages.fork_server``) imports TVM and all stages for three CPU seconds, and
each command starts one. After :func:`begin`, the servers of this process and of its forks are forks
of one process that has imported them. It ends with the last of its clients.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

_MOST_BYTES = 1 << 20


def begin() -> None:
    """Fork the process, and start all fork servers of stages there. Does nothing without pidfds."""
    if not hasattr(os, "pidfd_open"):
        return
    client, server = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        client.close()
        _serve(server)
    server.close()
    from tvmopt.stages import process

    path = os.environ.get("PYTHONPATH")

    class Forked(process.ForkServer):
        """A fork server that is not started by Python; a new one where the path is another."""

        def __init__(self, environment: Mapping[str, str]) -> None:
            if environment.get("PYTHONPATH") != _with_root(path):
                super().__init__(environment)
                return
            self.environment = dict(environment)
            own, others = socket.socketpair()
            with others:
                self.process = _start(client, self.environment, others)  # type: ignore[assignment]
            self._socket, self._channel = own, own.makefile("rb")

    process.ForkServer = Forked  # type: ignore[misc]


def _with_root(path: str | None) -> str:
    """Return PYTHONPATH of a stage whose command has ``path``."""
    return os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), path]))


class _Started:
    """What ``subprocess.Popen`` has of a process that is no child of this one."""

    def __init__(self, pid: int) -> None:
        self.pid, self._pidfd = pid, os.pidfd_open(pid)

    def _ended(self, seconds: float | None) -> bool:
        return bool(select.select([self._pidfd], [], [], seconds)[0])

    def poll(self) -> int | None:
        return 0 if self._ended(0.0) else None

    def wait(self, timeout: float | None = None) -> int:
        if not self._ended(timeout):
            raise subprocess.TimeoutExpired("fork server", timeout or 0.0)
        return 0

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)


def _start(
    client: socket.socket, environment: Mapping[str, str], channel: socket.socket
) -> _Started:
    asked = {"env": dict(environment), "cwd": str(Path.cwd()), "cores": [*os.sched_getaffinity(0)]}
    socket.send_fds(client, [json.dumps(asked).encode()], [channel.fileno()])
    return _Started(json.loads(client.recv(64)))


def _serve(server: socket.socket) -> NoReturn:
    """Import what a fork server does, and fork one for each message."""
    from tvmopt.stages import fork_server

    null = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    fork_server._import_all()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no zombies
    while True:
        message, files, _, _ = socket.recv_fds(server, _MOST_BYTES, 1)
        if not message:
            os._exit(0)
        pid = os.fork()
        if pid == 0:
            server.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _become(json.loads(message), files[0])
        os.close(files[0])
        server.send(json.dumps(pid).encode())


def _become(asked: Mapping[str, object], fileno: int) -> NoReturn:
    """Run a fork server in this forked process."""
    from tvmopt.stages import fork_server

    code = 1
    try:
        os.environ.clear()
        os.environ.update(asked["env"])  # type: ignore[call-overload]
        os.chdir(asked["cwd"])  # type: ignore[arg-type]
        os.sched_setaffinity(0, asked["cores"])  # type: ignore[arg-type]
        code = fork_server.main(fileno)
    finally:
        sys.stdout.flush()
        os._exit(code)

"""Start the process of a stage: forked by a server that has imported TVM, or a new one."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Protocol

# Environment variables that differ from stage to stage; a forked child sets them itself.
_OWN = ("TMPDIR", "TVM_NUM_THREADS")
_CLOSE_S = 5.0
_HAS_FORK_SERVER = sys.platform.startswith("linux")


class StageProcess(Protocol):
    """What :class:`subprocess.Popen` and :class:`ForkedChild` have in common."""

    pid: int

    @property
    def stdout(self) -> IO[str] | None:
        """Standard output and error of the process."""

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while it runs."""

    def wait(self) -> int:
        """Wait for the end of the process; return its exit code."""

    def kill(self) -> None:
        """Send SIGKILL."""


class ForkedChild:
    """A child of the fork server.

    Args:
        pid: Its process id.
        stdout: What it prints.
        channel: Connection to the server.
    """

    def __init__(self, pid: int, stdout: IO[str], channel: IO[bytes]) -> None:
        self.pid = pid
        self._stdout, self._channel = stdout, channel
        self._code: int | None = None

    @property
    def stdout(self) -> IO[str]:
        """Standard output and error of the process."""
        return self._stdout

    def poll(self) -> int | None:
        """Return the exit code where :meth:`wait` has returned it; else None."""
        return self._code

    def wait(self) -> int:
        """Wait for the end of the process; return its exit code, negative for a signal."""
        if self._code is None:
            line = self._channel.readline()
            # Without its server, which only a signal ends, the child is killed, too.
            self._code = json.loads(line)["code"] if line else -signal.SIGKILL
        return self._code

    def kill(self) -> None:
        """Send SIGKILL; the server keeps the process id until :meth:`wait` has returned."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


class ForkServer:
    """Client of :mod:`tvmopt.stages.fork_server`.

    Args:
        environment: Environment of the server and its children.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = dict(environment)
        own, others = socket.socketpair()
        with others:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tvmopt.stages.fork_server", str(others.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=self.environment,
                pass_fds=[others.fileno()],
            )
        self._socket, self._channel = own, own.makefile("rb")

    def serves(self, environment: Mapping[str, str]) -> bool:
        """Return whether the server runs, and has this environment."""
        return self.process.poll() is None and self.environment == environment

    def start(self, request: Path) -> ForkedChild | None:
        """Fork a child that runs a request; return None when the server has ended."""
        reading, writing = os.pipe()
        stdout = os.fdopen(reading, encoding="utf-8", errors="replace")
        try:
            socket.send_fds(self._socket, [str(request).encode()], [writing])
            line = self._channel.readline()
        except ConnectionError:
            line = b""
        finally:
            os.close(writing)
        if not line:
            stdout.close()
            return None
        return ForkedChild(json.loads(line)["pid"], stdout, self._channel)

    def release(self, child: ForkedChild) -> None:
        """Tell the server that an ended child's process id is not used any more."""
        child.stdout.close()
        with contextlib.suppress(ConnectionError):
            self._socket.sendall(b"\n")

    def close(self) -> None:
        """End the server, and its child where one runs."""
        self._channel.close()
        self._socket.close()
        try:
            self.process.wait(_CLOSE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class _Server:
    """The fork server of this process; of the environment that was asked for last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._server: ForkServer | None = None

    @contextlib.contextmanager
    def lend(self, environment: Mapping[str, str]) -> Iterator[ForkServer | None]:
        """Yield the server; None while another thread uses it. It is closed after an exception."""
        if not self._lock.acquire(blocking=False):
            yield None
            return
        try:
            known = self._server
            if known is not None and not known.serves(environment):
                self.close()
            self._server = self._server or ForkServer(environment)
            yield self._server
        except BaseException:  # raised again: the server may be in the middle of an answer
            self.close()
            raise
        finally:
            self._lock.release()

    def close(self) -> None:
        """End the server where there is one."""
        server, self._server = self._server, None
        if server is not None:
            server.close()


_SERVER = _Server()
atexit.register(_SERVER.close)


@contextlib.contextmanager
def stage_process(
    request: dict[str, Any], path: Path, environment: Mapping[str, str]
) -> Iterator[StageProcess]:
    """Start the process of a stage; kill it when the block is left before its end.

    Args:
        request: What the stage is asked; written to ``path``, with what the process needs.
        path: The file to write.
        environment: Its environment.
    """
    own = {name: environment[name] for name in _OWN}
    about = {"environment": own, "folder": str(Path.cwd())}
    common = {name: value for name, value in environment.items() if name not in _OWN}
    with _SERVER.lend(common) if _HAS_FORK_SERVER else contextlib.nullcontext() as server:
        if server is not None:
            asked = {**request, "process": about, "parent": server.process.pid}
            path.write_text(json.dumps(asked))
            if (child := server.start(path)) is not None:
                with _killed_if_left(child):
                    yield child
                server.release(child)
                return
    path.write_text(json.dumps({**request, "process": about, "parent": os.getpid()}))
    started = subprocess.Popen(
        [sys.executable, "-m", "tvmopt.stages.child", str(path)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=dict(environment),
    )
    with _killed_if_left(started):
        yield started


@contextlib.contextmanager
def _killed_if_left(process: StageProcess) -> Iterator[None]:
    try:
        yield
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()

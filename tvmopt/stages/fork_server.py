"""Fork server: a process that has imported TVM and all stages, and forks a child for each stage.

A stage needs a separate process, and importing TVM and the modules of the stages takes a second
or two. The server imports once, runs no stage itself, and has no threads but NumPy's, so a fork of
it is as good as a new process. It ends when its client closes the socket, however the client ended.

The protocol, over a Unix socket; one child at a time::

    client                                server
    path of the request, fd of a pipe  ->
                                       <- {"pid": 12}     the child runs; its output is in the pipe
                                       <- {"code": 0}     it has ended; -9: ended by signal 9
    one byte                           ->                 its process id may be used again
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import socket
import sys
import tempfile
import traceback
from pathlib import Path
from typing import NoReturn

from tvmopt.device.tvm_import import import_tvm_without_torch
from tvmopt.errors import TvmoptError
from tvmopt.stages import child
from tvmopt.stages.registry import STAGES

# Modules that stages import when they run, beside their own. Nothing here may start a thread:
# ONNX Runtime and SciPy start some, so the modules of stages import these where they call them.
_PRELOADED = ("tvm.relax", "tvmopt.tune", "numpy.ma", "numpy.random", "onnx.reference")
_MOST_BYTES = 65536


def main(fileno: int) -> int:
    """Serve the socket with file descriptor ``fileno`` until it is closed; return the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the client and the child
    _import_all()
    with socket.socket(fileno=fileno) as channel:
        while True:
            message, files, _, _ = socket.recv_fds(channel, _MOST_BYTES, 1)
            if not message:
                return 0
            _compile_once(message.decode())
            pid = os.fork()
            if pid == 0:
                channel.close()
                _run(message.decode(), files[0])
            os.close(files[0])
            if not _serve(channel, pid):
                return 0


def _import_all() -> None:
    """Import TVM, the modules of all stages, and the kernel families."""
    import_tvm_without_torch()
    for name in [*(stage.module for stage in STAGES.values()), *_PRELOADED]:
        importlib.import_module(name)
    importlib.import_module("tvmopt.kernels.families").by_name()


def _compile_once(path: str) -> None:
    """Compile the runtime's C sources for this machine, which every library holds.

    The server does so before the first stage that links; its children inherit the object files.
    """
    stage = STAGES.get(json.loads(Path(path).read_text())["stage"])
    if stage is not None and stage.links:
        from tvmopt.codegen import native_objects  # after Ctrl-C is ignored: it imports TVM
        from tvmopt.link import compile_command

        with contextlib.suppress(TvmoptError):  # the stage raises it again, where it can be read
            native_objects.compiled_objects(compile_command())


def _serve(channel: socket.socket, pid: int) -> bool:
    """Report the start and the end of a child; return whether the client is still there."""
    ended = os.pidfd_open(pid)
    try:
        channel.sendall(json.dumps({"pid": pid}).encode() + b"\n")
        ready, _, _ = select.select([ended, channel.fileno()], [], [])
        if ended not in ready:  # the client sends nothing now, so it is gone
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return False
        # The process id is kept until the client cannot signal it any more.
        found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert found is not None
        code = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
        channel.sendall(json.dumps({"code": code}).encode() + b"\n")
        is_there = bool(channel.recv(1))
        os.waitpid(pid, 0)
        return is_there
    except ConnectionError:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return False
    finally:
        os.close(ended)


def _run(path: str, output: int) -> NoReturn:
    """Run the stage that the request at ``path`` names, in this forked process."""
    code = 1
    try:
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        own = json.loads(Path(path).read_text())["process"]
        os.environ.update(own["environment"])
        os.chdir(own["folder"])
        tempfile.tempdir = None  # of the server's environment
        code = child.main(path)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:  # the fork must end here, and never run the server's code
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))

"""BoardCpu: build candidates here, check and time them on a board through TVM's RPC tracker.

One session serves all candidates of a function. Candidates run with warm weights, unlike on the
host (:mod:`tvmopt.measure.host_cpu`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tvm import tirx
from tvm.target import Target

from tvmopt.kernels.cpu.reference import reference
from tvmopt.measure.device import Bench, Device, Inputs
from tvmopt.measure.host_cpu import CpuChecker, build_for_cpu, check_cpu_target
from tvmopt.measure.interleave import PLACES, Timing
from tvmopt.remote import Board
from tvmopt.remote.model import upload_library
from tvmopt.remote.session import WAIT_S, open_session

# Generous limits in seconds, because a board and its connection may be slow.
_SESSION_S, _SESSION_S_A_CANDIDATE = 120.0, 10.0


@dataclasses.dataclass(frozen=True)
class BoardCpu(Device):
    """The CPU of a board.

    Attributes:
        board: The board.
    """

    most_builders = 4

    board: Board = dataclasses.field(kw_only=True)

    @property
    def threads(self) -> int:
        """Threads of a kernel."""
        return self.arch.cores

    def check_target(self, target: Target, strategy: str) -> None:
        """Raise unless ``target`` is a CPU with ``num-cores`` that this machine can link for."""
        check_cpu_target(target, strategy)

    def shared_functions(self, func: tirx.PrimFunc) -> dict[str, tirx.PrimFunc]:
        """Return ``reference``."""
        return {"reference": reference(func, self.arch)}

    def build(self, functions: Mapping[str, tirx.PrimFunc], path: str | None) -> None:
        """Compile functions with LLVM; link a library when there is a ``path``."""
        build_for_cpu(functions, self.arch, path)

    @contextlib.contextmanager
    def bench(self, libraries: Sequence[str], inputs: Inputs, candidates: int) -> Iterator[Bench]:
        """Open a session and upload the libraries."""
        with open_session(self.board, self._session_s(candidates)) as session:
            session.get_function("runtime.config_threadpool")(1, self.threads)
            modules = [
                upload_library(session, Path(library), f"{number}.so")
                for number, library in enumerate(libraries)
            ]
            device = session.cpu()
            checker = CpuChecker(modules, inputs, device)

            def check(*candidate: Any) -> Timing:
                return functools.partial(_mean_s, device, *checker.check(*candidate))

            yield check

    def run_limit_s(self, candidates: int) -> float:
        """Return the timeout of a session, with the wait for a free board."""
        return self._session_s(candidates) + 2 * WAIT_S

    def _session_s(self, candidates: int) -> float:
        return _SESSION_S + _SESSION_S_A_CANDIDATE * candidates


def _mean_s(device: Any, module: Any, name: str, tensors: Sequence[Any], times: int) -> float:
    timer = module.time_evaluator(name, device, number=times * PLACES, repeat=1)
    return float(timer(*tensors).mean)

"""Measure candidates on a board through TVM's RPC tracker.

:func:`run_batch` is the counterpart of :func:`tvmopt.measure.batch.run_batch`: one session for all
candidates of a function. :class:`BoardRunner` wraps TVM's ``RPCRunner``, with one session per
candidate; its hooks check a candidate's output before timing, and enforce timeouts.

On a board, candidates run with warm weights, unlike in :mod:`tvmopt.measure.batch`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tvm

from tvmopt.device import dtypes
from tvmopt.errors import ArtifactError, last_line
from tvmopt.measure.batch import PLACES, ROUNDS, time_candidates
from tvmopt.measure.jobs import (
    check_places,
    compare,
    pack,
    packing_file,
    result_of,
    run_reference,
)
from tvmopt.measure.planted import planted_cases, replaced
from tvmopt.remote import Board
from tvmopt.remote.model import upload_library
from tvmopt.remote.session import WAIT_S, limited, open_session, request

_REPEATS, _REPEAT_MS = 3, 20
_THREADS = "runtime.config_threadpool"


def run_batch(
    board: dict[str, Any],
    threads: int,
    session_s: float,
    libraries: list[str],
    arguments: list[list[Any]],
    constants: list[int],
    candidates: list[list[Any]],
    seed: int,
    rounds: int = ROUNDS,
    weight_bytes: int = 0,
    planted: dict[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """Check candidates against the reference, then time the correct ones in interleaved rounds.

    Args:
        board: Fields of the :class:`~tvmopt.remote.Board`.
        threads: Number of threads that a candidate runs with.
        session_s: Session timeout in seconds.
        libraries: As for :func:`tvmopt.measure.batch.run_batch`.
        arguments: As for :func:`tvmopt.measure.batch.run_batch`.
        constants: Not used.
        candidates: As for :func:`tvmopt.measure.batch.run_batch`.
        seed: Seed of the inputs.
        rounds: Maximum number of timing rounds.
        weight_bytes: Not used.
        planted: As for :func:`tvmopt.measure.batch.run_batch`.

    Returns:
        As :func:`tvmopt.measure.batch.run_batch`.
    """
    with open_session(Board(**board), session_s) as session:
        return _run_batch(session, threads, libraries, arguments, candidates, seed, rounds, planted)


def _run_batch(
    session: Any,
    threads: int,
    libraries: list[str],
    arguments: list[list[Any]],
    candidates: list[list[Any]],
    seed: int,
    rounds: int,
    planted: dict[str, Any] | None,
) -> list[dict[str, Any]]:
    session.get_function(_THREADS)(1, threads)
    device = session.cpu()
    modules = [upload_library(session, Path(p), f"{n}.so") for n, p in enumerate(libraries)]
    shapes_and_types = [(tuple(shape), dtype) for shape, dtype in arguments]
    inputs, (*_, expected) = run_reference(modules[0]["reference"], shapes_and_types, seed, device)
    common = [tvm.runtime.tensor(array, device) for array in inputs]
    right = functools.partial(result_of, modules[0]["reference"], device=device)
    cases = planted_cases(inputs, planted, seed, right)

    def kernel(library: int, index: int, packed: list[int], outputs: Any) -> Callable[[int], float]:
        module, tensors = modules[library], list(common)
        if packed:
            pack(module[f"pack{index}"], tensors, packed, outputs, device)
        module[f"candidate{index}"](*tensors)
        compare(len(tensors) - 1, tensors[-1].numpy(), expected)
        for arrays, wanted in cases:
            others = replaced(tensors, inputs, arrays, device)
            module[f"candidate{index}"](*others)
            check_places(others[-1].numpy(), wanted)
        return functools.partial(_mean_s, module, f"candidate{index}", device, tensors)

    return time_candidates(candidates, kernel, rounds)


def _mean_s(module: Any, name: str, device: Any, tensors: list[Any], times: int) -> float:
    timer = module.time_evaluator(name, device, number=times * PLACES, repeat=1)
    return float(timer(*tensors).mean)


def reference(
    board: dict[str, Any],
    threads: int,
    session_s: float,
    library: str,
    arguments: list[list[Any]],
    seed: int,
    path: str,
    planted: dict[str, Any] | None = None,
) -> None:
    """Run the unscheduled function on a board and save inputs and outputs to ``path``."""
    with open_session(Board(**board), session_s) as session:
        session.get_function(_THREADS)(1, threads)
        module = upload_library(session, Path(library), "reference.so")
        shapes_and_types = [(tuple(shape), dtype) for shape, dtype in arguments]
        device = session.cpu()
        run = module["main"]
        inputs, outputs = run_reference(run, shapes_and_types, seed, device)
        cases = planted_cases(
            inputs, planted, seed, functools.partial(result_of, run, device=device)
        )
        del module, run
    arrays = {f"input_{n}": array for n, array in enumerate(inputs)}
    arrays |= {f"output_{n}": array for n, array in enumerate(outputs)}
    for case, (values, result) in enumerate(cases):
        arrays |= {f"planted{case}_{n}": array for n, array in enumerate(values)}
        arrays[f"result{case}_{len(inputs) - 1}"] = result
    np.savez(path, allow_pickle=False, **arrays)


class BoardRunner:
    """Check and time libraries one at a time with TVM's ``RPCRunner``.

    Args:
        board: The board.
        threads: Number of threads that a candidate runs with.
        session_s: Timeout of one candidate in seconds.
    """

    def __init__(self, board: Board, threads: int, session_s: float) -> None:
        from tvm.s_tir import meta_schedule as ms

        self._threads = threads
        self._limit_s = session_s + WAIT_S
        self._runner = ms.runner.RPCRunner(
            ms.runner.RPCConfig(board.host, board.port, board.key, 1, session_s),
            ms.runner.EvaluatorConfig(1, _REPEATS, _REPEAT_MS, False),
            f_create_session=_create_session,
            f_upload_module=_load,
            f_alloc_argument=_no_arguments,
            f_run_evaluator=_check_and_time,
            f_cleanup=_close,
        )

    def close(self) -> None:
        """Shut down the worker of ``RPCRunner``."""
        self._runner.pool.shutdown()

    def run(self, library: Path, expected: Path, arguments: list[list[Any]]) -> float:
        """Return the latency in microseconds of a library from :func:`tvmopt.measure.jobs.build`.

        Args:
            library: The candidate.
            expected: File that :func:`reference` saved.
            arguments: Shape and dtype of each argument.

        Raises:
            ArtifactError: When the candidate failed, with the reason.
            LimitError: When no answer arrived in time.
        """
        from tvm.s_tir import meta_schedule as ms

        job = {"expected": str(expected), "arguments": arguments, "threads": self._threads}
        _job_file(library).write_text(json.dumps(job))
        with limited(self._limit_s, f"no answer within {self._limit_s:g} s"):
            [future] = self._runner.run([ms.runner.RunnerInput(str(library), "cpu", [])])
            result = future.result()
        if result.run_secs is None:
            raise ArtifactError(last_line(Exception(str(result.error_msg))))
        return float(np.median([float(s) for s in result.run_secs])) * 1e6


def _job_file(library: Path) -> Path:
    return library.with_suffix(".job.json")


@dataclasses.dataclass
class _Loaded:
    """A candidate on the board, and its local library."""

    module: Any
    library: Path


def _create_session(config: Any) -> Any:
    """Open a session inside the worker of ``RPCRunner``; raises on timeout."""
    board = Board(config.tracker_host, config.tracker_port, config.tracker_key)
    return request(board, config.session_timeout_sec, WAIT_S)


def _load(session: Any, local_path: str, remote_path: str) -> _Loaded:
    return _Loaded(upload_library(session, Path(local_path), remote_path), Path(local_path))


def _no_arguments(*_: Any) -> list[Any]:
    return []  # the inputs are in the file of expected outputs


def _check_and_time(
    session: Any, loaded: _Loaded, device: Any, config: Any, _arguments: list[Any]
) -> list[float]:
    job = json.loads(_job_file(loaded.library).read_text())
    session.get_function(_THREADS)(1, job["threads"])
    types = [dtypes.dtype(dtype).numpy for _, dtype in job["arguments"]]
    with np.load(job["expected"], allow_pickle=False) as data:
        # NumPy stores dtypes that it does not know as raw bytes.
        def saved(side: str) -> list[np.ndarray]:
            return [data[f"{side}_{n}"].view(dtype) for n, dtype in enumerate(types)]

        inputs, expected = saved("input"), saved("output")
        cases: list[tuple[list[np.ndarray], np.ndarray]] = []
        while f"planted{len(cases)}_0" in data:
            result = data[f"result{len(cases)}_{len(types) - 1}"].view(types[-1])
            cases.append((saved(f"planted{len(cases)}"), result))
    tensors = [tvm.runtime.tensor(array, device) for array in inputs]
    packed, outputs = json.loads(packing_file(str(loaded.library)).read_text())
    if packed:
        pack(loaded.module["pack"], tensors, packed, outputs, device)
    loaded.module["main"](*tensors)
    for index, (tensor, wanted) in enumerate(zip(tensors, expected, strict=True)):
        if index not in packed:
            compare(index, tensor.numpy(), wanted)
    for arrays, result in cases:
        weights = set(packed)
        others = [
            tensor if n in weights else tvm.runtime.tensor(array, device)
            for n, (tensor, array) in enumerate(zip(tensors, arrays, strict=True))
        ]
        loaded.module["main"](*others)
        check_places(others[-1].numpy(), result)
    timer = loaded.module.time_evaluator(
        "main",
        device,
        number=config.number,
        repeat=config.repeat,
        min_repeat_ms=config.min_repeat_ms,
    )
    return [float(seconds) for seconds in timer(*tensors).results]


def _close(session: Any, remote_path: str | None) -> None:
    if session is not None and remote_path is not None:
        with contextlib.suppress(Exception), limited(5.0, "the board does not answer"):
            session.remove(remote_path)

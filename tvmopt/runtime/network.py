"""Call a network: by its executor, or by replay of a captured CUDA graph."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tvmopt.runtime.executor import MAIN, Executor
from tvmopt.runtime.sizes import of_size

#: Name of the compiled function that allocates the memory which ``main`` takes besides its inputs.
STORAGES = "storages"


def network(
    executor: Executor, inputs: Sequence[Any], on_gpu: bool | str, size: int = 0
) -> Callable[[], Sequence[Any]]:
    """Return a function that runs the network on ``inputs`` and returns its outputs when ready.

    On a GPU, the first call captures the launches in a CUDA graph, if the network allocates no
    memory itself. A replay costs the host one launch. The outputs then lie in the network's own
    memory, which the next call overwrites.

    Args:
        executor: The network, loaded.
        inputs: Input tensors on its device, shared by every call.
        on_gpu: Whether the device is a GPU.
        size: Which of its sizes.
    """
    main, allocate = of_size(MAIN, size), of_size(STORAGES, size)
    if not on_gpu:
        return executor.bind(main, inputs)
    if not executor.has(allocate):
        return LaunchedRun(executor.bind(main, inputs))
    storages = executor.bind(allocate, ())()
    return RecordedRun(executor.bind(main, (*inputs, *storages)))


class LaunchedRun:
    """Launch ``run`` kernel by kernel.

    Args:
        run: Returns the outputs, possibly before they are ready.
    """

    def __init__(self, run: Callable[[], Any]) -> None:
        self._run = run

    def __call__(self) -> Any:
        """Run, synchronise, and return the outputs."""
        import tvm

        result = self._run()
        tvm.cuda().sync()
        return result

    def launch(self) -> None:
        """Run without synchronising."""
        self._run()

    def seconds(self, calls: int) -> float:
        """Return the mean seconds of back-to-back calls, from GPU timestamps."""
        from tvmopt.device.cuda_graph import Stream

        stream = Stream()
        with stream.launching():
            return stream.seconds(lambda: _repeat(self._run, calls)) / calls


class RecordedRun:
    """Replay the launches of ``run``, captured at the first call.

    Kernels take workspace from TVM's per-thread pool. The pool frees a block when another function
    of its thread needs a larger one, but a captured graph refers to fixed addresses. Capture
    therefore runs in a separate thread, which ends with this object.

    Args:
        run: Launches the same work at the same addresses on every call.
    """

    def __init__(self, run: Callable[[], Any]) -> None:
        self._run = run
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tvmopt-recording")
        self._lock = threading.Lock()
        self._recording: _Recording | None = None

    def __call__(self) -> Any:
        """Run, wait, and return the outputs of ``run`` from the capture."""
        recording = self._recorded()
        recording.play()
        recording.stream.wait()
        return recording.result

    def launch(self) -> None:
        """Launch on the capture's stream, without waiting."""
        self._recorded().play()

    def seconds(self, calls: int) -> float:
        """Return the mean seconds of back-to-back calls, from GPU timestamps."""
        recording = self._recorded()
        return recording.stream.seconds(lambda: _repeat(recording.play, calls)) / calls

    def _recorded(self) -> _Recording:
        with self._lock:
            if self._recording is None:
                self._recording = self._thread.submit(_record, self._run).result()
            return self._recording


@dataclasses.dataclass(frozen=True)
class _Recording:
    """Captured launches.

    Attributes:
        stream: Stream of the replay.
        play: Launches the replay.
        result: Outputs of the captured function.
    """

    stream: Any
    play: Callable[[], None]
    result: Any


def _record(run: Callable[[], Any]) -> _Recording:
    from tvmopt.device.cuda_graph import Stream

    stream = Stream()
    with stream.launching():
        for _ in range(2):  # the capture must not allocate or load modules; warm up the pool
            run()
    stream.wait()
    results: list[Any] = []
    play = stream.record(lambda: results.append(run()))
    return _Recording(stream, play, results[0])


def _repeat(run: Callable[[], Any], times: int) -> None:
    for _ in range(times):
        run()

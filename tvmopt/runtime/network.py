"""One call of a network: by the virtual machine, or the launches that it made played back."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

#: Function of a compiled network that allocates the memory ``main`` is given beside its inputs.
STORAGES = "storages"


def network(machine: Any, inputs: Sequence[Any], on_gpu: bool | str) -> Callable[[], Any]:
    """What runs the network on ``inputs`` and gives its outputs once they are there.

    On a GPU its launches are recorded at the first call, where the network allocates
    nothing by itself: what is played back costs the host one launch. Outputs then lie in the
    network's own memory, which the next call writes again.

    Args:
        machine: TVM's virtual machine with the network loaded.
        inputs: Tensors on its device that every call reads.
        on_gpu: Whether that is a GPU.
    """
    main = machine["main"]
    if not on_gpu:
        return lambda: main(*inputs)
    if not machine.module.implements_function(STORAGES):
        return LaunchedRun(lambda: main(*inputs))
    storages = tuple(machine[STORAGES]())
    return RecordedRun(lambda: main(*inputs, *storages))


class LaunchedRun:
    """Launches what ``run`` does, kernel by kernel.

    Args:
        run: Gives the outputs, which may not be there yet.
    """

    def __init__(self, run: Callable[[], Any]) -> None:
        self._run = run

    def __call__(self) -> Any:
        """Run, wait, and give the outputs."""
        import tvm

        result = self._run()
        tvm.cuda().sync()
        return result

    def launch(self) -> None:
        """Run without waiting."""
        self._run()

    def seconds(self, calls: int) -> float:
        """Mean seconds of calls in a row, by the GPU's clock."""
        from tvmopt.device.cuda_graph import Stream

        stream = Stream()
        with stream.launching():
            return stream.seconds(lambda: _repeat(self._run, calls)) / calls


class RecordedRun:
    """Plays back the launches of ``run``, recorded at the first call.

    Kernels that need memory of their own take it from a pool that TVM keeps a thread, and a pool
    gives a block back when another function of its thread wants a larger one. A recording names
    addresses of blocks. So it is made in a thread of its own, which ends with this object.

    Args:
        run: Launches the same work at the same addresses on every call.
    """

    def __init__(self, run: Callable[[], Any]) -> None:
        self._run = run
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tvmopt-recording")
        self._lock = threading.Lock()
        self._recording: _Recording | None = None

    def __call__(self) -> Any:
        """Run, wait, and give what ``run`` gave when it was recorded."""
        recording = self._recorded()
        recording.play()
        recording.stream.wait()
        return recording.result

    def launch(self) -> None:
        """Run on the recording's stream, without waiting."""
        self._recorded().play()

    def seconds(self, calls: int) -> float:
        """Mean seconds of calls in a row, by the GPU's clock."""
        recording = self._recorded()
        return recording.stream.seconds(lambda: _repeat(recording.play, calls)) / calls

    def _recorded(self) -> _Recording:
        with self._lock:
            if self._recording is None:
                self._recording = self._thread.submit(_record, self._run).result()
            return self._recording


@dataclasses.dataclass(frozen=True)
class _Recording:
    """Launches that were recorded.

    Attributes:
        stream: Where they are played.
        play: Plays them.
        result: What the function gave that made them.
    """

    stream: Any
    play: Callable[[], None]
    result: Any


def _record(run: Callable[[], Any]) -> _Recording:
    from tvmopt.device.cuda_graph import Stream

    stream = Stream()
    with stream.launching():
        for _ in range(2):  # allocates and loads what the recording must not; the pool settles
            run()
    stream.wait()
    results: list[Any] = []
    play = stream.record(lambda: results.append(run()))
    return _Recording(stream, play, results[0])


def _repeat(run: Callable[[], Any], times: int) -> None:
    for _ in range(times):
        run()

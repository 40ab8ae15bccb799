"""One call of a network: by the virtual machine, or the launches that it made played back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

#: Function of a compiled network that allocates the memory ``main`` is given beside its inputs.
STORAGES = "storages"


def network(machine: Any, inputs: Sequence[Any], on_gpu: bool | str) -> Callable[[], Any]:
    """What runs the network on ``inputs`` and gives its outputs once they are there.

    On a GPU its launches are recorded at the first call of each thread, where the network allocates
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
        from tvmopt.cuda.graph import Stream

        stream = Stream()
        with stream.launching():
            return stream.seconds(lambda: _repeat(self._run, calls)) / calls


class RecordedRun:
    """Plays back the launches of ``run``, recorded once a thread.

    Kernels that need memory of their own take it from a pool that TVM keeps a thread; a recording
    names addresses of it and must not outlive the thread.

    Args:
        run: Launches the same work at the same addresses on every call.
    """

    def __init__(self, run: Callable[[], Any]) -> None:
        self._run = run
        self._here = threading.local()

    def __call__(self) -> Any:
        """Run, wait, and give what ``run`` gave when it was recorded."""
        self.launch()
        self._here.stream.wait()
        return self._here.result

    def launch(self) -> None:
        """Run on the stream of this thread's recording, without waiting."""
        if not hasattr(self._here, "play"):
            self._record()
        self._here.play()

    def seconds(self, calls: int) -> float:
        """Mean seconds of calls in a row, by the GPU's clock."""
        self()
        return self._here.stream.seconds(lambda: _repeat(self._here.play, calls)) / calls

    def _record(self) -> None:
        from tvmopt.cuda.graph import Stream

        stream = Stream()
        with stream.launching():
            self._run()  # allocates and loads what the recording must not
        stream.wait()

        def run() -> None:
            self._here.result = self._run()

        self._here.play = stream.record(run)
        self._here.stream = stream


def _repeat(run: Callable[[], Any], times: int) -> None:
    for _ in range(times):
        run()

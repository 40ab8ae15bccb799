"""Requests that wait for the model: a bounded queue, and calls for several requests at once.

A call takes the waiting requests whose rows fit into it together, so that a model that was compiled
for several rows is called once for several clients. Nobody waits while the model is free, unless
``wait_s`` says so. A model that answers at once is called without a thread.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus

import numpy as np

from tvmopt.tracking.serving.refusal import RefusedRequestError

Inputs = Mapping[str, np.ndarray]
Call = Callable[[Inputs], Sequence[np.ndarray]]

# A call that takes less than a switch to a thread and back is made without.
_QUICK_S = 0.0005


class _Request:
    """A request that waits: its inputs, their rows, and the outputs to come."""

    def __init__(self, inputs: Inputs, rows: int) -> None:
        self.inputs, self.rows = inputs, rows
        self.outputs: asyncio.Future[Sequence[np.ndarray]] = (
            asyncio.get_running_loop().create_future()
        )


class RequestQueue:
    """Calls a model for requests in the order in which they came; for one event loop.

    Args:
        call: Returns the outputs of the model; it is called from several threads.
        most_rows: Rows of one call, where the first axis of all tensors counts independent samples;
            0: a call takes one request.
        calls_at_once: Calls that run at once.
        most_waiting: Requests that may wait.
        wait_s: Seconds that a request waits for others while the model is free.
    """

    def __init__(
        self, call: Call, most_rows: int, calls_at_once: int, most_waiting: int, wait_s: float
    ) -> None:
        self._call, self._most_rows = call, most_rows
        self._calls_at_once, self._most_waiting = calls_at_once, most_waiting
        self._wait_s = wait_s
        self._threads = ThreadPoolExecutor(calls_at_once, "tvmopt-call")
        self._waiting: deque[_Request] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._running = 0
        self._seconds = 1.0  # of the last call

    def outputs_at_once(self, inputs: Inputs) -> Sequence[np.ndarray] | None:
        """Return the outputs if the model is free and answers at once; else None."""
        if self._seconds < _QUICK_S and not self._running and not self._waiting:
            return self._timed(inputs)
        return None

    async def outputs(self, inputs: Inputs) -> Sequence[np.ndarray]:
        """Return the outputs for the inputs of one request; a cancelled request is not computed.

        Raises:
            RefusedRequestError: When too many requests wait.
        """
        if len(self._waiting) >= self._most_waiting:
            self._waiting = deque(one for one in self._waiting if not one.outputs.done())
        if len(self._waiting) >= self._most_waiting:
            raise RefusedRequestError(
                f"at most {self._most_waiting} requests may wait, but as many do; try again later",
                HTTPStatus.SERVICE_UNAVAILABLE,
            )
        rows = len(next(iter(inputs.values()))) if self._most_rows else 1
        request = _Request(inputs, rows)
        self._waiting.append(request)
        self._begin_calls()
        return await request.outputs

    def close(self) -> None:
        """End the threads once their calls have ended."""
        self._threads.shutdown(wait=False)

    def _begin_calls(self, *, waited: bool = False) -> None:
        while self._waiting and self._running < self._calls_at_once:
            if self._wait_s and not waited and not self._is_full():
                if self._timer is None:
                    loop = asyncio.get_running_loop()
                    self._timer = loop.call_later(self._wait_s, self._end_waiting)
                return
            if group := self._next_group():
                self._running += 1
                asyncio.get_running_loop().create_task(self._answer(group))

    def _end_waiting(self) -> None:
        self._timer = None
        self._begin_calls(waited=True)

    def _is_full(self) -> bool:
        return sum(request.rows for request in self._waiting) >= max(1, self._most_rows)

    def _next_group(self) -> list[_Request]:
        """Take the first waiting requests that one call can answer."""
        group: list[_Request] = []
        rows = 0
        while self._waiting:
            first = self._waiting[0]
            if group and rows + first.rows > self._most_rows:
                break
            if group and not _same_beside_rows(first.inputs, group[0].inputs):
                break
            self._waiting.popleft()
            if not first.outputs.done():
                group.append(first)
                rows += first.rows
        return group

    async def _answer(self, group: list[_Request]) -> None:
        loop = asyncio.get_running_loop()
        try:
            inputs = _joined([request.inputs for request in group])
            outputs = await loop.run_in_executor(self._threads, self._timed, inputs)
        except Exception as error:  # each request of the group raises it
            for request in group:
                if not request.outputs.done():
                    request.outputs.set_exception(error)
        else:
            begin = 0
            for request in group:
                end = begin + request.rows
                own = outputs if len(group) == 1 else [array[begin:end] for array in outputs]
                if not request.outputs.done():
                    request.outputs.set_result(own)
                begin = end
        finally:
            self._running -= 1
            self._begin_calls()

    def _timed(self, inputs: Inputs) -> Sequence[np.ndarray]:
        start = time.perf_counter()
        outputs = self._call(inputs)
        self._seconds = time.perf_counter() - start
        return outputs


def _same_beside_rows(one: Inputs, other: Inputs) -> bool:
    """Return whether inputs have the same shapes but for their rows."""
    return all(array.shape[1:] == other[name].shape[1:] for name, array in one.items())


def _joined(several: Sequence[Inputs]) -> Inputs:
    if len(several) == 1:
        return several[0]
    return {name: np.concatenate([one[name] for one in several]) for name in several[0]}

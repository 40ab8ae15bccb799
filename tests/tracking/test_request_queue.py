"""The queue in front of a served model: joined requests, order, bounds, clients that go away."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Awaitable, Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tvmopt.tracking.serving.refusal import RefusedRequestError
from tvmopt.tracking.serving.request_queue import RequestQueue


class _Model:
    """Doubles ``x``, and notes the rows of each call; waits for ``go`` unless it is set."""

    def __init__(self, seconds: float = 0.002) -> None:
        self.rows: list[int] = []
        self.go = threading.Event()
        self.go.set()
        self._seconds = seconds

    def __call__(self, inputs):
        self.go.wait(20)
        time.sleep(self._seconds)
        self.rows.append(len(inputs["x"]))
        if np.isnan(inputs["x"]).any():
            raise RuntimeError("no such number")
        return [inputs["x"] * 2, inputs["x"].sum(axis=1)]


def _queue(model: _Model, rows=4, calls=1, waiting=100, wait_s=0.0) -> RequestQueue:
    return RequestQueue(model, rows, calls, waiting, wait_s)


def _run(work: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(work(), 60))


def _x(*values: float) -> dict[str, np.ndarray]:
    return {"x": np.array([values], np.float32).T}


async def _held(queue: RequestQueue, model: _Model, *later: dict) -> list[asyncio.Future]:
    """Let one request occupy the model, and ``later`` ones wait; return the futures of all."""
    model.go.clear()
    found = [asyncio.ensure_future(queue.outputs(_x(0.0)))]
    await asyncio.sleep(0.05)
    found += [asyncio.ensure_future(queue.outputs(inputs)) for inputs in later]
    await asyncio.sleep(0.05)
    return found


def test_requests_that_wait_are_joined_as_far_as_they_fit() -> None:
    async def work() -> None:
        model = _Model()
        queue = _queue(model)
        parts = [_x(1.0), _x(2.0, 3.0), _x(4.0, 5.0), _x(6.0), _x(7.0)]
        futures = await _held(queue, model, *parts)
        model.go.set()
        answers = await asyncio.gather(*futures)
        assert model.rows == [1, 3, 4]  # the first one; then 1 + 2; then 2 + 1 + 1 rows
        for inputs, (double, total) in zip(parts, answers[1:], strict=True):
            np.testing.assert_array_equal(double, inputs["x"] * 2)
            np.testing.assert_array_equal(total, inputs["x"][:, 0])

    _run(work)


def test_a_request_of_more_rows_than_a_call_takes_goes_alone() -> None:
    async def work() -> None:
        model = _Model()
        queue = _queue(model, rows=2)
        futures = await _held(queue, model, _x(*range(5)), _x(1.0))
        model.go.set()
        await asyncio.gather(*futures)
        assert model.rows == [1, 5, 1]

    _run(work)


def test_a_model_of_a_fixed_shape_takes_one_request_a_call() -> None:
    async def work() -> None:
        model = _Model()
        futures = await _held(queue := _queue(model, rows=0), model, _x(1.0), _x(2.0))
        model.go.set()
        await asyncio.gather(*futures)
        assert model.rows == [1, 1, 1]
        queue.close()

    _run(work)


def test_a_full_queue_refuses_and_goes_on() -> None:
    async def work() -> None:
        model = _Model()
        queue = _queue(model, waiting=2)
        futures = await _held(queue, model, _x(1.0), _x(2.0))
        with pytest.raises(RefusedRequestError, match="at most 2 requests may wait") as refused:
            await queue.outputs(_x(3.0))
        assert refused.value.status == 503
        model.go.set()
        await asyncio.gather(*futures)
        assert (await queue.outputs(_x(3.0)))[0].item() == 6

    _run(work)


def test_clients_that_go_away_cost_nothing() -> None:
    async def work() -> None:
        model = _Model()
        queue = _queue(model, rows=1, waiting=3)
        futures = await _held(queue, model, _x(1.0), _x(2.0), _x(3.0))
        for future in futures[1:3]:
            future.cancel()
        await asyncio.sleep(0.01)
        more = asyncio.ensure_future(queue.outputs(_x(4.0)))  # their places are free
        await asyncio.sleep(0.01)
        model.go.set()
        assert (await more)[0].item() == 8
        assert (await futures[3])[0].item() == 6
        assert model.rows == [1, 1, 1]

    _run(work)


def test_an_error_reaches_its_requests_and_no_other() -> None:
    async def work() -> None:
        model = _Model()
        queue = _queue(model, rows=2)
        futures = await _held(queue, model, _x(np.nan), _x(1.0), _x(2.0))
        model.go.set()
        found = await asyncio.gather(*futures, return_exceptions=True)
        assert [isinstance(one, RuntimeError) for one in found] == [False, True, True, False]

    _run(work)


def test_requests_wait_for_others_as_long_as_asked() -> None:
    async def work() -> None:
        model = _Model()
        queue = _queue(model, wait_s=1.0)
        start = time.perf_counter()
        first = asyncio.ensure_future(queue.outputs(_x(1.0)))
        await asyncio.sleep(0.02)
        second = asyncio.ensure_future(queue.outputs(_x(2.0)))
        await asyncio.gather(first, second)
        assert model.rows == [2]
        assert 0.9 < time.perf_counter() - start < 20
        full = [asyncio.ensure_future(queue.outputs(_x(float(n)))) for n in range(4)]
        start = time.perf_counter()
        await asyncio.gather(*full)
        assert time.perf_counter() - start < 0.8  # there is no room for others

    _run(work)


def test_calls_run_at_once() -> None:
    async def work() -> None:
        model = _Model(seconds=0.5)
        queue = _queue(model, rows=0, calls=4)
        start = time.perf_counter()
        await asyncio.gather(*(queue.outputs(_x(float(n))) for n in range(4)))
        assert time.perf_counter() - start < 1.5

    _run(work)


def test_a_quick_model_is_called_without_a_thread() -> None:
    async def work() -> None:
        seen: list[str] = []

        def call(inputs):
            seen.append(threading.current_thread().name)
            return [inputs["x"]]

        queue = RequestQueue(call, 4, 1, 10, 0.0)
        assert queue.outputs_at_once(_x(1.0)) is None  # its time is not known
        await queue.outputs(_x(1.0))
        assert queue.outputs_at_once(_x(2.0))[0].item() == 2
        assert [name.startswith("tvmopt-call") for name in seen] == [True, False]

    _run(work)


@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=30),
    st.integers(0, 8),
    st.integers(1, 3),
    st.sampled_from([0.0, 0.001]),
)
@settings(max_examples=40, deadline=None)
def test_every_request_gets_its_own_rows(sizes, rows, calls, wait_s) -> None:
    async def work() -> None:
        queue = RequestQueue(_Model(seconds=0), rows, calls, 100, wait_s)
        begins = np.cumsum([0, *sizes])
        requests = [_x(*range(a, b)) for a, b in itertools.pairwise(begins)]
        answers = await asyncio.gather(*map(queue.outputs, requests))
        for inputs, (double, _) in zip(requests, answers, strict=True):
            np.testing.assert_array_equal(double, inputs["x"] * 2)
        queue.close()

    _run(work)

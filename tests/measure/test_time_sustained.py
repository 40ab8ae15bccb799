"""Tests of timing under sustained load, which decides among the fastest kernels."""

from __future__ import annotations

import itertools

from tvmopt.measure.time_sustained import time_sustained


class Gpu:
    """A fake GPU that slows down the longer it runs hot kernels; a call takes a millisecond."""

    def __init__(self) -> None:
        self.heat = 0.0
        self.order: list[int] = []

    def kernel(self, place: int, seconds: float, hot: float):
        def run(_times: int) -> float:
            self.order.append(place)
            self.heat = 0.9 * self.heat + 0.1 * hot
            return seconds * (1 + self.heat)

        return run


def test_a_kernel_that_is_slower_under_load_loses():
    gpu = Gpu()
    calls = itertools.count()

    def short_lived(_times: int) -> float:
        return 1e-3 if next(calls) < 12 else 1.3e-3  # fast only in short bursts

    kernels = {0: gpu.kernel(0, 1.05e-3, 0.0), 1: short_lived}
    found = time_sustained(kernels, 4)
    assert found[0][0] < found[1][0]


def test_short_kernels_are_not_timed_again():
    gpu = Gpu()
    found = time_sustained({0: gpu.kernel(0, 1e-5, 0), 1: gpu.kernel(1, 1.01e-5, 0)}, 4)
    assert set(found) == {0, 1}
    assert len(gpu.order) <= 2 * 4


def test_others_stay_behind_the_leaders():
    gpu = Gpu()
    kernels = {p: gpu.kernel(p, s, 0.5) for p, s in enumerate((1e-3, 1.01e-3, 1.5e-3))}
    found = time_sustained(kernels, 5)
    assert found[2][0] > max(found[0][0], found[1][0])


def test_the_choice_is_among_those_that_were_timed_again():
    gpu = Gpu()
    calls = itertools.count()

    def leader(_times: int) -> float:
        return 1e-3 if next(calls) < 30 else 1.2e-3  # all leaders slow down, and this one, too

    kernels = {0: gpu.kernel(0, 1.004e-3, 0), 1: leader} | {
        place: gpu.kernel(place, 1.01e-3 + place * 1e-6, 0) for place in range(2, 12)
    }
    found = time_sustained(kernels, 4)
    again = {place for place, (_, timed) in found.items() if timed == 5}
    assert 0 in again and len(again) == 4
    others = [us for place, (us, _) in found.items() if place not in again]
    assert min(others) >= max(found[place][0] for place in again)


def test_rounds_rotate():
    gpu = Gpu()
    time_sustained({p: gpu.kernel(p, 1e-3, 0) for p in range(3)}, 4)
    last = [p for p, _ in itertools.groupby(gpu.order)][-9:]
    assert len({last[i] for i in (0, 3, 6)}) > 1 or len(set(last)) == 3


def test_nothing_to_time():
    assert time_sustained({}, 3) == {}

"""Compare large arrays on the GPU, so that only a few numbers are copied to the host."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tvm
from tvm import s_tir, te, tirx

from tvmopt.device import dtypes
from tvmopt.measure.check import WrongResultError, random_array

#: Number of partial results; each is the maximum over every ``PARTS``-th element.
PARTS = 65536
_THREADS = 256
# Period of the repeated random inputs; a prime number, so that no two rows are equal.
_PERIOD = 1_000_003
# Lower bound of the reported difference between a finite number and NaN or infinity.
_INFINITE = float(np.finfo(np.float32).max)


def difference(count: int, dtype: str) -> tirx.PrimFunc:
    """Return the scheduled GPU kernel of :func:`plain_difference`, one thread per part."""
    sch = s_tir.Schedule(plain_difference(count, dtype))
    for name in ("worst", "big"):
        part, _ = sch.get_loops(sch.get_sblock(name))
        outer, inner = sch.split(part, [None, _THREADS])
        sch.bind(outer, "blockIdx.x")
        sch.bind(inner, "threadIdx.x")
    return sch.mod["main"]


def plain_difference(count: int, dtype: str) -> tirx.PrimFunc:
    """Return a kernel ``(got[count], wanted[count], worst[PARTS], largest[PARTS])``.

    ``worst`` (float32) is the largest absolute difference; it is infinite where exactly one of both
    is NaN or infinite. ``largest`` (float32) is the largest finite magnitude of ``wanted``.
    """
    got = te.placeholder((count,), dtype, "got")
    wanted = te.placeholder((count,), dtype, "wanted")
    steps = -(-count // PARTS)
    row, wide = dtypes.dtype(dtype), dtypes.dtype("float32")
    inner = "float64" if row.significant_bits > wide.significant_bits else wide.name
    zero, infinite = tirx.const(0, inner), tirx.max_value("float32")
    step, again = te.reduce_axis((0, steps), "step"), te.reduce_axis((0, steps), "again")

    def at(tensor: te.Tensor, place: tirx.Expr) -> tirx.Expr:
        return tensor[place].astype(inner)

    def distance(place: tirx.Expr) -> tirx.Expr:
        a, b = at(got, place), at(wanted, place)
        if dtype.startswith(("int", "uint", "bool")):
            return tirx.Select(a == b, zero, tirx.abs(a - b)).astype("float32")
        far = tirx.Select(tirx.any(a == b, tirx.all(_is_nan(a), _is_nan(b))), zero, tirx.abs(a - b))
        return tirx.Select(_is_nan(far), infinite, far.astype("float32"))

    def size(place: tirx.Expr) -> tirx.Expr:
        b = tirx.abs(at(wanted, place)).astype("float32")
        return tirx.Select(b < infinite, b, tirx.const(0, "float32"))

    def over(of: object, axis: tirx.IterVar, name: str) -> te.Tensor:
        return te.compute(
            (PARTS,),
            lambda part: te.max(
                tirx.if_then_else(
                    axis * PARTS + part < count,
                    of(axis * PARTS + part),  # type: ignore[operator]
                    tirx.const(0, "float32"),
                ),
                axis=axis,
            ),
            name,
        )

    worst, big = over(distance, step, "worst"), over(size, again, "big")
    return te.create_prim_func([got, wanted, worst, big])


def _is_nan(value: tirx.Expr) -> tirx.Expr:
    """Return whether ``value`` is NaN, by its bits, since TVM simplifies ``x != x`` to false."""
    bits = tirx.reinterpret("uint32", value.astype("float32"))
    return (bits & tirx.const(0x7FFFFFFF, "uint32")) > tirx.const(0x7F800000, "uint32")


def check_equal(compare: object, got: object, wanted: object, tolerance: float) -> None:
    """Raise :class:`WrongResultError` unless two GPU arrays are equal within tolerance.

    Args:
        compare: The built kernel of :func:`difference`.
        got: The result to check, flat.
        wanted: The expected result, flat.
        tolerance: Largest difference, relative to the largest finite magnitude of ``wanted``.
    """
    worst, largest = _worst(compare, got, wanted)
    allowed = tolerance * max(largest, 1e-6)
    if not worst <= allowed:
        raise WrongResultError(f"wrong result: off by {worst:.3g}, allowed {allowed:.3g}")


def check_same_places(compare: object, got: object, wanted: object) -> None:
    """Raise :class:`WrongResultError` unless NaN and infinities are at the same positions.

    Args:
        compare: The built kernel of :func:`difference`.
        got: The result to check, flat.
        wanted: The expected result, flat.
    """
    worst, _ = _worst(compare, got, wanted)
    if not worst < _INFINITE:
        raise WrongResultError(
            "wrong result: NaN and infinities of planted inputs are not where the reference has "
            "them"
        )


def check_no_place_lost(got: np.ndarray, wanted: np.ndarray) -> None:
    """Raise :class:`WrongResultError` where ``got`` is finite and ``wanted`` is not."""
    lost = np.isfinite(got.astype(np.float64)) & ~np.isfinite(wanted.astype(np.float64))
    if lost.any():
        raise WrongResultError(
            f"wrong result: {lost.sum()} outputs are finite where planted inputs give NaN or an "
            "infinity"
        )


def _worst(compare: object, got: object, wanted: object) -> tuple[float, float]:
    """Return the largest difference of two flat GPU arrays, and the largest finite ``wanted``."""
    device = tvm.runtime.cuda(0)
    parts = [tvm.runtime.empty((PARTS,), "float32", device) for _ in range(2)]
    compare(got, wanted, *parts)  # type: ignore[operator]
    worst, largest = (float(part.numpy().max()) for part in parts)
    return worst, largest


def filled(shape: tuple[int, ...], dtype: str, seed: int, positive: bool, device: Any) -> Any:
    """Return a tensor of random numbers on ``device``; about a million numbers repeat.

    Args:
        shape: Its shape.
        dtype: Its dtype.
        seed: Random seed.
        positive: Draw floats from (0.1, 1) instead of a normal distribution.
        device: Device of the tensor.
    """
    return repeated(some_of(shape, dtype, seed, positive), shape, dtype, device)


def some_of(shape: tuple[int, ...], dtype: str, seed: int, positive: bool) -> np.ndarray:
    """Return the random numbers that :func:`filled` repeats: at most about a million."""
    count = min(math.prod(shape), _PERIOD)
    return random_array(np.random.default_rng(seed), (count,), dtype, positive)


def repeated(some: np.ndarray, shape: tuple[int, ...], dtype: str, device: Any) -> Any:
    """Return a tensor of ``shape`` on ``device`` that repeats the elements of ``some``."""
    tensor = tvm.runtime.empty(shape, dtype, device)
    start = np.ascontiguousarray(some).view(np.uint8)
    size = math.prod(shape) * some.itemsize
    done = min(start.size, size)
    raw = tensor._create_view((size,), "uint8")
    raw._create_view((done,)).copyfrom(start[:done])
    while done < size:  # double the filled part each time
        step = min(done, size - done)
        raw._create_view((step,)).copyto(raw._create_view((step,), None, done))
        done += step
    device.sync()
    return tensor

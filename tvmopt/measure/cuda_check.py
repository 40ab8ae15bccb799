"""Compare two big arrays on the GPU: what comes back is a few numbers, not the arrays."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tvm
from tvm import s_tir, te, tirx

from tvmopt.device import dtypes
from tvmopt.measure.jobs import WrongResultError, random_array

#: Partial results; each is the largest over every ``PARTS``-th element.
PARTS = 65536
_THREADS = 256
# Elements after which random inputs repeat: a prime, so that no two rows are alike.
_PERIOD = 1_000_003
# What the difference of a number and NaN or an infinity is at least.
_INFINITE = float(np.finfo(np.float32).max)


def difference(count: int, dtype: str) -> tirx.PrimFunc:
    """:func:`plain_difference`, a thread a part."""
    sch = s_tir.Schedule(plain_difference(count, dtype))
    for name in ("worst", "big"):
        part, _ = sch.get_loops(sch.get_sblock(name))
        outer, inner = sch.split(part, [None, _THREADS])
        sch.bind(outer, "blockIdx.x")
        sch.bind(inner, "threadIdx.x")
    return sch.mod["main"]


def plain_difference(count: int, dtype: str) -> tirx.PrimFunc:
    """``(got[count], wanted[count], worst[PARTS], largest[PARTS])``, both results in float32.

    ``worst`` is the largest difference, infinite where only one of both is no number or infinite;
    ``largest`` the largest finite magnitude of ``wanted``.
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

    def apart(place: tirx.Expr) -> tirx.Expr:
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

    worst, big = over(apart, step, "worst"), over(size, again, "big")
    return te.create_prim_func([got, wanted, worst, big])


def _is_nan(value: tirx.Expr) -> tirx.Expr:
    """Whether ``value`` is no number: by its bits, since TVM takes ``x != x`` for false."""
    bits = tirx.reinterpret("uint32", value.astype("float32"))
    return (bits & tirx.const(0x7FFFFFFF, "uint32")) > tirx.const(0x7F800000, "uint32")


def check_equal(compare: object, got: object, wanted: object, dtype: str) -> None:
    """Raise :class:`WrongResultError` unless two arrays on the GPU are equal but for rounding.

    Args:
        compare: What :func:`difference` became.
        got: The result to check, flat.
        wanted: What it should be, flat.
        dtype: Their type.
    """
    worst, largest = _worst(compare, got, wanted)
    allowed = dtypes.dtype(dtype).kernel_tolerance * max(largest, 1e-6)
    if not worst <= allowed:
        raise WrongResultError(f"wrong result: off by {worst:.3g}, allowed {allowed:.3g}")


def check_same_places(compare: object, got: object, wanted: object) -> None:
    """Raise :class:`WrongResultError` unless NaN and infinities are at the same places of both.

    Args:
        compare: What :func:`difference` became.
        got: The result to check, flat.
        wanted: What it should be, flat.
    """
    worst, _ = _worst(compare, got, wanted)
    if not worst < _INFINITE:
        raise WrongResultError(
            "wrong result: NaN and infinities of planted inputs are not where the reference has "
            "them"
        )


def _worst(compare: object, got: object, wanted: object) -> tuple[float, float]:
    """The largest difference of two flat arrays on the GPU, and the largest finite ``wanted``."""
    device = tvm.runtime.cuda(0)
    parts = [tvm.runtime.empty((PARTS,), "float32", device) for _ in range(2)]
    compare(got, wanted, *parts)  # type: ignore[operator]
    worst, largest = (float(part.numpy().max()) for part in parts)
    return worst, largest


def filled(shape: tuple[int, ...], dtype: str, seed: int, positive: bool, device: Any) -> Any:
    """Random numbers of ``shape`` on ``device``: a million of them over and over, copied there.

    Args:
        shape: Its shape.
        dtype: Its type.
        seed: Seed of the numbers.
        positive: Whether floats are of (0.1, 1) rather than of a normal distribution.
        device: Where the tensor is to be.
    """
    return repeated(some_of(shape, dtype, seed, positive), shape, dtype, device)


def some_of(shape: tuple[int, ...], dtype: str, seed: int, positive: bool) -> np.ndarray:
    """What :func:`filled` repeats: as many random numbers as ``shape`` has, at most a million."""
    count = min(math.prod(shape), _PERIOD)
    return random_array(np.random.default_rng(seed), (count,), dtype, positive)


def repeated(some: np.ndarray, shape: tuple[int, ...], dtype: str, device: Any) -> Any:
    """A tensor of ``shape`` on ``device`` that holds ``some`` over and over."""
    tensor = tvm.runtime.empty(shape, dtype, device)
    start = np.ascontiguousarray(some).view(np.uint8)
    size = math.prod(shape) * some.itemsize
    done = min(start.size, size)
    raw = tensor._create_view((size,), "uint8")
    raw._create_view((done,)).copyfrom(start[:done])
    while done < size:  # twice as much each time
        step = min(done, size - done)
        raw._create_view((step,)).copyto(raw._create_view((step,), None, done))
        done += step
    device.sync()
    return tensor

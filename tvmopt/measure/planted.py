"""Check that a candidate propagates NaN and infinities as the reference does.

A candidate that matches the reference on random numbers may still lose NaN: a maximum with
exchanged operands, or a vectorised exponential that clamps its argument. Candidates therefore also
run on planted inputs: random numbers with NaN, infinities, huge and subnormal values among them.

:func:`planting` decides, on the tuner's side, which special values a function supports.
:func:`planted_cases` creates the inputs in the worker.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import ir, s_tir, tirx

from tvmopt.device.dtypes import FLOATS, WIDE_FLOATS
from tvmopt.kernels.passes.skip_padding import is_read
from tvmopt.kernels.winograd_matrices import WINOGRAD_ATTR

# Values planted in an argument more than this many times smaller than the largest one (a scale,
# say) would spread to the whole output.
_SMALL = 16
# Minimum distance in elements between two planted values, where the array is large enough.
_APART = 61


@dataclasses.dataclass(frozen=True)
class Planting:
    """Special values that may be planted in the arguments of a function.

    Attributes:
        arguments: Indices of the arguments; empty when nothing may be planted.
        nan: Whether NaN may occur among numbers. False for max and min reductions, whose result
            depends on the order of operands.
        huge: Whether huge and subnormal values may occur. False where FMA contraction decides
            whether a difference of huge values overflows, and where a family does not overflow
            alike (:meth:`tvmopt.kernels.family.Family.overflows_alike`).
        spreads: Whether NaN and infinities may reach further outputs than in the reference
            (:meth:`tvmopt.kernels.family.Family.spreads_non_finite`).
    """

    arguments: tuple[int, ...] = ()
    nan: bool = True
    huge: bool = True
    spreads: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable dictionary for :func:`planted_cases`."""
        return dataclasses.asdict(self)


def planting(func: tirx.PrimFunc, constants: Sequence[int] = ()) -> Planting:
    """Return the special values that may be planted in the arguments of ``func``.

    Nothing is planted where a float is cast to an integer: the cast of NaN is undefined, and the
    integer may be an index. Weights stay finite, as in a model. Arguments much smaller than the
    largest one stay unchanged, because their values would reach the whole output.

    Args:
        func: The unscheduled function; its last argument is the output.
        constants: Indices of the arguments that are weights.
    """
    dtypes = [str(param.dtype) for param in func.params]
    arguments = [i for i, dtype in enumerate(dtypes[:-1]) if dtype in FLOATS]
    sizes = [math.prod(int(e) for e in param.shape) for param in func.params]
    most = max((sizes[i] for i in arguments if i not in constants), default=0)
    arguments = [i for i in arguments if i not in constants and sizes[i] * _SMALL >= most]
    if not arguments or dtypes[-1] not in FLOATS:
        return Planting()
    to_integers: list[tirx.Cast] = []
    extrema, reductions, winograd = 0, 0, False

    def on_cast(cast: tirx.Cast) -> None:
        if _is_float(cast.value) and not _is_float(cast):
            to_integers.append(cast)

    def on_store(store: tirx.BufferStore) -> None:
        nonlocal extrema
        value = store.value
        if isinstance(value, tirx.Max | tirx.Min) and any(
            is_read(operand, store) for operand in (value.a, value.b)
        ):
            extrema += 1

    def on_block(block: s_tir.SBlock) -> None:
        nonlocal reductions, winograd
        reductions += block.init is not None
        winograd = winograd or WINOGRAD_ATTR in (block.annotations or {})

    walk: list[tuple[Any, Callable[[Any], None]]] = [
        (tirx.Cast, on_cast), (tirx.BufferStore, on_store), (s_tir.SBlock, on_block),
    ]  # fmt: skip
    tvm_ffi.structural_walk(func.body, walk, order="post")
    if to_integers:
        return Planting()
    wide = all(dtype in WIDE_FLOATS for i, dtype in enumerate(dtypes) if dtype in FLOATS)
    return Planting(tuple(arguments), not extrema, wide and reductions <= 1 and not winograd)


def _is_float(expr: ir.Expr) -> bool:
    return str(expr.ty.dtype).partition("x")[0] in FLOATS


def planted_cases(
    inputs: Sequence[np.ndarray],
    how: dict[str, Any] | None,
    seed: int,
    reference: Callable[[list[np.ndarray]], np.ndarray],
) -> list[tuple[list[np.ndarray], np.ndarray]]:
    """Return planted inputs, each with the reference's output.

    The first case contains all values that ``how`` allows, one element each. A second case follows
    when NaN covers the whole output (a single infinity) or when NaN is not allowed (all NaN).

    Args:
        inputs: Random numbers for every argument.
        how: :meth:`Planting.to_dict`; None plants nothing.
        seed: Seed of the positions.
        reference: Computes the reference's output.
    """
    if not how or not how["arguments"]:
        return []
    values = [1e-42, 1e38, -1e38] if how["huge"] else []
    values += [np.inf, -np.inf]
    values += [np.nan] if how["nan"] else []  # last: an array with one element gets this one
    some = plant(inputs, how["arguments"], values, seed)
    cases = [(some, reference(some))]
    if not how["nan"]:
        others = plant(inputs, how["arguments"], None, seed)
    elif np.isnan(cases[0][1].astype(np.float64)).all():
        others = plant(inputs, how["arguments"][:1], [np.inf], seed)
    else:
        return cases
    return [*cases, (others, reference(others))]


def plant(
    inputs: Sequence[np.ndarray],
    arguments: Sequence[int],
    values: Sequence[float] | None,
    seed: int,
) -> list[np.ndarray]:
    """Return copies of ``inputs`` with ``values`` at random positions of ``arguments``, in turn.

    With ``values=None``, the arguments are all NaN.
    """
    rng = np.random.default_rng(seed)
    planted = [np.array(array) if i in arguments else array for i, array in enumerate(inputs)]
    if values is None:
        for i in arguments:
            planted[i][...] = np.nan
        return planted
    for number, value in enumerate(values):
        flat = planted[arguments[number % len(arguments)]].reshape(-1)
        if flat.size:
            room = flat.size // len(values)
            place = number * room + int(rng.integers(max(1, room - _APART)))
            flat[min(place, flat.size - 1)] = value
    return planted


def replaced(
    tensors: Sequence[Any],
    inputs: Sequence[np.ndarray],
    others: Sequence[np.ndarray],
    device: Any = None,
) -> list[Any]:
    """Return ``tensors`` with the arrays of ``others`` that differ, and a new output tensor.

    Args:
        tensors: Arguments of a candidate; weights may be packed.
        inputs: Arrays from which ``tensors`` were made.
        others: Arrays from :func:`plant`.
        device: Device of the tensors; None for the local CPU.
    """
    last = len(inputs) - 1
    return [
        tvm.runtime.tensor(other, device) if other is not own or n == last else tensor
        for n, (tensor, own, other) in enumerate(zip(tensors, inputs, others, strict=True))
    ]

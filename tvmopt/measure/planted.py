"""Is a candidate's NaN, and are its infinities, where the reference has them?

A candidate that agrees with the reference on random numbers may still lose NaN: by a maximum whose
operands are exchanged, or by a vectorised exponential that clamps its argument. So a candidate runs
on planted inputs, too: random numbers, among them NaN, infinities, huge and subnormal values.
:func:`planting` says which of them a function takes, on the tuner's side; :func:`planted_cases`
makes the inputs, in the worker.
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
from tvmopt.kernels.cpu.winograd.schedule import WINOGRAD_ATTR
from tvmopt.kernels.passes.skip_padding import is_read

# An argument that is this many times smaller than the largest reaches all elements of the result.
_SMALL = 16
# Between two planted elements there are at least this many others, where there is room.
_APART = 61


@dataclasses.dataclass(frozen=True)
class Planting:
    """What may be planted in the arguments of a function.

    Attributes:
        arguments: Indices of the arguments; empty where nothing may be planted.
        nan: Whether a NaN may be among numbers: the maximum of both depends on their order.
        huge: Whether huge values may be: where differences of huge numbers overflow depends on
            which of them are fused with a multiplication.
    """

    arguments: tuple[int, ...] = ()
    nan: bool = True
    huge: bool = True

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it; what :func:`planted_cases` takes."""
        return dataclasses.asdict(self)


def planting(func: tirx.PrimFunc, constants: Sequence[int] = ()) -> Planting:
    """What may be planted in the arguments of ``func``.

    Nothing where a float becomes an integer, because the integer of NaN is undefined and may be an
    index; nothing in weights, which a model has finite; nothing in small arguments beside large.

    Args:
        func: The function, unscheduled; it writes its last argument.
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
    """Planted inputs, each with what ``reference`` gives for them.

    One case has everything that ``how`` allows, a value an element. Where it leaves nothing but NaN
    of the result, or holds no NaN, there is one more: a single infinity, or nothing but NaN.

    Args:
        inputs: Random numbers for every argument.
        how: :meth:`Planting.to_dict`; None plants nothing.
        seed: Seed of the places.
        reference: Gives the result of the reference.
    """
    if not how or not how["arguments"]:
        return []
    values = [1e-42, 1e38, -1e38] if how["huge"] else []
    values += [np.inf, -np.inf]
    values += [np.nan] if how["nan"] else []  # last: where there is one element, it holds this
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
    """Copies of ``inputs`` with ``values`` at random places of ``arguments``, one after the other.

    With None for ``values``, the arguments hold nothing but NaN.
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
    """``tensors``, which hold ``inputs``, with those of ``others`` that differ, and a new last.

    Args:
        tensors: Arguments of a candidate; weights may be packed.
        inputs: What was made into tensors.
        others: Of :func:`plant`.
        device: Where the tensors are; None for this machine.
    """
    last = len(inputs) - 1
    return [
        tvm.runtime.tensor(other, device) if other is not own or n == last else tensor
        for n, (tensor, own, other) in enumerate(zip(tensors, inputs, others, strict=True))
    ]

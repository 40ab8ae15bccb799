"""Prefetch of what other threads wrote, all lines at once instead of one as each is needed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tvm import tirx
from tvm.ir import Expr
from tvm.tirx.script.builder import ir as build

from tvmopt.device import dtypes
from tvmopt.kernels.cpu.passes.prefetch import prefetch_function, prefetch_name
from tvmopt.kernels.cpu.recurrence.tiling import LINE
from tvmopt.kernels.recurrence import Recurrence


@contextlib.contextmanager
def fetches() -> Iterator[None]:
    """Define, for the code inside, the function that prefetches a cache line of an x86 CPU."""
    with build.attr(0, "pragma_import_llvm", prefetch_function(1)):
        yield


def fetch_state(recurrence: Recurrence, state: tirx.Buffer, first: list[Expr]) -> None:
    """Emit the prefetch of a state, at the indices ``first`` of its first axes."""
    r, units = recurrence, int(state.shape[-1])
    with build.grid(r.directions, r.batch) as at:
        for unit in range(0, units, 4 * LINE // int(dtypes.dtype(str(state.dtype)).itemsize)):
            _fetch(state[(*first, *at, unit)])


def fetch_inputs(recurrence: Recurrence, x: tirx.Buffer, block_steps: int, step: Expr) -> None:
    """Emit the prefetch of the inputs that ``step`` multiplies.

    Args:
        recurrence: The layer.
        x: Input (steps, features).
        block_steps: Steps of a block.
        step: The step.
    """
    each = int(x.shape[1]) // block_steps
    block, place = step // block_steps + 1, step % block_steps
    for ahead in range(block_steps):
        row = tirx.min(block * block_steps + ahead, recurrence.steps - 1)
        if any(recurrence.reverse):
            row = recurrence.steps - 1 - row
        for feature in range(0, each, LINE):
            _fetch(x[row, place * each + feature])


def _fetch(value: Expr) -> None:
    address = tirx.address_of(value)
    build.evaluate(tirx.call_extern("void", prefetch_name(1), address))

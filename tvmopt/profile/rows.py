"""Rows of a profile: one for each kernel call, with its median time and its roofline."""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tvmopt.profile.kernels import KernelFacts
from tvmopt.profile.roofline import KernelRoofline
from tvmopt.spreadsheet import write_csv


@dataclasses.dataclass(frozen=True)
class ProfileRow:
    """One kernel call. Times are in microseconds.

    Attributes:
        call: Place among the kernel calls, from 0.
        kernel: Name of the kernel.
        layer: Index of its layer in the ONNX model; None without one.
        layer_name: Name of the layer's ONNX node.
        op: Operator of the layer's ONNX node.
        weight: Shape of the layer's weight as text.
        operators: Operators of the kernel, as TVM calls them.
        shape: Shape of the result as text.
        dtype: Compute dtype of the layer, or dtype of the result.
        instructions: Instruction set.
        median_us: Median time.
        share: Part of the sum of all kernels.
        flops: FLOPs.
        bytes: Bytes of all tensors.
        roofline_us: Roofline time.
        bound: What the roofline time is: ``"compute"`` or ``"memory"``.
        roofline_share: Roofline time over median time; 0 when there is no time.
        predicted_us: Time that the cost model predicts; None without one.
        baseline_us: Time of the same layer in the float32 build, all its kernels; None without one.
        ratio: Time of the layer, all its kernels, over ``baseline_us``.
    """

    call: int
    kernel: str
    layer: int | None
    layer_name: str
    op: str
    weight: str
    operators: str
    shape: str
    dtype: str
    instructions: str
    median_us: float
    share: float
    flops: float
    bytes: float
    roofline_us: float
    bound: str
    roofline_share: float
    predicted_us: float | None = None
    baseline_us: float | None = None
    ratio: float | None = None


def profile_rows(
    facts: Sequence[KernelFacts], runs: Sequence[np.ndarray], roofline: KernelRoofline
) -> list[ProfileRow]:
    """Return a row for each kernel call.

    Args:
        facts: Facts of the kernels, in call order.
        runs: Timestamps of each run, as of :class:`tvmopt.profile.timers.KernelTimer`.
        roofline: Peaks of the CPU.
    """
    times = np.median(np.stack([run[:, 1] - run[:, 0] for run in runs]), axis=0) / 1e3
    total = float(times.sum()) or 1.0
    rows = []
    for call, (one, us) in enumerate(zip(facts, map(float, times), strict=True)):
        best, bound = roofline.microseconds(one.flops, one.bytes, _peak_dtype(one))
        cycles, layer = one.predicted_cycles, one.layer
        rows.append(
            ProfileRow(
                call=call,
                kernel=one.name,
                layer=layer.index if layer else None,
                layer_name=layer.name if layer else "",
                op=layer.op if layer else "",
                weight=layer.weight if layer else "",
                operators=one.operators,
                shape=one.shape,
                dtype=one.dtype,
                instructions=one.instructions,
                median_us=us,
                share=us / total,
                flops=one.flops,
                bytes=one.bytes,
                roofline_us=best,
                bound=bound,
                roofline_share=best / us if us else 0.0,
                predicted_us=None if cycles is None else 1e6 * cycles / roofline.hertz,
            )
        )
    return rows


def beside(rows: Sequence[ProfileRow], baseline: Sequence[ProfileRow]) -> list[ProfileRow]:
    """Return ``rows`` with the time of each layer in ``baseline``, and the ratio of the two."""
    own, other = layer_times(rows), layer_times(baseline)
    return [
        dataclasses.replace(row, baseline_us=us, ratio=own[row.layer] / us)
        if row.layer is not None and (us := other.get(row.layer, 0.0)) > 0
        else row
        for row in rows
    ]


def layer_times(rows: Sequence[ProfileRow]) -> dict[int, float]:
    """Return the microseconds of each layer, all its kernels."""
    found: dict[int, float] = {}
    for row in rows:
        if row.layer is not None:
            found[row.layer] = found.get(row.layer, 0.0) + row.median_us
    return found


def write_rows(path: Path, rows: Sequence[ProfileRow]) -> None:
    """Write rows as CSV; a cell without a value is empty."""
    names = [field.name for field in dataclasses.fields(ProfileRow)]
    with path.open("w", newline="") as file:
        write_csv(file, names, ([_cell(getattr(row, n)) for n in names] for row in rows))


def read_rows(path: Path) -> list[dict[str, str]]:
    """Read the cells that :func:`write_rows` wrote."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _cell(value: Any) -> Any:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else value


def _peak_dtype(facts: KernelFacts) -> str:
    """Return the dtype whose peak counts: a layer's; others compute in float32 vectors."""
    return facts.dtype if facts.layer is not None else "float32"

"""Findings of a profile: where the time goes, which layers conversion made slower, and why."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from tvmopt.choices import LOW_DTYPES
from tvmopt.profile.roofline import MEMORY
from tvmopt.profile.rows import ProfileRow, layer_times

#: Kernels that are listed by time.
TOP = 5
# A layer is slower than in float32 from this ratio on; less is noise of the measurement.
_SLOWER = 1.05
# A kernel is far from the roofline below this share of it, and worth a look above that time share.
_FAR, _WORTH = 0.25, 0.05
# Fewer channels than this leave most of a dot-product or matrix instruction idle.
_FEW_CHANNELS = 16
# Operators that change dtype or layout between layers.
_CONVERSIONS = ("quantize", "dequantize", "cast", "round", "transpose", "layout_transform")

NO_INSTRUCTION = "no dot-product instruction"
NOT_USED = "dot-product instruction not used"
DEPTHWISE = "depthwise"
FEW_CHANNELS = "few channels"
MEMORY_BOUND = "memory-bound"
UNKNOWN = "unknown"


@dataclasses.dataclass(frozen=True)
class SlowLayer:
    """A low-precision layer that is slower than its float32 form.

    Attributes:
        row: Its row with the anchor operator.
        own_us: Time of the layer, all its kernels, in microseconds.
        baseline_us: Time of the float32 form.
        reason: Why, as far as known: one of the constants of this module.
    """

    row: ProfileRow
    own_us: float
    baseline_us: float
    reason: str


@dataclasses.dataclass(frozen=True)
class ProfileFindings:
    """Findings of a profile. Times are in microseconds.

    Attributes:
        total_us: Sum of all kernels.
        call_us: A whole call of the version's own library, measured beside.
        baseline_total_us: Sum of all kernels of the float32 build; None without one.
        baseline_call_us: A whole call of the float32 build; None without one.
        dtype: Compute dtype of the low-precision layers; empty when there are none.
        low_layers: Number of low-precision layers that the float32 build has, too.
        rate: Peak rate of ``dtype`` on this CPU, relative to float32.
        top: The kernels that take longest, longest first.
        other_us: Time of kernels that are neither a matmul nor a convolution.
        conversion_us: Time of kernels that only change dtype or layout between layers.
        slow: Low-precision layers slower than in float32, by lost time.
        far: Kernels far from the roofline, by time.
    """

    total_us: float
    call_us: float
    baseline_total_us: float | None
    baseline_call_us: float | None
    dtype: str
    low_layers: int
    rate: float
    top: tuple[ProfileRow, ...]
    other_us: float
    conversion_us: float
    slow: tuple[SlowLayer, ...]
    far: tuple[ProfileRow, ...]

    @property
    def faster(self) -> float | None:
        """Return the float32 build's call over this model's; None without one."""
        return None if self.baseline_call_us is None else self.baseline_call_us / self.call_us


def find(
    rows: Sequence[ProfileRow],
    call_us: float,
    rates: Mapping[str, float],
    baseline: Sequence[ProfileRow] = (),
    baseline_call_us: float | None = None,
) -> ProfileFindings:
    """Return the findings of a profile.

    Args:
        rows: Rows of the model.
        call_us: Median time of a whole call.
        rates: Peak rate on this CPU relative to float32, by dtype.
        baseline: Rows of the float32 build; empty without one.
        baseline_call_us: Median time of a whole call of the float32 build.
    """
    by_time = sorted(rows, key=lambda row: -row.median_us)
    low = [row for row in rows if row.layer is not None and row.dtype in LOW_DTYPES]
    dtype = low[0].dtype if low else ""
    rate = rates.get(dtype, 1.0)
    return ProfileFindings(
        total_us=sum(row.median_us for row in rows),
        call_us=call_us,
        baseline_total_us=sum(row.median_us for row in baseline) if baseline else None,
        baseline_call_us=baseline_call_us,
        dtype=dtype,
        low_layers=len({row.layer for row in low if row.baseline_us is not None}),
        rate=rate,
        top=tuple(by_time[:TOP]),
        other_us=sum(row.median_us for row in rows if row.layer is None),
        conversion_us=sum(row.median_us for row in rows if _converts(row)),
        slow=_slow(rows, low, rate),
        far=tuple(r for r in by_time if r.roofline_share < _FAR and r.share >= _WORTH),
    )


def _converts(row: ProfileRow) -> bool:
    words = row.operators.replace(" ", "_")
    return row.layer is None and any(name in words for name in _CONVERSIONS)


def _slow(
    rows: Sequence[ProfileRow], low: Sequence[ProfileRow], rate: float
) -> tuple[SlowLayer, ...]:
    own = layer_times(rows)
    found: dict[int, SlowLayer] = {}
    for row in low:
        assert row.layer is not None
        if row.layer in found or row.baseline_us is None or row.ratio is None:
            continue
        if row.ratio >= _SLOWER:
            reason = _reason(row, rate)
            found[row.layer] = SlowLayer(row, own[row.layer], row.baseline_us, reason)
    return tuple(sorted(found.values(), key=lambda one: one.baseline_us - one.own_us))


def _reason(row: ProfileRow, rate: float) -> str:
    """Return why a low-precision layer is slow; the first rule that holds."""
    if rate <= 1.0:
        return NO_INSTRUCTION
    weight = [int(extent) for extent in row.weight.split("x")] if row.weight else []
    if row.op == "Conv" and len(weight) > 2 and weight[1] == 1:
        return DEPTHWISE
    if weight and min(weight[:2]) < _FEW_CHANNELS:
        return FEW_CHANNELS
    if not _has_dot_product(row.instructions):
        return NOT_USED
    return MEMORY_BOUND if row.bound == MEMORY else UNKNOWN


def _has_dot_product(instructions: str) -> bool:
    """Return whether mnemonics are listed: they are lower case, names of extensions are not."""
    return bool(instructions) and instructions.islower() and instructions != "scalar"

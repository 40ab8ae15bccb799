"""Every sentence of a profile: from findings to one clear sentence each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from tvmopt.profile import findings as kinds
from tvmopt.profile.findings import ProfileFindings, SlowLayer
from tvmopt.profile.rows import ProfileRow

# Below this share of the call, the sum of the kernels leaves a part that is worth a sentence.
_COVERED = 0.9
# From this share of the time on, conversions between layers are worth another layout.
_MANY_CONVERSIONS = 0.1
# Operators of a kernel that a table shows; quantised epilogues have a dozen.
_OPERATORS = 4
_REASONS = {
    kinds.NO_INSTRUCTION: "this CPU has no dot-product instruction for {dtype}",
    kinds.NOT_USED: "the kernel uses no dot-product instruction",
    kinds.DEPTHWISE: "depthwise: each channel is reduced alone, so that dot products are short",
    kinds.FEW_CHANNELS: "few channels: most of a dot-product instruction is idle",
    kinds.MEMORY_BOUND: "memory-bound: instructions that compute faster do not help",
    kinds.UNKNOWN: "reason unknown",
}


def where_lines(found: ProfileFindings) -> list[str]:
    """Say where the time goes."""
    share = found.total_us / found.call_us
    lines = [
        f"a call takes {found.call_us:.1f} us; its kernels take {found.total_us:.1f} us together "
        f"({share:.0%})"
    ]
    if share < _COVERED:
        rest = found.call_us - found.total_us
        lines.append(f"{rest:.1f} us of the call pass outside of the kernels, as in Python's call")
    for row in found.top:
        lines.append(f"{_named(row)} takes {row.median_us:.1f} us, {row.share:.0%} of the kernels")
    lines.append(
        f"kernels that are neither matmul nor convolution take {found.other_us:.1f} us, "
        f"{_part(found.other_us, found.total_us):.0%} of the kernels"
    )
    return lines


def why_lines(found: ProfileFindings) -> list[str]:
    """Say why the low-precision build is faster than float32, or is not; empty for float32."""
    if not found.dtype:
        return []
    lines = []
    if found.rate <= 1.0:
        lines.append(
            f"this CPU has no dot-product instruction for {found.dtype}: the peak rate is that of "
            "float32"
        )
    else:
        lines.append(f"the peak rate of {found.dtype} is {found.rate:g} times that of float32")
    if found.faster is None:
        return [*lines, "there is no float32 build to compare with; build one with dtype=float32"]
    lines.append(f"a call is {_times(found.faster)} in {found.dtype} than in float32")
    if not found.slow:
        lines.append(f"none of {found.low_layers} {found.dtype} layers is slower than in float32")
    else:
        lost = sum(one.own_us - one.baseline_us for one in found.slow)
        lines.append(
            f"{len(found.slow)} of {found.low_layers} {found.dtype} layers are slower than in "
            f"float32, and lose {lost:.1f} us"
        )
        lines += [_slow_line(one, found.dtype) for one in found.slow[: kinds.TOP]]
    if found.conversion_us:
        lines.append(
            f"conversions of dtype or layout between layers take {found.conversion_us:.1f} us, "
            f"{_part(found.conversion_us, found.total_us):.0%} of the kernels"
        )
    return lines


def roofline_lines(found: ProfileFindings) -> list[str]:
    """Say which kernels are far from the roofline."""
    if not found.far:
        return ["every kernel of 5% of the time or more reaches a quarter of its roofline"]
    return [
        f"{_named(row)} reaches {row.roofline_share:.0%} of its roofline "
        f"({row.roofline_us:.1f} us, bound by {row.bound}) with {row.instructions or 'no known'} "
        "instructions"
        for row in found.far
    ]


def advice_lines(found: ProfileFindings, strategy: str) -> list[str]:
    """Say what to try.

    Args:
        found: The findings.
        strategy: Tuning strategy of the build; empty when it is not known.
    """
    lines = []
    if found.slow:
        listed = ",".join(str(one.row.layer) for one in sorted(found.slow, key=_index))
        if len(found.slow) == found.low_layers:
            lines.append(f"try dtype=float32: every {found.dtype} layer is faster there")
        else:
            lines.append(f"try keep_dtype={listed}: these layers are faster in float32")
    if _part(found.conversion_us, found.total_us) >= _MANY_CONVERSIONS:
        lines.append("try another layout (layout=NHWC or NCHW16c), with fewer conversions")
    if found.far and strategy in ("none", "default"):
        lines.append("try strategy=fast: these schedules were not measured")
    elif found.far and strategy == "fast":
        lines.append("try strategy=metaschedule with more trials, or a larger topk")
    elif found.far and strategy == "metaschedule":
        lines.append("try more trials, or strategy=fast")
    if found.total_us < found.call_us / 2:
        lines.append("try threads=1: most of a call passes outside of the kernels")
    return lines or ["nothing to try follows from this profile"]


def _slow_line(one: SlowLayer, dtype: str) -> str:
    reason = _REASONS[one.reason].format(dtype=dtype)
    return (
        f"layer {one.row.layer} {one.row.layer_name}: {one.own_us:.1f} us, in float32 "
        f"{one.baseline_us:.1f} us ({reason})"
    )


def _index(one: SlowLayer) -> int:
    return one.row.layer or 0


def _named(row: ProfileRow) -> str:
    if row.layer is None:
        return f"kernel {row.call} ({short(row.operators)})"
    return f"layer {row.layer} {row.layer_name} ({short(row.operators)}, {row.shape}, {row.dtype})"


def short(operators: str) -> str:
    """Return the first operators of a kernel, and how many words follow."""
    words = operators.split()
    more = len(words) - _OPERATORS
    return operators if more <= 0 else f"{' '.join(words[:_OPERATORS])} +{more}"


def _times(faster: float) -> str:
    return f"{faster:.2f} times faster" if faster >= 1 else f"{1 / faster:.2f} times slower"


def _part(us: float, total: float) -> float:
    return us / total if total else 0.0


HEADER = (
    "call", "layer", "name", "operators", "shape", "dtype", "instructions", "us", "share",
    "roofline us", "reached", "predicted us", "float32 us", "ratio",
)  # fmt: skip


def cells(rows: Sequence[ProfileRow]) -> list[list[str]]:
    """Return the table of a page, header first; empty columns of a float32 model are left out."""
    table = [list(HEADER)]
    for row in rows:
        table.append(
            [
                str(row.call),
                "" if row.layer is None else str(row.layer),
                row.layer_name,
                short(row.operators),
                row.shape,
                row.dtype,
                row.instructions,
                f"{row.median_us:.1f}",
                f"{row.share:.1%}",
                f"{row.roofline_us:.2f}",
                f"{row.roofline_share:.0%}",
                _number(row.predicted_us, ".1f"),
                _number(row.baseline_us, ".1f"),
                _number(row.ratio, ".2f"),
            ]
        )
    kept = [n for n in range(len(HEADER)) if any(line[n] for line in table[1:])]
    return [[line[n] for n in kept] for line in table]


def summary_cells(rows: Sequence[ProfileRow]) -> list[list[str]]:
    """Return the short table of the console: the kernels that take longest, header first."""
    wide = cells(sorted(rows, key=lambda row: -row.median_us)[: 2 * kinds.TOP])
    shown = [n for n, name in enumerate(wide[0]) if name not in ("call", "shape", "predicted us")]
    return [[line[n] for n in shown] for line in wide]


def by_kind(rows: Sequence[ProfileRow]) -> dict[str, float]:
    """Return the microseconds of all kernels by instruction set, longest first."""
    times: dict[str, float] = defaultdict(float)
    for row in rows:
        times[row.instructions or "other"] += row.median_us
    return dict(sorted(times.items(), key=lambda item: -item[1]))


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)

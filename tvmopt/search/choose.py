"""Choose the values of each dimension: the user's, else those that can win on the target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tvmopt.choices import GPU_LAYOUTS, GPU_STRATEGIES, GRANULARITIES, LOW_DTYPES, MEASURING
from tvmopt.device.dtypes import HALF_FLOATS, TF32
from tvmopt.errors import ConfigError
from tvmopt.quantize import Sensitivity
from tvmopt.quantize.report import BALANCED, ranked
from tvmopt.quantize.roofline import LayerRoofline
from tvmopt.search.effort import RISING, Effort

if TYPE_CHECKING:
    from tvmopt.search.declared import Declared

FLOAT = "float32"
_LAYOUTS = ("NHWC", "NCHW16c", "NCHW")
_MOST_SKIP_SETS = 5
_PARTS = (8, 4, 2)


def choose_dtypes(
    declared: Declared, peaks: LayerRoofline, quantised: bool, allow_tf32: bool = False
) -> tuple[str, ...]:
    """Return the dtypes of the space in the order of their first trials.

    The space holds float32 and the dtypes with a higher peak rate. A 16-bit float of less than half
    the other's rate is left out: on CPUs with AMX, float16 was slower than float32. The order is
    that of :func:`by_first_trial`.

    Args:
        declared: The user's restrictions.
        peaks: Peaks of the target.
        quantised: Whether the model came quantised; it keeps its own dtypes then.
        allow_tf32: Whether float32 may be rounded to TF32, which is a dtype of the space then.

    Raises:
        ConfigError: When a dtype is declared that a quantised model cannot take.
    """
    if quantised:
        if set(declared.dtypes) - {FLOAT}:
            raise ConfigError(
                "dtypes must be float32 (the model's own format) for a model that is quantised, "
                f"but got {', '.join(declared.dtypes)}"
            )
        return (FLOAT,)
    if declared.dtypes:
        tf32 = (TF32.name,) if allow_tf32 and FLOAT in declared.dtypes else ()
        return by_first_trial((*declared.dtypes, *tf32), peaks)
    best = max(peaks.faster[dtype] for dtype in HALF_FLOATS)
    slow = {dtype for dtype in HALF_FLOATS if peaks.faster[dtype] < best / 2}
    low = [dtype for dtype in LOW_DTYPES if peaks.faster[dtype] > 1 and dtype not in slow]
    tf32 = (TF32.name,) if allow_tf32 else ()
    return by_first_trial((FLOAT, *tf32, *low), peaks)


def by_first_trial(dtypes: Sequence[str], peaks: LayerRoofline) -> tuple[str, ...]:
    """Return dtypes in the order of their first trials, so that a short search has a fast artifact.

    The fastest 16-bit float comes first: it is nearly always within the accuracy bar and needs no
    calibration. 8-bit dtypes follow, then other 16-bit floats, TF32, and float32, the fallback.

    Args:
        dtypes: The dtypes.
        peaks: Peaks of the target.
    """

    def rate(dtype: str) -> float:
        return peaks.faster.get(dtype, 1.0)

    known = tuple(dict.fromkeys(dtypes))
    halves = sorted((d for d in HALF_FLOATS if d in known), key=lambda d: -rate(d))
    last = [dtype for dtype in (TF32.name, FLOAT) if dtype in known]
    eights = sorted((d for d in known if d not in (*halves, *last)), key=lambda d: -rate(d))
    return (*halves[:1], *eights, *halves[1:], *last)


def choose_layouts(declared: Declared, convolutions: int, on_gpu: bool = False) -> tuple[str, ...]:
    """Return the layouts of the space; only ``auto`` for a model without convolutions."""
    if not convolutions:
        return ("auto",)
    known = tuple(layout for layout in _LAYOUTS if not on_gpu or layout in GPU_LAYOUTS)
    return tuple(dict.fromkeys(declared.layouts)) or known


def choose_efforts(declared: Declared, on_gpu: bool = False) -> tuple[Effort, ...]:
    """Return the tuning efforts of the space, cheapest first."""
    rising = tuple(s for s in RISING[1:] if not on_gpu or s in GPU_STRATEGIES)
    sizes = {"fast": declared.topk, "metaschedule": (declared.metaschedule_trials,)}
    granularities = declared.granularities or GRANULARITIES
    efforts = set()
    for strategy in declared.strategies or rising:
        if strategy in MEASURING:
            efforts |= {Effort(strategy, s, g) for s in sizes[strategy] for g in granularities}
        else:
            efforts.add(Effort(strategy))
    return tuple(sorted(efforts, key=lambda effort: effort.price))


def choose_skips(found: Sensitivity, dtype: str) -> tuple[str, ...]:
    """Return the skip sets of one dtype: the proposed one, the empty one, and others by size.

    Sets that were seen to miss the bar are left out, but for the empty one: whether all layers can
    be converted is what everyone asks first. The set of all layers is the float model. Behind
    those that held come beginnings of the ranking by cost: the evaluation sees other samples than
    the analysis, and may refuse what that let pass.
    """
    sets = found.sets(dtype)
    proposed = found.proposed(dtype)
    held = [s for s in sets if s.holds and s.source != "exact" and s.layers]
    if not any(s.layers == proposed for s in held) and proposed:
        return ("",)  # only the float model itself holds: one try, to know
    others: list[tuple[int, ...]] = [()]
    for one in held:
        if one.layers != proposed and one.layers not in others:
            others.append(one.layers)
    order = ranked(found.of(dtype), BALANCED)
    for size in (len(order) // part for part in _PARTS):
        layers = tuple(sorted(order[:size]))
        if size > max(map(len, (proposed, *others))):
            others.append(layers)
    if len(others) > _MOST_SKIP_SETS - 1:  # the ends, and evenly between them
        last = len(others) - 1
        places = {round(i * last / (_MOST_SKIP_SETS - 2)) for i in range(_MOST_SKIP_SETS - 1)}
        others = [others[i] for i in sorted(places)]
    ordered = [proposed, *(layers for layers in others if layers != proposed)]
    return tuple(",".join(map(str, layers)) for layers in ordered)

"""Plot of a sensitivity analysis: error and gain of each layer, and the skip sets."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

from tvmopt.choices import LOW_DTYPES
from tvmopt.quantize.report import ESTIMATED, NOT_CONVERTIBLE, Sensitivity

_COLOURS = dict(
    zip(LOW_DTYPES, itertools.cycle(("tab:blue", "tab:green", "tab:red")), strict=False)
)
_MOST_NAMES = 60


def plot_sensitivity(result: Sensitivity, path: Path) -> Path:
    """Plot a sensitivity analysis.

    From the top: signal-to-noise ratio of the outputs for each converted layer (higher is better;
    hollow marks are estimates), share of the model's time that its conversion saves, and cosine
    loss of the skip sets by size (filled marks meet the bar).

    Args:
        result: The analysis.
        path: PNG file to write.
    """
    # Not pyplot: it keeps global state and may need a display.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 10), layout="constrained")
    FigureCanvasAgg(figure)
    noise, gains, sets = figure.subplots(3, 1)
    width = 0.8 / len(result.dtypes)
    for number, dtype in enumerate(result.dtypes):
        colour = _COLOURS[dtype]
        costs = [c for c in result.of(dtype) if c.source != NOT_CONVERTIBLE]
        for source, filled in (("measured", True), (ESTIMATED, False)):
            some = [c for c in costs if c.source == source and math.isfinite(c.sqnr_db)]
            noise.plot(
                [c.index for c in some],
                [c.sqnr_db for c in some],
                "o",
                color=colour,
                fillstyle="full" if filled else "none",
                markersize=4,
                label=dtype if filled else None,
            )
        places = [c.index + (number - (len(result.dtypes) - 1) / 2) * width for c in costs]
        gains.bar(places, [100 * c.gain for c in costs], width, color=colour, label=dtype)
        found = result.sets(dtype)
        sizes = [len(s.layers) for s in found]
        losses = [max(1e-7, 1 - s.cosine) for s in found]
        sets.plot(sizes, losses, "-", color=colour, linewidth=1, label=dtype)
        for size, loss, item in zip(sizes, losses, found, strict=True):
            style = "full" if item.holds else "none"
            sets.plot([size], [loss], "o", color=colour, fillstyle=style, markersize=6)
    names = {cost.index: cost.name for cost in result.costs}
    if 0 < len(names) <= _MOST_NAMES:
        shown = [_short(name) for name in names.values()]
        # Dollar signs in a name are not math markup.
        gains.set_xticks(list(names), shown, rotation=90, fontsize=6, parse_math=False)
    noise.set_ylabel("signal to noise of the outputs (dB)")
    gains.set_ylabel("time saved by the roofline (%)")
    sets.set_ylabel("1 - cosine of the outputs")
    sets.set_xlabel("layers skipped, all others converted")
    sets.set_yscale("log")
    for axes in (noise, gains, sets):
        axes.grid(visible=True, alpha=0.3)
        axes.legend(fontsize=8)
    figure.suptitle(
        f"sensitivity of {len(names)} layers on {result.samples} samples, {result.seconds:.0f} s"
    )
    figure.savefig(path, dpi=110)
    return path


def _short(name: str) -> str:
    return name if len(name) <= 24 else "..." + name[-21:]

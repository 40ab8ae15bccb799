"""Plot of a sensitivity analysis: error and gain of each layer, and the skip sets."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import TYPE_CHECKING

from tvmopt import chart
from tvmopt.choices import LOW_DTYPES
from tvmopt.quantize.report import ESTIMATED, MEASURED, NOT_CONVERTIBLE, LayerCost, Sensitivity

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = dict(zip(LOW_DTYPES, itertools.cycle(chart.COLOURS), strict=False))
_MOST_NAMES = 60
_LEAST_LOSS = 1e-7  # a cosine of 1 has no place on a logarithmic axis


def plot_sensitivity(result: Sensitivity, path: Path) -> Path:
    """Plot a sensitivity analysis.

    From the top: signal-to-noise ratio of the outputs for each converted layer (higher is better;
    hollow marks are estimates), share of the model's time that its conversion saves, and cosine
    loss of the skip sets by size, or of the maps of dtypes by predicted time (filled marks meet the
    bar, a star marks the proposal).

    Args:
        result: The analysis.
        path: PNG file to write.
    """
    names = {cost.index: cost.name for cost in result.costs}
    named = 0 < len(names) <= _MOST_NAMES
    figure = chart.new_figure(min(17.0, 10.0 + 0.12 * len(names)), 11.0)
    noise, gains, sets = figure.subplots(3, 1)
    width = 0.8 / len(result.dtypes)
    for number, dtype in enumerate(result.dtypes):
        costs = [c for c in result.of(dtype) if c.source != NOT_CONVERTIBLE]
        _draw_noise(noise, costs, dtype)
        shift = (number - (len(result.dtypes) - 1) / 2) * width
        gains.bar(
            [c.index + shift for c in costs], [100 * c.gain for c in costs], width,
            color=_COLOURS[dtype], label=dtype,
        )  # fmt: skip
        if not result.dtype_maps:
            _draw_sets(sets, result, dtype)
    if result.dtype_maps:
        _draw_maps(sets, result)
    for axes in (noise, gains, sets):
        if axes.get_legend_handles_labels()[0]:
            axes.legend(
                fontsize=chart.LABEL_SIZE, loc="center left", bbox_to_anchor=(1.0, 0.5),
                frameon=False,
            )  # fmt: skip
    layer = "layer" if named else "layer index"
    chart.name_axes(
        noise,
        x="" if named else layer,
        y="signal-to-noise ratio\nof the outputs (dB)",
        title="Error when one layer is converted (higher is better)",
    )
    chart.name_axes(
        gains,
        x=layer,
        y="time saved (% of the model,\nroofline model)",
        title="Gain when one layer is converted",
    )
    maps = bool(result.dtype_maps)
    chart.name_axes(
        sets,
        x="predicted time of the layers (% of float32)"
        if maps
        else "number of layers skipped (all others are converted)",
        y="1 - cosine of the outputs",
        title="Dtypes of all layers together (lower and further left is better)"
        if maps
        else "Skip sets (lower is better)",
    )
    sets.set_yscale("log")
    noise.sharex(gains)
    if named:
        shown = [f"{index} {_short(name)}" for index, name in names.items()]
        # Dollar signs in a name are not math markup.
        gains.set_xticks(
            list(names), shown, rotation=90, fontsize=8 if len(names) <= 40 else 7, parse_math=False
        )
        noise.tick_params(labelbottom=False)
    figure.suptitle(
        f"Sensitivity of {len(names)} layers on {result.samples} samples, {result.seconds:.0f} s",
        fontsize=13,
    )
    return chart.save(figure, path)


def _draw_noise(axes: Axes, costs: list[LayerCost], dtype: str) -> None:
    for source, face in ((MEASURED, _COLOURS[dtype]), (ESTIMATED, "none")):
        some = [c for c in costs if c.source == source and math.isfinite(c.sqnr_db)]
        if some:
            axes.plot(
                [c.index for c in some], [c.sqnr_db for c in some], "o", color=_COLOURS[dtype],
                markerfacecolor=face, markersize=5, label=f"{dtype}, {source}",
            )  # fmt: skip


def _draw_sets(axes: Axes, result: Sensitivity, dtype: str) -> None:
    """Draw the skip sets of a dtype; the proposed one carries its size."""
    found, colour = result.sets(dtype), _COLOURS[dtype]
    points = [(len(s.layers), max(_LEAST_LOSS, 1 - s.cosine)) for s in found]
    axes.plot([x for x, _ in points], [y for _, y in points], "-", color=colour, linewidth=1)
    for holds, face, what in ((True, colour, "meets the bar"), (False, "none", "misses the bar")):
        some = [point for point, item in zip(points, found, strict=True) if item.holds is holds]
        if some:
            axes.plot(
                [x for x, _ in some], [y for _, y in some], "o", color=colour, markersize=6,
                markerfacecolor=face, label=f"{dtype}, {what}",
            )  # fmt: skip
    if any(item.holds for item in found):
        proposed = result.proposed(dtype)
        place = next(p for p, item in zip(points, found, strict=True) if item.layers == proposed)
        axes.plot(
            *place, "*", color=chart.GOLD, markeredgecolor=colour, markersize=15, zorder=4,
            label=f"{dtype}, proposed: {len(proposed)} layer(s)",
        )  # fmt: skip


def _draw_maps(axes: Axes, result: Sensitivity) -> None:
    """Draw predicted and measured loss of the maps of dtypes over their predicted time."""
    plain = max(m.predicted_s for m in result.dtype_maps) or 1.0
    maps = sorted(result.dtype_maps, key=lambda m: m.predicted_s)
    times = [100 * m.predicted_s / plain for m in maps]
    losses = [max(_LEAST_LOSS, 1 - m.cosine) for m in maps]
    predicted = [max(_LEAST_LOSS, m.predicted_loss) for m in maps]
    colour = chart.COLOURS[0]
    axes.plot(times, predicted, ":", color=colour, linewidth=1, label="predicted")
    for holds, face, what in ((True, colour, "meets the bar"), (False, "none", "misses the bar")):
        some = [at for at, m in enumerate(maps) if m.can_be_chosen is holds]
        if some:
            axes.plot(
                [times[at] for at in some], [losses[at] for at in some], "o", color=colour,
                markersize=6, markerfacecolor=face, label=f"measured, {what}",
            )  # fmt: skip
    at = maps.index(result.chosen_map)
    axes.plot(
        times[at], losses[at], "*", color=chart.GOLD, markeredgecolor=colour, markersize=15,
        zorder=4, label=f"chosen: {len(maps[at].layers)} layer(s) converted",
    )  # fmt: skip


def _short(name: str) -> str:
    return name if len(name) <= 24 else "..." + name[-21:]

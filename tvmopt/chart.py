"""Charts as PNG files: one style, and labels that hide neither points nor each other."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # matplotlib is imported where something is drawn: it takes half a second
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation
    from matplotlib.transforms import Bbox

#: Colours that colour-blind people can tell apart (Okabe and Ito, 2008).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
GREY = "#666666"
#: Colour of the best result.
GOLD = "#F0C000"
_TITLE_SIZE, _TEXT_SIZE, LABEL_SIZE = 12, 10.5, 9.5
_DPI = 150
_MARK = 6.0  # half the width of a mark, in points
_GAPS = (3.0, 10.0, 20.0, 32.0, 46.0)  # points between a mark and its label
_DIRECTIONS = ((0, 1), (1, 1), (1, 0), (1, -1), (0, -1), (-1, -1), (-1, 0), (-1, 1))

Box = tuple[float, float, float, float]
"""Left, lower, right and upper edge."""


def new_figure(width: float, height: float) -> Figure:
    """Return a figure of a size in inches that needs no display."""
    # Not pyplot: it keeps global state and may need a display.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", dpi=_DPI)
    FigureCanvasAgg(figure)
    return figure


def name_axes(
    axes: Axes, *, x: str = "", y: str = "", title: str = "", title_gap: float = 6.0
) -> None:
    """Write title and axis labels (with units), and set the style of the axes.

    Args:
        axes: The axes.
        x: Label of the x axis.
        y: Label of the y axis.
        title: Title, above the left end of the axes.
        title_gap: Points between title and axes.
    """
    if title:
        axes.set_title(title, fontsize=_TITLE_SIZE, loc="left", pad=title_gap, parse_math=False)
    axes.set_xlabel(x, fontsize=_TEXT_SIZE)
    axes.set_ylabel(y, fontsize=_TEXT_SIZE)
    axes.tick_params(labelsize=LABEL_SIZE)
    axes.grid(visible=True, color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def name_level(axes: Axes, y: float, text: str, colour: str) -> None:
    """Draw a horizontal line and write its name beside the right end, where it hides nothing."""
    axes.axhline(y, color=colour, linestyle="--", linewidth=1.2)
    axes.text(
        1.01, y, text, color=colour, fontsize=LABEL_SIZE, va="center",
        transform=axes.get_yaxis_transform(),
    )  # fmt: skip


def name_place(axes: Axes, x: float, text: str, colour: str) -> None:
    """Draw a vertical line and write its name above the axes, below the title."""
    axes.axvline(x, color=colour, linestyle="--", linewidth=1.2)
    axes.text(
        x, 1.01, text, color=colour, fontsize=LABEL_SIZE, ha="center", va="bottom",
        transform=axes.get_xaxis_transform(),
    )  # fmt: skip


def legend_below(figure: Figure, axes: Axes, columns: int = 3) -> None:
    """Put the legend of some axes below the figure, where it hides no point."""
    handles, names = axes.get_legend_handles_labels()
    figure.legend(
        handles, names, loc="outside lower center", ncols=columns, fontsize=LABEL_SIZE,
        frameon=False,
    )  # fmt: skip


def scale_for(axis: Axis, values: Sequence[float]) -> None:
    """Use a logarithmic scale when positive values span a factor of ten; write plain numbers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = min(values), max(values)
    if low > 0 and high > 10 * low:
        name = axis.axis_name  # type: ignore[attr-defined]
        getattr(axis.axes, f"set_{name}scale")("log")
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_minor_formatter(NullFormatter())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def place_labels(
    axes: Axes,
    labels: Sequence[tuple[float, float, str]],
    points: Sequence[tuple[float, float]] = (),
) -> list[Annotation]:
    """Write a text beside each point, where it hides no point, text or other label.

    Limits of the axes and all texts in them must be set before.

    Args:
        axes: The axes.
        labels: Of each label the point in data coordinates, and the text.
        points: All points of the axes.

    Returns:
        The labels; each is joined to its point by a thin line when it is not next to it.
    """
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    pixels = figure.dpi / 72  # of a point
    frame = _extents(axes.get_window_extent(renderer))
    taken = [_extents(text.get_window_extent(renderer)) for text in axes.texts]
    marks = [*points, *((x, y) for x, y, _ in labels)]
    half = (_MARK * pixels, _MARK * pixels)
    taken += [_box(mark, half) for mark in axes.transData.transform(marks).tolist()]
    placed = []
    for x, y, text in labels:
        note = _annotate(axes, x, y, text)
        left, low, right, high = label_box(note)
        size = ((right - left) / 2, (high - low) / 2)
        at = axes.transData.transform((x, y)).tolist()
        offsets = [
            (across * (size[0] + (_MARK + gap) * pixels), up * (size[1] + (_MARK + gap) * pixels))
            for gap, (across, up) in itertools.product(_GAPS, _DIRECTIONS)
        ]
        boxes = [_box((at[0] + dx, at[1] + dy), size) for dx, dy in offsets]
        costs = [_cost(box, taken, frame) for box in boxes]
        best = costs.index(min(costs))
        note.set_position((offsets[best][0] / pixels, offsets[best][1] / pixels))
        taken.append(boxes[best])
        placed.append(note)
    return placed


def label_box(note: Annotation) -> Box:
    """Return the extents of the text of a label in pixels, without its line."""
    from matplotlib.text import Text

    figure = note.get_figure(root=True)
    assert figure is not None
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    note.update_positions(renderer)
    return _extents(Text.get_window_extent(note, renderer))


def _annotate(axes: Axes, x: float, y: float, text: str) -> Annotation:
    from matplotlib.patheffects import withStroke

    note = axes.annotate(
        text, (x, y), (0.0, 0.0), textcoords="offset points", ha="center", va="center",
        fontsize=LABEL_SIZE, parse_math=False,
        path_effects=[withStroke(linewidth=2.5, foreground="white")],
        arrowprops={
            "arrowstyle": "-", "color": GREY, "linewidth": 0.7, "shrinkA": 0,
            "shrinkB": _MARK + _GAPS[0],
        },
    )  # fmt: skip
    note.set_in_layout(False)
    return note


def _extents(box: Bbox) -> Box:
    left, low, right, high = map(float, box.extents)
    return left, low, right, high


def _box(centre: Sequence[float], half: Sequence[float]) -> Box:
    """Return the box around a centre, by half its width and half its height."""
    return (centre[0] - half[0], centre[1] - half[1], centre[0] + half[0], centre[1] + half[1])


def _cost(box: Box, taken: Sequence[Box], frame: Box) -> float:
    """Return the area of a box that lies on taken boxes or outside of the frame."""
    area = (box[2] - box[0]) * (box[3] - box[1])
    return area - overlap(box, frame) + sum(overlap(box, other) for other in taken)


def overlap(one: Box, two: Box) -> float:
    """Return the area that two boxes share."""
    width = min(one[2], two[2]) - max(one[0], two[0])
    height = min(one[3], two[3]) - max(one[1], two[1])
    return max(0.0, width) * max(0.0, height)


def save(figure: Figure, path: Path) -> Path:
    """Write a figure as a PNG file; return its path."""
    figure.savefig(path)
    return path

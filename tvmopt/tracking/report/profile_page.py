"""Profile of a model as one self-contained HTML page."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import jinja2

from tvmopt import chart
from tvmopt.profile.rows import ProfileRow
from tvmopt.tracking.report.profile_words import by_kind, cells, short

_TEMPLATE = "profile_page.html"
_SHOWN, _WIDTH, _HEIGHT_A_BAR = 12, 7.5, 0.32
_CAPTION = (
    "Median time of the kernels that take longest. The black outline is the roofline time: "
    "what the peaks of this CPU allow."
)
_NOTES = (
    "us is the median time of the kernel in a whole call. reached is the roofline time over it. "
    "The roofline uses the bandwidth of the cache that the kernel's tensors fit into. Above 100% "
    "the algorithm computes less than the layer's FLOPs, as Winograd's does, or the bandwidth is "
    "better than modelled.",
    "float32 us is the time of the same layer in the float32 build, all its kernels, and ratio the "
    "layer's time over it. predicted us is what the cost model expects of its first schedule.",
)


def profile_page(
    title: str,
    sections: Mapping[str, Sequence[str]],
    rows: Sequence[ProfileRow],
    facts: Mapping[str, str],
) -> str:
    """Return the page; every text is escaped.

    Args:
        title: Its heading.
        sections: Sentences by their heading; a heading without sentences is left out.
        rows: Rows of the profile.
        facts: The machine.
    """
    head, *body = cells(rows)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )
    kinds = ", ".join(f"{kind} {us:.1f} us" for kind, us in by_kind(rows).items())
    return environment.get_template(_TEMPLATE).render(
        title=title,
        sections=sections,
        caption=_CAPTION,
        chart=base64.b64encode(_chart(rows)).decode(),
        head=head,
        rows=body,
        notes=_NOTES,
        facts={**facts, "time by instruction set": kinds},
    )


def _chart(rows: Sequence[ProfileRow]) -> bytes:
    """Return a PNG with a bar for each of the longest kernels."""
    shown = sorted(rows, key=lambda row: -row.median_us)[:_SHOWN][::-1]
    figure = chart.new_figure(_WIDTH, 1.2 + _HEIGHT_A_BAR * len(shown))
    axes = figure.add_subplot()
    places = range(len(shown))
    colours = [chart.GREY if row.layer is None else chart.COLOURS[0] for row in shown]
    axes.barh(places, [row.median_us for row in shown], color=colours)
    axes.barh(
        places, [row.roofline_us for row in shown], facecolor="none", edgecolor="black", linewidth=1
    )
    axes.set_yticks(places, [_label(row) for row in shown], parse_math=False)
    chart.name_axes(axes, x="time (us); grey: neither matmul nor convolution")
    written = io.BytesIO()
    figure.savefig(written, format="png")
    return written.getvalue()


def _label(row: ProfileRow) -> str:
    named = f"{row.layer} {row.layer_name[-24:]}" if row.layer is not None else f"({row.call})"
    return f"{named}: {short(row.operators)}"

"""Charts: labels hide neither points nor each other; axes carry plain numbers."""

from __future__ import annotations

import itertools

import pytest

from tvmopt import chart


@pytest.fixture
def axes():
    found = chart.new_figure(6.0, 4.0).subplots()
    found.set_xlim(0, 10)
    found.set_ylim(0, 10)
    return found


def test_labels_of_one_place_do_not_overlap_or_leave_the_axes(axes) -> None:
    labels = [(5.0 + 0.01 * n, 5.0, f"label {n}") for n in range(8)]
    notes = chart.place_labels(axes, labels)
    boxes = [chart.label_box(note) for note in notes]
    assert not [1 for a, b in itertools.combinations(boxes, 2) if chart.overlap(a, b) > 0]
    frame = axes.get_window_extent().extents
    for box in boxes:
        area = (box[2] - box[0]) * (box[3] - box[1])
        assert chart.overlap(box, tuple(frame)) == pytest.approx(area)


def test_labels_hide_no_point_and_no_text(axes) -> None:
    text = axes.text(5.0, 5.6, "a text above the point", ha="center")
    points = [(5.0, 5.0), (6.0, 5.0)]
    [note] = chart.place_labels(axes, [(5.0, 5.0, "label")], points)
    box = chart.label_box(note)
    figure = axes.get_figure()
    renderer = figure.canvas.get_renderer()
    assert chart.overlap(box, tuple(text.get_window_extent(renderer).extents)) == 0
    for x, y in axes.transData.transform(points):
        assert not (box[0] < x < box[2] and box[1] < y < box[3])


def test_a_label_is_no_mathematics(axes) -> None:
    chart.place_labels(axes, [(5.0, 5.0, r"$\frac{$")])
    axes.get_figure().draw_without_rendering()


@pytest.mark.parametrize(
    ("values", "scale"), [([1.0, 11.0], "log"), ([1.0, 9.0], "linear"), ([0.0, 100.0], "linear")]
)
def test_a_scale_is_logarithmic_over_a_factor_of_ten(axes, values, scale) -> None:
    chart.scale_for(axes.yaxis, values)
    axes.set_ylim(0.5, 200)
    axes.get_figure().draw_without_rendering()
    assert axes.get_yscale() == scale
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert not [label for label in labels if "$" in label or "^" in label]

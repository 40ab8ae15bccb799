"""Charts of a search: what they name, what they mark, and labels that hide nothing."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tracking.records import CHOICES, RECORDS, SPACE, failed, record
from tvmopt import chart
from tvmopt.search.space import BASELINE
from tvmopt.tracking.report.charts import (
    Marked,
    draw,
    history_figure,
    importances,
    importances_figure,
    pareto_figure,
)
from tvmopt.tracking.report.sentences import NOTHING_TO_DRAW

MARKED = Marked((5, 6), 6, True, 0.01)
FINISHED = [r for r in RECORDS if r.state == "finished"]


def _notes(figure):
    from matplotlib.text import Annotation

    return [t for t in figure.axes[0].texts if isinstance(t, Annotation)]


def _legend(figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def _overlapping(figure) -> list[tuple[str, str]]:
    figure.draw_without_rendering()
    boxes = [(note.get_text(), chart.label_box(note)) for note in _notes(figure)]
    pairs = itertools.combinations(boxes, 2)
    return [(a, b) for (a, one), (b, two) in pairs if chart.overlap(one, two) > 0]


def test_the_pareto_chart_names_axes_units_champion_and_limit() -> None:
    figure = pareto_figure(FINISHED, MARKED)
    [axes] = figure.axes
    assert axes.get_xlabel() == "p50 latency (ms), at the machine's speed of trial 0"
    assert axes.get_ylabel() == "accuracy drop against the float model (fraction)"
    assert [note.get_text() for note in _notes(figure)] == [
        "6 int8, champion", "5 float32", "0 untuned TVM",
    ]  # fmt: skip
    texts = [text.get_text() for text in axes.texts]
    assert "limit\n0.01" in texts and "ONNX Runtime float32: 2 ms" in texts
    assert {"champion", "over a limit", "untuned TVM"} <= set(_legend(figure))
    assert _overlapping(figure) == []


def test_the_front_is_a_staircase_of_what_nothing_beats() -> None:
    trials = [(1, 1.0, 0.0), (2, 0.8, 0.005), (3, 1.2, 0.0)]  # the third is smaller than both
    records = [record(0, BASELINE, 5.0)]
    records += [record(n, CHOICES[n], ms, drop) for n, ms, drop in trials]
    figure = pareto_figure(records, Marked((2, 1, 3), 2, True, 0.01))
    [line] = [line for line in figure.axes[0].lines if line.get_label() == "Pareto front"]
    assert line.get_xydata().tolist() == [[0.8, 0.005], [1.0, 0.0]]


def test_a_winner_without_the_alias_is_no_champion() -> None:
    figure = pareto_figure(FINISHED, replace(MARKED, is_champion=False))
    assert "winner, not promoted" in _legend(figure)
    assert "champion" not in _legend(figure)


def test_a_drop_far_beyond_the_limit_does_not_flatten_the_chart() -> None:
    figure = pareto_figure(FINISHED, MARKED)
    assert figure.axes[0].get_ylim()[1] < 0.03
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert "above\n0.02, up\nto 0.3" in texts


def test_the_history_shows_the_best_so_far_and_failed_trials() -> None:
    figure = history_figure(RECORDS, MARKED)
    [axes] = figure.axes
    assert axes.get_xlabel() == "trial number"
    assert axes.get_ylabel() == "p50 latency (ms), at the machine's speed of trial 0"
    lines = {line.get_label(): line.get_xydata().tolist() for line in axes.lines}
    assert lines["best so far"] == [[1, 1.0], [5, 0.9], [6, 0.8], [6, 0.8]]
    assert [x for x, _ in lines["failed (no latency)"]] == [3, 4]
    assert lines["over a limit"] == [[2, 0.5]]
    assert lines["champion"] == [[6, 0.8]]
    assert _overlapping(figure) == []


def test_importances_are_bars_with_their_values() -> None:
    found = importances(FINISHED, SPACE)
    assert sum(found.shares.values()) == pytest.approx(1.0)
    [axes] = importances_figure(found).axes
    shown = {text.get_text() for text in axes.texts}
    assert shown == {f"{100 * share:.0f}%" for share in found.shares.values()}
    assert axes.get_xlabel() == "share of the variance of log latency (fANOVA)"


@settings(max_examples=3, deadline=None, derandomize=True, database=None)
@given(st.data())
def test_labels_of_a_crowded_search_do_not_overlap(data) -> None:
    records = [record(0, BASELINE, 5.0)]
    for number, choice in enumerate(data.draw(st.permutations(CHOICES)), 1):
        ms = data.draw(st.sampled_from([0.8, 0.81, 0.82, 0.9, 1.0, 1.3, 4.0]))
        drop = data.draw(st.sampled_from([0.0, 0.0001, 0.004, 0.02, 0.5]))
        records.append(record(number, choice, ms, drop))
    feasible = [r for r in records if r.feasible and not r.is_baseline]
    front = tuple(r.number for r in sorted(feasible, key=lambda r: r.values[0])[:6])
    marked = Marked(front, front[0] if front else -1, True, 0.01)
    assert _overlapping(pareto_figure(records, marked)) == []
    assert _overlapping(history_figure(records, marked)) == []


def test_charts_are_written_where_there_is_data(tmp_path) -> None:
    assert draw(RECORDS, SPACE, MARKED, tmp_path).missing == []
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["history.png", "importances.png", "pareto.png"]
    for path in tmp_path.iterdir():
        assert path.read_bytes().startswith(b"\x89PNG")


def test_charts_of_the_baseline_alone_are_drawn(tmp_path) -> None:
    draw(RECORDS[:1], SPACE, Marked((), -1, False, 0.01), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["history.png", "pareto.png"]


def test_charts_without_data_are_left_out_with_the_reason(tmp_path) -> None:
    found = draw([RECORDS[3]], SPACE, Marked((), -1, False, 0.01), tmp_path)
    assert found.missing == [
        "parameter importances are left out: 4 finished trials are needed, but there are 0"
    ]
    assert list(tmp_path.iterdir()) == []
    assert NOTHING_TO_DRAW == "no trial finished, so there is nothing to draw"


def test_equal_latencies_have_no_importances() -> None:
    same = [record(n, choice, 1.0) for n, choice in enumerate(CHOICES[:5], 1)]
    found = importances([*same, failed(6, CHOICES[6], "crash")][:5], SPACE)
    assert found.missing == ["parameter importances are left out: all latencies are the same"]

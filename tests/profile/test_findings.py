"""Findings follow from the rows."""

from __future__ import annotations

import pytest

from tests.profile.planted import low, row
from tvmopt.profile import findings
from tvmopt.profile.findings import find

VNNI = {"int8": 4.0}


def test_where_the_time_goes():
    rows = [
        row(),
        row(call=1, layer=None, operators="transpose", median_us=30.0, share=0.3),
        row(call=2, layer=None, operators="max pool2d", median_us=10.0, share=0.1),
    ]
    found = find(rows, 125.0, {})
    assert found.total_us == 100 and found.call_us == 125
    assert [r.call for r in found.top] == [0, 1, 2]
    assert found.other_us == 40
    assert found.conversion_us == 30
    assert found.dtype == "" and found.faster is None and found.slow == ()


def test_conversions_inside_a_layer_are_no_kernels_of_their_own():
    assert find([low(operators="conv2d cast")], 60.0, VNNI).conversion_us == 0


@pytest.mark.parametrize(
    ("changes", "rates", "reason"),
    [
        ({}, {"int8": 1.0}, findings.NO_INSTRUCTION),
        ({"weight": "64x1x3x3"}, VNNI, findings.DEPTHWISE),
        ({"weight": "64x3x7x7"}, VNNI, findings.FEW_CHANNELS),
        ({"instructions": "AVX2"}, VNNI, findings.NOT_USED),
        ({"instructions": "scalar"}, VNNI, findings.NOT_USED),
        ({"bound": "memory"}, VNNI, findings.MEMORY_BOUND),
        ({}, VNNI, findings.UNKNOWN),
    ],
)
def test_reason_of_a_slow_layer(changes, rates, reason):
    found = find([low(**changes)], 60.0, rates, [row(median_us=30.0)], 30.0)
    (slow,) = found.slow
    assert (slow.reason, slow.own_us, slow.baseline_us) == (reason, 60.0, 30.0)
    assert found.faster == 0.5


def test_layers_kept_in_float32_or_faster_are_not_slow():
    rows = [row(baseline_us=30.0, ratio=2.0), low(layer=1, ratio=0.5), low(layer=2, ratio=1.02)]
    found = find(rows, 180.0, VNNI)
    assert found.slow == ()
    assert found.low_layers == 2


def test_slow_layers_are_listed_once_by_lost_time():
    rows = [
        low(layer=0, median_us=20.0, baseline_us=10.0),
        low(layer=1, median_us=50.0, baseline_us=40.0),
        low(layer=1, median_us=30.0, baseline_us=40.0),
    ]
    slow = find(rows, 100.0, VNNI).slow
    assert [(one.row.layer, one.own_us) for one in slow] == [(1, 80.0), (0, 20.0)]


def test_kernels_far_from_the_roofline_take_a_share_of_the_time():
    rows = [row(roofline_share=0.1), row(call=1, roofline_share=0.1, share=0.01), row(call=2)]
    assert [r.call for r in find(rows, 180.0, {}).far] == [0]

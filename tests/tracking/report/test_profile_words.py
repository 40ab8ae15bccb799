"""Sentences and page of a profile, on planted data."""

from __future__ import annotations

import pytest

from tests.profile.planted import low, row
from tvmopt.profile.findings import find
from tvmopt.tracking.report.profile_page import profile_page
from tvmopt.tracking.report.profile_words import (
    advice_lines,
    cells,
    roofline_lines,
    summary_cells,
    where_lines,
    why_lines,
)

VNNI = {"int8": 4.0}
EVIL = "<script>alert(1)</script>{{ 7 * 7 }}"


def test_where_the_time_goes():
    rows = [row(), row(call=1, layer=None, operators="max pool2d", median_us=40.0, share=0.4)]
    assert where_lines(find(rows, 125.0, {})) == [
        "a call takes 125.0 us; its kernels take 100.0 us together (80%)",
        "25.0 us of the call pass outside of the kernels, as in Python's call",
        "layer 0 conv0 (conv2d add, 1x8x8x64, float32) takes 60.0 us, 60% of the kernels",
        "kernel 1 (max pool2d) takes 40.0 us, 40% of the kernels",
        "kernels that are neither matmul nor convolution take 40.0 us, 40% of the kernels",
    ]
    assert not any("outside" in line for line in where_lines(find(rows, 101.0, {})))


def test_a_float32_model_needs_no_why():
    assert why_lines(find([row()], 60.0, {})) == []


def test_why_int8_is_slower():
    rows = [
        low(),
        low(call=1, layer=1, layer_name="dw", weight="64x1x3x3", median_us=40.0),
        low(call=2, layer=2, ratio=0.5),
        row(call=3, layer=None, operators="transpose", median_us=20.0),
    ]
    found = find(rows, 200.0, VNNI, [row(median_us=30.0)], 100.0)
    assert why_lines(found) == [
        "the peak rate of int8 is 4 times that of float32",
        "a call is 2.00 times slower in int8 than in float32",
        "2 of 3 int8 layers are slower than in float32, and lose 40.0 us",
        "layer 0 conv0: 60.0 us, in float32 30.0 us (reason unknown)",
        "layer 1 dw: 40.0 us, in float32 30.0 us (depthwise: each channel is reduced alone, so "
        "that dot products are short)",
        "conversions of dtype or layout between layers take 20.0 us, 11% of the kernels",
    ]
    assert advice_lines(found, "fast") == [
        "try keep_dtype=0,1: these layers are faster in float32",
        "try another layout (layout=NHWC or NCHW16c), with fewer conversions",
    ]


def test_why_int8_is_faster():
    found = find([low(ratio=0.5)], 50.0, VNNI, [row()], 100.0)
    assert why_lines(found)[1:] == [
        "a call is 2.00 times faster in int8 than in float32",
        "none of 1 int8 layers is slower than in float32",
    ]


def test_a_cpu_without_dot_products():
    found = find([low()], 60.0, {"int8": 1.0}, [row(median_us=30.0)], 30.0)
    lines = why_lines(found)
    assert lines[0] == (
        "this CPU has no dot-product instruction for int8: the peak rate is that of float32"
    )
    assert lines[3].endswith("(this CPU has no dot-product instruction for int8)")
    assert advice_lines(found, "fast") == ["try dtype=float32: every int8 layer is faster there"]


def test_without_a_float32_build():
    found = find([low(baseline_us=None, ratio=None)], 60.0, VNNI)
    assert why_lines(found)[-1] == (
        "there is no float32 build to compare with; build one with dtype=float32"
    )


def test_distance_from_the_roofline():
    far = find([row(roofline_share=0.1, roofline_us=6.0)], 60.0, {})
    assert roofline_lines(far) == [
        "layer 0 conv0 (conv2d add, 1x8x8x64, float32) reaches 10% of its roofline (6.0 us, bound "
        "by compute) with AVX2 FMA instructions"
    ]
    assert roofline_lines(find([row()], 60.0, {})) == [
        "every kernel of 5% of the time or more reaches a quarter of its roofline"
    ]


@pytest.mark.parametrize(
    ("strategy", "advice"),
    [
        ("default", "try strategy=fast: these schedules were not measured"),
        ("fast", "try strategy=metaschedule with more trials, or a larger topk"),
        ("metaschedule", "try more trials, or strategy=fast"),
        ("", "nothing to try follows from this profile"),
    ],
)
def test_advice_for_kernels_far_from_the_roofline(strategy, advice):
    assert advice_lines(find([row(roofline_share=0.1)], 60.0, {}), strategy) == [advice]


def test_advice_for_calls_that_are_no_kernels():
    assert advice_lines(find([row()], 200.0, {}), "fast") == [
        "try threads=1: most of a call passes outside of the kernels"
    ]


def test_tables_leave_out_columns_without_values():
    assert "ratio" not in cells([row()])[0]
    assert cells([low()])[1][-2:] == ["30.0", "2.00"]
    long = row(operators="conv2d add cast multiply round clip cast")
    assert "conv2d add cast multiply +3" in cells([long])[1]
    head, first, second = summary_cells([row(median_us=1.0), row(call=1, median_us=9.0)])
    assert "call" not in head and first[head.index("us")] == "9.0"
    assert second[head.index("us")] == "1.0"


def test_the_page_is_self_contained_and_escaped():
    rows = [row(layer_name=EVIL), row(call=1, layer=None)]
    text = profile_page("Profile", {"Where": [EVIL], "Why": []}, rows, {"CPU": EVIL})
    assert "<script>" not in text and "&lt;script&gt;" in text and "49" not in text.split("png")[0]
    assert "<h2>Where</h2>" in text and "<h2>Why</h2>" not in text
    assert 'src="data:image/png;base64,' in text
    assert "http://" not in text and "https://" not in text

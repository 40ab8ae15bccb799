"""The text of ``size_mix``."""

from __future__ import annotations

import hypothesis
import pytest
from hypothesis import strategies as st

from tvmopt.errors import ConfigError
from tvmopt.frontend.size_mix import parse_size_mix

DIMENSIONS = ("batch", "ids[1]")
SIZES = ((4, 64), (4, 16), (1, 64), (1, 16))


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("1*batch=1,ids[1]=16", (0, 0, 0, 1)),
        ("9*batch=1,ids[1]=16;1*batch=4,ids[1]=64", (1, 0, 0, 9)),
        (" 3 * ids[1] = 64 , batch = 1 ; 6*batch=4,ids[1]=16", (0, 2, 1, 0)),
        ("1000*batch=1,ids[1]=16;500*batch=4,ids[1]=64", (1, 0, 0, 2)),
    ],
)
def test_counts_by_size(text, counts) -> None:
    assert parse_size_mix(text, DIMENSIONS, SIZES) == counts


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("batch=1,ids[1]=16", "must name each dimension"),
        ("0*batch=1,ids[1]=16", "has no count"),
        ("-1*batch=1,ids[1]=16", "has no count"),
        ("1.5*batch=1,ids[1]=16", "has no count"),
        ("x*batch=1,ids[1]=16", "has no count"),
        ("1*batch=1", r"'1\*batch=1' must name each dimension \(batch, ids\[1\]\) once"),
        ("1*batch=1,ids[1]=16,batch=1", "must name each dimension"),
        ("1*batch=1,width=16", "must name each dimension"),
        ("1*batch=2,ids[1]=16", "no size of input_shapes is 2, 16"),
        ("1*batch=1,ids[1]=", "no size of input_shapes is 1,"),
        ("1*batch=1,ids[1]=16;2*batch=1,ids[1]=16", "a size has two"),
        ("1*batch=1,ids[1]=16;", "'' must name each dimension"),
        ("99*batch=1,ids[1]=16;2*batch=4,ids[1]=16", "must add up to at most 100"),
    ],
)
def test_refusals(text, why) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        parse_size_mix(text, DIMENSIONS, SIZES)
    assert "size_mix" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_model_of_one_size_has_no_mix() -> None:
    with pytest.raises(ConfigError, match="input_shapes has one size only"):
        parse_size_mix("1*batch=1", (), [()])


@hypothesis.given(st.text(alphabet="0123456789*=;,batchids[] \n", max_size=40))
def test_any_text_is_parsed_or_refused(text) -> None:
    try:
        counts = parse_size_mix(text, DIMENSIONS, SIZES)
    except ConfigError:
        return
    assert len(counts) == len(SIZES)
    assert 0 < sum(counts) <= 100

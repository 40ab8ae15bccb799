"""Calls of any size from compiled sizes: which are taken, on what shapes, and what is refused."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tvmopt.errors import ArtifactError, ConfigError
from tvmopt.runtime.metadata import METADATA_FILE, ModelMetadata, TensorSpec
from tvmopt.runtime.sizes import (
    EXACT,
    PADDED,
    ROWS,
    CompiledSize,
    SizeDimension,
    SizePlanner,
    of_size,
)

FEATURES = 3
N = SizeDimension("n", ((0, 0), (1, 0)), ((0, 0), (1, 0)), ROWS)
LENGTH = SizeDimension("length", ((0, 1), (1, 1)), ((0, 1),), PADDED)


def _size(rows: int, length: int, milliseconds: float = 0.0) -> CompiledSize:
    """Return a size of ``x`` (rows, length, 3) and ``mask`` (rows, length)."""
    shapes = (rows, length, FEATURES), (rows, length)
    return CompiledSize(shapes, (shapes[0], (rows, FEATURES)), milliseconds)


def _function(x: np.ndarray, mask: np.ndarray) -> list[np.ndarray]:
    """Return the double of ``x``, and the sum of each masked sequence."""
    return [x * 2, (x * mask[:, :, None]).sum(axis=1)]


class _Library:
    """Runs :func:`_function` on the shapes of a size only, and records the sizes of the calls."""

    def __init__(self, planner: SizePlanner) -> None:
        self._planner = planner
        self.calls: list[int] = []

    def __call__(self, number: int, arrays) -> list[np.ndarray]:
        assert tuple(array.shape for array in arrays) == self._planner.sizes[number].inputs
        self.calls.append(number)
        return _function(*arrays)


def _planner(sizes, dimensions=(N, LENGTH), any_rows=True) -> SizePlanner:
    return SizePlanner(("x", "mask"), sizes, dimensions, any_rows)


def _inputs(rows: int, length: int) -> list[np.ndarray]:
    """Return integers as floats, whose sums are exact in any order."""
    rng = np.random.default_rng(rows * 1000 + length)
    x = rng.integers(-9, 10, (rows, length, FEATURES)).astype(np.float32)
    return [x, rng.integers(0, 2, (rows, length)).astype(np.float32)]


def _check(planner: SizePlanner, rows: int, length: int) -> list[int]:
    """Compare the outputs with the unpadded function; return the sizes of the calls."""
    library, arrays = _Library(planner), _inputs(rows, length)
    before = [array.copy() for array in arrays]
    outputs = planner.run(library, arrays)
    for got, wanted in zip(outputs, _function(*arrays), strict=True):
        np.testing.assert_array_equal(got, wanted)
        assert got.dtype == wanted.dtype
        assert got.flags.c_contiguous
    for array, unchanged in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(array, unchanged)
    return library.calls


def _least_time(sizes, rows: int, length: int) -> float:
    """Return the least time of calls that have ``rows`` together, of all sets of calls."""
    fitting = [size for size in sizes if size.inputs[0][1] >= length]
    return min(
        sum(size.milliseconds for size in calls)
        for count in range(1, rows + 1)
        for calls in itertools.combinations_with_replacement(fitting, count)
        if sum(size.inputs[0][0] for size in calls) >= rows
    )


EXTENTS = st.frozensets(st.integers(1, 6), min_size=1, max_size=3)


@settings(deadline=None, max_examples=200)
@given(EXTENTS, EXTENTS, st.integers(1, 5), st.integers(1, 6), st.randoms(use_true_random=False))
def test_outputs_are_exact_and_the_time_is_the_least(row_set, length_set, rows, length, rng):
    sizes = [
        _size(own, extent, rng.randint(1, 20))
        for own, extent in itertools.product(sorted(row_set)[::-1], sorted(length_set)[::-1])
    ]
    planner = _planner(sizes)
    length = min(length, max(length_set))
    calls = _check(planner, rows, length)
    least = _least_time(sizes, rows, length)
    exact = [number for number, size in enumerate(sizes) if size.inputs[1] == (rows, length)]
    if exact and sizes[exact[0]].milliseconds <= 1.1 * least:
        assert calls == exact
    else:
        assert sum(sizes[number].milliseconds for number in calls) == least


def test_two_calls_replace_an_exact_one_that_takes_clearly_longer():
    assert _check(_planner([_size(16, 2, 22.5), _size(8, 2, 10.0)]), 16, 2) == [1, 1]
    assert _check(_planner([_size(16, 2, 21.5), _size(8, 2, 10.0)]), 16, 2) == [0]


@settings(deadline=None, max_examples=100)
@given(st.frozensets(st.integers(1, 1500), min_size=1, max_size=3), st.integers(500, 6000))
def test_outputs_of_many_rows_are_exact(row_set, rows):
    planner = _planner([_size(own, 2) for own in sorted(row_set, reverse=True)])
    calls = _check(planner, rows, 1)
    # One size repeats: without it, no call is left out, and none computes padding only.
    computed = [planner.sizes[number].inputs[0][0] for number in calls]
    assert sum(computed) - max(computed) < rows <= sum(computed)


@pytest.mark.parametrize("rows", [513, 600, 1023, 1025, 5000])
def test_a_size_of_more_rows_than_the_rest_of_a_call_is_padded(rows):
    _check(_planner([_size(1024, 2), _size(1, 2)]), rows, 2)


def test_5000_rows_take_calls_of_the_best_time_per_row():
    planner = _planner([_size(8, 2, 9.0), _size(4, 2, 4.0), _size(1, 2, 2.0)])
    calls = _check(planner, 5000, 2)
    assert calls == [1] * 1250
    assert _check(planner, 5001, 2) == [*calls, 2]


@pytest.mark.parametrize(
    ("milliseconds", "rows", "wanted"),
    [
        ((0.0, 0.0, 0.0), 3, [0]),  # unknown times: a call costs more than rows of padding
        ((9.0, 5.0, 0.0), 3, [0]),  # one unknown: no time is used
        ((9.0, 5.0, 1.0), 3, [2, 2, 2]),
        ((9.0, 3.0, 2.0), 3, [1, 2]),
        ((1.0, 3.0, 2.0), 3, [0]),
        ((9.0, 3.0, 2.0), 6, [1, 1, 1]),
    ],
)
def test_measured_times_decide(milliseconds, rows, wanted):
    rows_of = 4, 2, 1
    planner = _planner([_size(*own) for own in zip(rows_of, (2, 2, 2), milliseconds, strict=True)])
    assert _check(planner, rows, 2) == wanted


def test_missing_rows_repeat_the_last_one_and_lengths_get_zeros():
    planner = _planner([_size(4, 3)])
    seen = []

    def run(number, arrays):
        seen.extend(arrays)
        return _function(*arrays)

    x, mask = _inputs(2, 2)
    planner.run(run, [x, mask])
    np.testing.assert_array_equal(seen[0][:, :2], x[[0, 1, 1, 1]])
    np.testing.assert_array_equal(seen[0][:, 2:], 0)
    np.testing.assert_array_equal(seen[1], np.pad(mask[[0, 1, 1, 1]], ((0, 0), (0, 1))))


def test_without_independent_rows_one_call_pads_all_axes():
    padded = [dataclasses.replace(one, handling=PADDED) for one in (N, LENGTH)]
    planner = _planner([_size(4, 4), _size(4, 2), _size(2, 4)], padded, any_rows=False)
    assert _check(planner, 3, 2) == [1]
    assert _check(planner, 1, 3) == [2]
    assert _check(planner, 2, 4) == [2]
    assert _check(planner, 3, 3) == [0]
    with pytest.raises(ConfigError, match="must fit a size"):
        planner.plan(((5, 2, FEATURES), (5, 2)))


def test_one_size_of_any_rows_and_a_length_that_does_not_vary():
    planner = _planner([_size(3, 2)], ())
    assert _check(planner, 7, 2) == [0, 0, 0]
    with pytest.raises(ConfigError, match="must fit a size"):
        planner.plan(((3, 1, FEATURES), (3, 1)))


REASON = "cannot be padded: the model's outputs depend on the padding"
FIXED = dataclasses.replace(LENGTH, handling=EXACT, reason=REASON)
SIZES = [_size(rows, length) for rows in (4, 1) for length in (8, 5)]
HELD = "x:4x8x3, mask:4x8; x:4x5x3, mask:4x5; x:1x8x3, mask:1x8; x:1x5x3, mask:1x5"


@pytest.mark.parametrize(
    ("length", "rows", "shapes", "message"),
    [
        (
            FIXED, True, ((4, 7, 3), (4, 7)),
            f"inputs must fit a size that the model was compiled for ({HELD}), but got x:4x7x3, "
            f"mask:4x7; 'length' {REASON}; compile it for this size, too",
        ),
        (
            LENGTH, True, ((4, 9, 3), (4, 9)),
            f"compiled for ({HELD}), but got x:4x9x3, mask:4x9; compile it for this size, too",
        ),
        (LENGTH, True, ((4, 8, 2), (4, 8)), "but got x:4x8x2, mask:4x8; compile it"),
        (LENGTH, True, ((4, 8), (4, 8)), "but got x:4x8, mask:4x8; compile it"),
        (
            LENGTH, True, ((4, 8, 3), (4, 7)),
            "inputs must have the same size of at least 1 along 'length', but got 7, 8",
        ),
        (
            LENGTH, True, ((2, 8, 3), (3, 8)),
            "inputs must have the same size of at least 1 along 'rows', but got 2, 3",
        ),
        (LENGTH, True, ((0, 8, 3), (0, 8)), "of at least 1 along 'rows', but got 0"),
        (LENGTH, True, ((1, 0, 3), (1, 0)), "of at least 1 along 'length', but got 0"),
        (LENGTH, False, ((2, 8, 3), (2, 8)), "but got x:2x8x3, mask:2x8; compile it"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_in_one_line(length, rows, shapes, message):
    planner = _planner(SIZES, [N, length], rows)
    arrays = [np.zeros(shape, np.float32) for shape in shapes]
    with pytest.raises(ConfigError) as caught:
        planner.run(lambda *_: pytest.fail("it was run"), arrays)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_refusal_names_six_sizes():
    planner = _planner([_size(1, length) for length in range(20, 11, -1)])
    with pytest.raises(ConfigError, match=r"mask:1x15; and 3 more\), but got x:1x21x3") as caught:
        planner.plan(((1, 21, FEATURES), (1, 21)))
    assert "1x14" not in str(caught.value)


def test_an_exact_length_still_divides_rows():
    planner = _planner(SIZES, [N, FIXED])
    assert _check(planner, 5, 8) == [0, 2]
    assert _check(planner, 3, 5) == [1]


def test_more_shapes_than_are_kept():
    planner = _planner([_size(1, 2100)])
    for length in [*range(1, 2100), 1]:
        assert planner.plan(((1, length, FEATURES), (1, length)))[0].size == 0
    assert len(planner._plans) <= 1001


def test_a_size_whose_inputs_differ_in_rows_takes_no_others():
    """An input of one row there is the same for all rows, and not the first of several."""
    shared = CompiledSize(((4, 2, FEATURES), (1, 2)), ((4, 2, FEATURES), (4, FEATURES)))
    planner = _planner([_size(4, 2), shared], [N, dataclasses.replace(N, inputs=((1, 0),))])
    assert _check(planner, 3, 2) == [0]
    assert _check(planner, 5, 2) == [0, 0]


def test_functions_of_further_sizes_have_its_number():
    assert [of_size("main", size) for size in range(3)] == ["main", "main_1", "main_2"]


METADATA = ModelMetadata(
    name="m",
    inputs=(TensorSpec("x", (4, 8, 3), "float32"), TensorSpec("mask", (4, 8), "float32")),
    outputs=(TensorSpec("y", (4, 8, 3), "float32"), TensorSpec("z", (4, 3), "float32")),
    target={"isa": "avx2", "mcpu": "haswell", "cpu_flags": []},
    host_cpu="",
    threads=2,
    tvm_version="0",
    tvmopt_version="0",
    library_sha256="",
    golden_sha256="",
    digest="",
    tolerance=0.01,
    any_rows=True,
    sizes=tuple(dataclasses.replace(one, milliseconds=0.5 + i) for i, one in enumerate(SIZES)),
    dimensions=(N, FIXED),
)


def test_sizes_and_dimensions_are_written_and_read(tmp_path):
    METADATA.write(tmp_path)
    found = ModelMetadata.read(tmp_path)
    assert found == METADATA
    assert found.sizes[3] == CompiledSize(((1, 5, 3), (1, 5)), ((1, 5, 3), (1, 3)), 3.5)
    assert found.dimensions[1].reason == REASON


def test_metadata_of_a_size_has_its_shapes():
    assert METADATA.at(0) is METADATA
    found = METADATA.at(3)
    assert [spec.shape for spec in found.inputs] == [(1, 5, 3), (1, 5)]
    assert [spec.shape for spec in found.outputs] == [(1, 5, 3), (1, 3)]
    assert [spec.name for spec in (*found.inputs, *found.outputs)] == ["x", "mask", "y", "z"]
    assert found.sizes == METADATA.sizes


@pytest.mark.parametrize(
    ("any_rows", "sizes", "inputs", "outputs"),
    [
        (True, SIZES, [(-1, -1, 3), (-1, -1)], [(-1, -1, 3), (-1, 3)]),
        (True, SIZES[:2], [(-1, -1, 3), (-1, -1)], [(-1, -1, 3), (-1, 3)]),
        (False, SIZES[:2], [(4, -1, 3), (4, -1)], [(4, -1, 3), (4, 3)]),
        (False, SIZES[::2], [(-1, 8, 3), (-1, 8)], [(-1, 8, 3), (-1, 3)]),
        (True, [], [(-1, 8, 3), (-1, 8)], [(-1, 8, 3), (-1, 3)]),
        (False, [], [(4, 8, 3), (4, 8)], [(4, 8, 3), (4, 3)]),
    ],
)
def test_extents_that_a_call_chooses_are_open(any_rows, sizes, inputs, outputs):
    found = dataclasses.replace(METADATA, any_rows=any_rows, sizes=tuple(sizes))
    assert [spec.shape for spec in found.open_inputs] == inputs
    assert [spec.shape for spec in found.open_outputs] == outputs


def _changed(data: dict, place: tuple, value: object) -> dict:
    """Return JSON data with another value at a path of keys and indices."""
    part = data
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = value
    return data


_SIZE, _AXIS = ("sizes", 1, "inputs", 0), ("dimensions", 1, "inputs", 0)


@pytest.mark.parametrize(
    ("place", "value", "reason"),
    [
        (_SIZE, [4, 5], "sizes must have as many axes each"),
        (_SIZE, [4, 5, 3, 1], "sizes must have as many axes each"),
        (("sizes", 1, "outputs", 1), [], "sizes must have as many axes each"),
        (("sizes", 1, "inputs"), [[4, 5, 3]], "sizes must have as many axes each"),
        (("sizes", 1, "outputs"), [], "sizes must have as many axes each"),
        ((*_SIZE, 1), -5, "an extent or position is -5"),
        ((*_SIZE, 1), 5.0, "an extent or position is 5.0"),
        ((*_SIZE, 1), True, "an extent or position is True"),
        ((*_SIZE, 1), "5", "an extent or position is"),
        ((*_SIZE, 1), None, "an extent or position is None"),
        ((*_SIZE, 1), 2**63, "an extent or position is 9223372036854775808"),
        (("sizes", 0, "inputs", 0, 1), 9, "the first of sizes must be inputs and outputs"),
        (("sizes", 0, "outputs", 1, 1), 9, "the first of sizes must be inputs and outputs"),
        (("inputs", 0, "shape", 1), 9, "the first of sizes must be inputs and outputs"),
        (("sizes", 1, "milliseconds"), -1, "the time of a size is -1.0"),
        (("sizes", 1, "milliseconds"), math.nan, "the time of a size is nan"),
        (("sizes", 1, "milliseconds"), math.inf, "the time of a size is inf"),
        (("sizes", 1, "milliseconds"), 10**400, "too large"),
        (("sizes", 1, "milliseconds"), None, "must be a string or a real number"),
        (("sizes", 1), {}, "inputs"),
        (("sizes", 1), [], "list indices"),
        (("sizes",), None, "NoneType"),
        (("sizes",), 3, "int"),
        (("dimensions", 1, "handling"), "cut", "a dimension is"),
        (("dimensions", 1, "handling"), ["rows"], "a dimension is"),
        (("dimensions", 1, "name"), "a\x1b[2Jb", "a dimension is"),
        (("dimensions", 1, "name"), 3, "int"),
        (("dimensions", 1, "reason"), "a\nb", "a dimension is"),
        (("dimensions", 1, "inputs"), [], "dimension length has no axis"),
        ((*_AXIS, 0), 2, "dimension length has an axis that no tensor has"),
        ((*_AXIS, 1), 3, "dimension length has an axis that no tensor has"),
        (("dimensions", 0, "outputs", 1, 1), 2, "dimension n has an axis that no tensor has"),
        ((*_AXIS, 1), -1, "an extent or position is -1"),
        (_AXIS, [0], "not enough values"),
        (("dimensions",), None, "NoneType"),
        (("dimensions", 1), 3, "int"),
        # A call of other rows would take steps of none.
        (("sizes", 1, "inputs"), [[0, 5, 3], [0, 5]], "any_rows"),
    ],
)
def test_damaged_sizes_are_an_error_of_one_line(tmp_path, place, value, reason):
    METADATA.write(tmp_path)
    file = tmp_path / METADATA_FILE
    file.write_text(json.dumps(_changed(json.loads(file.read_text()), place, value)))
    with pytest.raises(ArtifactError, match="it is damaged") as caught:
        ModelMetadata.read(tmp_path)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "\x1b" not in str(caught.value)

"""A search's analysis chooses a dtype for each layer, where a network may have two low dtypes."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from tvmopt.choices import AUTO
from tvmopt.quantize import LayerCost, Sensitivity
from tvmopt.quantize.dtype_map import DtypeMap
from tvmopt.search.declared import Declared
from tvmopt.search.effort import Effort
from tvmopt.search.space import Choice, Space
from tvmopt.stages.watch import Allowance
from tvmopt.tracking.search import analysis, facts

AMX = Space(
    ("bfloat16", "int8", "float32"), {"bfloat16": ("",), "int8": ("",)}, ("NHWC",),
    (Effort("default"),),
)  # fmt: skip


def _found(*dtypes: str) -> Sensitivity:
    """An analysis of layers of which each has the dtype that was chosen for it."""
    costs = [
        LayerCost(i, f"n{i}", "Conv", dtype, "measured", error=0.1)
        for i in range(len(dtypes))
        for dtype in ("int8", "bfloat16")
    ]
    layers = tuple(i for i, dtype in enumerate(dtypes) if dtype != "float32")
    chosen = tuple(dtype for dtype in dtypes if dtype != "float32")
    maps = (
        DtypeMap((), (), 2.0, 0.0, 1.0, None, 0.0, 0, True),
        DtypeMap(layers, chosen, 1.0, 0.0, 1.0, None, 0.0, 4, True),
    )
    return Sensitivity(("int8", "bfloat16"), tuple(costs), (), 4, 1.0, {}, (), maps)


@pytest.mark.parametrize(
    ("chosen", "adds"),
    [
        (("int8", "bfloat16"), True),
        (("int8", "float32"), True),
        (("int8", "int8"), False),
        (("bfloat16", "bfloat16"), False),
        (("float32", "float32"), False),
    ],
)
def test_auto_is_tried_where_layers_differ(chosen: tuple[str, ...], adds: bool) -> None:
    found = analysis.with_mix(AMX, _found(*chosen))
    dtypes = ("bfloat16", AUTO, "int8", "float32")
    more = {"dtypes": dtypes, "further": {"dtype_maps": ("0",)}} if adds else {}
    assert found == dataclasses.replace(AMX, **more)


@pytest.mark.parametrize(("first", "maps"), [("int8", ("1",)), ("bfloat16", ("0", "1"))])
def test_the_next_map_is_tried_too(first: str, maps: tuple[str, ...]) -> None:
    """The first map has int8 for both layers, which the space has already, or is mixed, too."""
    found = _found("int8", first)
    [plain, fastest] = found.dtype_maps
    fastest = dataclasses.replace(fastest, predicted_loss=0.1)
    mixed = dataclasses.replace(fastest, dtypes=("bfloat16", "int8"), predicted_s=1.5)
    mixed = dataclasses.replace(mixed, predicted_loss=0.02)
    found = dataclasses.replace(found, dtype_maps=(plain, fastest, mixed))
    space = analysis.with_mix(AMX, found)
    assert space.further == {"dtype_maps": maps}
    labels = [str(Choice(v, AMX.efforts[0])) for v in space.variants() if v.dtype == AUTO]
    assert labels == [f"auto NHWC default{' map 1' if n == '1' else ''}" for n in maps]


def test_auto_comes_first_where_no_16_bit_float_does() -> None:
    space = dataclasses.replace(AMX, dtypes=("int8", "bfloat16", "float32"))
    found = analysis.with_mix(space, _found("int8", "bfloat16"))
    assert found.dtypes == (AUTO, "int8", "bfloat16", "float32")


@pytest.mark.parametrize(
    ("mixed", "dtypes", "declared", "expected"),
    [
        (("int8", "bfloat16"), ["int8"], Declared(), True),
        # the 16-bit float missed the limit in all layers, which some layers need not
        (("int8", "bfloat16"), ["bfloat16", "int8"], Declared(), True),
        # int8 has skip sets of the user
        (("int8", "bfloat16"), [], Declared(), False),
        # the user said which dtypes to try
        (("int8", "bfloat16"), ["int8"], Declared(dtypes=("int8", "bfloat16")), False),
        # the target has no fast 16-bit float, or the space has not
        (("int8",), ["int8"], Declared(), False),
        (("int8", "float16"), ["int8"], Declared(), False),
    ],
)
def test_when_the_analysis_mixes_dtypes(
    monkeypatch: Any, mixed: tuple[str, ...], dtypes: list[str], declared: Declared, expected: bool
) -> None:
    monkeypatch.setattr(analysis, "mixed_dtypes", lambda target: mixed)
    request: Any = SimpleNamespace(target=None)
    assert analysis.mixes_dtypes(request, AMX, dtypes, declared) is expected


class _Asked:
    """A request that keeps the parameters that it is changed to."""

    def __init__(self, **values: Any) -> None:
        self.values = values
        limit = {"sensitivity_time": values.get("sensitivity_time", 0.0)}
        time = {"calibration_time": values.get("calibration_time", 0.0)}
        self.asked = SimpleNamespace(
            sensitivity_limit=SimpleNamespace(**limit, values=lambda: limit),
            calibration=SimpleNamespace(**time, values=lambda: {**time, "samples": 3}),
        )

    def changed(self, **changes: Any) -> _Asked:
        return _Asked(**{**self.values, **changes})


def test_the_analysis_asks_for_dtypes_of_layers(monkeypatch: Any) -> None:
    asked: dict[str, Any] = {}
    before: dict[str, list[str]] = {}

    class Pipeline:
        def __init__(self, session: Any, request: Any, known: Any = ()) -> None:
            self.request, self.known = request, known

        def run(self, stage: str) -> Any:
            asked[stage] = self.request.values
            before[stage] = [output.stage for output in self.known]
            return SimpleNamespace(folder=None, stage=stage, metrics={"dtype_map": 0.0})

        @property
        def outputs(self) -> list[Any]:
            return [SimpleNamespace(stage=stage) for stage in asked]

    monkeypatch.setattr(analysis, "StagePipeline", Pipeline)
    monkeypatch.setattr(analysis, "read_sensitivity", lambda folder: _found("int8", "bfloat16"))
    session = dataclasses.make_dataclass("Session", ["takes_turns", "allow"])(False, None)
    request: Any = _Asked(dtypes="int8", sensitivity_time=9.0, calibration_time=8.0)
    found = analysis.with_analysis(session, request, AMX, ["int8"], Allowance(), mixes=True)
    assert AUTO in found.dtypes and found.skips_of("int8") == ("",)
    assert (asked["sensitivity"]["dtype"], asked["sensitivity"]["dtypes"]) == (AUTO, "")
    # the calibration is not looked up again, which would say a second time that it is reused
    kept = ["calibrate", "sensitivity"]
    assert before == {"calibrate": [], "sensitivity": kept[:1], "screen": kept}
    assert asked["screen"] == asked["sensitivity"]


@pytest.mark.parametrize(("first", "maps"), [(0, "01"), (1, "1"), (2, "")])
def test_a_search_tries_the_maps_from_the_first_that_keeps_the_accuracy(
    first: int, maps: str
) -> None:
    found = _found("int8", "bfloat16")
    [plain, fastest] = found.dtype_maps
    lossy = dataclasses.replace(fastest, predicted_loss=0.1)
    slower = dataclasses.replace(
        lossy, dtypes=("bfloat16", "int8"), predicted_s=1.5, predicted_loss=0.05
    )
    space = analysis.with_mix(
        AMX, dataclasses.replace(found, dtype_maps=(plain, lossy, slower)), first
    )
    assert space.further.get("dtype_maps", ()) == tuple(maps)
    assert (AUTO in space.dtypes) == bool(maps)


def test_trials_reuse_the_analysis_with_its_limits() -> None:
    request: Any = _Asked(calibration_time=0.0, sensitivity_time=120.0)
    analysed: Any = _Asked(calibration_time=60.0, sensitivity_time=45.0, dtypes="int8")
    kept: Any = facts.with_limits_of(request, analysed)
    assert kept.values == {"calibration_time": 60.0, "sensitivity_time": 45.0}
    again: Any = facts.calibrated_as(request, {"request": kept.values})
    assert again.values == kept.values
    # a study that was begun without such a limit
    assert facts.calibrated_as(request, {"request": {}}).values == request.values  # type: ignore[attr-defined]

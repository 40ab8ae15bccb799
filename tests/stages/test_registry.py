"""Tests of the registry of stages: each row fits its function."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

import pytest

from tvmopt.config import TuneConfig
from tvmopt.stages.registry import STAGES, Input, InputGroup, StageCall


@pytest.mark.parametrize("name", STAGES)
def test_a_row_fits_its_function(name):
    stage = STAGES[name]
    assert stage.name == name
    module, _, attribute = stage.function.partition(":")
    taken = inspect.signature(getattr(importlib.import_module(module), attribute)).parameters
    assert len(stage.arguments) == len(taken)
    call = StageCall(
        {
            k: k
            for k in (
                "input_shapes", "metadata_sha256", "metric", "metric_goal", "metric_alphabet",
                "metric_blank", "board", "source", "label",
            )
        },
        {one.role: Path(one.role) for one in stage.inputs},
        "digest", Path("out"), print,
    )  # fmt: skip
    given = dict(zip(taken, [pick(call) for pick in stage.arguments], strict=True))
    plain = ("config", "out_dir", "progress", "digest")
    wanted = {"config": call.config, "out_dir": Path("out"), "progress": print, "digest": "digest"}
    assert {k: v for k, v in given.items() if k in plain} == {
        k: wanted[k] for k in plain if k in taken
    }
    for one in stage.inputs:
        keyword = {
            "bundle:": "bundles",
            "earlier:": "earlier",
            "convert:": "converts",
            "tune:": "tunes",
        }.get(one.role)
        keyword = keyword or (one.role if one.role in taken else f"{one.role}_dir")
        assert given[keyword] == (
            Path(one.role) if isinstance(one, Input) else {"": Path(one.role)}
        )


def test_inputs():
    call = StageCall({}, {"model": Path("m"), "bundle:a": Path("a")}, "", Path(), print)
    assert Input("model")(call) == Path("m")
    assert Input("data", optional=True)(call) is None
    assert InputGroup("bundle:")(call) == {"a": Path("a")}
    assert InputGroup("earlier:")(call) == {}
    with pytest.raises(KeyError):
        Input("data")(call)


@pytest.mark.parametrize(
    ("strategy", "measures"), [("fast", True), ("default", False), ("none", False)]
)
def test_tuning_depends_on_the_machine_where_it_measures(strategy, measures):
    config = TuneConfig({"mcpu": "haswell"}, strategy=strategy)
    assert STAGES["tune"].measures(config) is measures
    assert STAGES["tune"].depends_on(config) == (("host", "gpu") if measures else ())

"""Configurations of the stages, which are part of their digests, equal version 0.1.0's.

But for names: since version 0.2.0, a configuration calls a parameter as the command line does
(``calibration``, ``calibration_samples``, ``sensitivity_time``, ``time_budget``), and ``trials`` of
a strategy that does not use it is the default. CPUs with AVX2 and without VNNI take the
quantization ``u8s8-pairs``.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tvmopt
from tvmopt.tracking.pipeline.entry import EXAMPLE
from tvmopt.tracking.pipeline.request import make_request

#: Of commit 0136b6d, renamed: what was given, and ``to_dict()`` of each stage, without the target.
KNOWN = json.loads((Path(__file__).parent / "stage_configs.json").read_text())
MODEL = Path(tvmopt.__file__).parent / EXAMPLE["model"]


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known["given"]["target"])
def test_configurations_are_as_before(known):
    request = make_request(MODEL, input_shapes=EXAMPLE["input_shapes"], **known["given"])
    target = request.target.to_dict()
    for stage, wanted in known["configs"].items():
        found = json.loads(json.dumps(getattr(request, stage).to_dict()))
        assert found.pop("target", target) == json.loads(json.dumps(target))
        assert {name: found[name] for name in wanted} == wanted

"""Stages request AMX permission from Linux before they run code compiled for AMX."""

from __future__ import annotations

from pathlib import Path

import pytest
import tvm

from tvmopt import host
from tvmopt.device.target import TargetSpec
from tvmopt.quantize.layer_builder import build_layer
from tvmopt.quantize.layer_timer import layer_timer
from tvmopt.stages import check, network_timing


class ReachedError(Exception):
    """Raised where the library would be built."""


@pytest.fixture
def asked(monkeypatch):
    """Record the requested permissions until a library is built."""
    asked = []

    def reached(*args, **kwargs):
        raise ReachedError

    for place in ("tvmopt.stages.check", "tvmopt.stages.network_timing", "tvmopt.build"):
        monkeypatch.setattr(f"{place}.build_library", reached)
    monkeypatch.setattr("tvmopt.transform.lower.lower", lambda mod, target: mod)
    monkeypatch.setattr("tvmopt.stages.check.lower", lambda mod, target, winograd: mod)
    monkeypatch.setattr(host, "request_amx", asked.append)
    return asked


def _check(target):
    check.compile_for_check(tvm.IRModule(), target)


def _layouts(target):
    network_timing.measured_seconds({"a": tvm.IRModule()}, target)


def _layer(target):
    import onnx.parser

    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) { y = Relu(x) }'
    with layer_timer(target):
        build_layer(onnx.parser.parse_model(text), "float32", target, Path("layer.so"))


@pytest.mark.parametrize("run", [_check, _layouts, _layer])
def test_it_is_asked_for_the_features_of_the_target(asked, run):
    flags = ("amx_tile", "avx2")
    with pytest.raises(ReachedError):
        run(TargetSpec("sapphirerapids", "x86_64", 1, cpu_flags=flags))
    assert asked == [flags]

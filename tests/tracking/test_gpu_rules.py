"""Validation of parameters for a GPU target: one-line errors before any work."""

from __future__ import annotations

import contextlib
import types
from pathlib import Path

import pytest
import tvm

from tvmopt import host
from tvmopt.device import cuda_runtime
from tvmopt.device.target import TargetSpec
from tvmopt.errors import ConfigError, EnvironmentSetupError
from tvmopt.kernels.cuda.toolchain import compiler, modules
from tvmopt.search.declared import Declared
from tvmopt.search.limits import Limits
from tvmopt.search.records import REFERENCE_MS
from tvmopt.stages.launch import UNLIMITED
from tvmopt.tracking.pipeline import entry
from tvmopt.tracking.pipeline.request import Request, make_request
from tvmopt.tracking.pipeline.workflow import _check_tools
from tvmopt.tracking.search import device_rules
from tvmopt.tracking.search.entry_points import search
from tvmopt.tracking.search.facts import facts_of, portable
from tvmopt.tracking.search.finals import fitting
from tvmopt.tracking.search.trial import Rules
from tvmopt.tracking.store.stage_run import Session

MODEL = Path(__file__).parents[2] / "tvmopt" / "examples" / "digits_cnn.onnx"
no_gpu = pytest.mark.skipif(bool(tvm.runtime.cuda(0).exist), reason="this machine has a GPU")


def request(target: str = "nvidia-h200", **asked: object) -> Request:
    return make_request(MODEL, input_shapes="image:1x1x8x8", target=target, **asked)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8"])
@pytest.mark.parametrize("layout", ["auto", "NHWC", "NCHW"])
def test_supported_gpu_requests_are_accepted(dtype: str, layout: str) -> None:
    made = request("a100", dtype=dtype, layout=layout)
    assert made.target.device == "nvidia-a100"
    assert (made.convert.dtype, made.convert.layout) == (dtype, layout)
    assert made.build.target["gpu"]["sm"] == 80


@pytest.mark.parametrize(
    ("target", "asked", "message"),
    [
        ("h200", {"layout": "NCHW32c"}, r"layout must be one of auto, NHWC, NCHW for a GPU"),
        ("h200", {"layout": "HWNC"}, r"but got 'HWNC'; auto is NHWC"),
        ("t4", {"dtype": "bfloat16"}, r"bfloat16 for nvidia-t4, .*7\.5.*; use dtype=float16"),
        ("h200", {"strategy": "metaschedule"}, r"strategy must be one of fast, default, none for"),
        ("h200", {"rpc_tracker": "h:1", "rpc_key": "k"}, r"rpc_tracker must be empty for a GPU"),
        ("h200", {"quantization": "u4u4"}, r"quantization must be one of auto, u8s8, s8s8"),
        ("h200", {"threads": -1}, r"threads must be at least 0"),
    ],
)
def test_cpu_only_parameters_are_refused(target: str, asked: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        request(target, **asked)
    assert "\n" not in str(caught.value)


def test_int8_is_signed_on_hopper_by_default() -> None:
    found = {
        (target, asked): request(target, dtype="int8", quantization=asked).convert.quantization
        for target in ("h200", "a100", "cascadelake", "haswell")
        for asked in ("auto", "u8s8", "s8s8")
    }
    assert found["h200", "auto"] == "s8s8"
    assert found["a100", "auto"] == found["cascadelake", "auto"] == "u8s8"
    assert found["haswell", "auto"] == "u8s8-pairs"
    assert all(found[target, asked] == asked for target, asked in found if asked != "auto")


def test_threads_are_those_of_onnx_runtime() -> None:
    made = request(threads=3)
    assert (made.target.threads, made.evaluate.threads) == (1, 3)
    assert request().evaluate.threads == host.usable_cores()
    assert request().build == made.build  # no host thread computes


@no_gpu
@pytest.mark.parametrize(
    ("target", "lacks"),
    [
        ("nvidia-h200", r"'nvidia-h200', and this machine lacks a GPU of compute capability 9"),
        ("cuda", r"'cuda', and there is no NVIDIA driver"),
    ],
)
def test_search_measures_on_its_target(target: str, lacks: str) -> None:
    said = f"target must be what this machine can measure.*{lacks}.*or use target=host"
    with pytest.raises(ConfigError, match=said) as caught:
        search(target=target)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("restriction", "message"),
    [
        ({"layouts": ("NHWC", "NCHW16c")}, "layout must be one of auto, NHWC, NCHW for a GPU"),
        ({"strategies": ("metaschedule",)}, "strategy must be one of fast, default, none for a"),
        ({"dtypes": ("bfloat16",)}, "dtype must not be bfloat16 for nvidia-t4"),
    ],
)
def test_a_search_refuses_what_its_gpu_cannot_take(monkeypatch, restriction, message) -> None:
    monkeypatch.setattr(TargetSpec, "missing_on_host", lambda self: ())
    monkeypatch.setattr(device_rules, "check_tools", lambda: None)
    with pytest.raises(ConfigError, match=message):
        device_rules.check_searchable(request("t4"), "t4", Declared(**restriction))
    device_rules.check_searchable(request("t4"), "t4", Declared(dtypes=("float16", "int8")))


@pytest.mark.parametrize("missing", [(), ("a GPU of compute capability 9.0",)])
def test_commands_that_measure_on_a_gpu_take_turns(monkeypatch, tmp_path, missing) -> None:
    plain = Session(None, "0", "r", {}, True, tmp_path, 1)  # type: ignore[arg-type]
    monkeypatch.setattr(entry, "command", lambda *_, **__: contextlib.nullcontext(plain))
    monkeypatch.setattr(TargetSpec, "missing_on_host", lambda self: missing)
    opened = {}
    for target in ("h200", "host"):
        with entry.open_session("main", request(target), {}, allowance=UNLIMITED) as session:
            opened[target] = session.takes_turns
    assert opened == {"h200": not missing, "host": False}


def test_a_gpus_latency_is_not_adjusted_by_the_cpus_speed() -> None:
    metrics = {"latency_ms_p50": 2.0, REFERENCE_MS: 10.0}
    assert Rules(Limits(0.01), ("latency",), 8.0).adjusted_ms(metrics) == pytest.approx(1.6)
    assert Rules(Limits(0.01), ("latency",), None).adjusted_ms(metrics) == 2.0


def test_a_worker_gets_the_threads_of_onnx_runtime() -> None:
    assert portable(request(threads=3))["threads"] == 3


def test_a_study_names_the_gpu_and_its_driver(monkeypatch) -> None:
    monkeypatch.setattr(cuda_runtime, "describe", lambda: "NVIDIA H200, driver for CUDA 13.0")
    asked = Limits(0.01), ("latency",), Declared()
    assert facts_of(request(), *asked)["gpu"] == "NVIDIA H200, driver for CUDA 13.0"
    assert "gpu" not in facts_of(request("host"), *asked)


def test_finalists_fit_into_the_gpus_memory_together() -> None:
    def finalist(mb: float) -> types.SimpleNamespace:
        return types.SimpleNamespace(metrics={"peak_memory_mb": mb})

    chosen = [finalist(mb) for mb in (5000, 2000, 2000)]
    assert fitting(chosen, 10_000_000_000) == chosen[:2]
    assert fitting(chosen, 1_000_000) == chosen[:1]


def test_a_machine_without_compiler_says_what_to_install(monkeypatch) -> None:
    def none() -> str:
        raise EnvironmentSetupError("nvcc or nvrtc must be installed to build for a CUDA GPU")

    _check_tools(request("host"))
    monkeypatch.setattr(modules, "compiler", none)
    with pytest.raises(EnvironmentSetupError, match="nvcc or nvrtc must be installed"):
        _check_tools(request())


def test_a_machine_without_cudas_library_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setattr(modules, "compiler", lambda: "nvcc")
    monkeypatch.setattr(cuda_runtime, "_loads", lambda library: False)
    with pytest.raises(EnvironmentSetupError, match=r"libcudart.*pip install .nvidia-cuda-runtime"):
        _check_tools(request())


def test_the_compilers_version_is_part_of_a_build(monkeypatch) -> None:
    try:
        assert compiler.version().split()[0] == compiler.compiler()
    except EnvironmentSetupError:
        pytest.skip("neither nvcc nor nvrtc is installed")

"""The stages for a GPU target: without a GPU, and all of them on a machine with one."""

from __future__ import annotations

import csv
import dataclasses
import shutil

import numpy as np
import onnx
import pytest
import tvm

from tvmopt.config import BuildConfig, ConvertConfig, EvaluateConfig, TuneConfig
from tvmopt.device import cuda_runtime
from tvmopt.device.dtypes import TF32
from tvmopt.device.target import TargetSpec, resolve_target
from tvmopt.measure.cuda_gpu import CudaGpu
from tvmopt.measure.measurer import Measured
from tvmopt.runtime import CompiledModel, ModelMetadata, load
from tvmopt.stages import evaluate_host, host_latency
from tvmopt.stages.auto_layout import choose_layout
from tvmopt.stages.build import build
from tvmopt.stages.comparison_table import CANDIDATE, REFERENCE, UNTUNED, read_table
from tvmopt.stages.convert import convert
from tvmopt.stages.evaluate import evaluate
from tvmopt.stages.signature import Signature
from tvmopt.stages.tune import tune
from tvmopt.tune import fast

has_gpu = bool(tvm.runtime.cuda(0).exist)
no_gpu = pytest.mark.skipif(has_gpu, reason="this machine has a GPU")
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")


def quiet(done: int, total: int, text: str) -> None:
    pass


@pytest.fixture
def stages(conv_model, tmp_path):
    """Convert, tune and build the session model for a target; return the results by stage."""

    def run(name: str, dtype: str, strategy: str = "fast", allow_tf32: bool = False):
        target = resolve_target(name).to_dict()
        onnx.save(conv_model, str(tmp_path / "model.onnx"))
        folders = {stage: tmp_path / stage for stage in ("convert", "tune", "build")}
        for folder in folders.values():
            folder.mkdir()
        asked = ConvertConfig("", target, dtype=dtype, allow_tf32=allow_tf32)
        results = [convert(asked, tmp_path / "model.onnx", folders["convert"], quiet)]
        asked = TuneConfig(target, strategy=strategy, topk=4)
        results.append(tune(asked, folders["convert"], folders["tune"], quiet))
        asked = BuildConfig("conv", target, "none" if strategy == "none" else "default")
        where = folders["convert"], folders["tune"]
        results.append(build(asked, *where, "d", folders["build"], quiet))
        return dict(zip(folders, results, strict=True)), folders

    return run


def test_convolutions_are_laid_out_for_its_kernels(conv_build) -> None:
    from tvmopt.stages.module_files import read_module

    plain = read_module(conv_build / "convert")
    assert choose_layout(lambda layout: plain, resolve_target("a100")).name == "NHWC"


@pytest.mark.sample(1)
@no_gpu
@needs_nvcc
@pytest.mark.parametrize("strategy", ["fast", "default", "none"])
def test_a_gpu_elsewhere_is_built_for(stages, tmp_path, strategy: str) -> None:
    results, folders = stages("nvidia-a100", "float16", strategy)
    lacks = "this machine lacks a GPU of compute capability 8.0 (nvidia-a100)"
    assert results["convert"].tags["tvmopt.layout"] == "NHWC"
    assert (
        "nvidia-a100 does not run on this machine: its CPU checked the conversion"
        in results["convert"].tags["tvmopt.unchecked"]
    )
    unmeasured = results["tune"].tags.get("tvmopt.unmeasured.tuning", "")
    assert unmeasured.startswith(lacks) == (strategy == "fast")
    assert results["tune"].metrics["tune_trials"] == 0
    assert results["build"].tags["tvmopt.unchecked"] == lacks
    rows = list(csv.DictReader((folders["tune"] / "tasks.csv").open()))
    kind = "none:baseline" if strategy == "none" else "default:"
    assert rows and all(row["source"].startswith(kind) for row in rows)
    metadata = ModelMetadata.read(folders["build"] / "bundle")
    assert metadata.gpu == "nvidia-a100" and metadata.target["gpu"]["sm"] == 80
    out = tmp_path / "evaluate"
    out.mkdir()
    bundles = {CANDIDATE: folders["build"] / "bundle"}
    measured = evaluate(EvaluateConfig(1), folders["convert"], bundles, out, quiet)
    assert set(measured.metrics) == {"library_bytes"}
    assert measured.tags["tvmopt.unmeasured.accuracy"] == lacks


@no_gpu
@needs_nvcc
def test_allowed_tf32_reaches_the_kernels_and_the_tags(stages) -> None:
    results, folders = stages("nvidia-a100", "float32", "default", allow_tf32=True)
    assert results["convert"].tags["tvmopt.dtype"] == "tf32"
    assert any("may round to TF32" in line for line in results["convert"].changed)
    assert "tvmopt.allow_tf32" in (folders["tune"] / "lowered.py").read_text()
    signature = Signature.read(folders["convert"])
    assert signature.dtype == "tf32" and signature.is_rounded
    assert signature.tolerance.limit == TF32.model_tolerance


@no_gpu
@pytest.mark.parametrize(("device", "dtype"), [("nvidia-h200", "float16"), ("host", "float32")])
def test_a_gpu_stores_residual_sums_in_16_bits(make_model, tmp_path, device, dtype) -> None:
    from tvmopt.stages.module_files import read_module

    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((64, 64), np.float32) / 8,
        "scale": np.ones(64, np.float32),
        "shift": np.zeros(64, np.float32),
    }
    nodes = [
        onnx.helper.make_node("MatMul", ["x", "w"], ["m"]),
        onnx.helper.make_node("Add", ["x", "m"], ["sum"]),
        onnx.helper.make_node("LayerNormalization", ["sum", "scale", "shift"], ["n"], axis=-1),
        onnx.helper.make_node("MatMul", ["n", "w"], ["y"]),
    ]
    shapes = {"x": ("float32", [8, 64])}, {"y": ("float32", [8, 64])}
    onnx.save(make_model(nodes, *shapes, weights), str(tmp_path / "model.onnx"))
    asked = ConvertConfig("", resolve_target(device).to_dict(), dtype="float16")
    out = tmp_path / "convert"
    out.mkdir()
    convert(asked, tmp_path / "model.onnx", out, quiet)
    bindings = read_module(out)["main"].body.blocks[0].bindings
    made = {binding.var: binding.value for binding in bindings}
    [norm] = [v for v in made.values() if getattr(v.op, "name", "") == "relax.nn.layer_norm"]
    read = made[norm.args[0]]
    source = read.args[0] if read.op.name == "relax.astype" else norm.args[0]
    assert str(source.ty.dtype) == dtype


class Pretended:
    """A fake GPU measurer that reports each configuration faster than the previous one."""

    def __enter__(self):
        return self

    def __exit__(self, *exc_info: object) -> None:
        pass

    def measure(self, groups, stop=lambda: False):
        found = []
        for group in groups:
            new = [Measured(h, 100.0 - i, None, 15) for i, h in enumerate(group.hints)]
            found.append([*group.again, *new])
        return found

    def time_together(self, functions, weight_bytes=0):
        return [measured.latency_us for _, measured in functions]


@no_gpu
@needs_nvcc
def test_what_was_measured_on_a_gpu_is_what_is_built(conv_model, tmp_path, monkeypatch) -> None:
    target = resolve_target("nvidia-a100").to_dict()
    for stage in ("convert", "tune", "build"):
        (tmp_path / stage).mkdir()
    onnx.save(conv_model, str(tmp_path / "model.onnx"))
    asked = ConvertConfig("", target, dtype="float16")
    convert(asked, tmp_path / "model.onnx", tmp_path / "convert", quiet)
    with monkeypatch.context() as here:
        here.setattr(TargetSpec, "why_not_here", lambda self: "")
        here.setattr(CudaGpu, "check_target", lambda *_: None)
        here.setattr(fast, "Measurer", lambda *_: Pretended())
        where = tmp_path / "convert", tmp_path / "tune"
        tuned = tune(TuneConfig(target, topk=4), *where, quiet)
    assert tuned.metrics["tasks_from_database"] == tuned.metrics["tasks"] > 2
    assert "tvmopt.unmeasured.tuning" not in tuned.tags
    rows = list(csv.DictReader((tmp_path / "tune" / "tasks.csv").open()))
    assert {row["source"] for row in rows} == {"database"}
    where = tmp_path / "convert", tmp_path / "tune"
    result = build(BuildConfig("conv", target), *where, "d", tmp_path / "build", quiet)
    rows = list(csv.DictReader((tmp_path / "build" / "schedules.csv").open()))
    assert {(row["schedule"], row["record"]) for row in rows} == {("database", "subgraph")}
    assert result.tags["tvmopt.records"] == f"{len(rows)} subgraph"


class OnCpu:
    """A CPU model that reports times like a GPU model."""

    def __init__(self, model: CompiledModel, seconds: float) -> None:
        self._model, self._seconds = model, seconds
        self.metadata = model.metadata

    def __call__(self, inputs):
        return self._model(inputs)

    coded = __call__

    def gpu_seconds(self, calls: int = 1) -> float:
        return self._seconds if calls == 1 else self._seconds / 2


def test_latency_is_the_gpus_and_throughput_that_of_calls_in_a_row(
    evaluate_model, conv_bundle, monkeypatch
) -> None:
    gpu = dataclasses.replace(resolve_target("a100"), mcpu="x86-64")
    monkeypatch.setattr(TargetSpec, "from_dict", classmethod(lambda cls, data: gpu))
    monkeypatch.setattr(TargetSpec, "missing_on_host", lambda self: ())
    monkeypatch.setattr(cuda_runtime, "describe", lambda: "an A100")
    monkeypatch.setattr(evaluate_host, "measure_fresh_process", lambda *_: {"peak_memory_mb": 55.5})
    of = iter((0.002, 0.004))
    monkeypatch.setattr(evaluate_host, "load", lambda path: OnCpu(load(path), next(of)))
    peers = {"torch_compile_fp32": [0.006] * 9}, {"torch_compile_fp16": "CUDA: out of memory"}
    monkeypatch.setattr(host_latency, "time_torch_compile", lambda file, inputs: peers)
    bundles = {CANDIDATE: conv_bundle, UNTUNED: conv_bundle}
    result, out = evaluate_model(None, bundles, conv_bundle / "source.json", repeats=7)
    assert result.metrics["latency_ms_p50"] == pytest.approx(2)
    assert result.metrics["speedup_vs_untuned"] == pytest.approx(2)
    assert result.metrics["throughput_per_s"] == pytest.approx(1000)  # twice as fast back to back
    assert result.metrics["latency_ms_with_copies"] > 0
    assert result.tags["tvmopt.gpu"] == "an A100"
    assert result.tags["tvmopt.baseline"] == "ONNX Runtime on the CPU, 1 threads"
    assert "by the GPU's clock" in result.tags["tvmopt.latency_of"]
    assert result.metrics["peak_memory_mb"] == 55.5
    assert "the GPU's memory" in result.tags["tvmopt.memory_of"]
    assert "an A100" in result.changed[-1]
    rows = {row["variant"]: row for row in read_table(out)}
    assert set(rows) == {CANDIDATE, UNTUNED, REFERENCE, "torch_compile_fp32"}
    assert rows["torch_compile_fp32"]["accuracy"] == ""
    assert result.metrics["torch_compile_fp32_latency_ms_p50"] == pytest.approx(6)
    assert result.metrics["speedup_vs_torch_compile"] == pytest.approx(3)
    why = result.tags["tvmopt.unmeasured.torch_compile_fp16_latency_ms_p50"]
    assert why == "CUDA: out of memory"


def test_a_model_of_a_cpu_has_no_gpus_clock(conv_bundle) -> None:
    from tvmopt.errors import ConfigError

    with pytest.raises(ConfigError, match="the model must be for a GPU"):
        load(conv_bundle).gpu_seconds()


@pytest.mark.gpu
@pytest.mark.skipif(not has_gpu, reason="this machine has no GPU")
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_on_a_gpu_all_is_checked_and_measured(stages, tmp_path, dtype: str) -> None:
    results, folders = stages("cuda", dtype)
    assert "tvmopt.unchecked" not in results["convert"].tags | results["build"].tags
    assert results["tune"].metrics["tune_trials"] > 0
    assert np.isfinite(results["build"].metrics["golden_max_deviation"])
    model = load(folders["build"] / "bundle")
    assert 0 < model.gpu_seconds(10) < 0.1
    out = tmp_path / "evaluate"
    out.mkdir()
    bundles = {CANDIDATE: folders["build"] / "bundle"}
    measured = evaluate(EvaluateConfig(1, repeats=10), folders["convert"], bundles, out, quiet)
    assert measured.metrics["accuracy"] == 1 and measured.metrics["latency_ms_p50"] > 0

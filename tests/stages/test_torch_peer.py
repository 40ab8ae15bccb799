"""torch.compile as a peer, with a pretended PyTorch: it is not installed where tests run."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from tvmopt.exporters import torch as exporter
from tvmopt.exporters.source import SourceModel
from tvmopt.measure.workers import Outcome
from tvmopt.stages import torch_peer
from tvmopt.stages.torch_peer import TORCH_PEERS, torch_seconds, write_torch_source

SOURCE = SourceModel("net.pt2", "pytorch", "net.pt2", "pt2", "", "predict", None, (), ())


class FakeTensor:
    """A tensor that remembers its dtype."""

    def __init__(self, array: np.ndarray, dtype: str = "float32") -> None:
        self.array, self.dtype = array, dtype

    def cuda(self) -> FakeTensor:
        return self

    def is_floating_point(self) -> bool:
        return self.array.dtype.kind == "f"

    def to(self, dtype: str) -> FakeTensor:
        return FakeTensor(self.array, dtype)


class FakeModule:
    """A module that keeps the dtypes it was called with."""

    def __init__(self) -> None:
        self.dtype, self.called = "", list[str]()

    def cuda(self) -> FakeModule:
        return self

    def to(self, dtype: str) -> FakeModule:
        self.dtype = dtype
        return self

    def __call__(self, tensor: FakeTensor) -> None:
        self.called.append(tensor.dtype)


class FakeEvent:
    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        pass

    def elapsed_time(self, stop: FakeEvent) -> float:
        return 2.0  # milliseconds


@pytest.fixture
def module(monkeypatch) -> FakeModule:
    """Install the pretended PyTorch; return the module that it loads."""
    made = FakeModule()
    torch = types.SimpleNamespace(
        float32="float32", float16="float16", from_numpy=FakeTensor,
        compile=lambda module, mode: module, inference_mode=contextlib.nullcontext,
        cuda=types.SimpleNamespace(Event=FakeEvent, synchronize=lambda: None),
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "torch", torch)
    inductor = types.SimpleNamespace(max_autotune_conv_backends="ATEN,TRITON")
    monkeypatch.setitem(sys.modules, "torch._inductor.config", inductor)

    def source_module(source: SourceModel, folder: Path, device: str) -> FakeModule:
        assert device == "cuda"
        return made

    monkeypatch.setattr(exporter, "source_module", source_module)
    return made


@pytest.mark.parametrize("dtype", TORCH_PEERS.values())
def test_module_and_input_have_the_dtype(tmp_path: Path, module: FakeModule, dtype: str) -> None:
    write_torch_source(tmp_path / "source.json", SOURCE, tmp_path)
    np.save(tmp_path / "x.npy", np.zeros((2, 3), "float32"))
    found = torch_seconds(str(tmp_path / "source.json"), str(tmp_path / "x.npy"), dtype)
    assert found == [pytest.approx(0.002)] * 50
    assert module.dtype == dtype and set(module.called) == {dtype}


def test_a_dtype_that_fails_leaves_the_reason(tmp_path: Path, monkeypatch) -> None:
    def run(self, jobs):
        [job] = jobs
        assert Path(job.arguments["array"]).is_file()
        if job.arguments["dtype"] == "float16":
            return [Outcome(error="RuntimeError: CUDA: out of memory")]
        return [Outcome(value=[0.5, 0.25])]

    monkeypatch.setattr(torch_peer.WorkerPool, "run", run)
    inputs = {"x": np.zeros(3, "float32")}
    samples, missing = torch_peer.time_torch_compile(tmp_path / "source.json", inputs)
    assert samples == {"torch_compile_fp32": [0.5, 0.25]}
    assert missing == {"torch_compile_fp16": "RuntimeError: CUDA: out of memory"}


def test_what_the_graph_creates_lies_on_the_device(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch (the extra 'pytorch') is not installed")

    class Positions(torch.nn.Module):
        def forward(self, x):
            return x + torch.arange(x.shape[1])

    program = torch.export.export(Positions(), (torch.zeros(2, 3),))
    torch.export.save(program, tmp_path / "model.pt2")
    source = dataclasses.replace(SOURCE, file="model.pt2", format="pt2")
    made = exporter.source_module(source, tmp_path, "meta")
    assert made(torch.zeros(2, 3, device="meta")).device.type == "meta"

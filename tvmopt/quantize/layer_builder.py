"""Compile single layers for this machine's CPU or GPU.

For a GPU, all cores compile layers at once, in worker processes: the GPU is idle meanwhile. For a
CPU, a layer is compiled in this process, and timed before the next one.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import onnx

from tvmopt import host
from tvmopt.device.target import TargetSpec
from tvmopt.errors import TvmoptError
from tvmopt.measure.cuda_gpu import CudaGpu
from tvmopt.measure.workers import Job, WorkerPool

#: What a layer raises that cannot be converted, compiled or run in a dtype.
LAYER_ERRORS = (TvmoptError, ValueError, RuntimeError, TypeError, AttributeError)
_TIMEOUT_S = 120.0


@dataclasses.dataclass(frozen=True)
class BuiltLayer:
    """A library with one layer.

    Attributes:
        library: The library; its function is ``main``.
        inputs: Shape and dtype of each input.
        native: Whether the library is native code.
    """

    library: Path
    inputs: tuple[tuple[tuple[int, ...], str], ...]
    native: bool


class LayerBuilder(abc.ABC):
    """Compiles layers for one target.

    Attributes:
        at_once: Number of layers to build in one call.
    """

    at_once: int

    @abc.abstractmethod
    def build(self, layers: Sequence[tuple[onnx.ModelProto, str]]) -> list[BuiltLayer | None]:
        """Compile layers.

        Args:
            layers: Model of one layer, and the dtype to compute in.

        Returns:
            The libraries, in order; None for a layer that does not compile in its dtype.
        """


@contextlib.contextmanager
def layer_builder(target: TargetSpec) -> Iterator[LayerBuilder]:
    """Yield the builder for a target; its libraries are removed in the end."""
    with tempfile.TemporaryDirectory(prefix="tvmopt-") as scratch:
        folder = Path(scratch)
        if target.gpu is None:
            yield _HostLayerBuilder(target, folder)
            return
        count = min(CudaGpu.most_builders, host.usable_cores())
        with WorkerPool(count, 1, folder, "layer-builds") as workers:
            yield _GpuLayerBuilder(target, folder, workers, count)


class _HostLayerBuilder(LayerBuilder):
    at_once = 1

    def __init__(self, target: TargetSpec, folder: Path) -> None:
        self._target, self._folder = target, folder
        self._count = 0

    def build(self, layers: Sequence[tuple[onnx.ModelProto, str]]) -> list[BuiltLayer | None]:
        [(model, dtype)] = layers
        self._count += 1  # a library that is loaded must not be overwritten
        path = self._folder / f"layer{self._count}.so"
        try:
            return [build_layer(model, dtype, self._target, path)]
        except LAYER_ERRORS:
            return [None]


class _GpuLayerBuilder(LayerBuilder):
    def __init__(self, target: TargetSpec, folder: Path, workers: WorkerPool, at_once: int) -> None:
        self._target, self._folder, self._workers = target, folder, workers
        self.at_once = at_once
        self._count = 0

    def build(self, layers: Sequence[tuple[onnx.ModelProto, str]]) -> list[BuiltLayer | None]:
        jobs = []
        for model, dtype in layers:
            stem = self._folder / f"layer{self._count}"
            self._count += 1
            onnx.save_model(model, f"{stem}.onnx")
            arguments = {"stem": str(stem), "dtype": dtype, "target": self._target.to_dict()}
            jobs.append(Job(f"{__name__}:build_in_worker", arguments, _TIMEOUT_S))
        outcomes = self._workers.run(jobs)
        return [
            None
            if outcome.error is not None
            else BuiltLayer(
                Path(f"{job.arguments['stem']}.so"),
                tuple((tuple(shape), kind) for shape, kind in outcome.value["inputs"]),
                bool(outcome.value["native"]),
            )
            for job, outcome in zip(jobs, outcomes, strict=True)
        ]


def build_in_worker(stem: str, dtype: str, target: dict[str, Any]) -> dict[str, Any]:
    """Compile the layer in ``<stem>.onnx`` to ``<stem>.so``; runs in a worker process."""
    model = onnx.load_model(f"{stem}.onnx")
    built = build_layer(model, dtype, TargetSpec.from_dict(target), Path(f"{stem}.so"))
    return {"inputs": built.inputs, "native": built.native}


def build_layer(model: onnx.ModelProto, dtype: str, target: TargetSpec, path: Path) -> BuiltLayer:
    """Compile a model of one layer, with default schedules.

    Args:
        model: The model.
        dtype: Dtype to compute in; ``"int8"`` for a quantized model.
        target: Target to compile for.
        path: Library to write.
    """
    from tvmopt.build import build_library
    from tvmopt.frontend import import_onnx
    from tvmopt.transform import convert_module
    from tvmopt.transform.lower import lower
    from tvmopt.transform.single_layer import layout_of_layers, only_layer

    layout = layout_of_layers(target.arch())
    alone = only_layer(convert_module(import_onnx(model), dtype=dtype, layout=layout).mod)
    inputs = tuple(
        (tuple(int(extent) for extent in param.ty.shape), str(param.ty.dtype))
        for param in alone["main"].params
    )
    built = build_library(lower(alone, target.to_tvm()), target, path)
    return BuiltLayer(path, inputs, built.native)

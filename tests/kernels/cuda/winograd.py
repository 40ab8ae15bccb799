"""The three functions of a Winograd convolution on CUDA, and its result in NumPy."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import tvm
from numpy.lib.stride_tricks import sliding_window_view
from tvm import relax, tirx

from tests.kernels.cpu.drawn_products import conv2d_numpy
from tvmopt.device.gpus import GPUS
from tvmopt.kernels.winograd_matrices import MATRICES
from tvmopt.transform.lower import lower_passes
from tvmopt.transform.winograd import WinogradRule, winograd_weight
from tvmopt.transform.winograd_gpu import as_gpu_winograd
from tvmopt.transform.winograd_gpu_model import grid_of

H200 = GPUS["nvidia-h200"]
op, nn = relax.op, relax.op.nn
#: Epilogue of a convolution: a function of a block builder, its result and a residual.
End = Callable[[relax.BlockBuilder, relax.Var, relax.Var], relax.Expr]


@dataclasses.dataclass(frozen=True)
class Problem:
    """A 3 x 3 convolution of stride 1 with bias, residual and relu, or plain.

    Attributes:
        shape: Shape of the data: n, h, w, channels.
        outputs: Number of output channels.
        m: Tile size.
        padding: Top, left, bottom, right.
        ending: Whether the epilogue has bias, residual and relu.
    """

    shape: tuple[int, int, int, int]
    outputs: int
    m: int = 4
    padding: tuple[int, int, int, int] = (1, 1, 1, 1)
    ending: bool = True

    @property
    def result(self) -> tuple[int, int, int, int]:
        """Return the shape of the result."""
        n, h, w, _ = self.shape
        top, left, bottom, right = self.padding
        return n, h + top + bottom - 2, w + left + right - 2, self.outputs

    @property
    def weight(self) -> np.ndarray:
        """Random, the same each time."""
        shape = (3, 3, self.shape[3], self.outputs)
        return np.random.default_rng(1).standard_normal(shape).astype("float32")

    @property
    def bias(self) -> np.ndarray:
        """Random, the same each time."""
        return np.random.default_rng(2).standard_normal(self.outputs).astype("float32")

    def inputs(self) -> tuple[np.ndarray, np.ndarray]:
        """Draw data and residual."""
        rng = np.random.default_rng(3)
        return tuple(rng.standard_normal(s).astype("float32") for s in (self.shape, self.result))  # type: ignore[return-value]

    def module(self, end: End | None = None) -> tvm.IRModule:
        """Build the convolution in Relax; ``end`` replaces the epilogue (bias, residual, relu)."""
        builder = relax.BlockBuilder()
        x = relax.Var("x", relax.TensorType(self.shape, "float32"))
        r = relax.Var("r", relax.TensorType(self.result, "float32"))
        with builder.function("main", [x, r] if self.ending else [x]):
            with builder.dataflow():
                y = nn.conv2d(
                    x, relax.const(self.weight), padding=list(self.padding),
                    data_layout="NHWC", kernel_layout="HWIO",
                )  # fmt: skip
                if end is not None:
                    y = end(builder, builder.emit(y), r)
                elif self.ending:
                    y = builder.emit(op.add(builder.emit(y), relax.const(self.bias)))
                    y = nn.relu(builder.emit(op.add(y, r)))
                out = builder.emit_output(y)
            builder.emit_func_output(out)
        return builder.get()

    def lowered(self, end: End | None = None) -> tvm.IRModule:
        """Lower the module with a cost model that chooses ``m``."""
        rule = WinogradRule({"float32": (self.m,)}, lambda call: self.m, as_gpu_winograd)
        with H200.to_tvm(), tvm.transform.PassContext(opt_level=3):
            return tvm.transform.Sequential(lower_passes(rule, H200.to_tvm()))(self.module(end))

    def functions(
        self, end: End | None = None
    ) -> tuple[tirx.PrimFunc, tirx.PrimFunc, tirx.PrimFunc]:
        """The input transform, the batched GEMM, and the output transform."""
        found: dict[str, tirx.PrimFunc] = {}
        for var, func in self.lowered(end).functions_items():
            if isinstance(func, tirx.PrimFunc):
                kinds = [k for k in ("data", "product", "out") if f"winograd_{k}" in var.name_hint]
                assert len(kinds) == 1 and kinds[0] not in found, var.name_hint
                found[kinds[0]] = func.with_attr("global_symbol", "main")
        return found["data"], found["product"], found["out"]

    def transformed(self, data: np.ndarray) -> np.ndarray:
        """Return the transformed data, (points, tiles, channels), in float64."""
        side, (top, left, *_) = self.m + 2, self.padding
        _, tiles_y, tiles_x = grid_of(self.result[:3], self.m)
        high, wide = tiles_y * self.m + 2, tiles_x * self.m + 2
        padded = np.zeros((data.shape[0], high + side, wide + side, data.shape[3]))
        padded[:, top : top + data.shape[1], left : left + data.shape[2]] = data
        windows = sliding_window_view(padded, (side, side), axis=(1, 2))
        tiles = windows[:, : tiles_y * self.m : self.m, : tiles_x * self.m : self.m]
        bt = np.array(MATRICES[self.m].bt)
        found = np.einsum("ia,jd,nyxcad->ijnyxc", bt, bt, tiles)
        return found.reshape(side * side, -1, data.shape[3])

    def transformed_weight(self) -> np.ndarray:
        """Return the transformed weight, (points, channels, outputs)."""
        made = winograd_weight(self.weight, self.m)
        return made.reshape(-1, *made.shape[2:])

    def wanted(self) -> np.ndarray:
        """Return the result in float64."""
        data, residual = self.inputs()
        weight = self.weight.astype("float64")
        found = conv2d_numpy(data.astype("float64"), weight, (1, 1), self.padding, (1, 1), 1)
        return np.maximum(found + self.bias + residual, 0) if self.ending else found

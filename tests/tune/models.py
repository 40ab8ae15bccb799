"""Small lowered modules for the tuning tests, and their target."""

from __future__ import annotations

import functools

import numpy as np
import tvm
from tvm import relax

from tvmopt.device.cpu import CpuArch
from tvmopt.device.target import resolve_target

THREADS = 1  # two threads would wait for each other in every kernel while another test runs
SPEC = resolve_target("host", THREADS)
TARGET = SPEC.to_tvm()
ARCH: CpuArch = SPEC.arch()


def lower(mod: tvm.IRModule, target: tvm.target.Target = TARGET) -> tvm.IRModule:
    """Lower operators to fused TensorIR functions."""
    passes = [
        relax.transform.LegalizeOps(),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FoldConstant(),
        relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
    ]
    with target:
        return tvm.transform.Sequential(passes)(mod)


def _tensor(name: str, shape: tuple[int, ...], dtype: str = "float32") -> relax.Var:
    return relax.Var(name, relax.TensorType(shape, dtype))


@functools.cache
def conv_net() -> tvm.IRModule:
    """Lowered 1x8x14x14 -> conv 3x3 -> two equal conv 1x1 -> mean -> dense -> softmax."""
    builder = relax.BlockBuilder()
    x = _tensor("x", (1, 8, 14, 14))
    w3, w1, wd = _tensor("w3", (16, 8, 3, 3)), _tensor("w1", (16, 16, 1, 1)), _tensor("wd", (16, 8))
    with builder.function("main", [x, w3, w1, wd]):
        with builder.dataflow():
            y = builder.emit(relax.op.nn.relu(relax.op.nn.conv2d(x, w3, padding=1)))
            for _ in range(2):
                y = builder.emit(relax.op.nn.relu(relax.op.nn.conv2d(y, w1)))
            y = builder.emit(relax.op.mean(y, [2, 3]))
            y = builder.emit(relax.op.nn.softmax(relax.op.matmul(y, wd)))
            out = builder.emit_output(y)
        builder.emit_func_output(out)
    return lower(builder.get())


@functools.cache
def matmul_net(size: int = 64, relu: bool = True) -> tvm.IRModule:
    """Lowered ``relu(x @ w)``, or ``x @ w``, of two square matrices."""
    builder = relax.BlockBuilder()
    x, w = _tensor("x", (size, size)), _tensor("w", (size, size))
    with builder.function("main", [x, w]):
        with builder.dataflow():
            product = relax.op.matmul(x, w)
            out = builder.emit_output(relax.op.nn.relu(product) if relu else product)
        builder.emit_func_output(out)
    return lower(builder.get())


@functools.cache
def symbolic_net() -> tvm.IRModule:
    """Lowered ``relu(x @ w)`` with a symbolic number of rows."""
    builder = relax.BlockBuilder()
    rows = tvm.tirx.Var("n", "int64")
    x, w = _tensor("x", (rows, 16)), _tensor("w", (16, 8))
    with builder.function("main", [x, w]):
        with builder.dataflow():
            out = builder.emit_output(relax.op.nn.relu(relax.op.matmul(x, w)))
        builder.emit_func_output(out)
    return lower(builder.get())


def conv_net_inputs(seed: int = 0) -> list[np.ndarray]:
    """Draw inputs of :func:`conv_net`."""
    rng = np.random.default_rng(seed)
    shapes = [(1, 8, 14, 14), (16, 8, 3, 3), (16, 16, 1, 1), (16, 8)]
    return [rng.standard_normal(shape).astype("float32") for shape in shapes]


def conv_net_numpy(x: np.ndarray, w3: np.ndarray, w1: np.ndarray, wd: np.ndarray) -> np.ndarray:
    """Compute :func:`conv_net` with NumPy."""
    padded = np.pad(x[0], ((0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
    y = np.maximum(np.einsum("chwij,ocij->ohw", windows, w3), 0)
    for _ in range(2):
        y = np.maximum(np.einsum("chw,oc->ohw", y, w1[:, :, 0, 0]), 0)
    logits = y.mean(axis=(1, 2))[None] @ wd
    exp = np.exp(logits - logits.max())
    return exp / exp.sum()


def run(mod: tvm.IRModule, inputs: list[np.ndarray]) -> np.ndarray:
    """Compile a lowered module and run it."""
    with TARGET:
        executable = tvm.compile(mod, TARGET)
    machine = relax.VirtualMachine(executable, tvm.cpu())
    return machine["main"](*[tvm.runtime.tensor(array) for array in inputs]).numpy()

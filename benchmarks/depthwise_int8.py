"""int8 depthwise convolutions of three models: the family ``depthwise_dot`` against ``window``.

    python -m benchmarks.depthwise_int8 [--threads 2] [--shapes 8] [--seconds 60]

Each shape is compiled for this machine with the top-1 configuration of both families, checked
against NumPy, and timed in turns. It imports TVM and NumPy only.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import time
from typing import Any

import numpy as np

_FAMILIES = ("window", "depthwise_dot")
_SCALE, _ZERO = 0.0007, 12.0
_ROUNDS, _SECONDS_PER_ROUND = 40, 0.003


@dataclasses.dataclass(frozen=True)
class DepthwiseShape:
    """A depthwise convolution of a model; ``pad`` is 0 if the layer before writes the padding."""

    model: str
    height: int
    width: int
    channels: int
    kernel: int
    stride: int
    pad: int

    def __str__(self) -> str:
        window = f"{self.kernel}x{self.kernel}/{self.stride}"
        return f"{self.model} {self.height}x{self.width}x{self.channels} {window}"


SHAPES = (
    DepthwiseShape("PicoDet", 104, 80, 128, 5, 1, 0),
    DepthwiseShape("PicoDet", 102, 78, 128, 3, 2, 0),
    DepthwiseShape("PicoDet", 102, 78, 128, 3, 1, 0),
    DepthwiseShape("CenterFace", 80, 80, 144, 3, 1, 1),
    DepthwiseShape("CenterFace", 80, 80, 144, 3, 2, 1),
    DepthwiseShape("PP-OCR rec", 16, 84, 240, 5, 1, 0),
    DepthwiseShape("PP-OCR rec", 10, 84, 480, 5, 1, 0),
    DepthwiseShape("PP-OCR rec", 26, 162, 64, 3, 1, 0),
)


def main() -> None:
    """Print a table of times in microseconds."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--shapes", type=int, default=len(SHAPES))
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    os.environ["TVM_NUM_THREADS"] = str(options.threads)

    from tvmopt.device.target import resolve_target

    target = resolve_target("host", options.threads)
    print(f"{target.to_tvm().attrs['mcpu']}, {options.threads} threads")
    print("| layer | window, us | depthwise_dot, us | ratio | instruction |")
    print("| --- | --- | --- | --- | --- |")
    until = time.monotonic() + options.seconds
    for shape in SHAPES[: options.shapes]:
        if time.monotonic() > until:
            print("| stopped: out of time | | | | |")
            break
        print(_row(shape, target), flush=True)


def _row(shape: DepthwiseShape, target: Any) -> str:
    """Compile, check and time ``shape``; return a row of the table."""
    import tvm

    data, weight, bias = _operands(shape)
    expected = _numpy(shape, data, weight, bias)
    func = _lowered(shape, target)
    kernels, instruction = {}, "-"
    for family in _FAMILIES:
        compute, arguments, intrinsic = _compiled(func, family, target, (data, weight, bias))
        if compute is None:
            continue
        out = tvm.runtime.tensor(np.zeros(expected.shape, "uint8"))
        compute(*arguments, out)
        np.testing.assert_array_equal(out.numpy(), expected, err_msg=f"{shape}: {family}")
        kernels[family] = (compute, (*arguments, out))
        instruction = intrinsic or instruction
    times = _time(kernels)
    old, new = (times.get(family) for family in _FAMILIES)
    cells = [f"{old:.1f}" if old else "-", f"{new:.1f}" if new else "-"]
    cells.append(f"{old / new:.2f}" if old and new else "-")
    return f"| {shape} | {' | '.join(cells)} | {instruction} |"


def _operands(shape: DepthwiseShape) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    k, c = shape.kernel, shape.channels
    return (
        rng.integers(0, 256, (1, shape.height, shape.width, c), np.uint8),
        rng.integers(-128, 128, (k, k, 1, c), np.int8),
        rng.integers(-5000, 5000, (1, 1, 1, c), np.int32),
    )


def _numpy(
    shape: DepthwiseShape, data: np.ndarray, weight: np.ndarray, bias: np.ndarray
) -> np.ndarray:
    """Return the requantized convolution."""
    p, k, s = shape.pad, shape.kernel, shape.stride
    padded = np.pad(data.astype(np.int32), ((0, 0), (p, p), (p, p), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (k, k), axis=(1, 2))
    sums = np.einsum("nyxcij,ijc->nyxc", windows[:, ::s, ::s], weight[:, :, 0].astype(np.int32))
    scaled = (sums + bias).astype(np.float32) * np.float32(_SCALE)
    return np.clip(np.round(scaled) + np.float32(_ZERO), 0, 255).astype(np.uint8)


def _lowered(shape: DepthwiseShape, target: Any) -> Any:
    """Return the TensorIR function of the convolution with its requantize."""
    from tvm import relax, tirx

    from tvmopt.transform.lower import lower

    k, c, p = shape.kernel, shape.channels, shape.pad
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, shape.height, shape.width, c), "uint8"))
    w = relax.Var("w", relax.TensorType((k, k, 1, c), "int8"))
    b = relax.Var("b", relax.TensorType((1, 1, 1, c), "int32"))
    op = relax.op
    with builder.function("main", [x, w, b], {"num_input": 1}):
        with builder.dataflow():
            sums = op.nn.conv2d(x, w, shape.stride, p, 1, c, "NHWC", "HWIO", out_dtype="int32")
            scaled = op.astype(op.add(sums, b), "float32")
            scaled = op.multiply(scaled, relax.const(_SCALE, "float32"))
            rounded = op.add(op.round(scaled), relax.const(_ZERO, "float32"))
            out = builder.emit_output(op.astype(op.clip(rounded, 0, 255), "uint8"))
        builder.emit_func_output(out)
    mod = lower(builder.get(), target.to_tvm())
    [func] = [f for _, f in mod.functions_items() if isinstance(f, tirx.PrimFunc)]
    return func


def _compiled(
    func: Any, family: str, target: Any, operands: tuple[np.ndarray, ...]
) -> tuple[Any, list[Any], str]:
    """Return the kernel of the family's top-1 configuration, its arguments, its instruction."""
    import tvm

    from tvmopt.kernels.cpu.finish import finish
    from tvmopt.kernels.emit import emit
    from tvmopt.kernels.policies import DefaultPolicy
    from tvmopt.measure.split import split_packing

    ranked = [r.hint for r in DefaultPolicy(func, target.arch()).ranked]
    hint = next((hint for hint in ranked if hint.template == family), None)
    if hint is None:
        return None, [], ""
    parts = split_packing(finish(emit(func, hint).mod["main"], func))
    functions = {"compute": parts.compute}
    if parts.packer is not None:
        functions["packer"] = parts.packer
    named = {name: f.with_attr("global_symbol", name) for name, f in functions.items()}
    built = tvm.tirx.build(tvm.IRModule(named), target=target.to_tvm(), pipeline="s_tir")
    arguments = [tvm.runtime.tensor(operand) for operand in operands]
    if parts.packer is not None:
        packed = [
            tvm.runtime.empty(tuple(int(e) for e in p.shape), str(p.dtype))
            for p in parts.packer.params[len(parts.packed) :]
        ]
        built["packer"](*(arguments[i] for i in parts.packed), *packed)
        for i, tensor in zip(parts.packed, packed, strict=True):
            arguments[i] = tensor
    return built["compute"], arguments, getattr(hint, "intrinsic", "")


def _time(kernels: dict[str, tuple[Any, tuple[Any, ...]]]) -> dict[str, float]:
    """Return the fastest round of each kernel in microseconds; the kernels take turns."""
    calls: dict[str, int] = {}
    for name, (kernel, arguments) in kernels.items():
        start = time.perf_counter()
        for _ in range(3):
            kernel(*arguments)
        once = (time.perf_counter() - start) / 3
        calls[name] = max(1, int(_SECONDS_PER_ROUND / once))
    seen: dict[str, list[float]] = {name: [] for name in kernels}
    for _ in range(_ROUNDS):
        for name, (kernel, arguments) in kernels.items():
            start = time.perf_counter()
            for _ in range(calls[name]):
                kernel(*arguments)
            seen[name].append((time.perf_counter() - start) / calls[name] * 1e6)
    return {name: min(times) for name, times in seen.items()}


if __name__ == "__main__":
    main()

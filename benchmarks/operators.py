"""Single operators with random data, in Relax and in PyTorch.

Relax operators take images in NHWC, PyTorch in NCHW or channels last. Weights are constants.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from benchmarks import torch_operators
from benchmarks.peers import Call


@dataclasses.dataclass(frozen=True)
class Problem:
    """One operator with its data.

    Attributes:
        inputs: Inputs of the Relax function.
        emit: Function that emits the Relax expression, with constant weights.
        restore: Function from the Relax output to PyTorch's layout.
        torch: Function that returns the variants of PyTorch by name.
    """

    inputs: list[np.ndarray]
    emit: Callable[..., Any]
    restore: Callable[[np.ndarray], np.ndarray]
    torch: Callable[[], dict[str, Call]]


class Operator(Protocol):
    """An operator that is one row of a table."""

    @property
    def name(self) -> str:
        """Unique name with the shape."""

    @property
    def flops(self) -> float:
        """FLOPs, two per multiply-add."""

    def problem(self) -> Problem:
        """Return the operator with random data."""


@dataclasses.dataclass(frozen=True)
class Convolution:
    """Convolution or transposed convolution with bias and relu.

    Attributes:
        channels: Input channels.
        filters: Output channels.
        size: Height and width of the input.
        kernel: Height and width of the kernel.
        strides: Strides along height and width.
        pads: Padding at top, left, bottom, right.
        dilations: Dilations along height and width.
        groups: Channel groups.
        transposed: Whether the convolution is transposed; then 1 group and no dilation.
        batch: Batch size.
    """

    channels: int
    filters: int
    size: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilations: tuple[int, int] = (1, 1)
    groups: int = 1
    transposed: bool = False
    batch: int = 1

    @property
    def depthwise(self) -> bool:
        """Whether each channel is a group."""
        return 1 < self.groups == self.channels

    @property
    def name(self) -> str:
        """Name like ``conv3x3_64-128_56x56_s2``; default attributes are omitted."""
        kind = "deconv" if self.transposed else "depthwise" if self.depthwise else "conv"
        parts = [f"{kind}{_by(self.kernel)}", f"{self.channels}-{self.filters}", _by(self.size)]
        same = tuple((k - 1) * d // 2 for k, d in zip(self.kernel, self.dilations, strict=True))
        default = (0, 0, 0, 0) if self.transposed else same * 2
        tags = {
            "b": (str(self.batch), self.batch != 1),
            "s": (_short(self.strides), self.strides != (1, 1)),
            "d": (_short(self.dilations), self.dilations != (1, 1)),
            "g": (str(self.groups), self.groups != 1 and not self.depthwise),
            "p": (".".join(map(str, self.pads)), self.pads != default),
        }
        return "_".join([*parts, *(letter + text for letter, (text, show) in tags.items() if show)])

    @property
    def out_size(self) -> tuple[int, ...]:
        """Height and width of the output."""
        both = [self.pads[i] + self.pads[i + 2] for i in (0, 1)]
        extent = [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True)]
        if self.transposed:
            return tuple((self.size[i] - 1) * self.strides[i] + extent[i] - both[i] for i in (0, 1))
        return tuple((self.size[i] + both[i] - extent[i]) // self.strides[i] + 1 for i in (0, 1))

    @property
    def flops(self) -> float:
        """FLOPs of the convolution or matmul alone, without bias and relu."""
        pixels = math.prod(self.size if self.transposed else self.out_size)
        taps = math.prod(self.kernel) * self.channels * self.filters / self.groups
        return 2.0 * self.batch * pixels * taps

    def problem(self) -> Problem:
        """Return the operator with random data: NHWC for Relax, NCHW for PyTorch."""
        rng = np.random.default_rng(0)
        x = _normal(rng, self.batch, self.channels, *self.size)
        ends = (self.channels, self.filters) if self.transposed else (self.filters, self.channels)
        weight = _normal(rng, ends[0], ends[1] // self.groups, *self.kernel)
        weight /= np.float32(math.sqrt(math.prod(self.kernel) * self.channels / self.groups))
        bias = _normal(rng, self.filters) / 8  # small: relu zeroes about half of the outputs

        def emit(builder: Any, data: Any) -> Any:
            from tvm import relax

            order = (2, 3, 0, 1) if self.transposed else (2, 3, 1, 0)
            kernel = relax.const(np.ascontiguousarray(weight.transpose(order)))
            run = relax.op.nn.conv2d_transpose if self.transposed else relax.op.nn.conv2d
            settings: dict[str, Any] = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
            settings |= {"strides": list(self.strides), "padding": list(self.pads)}
            settings |= {"dilation": list(self.dilations), "groups": self.groups}
            made = builder.emit(run(data, kernel, **settings))
            made = builder.emit(relax.op.add(made, relax.const(bias.reshape(1, 1, 1, -1))))
            return relax.op.nn.relu(made)

        def torch() -> dict[str, Call]:
            return self._torch(x, weight, bias)

        return Problem([_nhwc(x)], emit, _nchw, torch)

    def _torch(self, x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> dict[str, Call]:
        top, left, bottom, right = self.pads
        even = (top, left) == (bottom, right)
        padding = list(self.pads[:2])
        if self.transposed:
            import torch

            tw, tb = torch.from_numpy(weight), torch.from_numpy(bias)
            # PyTorch has no asymmetric padding; a view of the unpadded output is free.
            end_h, end_w = (n + lo for n, lo in zip(self.out_size, (top, left), strict=True))
            transposed = torch.nn.functional.conv_transpose2d

            def run(data: Any) -> Any:
                if even:
                    return torch.relu_(transposed(data, tw, tb, self.strides, padding))
                made = torch.relu_(transposed(data, tw, tb, self.strides))
                return made[:, :, top:end_h, left:end_w]

            return torch_operators.torch_image_ops(x, run)
        if not even:  # PyTorch has no asymmetric padding: it gets the padded image for free
            x, padding = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right))), [0, 0]
        settings: dict[str, Any] = {"stride": list(self.strides), "padding": padding}
        settings |= {"dilation": list(self.dilations)}
        settings["groups"] = self.groups
        return torch_operators.torch_convolutions(x, weight, bias, settings)


@dataclasses.dataclass(frozen=True)
class MatMul:
    """Matmul (m, k) x (k, n), or batched matmul.

    Attributes:
        m: Rows.
        k: Length of the reduction.
        n: Columns.
        batch: Batch size; 0 for no batch axis.
        constant: Whether the second operand is a weight.
        bias: Whether a bias is added.
    """

    m: int
    k: int
    n: int
    batch: int = 0
    constant: bool = True
    bias: bool = False

    @property
    def name(self) -> str:
        """Name like ``linear_128x768x3072``, with m, k and n."""
        kind = "linear" if self.bias else "matmul"
        batch = (self.batch,) if self.batch else ()
        return f"{kind}_{_by((*batch, self.m, self.k, self.n))}" + "_dynamic" * (not self.constant)

    @property
    def flops(self) -> float:
        """FLOPs of the convolution or matmul alone, without bias and relu."""
        return 2.0 * max(1, self.batch) * self.m * self.k * self.n

    def problem(self) -> Problem:
        """Return the operator with random data, in the same layout for Relax and PyTorch."""
        rng = np.random.default_rng(0)
        batch = (self.batch,) if self.batch else ()
        a = _normal(rng, *batch, self.m, self.k)
        b = _normal(rng, *batch, self.k, self.n) / np.float32(math.sqrt(self.k))
        bias = _normal(rng, self.n) if self.bias else None

        def emit(builder: Any, left: Any, right: Any = None) -> Any:
            from tvm import relax

            out = relax.op.matmul(left, relax.const(b) if right is None else right)
            return out if bias is None else relax.op.add(builder.emit(out), relax.const(bias))

        def torch() -> dict[str, Call]:
            return torch_operators.torch_matmuls(a, b, bias, self.constant)

        return Problem([a] if self.constant else [a, b], emit, lambda out: out, torch)


@dataclasses.dataclass(frozen=True)
class Plain:
    """An operator without weights.

    Attributes:
        name: Name of the operator.
        shape: Shape of the input; NCHW for an image.
        flops_per_value: FLOPs per input element.
        relax: The operator in Relax, on an image in NHWC.
        torch: The operator in PyTorch, on an image in NCHW.
    """

    name: str
    shape: tuple[int, ...]
    flops_per_value: float
    relax: Callable[[Any, Any], Any]
    torch: Callable[[Any, Any], Any]

    @property
    def flops(self) -> float:
        """FLOPs; an exponential or a comparison counts as one."""
        return self.flops_per_value * math.prod(self.shape)

    def problem(self) -> Problem:
        """Return the operator with random data: images in NHWC for Relax, NCHW for PyTorch."""
        image = len(self.shape) == 4
        x = _normal(np.random.default_rng(0), *self.shape)

        def emit(builder: Any, data: Any) -> Any:
            from tvm import relax

            return self.relax(relax, data)

        def torch() -> dict[str, Call]:
            import torch as module

            if image:
                return torch_operators.torch_image_ops(x, lambda data: self.torch(module, data))
            data = module.from_numpy(x)
            return {"plain": lambda: self.torch(module, data)}

        return Problem(
            [_nhwc(x) if image else x], emit, _nchw if image else (lambda out: out), torch
        )


def relax_module(problem: Problem) -> Any:
    """Build a Relax module whose ``main`` takes the inputs of the operator."""
    from tvm import relax
    from tvm.script import relax as R  # noqa: N812

    builder = relax.BlockBuilder()
    variables = [
        relax.Var(f"x{n}", R.Tensor(a.shape, str(a.dtype))) for n, a in enumerate(problem.inputs)
    ]
    with builder.function("main", variables):
        with builder.dataflow():
            made = builder.emit_output(problem.emit(builder, *variables))
        builder.emit_func_output(made)
    return builder.get()


def _by(numbers: Sequence[int]) -> str:
    return "x".join(map(str, numbers))


def _short(pair: tuple[int, int]) -> str:
    return str(pair[0]) if pair[0] == pair[1] else _by(pair)


def _normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape, dtype=np.float32)


def _nhwc(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array.transpose(0, 2, 3, 1))


def _nchw(array: np.ndarray) -> np.ndarray:
    return array.transpose(0, 3, 1, 2)

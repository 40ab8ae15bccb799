"""Single operators on the CPU, float32, batch 1: ours beside PyTorch and beside TVM as it comes.

``python -m benchmarks.cpu_ops [--only NAMES] [--threads N] [--topk K] [--model FILE.onnx
[--input_shapes S]] [--seconds S] [--json FILE]`` prints one table. Each operator is tuned from
nothing; then TVM's default, the policy's first choice, the best of ``topk`` and every form that
PyTorch has (oneDNN, MKL) take turns in this process. ``--only`` takes names of rows or of kinds;
``--model`` takes the distinct convolutions and matrix products of a model for rows. Weights of all
are packed beforehand, convolutions include bias and relu. Ratios are PyTorch's time by ours, its
best form counting: above 1, ours is faster. Exits with 1 when a result is wrong.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnx
from onnx import helper

from benchmarks import peers
from benchmarks.interleave import Timing, geometric_mean, interleave
from benchmarks.zoo_topologies import MOBILENET_V2_STAGES
from tvmopt.errors import TvmoptError

_LIMIT = 1e-4  # largest deviation from the reference, see tvmopt.compare.deviation
_UNTUNED_S = 3.0  # what TVM's default may take of a row's time
KINDS = ("resnet", "pointwise", "conv", "depthwise", "matmul", "rest")


@dataclasses.dataclass(frozen=True)
class Problem:
    """One operator with its data.

    Attributes:
        inputs: What our function takes.
        emit: Makes the Relax expression from the inputs, weights bound in it.
        restore: Our output -> PyTorch's layout.
        torch: The forms that PyTorch has.
    """

    inputs: list[np.ndarray]
    emit: Callable[..., Any]
    restore: Callable[[np.ndarray], np.ndarray]
    torch: Callable[[], dict[str, peers.Call]]


class Operator(Protocol):
    """A row: its name, what it computes, and how often."""

    @property
    def name(self) -> str:
        """Unique name that says the shape."""

    @property
    def flops(self) -> float:
        """Arithmetic operations, a multiply-add being two."""

    def problem(self) -> Problem:
        """With random data."""


@dataclasses.dataclass(frozen=True)
class Convolution:
    """Convolution or transposed convolution, bias, relu.

    Attributes:
        channels: Of the input.
        filters: Of the output.
        size: Height and width of the input.
        kernel: Height and width.
        strides: Along height and width.
        pads: Top, left, bottom, right.
        dilations: Along height and width.
        groups: Groups of channels.
        transposed: Whether it is a transposed one; such a one has 1 group and no dilation.
        batch: Images.
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
        """Whether every channel is on its own."""
        return 1 < self.groups == self.channels

    @property
    def name(self) -> str:
        """As ``conv3x3_64-128_56x56_s2``; what is as usual is left out."""
        word = "deconv" if self.transposed else "depthwise" if self.depthwise else "conv"
        parts = [f"{word}{_by(self.kernel)}", f"{self.channels}-{self.filters}", _by(self.size)]
        same = tuple((k - 1) * d // 2 for k, d in zip(self.kernel, self.dilations, strict=True))
        usual = (0, 0, 0, 0) if self.transposed else same * 2
        told = {
            "b": (str(self.batch), self.batch != 1),
            "s": (_short(self.strides), self.strides != (1, 1)),
            "d": (_short(self.dilations), self.dilations != (1, 1)),
            "g": (str(self.groups), self.groups != 1 and not self.depthwise),
            "p": (".".join(map(str, self.pads)), self.pads != usual),
        }
        return "_".join([*parts, *(letter + text for letter, (text, tell) in told.items() if tell)])

    @property
    def out_size(self) -> tuple[int, ...]:
        """Height and width of the output."""
        both = [self.pads[i] + self.pads[i + 2] for i in (0, 1)]
        reach = [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True)]
        if self.transposed:
            return tuple((self.size[i] - 1) * self.strides[i] + reach[i] - both[i] for i in (0, 1))
        return tuple((self.size[i] + both[i] - reach[i]) // self.strides[i] + 1 for i in (0, 1))

    @property
    def flops(self) -> float:
        """Of the products alone."""
        pixels = math.prod(self.size if self.transposed else self.out_size)
        taps = math.prod(self.kernel) * self.channels * self.filters / self.groups
        return 2.0 * self.batch * pixels * taps

    def problem(self) -> Problem:
        """Ours in NHWC, PyTorch's in NCHW."""
        rng = np.random.default_rng(0)
        x = _normal(rng, self.batch, self.channels, *self.size)
        ends = (self.channels, self.filters) if self.transposed else (self.filters, self.channels)
        weight = _normal(rng, ends[0], ends[1] // self.groups, *self.kernel)
        weight /= np.float32(math.sqrt(math.prod(self.kernel) * self.channels / self.groups))
        bias = _normal(rng, self.filters) / 8  # small, so that relu leaves about half

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

        def torch() -> dict[str, peers.Call]:
            return self._torch(x, weight, bias)

        return Problem([_nhwc(x)], emit, _nchw, torch)

    def _torch(self, x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> dict[str, peers.Call]:
        top, left, bottom, right = self.pads
        even = (top, left) == (bottom, right)
        padding = list(self.pads[:2])
        if self.transposed:
            import torch

            tw, tb = torch.from_numpy(weight), torch.from_numpy(bias)
            # What differs between the ends is cut off afterwards: a view, that costs nothing.
            end_h, end_w = (n + lo for n, lo in zip(self.out_size, (top, left), strict=True))
            transposed = torch.nn.functional.conv_transpose2d

            def run(data: Any) -> Any:
                if even:
                    return torch.relu_(transposed(data, tw, tb, self.strides, padding))
                made = torch.relu_(transposed(data, tw, tb, self.strides))
                return made[:, :, top:end_h, left:end_w]

            return peers.torch_image_ops(x, run)
        if not even:  # PyTorch cannot; it gets the padded image for nothing
            x, padding = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right))), [0, 0]
        settings = {"stride": list(self.strides), "padding": padding}
        settings |= {"dilation": list(self.dilations)}
        return peers.torch_convolutions(x, weight, bias, {**settings, "groups": self.groups})


@dataclasses.dataclass(frozen=True)
class MatMul:
    """Matrix product (m, k) x (k, n), the second factor a weight or, in a batch, not.

    Attributes:
        m: Rows.
        k: Length of the sums.
        n: Columns.
        batch: Products, 0 for one without a batch axis.
        constant: Whether the second factor is a weight.
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
        """As ``linear_128x768x3072``: m, k, n."""
        word = "linear" if self.bias else "matmul"
        batch = (self.batch,) if self.batch else ()
        return f"{word}_{_by((*batch, self.m, self.k, self.n))}" + "_dynamic" * (not self.constant)

    @property
    def flops(self) -> float:
        """Of the products alone."""
        return 2.0 * max(1, self.batch) * self.m * self.k * self.n

    def problem(self) -> Problem:
        """The same layouts for all."""
        rng = np.random.default_rng(0)
        batch = (self.batch,) if self.batch else ()
        a = _normal(rng, *batch, self.m, self.k)
        b = _normal(rng, *batch, self.k, self.n) / np.float32(math.sqrt(self.k))
        bias = _normal(rng, self.n) if self.bias else None

        def emit(builder: Any, left: Any, right: Any = None) -> Any:
            from tvm import relax

            product = relax.op.matmul(left, relax.const(b) if right is None else right)
            return (
                product if bias is None else relax.op.add(builder.emit(product), relax.const(bias))
            )

        def torch() -> dict[str, peers.Call]:
            return peers.torch_matmuls(a, b, bias, self.constant)

        return Problem([a] if self.constant else [a, b], emit, lambda out: out, torch)


@dataclasses.dataclass(frozen=True)
class Plain:
    """An operator without a weight to pack.

    Attributes:
        name: Its name.
        shape: Of its input; NCHW when it is an image.
        a_value: Arithmetic operations for each value of the input.
        relax: The operator in Relax, on an image in NHWC.
        torch: The operator in PyTorch.
    """

    name: str
    shape: tuple[int, ...]
    a_value: float
    relax: Callable[[Any, Any], Any]
    torch: Callable[[Any, Any], Any]

    @property
    def flops(self) -> float:
        """An exponential or a comparison counts as one."""
        return self.a_value * math.prod(self.shape)

    def problem(self) -> Problem:
        """Images in NHWC for ours."""
        image = len(self.shape) == 4
        x = _normal(np.random.default_rng(0), *self.shape)

        def emit(builder: Any, data: Any) -> Any:
            from tvm import relax

            return self.relax(relax, data)

        def torch() -> dict[str, peers.Call]:
            import torch as module

            if image:
                return peers.torch_image_ops(x, lambda data: self.torch(module, data))
            data = module.from_numpy(x)
            return {"plain": lambda: self.torch(module, data)}

        return Problem(
            [_nhwc(x) if image else x], emit, _nchw if image else (lambda out: out), torch
        )


def resnet50_convolutions() -> list[Convolution]:
    """The distinct 3x3 and 1x1 convolutions of ResNet-50 v1.5, first to last."""
    found: list[Convolution] = []
    channels, size = 64, 56
    for stage in range(4):
        width = 64 * 2**stage
        for block in range(2):  # later blocks are like the second
            stride = 2 if stage > 0 and block == 0 else 1
            found += [
                _same(channels, width, size, 1),
                _same(width, width, size, 3, stride),
                _same(width, 4 * width, size // stride, 1),
            ]
            if block == 0:
                found.append(_same(channels, 4 * width, size, 1, stride))
            channels, size = 4 * width, size // stride
    return list(dict.fromkeys(found))


def mobilenet_v2_convolutions() -> list[Convolution]:
    """The distinct convolutions of MobileNetV2 but for its stem, first to last."""
    found: list[Convolution] = []
    channels, size = 32, 112
    for expansion, filters, depth, first_stride in MOBILENET_V2_STAGES:
        for block in range(depth):
            stride, hidden = first_stride if block == 0 else 1, channels * expansion
            if expansion != 1:
                found.append(_same(channels, hidden, size, 1))
            found.append(_same(hidden, hidden, size, 3, stride, hidden))
            channels, size = filters, size // stride
            found.append(_same(hidden, channels, size, 1))
    found.append(_same(channels, 1280, size, 1))
    return list(dict.fromkeys(found))


def _same(
    channels: int, filters: int, size: int, kernel: int, stride: int = 1, groups: int = 1
) -> Convolution:
    pads = (kernel // 2,) * 4
    return Convolution(
        channels, filters, (size, size), (kernel, kernel), (stride, stride), pads, groups=groups
    )


def _layer_norm(relax: Any, x: Any) -> Any:
    ones, zeros = (relax.const(f(768, np.float32)) for f in (np.ones, np.zeros))
    return relax.op.nn.layer_norm(x, ones, zeros, axes=[-1], epsilon=1e-5)


_PLAIN = (
    Plain(
        "softmax_12x128x128",
        (12, 128, 128),
        5,
        lambda relax, x: relax.op.nn.softmax(x, axis=-1),
        lambda torch, x: torch.softmax(x, -1),
    ),
    Plain(
        "layer_norm_128x768",
        (128, 768),
        8,
        _layer_norm,
        lambda torch, x: torch.nn.functional.layer_norm(x, (768,)),
    ),
    Plain(
        "max_pool3x3_64_112x112_s2",
        (1, 64, 112, 112),
        9 / 4,
        lambda relax, x: relax.op.nn.max_pool2d(x, [3, 3], [2, 2], [1, 1, 1, 1], layout="NHWC"),
        lambda torch, x: torch.nn.functional.max_pool2d(x, 3, 2, 1),
    ),
    Plain(
        "global_avg_pool_2048_7x7",
        (1, 2048, 7, 7),
        1,
        lambda relax, x: relax.op.mean(x, [1, 2], keepdims=True),
        lambda torch, x: torch.nn.functional.adaptive_avg_pool2d(x, 1),
    ),
)


def built_in() -> list[tuple[str, Operator]]:
    """Rows of the table, with their kinds."""
    rows: list[tuple[str, Operator]] = [("matmul", MatMul(s, s, s)) for s in (512, 1024)]
    rows += [
        ("matmul", MatMul(128, k, n, bias=True)) for k, n in ((768, 768), (768, 3072), (3072, 768))
    ]
    rows.append(("matmul", MatMul(128, 64, 128, batch=12, constant=False)))
    rows.append(("matmul", MatMul(1, 2048, 1000, bias=True)))
    rows += [("resnet", op) for op in resnet50_convolutions()]
    rows += [
        ("depthwise" if op.depthwise else "pointwise", op) for op in mobilenet_v2_convolutions()
    ]
    rows.append(("rest", _same(3, 64, 224, 7, 2)))
    rows += [("rest", op) for op in _PLAIN]
    # The two of a text detector's head (PP-OCR), and one that overlaps.
    two = (2, 2)
    rows.append(("rest", Convolution(24, 24, (80, 80), two, two, transposed=True)))
    rows.append(("rest", Convolution(24, 1, (160, 160), two, two, transposed=True)))
    four = Convolution(64, 32, (28, 28), (4, 4), two, (1, 1, 1, 1), transposed=True)
    return [*rows, ("rest", four)]


def model_operators(model: onnx.ModelProto) -> tuple[list[tuple[str, Operator]], list[str]]:
    """The distinct convolutions and matrix products of a model, with their kinds.

    Args:
        model: A model with static shapes, folded by :func:`tvmopt.frontend.prepare`.

    Returns:
        The rows, and a line for each layer that has no row.
    """
    graph = model.graph
    shapes: dict[str, tuple[int, ...]] = {t.name: tuple(t.dims) for t in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        dims = tuple(d.dim_value for d in value.type.tensor_type.shape.dim)
        if 0 not in dims:
            shapes[value.name] = dims
    weights = {tensor.name for tensor in graph.initializer}
    rows: dict[Operator, str] = {}
    left: list[str] = []
    for node in graph.node:
        if node.op_type not in ("Conv", "ConvTranspose", "MatMul", "Gemm"):
            continue
        try:
            found = _operator(node, shapes, weights)
        except (KeyError, ValueError) as error:
            left.append(f"{node.op_type} {node.name}: no row, {' '.join(map(str, error.args))}")
            continue
        kind = "matmul"
        if isinstance(found, Convolution):
            kind = "rest" if found.transposed else "depthwise" if found.depthwise else "conv"
        rows[found] = kind
    return [(kind, op) for op, kind in rows.items()], left


def _operator(
    node: onnx.NodeProto, shapes: dict[str, tuple[int, ...]], weights: set[str]
) -> Convolution | MatMul:
    for name in node.input[:2]:
        if name not in shapes:
            raise ValueError(f"the shape of {name!r} is not known")
    a, b = (shapes[name] for name in node.input[:2])
    attributes = {x.name: helper.get_attribute_value(x) for x in node.attribute}
    if "Conv" in node.op_type:
        return _convolution(a, b, attributes, node.op_type == "ConvTranspose")
    constant = node.input[1] in weights
    if node.op_type == "Gemm":
        m, k = a[::-1] if attributes.get("transA") else a
        n = b[0] if attributes.get("transB") else b[1]
        return MatMul(m, k, n, constant=constant, bias=len(node.input) > 2)
    a, b = (1, *a) if len(a) == 1 else a, (*b, 1) if len(b) == 1 else b
    if math.prod(b[:-2]) == 1:
        return MatMul(math.prod(a[:-1]), a[-1], b[-1], constant=constant)
    batch = math.prod(np.broadcast_shapes(a[:-2], b[:-2]))
    return MatMul(a[-2], a[-1], b[-1], batch=batch, constant=constant)


def _convolution(
    x: tuple[int, ...], w: tuple[int, ...], attributes: dict[str, Any], transposed: bool
) -> Convolution:
    axes = len(x) - 2
    if axes not in (1, 2):
        raise ValueError(f"it has {axes} spatial axes")
    lead = (1,) * (2 - axes)  # a convolution over a line is one over an image of one row
    size, kernel = (*lead, *x[2:]), (*lead, *w[2:])
    strides = (*lead, *attributes.get("strides", (1,) * axes))
    dilations = (*lead, *attributes.get("dilations", (1,) * axes))
    given = tuple(attributes.get("pads", (0,) * 2 * axes))
    none = (0,) * (2 - axes)
    pads = (*none, *given[:axes], *none, *given[axes:])
    groups = attributes.get("group", 1)
    auto = attributes.get("auto_pad", b"NOTSET").decode()
    if transposed and (
        groups != 1 or set(dilations) != {1} or auto != "NOTSET"
        or any(attributes.get("output_padding", ())) or "output_shape" in attributes
    ):  # fmt: skip
        raise ValueError("a transposed convolution must have no groups, dilation, output_padding")
    if auto.startswith("SAME"):
        total = [
            max(0, (-(-n // s) - 1) * s + (k - 1) * d + 1 - n)
            for n, s, k, d in zip(size, strides, kernel, dilations, strict=True)
        ]
        small, large = [t // 2 for t in total], [t - t // 2 for t in total]
        pads = (*small, *large) if auto == "SAME_UPPER" else (*large, *small)
    filters = w[1] * groups if transposed else w[0]
    return Convolution(
        x[1], filters, size, kernel, strides, pads, dilations, groups, transposed, x[0]
    )


@dataclasses.dataclass(frozen=True)
class Row:
    """One operator: latencies by contender, and what tuning it came to.

    Attributes:
        name: Name of the operator.
        kind: One of ``KINDS``.
        mflop: Millions of arithmetic operations.
        timings: By contender: ``default``, ``top-1``, ``best``, ``torch:<form>``.
        tuning_s: Seconds to build, check and time the configurations.
        config: The best one of the function that takes most of it.
        failed: Configurations that did not build or were wrong.
        error: Largest deviation of any of ours from PyTorch, or from TVM's default without it.
        problem: Why there is no row; empty when there is one.
    """

    name: str
    kind: str
    mflop: float
    timings: dict[str, Timing] = dataclasses.field(default_factory=dict)
    tuning_s: float = 0.0
    config: str = ""
    failed: int = 0
    error: float = math.inf
    problem: str = ""

    @property
    def right(self) -> bool:
        """Whether all results were right."""
        return not self.problem and self.error <= _LIMIT

    @property
    def torch(self) -> tuple[str, Timing] | None:
        """PyTorch's best form."""
        forms = [(k, t) for k, t in self.timings.items() if k.startswith("torch:")]
        return min(forms, key=lambda form: form[1].median, default=None)

    def ratio(self, ours: str) -> float | None:
        """PyTorch's time by that of ours."""
        if self.torch is None or ours not in self.timings:
            return None
        return self.torch[1].median / self.timings[ours].median


def measure(kind: str, operator: Operator, threads: int, topk: int, seconds: float) -> Row:
    """Tune one operator, check all forms of it, and time them in turns."""
    row = Row(operator.name, kind, operator.flops / 1e6)
    try:
        with peers.inference_mode(), tempfile.TemporaryDirectory(prefix="tvmopt-") as scratch:
            return _measure(row, operator.problem(), threads, topk, seconds, Path(scratch))
    except Exception as error:  # one operator must not cost the others their rows
        return dataclasses.replace(row, problem=peers.one_line(error))


def _measure(
    row: Row, problem: Problem, threads: int, topk: int, seconds: float, scratch: Path
) -> Row:
    from tvmopt.arch.target import resolve_target
    from tvmopt.compare import deviation
    from tvmopt.transform.lower import lower

    target = resolve_target("host", threads)
    lowered = lower(relax_module(problem), target.to_tvm())
    start = time.perf_counter()
    tuned, config, failed = tune(lowered, target, topk)
    tuning_s = time.perf_counter() - start
    ours = {
        "default": compiled(lowered, target, scratch / "default.so", problem.inputs, "none"),
        "top-1": compiled(lowered, target, scratch / "first.so", problem.inputs),
        "best": compiled(tuned, target, scratch / "best.so", problem.inputs),
    }
    forms = problem.torch() if peers.available("torch") else {}
    results = {name: problem.restore(call().numpy()) for name, call in ours.items()}
    expected = peers.dense_array(next(iter(forms.values()))()) if forms else results["default"]
    errors = [deviation(result, expected) for result in results.values()]
    errors += [deviation(peers.dense_array(call()), expected) for call in forms.values()]
    timings = interleave(
        ours | {f"torch:{name}": call for name, call in forms.items()},
        time_limit_s=seconds,
        budgets_s={"default": _UNTUNED_S},
    )
    return dataclasses.replace(
        row, timings=timings, tuning_s=tuning_s, config=config, failed=failed, error=max(errors)
    )


def relax_module(problem: Problem) -> Any:
    """The operator as a Relax module whose ``main`` takes the inputs."""
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


def tune(lowered: Any, target: Any, topk: int) -> tuple[Any, str, int]:
    """Put the best of ``topk`` configurations into every function of a lowered module.

    Returns:
        The module, where the function with most configurations got the one named second; and how
        many failed. A function without a working configuration is left to the policy.
    """
    from tvm import tirx

    from tvmopt.policy import DefaultPolicy
    from tvmopt.schedule import finish
    from tvmopt.tune.apply_and_build import apply_and_build

    tuned, names, failed = lowered.clone(), [], 0
    for var, func in lowered.functions_items():
        if not isinstance(func, tirx.PrimFunc):
            continue
        configs = DefaultPolicy(func, target.arch()).emit_config(topk)
        if not configs:
            continue
        results, best = apply_and_build(func, configs, target.arch())
        failed += sum(result.latency is None for result in results)
        if best is not None:
            tuned.update_func(var, finish(best.sch.mod["main"], func))
            names.append((len(configs), f"#{configs.index(best.config) + 1} {best.config}"))
    return tuned, max(names, default=(0, ""))[1], failed


def compiled(
    lowered: Any, target: Any, path: Path, inputs: Sequence[np.ndarray], schedule: str = "default"
) -> peers.Call:
    """A call of the module's ``main``, built into ``path``; functions scheduled already stay so."""
    import tvm
    from tvm import relax

    from tvmopt.build import build_library

    build_library(lowered, target, path, schedule=schedule)
    machine = relax.VirtualMachine(tvm.runtime.load_module(str(path)), tvm.cpu())
    main, tensors = machine["main"], [tvm.runtime.tensor(array) for array in inputs]
    return lambda: main(*tensors)


def table(rows: Sequence[Row]) -> str:
    """Markdown table of the rows."""
    header = (
        "shape", "MFLOP", "TVM default ms", "top-1 ms", "best ms (95%)", "PyTorch ms (95%)",
        "form", "PyTorch / top-1", "PyTorch / best", "tuning s", "max error",
    )  # fmt: skip
    return peers.markdown(header, (_cells(row) for row in rows))


def _cells(row: Row) -> list[str]:
    if row.problem:
        return [row.name, f"{row.mflop:.1f}", f"FAILED: {row.problem[:120]}", *["-"] * 8]
    form, torch = row.torch or ("-", None)
    return [
        row.name,
        f"{row.mflop:.1f}",
        f"{row.timings['default'].median:.4g}",
        f"{row.timings['top-1'].median:.4g}",
        str(row.timings["best"]),
        str(torch or "-"),
        form.removeprefix("torch:"),
        peers.number(row.ratio("top-1")),
        peers.number(row.ratio("best")),
        f"{row.tuning_s:.1f}",
        f"{row.error:.1e}" + ("" if row.right else " WRONG"),
    ]


def means(rows: Sequence[Row]) -> dict[str, dict[str, float | None]]:
    """Geometric means of both ratios by kind, over the rows that have them."""
    found: dict[str, dict[str, float | None]] = {}
    for kind in KINDS:
        some = [row for row in rows if row.kind == kind and row.right]
        if some:
            found[kind] = {
                ours: geometric_mean(r for row in some if (r := row.ratio(ours)) is not None)
                for ours in ("top-1", "best")
            }
    return found


def _rows(
    parser: argparse.ArgumentParser, args: argparse.Namespace
) -> list[tuple[str, Operator]]:
    rows = built_in()
    if args.model:
        from tvmopt.frontend import load_onnx, parse_input_shapes, prepare

        shapes = parse_input_shapes(args.input_shapes)
        rows, left = model_operators(prepare(load_onnx(args.model), shapes).model)
        for line in left:
            print(line, file=sys.stderr)
        if not rows:
            parser.error(
                f"--model must hold a convolution or matrix product, but {args.model!r} has none"
            )
    kinds = dict.fromkeys(kind for kind, _ in rows)
    known = [*kinds, *(operator.name for _, operator in rows)]
    wanted = peers.check_names(parser, args.only, known)
    if wanted is None:
        return rows
    return [(kind, op) for kind, op in rows if kind in wanted or op.name in wanted]


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


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cpu_ops", description=(__doc__ or "").splitlines()[0]
    )
    peers.add_options(parser)
    args = parser.parse_args(arguments)
    peers.check_options(parser, args)
    peers.set_threads(args.threads)
    try:
        operators = _rows(parser, args)
    except TvmoptError as error:
        parser.error(str(error))
    facts = peers.environment(args.threads) | {"topk": args.topk}
    peers.print_environment(facts, needed=("torch",))
    rows = []
    for number, (kind, operator) in enumerate(operators, start=1):
        rows.append(measure(kind, operator, args.threads, args.topk, args.seconds))
        print(f"{number}/{len(operators)} {operator.name}: {_verdict(rows[-1])}", file=sys.stderr)
    print(f"\n{table(rows)}\n\nPyTorch's time by ours, geometric means:")
    for kind, mean in means(rows).items():
        count = sum(row.kind == kind for row in rows)
        print(f"- {kind} ({count}): top-1 {peers.number(mean['top-1'])}, "
              f"best of {args.topk} {peers.number(mean['best'])}")  # fmt: skip
    peers.write_json(
        args.json,
        {
            "environment": facts,
            "rows": [dataclasses.asdict(r) | {"right": r.right} for r in rows],
            "geometric_means": means(rows),
        },
    )
    return 0 if all(row.right for row in rows) else 1


def _verdict(row: Row) -> str:
    if row.problem:
        return row.problem
    return f"PyTorch / best {peers.number(row.ratio('best'))}, error {row.error:.1e}"


if __name__ == "__main__":
    sys.exit(main())

"""The peers of the CPU benchmarks, each in the best form we know of, and what both scripts share.

ONNX Runtime comes with the package; OpenVINO and PyTorch come with ``pip install -e .[bench]``. A
peer that is not installed has no contender, and its column stays empty. All get the same threads.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import difflib
import importlib.util
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tvmopt import host
from tvmopt.versions import TVM_VERSION, VERSION, installed

Call = Callable[[], Any]
_OPTIONAL = ("openvino", "torch")
_SHOWN = 12  # names in an error


def available(name: str) -> bool:
    """Whether the peer ``name`` is installed."""
    return importlib.util.find_spec(name) is not None


def set_threads(threads: int) -> None:
    """Give TVM and PyTorch ``threads`` threads; before either has started its pool."""
    from tvmopt.arch.target import set_thread_environment

    set_thread_environment(threads)
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(threads)
    if available("torch"):
        import torch

        torch.set_num_threads(threads)


def inference_mode() -> contextlib.AbstractContextManager[object]:
    """PyTorch without autograd; nothing where there is no PyTorch."""
    if not available("torch"):
        return contextlib.nullcontext()
    import torch

    return torch.inference_mode()


# --- models ---------------------------------------------------------------------------------------


def openvino_call(
    model: onnx.ModelProto, inputs: Mapping[str, np.ndarray], threads: int
) -> Callable[[], list[np.ndarray]]:
    """The model in OpenVINO, float32 whatever the CPU could do; outputs in the graph's order."""
    import openvino

    config = {
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": "f32",
        "PERFORMANCE_HINT": "LATENCY",
    }
    core = openvino.Core()
    compiled = core.compile_model(core.read_model(model.SerializeToString()), "CPU", config)
    request, arrays = compiled.create_infer_request(), dict(inputs)

    def call() -> list[np.ndarray]:
        result = request.infer(arrays, share_inputs=True, share_outputs=True)
        return list(result.values())

    return call


def torch_compile_call(
    model: onnx.ModelProto, inputs: Mapping[str, np.ndarray]
) -> Callable[[], Any] | None:
    """The model under ``torch.compile`` with weights frozen; None when an operator is missing.

    Args:
        model: A model with static shapes, folded by :func:`tvmopt.frontend.prepare`.
        inputs: Arrays by input name, in the order of the graph.
    """
    import torch
    import torch._dynamo
    import torch._inductor.config

    module = torch_module(model)
    if module is None:
        return None
    torch._dynamo.reset()  # or what it learnt of earlier models counts against its limits
    torch._inductor.config.freezing = True  # packs weights and fuses into oneDNN's convolutions
    compiled = torch.compile(module)
    tensors = [torch.from_numpy(array) for array in inputs.values()]
    return lambda: compiled(*tensors)


def torch_module(model: onnx.ModelProto) -> Any | None:
    """A ``torch.fx.GraphModule`` of a model with the weights of the file.

    Covers the operators of image classifiers; None when the model has another one.
    """
    import torch

    operators = _torch_operators()
    if any(node.op_type not in operators for node in model.graph.node):
        return None
    root, graph = torch.nn.Module(), torch.fx.Graph()
    constants = {t.name: numpy_helper.to_array(t).copy() for t in model.graph.initializer}
    values: dict[str, Any] = {}
    for number, value in enumerate(model.graph.input):
        values[value.name] = graph.placeholder(f"input{number}")

    def operand(name: str) -> Any:
        if not name:
            return None
        if name not in values:
            array = constants[name]
            if array.ndim == 0 or array.dtype.kind in "iu":
                values[name] = array.tolist()
            else:
                weight = torch.nn.Parameter(torch.from_numpy(array), requires_grad=False)
                root.register_parameter(f"weight{len(values)}", weight)
                values[name] = graph.get_attr(f"weight{len(values)}")
        return values[name]

    for node in model.graph.node:
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        arguments = tuple(operand(name) for name in node.input)
        values[node.output[0]] = graph.call_function(
            operators[node.op_type], arguments, attributes
        )
    graph.output(tuple(values[output.name] for output in model.graph.output))
    return torch.fx.GraphModule(root, graph).eval()


def _torch_operators() -> dict[str, Callable[..., Any]]:
    """PyTorch functions that take an ONNX operator's inputs and attributes."""
    import torch
    from torch.nn import functional

    def window(x: Any, pads: Sequence[int], fill: float) -> tuple[Any, list[int]]:
        """PyTorch pads both ends alike; what it cannot do is padded before."""
        begin, end = list(pads[: len(pads) // 2]), list(pads[len(pads) // 2 :])
        if begin == end:
            return x, begin
        both = [p for pair in reversed(list(zip(begin, end, strict=True))) for p in pair]
        return functional.pad(x, both, value=fill), [0] * len(begin)

    def conv(
        x: Any, w: Any, b: Any = None, *, kernel_shape: Any = None, strides: Any = 1,
        pads: Any = (0, 0, 0, 0), dilations: Any = 1, group: int = 1, auto_pad: bytes = b"NOTSET",
    ) -> Any:  # fmt: skip
        if auto_pad not in (b"NOTSET", b"VALID"):
            raise NotImplementedError(f"auto_pad={auto_pad.decode()}")
        x, padding = window(x, pads, 0.0)
        return functional.conv2d(x, w, b, strides, padding, dilations, group)

    def max_pool(
        x: Any, *, kernel_shape: Any, strides: Any = 1, pads: Any = (0, 0, 0, 0),
        ceil_mode: int = 0, dilations: Any = 1, auto_pad: bytes = b"NOTSET",
        storage_order: int = 0,
    ) -> Any:  # fmt: skip
        if auto_pad not in (b"NOTSET", b"VALID"):
            raise NotImplementedError(f"auto_pad={auto_pad.decode()}")
        x, padding = window(x, pads, float("-inf"))
        return functional.max_pool2d(x, kernel_shape, strides, padding, dilations, bool(ceil_mode))

    def gemm(
        a: Any, b: Any, c: Any = None, *, alpha: float = 1.0, beta: float = 1.0,
        transA: int = 0, transB: int = 0,  # noqa: N803 (names of ONNX)
    ) -> Any:  # fmt: skip
        product = alpha * torch.matmul(a.T if transA else a, b.T if transB else b)
        return product if c is None else product + beta * c

    return {
        "Conv": conv,
        "MaxPool": max_pool,
        "Gemm": gemm,
        "GlobalAveragePool": lambda x: functional.adaptive_avg_pool2d(x, 1),
        "Relu": functional.relu,
        "Clip": lambda x, low=None, high=None: torch.clamp(x, low, high),
        "HardSigmoid": lambda x, alpha=0.2, beta=0.5: torch.clamp(alpha * x + beta, 0.0, 1.0),
        "Sigmoid": torch.sigmoid,
        "Add": lambda a, b: a + b,
        "Mul": lambda a, b: a * b,
        "Div": lambda a, b: a / b,
        "Flatten": lambda x, axis=1: torch.flatten(x, axis),
        "Reshape": lambda x, shape, allowzero=0: torch.reshape(
            x, [x.shape[i] if s == 0 else s for i, s in enumerate(shape)]
        ),
        "Softmax": lambda x, axis=-1: torch.softmax(x, axis),
    }


# --- single operators, in PyTorch -----------------------------------------------------------------


def torch_convolutions(
    x: np.ndarray, weight: np.ndarray, bias: np.ndarray, settings: Mapping[str, Any]
) -> dict[str, Call]:
    """Ways to run convolution + bias + relu: plain, channels last, blocked, and fused.

    ``blocked`` keeps the activations in oneDNN's own layout, and ``fused`` is what
    ``torch.compile`` makes of it: the weight packed beforehand, relu inside of the kernel.

    Args:
        x: (n, channels, h, w).
        weight: (filters, channels / groups, kernel h, kernel w).
        bias: (filters,).
        settings: ``stride``, ``padding`` (the same at both ends), ``dilation``, ``groups``.
    """
    import torch
    from torch.utils import mkldnn

    tx, tw, tb = (torch.from_numpy(a) for a in (x, weight, bias))
    last, last_w = (t.contiguous(memory_format=torch.channels_last) for t in (tx, tw))
    stride, padding = settings["stride"], settings["padding"]
    dilation, groups = settings["dilation"], settings["groups"]

    def plain(data: Any, kernel: Any) -> Call:
        return lambda: torch.relu_(torch.conv2d(data, kernel, tb, **settings))

    def blocked() -> Call:
        with torch.inference_mode(False):  # it keeps the weight as a parameter
            layer = torch.nn.Conv2d(
                weight.shape[1] * groups, weight.shape[0], weight.shape[2:], **settings
            )
            layer.weight.data.copy_(tw)
            layer.bias.data.copy_(tb)
            module = mkldnn.to_mkldnn(layer.eval())
        data = tx.to_mkldnn()
        return lambda: torch.relu_(module(data))

    def fused() -> Call:
        packed = torch.ops.mkldnn._reorder_convolution_weight(
            last_w, padding, stride, dilation, groups, list(x.shape)
        )
        run = torch.ops.mkldnn._convolution_pointwise
        return lambda: run(
            last, packed, tb, padding, stride, dilation, groups, "relu", [], ""
        )

    return _working(
        {
            "plain": lambda: plain(tx, tw),
            "channels_last": lambda: plain(last, last_w),
            "blocked": blocked,
            "fused": fused,
        }
    )


def torch_matmuls(
    a: np.ndarray, b: np.ndarray, bias: np.ndarray | None, constant: bool
) -> dict[str, Call]:
    """Ways to multiply matrices: as they are and, for a constant ``b``, packed by MKL or oneDNN.

    Args:
        a: (m, k) or (batch, m, k).
        b: (k, n) or (batch, k, n).
        bias: (n,), or None.
        constant: Whether ``b`` is a weight.
    """
    import torch

    ta, tb = torch.from_numpy(a), torch.from_numpy(b)
    tc = None if bias is None else torch.from_numpy(bias)
    plain: Call = (
        (lambda: torch.matmul(ta, tb)) if tc is None else (lambda: torch.addmm(tc, ta, tb))
    )
    if not constant or ta.ndim != 2:
        return {"plain": plain}
    rows, transposed = int(ta.shape[0]), tb.T.contiguous()

    def mkl() -> Call:
        packed = torch.ops.mkl._mkl_reorder_linear_weight(transposed, rows)
        return lambda: torch.ops.mkl._mkl_linear(ta, packed, transposed, tc, rows)

    def onednn() -> Call:
        packed = torch.ops.mkldnn._reorder_linear_weight(transposed, rows)
        return lambda: torch.ops.mkldnn._linear_pointwise(ta, packed, tc, "none", [], "")

    return {"plain": plain} | _working(
        {
            "linear": lambda: (lambda: torch.nn.functional.linear(ta, transposed, tc)),
            "mkl": mkl,
            "onednn": onednn,
        }
    )


def torch_image_ops(x: np.ndarray, run: Callable[[Any], Any]) -> dict[str, Call]:
    """``run`` of an image (n, channels, h, w), plain and channels last."""
    import torch

    plain = torch.from_numpy(x)
    last = plain.contiguous(memory_format=torch.channels_last)
    return {"plain": lambda: run(plain), "channels_last": lambda: run(last)}


def dense_array(tensor: Any) -> np.ndarray:
    """A PyTorch tensor of any layout as an array."""
    return np.asarray(tensor.to_dense() if tensor.is_mkldnn else tensor)


def _working(makers: Mapping[str, Callable[[], Call]]) -> dict[str, Call]:
    """The variants that this build of PyTorch can run: not every one has MKL or oneDNN."""
    calls = {}
    for name, make in makers.items():
        with contextlib.suppress(RuntimeError, AttributeError, NotImplementedError):
            call = make()
            call()
            calls[name] = call
    return calls


# --- what both scripts share ----------------------------------------------------------------------


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of both scripts."""
    parser.add_argument("--only", default="", help="names of rows, separated by commas")
    parser.add_argument("--threads", type=int, default=2, help="of every contender, default 2")
    parser.add_argument("--topk", type=int, default=20, help="configurations measured a function")
    parser.add_argument("--model", default="", help="an ONNX file instead of the built-in rows")
    parser.add_argument("--input_shapes", default="", help="shapes for --model")
    parser.add_argument(
        "--seconds", type=float, default=15.0, help="most seconds of timing a row, default 15"
    )
    parser.add_argument("--json", default="", help="file to write the rows to")


def check_options(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """End the program with one line where an option makes no sense."""
    for name in ("threads", "topk"):
        if getattr(args, name) < 1:
            parser.error(f"--{name} must be at least 1, but got {getattr(args, name)}")
    if args.model and not Path(args.model).is_file():
        parser.error(f"--model must be an ONNX file, but there is none at {args.model!r}")


def check_names(
    parser: argparse.ArgumentParser, only: str, known: Iterable[str]
) -> list[str] | None:
    """The names of ``--only``, None without it; ends the program where one is not known."""
    if not only:
        return None
    known = list(known)
    wanted = list(filter(None, (name.strip() for name in only.split(","))))
    unknown = [name for name in wanted if name not in known]
    if unknown or not wanted:
        close = [m for name in unknown for m in difflib.get_close_matches(name, known)] or known
        more = f" and {len(known) - _SHOWN} more" if len(close) > _SHOWN else ""
        parser.error(
            f"--only must name rows, but got {', '.join(map(repr, unknown or [only]))}; "
            f"choose from {', '.join(close[:_SHOWN])}{more}"
        )
    return wanted


def environment(threads: int) -> dict[str, Any]:
    """What a number is worth nothing without; None for a peer that is not installed."""
    return {
        "date": str(datetime.date.today()),
        "cpu": host.cpu_model(),
        "cores": host.usable_cores(),
        "threads": threads,
        "load": round(os.getloadavg()[0], 2),
        "apache-tvm": TVM_VERSION,
        "tvmopt": installed("tvmopt") or VERSION,
        **{name: installed(name) for name in ("onnxruntime", *_OPTIONAL)},
    }


def print_environment(facts: Mapping[str, Any], needed: Sequence[str] = _OPTIONAL) -> None:
    """One line of facts, one a missing peer, and one where other work would spoil the numbers."""
    print(", ".join(f"{name} {value}" for name, value in facts.items() if value is not None))
    if facts["load"] > facts["cores"] / 2:
        # PyTorch's threads wait by spinning: one that has lost its core costs a time slice a call.
        print(f"the machine may be busy (load {facts['load']}): run this alone, PyTorch's numbers "
              "suffer most")  # fmt: skip
    for name in needed:
        if not available(name):
            print(f"{name} is not installed, its column stays '-': pip install -e .[bench]")


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table, its columns aligned."""
    cells = [list(header), *(list(row) for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    cells.insert(1, ["-" * width for width in widths])
    return "\n".join(
        "| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |"
        for row in cells
    )


def number(value: float | None, form: str = ".2f") -> str:
    """A number for the table; ``-`` for what is not there."""
    return "-" if value is None else format(value, form)


def one_line(error: Exception) -> str:
    """What went wrong, in one line."""
    return " ".join(str(error).split())[:300] or type(error).__name__


def write_json(path: str, content: Mapping[str, Any]) -> None:
    """Write the results, if a file was asked for; an infinity, which JSON lacks, as text."""
    if path:
        text = json.dumps(_finite(content), indent=2, allow_nan=False)
        Path(path).write_text(text + "\n")


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value

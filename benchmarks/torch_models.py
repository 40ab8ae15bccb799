"""Translate an ONNX model to a ``torch.fx`` graph and compile it with frozen weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper


def torch_compile_call(
    model: onnx.ModelProto, inputs: Mapping[str, np.ndarray]
) -> Callable[[], Any] | None:
    """Compile a model with ``torch.compile``, weights frozen; None if an operator is unsupported.

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
    torch._dynamo.reset()  # earlier models count against the recompile limit
    torch._inductor.config.freezing = True  # prepacks weights and fuses into oneDNN convolutions
    compiled = torch.compile(module)
    tensors = [torch.from_numpy(array) for array in inputs.values()]
    return lambda: compiled(*tensors)


def torch_module(model: onnx.ModelProto) -> Any | None:
    """Translate a model to a ``torch.fx.GraphModule`` with its weights.

    The operators of image classifiers are supported; a model with another operator gives None.
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
        if node.op_type == "Resize":  # its scales are no tensor in PyTorch
            values.update((name, constants[name].tolist()) for name in node.input[2:3])
        arguments = tuple(operand(name) for name in node.input)
        values[node.output[0]] = graph.call_function(operators[node.op_type], arguments, attributes)
    graph.output(tuple(values[output.name] for output in model.graph.output))
    return torch.fx.GraphModule(root, graph).eval()


def _torch_operators() -> dict[str, Callable[..., Any]]:
    """PyTorch functions by ONNX operator; they take its inputs and attributes."""
    import torch
    from torch.nn import functional

    def symmetric(x: Any, pads: Sequence[int], fill: float) -> tuple[Any, list[int]]:
        """Return input and padding; PyTorch lacks asymmetric padding, so it is applied here."""
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
        x, padding = symmetric(x, pads, 0.0)
        return functional.conv2d(x, w, b, strides, padding, dilations, group)

    def max_pool(
        x: Any, *, kernel_shape: Any, strides: Any = 1, pads: Any = (0, 0, 0, 0),
        ceil_mode: int = 0, dilations: Any = 1, auto_pad: bytes = b"NOTSET",
        storage_order: int = 0,
    ) -> Any:  # fmt: skip
        if auto_pad not in (b"NOTSET", b"VALID"):
            raise NotImplementedError(f"auto_pad={auto_pad.decode()}")
        x, padding = symmetric(x, pads, float("-inf"))
        return functional.max_pool2d(x, kernel_shape, strides, padding, dilations, bool(ceil_mode))

    def gemm(
        a: Any, b: Any, c: Any = None, *, alpha: float = 1.0, beta: float = 1.0,
        transA: int = 0, transB: int = 0,  # noqa: N803 (names of ONNX)
    ) -> Any:  # fmt: skip
        out = alpha * torch.matmul(a.T if transA else a, b.T if transB else b)
        return out if c is None else out + beta * c

    def conv_transpose(
        x: Any, w: Any, b: Any = None, *, kernel_shape: Any = None, strides: Any = 1,
        pads: Any = (0, 0, 0, 0), dilations: Any = 1, group: int = 1, auto_pad: bytes = b"NOTSET",
    ) -> Any:  # fmt: skip
        if auto_pad != b"NOTSET" or any(pads):
            raise NotImplementedError("padding of a transposed convolution")
        return functional.conv_transpose2d(x, w, b, strides, 0, 0, group, dilations)

    def resize(x: Any, _roi: Any, scales: Any, *, mode: bytes, **attributes: Any) -> Any:
        at = attributes["coordinate_transformation_mode"], attributes["nearest_mode"]
        if mode != b"nearest" or at != (b"asymmetric", b"floor"):
            raise NotImplementedError("interpolation")
        return functional.interpolate(x, scale_factor=scales[2:], mode="nearest")

    def batch_norm(
        x: Any, scale: Any, bias: Any, mean: Any, variance: Any, *, epsilon: float = 1e-5,
        **_training: Any,
    ) -> Any:  # fmt: skip
        return functional.batch_norm(x, mean, variance, scale, bias, False, 0.0, epsilon)

    return {
        "BatchNormalization": batch_norm,
        "Concat": lambda *tensors, axis: torch.cat(tensors, axis),
        "ConvTranspose": conv_transpose,
        "Resize": resize,
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

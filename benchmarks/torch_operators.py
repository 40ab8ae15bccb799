"""Single operators in PyTorch, in every variant: eager, oneDNN and MKL."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from benchmarks.peers import Call


def torch_convolutions(
    x: np.ndarray, weight: np.ndarray, bias: np.ndarray, settings: Mapping[str, Any]
) -> dict[str, Call]:
    """Variants of convolution + bias + relu: plain, channels last, blocked, and fused.

    ``blocked`` keeps the activations in oneDNN's blocked layout. ``fused`` is the kernel of
    ``torch.compile``: prepacked weight and fused relu.

    Args:
        x: (n, channels, h, w).
        weight: (filters, channels / groups, kernel h, kernel w).
        bias: (filters,).
        settings: ``stride``, ``padding`` (symmetric), ``dilation``, ``groups``.
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
        with torch.inference_mode(False):  # an inference tensor cannot be a parameter
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
        return lambda: run(last, packed, tb, padding, stride, dilation, groups, "relu", [], "")

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
    """Variants of a matmul: plain and, for a constant ``b``, prepacked by MKL or oneDNN.

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
            "linear": lambda: lambda: torch.nn.functional.linear(ta, transposed, tc),
            "mkl": mkl,
            "onednn": onednn,
        }
    )


def torch_image_ops(x: np.ndarray, run: Callable[[Any], Any]) -> dict[str, Call]:
    """Variants of ``run`` on an image (n, channels, h, w): plain and channels last."""
    import torch

    plain = torch.from_numpy(x)
    last = plain.contiguous(memory_format=torch.channels_last)
    return {"plain": lambda: run(plain), "channels_last": lambda: run(last)}


def dense_array(tensor: Any) -> np.ndarray:
    """Convert a PyTorch tensor of any layout to an array."""
    return np.asarray(tensor.to_dense() if tensor.is_mkldnn else tensor)


def _working(makers: Mapping[str, Callable[[], Call]]) -> dict[str, Call]:
    """Return the variants that this build of PyTorch supports; some lack MKL or oneDNN."""
    calls = {}
    for name, make in makers.items():
        with contextlib.suppress(RuntimeError, AttributeError, NotImplementedError):
            call = make()
            call()
            calls[name] = call
    return calls

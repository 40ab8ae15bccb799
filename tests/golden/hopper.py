"""Hopper kernels of the record: functions, each with a configuration that is told exactly.

Every path of the generator is here: operand layouts and dtypes, ragged extents, split-K in a
cluster and through a workspace, TMA multicast, swapped operands, both epilogue stores, persistent
and not, im2col convolutions and those of few channels, epilogues with and without a residual.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from tvm import te, tirx

#: The smallest persistent kernel that stores with TMA.
SMALL = {"consumers": 1, "tile_n": 64, "stages": 4}
#: One tile a thread block, stored through shared memory with plain vectorised stores.
PLAIN_STORE = SMALL | {"tma_store": False, "persistent": False}
CLUSTER_SPLIT_K = {"tile_n": 128, "split_k": 2, "persistent": False}
ONE_TILE = {"wgmma_m": 2, "tile_n": 104, "persistent": False, "epilogue_stages": 2}


@dataclasses.dataclass(frozen=True)
class Gemm:
    """``C = epilogue(A B)``; ``layout`` says of A and of B whether it is transposed in memory."""

    m: int
    n: int
    k: int
    dtype: str = "float16"
    out: str = "float16"
    layout: str = "nt"
    batch: int = 1
    dynamic: bool = False
    epilogue: str = ""

    def func(self) -> tirx.PrimFunc:
        sums = "int32" if self.dtype == "int8" else "float32"
        rows = tirx.Var("m", "int64") if self.dynamic else self.m
        front = (self.batch,) if self.batch > 1 else ()
        trans_a, trans_b = (letter == "t" for letter in self.layout)
        a_shape = (self.k, rows) if trans_a else (rows, self.k)
        b_shape = (self.n, self.k) if trans_b else (self.k, self.n)
        a = te.placeholder((*front, *a_shape), self.dtype, "A")
        b = te.placeholder((*front, *b_shape), self.dtype, "B")
        k = te.reduce_axis((0, self.k), "k")

        def element(*at: Any) -> Any:
            *s, i, j = at
            x = a[(*s, k, i)] if trans_a else a[(*s, i, k)]
            y = b[(*s, j, k)] if trans_b else b[(*s, k, j)]
            return te.sum(x.astype(sums) * y.astype(sums), axis=[k])

        return _finished(te.compute((*front, rows, self.n), element, "C"), [a, b], self)


@dataclasses.dataclass(frozen=True)
class Conv:
    """A convolution of NHWC images; ``weight`` is the layout of the filters."""

    images: int
    size: tuple[int, int]
    channels: int
    filters: int
    kernel: int = 3
    stride: tuple[int, int] = (1, 1)
    padding: int = 1
    dilation: int = 1
    dtype: str = "float16"
    out: str = "float16"
    weight: str = "HWIO"
    epilogue: str = ""

    def func(self) -> tirx.PrimFunc:
        sums = "int32" if self.dtype == "int8" else "float32"
        (high, wide), p, window = self.size, self.padding, self.kernel
        shape = (window, window, self.channels, self.filters)
        if self.weight == "OHWI":
            shape = (self.filters, window, window, self.channels)
        x = te.placeholder((self.images, high, wide, self.channels), self.dtype, "X")
        w = te.placeholder(shape, self.dtype, "W")

        def padded(n: Any, i: Any, j: Any, c: Any) -> Any:
            inside = tirx.all(i >= p, i < high + p, j >= p, j < wide + p)
            return tirx.if_then_else(inside, x[n, i - p, j - p, c], tirx.const(0, self.dtype))

        image = x
        if p:
            whole = (self.images, high + 2 * p, wide + 2 * p, self.channels)
            image = te.compute(whole, padded, "pad")
        reach = self.dilation * (window - 1) + 1
        out = [(s + 2 * p - reach) // t + 1 for s, t in zip(self.size, self.stride, strict=True)]
        r, s = (te.reduce_axis((0, window), name) for name in "rs")
        c = te.reduce_axis((0, self.channels), "c")

        def element(n: Any, i: Any, j: Any, o: Any) -> Any:
            at = i * self.stride[0] + r * self.dilation, j * self.stride[1] + s * self.dilation
            tap = w[o, r, s, c] if self.weight == "OHWI" else w[r, s, c, o]
            return te.sum(image[(n, *at, c)].astype(sums) * tap.astype(sums), axis=[r, s, c])

        return _finished(te.compute((self.images, *out, self.filters), element, "C"), [x, w], self)


def _finished(c: Any, args: list[Any], problem: Gemm | Conv) -> tirx.PrimFunc:
    """``c`` with the epilogue, which is computed in its dtype and then rounded."""
    value: Callable[..., Any] = lambda *at: c[at]  # noqa: E731
    if "bias" in problem.epilogue:
        bias = te.placeholder((c.shape[-1],), problem.out, "bias")
        args = [*args, bias]
        value = _then(value, lambda y, *at: y + bias[at[-1]].astype(c.dtype))
    if "relu" in problem.epilogue:
        value = _then(value, lambda y, *at: tirx.max(y, tirx.const(0, c.dtype)))
    if "gelu" in problem.epilogue:
        half, one = tirx.const(0.5, c.dtype), tirx.const(1, c.dtype)
        root = tirx.const(0.70710678, c.dtype)
        value = _then(value, lambda y, *at: half * y * (one + tirx.erf(y * root)))
    if "residual" in problem.epilogue:
        residual = te.placeholder(c.shape, problem.out, "residual")
        args = [*args, residual]
        value = _then(value, lambda y, *at: y + residual[at].astype(c.dtype))
    if not problem.epilogue and str(c.dtype) == problem.out:
        return te.create_prim_func([*args, c])
    result = te.compute(c.shape, lambda *at: value(*at).astype(problem.out), "out")
    return te.create_prim_func([*args, result])


def _then(before: Callable[..., Any], after: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *at: after(before(*at), *at)


@dataclasses.dataclass(frozen=True)
class Kernel:
    """One kernel of the record."""

    problem: Gemm | Conv
    config: dict[str, Any]

    @property
    def name(self) -> str:
        """The problem and the configuration; what is as usual is left out."""
        told = {
            f.name: getattr(self.problem, f.name)
            for f in dataclasses.fields(self.problem)
            if getattr(self.problem, f.name) != f.default
        }
        words = [type(self.problem).__name__.lower()]
        for values in (told, self.config):
            words += [f"{key}={_short(value)}" for key, value in values.items()]
        return " ".join(words)


def _short(value: Any) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _gemm(config: dict[str, Any], **fields: Any) -> Kernel:
    return Kernel(Gemm(**({"m": 77, "n": 264, "k": 272} | fields)), config)


def _conv(config: dict[str, Any], **fields: Any) -> Kernel:
    small = {"images": 3, "size": (13, 9), "channels": 24, "filters": 40}
    return Kernel(Conv(**(small | fields)), {"box": None} | config)


def _with(config: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return config | changes


#: Small kernels, one of each kind, that are kept as files to be read.
READABLE: dict[str, Kernel] = {
    "gemm": _gemm(SMALL, m=512, n=512, k=256),
    "gemm_int8": _gemm(SMALL, m=512, n=512, k=256, dtype="int8", out="int32"),
    "gemm_plain_store": _gemm(_with(PLAIN_STORE, tile_n=16), n=263),
    "gemm_swapped": _gemm(_with(PLAIN_STORE, swap_ab=True, tile_n=8), m=5, n=512, k=256),
    "gemm_multicast": _gemm(_with(SMALL, cluster_m=2), m=512, n=512, k=256),
    "gemm_cluster_split_k": _gemm(_with(PLAIN_STORE, tile_n=16, split_k=2), m=64, n=512, k=512),
    "gemm_workspace_split_k": _gemm(_with(SMALL, split_k=4, workspace=True), m=64, n=64, k=2048),
    "gemm_residual": _gemm(SMALL, m=64, n=128, k=64, epilogue="bias_relu_residual"),
    "conv": _conv(SMALL, channels=64, filters=64, size=(14, 14)),
    "conv_few_channels": _conv(SMALL, channels=3, kernel=7, stride=(2, 2), padding=3),
}

#: All kernels of the record.
KERNELS: list[Kernel] = [
    *READABLE.values(),
    # Operand layouts, dtypes, batches, ragged extents.
    _gemm(SMALL),
    _gemm(SMALL, layout="nn"),
    _gemm(SMALL, layout="tn", m=136, k=77),
    _gemm(SMALL, layout="tt", m=136),
    _gemm(SMALL, dtype="bfloat16", out="bfloat16"),
    _gemm(SMALL, dtype="float8_e4m3fn", out="bfloat16"),
    _gemm(SMALL, out="float32"),
    _gemm(SMALL, batch=5),
    _gemm(PLAIN_STORE, n=77, batch=2, layout="nn"),
    _gemm(SMALL, dynamic=True),
    _gemm(SMALL, k=271),
    _gemm(PLAIN_STORE, n=263, k=270, batch=2),
    _gemm(_with(PLAIN_STORE, persistent=True), n=263, layout="nn", dynamic=True),
    _gemm(_with(PLAIN_STORE, persistent=True), m=300, n=10),
    _gemm(_with(PLAIN_STORE, persistent=True, tile_n=128), m=300, n=67, out="float32"),
    _gemm(SMALL, dtype="int8", out="int32", k=273, layout="nn"),
    _gemm(_with(SMALL, consumers=2), dtype="int8", out="int32"),
    _gemm(_with(SMALL, tile_n=144, stages=6, epilogue_stages=2), m=300, n=272, dtype="int8",
          out="int8", k=700),
    # Tile shapes, stages, wgmma in flight.
    _gemm({"tile_n": 128, "epilogue_stages": 2}, m=512, n=512, k=256),
    _gemm({"tile_n": 128, "stages": 5, "epilogue_stages": 2}, m=1000, n=1000),
    _gemm({"tile_n": 256, "stages": 4, "epilogue_stages": 2}, m=4096, n=4096, k=4096),
    _gemm({"tile_n": 192, "stages": 4, "epilogue_stages": 1}, m=4096, n=4096, k=4096, layout="nn"),
    _gemm({"wgmma_m": 2, "tile_n": 128, "stages": 3, "epilogue_stages": 2}, m=2048, n=2048),
    _gemm({"consumers": 3, "tile_n": 128, "stages": 4, "epilogue_stages": 2}, m=1920, n=2048),
    _gemm({"tile_n": 104, "stages": 6, "epilogue_stages": 2, "in_flight": 2}, m=333, n=504, k=128),
    _gemm({"tile_n": 128, "raster": 4, "epilogue_stages": 2}, m=1024, n=2048, k=1024),
    _gemm({"tile_n": 128, "raster": 1, "epilogue_stages": 2}, m=1024, n=2048, k=1024),
    _gemm(ONE_TILE, m=1000, n=520),
    _gemm(_with(ONE_TILE, wgmma_m=1, epilogue_stages=4), m=300, out="float32"),
    _gemm({"tile_n": 256, "epilogue_stages": 4, "persistent": False}, m=256, n=1024, k=512),
    # TMA multicast in clusters.
    _gemm({"tile_n": 128, "stages": 5, "cluster_m": 2, "epilogue_stages": 2}, m=1000, n=1000),
    _gemm({"tile_n": 128, "stages": 5, "cluster_n": 4, "epilogue_stages": 2}, m=1000, n=1000,
          layout="nn"),
    _gemm({"tile_n": 128, "cluster_m": 4, "cluster_n": 2, "epilogue_stages": 2}, m=256, n=1024,
          k=520),
    _gemm({"tile_n": 192, "stages": 3, "cluster_m": 2}, m=300, n=520, layout="nn"),
    _gemm(_with(SMALL, tile_n=104, stages=8, cluster_m=2, cluster_n=2, tma_store=False), m=300,
          n=1000, batch=3),
    _gemm({"wgmma_m": 2, "consumers": 1, "tile_n": 64, "stages": 6, "cluster_m": 2,
           "cluster_n": 2}, m=300, layout="tt"),
    _gemm({"tile_n": 104, "stages": 6, "cluster_m": 4, "cluster_n": 2, "in_flight": 2,
           "epilogue_stages": 2}, m=300, n=1000),
    _gemm(_with(ONE_TILE, tile_n=136, cluster_m=2, cluster_n=2, epilogue_stages=1), m=1000),
    _gemm({"consumers": 1, "tile_n": 128, "stages": 6, "cluster_m": 4, "cluster_n": 2,
           "epilogue_stages": 2}, m=777, dynamic=True),
    # Swapped operands.
    _gemm({"tile_n": 72, "stages": 8, "cluster_m": 4, "cluster_n": 2, "swap_ab": True}, m=1000,
          n=1000, k=1000),
    _gemm({"wgmma_m": 2, "consumers": 1, "tile_n": 24, "stages": 6, "cluster_n": 2,
           "swap_ab": True, "epilogue_stages": 2}, m=61),
    _gemm(_with(ONE_TILE, tile_n=72, swap_ab=True, cluster_m=4), n=1000),
    _gemm({"consumers": 1, "tile_n": 24, "swap_ab": True}, m=300),
    # Split-K, reduced in the cluster or through a workspace.
    _gemm(_with(PLAIN_STORE, swap_ab=True, tile_n=8, split_k=2), m=5),
    _gemm({"tile_n": 16, "split_k": 2, "swap_ab": True, "persistent": False}, m=16),
    _gemm(_with(PLAIN_STORE, tile_n=40, split_k=3), m=300, n=96),
    _gemm(CLUSTER_SPLIT_K, m=300),
    _gemm(_with(CLUSTER_SPLIT_K, consumers=1, tile_n=256, split_k=4), m=300, k=700),
    _gemm(_with(PLAIN_STORE, tile_n=48, split_k=2), dtype="int8", out="int32", k=700),
    _gemm(_with(PLAIN_STORE, split_k=5, workspace=True), m=64, n=77, k=2048, batch=2),
    _gemm(_with(PLAIN_STORE, split_k=5, workspace=True, swap_ab=True, tile_n=8), m=5, n=77, k=2048),
    _gemm(_with(SMALL, split_k=5, workspace=True), m=64, n=64, k=2047, dtype="int8", out="int32"),
    _gemm(_with(SMALL, split_k=3, workspace=True), m=64, n=128, k=2048, epilogue="bias_gelu"),
    # Epilogues.
    _gemm(SMALL, m=333, n=504, k=128, epilogue="bias_gelu"),
    _gemm(_with(PLAIN_STORE, tile_n=40), m=333, n=504, k=128, epilogue="bias_gelu"),
    _gemm(CLUSTER_SPLIT_K, m=333, n=504, k=128, epilogue="bias_gelu"),
    _gemm({"tile_n": 72, "stages": 5, "cluster_m": 2, "cluster_n": 2, "swap_ab": True}, m=333,
          n=504, k=128, epilogue="bias_gelu"),
    _gemm(ONE_TILE, k=136, epilogue="bias_relu_residual"),
    _gemm(PLAIN_STORE, k=136, epilogue="bias_relu_residual"),
    _gemm(_with(SMALL, tile_n=128), m=64, n=128, k=64, epilogue="residual"),
    _gemm(_with(SMALL, tile_n=128, epilogue_stages=2), m=64, n=128, k=64, epilogue="residual"),
    _gemm(_with(SMALL, swap_ab=True), m=64, n=128, k=64, epilogue="residual"),
    _gemm(SMALL, dtype="bfloat16", out="bfloat16", batch=3, epilogue="residual"),
    # Convolutions.
    _conv(SMALL),
    _conv(SMALL, weight="OHWI"),
    _conv(SMALL, stride=(2, 1)),
    _conv(SMALL, dilation=2, padding=2),
    _conv(SMALL, kernel=1, padding=0, channels=64, stride=(2, 2)),
    _conv(_with(PLAIN_STORE, tile_n=40), weight="OHWI"),
    _conv(_with(PLAIN_STORE, tile_n=40, split_k=4), weight="OHWI"),
    _conv(_with(ONE_TILE, tile_n=128), channels=64, filters=128),
    _conv({"tile_n": 64, "box": (1, 8, 8)}, images=32, size=(56, 56), channels=64, filters=64),
    _conv({"wgmma_m": 2, "tile_n": 128, "stages": 3, "epilogue_stages": 2, "box": (2, 8, 8)},
          images=32, size=(28, 28), channels=128, filters=128),
    _conv({"tile_n": 128, "epilogue_stages": 2}, images=8, size=(14, 14), channels=256,
          filters=256, epilogue="bias_relu"),
    _conv({"tile_n": 128, "epilogue_stages": 2}, images=8, size=(14, 14), channels=256,
          filters=256, epilogue="bias_relu_residual"),
    _conv(SMALL, channels=32, filters=48, dtype="int8", out="int32"),
    _conv(SMALL, dtype="bfloat16", out="bfloat16", channels=48),
    _conv(SMALL, channels=1),
    _conv(SMALL, channels=3, weight="OHWI"),
    _conv(SMALL, channels=12),
    _conv(SMALL, channels=16),
    _conv(SMALL, channels=80, weight="OHWI"),
    _conv({"tile_n": 64, "stages": 6}, images=8, size=(224, 224), channels=3, filters=64, kernel=7,
          stride=(2, 2), padding=3, epilogue="bias_relu"),
]  # fmt: skip

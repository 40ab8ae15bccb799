"""Operators of the GPU benchmark: TensorIR function, PyTorch call and reference of each row.

The 23 built-in rows, their shapes and tuning seconds come from the fast dlight proposal (TVM
community forum, 2024), which used an A100. A name of the same form selects any other shape, for
example ``matmul_nt-3000-3000-3000-float16``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from tvm import te, tirx, topi

from tvmopt.device.dtypes import TF32
from tvmopt.kernels.tf32 import allow_tf32

#: Quantisation group size of the int4 rows: weights along K that share one scale.
GROUP = 128
_ACCUMULATE = {"float16": "float32", "bfloat16": "float32", "float32": "float32", "int8": "int32"}


@dataclasses.dataclass(frozen=True)
class CudaRow:
    """One operator of the table.

    Attributes:
        name: Kind, sizes and dtype, joined by dashes.
        func: The unscheduled PrimFunc.
        call: ``call(torch, inputs) -> output`` by PyTorch's fastest operator, on GPU tensors.
        reference: The same computation in float64 or float32.
        seconds: Tuning seconds in the proposal; 0 for a row that the proposal lacks.
        allow_tf32: Whether ours and PyTorch may round float32 operands to TF32.
    """

    name: str
    func: tirx.PrimFunc
    call: Callable[[Any, list[Any]], Any]
    reference: Callable[[Any, list[Any]], Any]
    seconds: float = 0.0
    allow_tf32: bool = False

    @property
    def group(self) -> str:
        """Group of operators with one mean: ``"matmul"``, ``"conv"``, ``"memory"``, ..."""
        kind = self.name.partition("-")[0]
        if kind.startswith(("matmul", "linear")):
            wide = self.name.rpartition("-")[2] in ("float32", TF32.name)
            return f"matmul {self.name.rpartition('-')[2]}" if wide else "matmul"
        return "conv" if kind == "conv2d" else "gemv int4" if kind == "gemv_i4" else "memory"


#: Rows of the fast dlight proposal, with the tuning seconds that it reports.
SEED_ROWS = {
    "copy-128-8192-float16": 2.547,
    "copy-16384-16384-float16": 7.405,
    "add-16384-16384-float16": 9.787,
    "sum-16384-1024-float16": 1.386,
    "max-16384-1024-float16": 1.085,
    "softmax-128-10-float16": 0.949,
    "matmul_nt-1024-1024-1024-float16": 5.094,
    "matmul_nt-8192-8192-8192-float16": 6.301,
    "matmul_nt-16384-16384-16384-float16": 18.823,
    "matmul_nn-1024-1024-1024-float16": 3.544,
    "matmul_nn-8192-8192-8192-float16": 6.116,
    "matmul_nn-16384-16384-16384-float16": 16.838,
    "matmul_nt-1024-1024-1024-float32": 3.082,
    "matmul_nt-8192-8192-8192-float32": 35.129,
    "matmul_nn-1024-1024-1024-float32": 3.028,
    "matmul_nn-8192-8192-8192-float32": 33.267,
    "conv2d-128-64-224-224-3-7-7-2-1-3-float16": 5.287,
    "conv2d-128-64-224-224-64-1-1-2-1-3-float16": 8.236,
    "conv2d-128-64-224-224-3-7-7-2-1-3-float32": 3.337,
    "gemv-1024-1024-float16": 1.275,
    "gemv-8192-8192-float16": 1.762,
    "gemv-16384-16384-float16": 3.649,
    "gemv_i4-16384-16384-float16": 2.072,
}


def row(name: str) -> CudaRow:
    """Return the row of a name; the dtype ``tf32`` is float32 with TF32 allowed.

    Raises:
        ValueError: When the name is malformed or its kind or dtype is unknown.
    """
    kind, *parts = name.split("-")
    try:
        *numbers, dtype = parts
        is_tf32 = dtype == TF32.name
        dtype = "float32" if is_tf32 else dtype
        _ACCUMULATE[dtype]
        func, call, reference = _KINDS[kind](dtype, *map(int, numbers))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"a row must be named like {', '.join(list(SEED_ROWS)[:3])}, of {', '.join(_KINDS)}, "
            f"but got {name!r}"
        ) from error
    func = allow_tf32(func) if is_tf32 else func
    return CudaRow(name, func, call, reference, SEED_ROWS.get(name, 0.0), is_tf32)


_Made = tuple[tirx.PrimFunc, Callable[[Any, list[Any]], Any], Callable[[Any, list[Any]], Any]]


def _copy(dtype: str, m: int, n: int) -> _Made:
    a = te.placeholder((m, n), dtype, "A")
    b = te.compute((m, n), lambda i, j: a[i, j], "B")
    return te.create_prim_func([a, b]), lambda t, x: x[0].clone(), lambda t, x: x[0]


def _add(dtype: str, m: int, n: int) -> _Made:
    a, b = te.placeholder((m, n), dtype, "A"), te.placeholder((m, n), dtype, "B")
    c = te.compute((m, n), lambda i, j: a[i, j] + b[i, j], "C")
    return te.create_prim_func([a, b, c]), lambda t, x: x[0] + x[1], lambda t, x: x[0] + x[1]


def _sum(dtype: str, m: int, n: int) -> _Made:
    a = te.placeholder((m, n), dtype, "A")
    k = te.reduce_axis((0, n), "k")
    acc = te.compute((m,), lambda i: te.sum(a[i, k].astype(_ACCUMULATE[dtype]), axis=k), "acc")
    b = te.compute((m,), lambda i: acc[i].astype(dtype), "B")
    func = te.create_prim_func([a, b])
    return func, lambda t, x: x[0].sum(1), lambda t, x: x[0].double().sum(1)


def _max(dtype: str, m: int, n: int) -> _Made:
    a = te.placeholder((m, n), dtype, "A")
    k = te.reduce_axis((0, n), "k")
    b = te.compute((m,), lambda i: te.max(a[i, k], axis=k), "B")
    return te.create_prim_func([a, b]), lambda t, x: x[0].amax(1), lambda t, x: x[0].amax(1)


def _softmax(dtype: str, m: int, n: int) -> _Made:
    a = te.placeholder((m, n), dtype, "A")
    func = te.create_prim_func([a, topi.nn.softmax(a, axis=-1)])
    return func, lambda t, x: t.softmax(x[0], 1), lambda t, x: t.softmax(x[0].double(), 1)


def _matmul(layout: str) -> Callable[..., _Made]:
    a_of: Any = {"n": lambda i, k: (i, k), "t": lambda i, k: (k, i)}[layout[0]]
    b_of: Any = {"n": lambda k, j: (k, j), "t": lambda k, j: (j, k)}[layout[1]]

    def make(dtype: str, m: int, n: int, k: int) -> _Made:
        accumulate = _ACCUMULATE[dtype]
        out = "int32" if dtype == "int8" else dtype
        a, b = te.placeholder(a_of(m, k), dtype, "A"), te.placeholder(b_of(k, n), dtype, "B")
        r = te.reduce_axis((0, k), "k")
        acc = te.compute(
            (m, n),
            lambda i, j: te.sum(
                a[a_of(i, r)].astype(accumulate) * b[b_of(r, j)].astype(accumulate), axis=r
            ),
            "acc",
        )
        c = acc
        if out != accumulate:
            c = te.compute((m, n), lambda i, j: acc[i, j].astype(out), "C")

        def operands(x: list[Any]) -> tuple[Any, Any]:
            return (
                x[0].t() if layout[0] == "t" else x[0],
                x[1].t() if layout[1] == "t" else x[1],
            )

        def call(torch: Any, x: list[Any]) -> Any:
            one, two = operands(x)
            return torch._int_mm(one, two) if dtype == "int8" else torch.matmul(one, two)

        def reference(torch: Any, x: list[Any]) -> Any:
            one, two = operands(x)
            return torch.matmul(one.double(), two.double())

        return te.create_prim_func([a, b, c]), call, reference

    return make


def _layer_norm(stored: str) -> Callable[..., _Made]:
    """LayerNorm of a residual sum, which is stored in the dtype or in float32 (``stored``)."""

    def make(dtype: str, m: int, n: int) -> _Made:
        x = te.placeholder((m, n), stored or dtype, "X")
        scale, shift = (te.placeholder((n,), "float32", name) for name in ("scale", "shift"))
        y = topi.nn.layer_norm(topi.cast(x, "float32"), scale, shift, [1], 1e-6)

        def call(torch: Any, v: list[Any]) -> Any:
            kind = getattr(torch, dtype)
            return torch.nn.functional.layer_norm(*_of_dtype(v, kind, n), eps=1e-6)

        def reference(torch: Any, v: list[Any]) -> Any:
            return torch.nn.functional.layer_norm(*_of_dtype(v, torch.float64, n), eps=1e-6)

        return te.create_prim_func([x, scale, shift, topi.cast(y, dtype)]), call, reference

    return make


def _of_dtype(v: list[Any], kind: Any, columns: int) -> tuple[Any, ...]:
    """Return the arguments of PyTorch's ``layer_norm`` in one dtype."""
    x, scale, shift = (tensor.to(kind) for tensor in v)
    return x, (columns,), scale, shift


def _linear(activation: str) -> Callable[..., _Made]:
    """Linear layers of encoders: bias, then nothing, GELU, or the residual sum.

    ``residual`` stores the sum in float32, ``residual_narrow`` in the dtype.
    """
    is_sum = activation.startswith("residual")

    def make(dtype: str, m: int, n: int, k: int) -> _Made:
        a, b = te.placeholder((m, k), dtype, "A"), te.placeholder((k, n), dtype, "B")
        bias = te.placeholder((n,), "float32", "bias")
        r = te.reduce_axis((0, k), "k")
        acc = te.compute(
            (m, n),
            lambda i, j: te.sum(a[i, r].astype("float32") * b[r, j].astype("float32"), axis=r),
            "acc",
        )
        total = te.compute((m, n), lambda i, j: acc[i, j] + bias[j], "total")
        params = [a, b, bias]
        if is_sum:
            rest = te.placeholder((m, n), dtype, "R")
            params.append(rest)
            out = "float32" if activation == "residual" else dtype
            c = te.compute(
                (m, n), lambda i, j: (rest[i, j].astype("float32") + total[i, j]).astype(out), "C"
            )
        else:
            half, root = tirx.const(0.5, "float32"), tirx.const(math.sqrt(0.5), "float32")

            def gelu(x: Any) -> Any:
                return x * (half + tirx.erf(x * root) * half) if activation else x

            c = te.compute((m, n), lambda i, j: gelu(total[i, j]).astype(dtype), "C")

        def call(torch: Any, x: list[Any]) -> Any:
            done = torch.addmm(x[2].to(x[0].dtype), x[0], x[1])
            if is_sum:
                return done + x[3]
            return torch.nn.functional.gelu(done) if activation else done

        def reference(torch: Any, x: list[Any]) -> Any:
            return call(torch, [tensor.double() for tensor in x])

        return te.create_prim_func([*params, c]), call, reference

    return make


def _conv2d(
    dtype: str, n: int, f: int, h: int, w: int, c: int, kh: int, kw: int, s: int, d: int, p: int
) -> _Made:
    accumulate = _ACCUMULATE[dtype]
    a = te.placeholder((n, h, w, c), dtype, "A")
    b = te.placeholder((kh, kw, c, f), dtype, "W")
    acc = topi.nn.conv2d_nhwc(a, b, s, p, d, out_dtype=accumulate)
    out = "int32" if dtype == "int8" else dtype
    y = acc if out == accumulate else te.compute(acc.shape, lambda *i: acc[i].astype(out), "C")

    def call(torch: Any, x: list[Any]) -> Any:
        # NHWC buffers as NCHW views: PyTorch's channels_last layout, without a copy.
        image, weight = x[0].permute(0, 3, 1, 2), x[1].permute(3, 2, 0, 1)
        weight = weight.contiguous(memory_format=torch.channels_last)
        found = torch.nn.functional.conv2d(image, weight, None, s, p, d)
        return found.permute(0, 2, 3, 1)

    def reference(torch: Any, x: list[Any]) -> Any:
        return call(torch, [tensor.float() for tensor in x])

    # topi marks the weight as constant, but here it is an argument.
    func = te.create_prim_func([a, b, y]).without_attr("layout_free_buffers")
    return func, call, reference


def _gemv(dtype: str, n: int, k: int) -> _Made:
    accumulate = _ACCUMULATE[dtype]
    x, w = te.placeholder((1, k), dtype, "X"), te.placeholder((n, k), dtype, "W")
    r = te.reduce_axis((0, k), "k")
    acc = te.compute(
        (1, n),
        lambda i, j: te.sum(x[i, r].astype(accumulate) * w[j, r].astype(accumulate), axis=r),
        "acc",
    )
    y = te.compute((1, n), lambda i, j: acc[i, j].astype(dtype), "Y")
    return (
        te.create_prim_func([x, w, y]),
        lambda t, v: t.matmul(v[0], v[1].t()),
        lambda t, v: t.matmul(v[0].double(), v[1].double().t()),
    )


def _gemv_i4(dtype: str, n: int, k: int) -> _Made:
    """GEMV with int4 weights, 8 per uint32 word, zero point 8, one scale per :data:`GROUP`."""
    x = te.placeholder((1, k), dtype, "X")
    words = te.placeholder((n, k // 8), "uint32", "W")
    scales = te.placeholder((n, k // GROUP), dtype, "S")

    def value(j: Any, r: Any) -> Any:
        word = words[j, r // 8] >> (r % 8 * 4).astype("uint32")
        nibble = (word & tirx.const(15, "uint32")).astype("int32") - 8
        return nibble.astype(dtype) * scales[j, r // GROUP]

    weight = te.compute((n, k), value, "weight")
    r = te.reduce_axis((0, k), "k")
    acc = te.compute(
        (1, n),
        lambda i, j: te.sum(x[i, r].astype("float32") * weight[j, r].astype("float32"), axis=r),
        "acc",
    )
    y = te.compute((1, n), lambda i, j: acc[i, j].astype(dtype), "Y")

    def dequantized(torch: Any, v: list[Any]) -> Any:
        shifts = torch.arange(0, 32, 4, device=v[1].device)
        words = v[1].view(torch.int32).to(torch.int64)[..., None]
        nibbles = ((words >> shifts) & 15).reshape(n, k) - 8
        return nibbles.to(v[0].dtype) * v[2].repeat_interleave(GROUP, 1)

    def call(torch: Any, v: list[Any]) -> Any:
        """PyTorch's int4 GEMV in bfloat16 with its own packed random weights: for latency only."""
        packed, scales = _tinygemm(torch, v, n, k)
        return torch._weight_int4pack_mm(v[0].bfloat16(), packed, GROUP, scales)

    def reference(torch: Any, v: list[Any]) -> Any:
        return torch.matmul(v[0].double(), dequantized(torch, v).double().t())

    return te.create_prim_func([x, words, scales, y]), call, reference


_packed: dict[int, Any] = {}


def _tinygemm(torch: Any, v: list[Any], n: int, k: int) -> Any:
    if id(v[1]) not in _packed:
        data = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, device=v[1].device)
        scales = torch.rand((k // GROUP, n, 2), dtype=torch.bfloat16, device=v[1].device)
        _packed[id(v[1])] = torch._convert_weight_to_int4pack(data, 8), scales
    return _packed[id(v[1])]


_KINDS: dict[str, Callable[..., _Made]] = {
    "copy": _copy,
    "add": _add,
    "sum": _sum,
    "max": _max,
    "softmax": _softmax,
    "matmul_nt": _matmul("nt"),
    "matmul_nn": _matmul("nn"),
    "matmul_tn": _matmul("tn"),
    "matmul_tt": _matmul("tt"),
    "linear": _linear(""),
    "linear_gelu": _linear("gelu"),
    "linear_residual": _linear("residual"),
    "linear_residual_narrow": _linear("residual_narrow"),
    "layer_norm": _layer_norm(""),
    "layer_norm_wide": _layer_norm("float32"),
    "conv2d": _conv2d,
    "gemv": _gemv,
    "gemv_i4": _gemv_i4,
}

"""Store a second output in the epilogue of a scheduled kernel: a function of the first output.

before -> after, a residual block whose sum is kept and also quantized for the next convolution::

    for m: for n in T.vectorized(16): Y[m, n] = max(acc[m, n] + X[m, n], 0)
    for i in T.vectorized(16): Q[i] = quantize(Y[i])

    for m: for n in T.vectorized(16): Y[m, n] = max(acc[m, n] + X[m, n], 0)
                                      Q[m, n] = quantize(Y[m, n])

The second kernel would read the first output from memory again. LLVM keeps the stored value in a
register.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import tvm_ffi
from tvm import ir, s_tir, tirx

from tvmopt.kernels.analysis import variables
from tvmopt.kernels.rewrite import block_with

_ADDRESS_OF = ir.Op.get("tirx.address_of")
# Calls that are a few vector instructions, and need no function beside the kernel.
_ARITHMETIC = frozenset(
    f"tirx.{name}"
    for name in (
        "reinterpret", "round", "nearbyint", "floor", "ceil", "trunc", "fabs", "shift_left",
        "shift_right", "bitwise_and", "bitwise_or", "bitwise_not",
    )
)  # fmt: skip


@dataclasses.dataclass(frozen=True, eq=False)
class ElementFunction:
    """An elementwise function of one tensor.

    Attributes:
        element: Stands for an element of the tensor.
        value: The element of the result.
        dtype: Dtype of the result.
        shape: Shape of both tensors.
    """

    element: tirx.Var
    value: ir.Expr
    dtype: str
    shape: tuple[int, ...]


def element_function(func: tirx.PrimFunc) -> ElementFunction | None:
    """Return what a scheduled function of one input computes; None unless it is elementwise.

    Functions that take more than arithmetic (the polynomials of exp and erf, branches, calls of
    other functions) are None, too: a separate kernel computes them in longer vectors.
    """
    if len(func.params) != 2 or not all(map(_is_static, func.params)):
        return None
    source, result = func.params
    shape = tuple(map(int, result.shape))
    blocks = _blocks(func)
    if len(blocks) != 2 or tuple(map(int, source.shape)) != shape:
        return None
    store = blocks[1].body
    if not isinstance(store, tirx.BufferStore) or not store.buffer.same_as(result):
        return None
    element = tirx.Var("element", str(source.dtype))

    def on_load(load: ir.TensorLoad) -> ir.Expr:
        is_element = load.source.same_as(source) and tvm_ffi.structural_equal(
            list(load.indices), list(store.indices), map_free_vars=False
        )
        return element if is_element else load

    value = tvm_ffi.structural_map(store.value, (ir.TensorLoad, on_load), order="post")
    alone = all(var.same_as(element) for var in variables(value))
    if not alone or str(value.ty.dtype) != str(result.dtype) or not _is_arithmetic(value):
        return None
    return ElementFunction(element, value, str(result.dtype), shape)


def _is_arithmetic(value: ir.Expr) -> bool:
    """Return whether ``value`` has no loads, and only calls of :data:`_ARITHMETIC`."""
    others: list[Any] = []

    def on_call(call: ir.Call) -> None:
        if getattr(call.op, "name", "") not in _ARITHMETIC:
            others.append(call)

    tvm_ffi.structural_walk(value, [(ir.Call, on_call), (ir.TensorLoad, others.append)])
    return not others


def with_second_output(func: tirx.PrimFunc, second: ElementFunction) -> tirx.PrimFunc | None:
    """Return ``func`` with a further output after its last one; None where it cannot store it.

    Args:
        func: A scheduled function whose last parameter is its output. Vectorised loops must store
            each element once: it must not read its output.
        second: Function of the output.
    """
    first = func.params[-1]
    if not _is_static(first) or tuple(map(int, first.shape)) != second.shape:
        return None
    if str(first.dtype) != str(second.element.ty.dtype) or not _is_stored_in_vectors(func, first):
        return None
    output = tirx.decl_buffer(list(first.shape), second.dtype, "second")

    def on_store(store: tirx.BufferStore) -> tirx.Stmt:
        if not store.buffer.same_as(first):
            return store
        stored = tirx.BufferLoad(first, store.indices)
        value = tvm_ffi.structural_map(
            second.value, (tirx.Var, lambda v: stored if v.same_as(second.element) else v),
            order="post",
        )  # fmt: skip
        return tirx.SeqStmt([store, tirx.BufferStore(output, value, store.indices)])

    def on_block(block: s_tir.SBlock) -> s_tir.SBlock:
        regions = [
            tirx.BufferRegion(output, region.region)
            for region in block.writes
            if region.source.same_as(first)
        ]
        return block_with(block, writes=[*block.writes, *regions]) if regions else block

    body = tvm_ffi.structural_map(
        func.body, [(tirx.BufferStore, on_store), (s_tir.SBlock, on_block)], order="post"
    )
    return tirx.PrimFunc([*func.params, output], body, func.ret_type, func.attrs)


def _is_stored_in_vectors(func: tirx.PrimFunc, output: tirx.Buffer) -> bool:
    """Return whether only stores in vectorised loops, and prefetches, access ``output``."""
    stores: list[tirx.BufferStore] = []
    vectors: list[tirx.BufferStore] = []
    prefetches: list[ir.Call] = []
    others: list[Any] = []  # loads, also as the operand of address_of

    def on_store(store: tirx.BufferStore) -> None:
        if store.buffer.same_as(output):
            stores.append(store)
            if str(store.value.ty.dtype) != str(output.dtype):  # a vector that is stored at a time
                others.append(store)

    def on_load(load: ir.TensorLoad) -> None:
        if load.source.same_as(output):
            others.append(load)

    def on_call(call: ir.Call) -> None:
        others.extend(argument for argument in call.args if output.same_as(argument))
        if call.op.same_as(_ADDRESS_OF) and call.args[0].source.same_as(output):
            prefetches.append(call)

    def on_block(block: s_tir.SBlock) -> None:
        others.extend(m for m in block.match_buffers if m.source.source.same_as(output))

    def on_loop(loop: tirx.For) -> None:
        if loop.kind == tirx.ForKind.VECTORIZED:
            tvm_ffi.structural_walk(loop.body, (tirx.BufferStore, vectors.append))

    tvm_ffi.structural_walk(
        func.body,
        [
            (tirx.BufferStore, on_store),
            (ir.TensorLoad, on_load),
            (ir.Call, on_call),
            (s_tir.SBlock, on_block),
            (tirx.For, on_loop),
        ],
    )
    in_vectors = sum(store.buffer.same_as(output) for store in vectors)
    return bool(stores) and in_vectors == len(stores) and len(others) == len(prefetches)


def _is_static(param: Any) -> bool:
    return bool(tirx.is_buffer_var(param)) and all(
        isinstance(extent, tirx.IntImm) for extent in param.shape
    )


def _blocks(func: tirx.PrimFunc) -> list[s_tir.SBlock]:
    """Return all blocks of a function, the root block first."""
    found: list[s_tir.SBlock] = []
    tvm_ffi.structural_walk(func.body, (s_tir.SBlock, found.append), order="pre")
    return found

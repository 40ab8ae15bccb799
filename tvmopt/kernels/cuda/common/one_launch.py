"""Horizontal fusion of scheduled kernels: independent elementwise kernels become one launch.

before -> after, kernels of 4 and 64 thread blocks::

    for b in blockIdx.x(4), t in threadIdx.x(128): A
    for b in blockIdx.x(64), t in threadIdx.x(256): B

    for b in blockIdx.x(68), t in threadIdx.x(256):
        if b < 4: (if t < 128: A)
        else: B, with b - 4

All threads of a block take the same branch. The technique is horizontal fusion of XLA (Horizontal
Loop Fusion) and of HFuse (Li et al., CGO 2022), with a range of thread blocks for each kernel.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence

import tvm_ffi
from tvm import ir, s_tir, tirx

from tvmopt.kernels.cuda.hopper.parameters import KERNEL_ATTR
from tvmopt.kernels.cuda.toolchain.dependent_launch import OVERLAPS
from tvmopt.kernels.scheduled import mark

#: Attribute of a PrimFunc whose loop nests write disjoint parts of a buffer.
DISJOINT_WRITES = "tvmopt.disjoint_writes"
_GRID, _THREAD = "blockIdx.x", "threadIdx.x"
# Scope of buffers that threads do not share, and block axes that are data-parallel.
_LOCAL, _DATA_PARALLEL = "local", 0
# Most thread blocks of a grid, and bound of 32-bit indices.
_MOST_BLOCKS = _MOST_INDEX = 2**31 - 1
# Attributes of a launch that all its members have: TVM's, and whether it uses PDL.
_KEPT_ATTRS = ("s_tir", "tirx.noalias", OVERLAPS)


def kernels_of(func: tirx.PrimFunc) -> list[tirx.For]:
    """Return the loop nests of a scheduled function that may run in one launch; empty for others.

    Each is a loop over ``blockIdx.x`` with static extents. Its threads neither share memory nor
    reduce, and no nest reads what another one writes. Nests that write the same buffer are accepted
    only if :data:`DISJOINT_WRITES` says that they write disjoint parts.
    """
    if not isinstance(func.body, s_tir.SBlockRealize) or KERNEL_ATTR in (func.attrs or {}):
        return []
    if not all(_is_static_buffer(param) for param in func.params):
        return []
    root = func.body.block
    if any(buffer.scope() != _LOCAL for buffer in root.alloc_buffers):
        return []
    body = root.body
    nests = list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]
    if not all(_is_elementwise_kernel(nest) for nest in nests):
        return []
    return nests if _are_independent(nests, DISJOINT_WRITES in (func.attrs or {})) else []


def _is_static_buffer(param: object) -> bool:
    return bool(tirx.is_buffer_var(param)) and all(
        isinstance(extent, tirx.IntImm)
        for extent in param.shape  # type: ignore[attr-defined]
    )


def _is_elementwise_kernel(nest: tirx.Stmt) -> bool:
    """Return whether ``nest`` is a loop over thread blocks in which threads work alone."""
    if not isinstance(nest, tirx.For) or _tag(nest) != _GRID or int(nest.min) != 0:
        return False
    loops: list[tirx.For] = []
    blocks: list[s_tir.SBlock] = []
    others: list[object] = []
    tvm_ffi.structural_walk(
        nest.body,
        [
            (tirx.For, loops.append),
            (s_tir.SBlock, blocks.append),
            ((tirx.AttrStmt, tirx.Evaluate, tirx.While), others.append),
        ],
    )
    return (
        not others
        and isinstance(nest.extent, tirx.IntImm)
        and all(isinstance(loop.extent, tirx.IntImm) for loop in loops)
        and all(_tag(loop) in ("", _THREAD) for loop in loops)
        and all(not block.annotations and block.init is None for block in blocks)
        and all(iv.iter_type == _DATA_PARALLEL for block in blocks for iv in block.iter_vars)
        and all(b.scope() == _LOCAL for block in blocks for b in block.alloc_buffers)
    )


def _tag(loop: tirx.For) -> str:
    """Return the thread axis that a loop is bound to; empty for other loops."""
    if loop.kind != tirx.ForKind.THREAD_BINDING:
        return ""
    return str(loop.thread_binding.thread_tag)


def _are_independent(nests: Sequence[tirx.Stmt], disjoint: bool) -> bool:
    """Return whether the nests may run in any order."""
    reads = [list(_buffers(nest, writes=False)) for nest in nests]
    writes = [list(_buffers(nest, writes=True)) for nest in nests]
    for n, written in enumerate(writes):
        for m in range(len(nests)):
            if m != n and _share(written, reads[m]):
                return False
            if m > n and not disjoint and _share(written, writes[m]):
                return False
    return True


def _share(some: Sequence[tirx.Buffer], others: Sequence[tirx.Buffer]) -> bool:
    return any(one.same_as(other) for one in some for other in others)


def _buffers(nest: tirx.Stmt, writes: bool) -> Iterator[tirx.Buffer]:
    """Yield the buffers in global memory that ``nest`` stores to, or loads from."""
    found: list[tirx.Buffer] = []
    if writes:
        kind = (tirx.BufferStore, lambda store: found.append(store.buffer))
    else:
        kind = (ir.TensorLoad, lambda load: found.append(load.source))
    tvm_ffi.structural_walk(nest, kind, order="post")
    yield from (buffer for buffer in found if buffer.scope() != _LOCAL)


def fits(nests: Sequence[tirx.For], buffers: Sequence[tirx.Buffer]) -> bool:
    """Return whether the thread blocks of ``nests`` are a grid, and their indices of 32 bits.

    TVM may write the index ``(b - first) * stride`` of a nest as ``b * stride - first * stride``.
    The nests are in order of their extents, so ``b`` is at most their number times the extent of
    this nest. Its ``stride`` times its extent is at most the size of a buffer.
    """
    sizes = [math.prod(int(extent) for extent in buffer.shape) for buffer in buffers]
    blocks = sum(int(nest.extent) for nest in nests)
    return blocks <= _MOST_BLOCKS and len(nests) * max(sizes) <= _MOST_INDEX


@dataclasses.dataclass(frozen=True)
class Member:
    """A function of a launch.

    Attributes:
        func: A scheduled function for which :func:`kernels_of` returns loop nests.
        inputs: For each of its inputs, which input of the launch it is.
    """

    func: tirx.PrimFunc
    inputs: tuple[int, ...]


def one_launch(members: Sequence[Member]) -> tirx.PrimFunc:
    """Return a function that computes all outputs of ``members`` in one kernel.

    Args:
        members: Functions that do not depend on each other, each with one output.

    Returns:
        A scheduled function. Its parameters are the inputs of the launch, then the outputs of the
        members in order.

    Raises:
        ValueError: When a member has no nests that may run in one launch, or they do not fit.
    """
    inputs: dict[int, tirx.Var] = {}
    outputs: list[tirx.Var] = []
    nests: list[tirx.For] = []
    allocated: list[tirx.Buffer] = []
    for member in members:
        func = s_tir.renew_defs(member.func)
        shared = {}
        *params, output = func.params
        for param, place in zip(params, member.inputs, strict=True):
            if place in inputs:
                shared[param] = inputs[place]
            else:
                inputs[place] = param
        found = kernels_of(func)
        if not found:
            raise ValueError("every member must be of elementwise kernels, but one is not")
        nests += [_with_buffers(nest, shared) for nest in found]
        allocated += func.body.block.alloc_buffers
        outputs.append(output)
    if not fits(nests, [*inputs.values(), *outputs]):
        raise ValueError("blocks times elements must be 32-bit integers, but are larger")
    body = _branches(nests)
    root = s_tir.SBlock([], [], [], "root", body, None, allocated)
    params = [*(inputs[place] for place in sorted(inputs)), *outputs]
    made = tirx.PrimFunc(params, s_tir.SBlockRealize([], tirx.IntImm("bool", True), root))
    attrs = [member.func.attrs or {} for member in members]
    for key, value in attrs[0].items():
        if key in _KEPT_ATTRS and all(key in other for other in attrs):
            made = made.with_attr(key, value)
    return mark(made)


def _with_buffers(stmt: tirx.Stmt, values: dict[tirx.Var, tirx.Var]) -> tirx.Stmt:
    if not values:
        return stmt
    return tvm_ffi.structural_map(stmt, (ir.Var, lambda v: values.get(v, v)), order="post")


def _branches(nests: Sequence[tirx.For]) -> tirx.For:
    """Return the loop over all thread blocks, with a branch for each nest; short nests first.

    Their blocks start first, and :func:`fits` relies on this order.
    """
    threads = max(_threads(nest) for nest in nests)
    nests = sorted(nests, key=lambda nest: int(nest.extent))
    extents = [int(nest.extent) for nest in nests]
    dtype = "int64" if any(str(n.loop_var.ty.dtype) == "int64" for n in nests) else "int32"
    at = tirx.Var("block", dtype)
    ends = [sum(extents[: n + 1]) for n in range(len(nests))]
    body: tirx.Stmt | None = None
    for nest, extent, end in reversed(list(zip(nests, extents, ends, strict=True))):
        local = (at - tirx.IntImm(dtype, end - extent)).astype(str(nest.loop_var.ty.dtype))
        value = local if end > extent else at.astype(str(nest.loop_var.ty.dtype))
        branch = _with_threads(_at(nest, value), threads)
        body = (
            branch if body is None else tirx.IfThenElse(at < tirx.IntImm(dtype, end), branch, body)
        )
    zero, total = tirx.IntImm(dtype, 0), tirx.IntImm(dtype, ends[-1])
    axis = tirx.IterVar(None, tirx.Var("", dtype), tirx.IterVar.ThreadIndex, _GRID)
    return tirx.For(at, zero, total, tirx.ForKind.THREAD_BINDING, body, axis)


def _at(nest: tirx.For, block: ir.Expr) -> tirx.Stmt:
    """Return the body of ``nest`` for the thread block ``block``."""
    return tvm_ffi.structural_map(
        nest.body, (tirx.Var, lambda v: block if v.same_as(nest.loop_var) else v), order="post"
    )


def _threads(nest: tirx.For) -> int:
    """Return the threads of a block."""
    found = [1]

    def on_loop(loop: tirx.For) -> None:
        if _tag(loop) == _THREAD:
            found.append(int(loop.extent))

    tvm_ffi.structural_walk(nest.body, (tirx.For, on_loop))
    return max(found)


def _with_threads(body: tirx.Stmt, threads: int) -> tirx.Stmt:
    """Return ``body`` for blocks of ``threads`` threads, of which the further ones do nothing."""

    def on_loop(loop: tirx.For) -> tirx.For:
        if _tag(loop) != _THREAD or int(loop.extent) == threads:
            return loop
        dtype = str(loop.loop_var.ty.dtype)
        inside = tirx.IfThenElse(loop.loop_var < loop.extent, loop.body, None)
        extent = tirx.IntImm(dtype, threads)
        return tirx.For(
            loop.loop_var, loop.min, extent, loop.kind, inside, loop.thread_binding,
            loop.annotations,
        )  # fmt: skip

    return tvm_ffi.structural_map(body, (tirx.For, on_loop), order="post")

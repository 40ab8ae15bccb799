"""Plain copy kernel: a few 16-byte vectors a thread."""

from __future__ import annotations

import dataclasses
import math

from tvm import ir, tirx
from tvm.backend.cuda.op import cuda_func_call

from tvmopt.kernels.analysis import block_facts
from tvmopt.kernels.cuda.common.inlining import one_elementwise_block
from tvmopt.kernels.cuda.elementwise.config import CopyConfig
from tvmopt.kernels.cuda.elementwise.schedule import is_flat
from tvmopt.kernels.workload import Refusal

#: Bytes of a vector.
VECTOR = 16
# Unused shared memory of a block. Blocks without any took 3 to 5 % longer on an H200 (2 MB copies,
# one after the other in a CUDA graph); the cause is unknown.
_UNUSED = 16

_SOURCE = """
__device__ __forceinline__ void {name}(const void* from, void* to, unsigned char*, int block) {{
  const int first = block * {threads} * {each} + threadIdx.x;
  const uint4* x = static_cast<const uint4*>(from) + first;
  uint4* y = static_cast<uint4*>(to) + first;
  uint4 held[{each}];
#pragma unroll
  for (int i = 0; i < {each}; ++i)
    if ({whole} || first + i * {threads} < {count}) held[i] = __ldg(x + i * {threads});
#pragma unroll
  for (int i = 0; i < {each}; ++i)
    if ({whole} || first + i * {threads} < {count}) y[i * {threads}] = held[i];
}}
"""


@dataclasses.dataclass
class CopyForm:
    """A function that copies one buffer.

    Attributes:
        source: The source buffer.
        target: The target buffer.
        vectors: Vectors of :data:`VECTOR` bytes in each.
    """

    source: tirx.Buffer
    target: tirx.Buffer
    vectors: int


def prepare_copy(func: tirx.PrimFunc) -> CopyForm | Refusal:
    """Return the copy form of ``func``, which must copy whole vectors in order."""
    found = one_elementwise_block(func)
    if isinstance(found, Refusal):
        return found
    sch, block = found
    facts, body = block_facts(sch, block), sch.get(block).body
    if not isinstance(body, tirx.BufferStore) or not isinstance(body.value, ir.TensorLoad):
        return Refusal("it computes")
    source, target = body.value.source, body.buffer
    sizes = [math.prod(int(e) for e in b.shape) * int(b.dtype.itemsize) for b in (source, target)]
    same = len(facts.reads) == 1 and facts.reads[0].strides == facts.write.strides
    if not same or not is_flat(sch, block, 1) or str(source.dtype) != str(target.dtype):
        return Refusal("its output has another order or dtype than its input")
    if sizes[0] != sizes[1] or facts.work * int(target.dtype.itemsize) != sizes[1]:
        return Refusal("its output has another size than its input")
    if sizes[0] % VECTOR or sizes[0] // VECTOR >= 2**31:
        return Refusal(f"a copy is of vectors of {VECTOR} bytes, less than 2**31")
    return CopyForm(source, target, sizes[1] // VECTOR)


NAME = "gpu_copy"


def emit(func: tirx.PrimFunc, config: CopyConfig) -> tirx.PrimFunc | Refusal:
    """Emit the kernel of the copy ``func``.

    Before -> after, with 2 vectors a thread::

        for i, j: Y[i, j] = X[i, j]

        for b in blockIdx.x, t in threadIdx.x: tvmopt_copy_...(X, Y, b)    (CUDA, generated)
    """
    form = prepare_copy(func)
    if isinstance(form, Refusal):
        return form
    threads, each = config.threads, config.vectors_per_thread
    if not 1 <= threads <= config.arch.threads_block or not 1 <= each <= 16:
        return Refusal("a block has up to 1024 threads, a thread up to 16 vectors")
    blocks = math.ceil(form.vectors / (threads * each))
    if blocks * threads * each >= 2**31:
        return Refusal("indices of vectors are of 32 bits")
    name = f"tvmopt_copy_{threads}_{each}_{form.vectors}"
    source = _SOURCE.format(
        name=name, threads=threads, each=each, count=form.vectors,
        whole=int(form.vectors % (threads * each) == 0),
    )  # fmt: skip
    at, thread = (tirx.Var(n, ir.PrimType("int32")) for n in ("block", "thread"))
    shared = tirx.decl_buffer((_UNUSED,), "uint8", "shared", scope="shared.dyn")
    call = cuda_func_call(
        name, form.source.data, form.target.data, shared.data, at, source_code=source
    )
    body: tirx.Stmt = tirx.SeqStmt([tirx.AllocBuffer(shared), tirx.Evaluate(call)])
    body = bound(thread, "threadIdx.x", threads, body)
    return func.with_body(bound(at, "blockIdx.x", blocks, body))


def bound(var: tirx.Var, tag: str, extent: int, body: tirx.Stmt) -> tirx.Stmt:
    """Bind ``var`` to the thread axis ``tag`` of size ``extent`` around ``body``."""
    axis = tirx.IterVar(ir.Range(0, extent), var, tirx.IterVar.ThreadIndex, tag)
    return tirx.AttrStmt(axis, "thread_extent", tirx.const(extent, "int32"), body)

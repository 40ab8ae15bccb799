"""Weights of four bits times a few rows by tensor cores: what multiplies costs nothing then.

Four bits become a float16 by one logic operation (see :mod:`.int4`), two at a time; what takes most
instructions after that are products and sums. A warp's tensor instruction takes 256 weights as they
come: eight a thread, of 16 rows by 16 steps of the reduction. The order of these steps is free as
long as the activation's is the same, so a thread's words need not be turned, and sums are float32.
"""

from __future__ import annotations

import math

import numpy as np
import tvm_ffi
from tvm import ir, tirx
from tvm.backend.cuda.op import cuda_func_call

from tvmopt.schedule.analysis import substitute

from .base import GpuTemplate
from .hint import GpuHint
from .int4_form import PIECE, STEP, Int4Form, prepare_int4

#: Rows of one tensor instruction.
TILE = 16
_MOST_SHARED = 48 * 1024

_SOURCE = """
#ifndef TVMOPT_INT4_STEPS
#define TVMOPT_INT4_STEPS
__device__ __forceinline__ uint4 tvmopt_load_once(const uint4* from) {{
  uint4 r;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {{%0, %1, %2, %3}}, [%4];"
               : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w) : "l"(from));
  return r;
}}
// Four bits at 0 and 16 of a register, or at 4 and 20, less an offset, as two float16.
__device__ __forceinline__ unsigned int tvmopt_even(unsigned int word, unsigned int less) {{
  unsigned int bits;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(bits) : "r"(word), "r"(0x000f000fu), "r"(0x64006400u));
  asm("sub.f16x2 %0, %1, %2;" : "=r"(bits) : "r"(bits), "r"(less));
  return bits;
}}
__device__ __forceinline__ unsigned int tvmopt_odd(unsigned int word, unsigned int less) {{
  unsigned int bits;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(bits) : "r"(word), "r"(0x00f000f0u), "r"(0x64006400u));
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(bits) : "r"(bits), "r"(0x2c002c00u), "r"(less));
  return bits;
}}
__device__ __forceinline__ unsigned int tvmopt_times(unsigned int a, unsigned int b) {{
  unsigned int r;
  asm("mul.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}}
__device__ __forceinline__ void tvmopt_mma(float* c, unsigned int a0, unsigned int a1,
                                           unsigned int a2, unsigned int a3, unsigned int b0,
                                           unsigned int b1) {{
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, "
      "{{%8, %9}}, {{%0, %1, %2, %3}};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}}
#endif
__device__ __forceinline__ float {name}(const void* x_, const void* w_, const void* s_, int block) {{
  constexpr int M = {batch}, N = {rows}, K = {depth}, G = {group}, TILES = {tiles};
  constexpr int SHARE = {share}, DEEP = {deep}, STEPS = (K + {step} - 1) / {step};
  constexpr int EACH = (STEPS + SHARE - 1) / SHARE, BLOCK = {block};
  constexpr bool SCALED = {scaled}, FINE = SCALED && G < {step}, WHOLE = K % {step} == 0;
  __shared__ float sums[SHARE * BLOCK * M];
  const uint4* x = static_cast<const uint4*>(x_);
  const uint4* w = static_cast<const uint4*>(w_);
  const half* s = static_cast<const half*>(s_);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int part = warp % SHARE, first = (warp / SHARE) * TILES * 16;
  int row[2 * TILES];
#pragma unroll
  for (int i = 0; i < 2 * TILES; ++i) {{
    const int r = block * BLOCK + first + i * 8 + g;
    row[i] = r < N ? r : N - 1;  // a row too many is computed and not stored
  }}
  const int own = M == 1 ? 0 : (g < M ? g : M - 1);
  float acc[TILES][4] = {{}};
  uint4 now[DEEP][2 * TILES], next[DEEP][2 * TILES];
  half scale[DEEP][2 * TILES], coming[DEEP][2 * TILES];
  auto load = [&](uint4 (&to)[DEEP][2 * TILES], half (&by)[DEEP][2 * TILES], int from) {{
#pragma unroll
    for (int d = 0; d < DEEP; ++d) {{
      // Past the end another step's weights are loaded, and multiplied by zeros.
      const int at = (from + d) * SHARE + part;
      const int piece = min(at * 4 + t, K / {piece} - 1);
#pragma unroll
      for (int i = 0; i < 2 * TILES; ++i) {{
        to[d][i] = tvmopt_load_once(w + static_cast<long long>(row[i]) * (K / {piece}) + piece);
        if (SCALED) by[d][i] = __ldg(s + static_cast<long long>(row[i]) * (K / G) +
                                     (FINE ? piece * {piece} / G : min(at, STEPS - 1) * {step} / G));
      }}
    }}
  }};
  load(now, scale, 0);
#pragma unroll 1
  for (int from = 0; from < EACH; from += DEEP) {{
    if (from + DEEP < EACH) load(next, coming, from + DEEP);
#pragma unroll
    for (int d = 0; d < DEEP; ++d) {{
      const int at = (from + d) * SHARE + part;
      const bool inside = (EACH % DEEP == 0 && STEPS % SHARE == 0 && WHOLE) ||
                          (from + d < EACH && at * 4 + t < K / {piece});
      const uint4* here = x + static_cast<long long>(own) * (K / 8) +
                          (inside ? (at * 4 + t) * 4 : 0);
      float sum[TILES][4] = {{}};
#pragma unroll
      for (int j = 0; j < 4; ++j) {{
        uint4 b = __ldg(here + j);
        if (!inside) b = make_uint4(0, 0, 0, 0);
        const unsigned int b0 = __byte_perm(b.x, b.z, 0x5410), b1 = __byte_perm(b.x, b.z, 0x7632);
        const unsigned int b2 = __byte_perm(b.y, b.w, 0x5410), b3 = __byte_perm(b.y, b.w, 0x7632);
#pragma unroll
        for (int i = 0; i < TILES; ++i) {{
          unsigned int a[2][4];
#pragma unroll
          for (int h = 0; h < 2; ++h) {{
            const uint4 words = now[d][2 * i + h];
            const unsigned int word = j == 0 ? words.x : j == 1 ? words.y : j == 2 ? words.z : words.w;
            a[h][0] = tvmopt_even(word, {even});
            a[h][1] = tvmopt_odd(word, {odd});
            a[h][2] = tvmopt_even(word >> 8, {even});
            a[h][3] = tvmopt_odd(word >> 8, {odd});
            if (FINE) {{
              const unsigned int one = __half_as_ushort(scale[d][2 * i + h]);
              const unsigned int both = one | (one << 16);
#pragma unroll
              for (int q = 0; q < 4; ++q) a[h][q] = tvmopt_times(a[h][q], both);
            }}
          }}
          tvmopt_mma(sum[i], a[0][0], a[1][0], a[0][1], a[1][1], b0, b1);
          tvmopt_mma(sum[i], a[0][2], a[1][2], a[0][3], a[1][3], b2, b3);
        }}
      }}
#pragma unroll
      for (int i = 0; i < TILES; ++i) {{
#pragma unroll
        for (int c = 0; c < 4; ++c) {{
          if (SCALED && !FINE) acc[i][c] += __half2float(scale[d][2 * i + c / 2]) * sum[i][c];
          else acc[i][c] += sum[i][c];
        }}
      }}
    }}
#pragma unroll
    for (int d = 0; d < DEEP; ++d) {{
#pragma unroll
      for (int i = 0; i < 2 * TILES; ++i) {{
        now[d][i] = next[d][i];
        if (SCALED) scale[d][i] = coming[d][i];
      }}
    }}
  }}
#pragma unroll
  for (int i = 0; i < TILES; ++i) {{
#pragma unroll
    for (int c = 0; c < 4; ++c) {{
      const int column = 2 * t + c % 2, r = first + i * 16 + (c / 2) * 8 + g;
      if (column < M) sums[(part * BLOCK + r) * M + column] = acc[i][c];
    }}
  }}
  __syncthreads();
  float total = 0.0f;
  if (threadIdx.x < BLOCK * M) {{
#pragma unroll
    for (int p = 0; p < SHARE; ++p)
      total += sums[(p * BLOCK + threadIdx.x % BLOCK) * M + threadIdx.x / BLOCK];
  }}
  return total;
}}
"""


class GpuInt4(GpuTemplate):
    """Warps multiply tiles of 16 rows by tensor cores, and share the reduction."""

    name = "gpu_int4"

    def apply(self, func: tirx.PrimFunc, hint: GpuHint) -> tirx.PrimFunc | None:
        """The kernel of ``func``, or None unless :func:`prepare_int4` takes it and the hint fits.

        Before -> after, with 8 warps that share 16 rows::

            for n: for k: y[n] += X[k] * ((W[n, k // 8] >> (k % 8 * 4)) & 15 - 8) * S[n, k // 128]

            for b in blockIdx.x, t in threadIdx.x:
                total = tvmopt_int4_...(X, W, S, b)    (CUDA, generated)
                if t < 16 and b * 16 + t < N: Y[b * 16 + t] = total
        """
        form = prepare_int4(func)
        if form is None or hint.arch.sm < 80 or not _fits(form, hint):
            return None
        block, warps = hint.block[0], hint.block[0] // hint.warp[0] * hint.reduce_threads
        grid = -(-form.rows // block)
        at = tirx.Var("block", ir.PrimType("int32"))
        thread = tirx.Var("thread", ir.PrimType("int32"))
        name, source = _source(form, hint)
        pointers = [form.x, form.words, form.words if form.scales is None else form.scales]
        call = cuda_func_call(
            name, *(b.data for b in pointers), at, source_code=source, return_type="float32"
        )
        total = tirx.decl_buffer((1,), "float32", "total", scope="local")
        column = at * block + tirx.floormod(thread, block)
        row = tirx.floordiv(thread, block)
        store = _stored(form, total, row, column)
        inside = tirx.all(thread < block * form.batch, column < form.rows)
        body: tirx.Stmt = tirx.SeqStmt(
            [
                tirx.AllocBuffer(total),
                tirx.BufferStore(total, call, [tirx.const(0, "int32")]),
                tirx.IfThenElse(inside, store, None),
            ]
        )
        body = _bound(thread, "threadIdx.x", 32 * warps, body)
        body = _bound(at, "blockIdx.x", grid, body)
        return func.with_body(body)


def _fits(form: Int4Form, hint: GpuHint) -> bool:
    """Whether a hint's numbers make a kernel for ``form``."""
    if len(hint.block) != 1 or len(hint.warp) != 1 or not 1 <= hint.stages <= 4:
        return False
    block, warp, share = hint.block[0], hint.warp[0], hint.reduce_threads
    if warp not in (TILE, 2 * TILE) or block % warp or share < 1:
        return False
    threads = 32 * share * block // warp
    shared = 4 * share * block * form.batch
    return threads <= 1024 and block * form.batch <= threads and shared <= _MOST_SHARED


def _source(form: Int4Form, hint: GpuHint) -> tuple[str, str]:
    numbers = {
        "batch": form.batch, "rows": form.rows, "depth": form.depth, "group": form.group,
        "tiles": hint.warp[0] // TILE, "share": hint.reduce_threads, "deep": hint.stages,
        "block": hint.block[0], "scaled": int(form.scales is not None), "offset": form.offset,
    }  # fmt: skip
    name = "tvmopt_int4_" + "_".join(str(n) for n in numbers.values())
    source = _SOURCE.format(
        name=name, step=STEP, piece=PIECE, even=_twice(1024 + form.offset),
        odd=_twice(-64 - form.offset), **numbers,
    )  # fmt: skip
    return name, source


def _twice(value: int) -> str:
    bits = int(np.float16(value).view(np.uint16))
    return f"0x{bits:04x}{bits:04x}u"


def _stored(
    form: Int4Form, total: tirx.Buffer, row: ir.Expr, column: ir.Expr
) -> tirx.BufferStore:
    """``form.store`` of the sum in ``total`` at ``row`` and ``column``."""

    def on_load(load: ir.TensorLoad) -> ir.Expr:
        if load.source.same_as(form.total):
            return total[0]
        return load

    value = tvm_ffi.structural_map(form.store.value, (ir.TensorLoad, on_load), order="post")
    places = {form.column: column.astype(str(form.column.ty.dtype))}
    if form.row is not None:
        places[form.row] = row.astype(str(form.row.ty.dtype))
    value = substitute(value, places)
    indices = [substitute(i, places) for i in form.store.indices]
    return tirx.BufferStore(form.result, value, indices)


def _bound(var: tirx.Var, tag: str, extent: int, body: tirx.Stmt) -> tirx.Stmt:
    axis = tirx.IterVar(ir.Range(0, extent), var, tirx.IterVar.ThreadIndex, tag)
    return tirx.AttrStmt(axis, "thread_extent", tirx.const(extent, "int32"), body)

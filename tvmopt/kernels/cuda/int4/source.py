"""CUDA source of the int4 GEMV kernel with tensor cores (mma.sync).

A warp takes tiles of 16 weight rows and loops over K, 256 weights a stage; cp.async keeps several
stages of its own ring in flight. A lane takes words of eight weights of a row. One lop3 turns two
of them into float16 (:mod:`.unpack`), in the order of the A fragment of ``mma.m16n8k16``: K may be
permuted freely if the activation is permuted alike, which happens once a thread block::

    word, 4 bits each, from bit 0:            w0 w1 w2 w3 w4 w5 w6 w7
    float16 pairs (low half, high half):      (w0, w4), (w1, w5), (w2, w6), (w3, w7)
    activation, in the same order:            (x0, x4), (x1, x5), (x2, x6), (x3, x7)

Weight and scales that no kernel writes are loaded before the kernel waits for the one before it
(programmatic dependent launch), so that their latency overlaps its end. Letting the next kernel
start early, and prefetching further stages into L2 before the wait, took longer on an H100.

A block may take tiles from the two halves of the weight's rows in turn (``PARTS``): its epilogue
then has both accumulators of an output element, as for gate and up of a feed-forward network.

Accumulators are float32. The scale multiplies the partial sum of its group; scales of groups
shorter than 128 multiply the weights.
"""

from __future__ import annotations

import numpy as np

from tvmopt.kernels.cuda.int4.activation import NORM_COMMON, activation_source
from tvmopt.kernels.cuda.intrinsics.async_copy import ASYNC_COPY
from tvmopt.kernels.cuda.toolchain.dependent_launch import WAIT_STATEMENT

#: Weights in 16 bytes (one lane), in 64 bytes (four lanes), and in one stage.
PIECE, STEP, STAGE = 32, 128, 256
#: Rows of one MMA (M).
TILE = 16

_COMMON = """
#ifndef TVMOPT_INT4_COMMON
#define TVMOPT_INT4_COMMON
// Four bits at 0 and 16 of a register, or at 4 and 20, less an offset, as two float16.
__device__ __forceinline__ unsigned int tvmopt_even(unsigned int word, unsigned int less) {
  unsigned int bits;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;"  // 1024 + v
      : "=r"(bits) : "r"(word), "r"(0x000f000fu), "r"(0x64006400u));
  asm("sub.f16x2 %0, %1, %2;" : "=r"(bits) : "r"(bits), "r"(less));
  return bits;
}
__device__ __forceinline__ unsigned int tvmopt_odd(unsigned int word, unsigned int less) {
  unsigned int bits;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;"  // 1024 + 16 v
      : "=r"(bits) : "r"(word), "r"(0x00f000f0u), "r"(0x64006400u));
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(bits) : "r"(bits), "r"(0x2c002c00u), "r"(less));
  return bits;
}
__device__ __forceinline__ unsigned int tvmopt_times(unsigned int a, unsigned int b) {
  unsigned int r;
  asm("mul.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
__device__ __forceinline__ void tvmopt_mma(float* c, unsigned int a0, unsigned int a1,
                                           unsigned int a2, unsigned int a3, unsigned int b0,
                                           unsigned int b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
// Steps i and i + 4 of the reduction side by side, as the weights of a word come.
__device__ __forceinline__ uint4 tvmopt_paired(uint4 x) {
  return make_uint4(__byte_perm(x.x, x.z, 0x5410), __byte_perm(x.x, x.z, 0x7632),
                    __byte_perm(x.y, x.w, 0x5410), __byte_perm(x.y, x.w, 0x7632));
}
#endif
"""

_KERNEL = """
__device__ __forceinline__ void {name}(const void* x_, const void* w_, const void* s_,
                                       const void* f_, unsigned char* shared, float* total,
                                       int block) {{
  constexpr int M = {batch}, N = {rows}, K = {depth}, G = {group}, TILES = {tiles};
  constexpr int SHARE = {share}, DEEP = {deep}, BLOCK = {block}, PARTS = {parts};
  constexpr int COLUMNS = N / PARTS, OWN = BLOCK / PARTS;  // of the output, and of the block
  constexpr int CHAINS = TILES == 1 ? 2 : 1;  // independent MMAs that hide each other's latency
  constexpr bool SCALED = {scaled}, FINE = SCALED && G < 128, X_SHARED = {x_shared};
  constexpr bool S_SHARED = {s_shared};
  constexpr int STAGES = (K + 255) / 256, EACH = (STAGES + SHARE - 1) / SHARE;
  constexpr int THREADS = BLOCK / (16 * TILES) * SHARE * 32;
  constexpr int RING = (DEEP < EACH ? DEEP : EACH) * TILES * 2048;
  constexpr int X_PITCH = STAGES * 32 + 4;  // units of 16 bytes, of which rows start 64 apart
  constexpr int GROUPS = K / G, S_PITCH = {s_pitch};
  const uint4* x = static_cast<const uint4*>(x_);
  const char* w = static_cast<const char*>(w_);
  const half* s = static_cast<const half*>(s_);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int part = warp % SHARE, first = (warp / SHARE) * TILES * 16;
  // Tiles of a block come from the parts in turn. Output column and weight row of a row r:
  auto column_of = [&](int r) {{
    return block * OWN + (PARTS == 1 ? r : r / (16 * PARTS) * 16 + r % 16);
  }};
  auto row_of = [&](int r) {{
    return (PARTS == 1 ? 0 : r / 16 % PARTS * COLUMNS) + min(column_of(r), COLUMNS - 1);
  }};
  constexpr int NEXT = PARTS == 1 ? 16 : COLUMNS;  // rows between two tiles of a warp
  const int column = column_of(first);
  const int row = column + (PARTS == 1 ? 0 : first / 16 % PARTS * COLUMNS);
  unsigned char* ring = shared + {ring_at} + warp * RING;
  const unsigned int to = static_cast<unsigned int>(__cvta_generic_to_shared(ring));
  // Lanes of a load: four rows, eight pieces of each; odd rows' halves change places.
  const int line = lane / 8, piece = lane % 8;
  const char* from = w + static_cast<long long>(row + line) * (K / 2) + piece * 16;
  auto load = [&](int turn) {{
    if (turn >= EACH) return;
    const int stage = turn * SHARE + part;
    const bool inside = stage * 8 + piece < K / 32;
#pragma unroll
    for (int i = 0; i < TILES * 4; ++i) {{
      const int r = i * 4 + line;
      tvmopt_copy16(to + (turn % DEEP) * (TILES * 2048) + r * 128 + ((piece ^ (r % 2 * 4)) * 16),
                    from + stage * 128 + (i / 4 * NEXT + i % 4 * 4) * static_cast<long long>(K / 2),
                    inside && (COLUMNS % OWN == 0 ||
                               column + (PARTS == 1 ? r : r % 16) < COLUMNS));
    }}
  }};
#pragma unroll
  for (int d = 0; d < DEEP - 1; ++d) {{
    load(d);
    if (d == 0 && S_SHARED) {{
      half* scales = reinterpret_cast<half*>(shared + {s_at});
      for (int i = threadIdx.x; i < BLOCK * (GROUPS / 2); i += THREADS) {{
        const int r = i / (GROUPS / 2), c = i % (GROUPS / 2) * 2;
        tvmopt_copy4(static_cast<unsigned int>(
                         __cvta_generic_to_shared(scales + r * S_PITCH + c)),
                     s + static_cast<long long>(row_of(r)) * GROUPS + c);
      }}
    }}
    tvmopt_commit();
  }}{activation}
  if (X_SHARED || S_SHARED) {{
    tvmopt_wait<DEEP - 2>();
    __syncthreads();
  }}
  const int own = M == 1 ? 0 : (g < M ? g : M - 1);
  const uint4* steps = reinterpret_cast<const uint4*>(shared) + own * X_PITCH + t;
  float acc[TILES][4] = {{}};
#pragma unroll 1
  for (int turn = 0; turn < EACH; ++turn) {{
    tvmopt_wait<DEEP - 2>();
    __syncwarp();  // all lanes' pieces are here, and all lanes have read the stage before
    load(turn + DEEP - 1);
    tvmopt_commit();
    const int stage = turn * SHARE + part;
    const unsigned char* here = ring + (turn % DEEP) * (TILES * 2048) + g * 128;
    const bool inside = STAGES % SHARE == 0 || stage < STAGES;
#pragma unroll {unroll}
    for (int h = 0; h < 2; ++h) {{
      uint4 words[TILES][2];
      float sum[TILES][CHAINS][4] = {{}};
#pragma unroll
      for (int i = 0; i < 2 * TILES; ++i)
        words[i / 2][i % 2] = *reinterpret_cast<const uint4*>(
            here + i * 1024 + (((h * 4 + t) ^ (g % 2 * 4)) * 16));
      half scale[TILES][2];
      if (SCALED) {{
        const int at = FINE ? (stage * 8 + h * 4 + t) * 32 / G : (stage * 2 + h) * 128 / G;
#pragma unroll
        for (int i = 0; i < 2 * TILES; ++i) {{
          const int r = first + i * 8 + g, far = row_of(r);
          const int c = K % 256 == 0 && STAGES % SHARE == 0 ? at : min(at, GROUPS - 1);
          scale[i / 2][i % 2] =
              S_SHARED ? reinterpret_cast<const half*>(shared + {s_at})[r * S_PITCH + c]
                       : __ldg(s + static_cast<long long>(far) * GROUPS + c);
        }}
      }}
#pragma unroll
      for (int j = 0; j < 4; ++j) {{
        uint4 b = make_uint4(0, 0, 0, 0);
        if (X_SHARED) {{
          if (inside) b = steps[stage * 32 + h * 16 + j * 4];
        }} else {{
          const int unit = (stage * 8 + h * 4 + t) * 4 + j;
          if (inside && (K % 256 == 0 || unit < K / 8))
            b = tvmopt_paired(__ldg(x + own * (K / 8) + unit));
        }}
#pragma unroll
        for (int i = 0; i < TILES; ++i) {{
          unsigned int a[2][4];
#pragma unroll
          for (int k = 0; k < 2; ++k) {{
            const uint4 q = words[i][k];
            const unsigned int word = j == 0 ? q.x : j == 1 ? q.y : j == 2 ? q.z : q.w;
            a[k][0] = tvmopt_even(word, {even});
            a[k][1] = tvmopt_odd(word, {odd});
            a[k][2] = tvmopt_even(word >> 8, {even});
            a[k][3] = tvmopt_odd(word >> 8, {odd});
            if (FINE) {{
              const unsigned int one = __half_as_ushort(scale[i][k]);
#pragma unroll
              for (int n = 0; n < 4; ++n) a[k][n] = tvmopt_times(a[k][n], one | (one << 16));
            }}
          }}
          tvmopt_mma(sum[i][0], a[0][0], a[1][0], a[0][1], a[1][1], b.x, b.y);
          tvmopt_mma(sum[i][CHAINS - 1], a[0][2], a[1][2], a[0][3], a[1][3], b.z, b.w);
        }}
      }}
#pragma unroll
      for (int i = 0; i < TILES; ++i) {{
#pragma unroll
        for (int c = 0; c < 4; ++c) {{
          const float both = CHAINS == 1 ? sum[i][0][c] : sum[i][0][c] + sum[i][CHAINS - 1][c];
          if (SCALED && !FINE) acc[i][c] += __half2float(scale[i][c / 2]) * both;
          else acc[i][c] += both;
        }}
      }}
    }}
  }}
  tvmopt_wait<0>();
  __syncthreads();  // the sums take the place of what was loaded
  float* sums = reinterpret_cast<float*>(shared);
#pragma unroll
  for (int i = 0; i < TILES; ++i) {{
#pragma unroll
    for (int c = 0; c < 4; ++c) {{
      const int column = 2 * t + c % 2, r = first + i * 16 + (c / 2) * 8 + g;
      if (column < M) sums[(part * M + column) * BLOCK + r] = acc[i][c];
    }}
  }}
  __syncthreads();
  if (threadIdx.x < OWN * M) {{
    const int m = threadIdx.x / OWN, c = threadIdx.x % OWN;
#pragma unroll
    for (int q = 0; q < PARTS; ++q) {{
      const int r = PARTS == 1 ? c : c / 16 * (16 * PARTS) + q * 16 + c % 16;
      total[q] = 0.0f;
#pragma unroll
      for (int p = 0; p < SHARE; ++p) total[q] += sums[(p * M + m) * BLOCK + r];
    }}
  }}
}}
"""


def int4_source(
    numbers: dict[str, int],
    offset: int,
    waits: bool = False,
    norm: tuple[str, bool, float] | None = None,
) -> tuple[str, str]:
    """Return name and source of the device function.

    The function writes the accumulators of output element ``threadIdx.x`` of the block, weight rows
    fastest, one for each part of the weight.

    Args:
        numbers: Values for the placeholders of the source, besides the name.
        offset: Zero point of the weights.
        waits: Whether the function waits for the kernel before it, after its first loads of the
            weight and before its first load of the activation.
        norm: RMSNorm of the activation, as in :func:`.activation.activation_source`.
    """
    wait = f"\n  {WAIT_STATEMENT}" if waits else ""
    text = _KERNEL.format(
        name="{name}",
        even=_twice(1024 + offset),
        odd=_twice(-64 - offset),
        activation=activation_source(wait, norm),
        **numbers,
    )
    named = [*numbers.values(), offset, *(["waits"] if waits else [])]
    if norm is not None:
        dtype, weighted, epsilon = norm
        named += ["norm", dtype, int(weighted), int(np.float32(epsilon).view(np.int32))]
    name = "_".join(["tvmopt_int4", *map(str, named)])
    common = ASYNC_COPY + _COMMON + ("" if norm is None else NORM_COMMON)
    return name, common + text.replace("{name}", name, 1)


def _twice(value: int) -> str:
    """Return the register literal with ``value`` as float16 in both halves."""
    bits = int(np.float16(value).view(np.uint16))
    return f"0x{bits:04x}{bits:04x}u"

"""CUDA source of what follows the loop over keys: the epilogues, and the split-K reduction kernel.

The reduction kernel adds up the partial outputs of all splits of the keys::

    m = max m_s,   w_s = exp2(m_s - m),   O = sum(w_s O_s) / sum(w_s l_s)
"""

from __future__ import annotations

import hashlib

from tvmopt.device import dtypes

#: Helpers of both kernels.
EXP2 = """
#ifndef TVMOPT_ATTENTION_EXP2
#define TVMOPT_ATTENTION_EXP2
__device__ __forceinline__ float tvmopt_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// What exponents are relative to: the maximum, or 0 of a row without keys.
__device__ __forceinline__ float tvmopt_shift(float top) {
  return top == __int_as_float((int)0xff800000u) ? 0.0f : top;
}
#endif
"""

_BY_DTYPE = """
#ifndef TVMOPT_ATTENTION_{ptx}
#define TVMOPT_ATTENTION_{ptx}
__device__ __forceinline__ void tvmopt_mma_{ptx}(float* c, const unsigned int* a, unsigned int b0,
                                                 unsigned int b1) {{
  asm("mma.sync.aligned.m16n8k16.row.col.f32.{ptx}.{ptx}.f32 {{%0, %1, %2, %3}}, "
      "{{%4, %5, %6, %7}}, {{%8, %9}}, {{%0, %1, %2, %3}};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}}
__device__ __forceinline__ unsigned int tvmopt_pair_{ptx}(float low, float high) {{
  unsigned int r;
  asm("cvt.rn.{ptx}x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}}
#endif
"""

#: One key warp, one split: round in registers, transpose by shared memory, store 16 bytes a lane.
STORE = """
  // The output takes the place of the warp's own rows of Q, which other warps may still load where
  // no loop has waited for them.
  if (begin == end) __syncthreads();
  __syncwarp();
#pragma unroll
  for (int m = 0; m < ROW_TILES; ++m)
#pragma unroll
    for (int h = 0; h < 2; ++h) {{
      const float by = sum[m][h] == 0.0f ? 0.0f : 1.0f / sum[m][h];
#pragma unroll
      for (int n = 0; n < V_PIECES; ++n)
        *reinterpret_cast<unsigned int*>(shared + t * 4 + tvmopt_swizzled<Q_PIECES>(
            row_warp * WARP_ROWS + m * 16 + h * 8 + g, n)) =
            tvmopt_pair_{ptx}(o[m][n][2 * h] * by, o[m][n][2 * h + 1] * by);
    }}
  __syncwarp();
  for (int n = lane; n < WARP_ROWS * (DV / 8); n += 32) {{
    const int line = row_warp * WARP_ROWS + n / (DV / 8), piece = n % (DV / 8);
    const int row = first_row + line;
    if (row < ROWS)
      *reinterpret_cast<uint4*>(
          static_cast<unsigned short*>(out_) + batch * {out_batch}LL + piece * 8 +
          (kv_head * SHARED + row % SHARED) * {out_head}LL + row / SHARED * {out_query}LL) =
          *reinterpret_cast<const uint4*>(shared + tvmopt_swizzled<Q_PIECES>(line, piece));
  }}"""

#: Several key warps or splits: add up the outputs of the key warps in shared memory.
ADD_UP = """
  constexpr int PITCH = V_PIECES * 8 + 8;  // floats of a row
  float* sums = reinterpret_cast<float*>(shared);
  float* stats = sums + KEY_WARPS * TILE_ROWS * PITCH;
  __syncthreads();  // the outputs take the place of Q, K and V
#pragma unroll
  for (int m = 0; m < ROW_TILES; ++m)
#pragma unroll
    for (int h = 0; h < 2; ++h) {{
      const int line = key_warp * TILE_ROWS + row_warp * WARP_ROWS + m * 16 + h * 8 + g;
#pragma unroll
      for (int n = 0; n < V_PIECES; ++n)
        *reinterpret_cast<float2*>(sums + line * PITCH + n * 8 + t * 2) =
            make_float2(o[m][n][2 * h], o[m][n][2 * h + 1]);
      if (t == 0) {{
        stats[2 * line] = top[m][h] * FACTOR;
        stats[2 * line + 1] = sum[m][h];
      }}
    }}
  __syncthreads();
  for (int n = thread; n < TILE_ROWS * (DV / 4); n += THREADS) {{
    const int line = n / (DV / 4), column = n % (DV / 4) * 4, row = first_row + line;
    if (row >= ROWS) continue;
    float most = lowest, whole = 0.0f;
#pragma unroll
    for (int w = 0; w < KEY_WARPS; ++w) most = fmaxf(most, stats[2 * (w * TILE_ROWS + line)]);
    const float shift = tvmopt_shift(most);
    float4 all = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int w = 0; w < KEY_WARPS; ++w) {{
      const int at = w * TILE_ROWS + line;
      const float weight = tvmopt_exp2(stats[2 * at] - shift);
      const float4 one = *reinterpret_cast<const float4*>(sums + at * PITCH + column);
      whole += weight * stats[2 * at + 1];
      all.x += weight * one.x;
      all.y += weight * one.y;
      all.z += weight * one.z;
      all.w += weight * one.w;
    }}
    if (SPLITS > 1) {{
      const long long at = (static_cast<long long>(split) * BATCHED + head) * ROWS + row;
      *reinterpret_cast<float4*>(static_cast<float*>(partial_) + at * DV + column) = all;
      if (column == 0) *(static_cast<float2*>(stats_) + at) = make_float2(most, whole);
    }} else {{
      const float by = whole == 0.0f ? 0.0f : 1.0f / whole;
      *reinterpret_cast<uint2*>(
          static_cast<unsigned short*>(out_) + batch * {out_batch}LL + column +
          (kv_head * SHARED + row % SHARED) * {out_head}LL + row / SHARED * {out_query}LL) =
          make_uint2(tvmopt_pair_{ptx}(all.x * by, all.y * by),
                     tvmopt_pair_{ptx}(all.z * by, all.w * by));
    }}
  }}"""

_REDUCTION = """
__device__ __forceinline__ void {name}(const void* partial_, const void* stats_, void* out_) {{
  constexpr int SPLITS = {splits}, BATCHED = {batch} * {kv_heads}, SHARED = {shared_heads};
  constexpr int ROWS = {queries} * SHARED, DV = {value_size};
  const int item = blockIdx.x * {threads} + threadIdx.x, column = item % (DV / 4) * 4;
  const int line = item / (DV / 4), head = line / ROWS, row = line % ROWS;
  if (line >= BATCHED * ROWS) return;
  const float2* stats = static_cast<const float2*>(stats_) + line;
  const float* from =
      static_cast<const float*>(partial_) + static_cast<long long>(line) * DV + column;
  float most = __int_as_float((int)0xff800000u), whole = 0.0f;
#pragma unroll 16
  for (int s = 0; s < SPLITS; ++s) most = fmaxf(most, stats[s * (BATCHED * ROWS)].x);
  const float shift = tvmopt_shift(most);
  float4 all = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 16
  for (int s = 0; s < SPLITS; ++s) {{
    const float2 one = stats[s * (BATCHED * ROWS)];
    const float4 part = *reinterpret_cast<const float4*>(
        from + static_cast<long long>(s) * (BATCHED * ROWS * DV));
    const float weight = tvmopt_exp2(one.x - shift);
    whole += weight * one.y;
    all.x += weight * part.x;
    all.y += weight * part.y;
    all.z += weight * part.z;
    all.w += weight * part.w;
  }}
  const float by = whole == 0.0f ? 0.0f : 1.0f / whole;
  *reinterpret_cast<uint2*>(static_cast<unsigned short*>(out_) + head / {kv_heads} * {out_batch}LL +
      (head % {kv_heads} * SHARED + row % SHARED) * {out_head}LL + row / SHARED * {out_query}LL +
      column) = make_uint2(tvmopt_pair_{ptx}(all.x * by, all.y * by),
                           tvmopt_pair_{ptx}(all.z * by, all.w * by));
}}
"""


def reduction_source(fields: dict[str, object], dtype: str) -> tuple[str, str]:
    """Return name and source of the device function that reduces four columns of a row a thread.

    Its arguments are pointers: partial outputs, their statistics, the output.
    """
    text = _REDUCTION.format(name="{name}", ptx=dtypes.dtype(dtype).ptx, **fields)
    return named(text, EXP2 + by_dtype(dtype))


def by_dtype(dtype: str) -> str:
    """Return the source of the MMA, and of rounding, of a dtype."""
    return _BY_DTYPE.format(ptx=dtypes.dtype(dtype).ptx)


def named(text: str, before: str) -> tuple[str, str]:
    """Return a name that only this function has, and its source with ``before`` in front."""
    name = f"tvmopt_attention_{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    return name, before + text.replace("{name}", name)

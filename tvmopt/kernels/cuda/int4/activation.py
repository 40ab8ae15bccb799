"""CUDA source with which the int4 GEMV stages its activation in shared memory.

With RMSNorm, each thread block computes the mean of squares of all rows. A thread loads units of
eight elements; warps add up their squares by shuffles and exchange the sums through the padding of
the rows in shared memory. The factors are constants: they are loaded before the kernel waits for
the one before it. Up to four units of a thread stay in registers; more are loaded again.
"""

from __future__ import annotations

import numpy as np

#: Most warps of a thread block with RMSNorm: their sums fit into the padding of a row, 64 bytes.
MOST_NORM_WARPS = 16

#: Device functions of :data:`_NORM`.
NORM_COMMON = """
#ifndef TVMOPT_INT4_NORM
#define TVMOPT_INT4_NORM
// Eight elements from place 8 * unit on, as float32.
__device__ __forceinline__ void tvmopt_eight(float* to, const float* from, int unit) {
  const float4* at = reinterpret_cast<const float4*>(from) + 2 * unit;
  const float4 a = __ldg(at), b = __ldg(at + 1);
  to[0] = a.x; to[1] = a.y; to[2] = a.z; to[3] = a.w;
  to[4] = b.x; to[5] = b.y; to[6] = b.z; to[7] = b.w;
}
__device__ __forceinline__ void tvmopt_eight(float* to, const half* from, int unit) {
  const uint4 all = __ldg(reinterpret_cast<const uint4*>(from) + unit);
  const half* each = reinterpret_cast<const half*>(&all);
#pragma unroll
  for (int e = 0; e < 8; ++e) to[e] = __half2float(each[e]);
}
#endif
"""

_PLAIN = """
  if (X_SHARED) {
    uint4* steps = reinterpret_cast<uint4*>(shared);
    for (int i = threadIdx.x; i < M * STAGES * 32; i += THREADS) {
      const int m = i / (STAGES * 32), unit = i % (STAGES * 32);
      uint4 v = make_uint4(0, 0, 0, 0);
      if (K % 256 == 0 || unit < K / 8) v = tvmopt_paired(__ldg(x + m * (K / 8) + unit));
      steps[m * X_PITCH + unit / 16 * 16 + unit % 4 * 4 + unit / 4 % 4] = v;
    }
  }"""

_FACTORS = """
  constexpr int UNITS = (STAGES * 32 + THREADS - 1) / THREADS;  // of a thread, in a row
  constexpr bool KEPT = M * UNITS <= 4;
  const float* factors = static_cast<const float*>(f_);
  float factor[KEPT ? UNITS : 1][8];
#pragma unroll
  for (int u = 0; u < (KEPT ? UNITS : 1); ++u) {
    const int unit = threadIdx.x + u * THREADS;
#pragma unroll
    for (int e = 0; e < 8; ++e) factor[u][e] = 1.0f;
    if (WEIGHTED && KEPT && unit < K / 8) tvmopt_eight(factor[u], factors, unit);
  }"""

_NORM = """
  const auto* rows = static_cast<const X*>(x_);
  uint4* normed = reinterpret_cast<uint4*>(shared);
  float value[KEPT ? M * UNITS : 1][8];
#pragma unroll (KEPT ? M : 1)
  for (int m = 0; m < M; ++m) {
    float sum = 0.0f;
#pragma unroll (KEPT ? UNITS : 1)
    for (int u = 0; u < UNITS; ++u) {
      const int unit = threadIdx.x + u * THREADS;
      float* v = value[KEPT ? m * UNITS + u : 0];
      if (unit < K / 8) {
        tvmopt_eight(v, rows + m * K, unit);
#pragma unroll
        for (int e = 0; e < 8; ++e) sum += v[e] * v[e];
      }
    }
#pragma unroll
    for (int other = 16; other > 0; other /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, other);
    if (lane == 0) reinterpret_cast<float*>(normed + m * X_PITCH + STAGES * 32)[warp] = sum;
  }
  __syncthreads();
#pragma unroll (KEPT ? M : 1)
  for (int m = 0; m < M; ++m) {
    const float* sums = reinterpret_cast<const float*>(normed + m * X_PITCH + STAGES * 32);
    float sum = 0.0f;
#pragma unroll
    for (int other = 0; other < THREADS / 32; ++other) sum += sums[other];
    const float scale = 1.0f / sqrtf(sum / static_cast<float>(K) + EPSILON);
#pragma unroll (KEPT ? UNITS : 1)
    for (int u = 0; u < UNITS; ++u) {
      const int unit = threadIdx.x + u * THREADS;
      float* v = value[KEPT ? m * UNITS + u : 0];
      float* f = factor[KEPT ? u : 0];
      uint4 all = make_uint4(0, 0, 0, 0);
      if (unit < K / 8) {
        if (!KEPT) tvmopt_eight(v, rows + m * K, unit);
        if (!KEPT && WEIGHTED) tvmopt_eight(f, factors, unit);
        half* each = reinterpret_cast<half*>(&all);
#pragma unroll
        for (int e = 0; e < 8; ++e) each[e] = __float2half(v[e] * scale * f[e]);
      }
      if (unit < STAGES * 32)
        normed[m * X_PITCH + unit / 16 * 16 + unit % 4 * 4 + unit / 4 % 4] = tvmopt_paired(all);
    }
  }"""


def activation_source(wait: str, norm: tuple[str, bool, float] | None) -> str:
    """Return the statements that stage the activation.

    Args:
        wait: Statement that waits for the kernel before, or an empty text.
        norm: CUDA type of the activation before RMSNorm, whether RMSNorm has factors, and its
            epsilon; None without RMSNorm.
    """
    if norm is None:
        return wait + _PLAIN
    dtype, weighted, epsilon = norm
    constants = f"""
  using X = {dtype};
  constexpr bool WEIGHTED = {str(weighted).lower()};
  constexpr float EPSILON = {float(np.float32(epsilon))!r}f;"""
    return constants + _FACTORS + wait + _NORM

"""CUDA source of fused attention with mma.sync (FlashAttention-2, arXiv 2307.08691).

A row of a tile is one query of one head of Q. Heads that share a head of K and V are neighbouring
rows, so that a few queries of many heads fill a tile::

    row = query * (heads / kv_heads) + head % (heads / kv_heads)

Warps of a thread block::

    row warps     each has 16 or 32 rows of the tile
    key warps     each has a slice of every block of keys, and its own softmax; their outputs are
                  added up in shared memory in the end

For each block of keys, a warp computes S = Q K^T, masks, the online softmax, and O += P V, all in
registers. cp.async fills a ring of stages, each one block of K and V, several blocks ahead.

Fragments of ``mma.m16n8k16`` (:mod:`tvmopt.kernels.cuda.intrinsics.mma`): the accumulators of two
neighbouring blocks of eight keys are the A fragment of O += P V, so P needs no shuffle.

With several splits, a thread block has a part of the keys (flash-decoding). It writes its output,
not divided by the row sums, and for each row the maximum and the sum, for the reduction kernel
(:mod:`.output`).
"""

from __future__ import annotations

from tvmopt.device import dtypes
from tvmopt.kernels.cuda.intrinsics.async_copy import ASYNC_COPY
from tvmopt.kernels.cuda.mma.attention.output import ADD_UP, EXP2, STORE, by_dtype, named

_COMMON = """
#ifndef TVMOPT_ATTENTION_COMMON
#define TVMOPT_ATTENTION_COMMON
// Byte offset of 16 bytes of a row, swizzled so that eight rows use different banks.
template <int pieces>
__device__ __forceinline__ int tvmopt_swizzled(int row, int piece) {
  constexpr int g = pieces % 8 == 0 ? 8 : pieces % 4 == 0 ? 4 : 2;
  return (row * pieces + (piece ^ (row / (8 / g) % g))) * 16;
}
// The address that is an even number of pieces behind ``from``, an address of piece 0 or 1.
template <int pieces>
__device__ __forceinline__ unsigned int tvmopt_piece(unsigned int from, int piece) {
  constexpr int g = pieces % 8 == 0 ? 8 : pieces % 4 == 0 ? 4 : 2;
  return (from ^ (piece % g * 16)) + piece / g * g * 16;
}
__device__ __forceinline__ void tvmopt_ldmatrix(unsigned int* r, unsigned int from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(from) : "memory");
}
__device__ __forceinline__ void tvmopt_ldmatrix_trans(unsigned int* r, unsigned int from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(from) : "memory");
}
#endif
"""

_KERNEL = """
__device__ __forceinline__ void {name}(const void* q_, const void* k_, const void* v_,
                                       const void* mask_, void* out_, void* partial_, void* stats_,
                                       void* shared_) {{
  constexpr int ROW_WARPS = {row_warps}, ROW_TILES = {row_tiles}, KEY_WARPS = {key_warps};
  constexpr int TILE_KEYS = {tile_keys}, STAGES = {stages}, SPLITS = {splits};
  constexpr bool Q_REGISTERS = {query_registers};
  constexpr int KV_HEADS = {kv_heads}, BATCHED = {batch} * KV_HEADS, SHARED = {shared_heads};
  constexpr int QUERIES = {queries}, KEYS = {keys}, ROWS = QUERIES * SHARED;
  constexpr int D = {head_size}, DV = {value_size};
  constexpr bool CAUSAL = {causal}, MASKED = {masked}, ADDITIVE = {additive};
  constexpr int OFFSET = {offset};
  constexpr int THREADS = 32 * ROW_WARPS * KEY_WARPS, WARP_KEYS = TILE_KEYS / KEY_WARPS;
  constexpr int WARP_ROWS = 16 * ROW_TILES, TILE_ROWS = WARP_ROWS * ROW_WARPS;
  constexpr int TILES = (ROWS + TILE_ROWS - 1) / TILE_ROWS;
  // Units of 16 bytes of a row in shared memory: a multiple of the depth of an MMA.
  constexpr int PIECES = (D + 15) / 16 * 2, V_PIECES = (DV + 15) / 16 * 2;
  constexpr int Q_PIECES = PIECES > V_PIECES ? PIECES : V_PIECES;
  constexpr int K_BYTES = TILE_KEYS * PIECES * 16, STAGE = K_BYTES + TILE_KEYS * V_PIECES * 16;
  constexpr int RING = TILE_ROWS * Q_PIECES * 16;
  constexpr float LOG2_E = 1.4426950408889634f, FACTOR = {factor};
  const unsigned short* q = static_cast<const unsigned short*>(q_);
  const unsigned short* k = static_cast<const unsigned short*>(k_);
  const unsigned short* v = static_cast<const unsigned short*>(v_);
  unsigned char* shared = static_cast<unsigned char*>(shared_);
  const unsigned int memory = static_cast<unsigned int>(__cvta_generic_to_shared(shared));
  const float lowest = __int_as_float((int)0xff800000u);
  const int thread = threadIdx.x, lane = thread % 32, g = lane / 4, t = lane % 4;
  const int row_warp = thread / 32 % ROW_WARPS, key_warp = thread / 32 / ROW_WARPS;

  // Which tile of rows, of which head of K and V, and which part of the keys.
  int tile, head;
  const int split = blockIdx.x % SPLITS, number = blockIdx.x / SPLITS;
  if (CAUSAL) {{  // the longest tiles of a group of heads first
    constexpr int GROUP = {group};
    const int group = number / (GROUP * TILES), within = number % (GROUP * TILES);
    const int count = min(GROUP, BATCHED - group * GROUP);
    tile = TILES - 1 - within / count;
    head = group * GROUP + within % count;
  }} else {{
    tile = number % TILES;
    head = number / TILES;
  }}
  const int batch = head / KV_HEADS, kv_head = head % KV_HEADS, first_row = tile * TILE_ROWS;
  k += batch * {k_batch}LL + kv_head * {k_head}LL;
  v += batch * {v_batch}LL + kv_head * {v_head}LL;
  int blocks = (KEYS + TILE_KEYS - 1) / TILE_KEYS;
  if (CAUSAL) {{
    const int last = (min(first_row + TILE_ROWS, ROWS) - 1) / SHARED;
    blocks = (min(max(last + OFFSET + 1, 0), KEYS) + TILE_KEYS - 1) / TILE_KEYS;
  }}
  const int begin = static_cast<int>(static_cast<long long>(blocks) * split / SPLITS);
  const int end = static_cast<int>(static_cast<long long>(blocks) * (split + 1) / SPLITS);

  // Bounds need no other address: a copy of no bytes reads nothing.
  auto load = [&](int block) {{
    const unsigned int to = memory + RING + (block - begin) % STAGES * STAGE;
    const unsigned short* keys = k + block * (TILE_KEYS * {k_key}LL);
    const unsigned short* values = v + block * (TILE_KEYS * {v_key}LL);
    const int left = KEYS - block * TILE_KEYS;
#pragma unroll
    for (int i = 0; i < (TILE_KEYS * PIECES + THREADS - 1) / THREADS; ++i) {{
      const int n = i * THREADS + thread;
      const int key = THREADS % PIECES ? n / PIECES : i * (THREADS / PIECES) + thread / PIECES;
      const int piece = THREADS % PIECES ? n % PIECES : thread % PIECES;
      if (TILE_KEYS * PIECES % THREADS == 0 || n < TILE_KEYS * PIECES)
        tvmopt_copy16(to + tvmopt_swizzled<PIECES>(key, piece), keys + key * {k_key}LL + piece * 8,
                      (KEYS % TILE_KEYS == 0 || key < left) && (D % 16 == 0 || piece < D / 8));
    }}
#pragma unroll
    for (int i = 0; i < (TILE_KEYS * V_PIECES + THREADS - 1) / THREADS; ++i) {{
      const int n = i * THREADS + thread;
      const int key = THREADS % V_PIECES ? n / V_PIECES
                                         : i * (THREADS / V_PIECES) + thread / V_PIECES;
      const int piece = THREADS % V_PIECES ? n % V_PIECES : thread % V_PIECES;
      if (TILE_KEYS * V_PIECES % THREADS == 0 || n < TILE_KEYS * V_PIECES)
        tvmopt_copy16(to + K_BYTES + tvmopt_swizzled<V_PIECES>(key, piece),
                      values + key * {v_key}LL + piece * 8,
                      (KEYS % TILE_KEYS == 0 || key < left) && (DV % 16 == 0 || piece < DV / 8));
    }}
  }};

  for (int n = thread; n < TILE_ROWS * PIECES; n += THREADS) {{
    const int piece = n % PIECES, row = first_row + n / PIECES;
    const bool inside = row < ROWS && (D % 16 == 0 || piece < D / 8);
    const long long from = batch * {q_batch}LL + (kv_head * SHARED + row % SHARED) * {q_head}LL +
                           row / SHARED * {q_query}LL + piece * 8;
    tvmopt_copy16(memory + tvmopt_swizzled<Q_PIECES>(n / PIECES, piece), q + from, inside);
  }}
#pragma unroll
  for (int n = 0; n < STAGES - 1; ++n) {{
    if (begin + n < end) load(begin + n);
    tvmopt_commit();
  }}

  // Rows 8 h + g of each tile of 16: maximum, own part of the sum, last key that it sees.
  float top[ROW_TILES][2], sum[ROW_TILES][2], o[ROW_TILES][V_PIECES][4];
  int bound[ROW_TILES][2];
  const {mask_type}* mask[ROW_TILES][2];
#pragma unroll
  for (int m = 0; m < ROW_TILES; ++m) {{
#pragma unroll
    for (int h = 0; h < 2; ++h) {{
      const int row = min(first_row + row_warp * WARP_ROWS + m * 16 + h * 8 + g, ROWS - 1);
      top[m][h] = lowest;
      sum[m][h] = 0.0f;
      bound[m][h] = CAUSAL ? min(KEYS - 1, row / SHARED + OFFSET) : KEYS - 1;
      if (MASKED)
        mask[m][h] = static_cast<const {mask_type}*>(mask_) + batch * {mask_batch} +
                     (kv_head * SHARED + row % SHARED) * {mask_head} + row / SHARED * {mask_query};
    }}
#pragma unroll
    for (int n = 0; n < V_PIECES; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) o[m][n][e] = 0.0f;
  }}
  // Where ldmatrix of a lane begins in Q, and in K and V of a stage.
  const unsigned int q_lane =
      memory + tvmopt_swizzled<Q_PIECES>(row_warp * WARP_ROWS + lane % 16, lane / 16);
  const unsigned int k_lane = tvmopt_swizzled<PIECES>(
      key_warp * WARP_KEYS + lane % 8 + lane / 16 * 8, lane / 8 % 2);
  const unsigned int v_lane =
      tvmopt_swizzled<V_PIECES>(key_warp * WARP_KEYS + lane % 16, lane / 16);
  unsigned int held[Q_REGISTERS ? ROW_TILES : 1][Q_REGISTERS ? PIECES / 2 : 1][4];

#pragma unroll 1
  for (int block = begin; block < end; ++block) {{
    tvmopt_wait<STAGES - 2>();
    __syncthreads();  // this stage is full, and all warps have read the one before
    if (block + STAGES - 1 < end) load(block + STAGES - 1);
    tvmopt_commit();
    const unsigned int stage = memory + RING + (block - begin) % STAGES * STAGE;
    const unsigned int keys = stage + k_lane, values = stage + K_BYTES + v_lane;
    if (Q_REGISTERS && block == begin) {{
#pragma unroll
      for (int m = 0; m < (Q_REGISTERS ? ROW_TILES : 0); ++m)
#pragma unroll
        for (int i = 0; i < PIECES / 2; ++i)
          tvmopt_ldmatrix(held[m][i],
                          tvmopt_piece<Q_PIECES>(q_lane, 2 * i) + m * (16 * 16 * Q_PIECES));
    }}
    float s[ROW_TILES][WARP_KEYS / 8][4] = {{}};
#pragma unroll
    for (int i = 0; i < PIECES / 2; ++i) {{
      unsigned int a[ROW_TILES][4], b[4];
#pragma unroll
      for (int m = 0; m < ROW_TILES; ++m) {{
        if (Q_REGISTERS) {{
#pragma unroll
          for (int e = 0; e < 4; ++e) a[m][e] = held[Q_REGISTERS ? m : 0][Q_REGISTERS ? i : 0][e];
        }} else {{
          tvmopt_ldmatrix(a[m], tvmopt_piece<Q_PIECES>(q_lane, 2 * i) + m * (16 * 16 * Q_PIECES));
        }}
      }}
#pragma unroll
      for (int n = 0; n < WARP_KEYS / 16; ++n) {{
        tvmopt_ldmatrix(b, tvmopt_piece<PIECES>(keys, 2 * i) + n * (16 * 16 * PIECES));
#pragma unroll
        for (int m = 0; m < ROW_TILES; ++m) {{
          tvmopt_mma_{ptx}(s[m][2 * n], a[m], b[0], b[1]);
          tvmopt_mma_{ptx}(s[m][2 * n + 1], a[m], b[2], b[3]);
        }}
      }}
    }}

    const int first = block * TILE_KEYS + key_warp * WARP_KEYS + 2 * t;
    if (MASKED) {{
#pragma unroll
      for (int m = 0; m < ROW_TILES; ++m)
#pragma unroll
        for (int n = 0; n < WARP_KEYS / 8; ++n)
#pragma unroll
          for (int e = 0; e < 4; ++e) {{
            const {mask_type} one = __ldg(mask[m][e / 2] + min(first + n * 8 + e % 2, KEYS - 1));
            if (ADDITIVE) {{  // the lowest float times log2(e) stays finite
              const float added = {mask_value};
              s[m][n][e] = s[m][n][e] * {scale} +
                           (added == lowest ? lowest : fmaxf(added, -2.3e38f)) * LOG2_E;
            }} else if (!one) {{
              s[m][n][e] = lowest;
            }}
          }}
    }}
    const bool partly = (KEYS % TILE_KEYS != 0 && (block + 1) * TILE_KEYS > KEYS) ||
        (CAUSAL && (block + 1) * TILE_KEYS - 1 > first_row / SHARED + OFFSET);
    if (partly) {{
#pragma unroll
      for (int m = 0; m < ROW_TILES; ++m)
#pragma unroll
        for (int n = 0; n < WARP_KEYS / 8; ++n)
#pragma unroll
          for (int e = 0; e < 4; ++e)
            if (first + n * 8 + e % 2 > bound[m][e / 2]) s[m][n][e] = lowest;
    }}

#pragma unroll
    for (int m = 0; m < ROW_TILES; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {{
        float most = fmaxf(s[m][0][2 * h], s[m][0][2 * h + 1]);
#pragma unroll
        for (int n = 1; n < WARP_KEYS / 8; ++n)
          most = fmaxf(most, fmaxf(s[m][n][2 * h], s[m][n][2 * h + 1]));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
        most = fmaxf(most, top[m][h]);
        const float shift = tvmopt_shift(most) * FACTOR;
        const float alpha = tvmopt_exp2(top[m][h] * FACTOR - shift);
        top[m][h] = most;
        float total = 0.0f;
#pragma unroll
        for (int n = 0; n < WARP_KEYS / 8; ++n)
#pragma unroll
          for (int e = 2 * h; e < 2 * h + 2; ++e) {{
            s[m][n][e] = tvmopt_exp2(s[m][n][e] * FACTOR - shift);
            total += s[m][n][e];
          }}
        sum[m][h] = sum[m][h] * alpha + total;
#pragma unroll
        for (int n = 0; n < V_PIECES; ++n) {{
          o[m][n][2 * h] *= alpha;
          o[m][n][2 * h + 1] *= alpha;
        }}
      }}

#pragma unroll
    for (int i = 0; i < WARP_KEYS / 16; ++i) {{
      unsigned int a[ROW_TILES][4], b[4];
#pragma unroll
      for (int m = 0; m < ROW_TILES; ++m)
#pragma unroll
        for (int e = 0; e < 4; ++e) {{
          const float* two = s[m][2 * i + e / 2] + e % 2 * 2;
          a[m][e] = tvmopt_pair_{ptx}(two[0], two[1]);
        }}
#pragma unroll
      for (int n = 0; n < V_PIECES / 2; ++n) {{
        tvmopt_ldmatrix_trans(b, tvmopt_piece<V_PIECES>(values, 2 * n) + i * (16 * 16 * V_PIECES));
#pragma unroll
        for (int m = 0; m < ROW_TILES; ++m) {{
          tvmopt_mma_{ptx}(o[m][2 * n], a[m], b[0], b[1]);
          tvmopt_mma_{ptx}(o[m][2 * n + 1], a[m], b[2], b[3]);
        }}
      }}
    }}
  }}
  tvmopt_wait<0>();
#pragma unroll
  for (int m = 0; m < ROW_TILES; ++m)
#pragma unroll
    for (int h = 0; h < 2; ++h) {{
      sum[m][h] += __shfl_xor_sync(0xffffffffu, sum[m][h], 1);
      sum[m][h] += __shfl_xor_sync(0xffffffffu, sum[m][h], 2);
    }}
{store}
}}
"""


def attention_source(fields: dict[str, object], dtype: str) -> tuple[str, str]:
    """Return name and source of the device function of a thread block.

    Its arguments are pointers: Q, K, V, the mask, the output, partial outputs and their statistics
    (any pointer where there is one split), shared memory.

    Args:
        fields: Values of the placeholders, besides names and dtype.
        dtype: Of the operands.
    """
    ptx = dtypes.dtype(dtype).ptx
    several = fields["key_warps"] != 1 or fields["splits"] != 1
    store = (ADD_UP if several else STORE).format(ptx=ptx, **fields)
    text = _KERNEL.format(name="{name}", ptx=ptx, store=store, **fields)
    return named(text, ASYNC_COPY + EXP2 + _COMMON + by_dtype(dtype))

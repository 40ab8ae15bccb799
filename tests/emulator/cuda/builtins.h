// Built-ins of CUDA's headers: thread indices, barriers, warp shuffles.
#pragma once
#include "tensor_cores.h"

#define threadIdx (emu::self->index)
#define blockIdx (emu::self->block->index)
#define blockDim (emu::machine.block_size)
#define gridDim (emu::machine.grid)
#define __launch_bounds__(...)
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __grid_constant__
#define __restrict__
#define __align__(n) alignas(n)
#define CUDART_INF_F INFINITY
#define CUDART_NAN_F NAN
#define __CUDA_ARCH__ 900
#define __CUDACC_VER_MAJOR__ 13
#define __CUDACC_VER_MINOR__ 0

inline void __syncthreads() { emu::bar_sync_all(); }
inline void __syncwarp(unsigned mask = 0xffffffffu) { emu::exchange(0, mask); }
inline unsigned __activemask() { return 0xffffffffu; }
template <class T>
inline T emu_shuffled(unsigned mask, T value, unsigned from) {
  return emu::given_by<T>(emu::exchange(value, mask), from);
}
inline unsigned emu_lane() { return emu::self->number % emu::kWarp; }
template <class T>
inline T __shfl_sync(unsigned mask, T value, unsigned from, unsigned width = 32) {
  return emu_shuffled(mask, value, (emu_lane() & ~(width - 1)) | (from & (width - 1)));
}
template <class T>
inline T __shfl_xor_sync(unsigned mask, T value, unsigned other, unsigned width = 32) {
  const unsigned lane = emu_lane(), from = lane ^ other;
  return emu_shuffled(mask, value, from / width == lane / width ? from : lane);
}
template <class T>
inline T __shfl_down_sync(unsigned mask, T value, unsigned by, unsigned width = 32) {
  const unsigned lane = emu_lane(), from = lane + by;
  return emu_shuffled(mask, value, from / width == lane / width ? from : lane);
}
template <class T>
inline T __shfl_up_sync(unsigned mask, T value, unsigned by, unsigned width = 32) {
  const unsigned lane = emu_lane();
  return emu_shuffled(mask, value, lane % width >= by ? lane - by : lane);
}
inline bool __any_sync(unsigned mask, bool given) {
  emu::Slots slots = emu::exchange(given, mask);
  bool any = false;
  for (unsigned lane = 0; lane < emu::kWarp; ++lane) {
    if (mask >> lane & 1) any |= emu::given_by<bool>(slots, lane);
  }
  return any;
}
template <class T>
inline T __ldg(const T* from) {
  emu::check_previous_kernel_ended(from);
  return *from;
}
inline uint32_t __cvta_generic_to_shared(const void* place) { return emu::address_of(place); }

// Shared memory of a cluster: addresses, barriers in memory, copies by the copy engine (TMA).
#pragma once
#include <initializer_list>

#include "machine.h"

struct alignas(64) CUtensorMap { unsigned char opaque[128]; };

namespace emu {
// An address is an offset in the calling thread's block, or in the block of a rank of its cluster.
constexpr unsigned kRank = 24;
uint32_t address_of(const void* place);  // of what lies in the calling thread's block
unsigned char* memory_of(Block& block, uint32_t address, unsigned bytes);
unsigned char* memory_at(uint32_t address, unsigned bytes);
uint32_t mapped(uint32_t address, uint32_t rank);
void* dynamic_shared();
// Where a variable of the block lies, by its number in the source.
void* variable(int number, unsigned bytes, unsigned alignment);
template <class T>
inline T& shared_variable(int number, unsigned alignment) {
  return *static_cast<T*>(variable(number, sizeof(T), alignment));
}
// Where the byte at ``offset`` lies: 16-byte chunks are exchanged within rows of 16 << mode.
inline uint32_t swizzled(uint32_t offset, unsigned mode) {
  return offset ^ (offset >> 7 & ((1u << mode) - 1)) << 4;
}

void init_barrier(uint32_t address, uint32_t count);
void arrive(uint32_t address, uint32_t count = 1);
void arrive_expecting(uint32_t address, uint32_t bytes);
void wait_barrier(uint32_t address, uint32_t phase);
void cluster_arrive();
void cluster_wait();

// Copies of an area of a tensor; ``blocks`` are a bit a block of the cluster, or none for one.
void load_area(uint32_t to, const void* map, std::initializer_list<int> start, uint32_t bar,
               unsigned blocks = 0);
void store_area(const void* map, std::initializer_list<int> start, uint32_t from);
// Copies of 4, 8 or 16 bytes by threads; of them ``given`` are read and the rest is zeros.
void copy_async(uint32_t to, const void* from, unsigned bytes, unsigned given);
void store_bytes(uint32_t to, const void* values, unsigned bytes);
template <class T>
inline void store(uint32_t to, std::initializer_list<T> values) {
  store_bytes(to, values.begin(), values.size() * sizeof(T));
}
}  // namespace emu

// Shared memory of a cluster: addresses, mbarriers, TMA and cp.async.
#pragma once
#include <initializer_list>

#include "machine.h"

struct alignas(64) CUtensorMap { unsigned char opaque[128]; };

namespace emu {
// An address is an offset in the calling thread's block, or in the block of a rank of its cluster.
constexpr unsigned kRank = 24;
uint32_t address_of(const void* place);  // of a place in the calling thread's block
unsigned char* memory_of(Block& block, uint32_t address, unsigned bytes);
unsigned char* memory_at(uint32_t address, unsigned bytes);
uint32_t mapa(uint32_t address, uint32_t rank);
void* dynamic_shared();
// Address of a static shared variable, by its number in the source.
void* variable(int number, unsigned bytes, unsigned alignment);
template <class T>
inline T& shared_variable(int number, unsigned alignment) {
  return *static_cast<T*>(variable(number, sizeof(T), alignment));
}
// Swizzled address of the byte at ``offset``: 16-byte chunks permuted within rows of 16 << mode.
inline uint32_t swizzled(uint32_t offset, unsigned mode) {
  return offset ^ (offset >> 7 & ((1u << mode) - 1)) << 4;
}

void mbarrier_init(uint32_t address, uint32_t count);
void mbarrier_arrive(uint32_t address, uint32_t count = 1);
void mbarrier_arrive_expect_tx(uint32_t address, uint32_t bytes);
void mbarrier_wait(uint32_t address, uint32_t phase);
void cluster_arrive();
void cluster_wait();

// TMA copies of a box of a tensor; ``blocks`` is the multicast mask, or 0 for a single block.
void tma_load(uint32_t to, const void* map, std::initializer_list<int> start, uint32_t bar,
               unsigned blocks = 0);
void tma_store(const void* map, std::initializer_list<int> start, uint32_t from);
// cp.async of 4, 8 or 16 bytes; ``given`` bytes are read, and the rest is zero-filled.
void cp_async(uint32_t to, const void* from, unsigned bytes, unsigned given);
void store_bytes(uint32_t to, const void* values, unsigned bytes);
template <class T>
inline void store(uint32_t to, std::initializer_list<T> values) {
  store_bytes(to, values.begin(), values.size() * sizeof(T));
}
}  // namespace emu

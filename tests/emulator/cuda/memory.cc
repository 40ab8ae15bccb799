// Addresses, barriers in memory, copies.
#include "memory.h"

namespace emu {
// The part of an address that says where in a block it is.
uint32_t within(uint32_t address) { return address & ((1u << kRank) - 1); }
Block& block_of(uint32_t address) {
  const unsigned rank = address >> kRank;
  if (rank > machine.blocks.size()) fault("there is no block %u in the cluster", rank - 1);
  return rank ? machine.blocks[rank - 1] : *self->block;
}
unsigned char* memory_of(Block& block, uint32_t address, unsigned bytes) {
  const uint32_t offset = within(address) - kWindow;
  if (block.live == 0) fault("shared memory of block %u of a cluster is used after its end", block.rank);
  if (offset > block.size || bytes > block.size - offset) {
    fault("%u bytes at %u are outside of the %u of shared memory", bytes, offset, block.size);
  }
  return block.shared.get() + offset;
}
unsigned char* memory_at(uint32_t address, unsigned bytes) {
  return memory_of(block_of(address), address, bytes);
}
uint32_t mapped(uint32_t address, uint32_t rank) {
  return within(address) | (rank + 1) << kRank;
}
void* dynamic_shared() { return self->block->shared.get(); }
// A barrier in memory: 64 bits, so that what else is written there is seen.
struct MemoryBarrier {
  uint64_t wanted : 12, pending : 12, phase : 1, mark : 7;
  int64_t bytes : 32;
};
static_assert(sizeof(MemoryBarrier) == 8);
constexpr unsigned kMark = 0x5a;
MemoryBarrier& barrier_of(Block& block, uint32_t address) {
  if (address % 8) fault("a barrier must be at a multiple of 8 bytes, but is at %u", address);
  auto& found = *reinterpret_cast<MemoryBarrier*>(memory_of(block, address, 8));
  if (found.mark != kMark) fault("the barrier at %u was not initialised, or written over", address);
  return found;
}
MemoryBarrier& barrier_at(uint32_t address) { return barrier_of(block_of(address), address); }
void next_phase(MemoryBarrier& barrier) {
  if (barrier.pending || barrier.bytes) return;
  barrier.phase ^= 1;
  barrier.pending = barrier.wanted;
}
void init_barrier(uint32_t address, uint32_t count) {
  auto& made = *reinterpret_cast<MemoryBarrier*>(memory_at(address, 8));
  made = MemoryBarrier{count, count, 0, kMark, 0};
}
void arrive(uint32_t address, uint32_t count) {
  MemoryBarrier& barrier = barrier_at(address);
  if (barrier.pending < count) fault("more threads arrive at a barrier than it waits for");
  barrier.pending -= count;
  next_phase(barrier);
}
void arrive_expecting(uint32_t address, uint32_t bytes) {
  barrier_at(address).bytes += bytes;
  arrive(address);
}
void landed(Block& block, uint32_t address, uint32_t bytes) {
  MemoryBarrier& barrier = barrier_of(block, address);
  barrier.bytes -= bytes;
  next_phase(barrier);
}
void wait_barrier(uint32_t address, uint32_t phase) {
  const MemoryBarrier& barrier = barrier_at(address);
  wait("a barrier in shared memory", [&barrier, phase] { return barrier.phase != (phase & 1); });
}
void cluster_arrive() {
  if (self->cluster_arrived) fault("a thread arrives twice at the barrier of its cluster");
  self->cluster_arrived = true;
  self->cluster_generation = machine.cluster.generation;
  machine.cluster.arrive(machine.blocks.size() * machine.blocks[0].threads.size());
}
void cluster_wait() {
  if (!self->cluster_arrived) fault("a thread waits at its cluster's barrier without arriving");
  self->cluster_arrived = false;
  const unsigned mine = self->cluster_generation;
  wait("its cluster", [mine] { return machine.cluster.generation != mine; });
}

// What cuTensorMapEncodeTiled is told; written by tensor_map.py.
struct TensorMap {
  uint32_t mark;
  uint8_t rank, element, swizzle, fill;
  uint64_t base, extents[5], strides[4];
  uint32_t box[5];
  uint8_t steps[5];
};
static_assert(sizeof(TensorMap) <= sizeof(CUtensorMap));
constexpr uint32_t kMapMark = 0x50414d54;

const TensorMap& map_of(const void* map) {
  const auto& found = *static_cast<const TensorMap*>(map);
  if (found.mark != kMapMark) fault("a copy by the copy engine needs a tensor map");
  return found;
}
struct Area {  // of a tensor, copied by one instruction; the map is the kernel's own copy
  TensorMap map;
  std::array<int64_t, 5> start{};

  unsigned elements(unsigned axis) const { return (map.box[axis] + map.steps[axis] - 1) / map.steps[axis]; }
  unsigned bytes() const {
    unsigned count = map.element;
    for (unsigned axis = 0; axis < map.rank; ++axis) count *= elements(axis);
    return count;
  }
  // Calls ``act`` with where each element is in shared memory, from the box's start, and in the
  // tensor, or with nullptr where that is outside.
  template <class Act>
  void each(uint32_t from, const Act& act) const {
    std::array<unsigned, 5> at{};
    const unsigned total = bytes() / map.element;
    for (unsigned n = 0; n < total; ++n) {
      unsigned char* place = reinterpret_cast<unsigned char*>(map.base);
      for (unsigned axis = 0; axis < map.rank && place; ++axis) {
        const int64_t index = start[axis] + static_cast<int64_t>(at[axis]) * map.steps[axis];
        if (index < 0 || index >= static_cast<int64_t>(map.extents[axis])) place = nullptr;
        else place += index * (axis ? map.strides[axis - 1] : map.element);
      }
      act(swizzled(from + n * map.element, map.swizzle), place);
      for (unsigned axis = 0; axis < map.rank && ++at[axis] == elements(axis); ++axis) at[axis] = 0;
    }
  }
};
Area area_of(const void* map, std::initializer_list<int> start, uint32_t address) {
  Area made{map_of(map)};
  if (start.size() != made.map.rank) fault("a copy must have the rank of its map, %u", made.map.rank);
  std::copy(start.begin(), start.end(), made.start.begin());
  const unsigned whole = made.map.swizzle ? 128u : 16u;
  if (address % whole) fault("a copy must be at a multiple of %u bytes, but is at %u", whole, address);
  return made;
}
void load_area(uint32_t to, const void* map, std::initializer_list<int> start, uint32_t bar,
               unsigned blocks) {
  check_follows();
  const Area area = area_of(map, start, to);
  const unsigned target = blocks ? blocks : 1u << block_of(to).rank;
  begin([=] {
    for (Block& block : machine.blocks) {
      if (!(target >> block.rank & 1)) continue;
      const uint32_t from = within(to);
      memory_of(block, from, area.bytes());
      area.each(from, [&](uint32_t at, const unsigned char* place) {
        unsigned char* put = memory_of(block, at, area.map.element);
        if (place) std::memcpy(put, place, area.map.element);
        else std::memset(put, 0, area.map.element);
      });
      const bool remote = !blocks && bar >> kRank;
      landed(remote ? machine.blocks[(bar >> kRank) - 1] : block, bar, area.bytes());
    }
  }, true);
}
void store_area(const void* map, std::initializer_list<int> start, uint32_t from) {
  const Area area = area_of(map, start, from);
  Block& block = block_of(from);
  area.each(from, [&](uint32_t at, const unsigned char* place) {
    const auto found = block.writers.find(at / 16);
    if (place && found != block.writers.end()) {
      fault("a copy reads what thread %u wrote without a fence", found->second);
    }
  });
  self->bulk.open.push_back(begin([=, &block] {
    area.each(within(from), [&](uint32_t at, unsigned char* place) {
      if (place) std::memcpy(place, memory_of(block, at, area.map.element), area.map.element);
    });
  }, false));
}

void copy_async(uint32_t to, const void* from, unsigned bytes, unsigned given) {
  check_follows();
  if (to % bytes) fault("a copy of %u bytes must be aligned, but is at %u", bytes, to);
  if (given && reinterpret_cast<uintptr_t>(from) % bytes) fault("a copy reads what is not aligned");
  unsigned char* put = memory_at(to, bytes);
  self->copies.open.push_back(begin([=] {
    std::memset(put, 0, bytes);
    std::memcpy(put, from, std::min(given, bytes));
  }, false));
}
void store_bytes(uint32_t to, const void* values, unsigned bytes) {
  if (to % bytes) fault("a store of a vector must be aligned, but is at %u", to);
  std::memcpy(memory_at(to, bytes), values, bytes);
}
void* variable(int number, unsigned bytes, unsigned alignment) {
  Block& block = *self->block;
  auto [found, fresh] = block.variables.try_emplace(number, 0u);
  if (fresh) {
    found->second = (block.used + alignment - 1) / alignment * alignment;
    block.used = found->second + bytes;
    if (block.used > block.size) fault("a block's variables take more than %u bytes", block.size);
  }
  return block.shared.get() + found->second;
}
uint32_t address_of(const void* place) {
  const Block& block = *self->block;
  const auto offset = static_cast<const unsigned char*>(place) - block.shared.get();
  if (offset < 0 || offset > block.size) {
    fault("the address %td is not in the %u bytes of shared memory of its block", offset, block.size);
  }
  return static_cast<uint32_t>(offset) + kWindow;
}
}  // namespace emu

// Addresses, mbarriers, copies.
#include "memory.h"

namespace emu {
// The part of an address that is the offset in its block.
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
uint32_t mapa(uint32_t address, uint32_t rank) {
  return within(address) | (rank + 1) << kRank;
}
void* dynamic_shared() { return self->block->shared.get(); }
// An mbarrier of 64 bits, with a mark to detect other writes to it.
struct Mbarrier {
  uint64_t wanted : 12, pending : 12, phase : 1, mark : 7;
  int64_t bytes : 32;
};
static_assert(sizeof(Mbarrier) == 8);
constexpr unsigned kMark = 0x5a;
Mbarrier& barrier_of(Block& block, uint32_t address) {
  if (address % 8) fault("an mbarrier must be at a multiple of 8 bytes, but is at %u", address);
  auto& found = *reinterpret_cast<Mbarrier*>(memory_of(block, address, 8));
  if (found.mark != kMark) fault("the mbarrier at %u is not initialised, or was overwritten", address);
  return found;
}
Mbarrier& barrier_at(uint32_t address) { return barrier_of(block_of(address), address); }
void next_phase(Mbarrier& barrier) {
  if (barrier.pending || barrier.bytes) return;
  barrier.phase ^= 1;
  barrier.pending = barrier.wanted;
}
void mbarrier_init(uint32_t address, uint32_t count) {
  auto& made = *reinterpret_cast<Mbarrier*>(memory_at(address, 8));
  made = Mbarrier{count, count, 0, kMark, 0};
}
void mbarrier_arrive(uint32_t address, uint32_t count) {
  Mbarrier& barrier = barrier_at(address);
  if (barrier.pending < count) fault("more threads arrive at an mbarrier than it expects");
  barrier.pending -= count;
  next_phase(barrier);
}
void mbarrier_arrive_expect_tx(uint32_t address, uint32_t bytes) {
  barrier_at(address).bytes += bytes;
  mbarrier_arrive(address);
}
void landed(Block& block, uint32_t address, uint32_t bytes) {
  Mbarrier& barrier = barrier_of(block, address);
  barrier.bytes -= bytes;
  next_phase(barrier);
}
void mbarrier_wait(uint32_t address, uint32_t phase) {
  const Mbarrier& barrier = barrier_at(address);
  wait("an mbarrier", [&barrier, phase] { return barrier.phase != (phase & 1); });
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

// Arguments of cuTensorMapEncodeTiled, written by tensor_map.py.
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
  if (found.mark != kMapMark) fault("a TMA copy needs a tensor map");
  return found;
}
struct Box {  // box of a tensor, copied by one TMA instruction; the map is a copy
  TensorMap map;
  std::array<int64_t, 5> start{};

  unsigned elements(unsigned axis) const { return (map.box[axis] + map.steps[axis] - 1) / map.steps[axis]; }
  unsigned bytes() const {
    unsigned count = map.element;
    for (unsigned axis = 0; axis < map.rank; ++axis) count *= elements(axis);
    return count;
  }
  // Calls ``act`` with the address of each element in shared memory, and in the tensor (nullptr
  // out of bounds).
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
Box box_of(const void* map, std::initializer_list<int> start, uint32_t address) {
  Box made{map_of(map)};
  if (start.size() != made.map.rank) fault("a copy must have the rank of its map, %u", made.map.rank);
  std::copy(start.begin(), start.end(), made.start.begin());
  const unsigned whole = made.map.swizzle ? 128u : 16u;
  if (address % whole) fault("a copy must be at a multiple of %u bytes, but is at %u", whole, address);
  return made;
}
void tma_load(uint32_t to, const void* map, std::initializer_list<int> start, uint32_t bar,
               unsigned blocks) {
  check_previous_kernel_ended();
  const Box box = box_of(map, start, to);
  const unsigned target = blocks ? blocks : 1u << block_of(to).rank;
  begin([=] {
    for (Block& block : machine.blocks) {
      if (!(target >> block.rank & 1)) continue;
      const uint32_t from = within(to);
      memory_of(block, from, box.bytes());
      box.each(from, [&](uint32_t at, const unsigned char* place) {
        unsigned char* put = memory_of(block, at, box.map.element);
        if (place) std::memcpy(put, place, box.map.element);
        else std::memset(put, 0, box.map.element);
      });
      const bool remote = !blocks && bar >> kRank;
      landed(remote ? machine.blocks[(bar >> kRank) - 1] : block, bar, box.bytes());
    }
  }, true);
}
void tma_store(const void* map, std::initializer_list<int> start, uint32_t from) {
  const Box box = box_of(map, start, from);
  Block& block = block_of(from);
  box.each(from, [&](uint32_t at, const unsigned char* place) {
    const auto found = block.writers.find(at / 16);
    if (place && found != block.writers.end()) {
      fault("a TMA store reads what thread %u wrote without a proxy fence", found->second);
    }
  });
  self->bulk.open.push_back(begin([=, &block] {
    box.each(within(from), [&](uint32_t at, unsigned char* place) {
      if (place) std::memcpy(place, memory_of(block, at, box.map.element), box.map.element);
    });
  }, false));
}

void cp_async(uint32_t to, const void* from, unsigned bytes, unsigned given) {
  if (given) check_previous_kernel_ended(from);
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

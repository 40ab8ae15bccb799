// A streaming multiprocessor on a CPU: the threads of a cluster of blocks, one running at a time.
//
// A thread runs until it must wait; then another one does, in an order drawn anew each round. What
// the hardware does beside the threads (copies, products of warpgroups) is put off, or done at once:
// early, late or by chance, all of which a right kernel must bear.
#pragma once
#include <setjmp.h>

#include <array>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "numbers.h"

struct dim3 { unsigned x = 1, y = 1, z = 1; };

namespace emu {
struct Fault : std::runtime_error { using std::runtime_error::runtime_error; };
[[noreturn]] void fault(const char* form, ...) __attribute__((format(printf, 1, 2)));

constexpr unsigned kWarp = 32, kWarpgroup = 128;
// A block's shared memory begins here; what lies below is the system's.
constexpr unsigned kWindow = 1024;
enum class When { early, late, chance };

struct Meeting {  // threads wait for each other; the last to arrive lets them go on
  unsigned arrived = 0, generation = 0;

  void arrive(unsigned wanted) {
    ++arrived;
    go_on_at(wanted);
  }
  void go_on_at(unsigned wanted) {
    if (arrived != wanted) return;
    arrived = 0;
    ++generation;
  }
};
struct Barrier : Meeting {  // of some threads of a block, or all that still run
  unsigned wanted = 0;
  bool everyone = false;
};
struct Exchange : Meeting {  // of the lanes of a warp
  alignas(16) unsigned char slots[2][kWarp][64];
};
struct Product {  // one wgmma, of which each thread brings its registers
  std::array<void*, kWarpgroup> registers{};
  unsigned arrived = 0;
  std::function<void(const std::array<void*, kWarpgroup>&)> compute;
  std::array<uint64_t, 3> told{};
};
struct Warpgroup {
  std::vector<Product> products;
  size_t computed = 0;
};
struct Deferred {  // a copy under way
  std::function<void()> act;
  bool done = false;
};
using Copy = std::shared_ptr<Deferred>;
struct Groups {  // of copies that one thread has begun
  std::vector<std::vector<Copy>> closed;
  std::vector<Copy> open;
};

struct Freed { void operator()(unsigned char* memory) const { std::free(memory); } };
using Bytes = std::unique_ptr<unsigned char, Freed>;
struct Block;
struct Thread {
  Block* block = nullptr;
  unsigned number = 0;
  dim3 index{};
  jmp_buf where;
  bool started = false, ended = false, cluster_arrived = false;
  bool follows = false;  // it has waited for the kernel before
  bool (*test)(const void*) = nullptr;
  const void* object = nullptr;
  const char* waits_for = "";
  unsigned cluster_generation = 0;
  Groups copies, bulk;
  std::vector<size_t> products;  // of its warpgroup's, how many there were at each commit
  size_t begun = 0;
  std::vector<uint32_t> unfenced;  // rows of 16 bytes that it wrote since its last fence
};
struct Block {
  dim3 index{};
  unsigned rank = 0, live = 0, size = 0, used = 0;
  Bytes shared;
  std::array<Barrier, 16> barriers{};
  std::vector<Exchange> warps;
  std::vector<Warpgroup> warpgroups;
  std::map<int, unsigned> variables;
  std::map<uint32_t, unsigned> writers;  // of rows that the copy engine may not see yet
  std::vector<Thread> threads;
};
struct Machine {
  std::vector<Block> blocks;  // of one cluster
  Meeting cluster;
  std::vector<Copy> under_way;
  std::mt19937 chance{0};
  When when = When::late;
  dim3 grid{}, block_size{}, cluster_size{};
  bool overlaps = false;  // the kernel may begin before the one before has ended
  unsigned dynamic = 0, fixed = 0;  // bytes of shared memory: asked for at the launch, declared
  jmp_buf scheduler;
  std::string failure;
  std::function<void()> kernel;
  unsigned char* stacks = nullptr;
  size_t stack_count = 0;

  void run_cluster();
};
extern Machine machine;
extern Thread* self;

bool by_chance();
void yield();
// The thread goes on when ``test`` holds.
template <class Test>
inline void wait(const char* what, const Test& test) {
  if (test() && !by_chance()) return;
  self->test = [](const void* object) { return (*static_cast<const Test*>(object))(); };
  self->object = &test;
  self->waits_for = what;
  yield();
  self->test = nullptr;
}

void meet(unsigned number, unsigned threads);  // at a barrier of the block
void meet_all(unsigned number = 0);            // with all that still run
// What every lane of the calling thread's warp gives, by lane; all of ``mask`` must call.
using Slots = unsigned char (*)[64];
Slots exchange_bytes(const void* value, size_t bytes, unsigned mask);
template <class T>
inline Slots exchange(const T& value, unsigned mask = 0xffffffffu) {
  static_assert(sizeof(T) <= 64);
  return exchange_bytes(&value, sizeof(T), mask);
}
template <class T>
inline const T& given_by(Slots slots, unsigned lane) {
  return *reinterpret_cast<const T*>(slots[lane]);
}
// A copy begins: done at once, or put off. One that signals a barrier in memory ends at the latest
// when no thread can go on without it; any other when a thread waits for it.
Copy begin(std::function<void()> act, bool signals);
void close_group(Groups& groups);
// Waits until no more than ``left`` of the groups that were closed last are under way.
void wait_groups(Groups& groups, size_t left);
void fence();   // what the thread wrote is seen by the copy engine
void follow();  // the kernel before has ended
void check_follows();
}  // namespace emu

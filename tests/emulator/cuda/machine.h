// A streaming multiprocessor on a CPU: the threads of a cluster of blocks, one running at a time.
//
// A thread runs until it must wait; then another thread runs, in an order drawn anew each round.
// Asynchronous operations (cp.async, TMA, wgmma) complete early, late or at random times. A right
// kernel computes the same under all three.
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
// Shared memory of a block begins at this address; CUDA reserves the addresses below.
constexpr unsigned kWindow = 1024;
enum class When { early, late, chance };

struct Rendezvous {  // threads wait for each other; the last arrival releases them
  unsigned arrived = 0, generation = 0;

  void arrive(unsigned wanted) {
    ++arrived;
    release_at(wanted);
  }
  void release_at(unsigned wanted) {
    if (arrived != wanted) return;
    arrived = 0;
    ++generation;
  }
};
struct Barrier : Rendezvous {  // bar.sync of some threads of a block, or of all running threads
  unsigned wanted = 0;
  bool everyone = false;
};
struct Exchange : Rendezvous {  // warp shuffle
  alignas(16) unsigned char slots[2][kWarp][64];
};
struct Wgmma {  // one wgmma; each thread of the warpgroup adds its accumulator registers
  std::array<void*, kWarpgroup> registers{};
  std::array<std::array<uint32_t, 4>, kWarpgroup> fragments{};  // of A in registers
  unsigned arrived = 0;
  std::function<void(const Wgmma&)> compute;
  std::array<uint64_t, 3> told{};
};
struct Warpgroup {
  std::vector<Wgmma> wgmmas;
  size_t computed = 0;
};
struct Deferred {  // an asynchronous copy
  std::function<void()> act;
  bool done = false;
};
using Copy = std::shared_ptr<Deferred>;
struct Groups {  // bulk or cp.async groups of one thread
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
  bool follows = false;  // after griddepcontrol.wait
  bool (*test)(const void*) = nullptr;
  const void* object = nullptr;
  const char* waits_for = "";
  unsigned cluster_generation = 0;
  Groups copies, bulk;
  std::vector<size_t> wgmmas;  // number of wgmmas of its warpgroup at each commit
  size_t begun = 0;
  std::vector<uint32_t> unfenced;  // 16-byte rows written since its last proxy fence
};
struct Block {
  dim3 index{};
  unsigned rank = 0, live = 0, size = 0, used = 0;
  Bytes shared;
  std::array<Barrier, 16> barriers{};
  std::vector<Exchange> warps;
  std::vector<Warpgroup> warpgroups;
  std::map<int, unsigned> variables;
  std::map<uint32_t, unsigned> writers;  // writers of 16-byte rows not yet visible to TMA
  std::vector<Thread> threads;
};
struct Machine {
  std::vector<Block> blocks;  // the thread blocks of one cluster
  Rendezvous cluster;
  std::vector<Copy> in_flight;
  std::mt19937 chance{0};
  When when = When::late;
  dim3 grid{}, block_size{}, cluster_size{};
  bool overlaps = false;  // launched with PDL: it may begin before the previous kernel ends
  std::vector<std::pair<uintptr_t, uintptr_t>> constants;  // ends of arrays that no kernel writes
  unsigned dynamic = 0, fixed = 0;  // bytes of dynamic and static shared memory
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
// Suspends the thread until ``test`` holds.
template <class Test>
inline void wait(const char* what, const Test& test) {
  if (test() && !by_chance()) return;
  self->test = [](const void* object) { return (*static_cast<const Test*>(object))(); };
  self->object = &test;
  self->waits_for = what;
  yield();
  self->test = nullptr;
}

void bar_sync(unsigned number, unsigned threads);  // bar.sync number, threads
void bar_sync_all(unsigned number = 0);            // bar.sync of all running threads
void bar_arrive(unsigned number, unsigned threads);  // bar.arrive: bar.sync without waiting
// Values of all lanes of the calling warp, by lane; all lanes of ``mask`` must call.
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
// Begins an asynchronous copy, which completes at once or later. A copy that signals an mbarrier
// completes at the latest when no thread can run; another one when a thread waits for its group.
Copy begin(std::function<void()> act, bool signals);
void commit_group(Groups& groups);
// Waits until at most the ``left`` last committed groups are in flight.
void wait_groups(Groups& groups, size_t left);
void fence_proxy_async();   // makes writes of the thread visible to TMA
void griddepcontrol_wait();  // waits for the previous kernel
// Faults before the wait for the previous kernel, except on arrays that no kernel writes.
void check_previous_kernel_ended(const void* from = nullptr);
}  // namespace emu

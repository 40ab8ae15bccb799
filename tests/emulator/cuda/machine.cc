// The threads of a cluster, their barriers, and asynchronous operations.
#include "machine.h"

#include <sys/mman.h>
#include <ucontext.h>

#include <cstdarg>
#include <cstdio>

namespace emu {
constexpr size_t kStack = 256 << 10;
Machine machine;
Thread* self = nullptr;

float half_values[65536];
const bool half_values_are_there = [] {
  for (unsigned b = 0; b < 65536; ++b) {
    const int exponent = b >> 10 & 31, rest = b & 1023;
    float v = exponent ? std::ldexp(1024.0f + rest, exponent - 25) : std::ldexp(rest, -24);
    if (exponent == 31) v = rest ? NAN : INFINITY;
    half_values[b] = b >> 15 ? -v : v;
  }
  return true;
}();

void fault(const char* form, ...) {
  char text[400];
  va_list arguments;
  va_start(arguments, form);
  std::vsnprintf(text, sizeof(text), form, arguments);
  va_end(arguments);
  throw Fault(text);
}

bool by_chance() { return machine.when == When::chance && machine.chance() % 4 == 0; }

void yield() {
  Thread* me = self;
  if (_setjmp(me->where) == 0) _longjmp(machine.scheduler, 1);
}
Barrier& arrived_at(unsigned number, unsigned wanted, bool everyone, unsigned& generation) {
  if (number >= 16) fault("a barrier must be one of 16, but is %u", number);
  Barrier& barrier = self->block->barriers[number];
  if (barrier.arrived && (barrier.wanted != wanted && !(barrier.everyone && everyone))) {
    fault("threads arrive at one barrier for %u and for %u threads", barrier.wanted, wanted);
  }
  barrier.wanted = wanted;
  barrier.everyone = everyone;
  generation = barrier.generation;
  barrier.arrive(wanted);
  return barrier;
}
void arrive_and_wait(const char* what, unsigned number, unsigned wanted, bool everyone) {
  unsigned mine = 0;
  const Barrier& barrier = arrived_at(number, wanted, everyone, mine);
  wait(what, [&barrier, mine] { return barrier.generation != mine; });
}
void bar_arrive(unsigned number, unsigned threads) {
  if (threads % kWarp) fault("a barrier must be for whole warps, but is for %u threads", threads);
  unsigned mine = 0;
  arrived_at(number, threads, false, mine);
}
void bar_sync(unsigned number, unsigned threads) {
  if (threads % kWarp) fault("a barrier must be for whole warps, but is for %u threads", threads);
  arrive_and_wait("a bar.sync of its block", number, threads, false);
}
void bar_sync_all(unsigned number) {
  arrive_and_wait("all threads of its block", number, self->block->live, true);
}
void end_thread() {
  self->ended = true;
  Block& block = *self->block;
  --block.live;
  for (Barrier& barrier : block.barriers) {
    if (barrier.arrived && barrier.everyone) barrier.release_at(block.live);
  }
}

Slots exchange_bytes(const void* value, size_t bytes, unsigned mask) {
  Block& block = *self->block;
  const unsigned warp = self->number / kWarp, lane = self->number % kWarp;
  const unsigned lanes = std::min<unsigned>(kWarp, block.threads.size() - warp * kWarp);
  const unsigned here = lanes == kWarp ? mask : mask & ((1u << lanes) - 1);
  if (!(here >> lane & 1)) fault("lane %u must be in the lane mask %x of its call", lane, mask);
  Exchange& rendezvous = block.warps[warp];
  const unsigned mine = rendezvous.generation;
  Slots slots = rendezvous.slots[mine & 1];
  std::memcpy(slots[lane], value, bytes);
  rendezvous.arrive(__builtin_popcount(here));
  wait("the other lanes of its warp", [&rendezvous, mine] { return rendezvous.generation != mine; });
  return slots;
}

Copy begin(std::function<void()> act, bool signals) {
  auto made = std::make_shared<Deferred>();
  if (machine.when == When::early || by_chance()) {
    act();
    made->done = true;
    return made;
  }
  made->act = std::move(act);
  if (signals || machine.when == When::chance) machine.in_flight.push_back(made);
  return made;
}
void finish(Deferred& copy) {
  if (copy.done) return;
  copy.done = true;
  copy.act();
}
void commit_group(Groups& groups) {
  groups.closed.push_back(std::move(groups.open));
  groups.open.clear();
}
void fence_proxy_async() {
  for (uint32_t row : self->unfenced) {
    auto found = self->block->writers.find(row);
    if (found != self->block->writers.end() && found->second == self->number) {
      self->block->writers.erase(found);
    }
  }
  self->unfenced.clear();
}
void griddepcontrol_wait() { self->follows = true; }
void check_previous_kernel_ended(const void* from) {
  const auto at = reinterpret_cast<uintptr_t>(from);
  for (const auto& [first, end] : machine.constants) {
    if (first <= at && at < end) return;
  }
  if (machine.overlaps && !self->follows) fault("a load reads before the previous kernel has ended");
}
void wait_groups(Groups& groups, size_t left) {
  while (groups.closed.size() > left) {
    for (const Copy& copy : groups.closed.front()) finish(*copy);
    groups.closed.erase(groups.closed.begin());
  }
}

void enter() {
  try {
    machine.kernel();
    for (const auto& group : self->bulk.closed) {
      for (const Copy& copy : group) {
        if (!copy->done) fault("a thread ends while its copies still read shared memory");
      }
    }
    if (!self->bulk.open.empty()) fault("a thread ends with copies in no group");
    if (self->block->warpgroups[self->number / kWarpgroup].computed < self->begun) {
      fault("a thread ends before its wgmmas are complete");
    }
    end_thread();
  } catch (const Fault& error) {
    machine.failure = error.what();
  }
  for (;;) yield();
}

void resume(Thread& thread) {
  self = &thread;
  if (_setjmp(machine.scheduler)) return;
  if (thread.started) _longjmp(thread.where, 1);
  thread.started = true;
  const size_t place = thread.block->rank * thread.block->threads.size() + thread.number;
  ucontext_t context;
  getcontext(&context);
  context.uc_stack.ss_sp = machine.stacks + place * kStack;
  context.uc_stack.ss_size = kStack;
  context.uc_link = nullptr;
  makecontext(&context, enter, 0);
  setcontext(&context);
}

std::string deadlock() {
  std::map<std::string, unsigned> waiting;
  for (const Block& block : machine.blocks) {
    for (const Thread& thread : block.threads) {
      if (!thread.ended) ++waiting[thread.waits_for];
    }
  }
  std::string text = "no thread can go on:";
  for (const auto& [what, count] : waiting) {
    text += " " + std::to_string(count) + " wait for " + what + ";";
  }
  return text + " block " + std::to_string(machine.blocks[0].index.x);
}

void Machine::run_cluster() {
  std::vector<Thread*> all;
  for (Block& block : blocks) {
    for (Thread& thread : block.threads) all.push_back(&thread);
  }
  if (all.size() > stack_count) {
    if (stacks) munmap(stacks, stack_count * kStack);
    void* made = mmap(nullptr, all.size() * kStack, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (made == MAP_FAILED) fault("no memory for the stacks of %zu threads", all.size());
    stacks = static_cast<unsigned char*>(made);
    stack_count = all.size();
  }
  while (!all.empty()) {
    // Warps in random order, or single lanes in random order.
    const size_t step = chance() % 2 ? kWarp : 1;
    const size_t groups = (all.size() + step - 1) / step;
    std::vector<unsigned> order(groups);
    for (size_t n = 0; n < groups; ++n) order[n] = n;
    std::shuffle(order.begin(), order.end(), chance);
    bool moved = false;
    for (unsigned group : order) {
      for (size_t n = group * step; n < std::min(all.size(), (group + 1) * step); ++n) {
        Thread& thread = *all[n];
        if (thread.test && !thread.test(thread.object)) continue;
        resume(thread);
        if (!failure.empty()) return;
        moved = true;
      }
    }
    all.erase(std::remove_if(all.begin(), all.end(), [](Thread* t) { return t->ended; }), all.end());
    std::vector<Copy> left;
    for (Copy& copy : in_flight) {
      if (copy->done) continue;
      if (by_chance()) {
        finish(*copy);
        moved = true;
      } else {
        left.push_back(std::move(copy));
      }
    }
    in_flight = std::move(left);
    if (moved || all.empty()) continue;
    if (in_flight.empty()) {
      failure = deadlock();
      return;
    }
    finish(*in_flight[chance() % in_flight.size()]);
  }
}
}  // namespace emu

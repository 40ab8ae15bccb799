// A grid of clusters, one after the other.
#include "launch.h"

namespace emu {
void write(dim3& dimensions, char axis, unsigned value) {
  (axis == 'x' ? dimensions.x : axis == 'y' ? dimensions.y : dimensions.z) = value;
}
// Allocated bytes of a block's shared memory, with a guard area to detect writes past its end.
unsigned taken(unsigned size) { return (size + 2047) / 1024 * 1024; }
void make_block(Block& block, unsigned rank, unsigned size) {
  block.rank = rank;
  block.size = size;
  block.used = machine.dynamic;
  block.live = machine.block_size.x * machine.block_size.y * machine.block_size.z;
  block.threads = std::vector<Thread>(block.live);
  block.warps = std::vector<Exchange>((block.live + kWarp - 1) / kWarp);
  block.warpgroups = std::vector<Warpgroup>((block.live + kWarpgroup - 1) / kWarpgroup);
  block.shared.reset(static_cast<unsigned char*>(std::aligned_alloc(1024, taken(size))));
  std::memset(block.shared.get(), 0xff, taken(size));  // NaN in every float dtype
  for (unsigned n = 0; n < block.live; ++n) {
    Thread& thread = block.threads[n];
    thread.block = &block;
    thread.number = n;
    const unsigned x = machine.block_size.x, y = machine.block_size.y;
    thread.index = {n % x, n / x % y, n / x / y};
  }
}
void check_written(const Block& block) {
  for (unsigned n = block.size; n < taken(block.size); ++n) {
    if (block.shared.get()[n] != 0xff) fault("a thread writes past the %u bytes of shared memory", block.size);
  }
}
void run_grid() {
  const dim3 grid = machine.grid, cluster = machine.cluster_size;
  if (cluster.y != 1 || cluster.z != 1 || grid.x % cluster.x) {
    fault("clusters must lie along x and divide the grid");
  }
  const unsigned threads = machine.block_size.x * machine.block_size.y * machine.block_size.z;
  if (threads > 1024) fault("a block has %u threads, of at most 1024", threads);
  const unsigned size = machine.dynamic + machine.fixed;
  std::vector<unsigned> order(grid.x / cluster.x * grid.y * grid.z);
  for (unsigned n = 0; n < order.size(); ++n) order[n] = n;
  std::shuffle(order.begin(), order.end(), machine.chance);
  for (unsigned n : order) {
    const unsigned across = grid.x / cluster.x;
    machine.blocks = std::vector<Block>(cluster.x);
    machine.cluster = {};
    machine.in_flight.clear();
    for (unsigned rank = 0; rank < cluster.x; ++rank) {
      make_block(machine.blocks[rank], rank, size);
      machine.blocks[rank].index = {n % across * cluster.x + rank, n / across % grid.y,
                                    n / across / grid.y};
    }
    machine.run_cluster();
    if (!machine.failure.empty()) return;
    for (const Block& block : machine.blocks) check_written(block);
  }
}
void read_tags(const char* const* tags, const TVMFFIAny* given, int first, int count) {
  machine.grid = machine.block_size = machine.cluster_size = {};
  machine.dynamic = 0;
  machine.overlaps = false;
  int n = first;
  const auto next = [&] {
    if (n == count) fault("a launch lacks values");
    return static_cast<unsigned>(given[n++].v_int64);
  };
  for (; *tags; ++tags) {
    const std::string tag = *tags;
    if (tag.rfind("blockIdx.", 0) == 0) write(machine.grid, tag.back(), next());
    else if (tag.rfind("threadIdx.", 0) == 0) write(machine.block_size, tag.back(), next());
    else if (tag.rfind("clusterCtaIdx.", 0) == 0) write(machine.cluster_size, tag.back(), next());
    else if (tag == "tirx.use_dyn_shared_memory") machine.dynamic = next();
    else if (tag == "tirx.use_programtic_dependent_launch") machine.overlaps = true;
    else fault("a launch with %s is not emulated", tag.c_str());
  }
}
int run(const char* const* tags, const TVMFFIAny* given, int first, int count, unsigned fixed,
        std::function<void()> kernel) {
  machine.failure.clear();
  machine.fixed = fixed;
  machine.kernel = std::move(kernel);
  try {
    read_tags(tags, given, first, count);
    run_grid();
  } catch (const Fault& error) {
    machine.failure = error.what();
  }
  if (machine.failure.empty()) return 0;
  TVMFFIErrorSetRaisedFromCStr("RuntimeError", machine.failure.c_str());
  return -1;
}
}  // namespace emu

extern "C" void emu_constants(int count, const uintptr_t* ends) {
  emu::machine.constants.clear();
  for (int i = 0; i < count; ++i) emu::machine.constants.emplace_back(ends[2 * i], ends[2 * i + 1]);
}
extern "C" void emu_set(int when, int seed) {
  emu::machine.when = static_cast<emu::When>(when);
  emu::machine.chance.seed(seed);
}

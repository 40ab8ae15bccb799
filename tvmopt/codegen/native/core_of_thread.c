/* Where a pool's threads run: each on a core of its own.
 *
 * Threads that wait for each other must not share a core, where each waits until the system gives
 * the core to the other. The system parts them only after 100 ms or so, as long as both are busy.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "core_of_thread.h"

#include <sched.h>
#include <time.h>

#define HIDDEN __attribute__((visibility("hidden")))
#define JOBS_BEFORE_MOVE 4
#define NS_BETWEEN_MOVES 10000000L

static void move_apart(const int *cores, int number, int count) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed)) return;
  cpu_set_t free_cores = allowed;
  for (int i = 0; i < count; ++i) {
    int core = __atomic_load_n(&cores[i], __ATOMIC_RELAXED);
    if (i != number && core >= 0 && core < CPU_SETSIZE) CPU_CLR(core, &free_cores);
  }
  if (!CPU_COUNT(&free_cores)) return; /* more threads than cores */
  if (!sched_setaffinity(0, sizeof free_cores, &free_cores))
    sched_setaffinity(0, sizeof allowed, &allowed);
}

HIDDEN void tvmopt_keep_apart(TvmoptPlace *place, int *cores, int number, int count) {
  int core = sched_getcpu(), together = 0;
  if (__atomic_load_n(&cores[number], __ATOMIC_RELAXED) != core)
    __atomic_store_n(&cores[number], core, __ATOMIC_RELAXED);
  for (int i = 0; i < number; ++i)
    together |= __atomic_load_n(&cores[i], __ATOMIC_RELAXED) == core;
  place->jobs_together = together ? place->jobs_together + 1 : 0;
  if (place->jobs_together < JOBS_BEFORE_MOVE) return;
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  long now = time.tv_sec * 1000000000L + time.tv_nsec;
  if (now < place->next_move_ns) return;
  place->next_move_ns = now + NS_BETWEEN_MOVES;
  place->jobs_together = 0;
  move_apart(cores, number, count);
}

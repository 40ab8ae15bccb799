/* A thread on another one's core moves away, and may run everywhere afterwards. Prints "right". */
#define _GNU_SOURCE
#include "core_of_thread.h"

#include <sched.h>
#include <stdio.h>

/* Return whether the thread leaves the core of thread 0 within some jobs. */
static int moves(void) {
  int cores[3] = {sched_getcpu(), -1, -1};
  TvmoptPlace place = {0, 0};
  for (int job = 0; job < 9; ++job) {
    tvmopt_keep_apart(&place, cores, 1, 2);
    if (cores[1] < 0) return 0;
  }
  return sched_getcpu() != cores[0];
}

int main(void) {
  cpu_set_t allowed, after;
  if (sched_getaffinity(0, sizeof allowed, &allowed)) return 2;
  if (CPU_COUNT(&allowed) < 2) return puts("one core") < 0;
  int moved = 0;
  for (int i = 0; i < 20; ++i) moved += moves(); /* the system may move it back at once */
  if (moved < 10) return puts("the thread did not move") >= 0;
  if (sched_getaffinity(0, sizeof after, &after) || !CPU_EQUAL(&after, &allowed))
    return puts("the thread may not run everywhere") >= 0;
  return puts("right") < 0;
}

/* Loops with given times choose their number of threads. Prints what was wrong, else "right". */
#include "thread_count.h"

#include <stdio.h>

static int failures;

static void expect(int holds, const char *what) {
  if (holds) return;
  puts(what);
  ++failures;
}

typedef struct {
  const char *name; /* its address is the loop */
  int most;
  long ns[17]; /* by threads */
} Loop;

/* Launch a loop; return how often it ran on `threads`. Every `slow_each`th launch takes ten times as
 * long, as when something else runs on a core. */
static int launch(const Loop *loop, int launches, int threads, int slow_each) {
  int found = 0;
  for (int i = 1; i <= launches; ++i) {
    TvmoptLoop *measured;
    int count = tvmopt_thread_count(loop->name, loop->most, &measured);
    if (!measured || count < 1 || count > loop->most) return -1;
    tvmopt_measured(measured, loop->ns[count] * (slow_each && i % slow_each == 0 ? 10 : 1));
    found += count == threads;
  }
  return found;
}

int main(void) {
  Loop near_cores = {"near", 2, {0, 300, 180}}, far_cores = {"far", 2, {0, 300, 320}};
  expect(launch(&near_cores, 1000, 2, 0) > 970, "two near cores");
  expect(launch(&far_cores, 1000, 1, 0) > 970, "two far cores");
  Loop disturbed = {"disturbed", 2, {0, 300, 180}};
  expect(launch(&disturbed, 1000, 2, 50) > 950, "launches that are slow now and then");

  Loop eight = {"eight", 8, {0, 800, 420, 0, 300, 0, 0, 0, 500}};
  expect(launch(&eight, 1000, 4, 0) > 900, "half of eight threads");
  Loop ten = {"ten", 10, {0, 100, 200, 0, 0, 400, 0, 0, 0, 0, 1000}};
  expect(launch(&ten, 1000, 1, 0) > 900, "one of ten threads");

  near_cores.ns[2] = 320; /* the system moves a thread */
  expect(launch(&near_cores, 100, 1, 0) > 70, "cores that become far: at once");
  near_cores.ns[2] = 180;
  expect(launch(&near_cores, 2000, 2, 0) > 1400, "cores that become near: at a trial");

  Loop long_loop = {"long", 2, {0, 1900000, 1000000}};
  expect(launch(&long_loop, 100, 2, 0) == 100, "a long loop is not tried on one thread");
  Loop busy = {"busy", 2, {0, 800000, 450000}};
  expect(launch(&busy, 100, 2, 0) > 90, "a free core");
  busy.ns[2] = 2500000;
  expect(launch(&busy, 100, 1, 0) > 70, "a core that something else uses");
  busy.ns[2] = 450000;
  expect(launch(&busy, 1000, 2, 0) > 600, "a core that is free again");

  near_cores.most = 3; /* tvmopt_configure */
  near_cores.ns[3] = 100;
  expect(launch(&near_cores, 100, 3, 0) > 90, "another number of threads");
  if (!failures) puts("right");
  return failures != 0;
}

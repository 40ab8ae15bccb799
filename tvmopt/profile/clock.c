/* Clock of a core: a chain of exclusive ors, each of which takes the result of the one before, runs
 * one a cycle on every CPU that we know. An addition of a constant does not: renaming absorbs it. */
#include <time.h>

#define STEPS_A_LOOP 16
#define STEP __asm__ volatile("" : "+r"(value)); value ^= other;
#define FOUR STEP STEP STEP STEP

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

#ifdef __cplusplus
extern "C"
#endif
double tvmopt_clock_hertz(long loops) {
  volatile unsigned long seed = 1;
  unsigned long value = seed, other = seed;
  double start = seconds();
  for (long i = 0; i < loops; ++i) {
    FOUR FOUR FOUR FOUR
  }
  double taken = seconds() - start;
  seed = value;
  return (double)loops * STEPS_A_LOOP / taken;
}

/* How many threads run a parallel loop: measured while the model runs.
 *
 * Threads that wait for each other pay only if what they save is more than what the waiting costs,
 * which depends on how far apart the cores are and on what else runs on them. So each loop tries,
 * now and then, twice or half as many threads, and keeps what was clearly faster. Trials become
 * rare as long as they change nothing, and come at once when a loop has become slower. The results
 * do not depend on the number of threads.
 */
#include "thread_count.h"

#define HIDDEN __attribute__((visibility("hidden")))
#define LOOPS 1024           /* a power of two */
#define FIRST_TRIAL 3        /* launches before it; the first one is cold */
#define TRIAL_LAUNCHES 3     /* the first one may wake the threads, and is not counted */
#define SHORTEST_INTERVAL 16
#define LONGEST_INTERVAL 512  /* and no longer than: */
#define LONGEST_INTERVAL_NS 200000000L
#define LONGEST_NS 500000L   /* a loop that takes longer has work enough for all threads */

static TvmoptLoop loops[LOOPS];

/* Return the entry of a loop; NULL if there is no room. */
static TvmoptLoop *entry_of(const void *loop) {
  uintptr_t at = (uintptr_t)loop;
  at = (at >> 4) ^ (at >> 14);
  for (int i = 0; i < LOOPS; ++i) {
    TvmoptLoop *entry = &loops[(at + (uintptr_t)i) % LOOPS];
    const void *found = __atomic_load_n(&entry->loop, __ATOMIC_ACQUIRE);
    if (!found && __atomic_compare_exchange_n(&entry->loop, &found, loop, 0, __ATOMIC_ACQ_REL,
                                              __ATOMIC_ACQUIRE))
      return entry;
    if (found == loop) return entry;
  }
  return 0;
}

static void begin(TvmoptLoop *loop, int most) {
  __atomic_store_n(&loop->halvings, 0, __ATOMIC_RELAXED);
  loop->most = most;
  loop->launches = 0;
  loop->until_trial = FIRST_TRIAL;
  loop->interval = SHORTEST_INTERVAL;
  loop->up = 0;
  loop->ns = -1; /* not even the first launch */
}

HIDDEN int tvmopt_thread_count(const void *loop, int most, TvmoptLoop **measured) {
  TvmoptLoop *entry = entry_of(loop);
  *measured = 0;
  if (!entry) return most;
  if (__atomic_exchange_n(&entry->locked, 1, __ATOMIC_ACQUIRE)) {
    int count = most >> __atomic_load_n(&entry->halvings, __ATOMIC_RELAXED);
    return count ? count : 1;
  }
  *measured = entry;
  if (entry->most != most) begin(entry, most);
  return most >> (entry->launches ? entry->tried : entry->halvings);
}

/* End a trial: keep its number of threads if it was faster, the best of two launches against the
 * best of two. More threads must be faster by an eighth, since what they wrote lies in the caches
 * of other cores, where the next loop does not find it. */
static void decide(TvmoptLoop *loop) {
  long before = loop->last_ns[0] < loop->last_ns[1] ? loop->last_ns[0] : loop->last_ns[1];
  long gain = before / (loop->tried < loop->halvings ? 8 : 32);
  if (loop->trial_ns < before - gain) {
    __atomic_store_n(&loop->halvings, loop->tried, __ATOMIC_RELAXED);
    loop->ns = loop->trial_ns;
    loop->interval = SHORTEST_INTERVAL;
  } else {
    loop->up = !loop->up;
    if (loop->interval < LONGEST_INTERVAL && loop->interval * loop->ns < LONGEST_INTERVAL_NS)
      loop->interval *= 2;
  }
  loop->least_ns = loop->ns;
  loop->until_trial = loop->interval;
}

/* Whether another number of threads may be faster. */
static int worth_a_trial(const TvmoptLoop *loop) {
  return loop->ns > 0 && (loop->halvings || loop->least_ns < LONGEST_NS);
}

static void begin_trial(TvmoptLoop *loop) {
  int down = loop->most >> (loop->halvings + 1) ? loop->halvings + 1 : loop->halvings - 1;
  int up = loop->halvings ? loop->halvings - 1 : loop->halvings + 1;
  loop->tried = loop->up || loop->ns > LONGEST_NS ? up : down;
  loop->launches = TRIAL_LAUNCHES;
  loop->trial_ns = 0;
}

HIDDEN void tvmopt_measured(TvmoptLoop *loop, long ns) {
  if (loop->launches) {
    if (loop->launches < TRIAL_LAUNCHES && (!loop->trial_ns || ns < loop->trial_ns))
      loop->trial_ns = ns;
    if (!--loop->launches) decide(loop);
  } else {
    loop->last_ns[1] = loop->last_ns[0];
    loop->last_ns[0] = ns;
    if (loop->ns <= 0) {
      loop->least_ns = ns;
      loop->ns = loop->ns ? 0 : ns;
    } else {
      loop->ns += ((ns < 2 * loop->ns ? ns : 2 * loop->ns) - loop->ns) / 8;
      if (loop->ns < loop->least_ns) loop->least_ns = loop->ns;
    }
    int slower = loop->ns > loop->least_ns + loop->least_ns / 2;
    if (slower) loop->interval = SHORTEST_INTERVAL;
    if (--loop->until_trial <= 0 || slower) {
      if (worth_a_trial(loop)) begin_trial(loop);
      loop->until_trial = loop->interval;
    }
  }
  __atomic_store_n(&loop->locked, 0, __ATOMIC_RELEASE);
}

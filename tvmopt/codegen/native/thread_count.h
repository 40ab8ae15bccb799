/* How many threads run a parallel loop: measured while the model runs. */
#ifndef TVMOPT_THREAD_COUNT_H_
#define TVMOPT_THREAD_COUNT_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One parallel loop. */
typedef struct {
  const void *loop; /* its function; NULL while the entry is free */
  int locked;       /* by the launch that is measured */
  int halvings;     /* threads = most >> halvings */
  int most;         /* threads that the figures below are for */
  int tried;        /* halvings of the trial */
  int launches;     /* left of the trial; 0: none runs */
  int until_trial;  /* launches until the next trial */
  int interval;     /* of trials, in launches */
  int up;           /* whether the next trial has more threads */
  long ns;          /* smoothed time; 0: not known */
  long last_ns[2];  /* of the last launches */
  long least_ns;    /* least smoothed time since the last trial */
  long trial_ns;    /* least time of the trial */
} TvmoptLoop;

/* Return the threads for a launch of `loop` on at most `most`. `measured` is to be given to
 * tvmopt_measured after the launch; NULL if that is not needed. */
int tvmopt_thread_count(const void *loop, int most, TvmoptLoop **measured);

/* Tell how long a launch took. */
void tvmopt_measured(TvmoptLoop *loop, long ns);

#ifdef __cplusplus
}
#endif
#endif

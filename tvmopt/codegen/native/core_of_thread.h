/* Where a pool's threads run: each on a core of its own. */
#ifndef TVMOPT_CORE_OF_THREAD_H_
#define TVMOPT_CORE_OF_THREAD_H_

#ifdef __cplusplus
extern "C" {
#endif

/* What a thread remembers of its core. */
typedef struct {
  int jobs_together;  /* that it ran on the core of another thread, without a break */
  long next_move_ns;
} TvmoptPlace;

/* Note the core of thread `number` in `cores`. If it is the core of a thread with a smaller number,
 * and stays so, move to a core that none of the `count` threads is on. */
void tvmopt_keep_apart(TvmoptPlace *place, int *cores, int number, int count);

#ifdef __cplusplus
}
#endif
#endif

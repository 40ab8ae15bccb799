/* Runtime of a library that is compiled ahead of time: threads and workspace of its kernels.
 *
 * TVM's code generator calls the functions TVMBackend... through pointers that TVM's loader sets.
 * This file defines the pointers, so that the library needs neither the loader nor TVM's runtime.
 *
 * A call takes a context, a pool of worker threads with a workspace, and gives it back: as many
 * contexts exist as calls ran at once. Calls that run at once share the cores: each gets its part
 * of the threads. The code is C and C++, since g++ compiles it as C++.
 */
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "core_of_thread.h"
#include "thread_count.h"
#include "workspace.h"

#ifdef __cplusplus
extern "C" {
#endif

#define LINE_BYTES 64
#define MOST_THREADS 1024
#define ERROR_BYTES 512
#define HIDDEN __attribute__((visibility("hidden")))
#define EXPORTED __attribute__((visibility("default")))

/* Part of TVM's interface to compiled code. */
typedef struct {
  void *sync_handle;
  int32_t num_task;
} TVMParallelGroupEnv;
typedef int (*ParallelLambda)(int task_id, TVMParallelGroupEnv *env, void *data);

typedef struct {
  uint32_t value;
  char padding[LINE_BYTES - sizeof(uint32_t)];
} Counter;

typedef struct Pool Pool;
typedef struct {
  Pool *pool;
  int number;
  pthread_t thread;
  TvmoptPlace place;
} Worker;

struct Pool {
  Counter job;      /* counts jobs; workers wait for the next value */
  Counter sleepers; /* workers that wait in the kernel */
  ParallelLambda lambda;
  void *data;
  TVMParallelGroupEnv env;
  int asked, threads, stop, busy;
  int rest; /* whether idle workers sleep at once */
  Counter *done, *barrier;
  Worker *workers; /* the first one is the caller */
  int *cores;      /* of the threads */
  int has_error;
  char error[ERROR_BYTES]; /* of the worker that failed first in this job */
};

typedef struct Context {
  Pool *pool;
  TvmoptChunk *chunk;
  struct Context *next; /* in the list of idle contexts */
} Context;

extern int tvmopt_default_threads; /* of the model, see native_sources.py */

static __thread Context *current;
static __thread char error_text[ERROR_BYTES];
static pthread_mutex_t idle_lock = PTHREAD_MUTEX_INITIALIZER;
static Context *idle;
static int active;         /* calls that run now */
static int wanted_threads; /* 0: the default */
static long spin_ns = 1000000;

static void pause_core(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__) || defined(__arm__)
  __asm__ volatile("yield" ::: "memory");
#else
  __asm__ volatile("" ::: "memory");
#endif
}

static void futex(uint32_t *address, int operation, uint32_t value) {
  syscall(SYS_futex, address, operation | FUTEX_PRIVATE_FLAG, value, NULL, NULL, 0);
}

static long now_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1000000000L + time.tv_nsec;
}

static int fail(const char *text) {
  snprintf(error_text, sizeof error_text, "%s", text);
  return -1;
}

/* Pause between two looks at what another thread writes. More threads than cores are possible, so
 * the core is given away now and then. */
static void spin(unsigned spins) {
  pause_core();
  if (spins % 4096 == 0) sched_yield();
}

/* ---- workspace ---- */

static void *alloc_workspace(int device, int id, uint64_t bytes, int code, int bits) {
  (void)device, (void)id, (void)code, (void)bits;
  void *result = tvmopt_take(&current->chunk, (size_t)bytes);
  if (!result) fail("out of memory for the workspace of a kernel");
  return result;
}

static int free_workspace(int device, int id, void *memory) {
  (void)device, (void)id;
  tvmopt_give_back(&current->chunk, memory);
  return 0;
}

/* ---- threads ---- */

static void *work(void *argument) {
  Worker *worker = (Worker *)argument;
  Pool *pool = worker->pool;
  Context own = {NULL, NULL, NULL};
  uint32_t seen = 0;
  current = &own;
  for (;;) {
    long start = 0;
    for (unsigned spins = 1; __atomic_load_n(&pool->job.value, __ATOMIC_ACQUIRE) == seen; ++spins) {
      spin(spins);
      if (spins % 64) continue;
      long now = now_ns();
      if (!start) start = now;
      int rest = __atomic_load_n(&pool->rest, __ATOMIC_RELAXED);
      if (!rest && now - start < __atomic_load_n(&spin_ns, __ATOMIC_RELAXED)) continue;
      __atomic_add_fetch(&pool->sleepers.value, 1, __ATOMIC_SEQ_CST);
      while (__atomic_load_n(&pool->job.value, __ATOMIC_SEQ_CST) == seen)
        futex(&pool->job.value, FUTEX_WAIT, seen);
      __atomic_sub_fetch(&pool->sleepers.value, 1, __ATOMIC_SEQ_CST);
    }
    seen = __atomic_load_n(&pool->job.value, __ATOMIC_ACQUIRE);
    if (pool->stop) break;
    uint32_t failed = 0;
    error_text[0] = 0;
    if (worker->number < pool->env.num_task) {
      tvmopt_keep_apart(&worker->place, pool->cores, worker->number, pool->env.num_task);
      failed = pool->lambda(worker->number, &pool->env, pool->data) != 0;
    }
    if (failed && !__atomic_exchange_n(&pool->has_error, 1, __ATOMIC_RELAXED))
      snprintf(pool->error, sizeof pool->error, "%s", error_text);
    __atomic_store_n(&pool->done[worker->number].value, seen << 1 | failed, __ATOMIC_RELEASE);
  }
  tvmopt_free_chunks(&own.chunk);
  return NULL;
}

static void post(Pool *pool) {
  __atomic_store_n(&pool->rest, 0, __ATOMIC_RELAXED);
  __atomic_add_fetch(&pool->job.value, 1, __ATOMIC_SEQ_CST);
  if (__atomic_load_n(&pool->sleepers.value, __ATOMIC_SEQ_CST))
    futex(&pool->job.value, FUTEX_WAKE, INT_MAX);
}

static void free_pool(Pool *pool) {
  free(pool->workers);
  free(pool->cores);
  free(pool->done);
  free(pool->barrier);
  free(pool);
}

static void end_pool(Pool *pool) {
  pool->stop = 1;
  post(pool);
  for (int i = 1; i < pool->threads; ++i) pthread_join(pool->workers[i].thread, NULL);
  free_pool(pool);
}

static Counter *counters(int count) {
  void *memory = NULL;
  if (posix_memalign(&memory, LINE_BYTES, sizeof(Counter) * (size_t)count)) return NULL;
  for (int i = 0; i < count; ++i) ((Counter *)memory)[i].value = 0;
  return (Counter *)memory;
}

static Pool *new_pool(int threads) {
  void *memory = NULL;
  if (posix_memalign(&memory, LINE_BYTES, sizeof(Pool))) return NULL;
  Pool *pool = (Pool *)memory;
  *pool = (Pool){};
  pool->done = counters(threads);
  pool->barrier = counters(threads);
  pool->workers = (Worker *)calloc((size_t)threads, sizeof(Worker));
  pool->cores = (int *)calloc((size_t)threads, sizeof(int));
  pool->asked = threads;
  pool->threads = 1;
  if (pool->done && pool->barrier && pool->workers && pool->cores) {
    for (int i = 0; i < threads; ++i) pool->cores[i] = -1;
    for (int i = 1; i < threads; ++i, ++pool->threads) {
      pool->workers[i].pool = pool;
      pool->workers[i].number = i;
      if (pthread_create(&pool->workers[i].thread, NULL, work, &pool->workers[i])) break;
    }
  }
  return pool;
}

/* Return the pool of the call, with the threads that it may use; NULL if that is one. */
static Pool *pool_of_call(int *tasks) {
  int threads = __atomic_load_n(&wanted_threads, __ATOMIC_RELAXED);
  int calls = __atomic_load_n(&active, __ATOMIC_RELAXED);
  Context *context = current;
  Pool *pool = context->pool;
  if (!threads) threads = tvmopt_default_threads;
  *tasks = calls > 1 ? threads / calls : threads;
  if (*tasks < 2 || (pool && pool->busy)) return NULL;
  if (pool && pool->asked != threads) {
    end_pool(pool);
    pool = context->pool = NULL;
  }
  if (!pool) pool = context->pool = new_pool(threads);
  if (!pool || pool->threads == 1) return NULL;
  if (*tasks > pool->threads) *tasks = pool->threads;
  return pool;
}

static int run_alone(ParallelLambda lambda, void *data) {
  Counter one = {0, {0}};
  TVMParallelGroupEnv alone = {&one, 1};
  return lambda(0, &alone, data);
}

static int run_on(Pool *pool, int tasks, ParallelLambda lambda, void *data) {
  pool->lambda = lambda;
  pool->data = data;
  pool->env.num_task = tasks;
  pool->env.sync_handle = pool->barrier;
  for (int i = 0; i < pool->threads; ++i) pool->barrier[i].value = 0;
  pool->busy = 1;
  pool->has_error = 0;
  tvmopt_keep_apart(&pool->workers[0].place, pool->cores, 0, tasks);
  post(pool);
  uint32_t job = pool->job.value;
  int failed = lambda(0, &pool->env, data) != 0;
  for (int i = 1; i < pool->threads; ++i) {
    for (unsigned spins = 1;; ++spins) {
      uint32_t found = __atomic_load_n(&pool->done[i].value, __ATOMIC_ACQUIRE);
      if (found >> 1 == (job & 0x7fffffff)) {
        failed |= found & 1;
        break;
      }
      spin(spins);
    }
  }
  pool->busy = 0;
  if (pool->has_error && !error_text[0]) fail(pool->error);
  return failed ? -1 : 0;
}

static int parallel_launch(ParallelLambda lambda, void *data, int tasks) {
  Pool *pool = pool_of_call(&tasks);
  if (!pool) return run_alone(lambda, data);
  TvmoptLoop *loop;
  tasks = tvmopt_thread_count((const void *)lambda, tasks, &loop);
  long start = loop ? now_ns() : 0;
  int failed = tasks > 1 ? run_on(pool, tasks, lambda, data) : run_alone(lambda, data);
  if (loop) tvmopt_measured(loop, now_ns() - start);
  return failed;
}

static int parallel_barrier(int task, TVMParallelGroupEnv *env) {
  Counter *counters_of_tasks = (Counter *)env->sync_handle;
  uint32_t mine = __atomic_add_fetch(&counters_of_tasks[task].value, 1, __ATOMIC_ACQ_REL);
  for (int i = 0; i < env->num_task; ++i) {
    for (unsigned spins = 1;; ++spins) {
      if (__atomic_load_n(&counters_of_tasks[i].value, __ATOMIC_ACQUIRE) >= mine) break;
      spin(spins);
    }
  }
  return 0;
}

/* What the code of TVM's code generator calls. */
HIDDEN void *__TVMBackendAllocWorkspace = (void *)alloc_workspace;
HIDDEN void *__TVMBackendFreeWorkspace = (void *)free_workspace;
HIDDEN void *__TVMBackendParallelLaunch = (void *)parallel_launch;
HIDDEN void *__TVMBackendParallelBarrier = (void *)parallel_barrier;

/* Called by the checks of arguments that TVM adds to functions for callers in its runtime. */
HIDDEN void TVMFFIErrorSetRaisedFromCStrParts(const char *kind, const char **parts, int count) {
  (void)kind;
  size_t used = 0;
  for (int i = 0; i < count && used < sizeof error_text; ++i)
    used += (size_t)snprintf(error_text + used, sizeof error_text - used, "%s", parts[i]);
}

/* The workers of the process before a fork are not here: forget the contexts, do not end them. */
static void after_fork(void) {
  pthread_mutex_init(&idle_lock, NULL);
  idle = NULL;
  active = 0;
  if (current) current->pool = NULL;
}

__attribute__((constructor)) static void begin_library(void) {
  pthread_atfork(NULL, NULL, after_fork);
}

__attribute__((destructor)) static void end_library(void) {
  while (idle) {
    Context *context = idle;
    idle = context->next;
    if (context->pool) end_pool(context->pool);
    tvmopt_free_chunks(&context->chunk);
    free(context);
  }
}

/* ---- interface ---- */

/* Set the threads of a call (0: as built), and how long an idle worker spins before it sleeps. */
EXPORTED int tvmopt_configure(int threads, long spin_us) {
  if (threads < 0 || threads > MOST_THREADS) return fail("threads must be between 0 and 1024");
  if (spin_us < 0) return fail("the spin time must not be negative");
  __atomic_store_n(&wanted_threads, threads, __ATOMIC_RELAXED);
  __atomic_store_n(&spin_ns, spin_us * 1000, __ATOMIC_RELAXED);
  return 0;
}

/* Return what made the last call of this thread fail. */
EXPORTED const char *tvmopt_error(void) { return error_text; }

HIDDEN int tvmopt_fail(const char *text) { return fail(text); }

/* Let the idle workers of this call sleep at once, since others compute now. */
HIDDEN void tvmopt_rest(void) {
  if (current->pool) __atomic_store_n(&current->pool->rest, 1, __ATOMIC_RELAXED);
}

HIDDEN int tvmopt_misaligned(void) {
  return fail("every tensor must start at a multiple of 64 bytes");
}

/* Begin a call: take a context. */
HIDDEN int tvmopt_enter(void) {
  pthread_mutex_lock(&idle_lock);
  Context *context = idle;
  if (context) idle = context->next;
  pthread_mutex_unlock(&idle_lock);
  if (!context) context = (Context *)calloc(1, sizeof(Context));
  if (!context) return fail("out of memory");
  current = context;
  error_text[0] = 0;
  __atomic_add_fetch(&active, 1, __ATOMIC_RELAXED);
  return 0;
}

/* End a call: give its context back. The one used last is used next, since its memory is warm. */
HIDDEN void tvmopt_leave(void) {
  Context *context = current;
  __atomic_sub_fetch(&active, 1, __ATOMIC_RELAXED);
  current = NULL;
  pthread_mutex_lock(&idle_lock);
  context->next = idle;
  idle = context;
  pthread_mutex_unlock(&idle_lock);
}

#ifdef __cplusplus
}
#endif

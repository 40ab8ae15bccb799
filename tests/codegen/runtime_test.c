/* Threads of a process launch kernels of the runtime at once: sums, barriers, nested launches,
 * workspaces, another number of threads, failing kernels, segments between them. Prints "right" and returns 0. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
  void *sync_handle;
  int32_t num_task;
} Env;
typedef int (*Lambda)(int, Env *, void *);
extern void *__TVMBackendAllocWorkspace, *__TVMBackendFreeWorkspace;
extern void *__TVMBackendParallelLaunch, *__TVMBackendParallelBarrier;
int tvmopt_enter(void);
void tvmopt_leave(void);
int tvmopt_configure(int threads, long spin_us);
const char *tvmopt_error(void);
int tvmopt_run_segment(int number, void *const *tensors);
void tvmopt_set_segment_runner(int (*run)(int number, void *const *tensors));
int tvmopt_default_threads = 3;

static int launch(Lambda lambda, void *data) {
  return ((int (*)(Lambda, void *, int))__TVMBackendParallelLaunch)(lambda, data, 0);
}
static void barrier(int task, Env *env) {
  ((int (*)(int, Env *))__TVMBackendParallelBarrier)(task, env);
}
static void *allocate(uint64_t bytes) {
  return ((void *(*)(int, int, uint64_t, int, int))__TVMBackendAllocWorkspace)(1, 0, bytes, 2, 32);
}
static void release(void *memory) {
  ((int (*)(int, int, void *))__TVMBackendFreeWorkspace)(1, 0, memory);
}

#define COUNT 1000
typedef struct {
  int values[COUNT], next[COUNT];
  int launches;
} Data;

static int nothing(int task, Env *env, void *data) {
  (void)data;
  return task >= env->num_task;
}

static int step(int task, Env *env, void *data) {
  Data *of = (Data *)data;
  int begin = COUNT * task / env->num_task, end = COUNT * (task + 1) / env->num_task;
  int *own = (int *)allocate(COUNT * sizeof(int)), *more = (int *)allocate((uint64_t)task << 18);
  if (!own || !more || (uintptr_t)own % 64 || launch(nothing, NULL)) return 1;
  for (int i = begin; i < end; ++i) own[i] = of->values[i] + 1;
  barrier(task, env);
  for (int i = begin; i < end; ++i) of->values[i] = own[i];
  barrier(task, env);
  for (int i = begin; i < end; ++i) of->next[i] = of->values[(i + COUNT / 2) % COUNT];
  release(more);
  release(own);
  return 0;
}

static int failing(int task, Env *env, void *data) {
  (void)data;
  return task == env->num_task - 1;
}

/* A worker, and no other thread, runs out of memory. */
static int greedy(int task, Env *env, void *data) {
  (void)data;
  return task == env->num_task - 1 && !allocate((uint64_t)1 << 60);
}

/* Writes its number; the one with number 9 fails. */
static int segment(int number, void *const *tensors) {
  *(int *)tensors[0] = number;
  return number == 9;
}

static void *caller(void *argument) {
  long *wrong = (long *)argument;
  Data *data = (Data *)calloc(1, sizeof(Data));
  for (int round = 0; round < 60; ++round) {
    if (tvmopt_enter()) ++*wrong;
    void *outer = allocate(100000 + (uint64_t)round * 1000);
    if (!outer || launch(step, data)) ++*wrong;
    int found = 0;
    void *tensor = &found;
    if (tvmopt_run_segment(round % 9, &tensor) || found != round % 9) ++*wrong;
    if (!tvmopt_run_segment(9, &tensor)) ++*wrong;
    for (int i = 0; i < COUNT; ++i) *wrong += data->next[i] != round + 1;
    if (!launch(failing, data) || tvmopt_error()[0]) ++*wrong;
    if (!launch(greedy, data) || !strstr(tvmopt_error(), "out of memory")) ++*wrong;
    release(outer);
    tvmopt_leave();
  }
  free(data);
  return NULL;
}

int main(void) {
  long wrong[4] = {0}, all = 0;
  if (!tvmopt_run_segment(0, NULL) || !strstr(tvmopt_error(), "ONNX Runtime must run")) return 3;
  tvmopt_set_segment_runner(segment);
  for (int threads = 0; threads < 5; ++threads) { /* 0: the default of 3 */
    pthread_t callers[4];
    if (tvmopt_configure(threads, threads == 2 ? 0 : 50)) return 2;
    for (int i = 0; i < 4; ++i) pthread_create(&callers[i], NULL, caller, &wrong[i]);
    for (int i = 0; i < 4; ++i) pthread_join(callers[i], NULL);
    caller(&wrong[0]);
  }
  for (int i = 0; i < 4; ++i) all += wrong[i];
  if (tvmopt_configure(-1, 0) == 0 || !strstr(tvmopt_error(), "between 0 and 1024")) ++all;
  puts(all ? "wrong" : "right");
  return all != 0;
}

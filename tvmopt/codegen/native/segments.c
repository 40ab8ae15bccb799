/* Calls of the segments that ONNX Runtime runs; the program that loads the library provides it. */
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HIDDEN __attribute__((visibility("hidden")))
#define EXPORTED __attribute__((visibility("default")))

extern int tvmopt_fail(const char *text);
extern void tvmopt_rest(void);

static int (*runner)(int number, void *const *tensors);

/* Set the function that runs a segment on its inputs and outputs; it returns 0, or -1
 * where it fails. */
EXPORTED void tvmopt_set_segment_runner(int (*run)(int number, void *const *tensors)) {
  __atomic_store_n(&runner, run, __ATOMIC_RELEASE);
}

/* Run a segment; `tensors` are its inputs, then its outputs. Return 0, or -1 with an error text. */
HIDDEN int tvmopt_run_segment(int number, void *const *tensors) {
  int (*run)(int, void *const *) = __atomic_load_n(&runner, __ATOMIC_ACQUIRE);
  if (!run)
    return tvmopt_fail("ONNX Runtime must run some nodes; load the model by tvmopt, in Python");
  tvmopt_rest(); /* threads that spin would take the cores from ONNX Runtime */
  return run(number, tensors) ? -1 : 0;
}

#ifdef __cplusplus
}
#endif

/* Run a model that tvmopt compiled. C99 and C++; Linux; needs no Python and no TVM.
 *
 *     tvmopt_model *model = tvmopt_load("folder");      // checks hash and CPU, then opens model.so
 *     float *in = tvmopt_alloc(bytes), *out = tvmopt_alloc(bytes);
 *     const void *inputs[] = {in};
 *     void *outputs[] = {out};
 *     if (tvmopt_run(model, inputs, outputs)) puts(tvmopt_error_text());
 *     tvmopt_free(model);
 *
 * A model may hold several sizes, each with shapes of its own. Size 0, the largest, is what the
 * functions without a size mean.
 *
 * Threads may call tvmopt_run on one model at once, each with its own tensors. Calls that run at
 * once share the threads. Worker threads and workspace stay for the next call and end with the model.
 */
#ifndef TVMOPT_H
#define TVMOPT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tvmopt_model tvmopt_model;

/* An input or output: row-major, without gaps. */
typedef struct {
  const char *name;
  const char *dtype; /* NumPy's name: "float32", "int64", "bool" */
  int32_t rank;
  const int64_t *shape;
  size_t bytes;
} tvmopt_tensor;

/* Load the model in a folder that has model.txt and model.so; NULL if a check fails. */
tvmopt_model *tvmopt_load(const char *folder);

/* End a model. No thread may run it any more. NULL does nothing. */
void tvmopt_free(tvmopt_model *model);

/* Number of inputs and outputs, and a description of each; NULL if there is none. */
int32_t tvmopt_input_count(const tvmopt_model *model);
int32_t tvmopt_output_count(const tvmopt_model *model);
const tvmopt_tensor *tvmopt_input(const tvmopt_model *model, int32_t position);
const tvmopt_tensor *tvmopt_output(const tvmopt_model *model, int32_t position);

/* Number of sizes (at least 1), and the tensors of one of them; NULL if there is none. */
int32_t tvmopt_size_count(const tvmopt_model *model);
const tvmopt_tensor *tvmopt_input_of_size(const tvmopt_model *model, int32_t size,
                                          int32_t position);
const tvmopt_tensor *tvmopt_output_of_size(const tvmopt_model *model, int32_t size,
                                           int32_t position);

/* Set the threads of a call (0: as built, at most 1024), and for how many microseconds an idle
 * worker thread spins before it sleeps; return 0, or -1. By default as built, and 1000. */
int tvmopt_set_threads(tvmopt_model *model, int threads, long spin_us);

/* Run the model: read the inputs, write the outputs; return 0, or -1. Every tensor starts at a
 * multiple of 64 bytes and has the size that its description says. */
int tvmopt_run(const tvmopt_model *model, const void *const *inputs, void *const *outputs);

/* The same for one of the sizes. */
int tvmopt_run_size(const tvmopt_model *model, int32_t size, const void *const *inputs,
                    void *const *outputs);

/* Memory for a tensor; NULL if there is none. Give it to free(). */
void *tvmopt_alloc(size_t bytes);

/* Why the last function that failed in this thread did. */
const char *tvmopt_error_text(void);

#ifdef __cplusplus
}
#endif
#endif

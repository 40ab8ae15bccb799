/* Load the model of a folder, run the golden inputs of each size, and say how far the outputs are
 * from the golden ones: ./example folder */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "tvmopt.h"

static void stop(const char *text) {
  fprintf(stderr, "%s\n", text);
  exit(1);
}

static void *read_file(const char *folder, int size, const char *side, int position, size_t bytes) {
  char path[4096], prefix[32] = "";
  if (size) snprintf(prefix, sizeof prefix, "size_%d_", size);
  snprintf(path, sizeof path, "%s/c/golden/%s%s_%d.bin", folder, prefix, side, position);
  FILE *file = fopen(path, "rb");
  void *data = tvmopt_alloc(bytes);
  if (!file || !data || fread(data, 1, bytes, file) != bytes) {
    fprintf(stderr, "%s must have %zu bytes\n", path, bytes);
    exit(1);
  }
  fclose(file);
  return data;
}

static void show(const char *side, const tvmopt_tensor *tensor) {
  printf("%s %s %s (", side, tensor->name, tensor->dtype);
  for (int i = 0; i < tensor->rank; ++i) printf(i ? ", %lld" : "%lld", (long long)tensor->shape[i]);
  printf(")\n");
}

/* Return the largest deviation of a float32 output. */
static double deviation(const tvmopt_tensor *tensor, const float *got, const float *want) {
  double worst = 0;
  if (tensor->dtype[0] == 'f' && tensor->dtype[5] == '3') /* float32 */
    for (size_t k = 0; k < tensor->bytes / sizeof(float); ++k)
      worst = fmax(worst, fabs((double)got[k] - want[k]));
  return worst;
}

static double milliseconds(const tvmopt_model *model, int size, void **in, void **out) {
  struct timespec start, end;
  int calls = 0;
  double seconds = 0;
  clock_gettime(CLOCK_MONOTONIC, &start);
  for (; seconds < 0.2; ++calls) {
    if (tvmopt_run_size(model, size, (const void *const *)in, out)) stop(tvmopt_error_text());
    clock_gettime(CLOCK_MONOTONIC, &end);
    seconds = (double)(end.tv_sec - start.tv_sec) + 1e-9 * (double)(end.tv_nsec - start.tv_nsec);
  }
  return 1e3 * seconds / calls;
}

static void run_size(const tvmopt_model *model, const char *folder, int size) {
  int inputs = tvmopt_input_count(model), outputs = tvmopt_output_count(model);
  void **in = calloc((size_t)inputs + 1, sizeof(void *));
  void **out = calloc((size_t)outputs, sizeof(void *));
  double worst = 0;
  for (int i = 0; i < inputs; ++i) {
    const tvmopt_tensor *tensor = tvmopt_input_of_size(model, size, i);
    show("input", tensor);
    in[i] = read_file(folder, size, "input", i, tensor->bytes);
  }
  for (int i = 0; i < outputs; ++i) {
    const tvmopt_tensor *tensor = tvmopt_output_of_size(model, size, i);
    show("output", tensor);
    out[i] = tvmopt_alloc(tensor->bytes);
  }
  if (tvmopt_run_size(model, size, (const void *const *)in, out)) stop(tvmopt_error_text());
  for (int i = 0; i < outputs; ++i) {
    const tvmopt_tensor *tensor = tvmopt_output_of_size(model, size, i);
    void *golden = read_file(folder, size, "output", i, tensor->bytes);
    worst = fmax(worst, deviation(tensor, out[i], golden));
    free(golden);
  }
  printf("largest deviation from the golden output: %g\n", worst);
  printf("%.4f ms a call\n", milliseconds(model, size, in, out));
  for (int i = 0; i < inputs; ++i) free(in[i]);
  for (int i = 0; i < outputs; ++i) free(out[i]);
  free(in);
  free(out);
}

int main(int count, char **arguments) {
  const char *folder = count > 1 ? arguments[1] : "..";
  tvmopt_model *model = tvmopt_load(folder);
  if (!model) stop(tvmopt_error_text());
  for (int size = 0; size < tvmopt_size_count(model); ++size) run_size(model, folder, size);
  tvmopt_free(model);
  return 0;
}

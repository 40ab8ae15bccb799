/* Load the model of a folder, run its golden inputs, and say how far the outputs are from the
 * golden ones: ./example folder */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "tvmopt.h"

static void *read_file(const char *folder, const char *side, int position, size_t bytes) {
  char path[4096];
  snprintf(path, sizeof path, "%s/c/golden/%s_%d.bin", folder, side, position);
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

int main(int count, char **arguments) {
  const char *folder = count > 1 ? arguments[1] : "..";
  tvmopt_model *model = tvmopt_load(folder);
  if (!model) {
    fprintf(stderr, "%s\n", tvmopt_error_text());
    return 1;
  }
  int inputs = tvmopt_input_count(model), outputs = tvmopt_output_count(model);
  void **in = calloc((size_t)inputs + 1, sizeof(void *));
  void **out = calloc((size_t)outputs, sizeof(void *));
  for (int i = 0; i < inputs; ++i) {
    show("input", tvmopt_input(model, i));
    in[i] = read_file(folder, "input", i, tvmopt_input(model, i)->bytes);
  }
  for (int i = 0; i < outputs; ++i) {
    show("output", tvmopt_output(model, i));
    out[i] = tvmopt_alloc(tvmopt_output(model, i)->bytes);
  }
  if (tvmopt_run(model, (const void *const *)in, out)) {
    fprintf(stderr, "%s\n", tvmopt_error_text());
    return 1;
  }
  double worst = 0;
  for (int i = 0; i < outputs; ++i) {
    const tvmopt_tensor *tensor = tvmopt_output(model, i);
    void *golden = read_file(folder, "output", i, tensor->bytes);
    const float *got = out[i], *want = golden;
    if (tensor->dtype[0] == 'f' && tensor->dtype[5] == '3') /* float32 */
      for (size_t k = 0; k < tensor->bytes / sizeof(float); ++k)
        worst = fmax(worst, fabs((double)got[k] - want[k]));
    free(golden);
  }
  printf("largest deviation from the golden output: %g\n", worst);

  struct timespec start, end;
  int calls = 0;
  double seconds = 0;
  clock_gettime(CLOCK_MONOTONIC, &start);
  for (; seconds < 0.2; ++calls) {
    tvmopt_run(model, (const void *const *)in, out);
    clock_gettime(CLOCK_MONOTONIC, &end);
    seconds = (double)(end.tv_sec - start.tv_sec) + 1e-9 * (double)(end.tv_nsec - start.tv_nsec);
  }
  printf("%.4f ms a call\n", 1e3 * seconds / calls);
  for (int i = 0; i < inputs; ++i) free(in[i]);
  for (int i = 0; i < outputs; ++i) free(out[i]);
  free(in);
  free(out);
  tvmopt_free(model);
  return 0;
}

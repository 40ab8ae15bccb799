/* The model as an operator of ONNX Runtime: domain "tvmopt", name "CompiledModel".
 *
 * The declarations below are the part of ONNX Runtime's C API (1.16 and newer) that it needs. The
 * functions of OrtApi keep their places in all versions, so that an index names one.
 */
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#define EXPORTED __attribute__((visibility("default")))
#define API_VERSION 16
#define ALIGNMENT_BYTES 64
#define MOST_RANK 64
#define MOST_SIZES 128

typedef void *Status; /* NULL is success */
typedef void (*Function)(void);
typedef struct {
  const Function *(*GetApi)(uint32_t version);
  const char *(*GetVersionString)(void);
} OrtApiBase;

enum { /* places in OrtApi */
  CREATE_STATUS = 0,
  CREATE_CUSTOM_OP_DOMAIN = 26,
  CUSTOM_OP_DOMAIN_ADD = 27,
  ADD_CUSTOM_OP_DOMAIN = 28,
  GET_TENSOR_MUTABLE_DATA = 51,
  GET_DIMENSIONS_COUNT = 61,
  GET_DIMENSIONS = 62,
  GET_TENSOR_TYPE_AND_SHAPE = 65,
  KERNEL_CONTEXT_GET_INPUT = 90,
  KERNEL_CONTEXT_GET_OUTPUT = 91,
  RELEASE_TENSOR_TYPE_AND_SHAPE_INFO = 99
};
enum { FAIL = 1, INVALID_ARGUMENT = 2 }; /* OrtErrorCode */

typedef struct Operator {
  uint32_t version;
  void *(*CreateKernel)(const struct Operator *, const Function *api, const void *info);
  const char *(*GetName)(const struct Operator *);
  const char *(*GetExecutionProviderType)(const struct Operator *);
  int (*GetInputType)(const struct Operator *, size_t index);
  size_t (*GetInputTypeCount)(const struct Operator *);
  int (*GetOutputType)(const struct Operator *, size_t index);
  size_t (*GetOutputTypeCount)(const struct Operator *);
  void (*KernelCompute)(void *kernel, void *context);
  void (*KernelDestroy)(void *kernel);
  int (*GetInputCharacteristic)(const struct Operator *, size_t index);
  int (*GetOutputCharacteristic)(const struct Operator *, size_t index);
  int (*GetInputMemoryType)(const struct Operator *, size_t index);
  int (*GetVariadicInputMinArity)(const struct Operator *);
  int (*GetVariadicInputHomogeneity)(const struct Operator *);
  int (*GetVariadicOutputMinArity)(const struct Operator *);
  int (*GetVariadicOutputHomogeneity)(const struct Operator *);
  Status (*CreateKernelV2)(const struct Operator *, const Function *api, const void *info,
                           void **kernel);
  Status (*KernelComputeV2)(void *kernel, void *context);
} Operator;

typedef struct {
  int type; /* ONNXTensorElementDataType */
  size_t rank, bytes;
  int64_t *shape;
} Tensor;

extern const char tvmopt_tensors[]; /* see native_sources.py */
extern const char tvmopt_more_tensors[];
extern int (*const tvmopt_runs[])(void *const *tensors);
extern const char *tvmopt_error(void);
extern const char tvmopt_segments[];

static Tensor *tensors; /* of each size: inputs, then outputs */
static size_t inputs, outputs, sizes;

static const struct {
  const char *name;
  int type;
  size_t bytes;
} dtypes[] = {{"float32", 1, 4}, {"uint8", 2, 1},    {"int8", 3, 1},    {"uint16", 4, 2},
              {"int16", 5, 2},   {"int32", 6, 4},    {"int64", 7, 8},   {"bool", 9, 1},
              {"float16", 10, 2}, {"float64", 11, 8}, {"uint32", 12, 4}, {"uint64", 13, 8}};

static size_t lines_of(const char *text) {
  size_t count = 0;
  for (; *text; ++text) count += *text == '\n';
  return count;
}

/* Read "input dtype rank extents"; return whether it is one. */
static int read_tensor(Tensor *tensor, const char *line) {
  char side[8], dtype[16];
  int used = 0;
  if (sscanf(line, "%7s %15s %zu%n", side, dtype, &tensor->rank, &used) != 3) return 0;
  tensor->shape = (int64_t *)calloc(tensor->rank + 1, sizeof(int64_t));
  if (!tensor->shape) return 0;
  for (size_t k = 0; k < sizeof dtypes / sizeof *dtypes; ++k)
    if (!strcmp(dtype, dtypes[k].name))
      tensor->type = dtypes[k].type, tensor->bytes = dtypes[k].bytes;
  char *at = (char *)line + used;
  for (size_t k = 0; k < tensor->rank; ++k) {
    tensor->shape[k] = strtoll(at, &at, 10);
    tensor->bytes *= (size_t)tensor->shape[k];
  }
  return 1;
}

/* Read the descriptions of all tensors; sessions of several threads may register at once. */
static pthread_once_t tensors_once = PTHREAD_ONCE_INIT;
static void read_tensors(void) {
  size_t count = lines_of(tvmopt_tensors), total = count + lines_of(tvmopt_more_tensors);
  Tensor *found = (Tensor *)calloc(total, sizeof(Tensor));
  const char *line = tvmopt_tensors;
  for (size_t i = 0; found && i < total; ++i, line = strchr(line, '\n') + 1) {
    if (i == count) line = tvmopt_more_tensors;
    if (!read_tensor(&found[i], line)) return;
    if (i < count) ++*(line[0] == 'o' ? &outputs : &inputs);
  }
  sizes = total / count;
  tensors = found;
}

#define API(place, result, ...) ((result(*)(__VA_ARGS__))api[place])

static Status fail(const Function *api, int code, const char *text) {
  return API(CREATE_STATUS, Status, int, const char *)(code, text);
}

static const char *get_name(const Operator *op) { return (void)op, "CompiledModel"; }
static const char *get_provider(const Operator *op) { return (void)op, (const char *)NULL; }
static int get_input_type(const Operator *op, size_t i) { return (void)op, tensors[i].type; }
static int get_output_type(const Operator *op, size_t i) {
  return (void)op, tensors[inputs + i].type;
}
static size_t get_input_count(const Operator *op) { return (void)op, inputs; }
static size_t get_output_count(const Operator *op) { return (void)op, outputs; }
static int zero_at(const Operator *op, size_t i) { return (void)op, (void)i, 0; }
static int one(const Operator *op) { return (void)op, 1; }
static void destroy(void *kernel) { (void)kernel; }

static Status create(const Operator *op, const Function *api, const void *info, void **kernel) {
  (void)op, (void)info;
  *kernel = (void *)api;
  return NULL;
}

/* Return where the data of an input lies, and its shape. */
static Status read_input(const Function *api, void *context, size_t index, void **data,
                         size_t *rank, int64_t shape[MOST_RANK]) {
  void *value, *info;
  Status status = API(KERNEL_CONTEXT_GET_INPUT, Status, void *, size_t, void **)(context, index, &value);
  if (!status) status = API(GET_TENSOR_TYPE_AND_SHAPE, Status, void *, void **)(value, &info);
  if (status) return status;
  status = API(GET_DIMENSIONS_COUNT, Status, void *, size_t *)(info, rank);
  if (!status && *rank <= MOST_RANK)
    status = API(GET_DIMENSIONS, Status, void *, int64_t *, size_t)(info, shape, *rank);
  API(RELEASE_TENSOR_TYPE_AND_SHAPE_INFO, void, void *)(info);
  return status ? status : API(GET_TENSOR_MUTABLE_DATA, Status, void *, void **)(value, data);
}

static int has_shape(const Tensor *tensor, size_t rank, const int64_t *shape) {
  return rank == tensor->rank && !memcmp(shape, tensor->shape, rank * sizeof *shape);
}

/* Return where the data of the inputs lies, and the size whose shapes they have. */
static Status read_inputs(const Function *api, void *context, void **data, size_t *size) {
  char differs[MOST_SIZES] = {0}, text[256];
  *size = 0;
  for (size_t i = 0; i < inputs; ++i) {
    size_t rank;
    int64_t shape[MOST_RANK];
    Status status = read_input(api, context, i, &data[i], &rank, shape);
    if (status) return status;
    for (size_t k = *size; k < sizes; ++k)
      differs[k] |= !has_shape(&tensors[k * (inputs + outputs) + i], rank, shape);
    while (*size < sizes && differs[*size]) ++*size;
    if (*size < sizes) continue;
    snprintf(text, sizeof text,
             "input %zu must have the shape that the model was compiled for (%zu bytes; %zu more "
             "sizes), but has another one", i, tensors[i].bytes, sizes - 1);
    return fail(api, INVALID_ARGUMENT, text);
  }
  return NULL;
}

static Status write_output(const Function *api, void *context, size_t index, const Tensor *made,
                           void **data) {
  void *value;
  Status status = API(KERNEL_CONTEXT_GET_OUTPUT, Status, void *, size_t, const int64_t *, size_t,
                      void **)(context, index, made->shape, made->rank, &value);
  return status ? status : API(GET_TENSOR_MUTABLE_DATA, Status, void *, void **)(value, data);
}

/* Run the model. A tensor that does not start at a cache line is copied. */
static Status compute(void *kernel, void *context) {
  const Function *api = (const Function *)kernel;
  size_t count = inputs + outputs, scratch = 0;
  void **given = (void **)calloc(2 * count, sizeof(void *)), **used = given + count;
  void *memory = NULL;
  size_t size = 0;
  Status status =
      given ? read_inputs(api, context, given, &size) : fail(api, FAIL, "out of memory");
  const Tensor *own = &tensors[size * count];
  for (size_t i = 0; i < count && !status; ++i) {
    if (i >= inputs) status = write_output(api, context, i - inputs, &own[i], &given[i]);
    if (!status && (uintptr_t)given[i] % ALIGNMENT_BYTES)
      scratch += own[i].bytes / ALIGNMENT_BYTES * ALIGNMENT_BYTES + ALIGNMENT_BYTES;
  }
  if (!status && scratch && posix_memalign(&memory, ALIGNMENT_BYTES, scratch))
    status = fail(api, FAIL, "out of memory");
  char *at = (char *)memory;
  for (size_t i = 0; i < count && !status; ++i) {
    used[i] = given[i];
    if ((uintptr_t)given[i] % ALIGNMENT_BYTES == 0) continue;
    used[i] = at;
    at += own[i].bytes / ALIGNMENT_BYTES * ALIGNMENT_BYTES + ALIGNMENT_BYTES;
    if (i < inputs) memcpy(used[i], given[i], own[i].bytes);
  }
  if (!status && tvmopt_runs[size](used)) status = fail(api, FAIL, tvmopt_error());
  for (size_t i = inputs; i < count && !status; ++i)
    if (used[i] != given[i]) memcpy(given[i], used[i], own[i].bytes);
  free(memory);
  free(given);
  return status;
}

static const Operator compiled_model = {
    API_VERSION, NULL, get_name, get_provider, get_input_type, get_input_count, get_output_type,
    get_output_count, NULL, destroy, zero_at, zero_at, zero_at, one, one, one, one, create,
    compute};

/* ONNX Runtime calls this when a session registers the library. */
EXPORTED Status RegisterCustomOps(void *options, const OrtApiBase *base) {
  const Function *api = base->GetApi(API_VERSION);
  void *domain;
  if (!api) {
    api = base->GetApi(1);
    return fail(api, FAIL, "a model of tvmopt needs ONNX Runtime 1.16 or newer");
  }
  if (tvmopt_segments[0])
    return fail(api, FAIL, "a model that needs ONNX Runtime for some nodes is no operator of it");
  pthread_once(&tensors_once, read_tensors);
  if (!tensors) return fail(api, FAIL, "out of memory");
  Status status = API(CREATE_CUSTOM_OP_DOMAIN, Status, const char *, void **)("tvmopt", &domain);
  if (!status)
    status = API(CUSTOM_OP_DOMAIN_ADD, Status, void *, const Operator *)(domain, &compiled_model);
  return status ? status : API(ADD_CUSTOM_OP_DOMAIN, Status, void *, void *)(options, domain);
}

#ifdef __cplusplus
}
#endif

/* Calls one compiled kernel: reads arguments from stdin, writes the results to stdout.
 *
 * Input: int64 words: number of arrays, number of results; for each array its DLPack type code, bits,
 * number of dimensions, bytes and shape; then the bytes of all arrays.
 * Replaces TVM's runtime: workspaces, and parallel loops as serial tasks.
 */
#include <stddef.h>
#include <stdint.h>
#include <tvm/ffi/c_api.h>

extern long read(int file, void* to, size_t bytes);
extern long write(int file, const void* from, size_t bytes);
extern void _exit(int status) __attribute__((noreturn));
extern int __tvm_ffi_main(void* self, TVMFFIAny* args, int32_t count, TVMFFIAny* result);

/* Exit codes; program.py turns them into errors. */
enum { REFUSED = 101, BAD_INPUT = 102, NO_MEMORY = 103, OVERRUN = 104 };
enum { ALIGNMENT = 64, GUARD = 128, MOST_ARRAYS = 64, MOST_DIMENSIONS = 16, TASKS = 2 };

static uint8_t memory[(size_t)1 << 29] __attribute__((aligned(4096)));
static size_t used;

/* Alignment of exactly 64 bytes, TVM's guarantee, so that code that relies on more fails. */
static void* allocate(size_t bytes) {
  size_t start = (used + 2 * ALIGNMENT - 1) / (2 * ALIGNMENT) * (2 * ALIGNMENT) + ALIGNMENT;
  if (start > sizeof memory || bytes > sizeof memory - start) _exit(NO_MEMORY);
  used = start + bytes;
  return memory + start;
}

static void say(const char* text) {
  size_t length = 0;
  while (text[length]) ++length;
  write(2, text, length);
}

static void receive(void* to, size_t bytes) {
  uint8_t* next = to;
  while (bytes) {
    long got = read(0, next, bytes);
    if (got <= 0) _exit(BAD_INPUT);
    next += got;
    bytes -= got;
  }
}

static void deliver(const void* from, size_t bytes) {
  const uint8_t* next = from;
  while (bytes) {
    long put = write(1, next, bytes);
    if (put <= 0) _exit(BAD_INPUT);
    next += put;
    bytes -= put;
  }
}

static int64_t word(void) {
  int64_t value;
  receive(&value, sizeof value);
  return value;
}

void TVMFFIErrorSetRaisedFromCStrParts(const char* kind, const char** parts, int32_t count) {
  say(kind);
  say(": ");
  for (int32_t i = 0; i < count; ++i)
    if (parts[i]) say(parts[i]);
  say("\n");
}

void TVMFFIErrorSetRaisedFromCStr(const char* kind, const char* message) {
  TVMFFIErrorSetRaisedFromCStrParts(kind, &message, 1);
}

/* Workspaces are freed in the reverse order. */
static void* allocate_workspace(int device, int id, uint64_t bytes, int code, int bits) {
  return allocate(bytes);
}

static int free_workspace(int device, int id, void* workspace) {
  used = (uint8_t*)workspace - memory;
  return 0;
}

typedef struct {
  void* sync;
  int32_t tasks;
} Group;

static int launch(int (*body)(int, Group*, void*), void* data, int tasks) {
  Group group = {0, tasks ? tasks : TASKS};
  for (int i = 0; i < group.tasks; ++i) {
    int status = body(i, &group, data);
    if (status) return status;
  }
  return 0;
}

/* Function pointers of the kernel's library; weak, because not all exist in each library. */
#define NEEDED extern __attribute__((weak))
NEEDED void* (*__TVMBackendAllocWorkspace)(int, int, uint64_t, int, int);
NEEDED int (*__TVMBackendFreeWorkspace)(int, int, void*);
NEEDED int (*__TVMBackendParallelLaunch)(int (*)(int, Group*, void*), void*, int);

static DLTensor tensors[MOST_ARRAYS];
static int64_t shapes[MOST_ARRAYS][MOST_DIMENSIONS];
static size_t sizes[MOST_ARRAYS];
static TVMFFIAny arguments[MOST_ARRAYS], result;

int main(void) {
  if (&__TVMBackendAllocWorkspace) __TVMBackendAllocWorkspace = allocate_workspace;
  if (&__TVMBackendFreeWorkspace) __TVMBackendFreeWorkspace = free_workspace;
  if (&__TVMBackendParallelLaunch) __TVMBackendParallelLaunch = launch;

  int count = word(), results = word();
  if (count > MOST_ARRAYS) _exit(BAD_INPUT);
  for (int i = 0; i < count; ++i) {
    DLTensor* tensor = &tensors[i];
    tensor->dtype.code = word();
    tensor->dtype.bits = word();
    tensor->dtype.lanes = 1;
    tensor->ndim = word();
    tensor->device.device_type = kDLCPU;
    tensor->shape = shapes[i];
    sizes[i] = word();
    if (tensor->ndim > MOST_DIMENSIONS) _exit(BAD_INPUT);
    for (int axis = 0; axis < tensor->ndim; ++axis) shapes[i][axis] = word();
    arguments[i].type_index = kTVMFFIDLTensorPtr;
    arguments[i].v_ptr = tensor;
  }
  for (int i = 0; i < count; ++i) {
    uint8_t* data = tensors[i].data = allocate(sizes[i] + GUARD);
    receive(data, sizes[i]);
    for (int k = 0; k < GUARD; ++k) data[sizes[i] + k] = k;
  }
  if (__tvm_ffi_main(0, arguments, count, &result)) _exit(REFUSED);
  for (int i = 0; i < count; ++i)
    for (int k = 0; k < GUARD; ++k)
      if (((uint8_t*)tensors[i].data)[sizes[i] + k] != k) _exit(OVERRUN);
  for (int i = count - results; i < count; ++i) deliver(tensors[i].data, sizes[i]);
  _exit(0);
}

/* Loader of compiled models, see tvmopt.h. Link with -ldl -lpthread. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "tvmopt.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MOST_TENSORS 4096
#define MOST_SIZES 128
#define MOST_RANK 64
#define LINE_BYTES 65536

typedef int (*run_function)(void *const *tensors);

struct tvmopt_model {
  void *library;
  run_function *run; /* of each size */
  int (*configure)(int threads, long spin_us);
  const char *(*error)(void);
  int32_t inputs, outputs, sizes;
  tvmopt_tensor *tensors; /* of each size: inputs, then outputs */
};

static __thread char error_text[1024];

const char *tvmopt_error_text(void) { return error_text; }

static int fail(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(error_text, sizeof error_text, format, arguments);
  va_end(arguments);
  return -1;
}

void *tvmopt_alloc(size_t bytes) {
  void *memory = NULL;
  return posix_memalign(&memory, 64, bytes ? bytes : 64) ? NULL : memory;
}

/* ---- SHA-256, FIPS 180-4 ---- */

typedef struct {
  uint32_t state[8];
  uint64_t bytes;
  unsigned char block[64];
} sha256;

static const uint32_t ROUND[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t rotate(uint32_t x, int bits) { return x >> bits | x << (32 - bits); }

static void sha256_block(sha256 *sum, const unsigned char *block) {
  uint32_t w[64], s[8];
  for (int i = 0; i < 16; ++i)
    w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 |
           (uint32_t)block[4 * i + 2] << 8 | block[4 * i + 3];
  for (int i = 16; i < 64; ++i) {
    uint32_t a = w[i - 15], b = w[i - 2];
    w[i] = w[i - 16] + w[i - 7] + (rotate(a, 7) ^ rotate(a, 18) ^ a >> 3) +
           (rotate(b, 17) ^ rotate(b, 19) ^ b >> 10);
  }
  memcpy(s, sum->state, sizeof s);
  for (int i = 0; i < 64; ++i) {
    uint32_t e = rotate(s[4], 6) ^ rotate(s[4], 11) ^ rotate(s[4], 25);
    uint32_t a = rotate(s[0], 2) ^ rotate(s[0], 13) ^ rotate(s[0], 22);
    uint32_t t = s[7] + e + ((s[4] & s[5]) ^ (~s[4] & s[6])) + ROUND[i] + w[i];
    uint32_t u = a + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
    memmove(s + 1, s, 7 * sizeof *s);
    s[4] += t;
    s[0] = t + u;
  }
  for (int i = 0; i < 8; ++i) sum->state[i] += s[i];
}

static void sha256_add(sha256 *sum, const unsigned char *data, size_t bytes) {
  size_t held = (size_t)(sum->bytes % 64);
  sum->bytes += bytes;
  if (held) {
    size_t more = 64 - held < bytes ? 64 - held : bytes;
    memcpy(sum->block + held, data, more);
    data += more, bytes -= more;
    if (held + more < 64) return;
    sha256_block(sum, sum->block);
  }
  for (; bytes >= 64; data += 64, bytes -= 64) sha256_block(sum, data);
  memcpy(sum->block, data, bytes);
}

static void sha256_text(sha256 *sum, char *text) {
  uint64_t bits = sum->bytes * 8;
  unsigned char end[72] = {0x80};
  size_t zeros = (size_t)(119 - sum->bytes % 64) % 64;
  for (int i = 0; i < 8; ++i) end[1 + zeros + (size_t)i] = (unsigned char)(bits >> (56 - 8 * i));
  sha256_add(sum, end, zeros + 9);
  for (int i = 0; i < 8; ++i) sprintf(text + 8 * i, "%08" PRIx32, sum->state[i]);
}

/* ---- the CPU ---- */

static int has_word(const char *words, const char *word) {
  size_t length = strlen(word);
  for (const char *at = words; (at = strstr(at, word)); at += length)
    if ((at == words || strchr(" \t:", at[-1])) && (!at[length] || strchr(" \t\n", at[length])))
      return 1;
  return 0;
}

#if defined(__aarch64__)
static int has_flag(const char *flag) {
  static const char *const first[] = {
      "fp",   "asimd",   "evtstrm", "aes",   "pmull",    "sha1",  "sha2",   "crc32",
      "atomics", "fphp", "asimdhp", "cpuid", "asimdrdm", "jscvt", "fcma",   "lrcpc",
      "dcpop", "sha3",   "sm3",     "sm4",   "asimddp",  "sha512", "sve",   "asimdfhm",
      "dit",  "uscat",   "ilrcpc",  "flagm", "ssbs",     "sb",    "paca",   "pacg"};
  static const char *const second[] = {
      "dcpodp", "sve2", "sveaes", "svepmull", "svebitperm", "svesha3", "svesm4", "flagm2", "frint",
      "svei8mm", "svef32mm", "svef64mm", "svebf16", "i8mm", "bf16", "dgh", "rng", "bti", "mte"};
  for (unsigned i = 0; i < sizeof first / sizeof *first; ++i)
    if (!strcmp(flag, first[i])) return getauxval(AT_HWCAP) >> i & 1;
  for (unsigned i = 0; i < sizeof second / sizeof *second; ++i)
    if (!strcmp(flag, second[i])) return getauxval(AT_HWCAP2) >> i & 1;
  return 1; /* newer than this file: the kernel alone knows */
}
#else
/* Return the line of /proc/cpuinfo that lists the features of the first CPU. */
static const char *cpu_features(void) {
  static char line[LINE_BYTES];
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  pthread_mutex_lock(&lock);
  if (!line[0]) {
    FILE *file = fopen("/proc/cpuinfo", "r");
    while (file && fgets(line, sizeof line, file))
      if (!strncmp(line, "flags", 5) || !strncmp(line, "isa", 3)) break;
    if (file) fclose(file);
  }
  pthread_mutex_unlock(&lock);
  return line;
}

static int has_flag(const char *flag) {
#if defined(__riscv)
  const char *isa = strstr(cpu_features(), "rv64");
  if (!flag[1]) return getauxval(AT_HWCAP) >> (flag[0] - 'a') & 1;
  if (!isa) return 1; /* an emulator, which shows another CPU's page */
  for (const char *at = isa; (at = strstr(at, flag)); ++at)
    if (at[-1] == '_' && strchr("_\n", at[strlen(flag)])) return 1;
  return 0;
#else
  return has_word(cpu_features(), flag);
#endif
}
#endif

static const char *own_isa(void) {
#if defined(__x86_64__)
  return "x86_64";
#elif defined(__aarch64__)
  return "aarch64";
#elif defined(__riscv) && __riscv_xlen == 64
  return "riscv64";
#else
  return "another";
#endif
}

static int check_cpu(const char *isa, char *flags) {
  char missing[512] = "";
  if (strcmp(isa, own_isa()))
    return fail("the model was built for %s, but this program is for %s", isa, own_isa());
  int amx = has_word(flags, "amx_tile");
  for (char *rest, *flag = strtok_r(flags, " \n", &rest); flag; flag = strtok_r(NULL, " \n", &rest))
    if (!has_flag(flag) && strlen(missing) + strlen(flag) + 2 < sizeof missing)
      strcat(strcat(missing, " "), flag);
  if (missing[0])
    return fail("this CPU lacks%s, which the model was built for; build it again for this CPU",
                missing);
#if defined(__x86_64__)
  if (amx && syscall(SYS_arch_prctl, 0x1023, 18)) /* ARCH_REQ_XCOMP_PERM, XTILEDATA */
    return fail("the model uses AMX, which Linux refused to this process");
#endif
  (void)amx;
  return 0;
}

/* ---- the folder ---- */

/* Copy a file into memory that nobody can change, check its hash; return a descriptor, or -1. */
static int sealed_copy(const char *path, const char *expected) {
  sha256 sum = {{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c,
                 0x1f83d9ab, 0x5be0cd19}, 0, {0}};
  char hash[65];
  unsigned char *data = (unsigned char *)malloc(1 << 16);
  int source = open(path, O_RDONLY | O_CLOEXEC);
  int copy = (int)syscall(SYS_memfd_create, "model.so", 3 /* MFD_CLOEXEC | MFD_ALLOW_SEALING */);
  ssize_t bytes = -1;
  while (data && source >= 0 && copy >= 0 && (bytes = read(source, data, 1 << 16)) > 0) {
    ssize_t written = 0, more = 0;
    for (; written < bytes && more >= 0; written += more)
      more = write(copy, data + written, (size_t)(bytes - written));
    if (more < 0) break;
    sha256_add(&sum, data, (size_t)bytes);
  }
  int code = errno;
  if (source >= 0) close(source);
  free(data);
  if (bytes || fcntl(copy, 1033 /* F_ADD_SEALS */, 0xf /* seal, shrink, grow, write */)) {
    if (copy >= 0) close(copy);
    return fail("%s must be read into sealed memory, but: %s", path, strerror(code));
  }
  sha256_text(&sum, hash);
  if (strcmp(hash, expected)) {
    close(copy);
    return fail("%s must have sha256 %.16s..., but got %.16s...: it was changed or damaged; fetch "
                "the model again", path, expected, hash);
  }
  return copy;
}

static int open_library(tvmopt_model *model, const char *path, const char *hash) {
  static unsigned opened;
  char name[256] = "/proc/self/fd/", *end = name + strlen(name);
  int file = sealed_copy(path, hash);
  if (file < 0) return -1;
  /* The linker takes two libraries of one path for one: a number is written in slashes. */
  for (unsigned bits = __atomic_add_fetch(&opened, 1, __ATOMIC_RELAXED); bits; bits >>= 1)
    end += sprintf(end, bits & 1 ? "./" : "/");
  sprintf(end, "%d", file);
  model->library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  close(file);
  if (!model->library) return fail("the system must load %s, but says: %s", path, dlerror());
  model->run = (run_function *)calloc((size_t)model->sizes, sizeof(run_function));
  if (!model->run) return fail("out of memory");
  for (int32_t size = 0; size < model->sizes; ++size) {
    char run[32] = "tvmopt_run";
    if (size) snprintf(run, sizeof run, "tvmopt_run_%" PRId32, size);
    *(void **)&model->run[size] = dlsym(model->library, run);
    if (!model->run[size])
      return fail("%s must be a native library of tvmopt with %" PRId32 " sizes, but is not", path,
                  model->sizes);
  }
  *(void **)&model->configure = dlsym(model->library, "tvmopt_configure");
  *(void **)&model->error = dlsym(model->library, "tvmopt_error");
  if (!model->configure || !model->error)
    return fail("%s must be a native library of tvmopt, but is not", path);
  return 0;
}

static size_t item_bytes(const char *dtype) {
  static const struct {
    const char *name;
    size_t bytes;
  } known[] = {{"float32", 4}, {"float64", 8}, {"float16", 2}, {"bfloat16", 2}, {"int8", 1},
               {"uint8", 1}, {"int16", 2}, {"uint16", 2}, {"int32", 4}, {"uint32", 4},
               {"int64", 8}, {"uint64", 8}, {"bool", 1}};
  for (size_t i = 0; i < sizeof known / sizeof *known; ++i)
    if (!strcmp(dtype, known[i].name)) return known[i].bytes;
  return 0;
}

/* Read the extents of a tensor, whose bytes are those of an item. */
static int read_extents(tvmopt_tensor *tensor, int64_t *shape, char **rest) {
  for (int i = 0; i < tensor->rank; ++i) {
    char *extent = strtok_r(NULL, " ", rest);
    shape[i] = extent ? strtoll(extent, NULL, 10) : -1;
    if (shape[i] < 0 || __builtin_mul_overflow(tensor->bytes, (size_t)shape[i], &tensor->bytes))
      return -1;
  }
  return 0;
}

/* Read "dtype rank extents name"; the name lasts to the end of the line. */
static int read_tensor(tvmopt_tensor *tensor, char *text) {
  char *rest, *dtype = strtok_r(text, " ", &rest), *rank = strtok_r(NULL, " ", &rest);
  size_t item = dtype ? item_bytes(dtype) : 0;
  if (!item || !rank || atoi(rank) < 0 || atoi(rank) > MOST_RANK) return -1;
  int64_t *shape = (int64_t *)calloc((size_t)atoi(rank) + 1, sizeof(int64_t));
  tensor->rank = atoi(rank);
  tensor->shape = shape;
  tensor->bytes = item;
  tensor->dtype = strdup(dtype);
  if (!shape || read_extents(tensor, shape, &rest)) return -1;
  rest[strcspn(rest, "\n")] = 0;
  tensor->name = strdup(rest);
  return tensor->dtype && tensor->name ? 0 : -1;
}

/* Read the extents of one more size, of all tensors in turn; the rest is as in the first size. */
static int read_size(tvmopt_model *model, char *text) {
  size_t count = (size_t)(model->inputs + model->outputs), sizes = (size_t)model->sizes;
  if (!model->outputs || sizes == MOST_SIZES) return -1;
  tvmopt_tensor *first =
      (tvmopt_tensor *)realloc(model->tensors, (sizes + 1) * count * sizeof *first);
  if (!first) return -1;
  tvmopt_tensor *more = (tvmopt_tensor *)memset(first + sizes * count, 0, count * sizeof *first);
  model->tensors = first;
  model->sizes += 1;
  for (size_t i = 0; i < count; ++i) {
    int64_t *shape = (int64_t *)calloc((size_t)first[i].rank + 1, sizeof(int64_t));
    more[i].shape = shape;
    more[i].rank = first[i].rank;
    more[i].bytes = item_bytes(first[i].dtype);
    more[i].dtype = strdup(first[i].dtype);
    more[i].name = strdup(first[i].name);
    if (!shape || !more[i].dtype || !more[i].name ||
        read_extents(&more[i], shape, &text))
      return -1;
  }
  return strtok_r(NULL, " ", &text) ? -1 : 0;
}

static int read_model(tvmopt_model *model, const char *folder) {
  char path[4096], isa[64] = "", hash[65] = "";
  static const char *const rule = "%s must be written by tvmopt's pull, but is damaged";
  char *flags = NULL, *line = NULL;
  size_t size = 0;
  int result = -1, version = 0;
  model->sizes = 1;
  if (snprintf(path, sizeof path, "%s/model.txt", folder) >= (int)sizeof path)
    return fail("the folder's name is too long");
  FILE *file = fopen(path, "r");
  if (!file) return fail("a model's folder must hold model.txt, but %s: %s", path, strerror(errno));
  model->tensors = (tvmopt_tensor *)calloc(MOST_TENSORS, sizeof(tvmopt_tensor));
  while (model->tensors && getline(&line, &size, file) > 0) {
    char *value = strchr(line, ' ');
    if (!value) goto damaged;
    *value++ = 0;
    value[strcspn(value, "\n")] = 0;
    int32_t count = model->inputs + model->outputs;
    if (!strcmp(line, "tvmopt")) version = atoi(value);
    else if (!strcmp(line, "sha256")) snprintf(hash, sizeof hash, "%s", value);
    else if (!strcmp(line, "isa")) snprintf(isa, sizeof isa, "%s", value);
    else if (!strcmp(line, "flags")) free(flags), flags = strdup(value);
    else if (!strcmp(line, "input") || !strcmp(line, "output")) {
      int is_input = line[0] == 'i';
      if (count == MOST_TENSORS || (is_input && model->outputs) || model->sizes > 1) goto damaged;
      *(is_input ? &model->inputs : &model->outputs) += 1;
      if (read_tensor(&model->tensors[count], value)) goto damaged;
    } else if (!strcmp(line, "size")) {
      if (read_size(model, value)) goto damaged;
    }
  }
  if (version != 1) {
    fail("%s must be of version 1, but is of version %d; use the tvmopt.c that came with it", path,
         version);
    goto end;
  }
  if (!flags || !model->outputs || strlen(hash) != 64) goto damaged;
  if (check_cpu(isa, flags)) goto end;
  strcpy(path + strlen(folder), "/model.so");
  result = open_library(model, path, hash);
  goto end;
damaged:
  fail(rule, path);
end:
  fclose(file);
  free(line);
  free(flags);
  return result;
}

tvmopt_model *tvmopt_load(const char *folder) {
  tvmopt_model *model = (tvmopt_model *)calloc(1, sizeof(tvmopt_model));
  if (!model) {
    fail("out of memory");
  } else if (read_model(model, folder)) {
    tvmopt_free(model);
    model = NULL;
  }
  return model;
}

void tvmopt_free(tvmopt_model *model) {
  if (!model) return;
  int32_t count = model->sizes * (model->inputs + model->outputs);
  for (int32_t i = 0; model->tensors && i < count; ++i) {
    free((void *)model->tensors[i].name);
    free((void *)model->tensors[i].dtype);
    free((void *)model->tensors[i].shape);
  }
  free(model->tensors);
  free(model->run);
  if (model->library) dlclose(model->library);
  free(model);
}

int32_t tvmopt_input_count(const tvmopt_model *model) { return model->inputs; }

int32_t tvmopt_output_count(const tvmopt_model *model) { return model->outputs; }

int32_t tvmopt_size_count(const tvmopt_model *model) { return model->sizes; }

static const tvmopt_tensor *tensor_of(const tvmopt_model *model, int32_t size, int32_t position) {
  if (size < 0 || size >= model->sizes) return NULL;
  return &model->tensors[size * (model->inputs + model->outputs) + position];
}

const tvmopt_tensor *tvmopt_input_of_size(const tvmopt_model *model, int32_t size,
                                          int32_t position) {
  if (position < 0 || position >= model->inputs) return NULL;
  return tensor_of(model, size, position);
}

const tvmopt_tensor *tvmopt_output_of_size(const tvmopt_model *model, int32_t size,
                                           int32_t position) {
  if (position < 0 || position >= model->outputs) return NULL;
  return tensor_of(model, size, model->inputs + position);
}

const tvmopt_tensor *tvmopt_input(const tvmopt_model *model, int32_t position) {
  return tvmopt_input_of_size(model, 0, position);
}

const tvmopt_tensor *tvmopt_output(const tvmopt_model *model, int32_t position) {
  return tvmopt_output_of_size(model, 0, position);
}

int tvmopt_set_threads(tvmopt_model *model, int threads, long spin_us) {
  return model->configure(threads, spin_us) ? fail("%s", model->error()) : 0;
}

int tvmopt_run(const tvmopt_model *model, const void *const *inputs, void *const *outputs) {
  return tvmopt_run_size(model, 0, inputs, outputs);
}

int tvmopt_run_size(const tvmopt_model *model, int32_t size, const void *const *inputs,
                    void *const *outputs) {
  void *few[32], **tensors = few;
  size_t count = (size_t)(model->inputs + model->outputs);
  int code;
  if (size < 0 || size >= model->sizes)
    return fail("size must be at least 0 and less than %" PRId32 ", but got %" PRId32,
                model->sizes, size);
  if (count > sizeof few / sizeof *few) tensors = (void **)malloc(count * sizeof *tensors);
  if (!tensors) return fail("out of memory");
  memcpy(tensors, inputs, (size_t)model->inputs * sizeof *tensors);
  memcpy(tensors + model->inputs, outputs, (size_t)model->outputs * sizeof *tensors);
  code = model->run[size](tensors);
  if (tensors != few) free(tensors);
  return code ? fail("the model failed: %s", model->error()) : 0;
}

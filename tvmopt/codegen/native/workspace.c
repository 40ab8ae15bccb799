/* See workspace.h. As calls repeat, one chunk grows to hold all that a call needs. */
#include "workspace.h"

#include <stdlib.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LINE_BYTES 64
#define LEAST_CHUNK_BYTES ((size_t)1 << 16)
#define HIDDEN __attribute__((visibility("hidden")))

static void drop(TvmoptChunk *chunk) {
  free(chunk->data);
  free(chunk);
}

HIDDEN void tvmopt_free_chunks(TvmoptChunk **newest) {
  while (*newest) {
    TvmoptChunk *chunk = *newest;
    *newest = chunk->before;
    drop(chunk);
  }
}

static int add_chunk(TvmoptChunk **newest, size_t bytes) {
  TvmoptChunk *chunk = (TvmoptChunk *)calloc(1, sizeof(TvmoptChunk));
  void *data = NULL;
  if (bytes < LEAST_CHUNK_BYTES) bytes = LEAST_CHUNK_BYTES;
  if (!chunk || posix_memalign(&data, 4096, bytes)) {
    free(chunk);
    return -1;
  }
  chunk->data = (char *)data;
  chunk->size = bytes;
  chunk->before = *newest;
  *newest = chunk;
  return 0;
}

HIDDEN void *tvmopt_take(TvmoptChunk **newest, size_t bytes) {
  size_t size = (bytes / LINE_BYTES + 1) * LINE_BYTES; /* never none */
  TvmoptChunk *chunk = *newest;
  if (!chunk || chunk->size - chunk->top < size) {
    size_t total = size;
    for (TvmoptChunk *one = chunk; one; one = one->before) total += one->size;
    if (chunk && !chunk->top) { /* nothing else is in use, or the chunk before it is */
      *newest = chunk->before;
      drop(chunk);
    }
    if (add_chunk(newest, total)) return NULL;
    chunk = *newest;
  }
  void *result = chunk->data + chunk->top;
  chunk->top += size;
  return result;
}

HIDDEN void tvmopt_give_back(TvmoptChunk **newest, void *memory) {
  TvmoptChunk *chunk = *newest, *before = chunk->before;
  char *at = (char *)memory;
  if (at >= chunk->data && at < chunk->data + chunk->size) {
    chunk->top = (size_t)(at - chunk->data);
  } else { /* the newest chunk is empty */
    before->top = (size_t)(at - before->data);
  }
  if (before && !before->top) { /* the newest chunk is large enough for all */
    chunk->before = before->before;
    drop(before);
  }
}

#ifdef __cplusplus
}
#endif

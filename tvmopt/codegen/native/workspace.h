/* Workspace of the kernels of a call: memory is given back in the reverse order. */
#ifndef TVMOPT_WORKSPACE_H_
#define TVMOPT_WORKSPACE_H_

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A piece of memory; a pointer to the top suffices. */
typedef struct TvmoptChunk {
  struct TvmoptChunk *before;
  size_t size, top;
  char *data;
} TvmoptChunk;

/* Return `bytes` at a cache line; NULL if there is no memory. `newest` is the newest chunk. */
void *tvmopt_take(TvmoptChunk **newest, size_t bytes);

/* Give back what was taken last. */
void tvmopt_give_back(TvmoptChunk **newest, void *memory);

/* Free all chunks. */
void tvmopt_free_chunks(TvmoptChunk **newest);

#ifdef __cplusplus
}
#endif
#endif

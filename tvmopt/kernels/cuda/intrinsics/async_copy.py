"""CUDA device functions of ``cp.async``: copies from global to shared memory in the background."""

from __future__ import annotations

#: Source to put in front of a device function that calls them; it may occur several times.
ASYNC_COPY = """
#ifndef TVMOPT_ASYNC_COPY
#define TVMOPT_ASYNC_COPY
// 16 bytes from global to shared memory, without waiting; zeros where not inside.
__device__ __forceinline__ void tvmopt_copy16(unsigned int to, const void* from, bool inside) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
               :: "r"(to), "l"(from), "r"(inside ? 16 : 0) : "memory");
}
__device__ __forceinline__ void tvmopt_copy4(unsigned int to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void tvmopt_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int left>  // until all but the last so many commits' copies are there
__device__ __forceinline__ void tvmopt_wait() {
  asm volatile("cp.async.wait_group %0;" :: "n"(left) : "memory");
}
#endif
"""

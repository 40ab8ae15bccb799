"""Run the int4 kernel's CUDA text on the CPU: a thread for each of a block's, with barriers.

What is one instruction on the GPU (copies, bit operations, the tensor instruction) is written out
here; all the rest, which is where mistakes are made, is the kernel's own text.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np

CXX = shutil.which("g++") or shutil.which("c++")

_MACHINE = r"""
#include <algorithm>
#include <barrier>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>
#define __device__
#define __forceinline__ inline
using std::min;
struct half { unsigned short bits; };
struct uint4 { unsigned int x, y, z, w; };
struct Place { int x; };
thread_local Place threadIdx;
static unsigned char* base;
static std::unique_ptr<std::barrier<>> everyone;
static std::vector<std::unique_ptr<std::barrier<>>> warps;
struct Operands { unsigned int a[4], b[2]; };
static std::vector<Operands> held;

static float number(unsigned short bits) {
  const int sign = bits >> 15, exponent = bits >> 10 & 31, rest = bits & 1023;
  const float value = exponent ? __builtin_ldexpf(1024 + rest, exponent - 25)
                               : __builtin_ldexpf(rest, -24);
  return sign ? -value : value;
}
static unsigned short bits_of(float value) {  // what occurs here is exact
  int e = 0;
  const float part = __builtin_frexpf(__builtin_fabsf(value), &e);
  const int bits = part == 0 ? 0 : e > -14 ? (e + 14 - 1) * 1024 + static_cast<int>(part * 2048)
                                           : static_cast<int>(__builtin_ldexpf(part, e + 24));
  if (number(bits) != __builtin_fabsf(value)) __builtin_trap();
  return bits | (value < 0) << 15;
}
static void __syncthreads() { everyone->arrive_and_wait(); }
static void __syncwarp() { warps[threadIdx.x / 32]->arrive_and_wait(); }
template <class T> static T __ldg(const T* from) { return *from; }
static float __half2float(half h) { return number(h.bits); }
static unsigned short __half_as_ushort(half h) { return h.bits; }
static uint4 make_uint4(unsigned int x, unsigned int y, unsigned int z, unsigned int w) {
  return {x, y, z, w};
}
static size_t __cvta_generic_to_shared(const void* p) {
  return static_cast<const unsigned char*>(p) - base;
}
static void tvmopt_copy16(unsigned int to, const void* from, bool inside) {
  if (to % 16) __builtin_trap();
  if (inside) std::memcpy(base + to, from, 16); else std::memset(base + to, 0, 16);
}
static void tvmopt_copy4(unsigned int to, const void* from) {
  if (to % 4 || reinterpret_cast<size_t>(from) % 4) __builtin_trap();
  std::memcpy(base + to, from, 4);
}
static void tvmopt_commit() {}
template <int left> static void tvmopt_wait() {}
static unsigned int each(unsigned int word, unsigned int less, float times, unsigned int bits) {
  unsigned int made = 0;
  for (int n = 0; n < 2; ++n) {
    const float v = number((word >> 16 * n & bits) | 0x6400);
    made |= static_cast<unsigned int>(bits_of(v * times + number(less & 0xffff))) << 16 * n;
  }
  return made;
}
static unsigned int tvmopt_even(unsigned int word, unsigned int less) {
  return each(word, less ^ 0x8000, 1.0f, 0xf);
}
static unsigned int tvmopt_odd(unsigned int word, unsigned int less) {
  return each(word, less, 0.0625f, 0xf0);
}
static unsigned int tvmopt_times(unsigned int a, unsigned int b) {  // scales here are powers of two
  return bits_of(number(a) * number(b)) |
         static_cast<unsigned int>(bits_of(number(a >> 16) * number(b >> 16))) << 16;
}
static uint4 tvmopt_paired(uint4 x) {
  const unsigned int low = 0xffff;
  return {(x.x & low) | x.z << 16, x.x >> 16 | (x.z & ~low), (x.y & low) | x.w << 16,
          x.y >> 16 | (x.w & ~low)};
}
static void tvmopt_mma(float* c, unsigned int a0, unsigned int a1, unsigned int a2, unsigned int a3,
                       unsigned int b0, unsigned int b1) {
  const int first = threadIdx.x / 32 * 32, lane = threadIdx.x % 32;
  held[threadIdx.x] = {{a0, a1, a2, a3}, {b0, b1}};
  __syncwarp();
  for (int n = 0; n < 4; ++n) {
    const int row = lane / 4 + n / 2 * 8, column = lane % 4 * 2 + n % 2;
    for (int k = 0; k < 16; ++k) {
      const Operands& a = held[first + row % 8 * 4 + k % 8 / 2];
      const Operands& b = held[first + column * 4 + k % 8 / 2];
      c[n] += number(a.a[row / 8 + k / 8 * 2] >> 16 * (k % 2)) * number(b.b[k / 8] >> 16 * (k % 2));
    }
  }
  __syncwarp();
}
"""
_MAIN = r"""
extern "C" void run(const void* x, const void* w, const void* s, float* totals, int blocks,
                    int threads, int size) {
  std::vector<unsigned char> memory(size + 64, 0xff);
  base = reinterpret_cast<unsigned char*>((reinterpret_cast<size_t>(memory.data()) + 63) / 64 * 64);
  held.resize(threads);
  for (int block = 0; block < blocks; ++block) {
    everyone = std::make_unique<std::barrier<>>(threads);
    warps.clear();
    for (int n = 0; n < threads / 32; ++n) warps.push_back(std::make_unique<std::barrier<>>(32));
    std::vector<std::thread> running;
    for (int n = 0; n < threads; ++n)
      running.emplace_back([=] {
        threadIdx.x = n;
        totals[block * threads + n] = NAME(x, w, s, base, block);
      });
    for (auto& one : running) one.join();
  }
}
"""


def run_int4(
    folder: Path,
    source: str,
    name: str,
    arrays: list[np.ndarray],
    blocks: int,
    threads: int,
    size: int,
) -> np.ndarray:
    """What each thread of each block returns: float32 of ``(blocks, threads)``.

    Args:
        folder: Where to compile.
        source: The text of the device function ``name``.
        name: Its name.
        arrays: Activation, weights and scales.
        blocks: Thread blocks.
        threads: Threads of each.
        size: Bytes of shared memory of a block.
    """
    text = source[source.index("#endif") + len("#endif") :]
    file, library = folder / f"{name}.cc", folder / f"{name}.so"
    file.write_text(_MACHINE + text + _MAIN.replace("NAME", name))
    command = [str(CXX), "-std=c++20", "-O1", "-w", "-shared", "-fPIC", "-pthread", str(file)]
    subprocess.run([*command, "-o", str(library)], check=True, capture_output=True, text=True)
    totals = np.zeros((blocks, threads), np.float32)
    pointers = [ctypes.c_void_p(a.ctypes.data) for a in (*arrays, totals)]
    ctypes.CDLL(str(library)).run(*pointers, blocks, threads, size)
    return totals

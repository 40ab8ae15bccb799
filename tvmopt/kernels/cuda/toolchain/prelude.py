"""Prelude for generated kernels: CUDA's device headers without the host's headers.

CUDA's own headers declare the device functions; they are read from the installed toolkit. They
include host headers for host code; stand-in files define the few names that they need from these.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

#: CUDA headers that a prelude may include, in dependency order.
HEADERS = ("cuda_fp16.h", "cuda_bf16.h", "cuda_fp8.h", "math_constants.h", "mma.h")
#: Headers of which every prelude defines the part that kernels use.
OWN_HEADERS = ("cstdint", "stdint.h", "type_traits", "cuda.h", "sm_61_intrinsics.h")

# Include guards of CUDA headers without device code: host runtime, textures.
_LEFT_OUT = (
    "__CUDA_RUNTIME_API_H__", "__CUDA_DEVICE_RUNTIME_API_H__", "__TEXTURE_INDIRECT_FUNCTIONS_H__",
    "__SURFACE_INDIRECT_FUNCTIONS_H__",
)  # fmt: skip
_BASE = (
    "crt/host_config.h", "builtin_types.h", "crt/host_defines.h", "vector_functions.h",
    "crt/common_functions.h", "crt/device_functions.h", "device_launch_parameters.h",
)  # fmt: skip

_EMPTY = (
    "algorithm", "cmath", "cstdint", "cstdlib", "cstring", "ctype.h",
    "cuda.h", "functional", "initializer_list", "iosfwd", "limits", "limits.h", "malloc.h",
    "math.h", "memory.h", "new", "ostream", "stdint.h", "stdio.h", "stdlib.h", "string.h",
    "type_traits",
)  # fmt: skip

_FEATURES = """
#pragma once
#define __GNUC_PREREQ(major, minor) 1
#define __GLIBC_PREREQ(major, minor) 0
#define __GLIBC_USE_ISOC23 0
#define __THROW noexcept(true)
"""
_STDDEF = """
#pragma once
typedef decltype(sizeof(0)) size_t;
typedef long ptrdiff_t;
#define NULL 0
namespace std { using ::size_t; typedef decltype(nullptr) nullptr_t; }
"""
_STDINT = """
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long uint64_t;
typedef long intptr_t;
typedef unsigned long uintptr_t;
typedef unsigned long ulong;
"""
_ASSERT = """
#define assert(held) ((held) ? (void)0 : __assert_fail(#held, __FILE__, __LINE__, __func__))
"""
_TIME = "#pragma once\ntypedef long clock_t;\ntypedef long time_t;\n"
_UTILITY = """
#pragma once
namespace std {
template <class T> struct remove_reference { typedef T type; };
template <class T> struct remove_reference<T&> { typedef T type; };
template <class T> struct remove_reference<T&&> { typedef T type; };
template <class T>
__attribute__((host)) __attribute__((device)) constexpr typename remove_reference<T>::type&&
move(T&& value) noexcept {
  return static_cast<typename remove_reference<T>::type&&>(value);
}
}
"""
_TYPE_TRAITS = """
namespace std {
template <class T, T v> struct integral_constant { static constexpr T value = v; };
template <class A, class B> struct is_same : integral_constant<bool, false> {};
template <class A> struct is_same<A, A> : integral_constant<bool, true> {};
template <class A, class B> inline constexpr bool is_same_v = is_same<A, B>::value;
template <bool b, class T = void> struct enable_if {};
template <class T> struct enable_if<true, T> { typedef T type; };
template <bool b, class T, class F> struct conditional { typedef T type; };
template <class T, class F> struct conditional<false, T, F> { typedef F type; };
}
"""
# As in cuda.h: the TMA descriptor, which a kernel takes by value.
_TENSOR_MAP = """
#if __CUDACC_VER_MAJOR__ >= 13
struct alignas(128) CUtensorMap_st {
#else
struct alignas(64) CUtensorMap_st {
#endif
  unsigned long long opaque[16]; };
typedef struct CUtensorMap_st CUtensorMap;
"""
_THREAD_RANK = """
namespace cooperative_groups {
struct thread_block {
  __device__ __forceinline__ unsigned int thread_rank() const {
    return threadIdx.z * blockDim.y * blockDim.x + threadIdx.y * blockDim.x + threadIdx.x;
  }
};
__device__ __forceinline__ thread_block this_thread_block() { return thread_block(); }
}
"""
# Functions of the host's <cmath> with one and with two arguments.
_ONE = (
    "acos", "asin", "atan", "ceil", "cos", "cosh", "exp", "fabs", "floor", "log", "log10", "sin",
    "sinh", "sqrt", "tan", "tanh",
)  # fmt: skip
_TWO = ("atan2", "fmod", "pow")


def _cmath() -> str:
    """Return the stand-in for ``<cmath>``: the overloads that device code uses."""
    mark = "__attribute__((host)) __attribute__((device)) inline float"
    lines = ["#pragma once", "namespace std {"]
    for name in _ONE:
        lines += [f"{mark} {name}(float x) {{ return ::{name}f(x); }}", f"using ::{name};"]
    for name in _TWO:
        lines += [
            f"{mark} {name}(float x, float y) {{ return ::{name}f(x, y); }}", f"using ::{name};"
        ]  # fmt: skip
    lines += [
        f"{mark} abs(float x) {{ return ::fabsf(x); }}",
        "__attribute__((host)) __attribute__((device)) inline double abs(double x) "
        "{ return ::fabs(x); }",
        "using ::abs;",
        f"{mark} modf(float x, float* y) {{ return ::modff(x, y); }}",
        "using ::modf;",
        f"{mark} frexp(float x, int* y) {{ return ::frexpf(x, y); }}",
        "using ::frexp;",
        f"{mark} ldexp(float x, int y) {{ return ::ldexpf(x, y); }}",
        "using ::ldexp;",
        "}",
        "namespace __gnu_cxx {",
        "template <class A, class B> struct __promote_2 { typedef double __type; };",
        "}",
    ]
    return "\n".join(lines)


def write_stand_ins(folder: Path) -> None:
    """Write the stand-ins for the host headers into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in _EMPTY:
        (folder / name).write_text("")
    for name, text in (
        ("features.h", _FEATURES),
        ("stddef.h", _STDDEF),
        ("cstddef", _STDDEF),
        ("assert.h", _ASSERT),
        ("cassert", _ASSERT),
        ("time.h", _TIME),
        ("utility", _UTILITY),
        ("cmath", _cmath()),
    ):
        (folder / name).write_text(text.lstrip())


def prelude_source(headers: Sequence[str]) -> str:
    """Return the text that is preprocessed once for kernels that include ``headers``."""
    lines = ["#define __CUDA_INCLUDE_COMPILER_INTERNAL_HEADERS__"]
    lines += [f"#define {guard}" for guard in _LEFT_OUT]
    lines += [f"#include <{name}>" for name in ("features.h", "stddef.h")]
    lines += [f'#include "{name}"' for name in _BASE]
    lines += [_STDINT, _TYPE_TRAITS, _TENSOR_MAP, _THREAD_RANK]
    lines += [f"#include <{name}>" for name in HEADERS if name in headers]
    return "\n".join(lines) + "\n"

// Entry point that TVM's host code calls instead of a kernel launch.
#pragma once
#include <tvm/ffi/c_api.h>

#include <tuple>
#include <utility>

#include "builtins.h"

namespace emu {
// ``tags`` are TVM's launch parameter tags, ended by nullptr. Tags of extents and of shared memory
// have a value each after the kernel's own arguments. ``fixed`` is the size of static shared memory.
int run(const char* const* tags, const TVMFFIAny* given, int first, int count, unsigned fixed,
        std::function<void()> kernel);

template <class T>
inline T argument(const TVMFFIAny& given) {
  if constexpr (std::is_same_v<T, CUtensorMap>) return *static_cast<CUtensorMap*>(given.v_ptr);
  else if constexpr (std::is_pointer_v<T>) return static_cast<T>(given.v_ptr);
  else if constexpr (std::is_floating_point_v<T>) return static_cast<T>(given.v_float64);
  else return static_cast<T>(given.v_int64);
}
template <class... Params, size_t... Numbers>
inline int launch_with(void (*kernel)(Params...), const char* const* tags, const TVMFFIAny* given,
                       int count, unsigned fixed, std::index_sequence<Numbers...>) {
  const std::tuple<std::remove_cv_t<Params>...> arguments{
      argument<std::remove_cv_t<Params>>(given[Numbers])...};
  return run(tags, given, sizeof...(Params), count, fixed,
             [&] { kernel(std::get<Numbers>(arguments)...); });
}
template <class... Params>
inline int launch(void (*kernel)(Params...), const char* const* tags, const TVMFFIAny* given, int count,
                  unsigned fixed) {
  return launch_with(kernel, tags, given, count, fixed, std::index_sequence_for<Params...>{});
}
}  // namespace emu

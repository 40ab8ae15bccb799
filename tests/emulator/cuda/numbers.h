// Numbers and vectors of CUDA on a CPU: IEEE half precision, bfloat16, fp8, float4 and its kin.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace emu {
template <class To, class From>
inline To bits(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}
extern float half_values[65536];
inline float of_half(uint16_t b) { return half_values[b]; }
inline uint16_t to_half(double v) {  // to the nearest, ties to even
  const uint16_t sign = std::signbit(v) ? 0x8000 : 0;
  const double size = std::fabs(v);
  if (v != v) return 0x7e00 | sign;
  if (size >= 65520) return 0x7c00 | sign;
  const int exponent = size < 0x1p-14 ? -14 : std::ilogb(size);
  const double steps = std::nearbyint(std::ldexp(size, 10 - exponent));  // 1024 or more, if normal
  return static_cast<uint16_t>(((exponent + 14) << 10) + static_cast<int>(steps)) | sign;
}
inline float of_bfloat(uint16_t b) { return bits<float>(static_cast<uint32_t>(b) << 16); }
inline uint16_t to_bfloat(float v) {  // to the nearest, ties to even
  const uint32_t b = bits<uint32_t>(v);
  if (v != v) return 0x7fff;
  return static_cast<uint16_t>((b + 0x7fff + (b >> 16 & 1)) >> 16);
}
inline float of_e4m3(uint8_t b) {
  const int e = b >> 3 & 15, m = b & 7;
  float v = e ? std::ldexp(8.0f + m, e - 10) : std::ldexp(static_cast<float>(m), -9);
  if (e == 15 && m == 7) v = NAN;
  return b >> 7 ? -v : v;
}
inline float of_e5m2(uint8_t b) { return of_half(static_cast<uint16_t>(b << 8)); }
}  // namespace emu

#define EMU_NARROW(NAME, TO, OF)                                                      \
  struct alignas(2) NAME {                                                            \
    uint16_t b;                                                                       \
    NAME() = default;                                                                 \
    NAME(const NAME&) = default;                                                      \
    NAME(const volatile NAME& o) : b(o.b) {}                                          \
    NAME& operator=(const NAME&) = default;                                           \
    void operator=(const NAME& o) volatile { b = o.b; }                               \
    template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>             \
    NAME(T v) : b(TO(v)) {}                                                           \
    operator float() const volatile { return OF(b); }                                 \
    NAME operator-() const { return NAME(-static_cast<float>(*this)); }               \
    NAME& operator+=(NAME o) { return *this = *this + o; }                            \
    NAME& operator-=(NAME o) { return *this = *this - o; }                            \
    NAME& operator*=(NAME o) { return *this = *this * o; }                            \
    friend NAME operator+(NAME x, NAME y) { return float(x) + float(y); }             \
    friend NAME operator-(NAME x, NAME y) { return float(x) - float(y); }             \
    friend NAME operator*(NAME x, NAME y) { return float(x) * float(y); }             \
    friend NAME operator/(NAME x, NAME y) { return float(x) / float(y); }             \
    friend bool operator<(NAME x, NAME y) { return float(x) < float(y); }             \
    friend bool operator>(NAME x, NAME y) { return float(x) > float(y); }             \
    friend bool operator<=(NAME x, NAME y) { return float(x) <= float(y); }           \
    friend bool operator>=(NAME x, NAME y) { return float(x) >= float(y); }           \
    friend bool operator==(NAME x, NAME y) { return float(x) == float(y); }           \
    friend bool operator!=(NAME x, NAME y) { return float(x) != float(y); }           \
  };
EMU_NARROW(half, emu::to_half, emu::of_half)
EMU_NARROW(__nv_bfloat16, emu::to_bfloat, emu::of_bfloat)
#undef EMU_NARROW
using __half = half;
using nv_bfloat16 = __nv_bfloat16;
#define EMU_PAIR(NAME, ONE)           \
  struct alignas(4) NAME {            \
    ONE x, y;                         \
    NAME() = default;                 \
    NAME(ONE a, ONE b) : x(a), y(b) {} \
  };
EMU_PAIR(half2, half)
EMU_PAIR(nv_bfloat162, nv_bfloat16)
#undef EMU_PAIR
using __half2 = half2;
using __nv_bfloat162 = nv_bfloat162;

#define EMU_VECTOR(T, NAME)                                                            \
  struct alignas(2 * sizeof(T)) NAME##2 { T x, y; };                                   \
  struct alignas(std::min<size_t>(16, 4 * sizeof(T))) NAME##4 { T x, y, z, w; };       \
  struct NAME##3 { T x, y, z; };                                                       \
  inline NAME##2 make_##NAME##2(T x, T y) { return {x, y}; }                           \
  inline NAME##4 make_##NAME##4(T x, T y, T z, T w) { return {x, y, z, w}; }
EMU_VECTOR(signed char, char)
EMU_VECTOR(unsigned char, uchar)
EMU_VECTOR(short, short)
EMU_VECTOR(unsigned short, ushort)
EMU_VECTOR(int, int)
EMU_VECTOR(unsigned int, uint)
EMU_VECTOR(long long, longlong)
EMU_VECTOR(unsigned long long, ulonglong)
EMU_VECTOR(float, float)
EMU_VECTOR(double, double)
#undef EMU_VECTOR

inline half2 make_half2(half x, half y) { return {x, y}; }
inline half __float2half(float v) { return v; }
inline half __float2half_rn(float v) { return v; }
inline float __half2float(half v) { return v; }
inline unsigned short __half_as_ushort(half v) { return v.b; }
inline half __ushort_as_half(unsigned short v) { return emu::bits<half>(v); }
inline half2 __floats2half2_rn(float x, float y) { return {half(x), half(y)}; }
inline nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return {x, y}; }
inline half2 __half2half2(half v) { return {v, v}; }
inline half __low2half(half2 v) { return v.x; }
inline half __high2half(half2 v) { return v.y; }
inline half2 __hadd2(half2 a, half2 b) { return {a.x + b.x, a.y + b.y}; }
inline half2 __hsub2(half2 a, half2 b) { return {a.x - b.x, a.y - b.y}; }
inline half2 __hmul2(half2 a, half2 b) { return {a.x * b.x, a.y * b.y}; }
inline half __hfma(half a, half b, half c) {  // products of halves are exact in double precision
  return half(static_cast<double>(float(a)) * float(b) + float(c));
}
inline half2 __hfma2(half2 a, half2 b, half2 c) {
  return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)};
}
inline bool __hgt(half a, half b) { return a > b; }
inline bool __hlt(half a, half b) { return a < b; }
inline half __hmax_nan(half a, half b) { return a != a || a > b ? a : b != b || b > a ? b : a; }
inline half __hmin_nan(half a, half b) { return a != a || a < b ? a : b != b || b < a ? b : a; }
inline nv_bfloat16 __float2bfloat16(float v) { return v; }
inline nv_bfloat16 __float2bfloat16_rn(float v) { return v; }
inline float __bfloat162float(nv_bfloat16 v) { return v; }
inline bool __hgt(nv_bfloat16 a, nv_bfloat16 b) { return a > b; }
inline bool __hlt(nv_bfloat16 a, nv_bfloat16 b) { return a < b; }
inline nv_bfloat16 __hmax_nan(nv_bfloat16 a, nv_bfloat16 b) {
  return a != a || a > b ? a : b != b || b > a ? b : a;
}
inline nv_bfloat16 __hmin_nan(nv_bfloat16 a, nv_bfloat16 b) {
  return a != a || a < b ? a : b != b || b < a ? b : a;
}
#define EMU_FUNCTION(NAME, OF)                                  \
  inline half NAME(half v) { return half(OF(float(v))); }       \
  inline nv_bfloat16 NAME(nv_bfloat16 v) { return nv_bfloat16(OF(float(v))); }
EMU_FUNCTION(hexp, std::exp)
EMU_FUNCTION(hlog, std::log)
EMU_FUNCTION(hsqrt, std::sqrt)
EMU_FUNCTION(hrsqrt, 1 / std::sqrt)
EMU_FUNCTION(hsin, std::sin)
EMU_FUNCTION(hcos, std::cos)
EMU_FUNCTION(htanh, std::tanh)
EMU_FUNCTION(hceil, std::ceil)
EMU_FUNCTION(hfloor, std::floor)
EMU_FUNCTION(hrint, std::nearbyint)
EMU_FUNCTION(htrunc, std::trunc)
EMU_FUNCTION(__habs, std::fabs)
#undef EMU_FUNCTION
inline float __int_as_float(int v) { return emu::bits<float>(v); }
inline int __float_as_int(float v) { return emu::bits<int>(v); }
inline unsigned __float_as_uint(float v) { return emu::bits<unsigned>(v); }
inline float __uint_as_float(unsigned v) { return emu::bits<float>(v); }
inline float __expf(float v) { return std::exp(v); }
inline float __logf(float v) { return std::log(v); }
inline float __powf(float v, float w) { return std::pow(v, w); }
inline float __fdividef(float v, float w) { return v / w; }
inline float __saturatef(float v) { return v > 0 ? v < 1 ? v : 1 : 0; }  // NaN gives 0
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float rsqrtf(float v) { return 1 / std::sqrt(v); }
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned chosen) {
  const uint64_t both = static_cast<uint64_t>(y) << 32 | x;
  unsigned made = 0;
  for (int n = 0; n < 4; ++n) {
    const unsigned which = chosen >> 4 * n & 15;
    unsigned byte = both >> 8 * (which & 7) & 255;
    if (which & 8) byte = byte >> 7 ? 255 : 0;
    made |= byte << 8 * n;
  }
  return made;
}
template <class A, class B>  // types of the bytes
inline int emu_dp4a(int a, int b, int c) {
  for (int n = 0; n < 4; ++n) c += static_cast<A>(a >> 8 * n) * static_cast<B>(b >> 8 * n);
  return c;
}
inline int __dp4a(int a, int b, int c) { return emu_dp4a<int8_t, int8_t>(a, b, c); }
using std::max;
using std::min;

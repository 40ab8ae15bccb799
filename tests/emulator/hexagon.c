/* The C library functions that main.c and kernels need on Hexagon; Debian has no library. */
#include <stddef.h>
#include <stdint.h>

static long system_call(long number, long a, long b, long c) {
  register long r6 __asm__("r6") = number;
  register long r0 __asm__("r0") = a;
  register long r1 __asm__("r1") = b;
  register long r2 __asm__("r2") = c;
  __asm__ volatile("trap0(#1)" : "+r"(r0) : "r"(r6), "r"(r1), "r"(r2) : "memory");
  return r0;
}

long read(int file, void* to, size_t bytes) { return system_call(63, file, (long)to, bytes); }

long write(int file, const void* from, size_t bytes) {
  return system_call(64, file, (long)from, bytes);
}

__attribute__((noreturn)) void _exit(int status) {
  for (;;) system_call(94, status, 0, 0);
}

extern int main(void);
void _start(void) { _exit(main()); }

void* memset(void* to, int value, size_t bytes) {
  for (uint8_t* p = to; bytes--;) *p++ = value;
  return to;
}

void* memcpy(void* to, const void* from, size_t bytes) {
  const uint8_t* q = from;
  for (uint8_t* p = to; bytes--;) *p++ = *q++;
  return to;
}

void* memmove(void* to, const void* from, size_t bytes) {
  uint8_t* p = to;
  const uint8_t* q = from;
  if (p < q) return memcpy(to, from, bytes);
  while (bytes--) p[bytes] = q[bytes];
  return to;
}

/* Integer division in software. By 0: all ones, as on RISC-V. */
static uint64_t divide(uint64_t a, uint64_t b, uint64_t* rest) {
  uint64_t quotient = 0;
  *rest = 0;
  for (int bit = 63; bit >= 0; --bit) {
    *rest = *rest << 1 | (a >> bit & 1);
    quotient <<= 1;
    if (*rest >= b) {
      *rest -= b;
      quotient |= 1;
    }
  }
  return quotient;
}

static uint64_t size_of(int64_t a) { return a < 0 ? -(uint64_t)a : (uint64_t)a; }

static int64_t quotient(int64_t a, int64_t b) {
  uint64_t rest, value = divide(size_of(a), size_of(b), &rest);
  return (a < 0) != (b < 0) ? -value : value;
}

static int64_t remainder(int64_t a, int64_t b) {
  uint64_t rest;
  divide(size_of(a), size_of(b), &rest);
  return a < 0 ? -rest : rest;
}

static uint64_t unsigned_remainder(uint64_t a, uint64_t b) {
  uint64_t rest;
  divide(a, b, &rest);
  return rest;
}

static uint64_t unsigned_quotient(uint64_t a, uint64_t b) {
  uint64_t rest;
  return divide(a, b, &rest);
}

int32_t __hexagon_divsi3(int32_t a, int32_t b) { return quotient(a, b); }
int64_t __hexagon_divdi3(int64_t a, int64_t b) { return quotient(a, b); }
int32_t __hexagon_modsi3(int32_t a, int32_t b) { return remainder(a, b); }
int64_t __hexagon_moddi3(int64_t a, int64_t b) { return remainder(a, b); }
uint32_t __hexagon_udivsi3(uint32_t a, uint32_t b) { return unsigned_quotient(a, b); }
uint64_t __hexagon_udivdi3(uint64_t a, uint64_t b) { return unsigned_quotient(a, b); }
uint32_t __hexagon_umodsi3(uint32_t a, uint32_t b) { return unsigned_remainder(a, b); }
uint64_t __hexagon_umoddi3(uint64_t a, uint64_t b) { return unsigned_remainder(a, b); }

/* Rounding of float. Beyond 2^23 every float is an integer. */
static int is_whole(float x) { return !(x < 8388608.0f && x > -8388608.0f); }

static float with_sign_of(float value, float sign) {
  union { float f; uint32_t i; } v = {value}, s = {sign};
  v.i = (v.i & 0x7fffffffu) | (s.i & 0x80000000u);
  return v.f;
}

float truncf(float x) { return is_whole(x) ? x : with_sign_of((float)(int32_t)x, x); }

float floorf(float x) {
  float whole = truncf(x);
  return whole > x ? whole - 1.0f : whole;
}

float ceilf(float x) {
  float whole = truncf(x);
  return whole < x ? with_sign_of(whole + 1.0f, x) : whole;
}

/* Half away from zero. */
float roundf(float x) {
  float whole = truncf(x), rest = x - whole;
  if (rest >= 0.5f) return whole + 1.0f;
  return rest <= -0.5f ? whole - 1.0f : whole;
}

/* Half to even. */
float rintf(float x) {
  float whole = roundf(x), rest = whole - x;
  int odd = !is_whole(x) && ((int32_t)whole & 1);
  if (odd && (rest == 0.5f || rest == -0.5f)) return with_sign_of(whole - 2.0f * rest, x);
  return whole;
}

/* Square root rounded to nearest, bit by bit from the top. */
float sqrtf(float x) {
  union { float f; uint32_t i; } v = {x};
  if (!(x > 0.0f) || v.i >= 0x7f800000u) return x < 0.0f ? 0.0f / 0.0f : x;
  int exponent = (int)(v.i >> 23);
  uint64_t mantissa = v.i & 0x7fffffu;
  if (exponent) mantissa |= 0x800000u;
  else exponent = 1;
  while (mantissa < 0x800000u) mantissa <<= 1, --exponent;
  exponent -= 127;
  if (exponent & 1) mantissa <<= 1, --exponent;
  mantissa <<= 27; /* 51 or 52 bits, so the root has 26: two more than a float. */
  uint64_t root = 0;
  for (int bit = 25; bit >= 0; --bit) {
    uint64_t next = root | (uint64_t)1 << bit;
    if (next * next <= mantissa) root = next;
  }
  int inexact = root * root != mantissa;
  uint32_t kept = root >> 2, low = (root & 3) << 1 | inexact;
  if (low > 4 || (low == 4 && kept & 1)) ++kept;
  v.i = ((uint32_t)(exponent / 2 + 127) << 23) + (kept - 0x800000u);
  return v.f;
}

float __hexagon_sqrtf(float x) { return sqrtf(x); }
float nearbyintf(float x) { return rintf(x); }
float roundevenf(float x) { return rintf(x); }
float fmaxf(float a, float b) { return a != a || a < b ? b : a; }
float fminf(float a, float b) { return a != a || a > b ? b : a; }

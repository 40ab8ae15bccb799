// Tensor-core instructions (mma.sync, wgmma), and the loads and stores of their fragments (ldmatrix,
// stmatrix).
#pragma once
#include "memory.h"

namespace emu {
enum class Type { F16, BF16, E4M3, E5M2, S8, U8, TF32 };  // of the operands

// wgmma: D += A B with M = 64, N = ``columns``, K of 32 bytes; A and B by matrix descriptors, or A in
// four registers of each thread (``fragment``), read when the instruction is issued.
void wgmma_with(unsigned columns, Type a_type, Type b_type, void* registers, uint64_t a,
                const uint32_t* fragment, uint64_t b, bool adds, bool transposed_a,
                bool transposed_b);
template <unsigned kColumns, class Register>
inline void* accumulators_of(std::initializer_list<Register*> registers) {
  static_assert(sizeof(Register) == 4);
  if (registers.size() != kColumns / 2) fault("wgmma of %u columns has %zu registers", kColumns, registers.size());
  for (size_t n = 0; n < registers.size(); ++n) {
    if (registers.begin()[n] != *registers.begin() + n) fault("registers of wgmma are not in a row");
  }
  return *registers.begin();
}
template <unsigned kColumns, Type kA, Type kB, class Register>
inline void wgmma(std::initializer_list<Register*> registers, uint64_t a, uint64_t b, bool adds,
                  bool transposed_a = false, bool transposed_b = false) {
  wgmma_with(kColumns, kA, kB, accumulators_of<kColumns>(registers), a, nullptr, b, adds,
             transposed_a, transposed_b);
}
template <unsigned kColumns, Type kA, Type kB, class Register>
inline void wgmma(std::initializer_list<Register*> registers, std::initializer_list<uint32_t> a,
                  uint64_t b, bool adds, bool transposed_b = false) {
  if (a.size() != 4) fault("wgmma has four registers of A, not %zu", a.size());
  wgmma_with(kColumns, kA, kB, accumulators_of<kColumns>(registers), 0, a.begin(), b, adds, false,
             transposed_b);
}
void wgmma_commit();
void wgmma_wait(size_t left);

// mma.sync: D = A B + C with M = 16, N = 8, K of 32 or 16 bytes; fragments as in the PTX manual.
void mma_with(Type a_type, Type b_type, uint32_t* d, std::initializer_list<uint32_t> a,
              std::initializer_list<uint32_t> b, const uint32_t* c);
template <Type kA, Type kB, class Register>
inline void mma(std::initializer_list<Register*> d, std::initializer_list<uint32_t> a,
                std::initializer_list<uint32_t> b, std::initializer_list<Register> c) {
  static_assert(sizeof(Register) == 4);
  uint32_t results[4], given[4];
  std::memcpy(given, c.begin(), sizeof(given));
  mma_with(kA, kB, results, a, b, given);
  for (unsigned n = 0; n < 4; ++n) *d.begin()[n] = bits<Register>(results[n]);
}

// 8 x 8 matrices of 16-bit elements; lanes 8 n to 8 n + 7 hold the row addresses of matrix n.
void ldmatrix(std::initializer_list<uint32_t*> to, uint32_t address, bool transposed);
void stmatrix(uint32_t address, std::initializer_list<uint32_t> values, bool transposed);

// elect.sync: always the same lane of the warp; PTX does not specify which.
inline bool elected() { return self->number % kWarp == kWarp / 2 + 1; }

// ex2.approx.ftz: denormals are zeros.
inline float exp2_flushed(float x) {
  const float made = std::exp2(x);
  return std::fabs(made) < 1.17549435e-38f ? 0.0f : made;
}

// Pairs of 16-bit floats in one register.
inline uint32_t packed_half(float high, float low) {
  return static_cast<uint32_t>(to_half(high)) << 16 | to_half(low);
}
inline uint32_t packed_bfloat(float high, float low) {
  return static_cast<uint32_t>(to_bfloat(high)) << 16 | to_bfloat(low);
}
template <class Function>
inline uint32_t each_half(Function function, uint32_t a, uint32_t b, uint32_t c = 0) {
  uint32_t made = 0;
  for (unsigned n = 0; n < 32; n += 16) {
    made |= static_cast<uint32_t>(to_half(function(
                static_cast<double>(of_half(a >> n)), static_cast<double>(of_half(b >> n)),
                static_cast<double>(of_half(c >> n))))) << n;
  }
  return made;
}
inline uint32_t sub_halves(uint32_t a, uint32_t b) {
  return each_half([](double x, double y, double) { return x - y; }, a, b);
}
inline uint32_t mul_halves(uint32_t a, uint32_t b) {
  return each_half([](double x, double y, double) { return x * y; }, a, b);
}
inline uint32_t fma_halves(uint32_t a, uint32_t b, uint32_t c) {
  return each_half([](double x, double y, double z) { return x * y + z; }, a, b, c);
}
// Any function of three bits, by its truth table.
inline uint32_t lop3(uint32_t a, uint32_t b, uint32_t c, unsigned table) {
  uint32_t made = 0;
  for (unsigned n = 0; n < 8; ++n) {
    if (table >> n & 1) made |= (n & 4 ? a : ~a) & (n & 2 ? b : ~b) & (n & 1 ? c : ~c);
  }
  return made;
}
}  // namespace emu

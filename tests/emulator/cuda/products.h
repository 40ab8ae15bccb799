// What the tensor cores do: products of warps (mma.sync) and of warpgroups (wgmma), and what moves
// their operands (ldmatrix, stmatrix).
#pragma once
#include "memory.h"

namespace emu {
enum class Type { F16, BF16, E4M3, E5M2, S8, U8 };  // of the operands

// D += A B of a warpgroup: 64 rows, ``columns`` columns, 32 bytes of depth; as descriptors say.
void wgmma_with(unsigned columns, Type a_type, Type b_type, void* registers, uint64_t a, uint64_t b,
                bool adds, bool turned_a, bool turned_b);
template <unsigned kColumns, Type kA, Type kB, class Register>
inline void wgmma(std::initializer_list<Register*> registers, uint64_t a, uint64_t b, bool adds,
                  bool turned_a = false, bool turned_b = false) {
  static_assert(sizeof(Register) == 4);
  if (registers.size() != kColumns / 2) fault("wgmma of %u columns has %zu registers", kColumns, registers.size());
  for (size_t n = 0; n < registers.size(); ++n) {
    if (registers.begin()[n] != *registers.begin() + n) fault("registers of wgmma are not in a row");
  }
  wgmma_with(kColumns, kA, kB, *registers.begin(), a, b, adds, turned_a, turned_b);
}
void wgmma_commit();
void wgmma_wait(size_t left);

// D = A B + C of a warp: 16 rows, 8 columns, 32 or 16 bytes of depth; lanes hold them as PTX says.
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

// 8 x 8 elements of 16 bits each; the rows of matrix n are where the lanes from 8 n on point.
void ldmatrix(std::initializer_list<uint32_t*> to, uint32_t address, bool turned);
void stmatrix(uint32_t address, std::initializer_list<uint32_t> values, bool turned);

// elect.sync: one lane of the warp, always the same; PTX does not say which.
inline bool elected() { return self->number % kWarp == kWarp / 2 + 1; }

// Pairs of 16-bit floats in a register.
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
// Any function of three bits, by its table.
inline uint32_t lop3(uint32_t a, uint32_t b, uint32_t c, unsigned table) {
  uint32_t made = 0;
  for (unsigned n = 0; n < 8; ++n) {
    if (table >> n & 1) made |= (n & 4 ? a : ~a) & (n & 2 ? b : ~b) & (n & 1 ? c : ~c);
  }
  return made;
}
}  // namespace emu

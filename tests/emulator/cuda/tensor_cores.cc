// Emulated tensor-core instructions.
#include "tensor_cores.h"

namespace emu {
struct F16 { using In = uint16_t; using Out = float; static float of(In v) { return of_half(v); } };
struct BF16 { using In = uint16_t; using Out = float; static float of(In v) { return of_bfloat(v); } };
struct E4M3 { using In = uint8_t; using Out = float; static float of(In v) { return of_e4m3(v); } };
struct E5M2 { using In = uint8_t; using Out = float; static float of(In v) { return of_e5m2(v); } };
struct S8 { using In = int8_t; using Out = int; static int of(In v) { return v; } };
struct TF32 {  // drops the 13 lowest bits of a float32
  using In = uint32_t;
  using Out = float;
  static float of(In v) { return bits<float>(v & ~0x1fffu); }
};
struct U8 { using In = uint8_t; using Out = int; static int of(In v) { return v; } };
// Calls ``act`` with the dtype of each operand.
template <class Act>
void with_types(Type a, Type b, const Act& act) {
  const auto equal = [&](Type x, Type y) { return a == x && b == y; };
  if (equal(Type::F16, Type::F16)) act(F16{}, F16{});
  else if (equal(Type::BF16, Type::BF16)) act(BF16{}, BF16{});
  else if (equal(Type::E4M3, Type::E4M3)) act(E4M3{}, E4M3{});
  else if (equal(Type::E4M3, Type::E5M2)) act(E4M3{}, E5M2{});
  else if (equal(Type::E5M2, Type::E4M3)) act(E5M2{}, E4M3{});
  else if (equal(Type::E5M2, Type::E5M2)) act(E5M2{}, E5M2{});
  else if (equal(Type::S8, Type::S8)) act(S8{}, S8{});
  else if (equal(Type::S8, Type::U8)) act(S8{}, U8{});
  else if (equal(Type::U8, Type::S8)) act(U8{}, S8{});
  else if (equal(Type::U8, Type::U8)) act(U8{}, U8{});
  else if (equal(Type::TF32, Type::TF32)) act(TF32{}, TF32{});
  else fault("MMA of these dtypes is not emulated");
}

// A matrix in shared memory, given by a wgmma matrix descriptor; K-major, or transposed.
template <class Kind>
struct Operand {
  uint32_t start, leading, stride;
  unsigned mode, base;

  explicit Operand(uint64_t d)
      : start((d & 0x3fff) << 4), leading((d >> 16 & 0x3fff) << 4), stride((d >> 32 & 0x3fff) << 4),
        mode((4 - (d >> 62)) % 4), base(d >> 49 & 7) {
    if (base) fault("descriptors with a base offset are not emulated");
  }
  // Element ``k`` of row ``row``; a descriptor holds 18 bits of an address.
  typename Kind::Out at(Block& block, unsigned row, unsigned k, bool transposed) const {
    constexpr unsigned size = sizeof(typename Kind::In), chunk = 16 / size;
    uint32_t offset;
    if (!transposed && mode) {
      offset = row / 8 * stride + row % 8 * (16 << mode) + k * size;
    } else if (!transposed) {
      offset = row / 8 * stride + k / chunk * leading + row % 8 * 16 + k % chunk * size;
    } else if (mode) {
      const unsigned across = chunk << mode;
      offset = row / across * leading + row % across * size + k / 8 * stride + k % 8 * (16 << mode);
    } else {
      offset = row / chunk * stride + row % chunk * size + k / 8 * leading + k % 8 * 16;
    }
    typename Kind::In value;
    std::memcpy(&value, memory_of(block, swizzled(start + offset, mode), size), size);
    return Kind::of(value);
  }
};

// Element ``k`` of row ``row`` of A in registers: fragments of 16 rows, one a warp, as of mma.sync.
template <class Kind>
typename Kind::Out in_fragment(const Wgmma& given, unsigned row, unsigned k) {
  using In = typename Kind::In;
  constexpr unsigned kEach = 4 / sizeof(In);  // elements of a register
  const unsigned thread = row / 16 * kWarp + row % 8 * 4 + k % (4 * kEach) / kEach;
  const uint32_t word = given.fragments[thread][row / 8 % 2 + k / (4 * kEach) * 2];
  In value;
  std::memcpy(&value, reinterpret_cast<const char*>(&word) + k % kEach * sizeof(In), sizeof(In));
  return Kind::of(value);
}

void compute_until(Warpgroup& group, size_t count) {
  while (group.computed < count && group.wgmmas[group.computed].arrived == kWarpgroup) {
    Wgmma& next = group.wgmmas[group.computed++];
    next.compute(next);
    next.compute = nullptr;
  }
}

template <class A, class B>
__attribute__((optimize("O3"))) void multiply(
    Block& block, const Wgmma& given, unsigned column_count, const Operand<A>* a, Operand<B> b,
    bool transposed_a, bool transposed_b, bool adds) {
  const std::array<void*, kWarpgroup>& registers = given.registers;
  using Out = typename A::Out;
  constexpr unsigned kDepth = 32 / sizeof(typename A::In), kMost = 256;
  static Out rows[64][kDepth], columns[kDepth][kMost], accumulators[kMost];
  for (unsigned row = 0; row < 64; ++row) {
    for (unsigned k = 0; k < kDepth; ++k) {
      rows[row][k] = a ? a->at(block, row, k, transposed_a) : in_fragment<A>(given, row, k);
    }
  }
  for (unsigned k = 0; k < kDepth; ++k) {
    for (unsigned n = 0; n < column_count; ++n) columns[k][n] = b.at(block, n, k, transposed_b);
  }
  for (unsigned row = 0; row < 64; ++row) {
    const unsigned first = row / 16 * kWarp + row % 8 * 4, half = row / 8 % 2 * 2;
    for (unsigned n = 0; n < column_count; ++n) {
      const Out* held = static_cast<const Out*>(registers[first + n % 8 / 2]);
      accumulators[n] = adds ? held[n / 8 * 4 + half + n % 2] : Out(0);
    }
    for (unsigned k = 0; k < kDepth; ++k) {
      for (unsigned n = 0; n < column_count; ++n) accumulators[n] += rows[row][k] * columns[k][n];
    }
    for (unsigned n = 0; n < column_count; ++n) {
      static_cast<Out*>(registers[first + n % 8 / 2])[n / 8 * 4 + half + n % 2] = accumulators[n];
    }
  }
}

void wgmma_with(unsigned columns, Type a_type, Type b_type, void* registers, uint64_t a,
                const uint32_t* fragment, uint64_t b, bool adds, bool transposed_a,
                bool transposed_b) {
  Block& block = *self->block;
  Warpgroup& group = block.warpgroups[self->number / kWarpgroup];
  const size_t number = self->begun++;
  const std::array<uint64_t, 3> told{a, b, adds};
  if (number == group.wgmmas.size()) {
    group.wgmmas.emplace_back();
    group.wgmmas.back().told = told;
    const bool in_registers = fragment;
    group.wgmmas.back().compute = [=, &block](const Wgmma& given) {
      with_types(a_type, b_type, [&](auto of_a, auto of_b) {
        using A = decltype(of_a);
        using B = decltype(of_b);
        const Operand<A> of_rows(a);
        multiply<A, B>(block, given, columns, in_registers ? nullptr : &of_rows, Operand<B>(b), transposed_a, transposed_b, adds);
      });
    };
  }
  Wgmma& instruction = group.wgmmas[number];
  if (instruction.told != told) fault("threads of a warpgroup give wgmma different operands");
  instruction.registers[self->number % kWarpgroup] = registers;
  if (fragment) std::copy_n(fragment, 4, instruction.fragments[self->number % kWarpgroup].begin());
  ++instruction.arrived;
  if (machine.when == When::early || by_chance()) compute_until(group, number + 1);
}
void wgmma_commit() { self->wgmmas.push_back(self->begun); }
void wgmma_wait(size_t left) {
  Warpgroup& group = self->block->warpgroups[self->number / kWarpgroup];
  const size_t closed = self->wgmmas.size();
  if (closed <= left) return;
  const size_t wanted = self->wgmmas[closed - 1 - left];
  wait("wgmma of its warpgroup", [&group, wanted] {
    compute_until(group, wanted);
    return group.computed >= wanted;
  });
}

template <class A, class B>
void multiply_warp(uint32_t* d, std::initializer_list<uint32_t> a, std::initializer_list<uint32_t> b,
                   const uint32_t* c) {
  using Out = typename A::Out;
  struct Held { uint32_t a[4], b[2]; } held{};
  constexpr unsigned kEach = 4 / sizeof(typename A::In);  // elements of a register
  std::copy(a.begin(), a.end(), held.a);
  std::copy(b.begin(), b.end(), held.b);
  unsigned char(*slots)[64] = exchange(held);
  const unsigned lane = self->number % kWarp, depth = b.size() * 4 * kEach;
  const auto element = [](uint32_t word, unsigned n, auto type) {
    typename decltype(type)::In value;
    std::memcpy(&value, reinterpret_cast<const char*>(&word) + n * sizeof(value), sizeof(value));
    return decltype(type)::of(value);
  };
  for (unsigned n = 0; n < 4; ++n) {
    const unsigned row = lane / 4 + n / 2 * 8, column = lane % 4 * 2 + n % 2;
    Out sum = bits<Out>(c[n]);
    for (unsigned k = 0; k < depth; ++k) {
      const unsigned part = k / (4 * kEach), at = k % (4 * kEach) / kEach, which = k % kEach;
      const Held& of_a = given_by<Held>(slots, row % 8 * 4 + at);
      const Held& of_b = given_by<Held>(slots, column * 4 + at);
      sum += element(of_a.a[row / 8 + part * 2], which, A{}) * element(of_b.b[part], which, B{});
    }
    d[n] = bits<uint32_t>(sum);
  }
}

void mma_with(Type a_type, Type b_type, uint32_t* d, std::initializer_list<uint32_t> a,
              std::initializer_list<uint32_t> b, const uint32_t* c) {
  with_types(a_type, b_type, [&](auto of_a, auto of_b) {
    multiply_warp<decltype(of_a), decltype(of_b)>(d, a, b, c);
  });
}

void ldmatrix(std::initializer_list<uint32_t*> to, uint32_t address, bool transposed) {
  unsigned char(*slots)[64] = exchange(address);
  const unsigned lane = self->number % kWarp;
  unsigned n = 0;
  for (uint32_t* put : to) {
    uint16_t pair[2];
    for (unsigned e = 0; e < 2; ++e) {
      const unsigned row = transposed ? lane % 4 * 2 + e : lane / 4;
      const unsigned column = transposed ? lane / 4 : lane % 4 * 2 + e;
      const uint32_t from = given_by<uint32_t>(slots, n * 8 + row);
      if (from % 16) fault("a row of ldmatrix must be aligned to 16 bytes, but is at %u", from);
      std::memcpy(&pair[e], memory_at(from, 16) + 2 * column, 2);
    }
    std::memcpy(put, pair, 4);
    ++n;
  }
}
void stmatrix(uint32_t address, std::initializer_list<uint32_t> values, bool transposed) {
  unsigned char(*slots)[64] = exchange(address);
  const unsigned lane = self->number % kWarp;
  unsigned n = 0;
  for (uint32_t value : values) {
    uint16_t pair[2];
    std::memcpy(pair, &value, 4);
    for (unsigned e = 0; e < 2; ++e) {
      const unsigned row = transposed ? lane % 4 * 2 + e : lane / 4;
      const unsigned column = transposed ? lane / 4 : lane % 4 * 2 + e;
      const uint32_t to = given_by<uint32_t>(slots, n * 8 + row);
      if (to % 16) fault("a row of stmatrix must be aligned to 16 bytes, but is at %u", to);
      std::memcpy(memory_at(to, 16) + 2 * column, &pair[e], 2);
      self->block->writers[to / 16] = self->number;
      self->unfenced.push_back(to / 16);
    }
    ++n;
  }
}
}  // namespace emu

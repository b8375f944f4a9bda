// From one problem to pieces of work: which instruction set, how many pieces, in which order.
#pragma once
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "attention.h"
#include "parallel.h"
#if defined(__x86_64__) || defined(_M_X64)
#define OPLAB_X86 1
#include <cpuid.h>
#if defined(__linux__) && !defined(OPLAB_NO_AMX)
#define OPLAB_AMX 1
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

#if defined(OPLAB_X86)
namespace avx512 {
extern const oplab::Kernels kernels;
}
namespace avx2 {
extern const oplab::Kernels kernels;
}
#endif
#if defined(OPLAB_AMX)
namespace amx {
extern const oplab::Kernels float32, bfloat16;
}
#endif
namespace plain {
extern const oplab::Kernels kernels;
}

namespace oplab {

#if defined(OPLAB_X86)
// Asked of the processor itself: __builtin_cpu_supports answers no to everything under `zig c++`.
inline int vector_bits() {
  unsigned a, b, c, d, low, high;
  const unsigned fma = 1u << 12, os_saves = 1u << 27;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & fma) || !(c & os_saves)) return 128;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));  // which registers the system saves
  if ((low & 0x6) != 0x6 || !__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b >> 5 & 1)) return 128;  // AVX2
  const unsigned f = b >> 16, dq = b >> 17, bw = b >> 30, vl = b >> 31;
  return (low & 0xe0) == 0xe0 && (f & dq & bw & vl & 1) ? 512 : 256;
}
#endif

// Linux wants to be asked before a program uses AMX's large registers (Documentation/arch/x86/xstate.rst).
inline bool has_amx() {
#if defined(OPLAB_AMX)
  static const bool found = [] {
    unsigned a = 0, b = 0, c = 0, d = 0, low, high;
    if (vector_bits() < 512) return false;
    __get_cpuid_count(7, 0, &a, &b, &c, &d);
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    const long ask = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return (d >> 24 & d >> 22 & 1) && (low >> 17 & low >> 18 & 1) && syscall(SYS_arch_prctl, ask, tile_data) == 0;
  }();
  return found;
#else
  return false;
#endif
}

// What OPLAB_ISA allows at most: 1024 stands for AMX.
inline int allowed_bits() {
  const char* asked = std::getenv("OPLAB_ISA");
  if (!asked) return 1024;
  return !std::strcmp(asked, "plain") ? 128 : !std::strcmp(asked, "avx2") ? 256 : !std::strcmp(asked, "avx512") ? 512 : 1024;
}

// The best that the processor has, or the lower one that OPLAB_ISA names: avx512, avx2 or plain.
inline const Kernels& best_kernels() {
  static const Kernels chosen = [] {
#if defined(OPLAB_X86)
    const int bits = std::min(allowed_bits(), vector_bits());
#if defined(OPLAB_AMX)
    if (allowed_bits() > 512 && has_amx()) return amx::float32;
#endif
    if (bits >= 512) return avx512::kernels;
    if (bits >= 256) return avx2::kernels;
#endif
    return plain::kernels;
  }();
  return chosen;
}

// Kernels for bfloat16 as it is, or null: then it is to be converted to float32.
inline const Kernels* bfloat16_kernels() {
#if defined(OPLAB_AMX)
  return allowed_bits() > 512 && has_amx() ? &amx::bfloat16 : nullptr;
#else
  return nullptr;
#endif
}

// False: there was no memory.
inline bool solve_forward(const Attention& A, const Kernels& kernels, const Pool& pool) {
  if (A.batch * A.time * A.heads == 0) return true;
  // The tiles of a piece share every block of keys that is fetched; fewer where pieces would be too few.
  int64_t tiles = std::min<int64_t>(16, (A.time + kernels.tile - 1) / kernels.tile);
  auto pieces = [&] { return A.batch * A.heads * ((A.time + tiles * kernels.tile - 1) / (tiles * kernels.tile)); };
  while (tiles > 1 && pieces() < 4 * pool.threads) tiles /= 2;
  const int64_t queries = tiles * kernels.tile, each = (A.time + queries - 1) / queries, heads = A.batch * A.heads;
  return parallel_for(pool, heads * each, kernels.forward_scratch(A, queries), [&](int64_t i, float* scratch) {
    // With a causal mask the last queries have the most keys: those first, so that nobody waits at the end.
    const int64_t head = A.causal ? i % heads : i / each, piece = A.causal ? each - 1 - i / heads : i % each;
    const int64_t t = piece * queries;
    kernels.forward(A, head / A.heads, head % A.heads, t, std::min(queries, A.time - t), scratch);
  });
}

inline bool solve_backward(const Attention& A, const Kernels& kernels, const Pool& pool) {
  const int64_t heads = A.batch * A.kv_heads, D = (A.features + 15) / 16 * 16, E = (A.value_features + 15) / 16 * 16;
  const int64_t tiles = A.group() * ((A.time + kernels.tile - 1) / kernels.tile), each = A.source * (D + E);
  if (heads == 0) return true;
  // A key head is one piece, or several where there are fewer heads than threads; then each piece has some of
  // the queries, and their parts of dk and dv are added in the end, always in the same order.
  int64_t parts = heads >= pool.threads ? 1 : (2 * pool.threads + heads - 1) / heads;
  parts = std::max<int64_t>(1, std::min(parts, tiles));
  auto write = [&](int64_t head, int64_t from, int64_t to, const float* first) {
    const int64_t b = head / A.kv_heads, g = head % A.kv_heads;
    auto add = [&](const float* x, int64_t padded, int64_t columns, float* y) {
      for (int64_t s = from; s < to; ++s) {
        float* row = y + ((b * A.source + s) * A.kv_heads + g) * columns;
        std::memcpy(row, x + s * padded, columns * sizeof(float));
        for (int64_t p = 1; p < parts; ++p)
          for (int64_t c = 0; c < columns; ++c) row[c] += x[p * each + s * padded + c];
      }
    };
    add(first, kernels.padded(A.features), A.features, A.dk);
    add(first + A.source * D, kernels.padded(A.value_features), A.value_features, A.dv);
  };
  const size_t scratch_floats = kernels.backward_scratch(A);
  if (parts == 1)
    return parallel_for(pool, heads, scratch_floats + each + 16, [&](int64_t head, float* scratch) {
      float* own = scratch + (scratch_floats + 15) / 16 * 16;
      std::memset(own, 0, each * sizeof(float));
      kernels.backward(A, head / A.kv_heads, head % A.kv_heads, 0, 1, scratch, own, own + A.source * D);
      write(head, 0, A.source, own);
    });
  Floats all(heads * parts * each);
  if (!all.data) return false;
  const bool done = parallel_for(pool, heads * parts, scratch_floats, [&](int64_t i, float* scratch) {
    float* own = all.data + i * each;
    std::memset(own, 0, each * sizeof(float));
    const int64_t head = i / parts;
    kernels.backward(A, head / A.kv_heads, head % A.kv_heads, i % parts, parts, scratch, own, own + A.source * D);
  });
  const int64_t rows = 256, chunks = (A.source + rows - 1) / rows;
  return done && parallel_for(pool, heads * chunks, 0, [&](int64_t i, float*) {
    const int64_t head = i / chunks, from = i % chunks * rows;
    write(head, from, std::min(from + rows, A.source), all.data + head * parts * each);
  });
}

}  // namespace oplab

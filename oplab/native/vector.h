// Vectors of floats, and the one loop that does all the work: a small matrix product kept in registers.
//
// Written with the vector types that GCC and Clang share, so that one text serves every instruction set;
// kernels.cc includes it once for each, with other numbers for VL and NV.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#if defined(OPLAB_ISA_AVX512)
#include <immintrin.h>
#endif

namespace OPLAB_ISA {

typedef float vf __attribute__((vector_size(VL * 4)));
typedef int32_t vi __attribute__((vector_size(VL * 4)));
typedef float vf_unaligned __attribute__((vector_size(VL * 4), aligned(4), may_alias));
typedef uint8_t vb __attribute__((vector_size(VL)));
typedef uint8_t vb_unaligned __attribute__((vector_size(VL), aligned(1), may_alias));
#define INLINE inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

INLINE vf load(const float* p) { return *(const vf_unaligned*)p; }
INLINE void store(float* p, vf x) { *(vf_unaligned*)p = x; }
INLINE vf all(float x) { return x - vf{}; }  // x - 0 is x, -0 and NaN included: a plain broadcast
INLINE vf larger(vf a, vf b) {  // b where one of them is NaN
#if defined(OPLAB_ISA_AVX512)
  return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#else
  return a > b ? a : b;
#endif
}
INLINE vi lanes() {
  vi i;
  for (int n = 0; n < VL; ++n) i[n] = n;
  return i;
}
INLINE bool any(vi x) {
  int32_t found = 0;
  for (int n = 0; n < VL; ++n) found |= x[n];
  return found != 0;
}
INLINE float sum(vf x) {
  float s = 0;
  for (int n = 0; n < VL; ++n) s += x[n];
  return s;
}

// e^x for x <= 88: 2^n 2^f with n a whole number and f between -1/2 and 1/2, and for 2^f a polynomial.
// The relative error is below 3e-7; NaN stays NaN; below -87 (plain, AVX2) or -103 (AVX-512) exactly 0.
INLINE vf exponential(vf x) {
  const float log2e = 1.44269504f, magic = 12582912.f;  // adding 1.5 * 2^23 rounds to a whole number
#if defined(OPLAB_ISA_AVX512)
  const vf lowest = all(-104.f);
#else
  const vf lowest = all(-87.3f);
#endif
  const vf given = x;
  x = larger(lowest, x);
  vf shifted = x * log2e + magic, n = shifted - magic, f = x * log2e - n;
  vf p = all(1.3221213e-3f);  // minimax of degree 5
  p = p * f + 9.6716944e-3f;
  p = p * f + 5.5508842e-2f;
  p = p * f + 2.4022238e-1f;
  p = p * f + 6.9314686e-1f;
  p = p * f + 1.0f;
#if defined(OPLAB_ISA_AVX512)
  (void)given;
  return (vf)_mm512_scalef_ps((__m512)p, (__m512)n);
#else
  p = (vf)((vi)p + ((vi)shifted << 23));  // n stands in the last bits of `shifted`: into the exponent
  p = given < lowest ? vf{} : p;
  return given == given ? p : given;
#endif
}

// VL x VL numbers: rows become columns, in log2(VL) rounds that interleave two vectors.
INLINE void interleave(vf a, vf b, vf& low, vf& high) {
#if VL == 16
  low = __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  high = __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
#elif VL == 8
  low = __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
  high = __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
#else
  low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
  high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
#endif
}
INLINE void transpose(vf (&x)[VL]) {
  vf y[VL];
#pragma GCC unroll 4
  for (int round = 1; round < VL; round *= 2) {
    UNROLL for (int i = 0; i < VL / 2; ++i) interleave(x[i], x[i + VL / 2], y[2 * i], y[2 * i + 1]);
    UNROLL for (int i = 0; i < VL; ++i) x[i] = y[i];
  }
}

// Rows of `columns` numbers, `ld` apart and `count` of them, into columns of `width` lanes, times `factor`.
// Lanes from `count` on become 0.
INLINE void rows_to_lanes(const float* rows, int64_t ld, int64_t count, int columns, float factor,
                          float* to, int width) {
  for (int lane = 0; lane < width; lane += VL) {
    const float* from = rows + lane * ld;
    int64_t have = count - lane < 0 ? 0 : count - lane < VL ? count - lane : VL;
    int c = 0;
    for (; c + VL <= columns; c += VL) {
      vf x[VL];
      for (int i = 0; i < VL; ++i) x[i] = i < have ? load(from + i * ld + c) * factor : vf{};
      transpose(x);
      for (int i = 0; i < VL; ++i) store(to + (c + i) * width + lane, x[i]);
    }
    for (; c < columns; ++c)
      for (int i = 0; i < VL; ++i) to[c * width + lane + i] = i < have ? from[i * ld + c] * factor : 0.f;
  }
}

// The way back: columns of `width` lanes, each lane times its own factor, into `count` rows.
INLINE void lanes_to_rows(const float* from, int width, int columns, const float* factors, float* rows,
                          int64_t ld, int64_t count) {
  for (int lane = 0; lane < width && lane < count; lane += VL) {
    int64_t have = count - lane < VL ? count - lane : VL;
    vf factor = load(factors + lane);
    float* to = rows + lane * ld;
    int c = 0;
    for (; c + VL <= columns; c += VL) {
      vf x[VL];
      for (int i = 0; i < VL; ++i) x[i] = load(from + (c + i) * width + lane) * factor;
      transpose(x);
      for (int i = 0; i < have; ++i) store(to + i * ld + c, x[i]);
    }
    for (; c < columns; ++c)
      for (int i = 0; i < have; ++i) to[i * ld + c] = from[c * width + lane + i] * factor[i];
  }
}

// Rows, `ld` apart, copied close together with `padded` numbers each: no two of them then fight for one set
// of the cache, and the loops below need no remainder. Says whether every number is finite.
INLINE bool pack(const float* rows, int64_t ld, int64_t count, int columns, float factor, float* to,
                 int padded) {
  vf odd = {};  // x - x is 0, but NaN for an infinity or NaN
  for (int64_t r = 0; r < count; ++r) {
    int c = 0;
    for (; c + VL <= columns; c += VL) {
      vf x = load(rows + r * ld + c) * factor;
      odd += x - x;
      store(to + r * padded + c, x);
    }
    for (; c < padded; ++c) {
      float x = c < columns ? rows[r * ld + c] * factor : 0.f;
      odd[0] += x - x;
      to[r * padded + c] = x;
    }
  }
  return sum(odd) == 0;
}

// The product C = start + A B of M rows and N vectors of columns, all of C in registers: each number of A is
// broadcast once and multiplies N vectors, so a step needs M + N loads for M N multiplications of VL numbers.
//   A(r, i) = a[r * lda + i], or a[i * lda + r] where BY_COLUMN      B(i, v) = b[i * ldb + v VL]
// `finish(r, v, sum)` takes the result while it is still there.
template <int M, int N, bool BY_COLUMN, class Start, class Finish>
INLINE void product(const float* __restrict a, ptrdiff_t lda, const float* __restrict b, ptrdiff_t ldb,
                    int64_t depth, Start start, Finish finish) {
  vf c[M][N];
  const float* row[M];
  UNROLL for (int r = 0; r < M; ++r) {
    row[r] = a + r * lda;
    UNROLL for (int v = 0; v < N; ++v) c[r][v] = start(r, v);
  }
#pragma GCC unroll 8
  for (int64_t i = 0; i < depth; ++i) {
    vf x[N];
    UNROLL for (int v = 0; v < N; ++v) x[v] = load(b + i * ldb + v * VL);
    UNROLL for (int r = 0; r < M; ++r) {
      vf y = all(BY_COLUMN ? a[i * lda + r] : row[r][i]);
      UNROLL for (int v = 0; v < N; ++v) c[r][v] += y * x[v];
    }
  }
  UNROLL for (int r = 0; r < M; ++r) UNROLL for (int v = 0; v < N; ++v) finish(r, v, c[r][v]);
}

// n rows in groups that fit the registers: as many of ROWS as leave no odd rest.
template <int M>
using count = std::integral_constant<int, M>;
template <class F>
INLINE void in_groups(int64_t n, F f) {
  int64_t r = 0;
  for (; n - r >= 6 && n - r != 8; r += 6) f(count<6>{}, r);
  for (; n - r >= 4; r += 4) f(count<4>{}, r);
  for (; r < n; ++r) f(count<1>{}, r);
}

}  // namespace OPLAB_ISA

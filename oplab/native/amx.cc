// The forward pass on AMX, the processor's own unit for products of small matrices of bfloat16.
//
// One instruction multiplies 16 x 32 numbers with 32 x 16 and adds the result to 16 x 16 sums in float32; a core
// does that 16 times as fast as the same work with vectors of float32. Its second operand wants pairs of rows
// side by side, and lanes that are queries give just that: a pair of keys, or of features, in each 32 bits of a
// lane. Otherwise this is forward.h: the same blocks, the same softmax.
//
// bfloat16 goes in as it is. A float32 has 24 bits, and three numbers of 8 bits hold them all:
//
//   x = x0 + x1 + x2,    x y = x0 y0 + (x0 y1 + x1 y0) + (x0 y2 + x1 y1 + x2 y0) + less than 2^-24 of it
//
// so six products in bfloat16 make one in float32, no less exact, and still in less than half the time (Henry,
// Tang and Heinecke, 2019, arXiv 1904.06376). The smallest are added first.
//
// (Intel, Architecture Instruction Set Extensions Programming Reference, 319433, chapter "Intel AMX".)
#define OPLAB_ISA_AVX512
#define OPLAB_ISA amx
#define VL 16
#include "attention.h"
#include "vector.h"
#include "scores.h"

namespace avx512 {
extern const oplab::Kernels kernels;
}

namespace amx {

typedef uint16_t bf16;
constexpr int kTile = 64;        // queries side by side
constexpr int N = kTile / VL;    // vectors of them
constexpr int64_t kKeys = 128;   // keys in a block
constexpr int64_t kGroup = 32;   // what one instruction takes of keys or features
constexpr int64_t kWorthwhile = 256;  // queries for which it pays to cut keys and values of float32 in pieces

static int64_t rounded(int64_t n) { return (n + kGroup - 1) / kGroup * kGroup; }
static int64_t tiles_of(int64_t queries) { return (queries + kTile - 1) / kTile; }

// Eight tiles of 16 rows of 64 bytes: sums in 0 to 3, two of A's in 4 and 5, two of B's in 6 and 7.
struct Tiles {
  Tiles() {
    alignas(64) struct {
      uint8_t palette = 1, start = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {};
      uint8_t rows[16] = {};
    } config;
    for (int i = 0; i < 8; ++i) config.row_bytes[i] = 64, config.rows[i] = 16;
    _tile_loadconfig(&config);
  }
  ~Tiles() { _tile_release(); }
};

// Operands lie tile after tile, 1 KiB each, so that a tile comes from 16 lines of the cache that follow each other:
//   A: [rows / 16][depth / 32] tiles of 16 x 32 bfloat16       B: [depth / 32][lanes / 16] tiles of 16 x 16 pairs
constexpr int64_t kTileNumbers = 512, kTilePairs = 256;
INLINE int64_t place(int64_t row, int64_t i, int64_t depth) {  // of one number in A
  return (row / 16 * (depth / 32) + i / 32) * kTileNumbers + row % 16 * 32 + i % 32;
}

// 32 rows and 32 lanes of A B, summed over `depth`; a row of A's tiles is `a_row` numbers long, and the pieces of
// A and B stand `a_piece` and `b_piece` apart. The result goes to c, [rows][kTile].
#define LOAD_A(p) _tile_loadd(4, a + p * a_piece + i * kTileNumbers, 64); \
                  _tile_loadd(5, a + p * a_piece + i * kTileNumbers + a_row, 64)
#define LOAD_B(p) _tile_loadd(6, b + p * b_piece + i * N * kTilePairs, 64); \
                  _tile_loadd(7, b + p * b_piece + (i * N + 1) * kTilePairs, 64)
#define MULTIPLY _tile_dpbf16ps(0, 4, 6); \
                 _tile_dpbf16ps(1, 4, 7); \
                 _tile_dpbf16ps(2, 5, 6); \
                 _tile_dpbf16ps(3, 5, 7)
template <int PIECES>
INLINE void product(const bf16* a, int64_t a_row, int64_t a_piece, const uint32_t* b, int64_t b_piece, int64_t depth,
                    float* c) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  if (PIECES == 3)  // the five small products, in an order in which each needs only one new operand
    for (int64_t i = 0; i < depth / kGroup; ++i) {
      LOAD_A(2); LOAD_B(0); MULTIPLY;
      LOAD_A(1); MULTIPLY;
      LOAD_B(1); MULTIPLY;
      LOAD_A(0); MULTIPLY;
      LOAD_B(2); MULTIPLY;
    }
  for (int64_t i = 0; i < depth / kGroup; ++i) {
    LOAD_A(0); LOAD_B(0); MULTIPLY;
  }
  _tile_stored(0, c, kTile * 4);
  _tile_stored(1, c + 16, kTile * 4);
  _tile_stored(2, c + 16 * kTile, kTile * 4);
  _tile_stored(3, c + 16 * kTile + 16, kTile * 4);
}

INLINE vi half_up(vf x) { return (vi)x + 0x8000; }  // its upper half is x in bfloat16, to the nearest
INLINE vf upper(vi x) { return (vf)(x & (int32_t)0xffff0000); }

// x in pieces of 8 bits each, the largest first; the upper halves of the results are the bfloat16 numbers.
template <int PIECES>
INLINE void split(vf x, vi (&piece)[PIECES]) {
  UNROLL for (int p = 0; p < PIECES; ++p) {
    piece[p] = half_up(x);
    x -= upper(piece[p]);
  }
}

// `count` rows, `ld` apart, into pieces of rows of `padded` numbers (or of tiles), with zeros up to `rows`. Says
// whether all that came in is finite.
template <bool TILED>
INLINE bool copy_rows(const bf16* from, int64_t ld, int64_t count, int64_t columns, bf16* to, int64_t padded,
                      int64_t rows, int64_t) {
  __mmask16 odd = 0;
  const __m256i exponent = _mm256_set1_epi16(0x7f80);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < padded; c += 16) {
      const int64_t have = r < count ? columns - c : 0;
      const __mmask16 there = have >= 16 ? 0xffff : have > 0 ? (1u << have) - 1 : 0;
      const __m256i x = _mm256_maskz_loadu_epi16(there, from + r * ld + c);
      odd |= _mm256_cmpeq_epi16_mask(_mm256_and_si256(x, exponent), exponent);
      _mm256_storeu_si256((__m256i*)(to + (TILED ? place(r, c, padded) : r * padded + c)), x);
    }
  return !odd;
}
template <bool TILED>
INLINE bool copy_rows(const float* from, int64_t ld, int64_t count, int64_t columns, bf16* to, int64_t padded,
                      int64_t rows, int64_t to_piece) {
  vf odd = {};
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < padded; c += VL) {
      const int64_t have = r < count ? columns - c : 0;
      const __mmask16 there = have >= VL ? 0xffff : have > 0 ? (1u << have) - 1 : 0;
      vf x = (vf)_mm512_maskz_loadu_ps(there, from + r * ld + c);
      vi piece[3];
      split(x, piece);
      odd += upper(piece[0]) - upper(piece[0]);
      UNROLL for (int p = 0; p < 3; ++p)
        _mm256_storeu_si256((__m256i*)(to + p * to_piece + (TILED ? place(r, c, padded) : r * padded + c)),
                            _mm512_cvtepi32_epi16(_mm512_srli_epi32((__m512i)piece[p], 16)));
    }
  return sum(odd) == 0;
}

// 16 x 16 pairs: pair c of row r becomes lane r of row c.
INLINE void transposed(const bf16* rows, int64_t ld, vf (&x)[VL]) {
  UNROLL for (int i = 0; i < VL; ++i) x[i] = load((const float*)(rows + i * ld));
  transpose(x);
}

// Queries (64 x padded) to pairs of features in lanes.
static void pairs_to_lanes(const bf16* rows, int64_t padded, uint32_t* to) {
  for (int lane = 0; lane < kTile; lane += VL)
    for (int64_t c = 0; c < padded; c += 2 * VL) {
      vf x[VL];
      transposed(rows + lane * padded + c, padded, x);
      for (int i = 0; i < VL; ++i) store((float*)(to + (c / 32 * N + lane / 16) * kTilePairs + i * 16), x[i]);
    }
}

// Values (keys x padded) to features x keys: pairs first, then each pair's halves apart.
static void values_to_rows(const bf16* rows, int64_t padded, int64_t keys, bf16* to) {
  uint16_t e[32], o[32];
  for (int i = 0; i < 32; ++i) e[i] = 2 * i, o[i] = 2 * i + 1;
  const __m512i even = _mm512_loadu_si512(e), odd = _mm512_loadu_si512(o);
  for (int64_t k = 0; k < keys; k += 32)
    for (int64_t c = 0; c < padded; c += 32) {
      vf x[VL], y[VL];
      transposed(rows + k * padded + c, padded, x);
      transposed(rows + (k + 16) * padded + c, padded, y);
      for (int i = 0; i < VL; ++i) {
        bf16* row = to + place(c + 2 * i, k, kKeys);
        _mm512_storeu_si512(row, _mm512_permutex2var_epi16((__m512i)x[i], even, (__m512i)y[i]));
        _mm512_storeu_si512(row + 32, _mm512_permutex2var_epi16((__m512i)x[i], odd, (__m512i)y[i]));
      }
    }
}

INLINE bf16 nearest(float x) {  // ties to even; NaN stays NaN
  uint32_t u;
  std::memcpy(&u, &x, 4);
  return x != x ? 0x7fc0 : (u + 0x7fff + (u >> 16 & 1)) >> 16;
}

// A task's memory. K and Vt are a block's, the rest is of all tiles; what is split has its pieces one after the
// other.
template <int PIECES>
struct Memory {
  int64_t D, E;
  uint32_t *Q, *P;
  bf16 *K, *Vt, *rows;
  float *O, *m, *l, *S, *block, *factor;

  Memory(const Attention& A, int64_t tiles, float* scratch)
      : D(rounded(A.features)), E(rounded(A.value_features)) {
    auto take = [&](int64_t floats) {
      float* taken = scratch;
      scratch += (floats + 15) / 16 * 16;
      return taken;
    };
    Q = (uint32_t*)take(tiles * PIECES * D / 2 * kTile);  // [tiles][pieces][features / 2][queries]
    O = take(tiles * E * kTile);                          // [tiles][value features][queries]
    m = take(tiles * kTile), l = take(tiles * kTile);
    S = take(kKeys * kTile);                              // [keys][queries]
    P = (uint32_t*)take(PIECES * kKeys / 2 * kTile);      // [pieces][keys / 2][queries]
    block = take((E > kKeys ? E : kKeys) * kTile);        // what a block adds to O
    K = (bf16*)take(PIECES * kKeys * D / 2);              // [pieces][keys][features]
    Vt = (bf16*)take(PIECES * kKeys * E / 2);             // [pieces][value features][keys]
    rows = (bf16*)take(PIECES * (kKeys > kTile ? kKeys : kTile) * (D > E ? D : E) / 2);
    factor = take(kTile);
    end = scratch;
  }
  float* end;
};

template <int PIECES>
static __attribute__((noinline)) void forward_block(const Attention& A, const Tile& tile, int64_t k, int64_t n,
                                                    const Memory<PIECES>& x, int64_t i, bool finite) {
  const int64_t D = x.D, E = x.E, keys = rounded(n);
  const uint32_t* Q = x.Q + i * PIECES * D / 2 * kTile;
  float *S = x.S, *O = x.O + i * E * kTile, *m = x.m + i * kTile, *l = x.l + i * kTile;
  for (int64_t r = 0; r < keys; r += 32)
    for (int q = 0; q < kTile; q += 32)
      product<PIECES>(x.K + r * D, 16 * D, kKeys * D, Q + q / 16 * kTilePairs, D / 2 * kTile, D, S + r * kTile + q);

  vf before[N], top[N], factor[N], total[N];
  UNROLL for (int v = 0; v < N; ++v) before[v] = top[v] = load(m + v * VL);
  for (int64_t r = 0; r < n; ++r)
    UNROLL for (int v = 0; v < N; ++v) {
      float* s = S + r * kTile + v * VL;
      vf scaled = load(s) * A.scale;
      store(s, scaled);
      top[v] = larger(top[v], scaled);
    }
  const bool hidden = hides(A, tile, k, n), careful = hidden && !finite;
  if (A.bias || hidden) {
    change_scores(A, tile, k, n, S);
    UNROLL for (int v = 0; v < N; ++v) top[v] = before[v];
    for (int64_t r = 0; r < n; ++r)
      UNROLL for (int v = 0; v < N; ++v) top[v] = larger(top[v], load(S + r * kTile + v * VL));
  }
  UNROLL for (int v = 0; v < N; ++v) {
    store(m + v * VL, top[v]);
    top[v] = top[v] == -kInfinity ? vf{} : top[v];
    factor[v] = exponential(before[v] - top[v]);
    total[v] = load(l + v * VL) * factor[v];
  }
  for (int64_t r = n; r < keys; ++r)  // keys that are not there
    UNROLL for (int v = 0; v < N; ++v) store(S + r * kTile + v * VL, all(-kInfinity));
  for (int64_t r = 0; r < keys; r += 2)
    UNROLL for (int v = 0; v < N; ++v) {
      float* s = S + r * kTile + v * VL;
      vf first = exponential(load(s) - top[v]), second = exponential(load(s + kTile) - top[v]);
      total[v] += first + second;
      if (careful) store(s, first), store(s + kTile, second);
      vi lower[PIECES], higher[PIECES];
      split(first, lower), split(second, higher);
      UNROLL for (int p = 0; p < PIECES; ++p) {
        vi pair = (higher[p] & (int32_t)0xffff0000) | (vi)_mm512_srli_epi32((__m512i)lower[p], 16);
        uint32_t* P = x.P + p * kKeys / 2 * kTile + (r / 32 * N + v) * kTilePairs + r % 32 / 2 * 16;
        store((float*)P, (vf)pair);
      }
    }
  UNROLL for (int v = 0; v < N; ++v) store(l + v * VL, total[v]);

  if (careful) {  // bfloat16 alone: float32 never comes here with NaN or infinity
    std::memset(x.block, 0, E * kTile * sizeof(float));
    for (int64_t r = 0; r < n; ++r)
      for (int64_t e = 0; e < E; ++e) {
        const uint32_t wide = (uint32_t)x.Vt[place(e, r, kKeys)] << 16;
        float value;
        std::memcpy(&value, &wide, 4);
        careful_lanes<true>(&value, 1, S + r * kTile, kTile, 1, 1, x.block + e * kTile);
      }
  } else {
    for (int64_t e = 0; e < E; e += 32)
      for (int q = 0; q < kTile; q += 32)
        product<PIECES>(x.Vt + e * kKeys, 16 * kKeys, kKeys * E, x.P + q / 16 * kTilePairs, kKeys / 2 * kTile, keys,
                        x.block + e * kTile + q);
  }
  for (int64_t e = 0; e < E; ++e)
    UNROLL for (int v = 0; v < N; ++v) {
      float* o = O + e * kTile + v * VL;
      store(o, load(o) * factor[v] + load(x.block + e * kTile + v * VL));
    }
}

// What is written out, and what comes in: float32 or bfloat16.
template <int PIECES>
using number = typename std::conditional<PIECES == 1, bf16, float>::type;
template <int PIECES>
static const number<PIECES>* of(const float* x, const uint16_t* x16) {
  if constexpr (PIECES == 1)
    return x16;
  else
    return x;
}

// False: these numbers are none for AMX. Infinity and NaN have no pieces; and where scores are huge, the last bit
// of a score decides, so it has to be the one that the backward pass will find, with vectors.
template <int PIECES>
static bool solved(const Attention& A, int64_t b, int64_t h, int64_t t, int64_t queries, float* scratch) {
  const int64_t tiles = tiles_of(queries);
  const int64_t key_row = A.kv_heads * A.features, value_row = A.kv_heads * A.value_features;
  const int64_t row = A.heads * A.features, out_row = A.heads * A.value_features;
  const Memory<PIECES> x(A, tiles, scratch);
  const auto* q = of<PIECES>(A.q, A.q16) + (b * A.time + t) * row + h * A.features;
  const auto* k = of<PIECES>(A.k, A.k16) + b * A.source * key_row + h / A.group() * A.features;
  const auto* v = of<PIECES>(A.v, A.v16) + b * A.source * value_row + h / A.group() * A.value_features;
  std::memset(x.O, 0, sizeof(float) * tiles * x.E * kTile);
  for (int64_t i = 0; i < tiles * kTile; ++i) x.m[i] = -kInfinity, x.l[i] = 0;
  auto tile_of = [&](int64_t i) {
    const int64_t left = queries - i * kTile;
    return Tile{b, h, t + i * kTile, left < kTile ? left : kTile, kTile};
  };
  bool finite = true;
  for (int64_t i = 0; i < tiles; ++i) {
    finite &= copy_rows<false>(q + i * kTile * row, row, tile_of(i).queries, A.features, x.rows, x.D, kTile, kTile * x.D);
    for (int p = 0; p < PIECES; ++p)
      pairs_to_lanes(x.rows + p * kTile * x.D, x.D, x.Q + (i * PIECES + p) * x.D / 2 * kTile);
  }
  if (PIECES > 1 && !finite) return false;

  const int64_t end = A.seen(b, t + queries - 1);
  for (int64_t from = 0; from < end; from += kKeys) {
    const int64_t keys = end - from < kKeys ? end - from : kKeys, whole = rounded(keys);
    finite = copy_rows<true>(k + from * key_row, key_row, keys, A.features, x.K, x.D, whole, kKeys * x.D);
    const bool values = copy_rows<false>(v + from * value_row, value_row, keys, A.value_features, x.rows, x.E, whole, kKeys * x.E);
    if (PIECES > 1 && !(finite && values)) return false;
    for (int p = 0; p < PIECES; ++p) values_to_rows(x.rows + p * kKeys * x.E, x.E, whole, x.Vt + p * kKeys * x.E);
    for (int64_t i = 0; i < tiles; ++i) {
      const Tile tile = tile_of(i);
      int64_t n = A.seen(b, tile.t + tile.queries - 1) - from;
      n = n < keys ? n : keys;
      if (n > 0) forward_block(A, tile, from, n, x, i, values);
    }
  }
  if (PIECES > 1)
    for (int64_t i = 0; i < queries; ++i)
      if (x.m[i] > 1024 || (x.m[i] < -1024 && x.m[i] != -kInfinity)) return false;

  for (int64_t i = 0; i < tiles; ++i) {
    const Tile tile = tile_of(i);
    for (int64_t j = 0; j < tile.queries; ++j) {
      const float total = x.l[i * kTile + j];
      x.factor[j] = total == 0 ? 0 : 1 / total;
      A.lse[(b * A.heads + h) * A.time + tile.t + j] = total == 0 ? -kInfinity : x.m[i * kTile + j] + std::log(total);
    }
    const int64_t first = (b * A.time + tile.t) * out_row + h * A.value_features, E = A.value_features;
    if (PIECES > 1) {
      lanes_to_rows(x.O + i * x.E * kTile, kTile, E, x.factor, A.o + first, out_row, tile.queries);
      continue;
    }
    float* rows = x.block;  // free again
    lanes_to_rows(x.O + i * x.E * kTile, kTile, E, x.factor, rows, E, tile.queries);
    for (int64_t j = 0; j < tile.queries; ++j)
      for (int64_t c = 0; c < E; ++c) A.o16[first + j * out_row + c] = nearest(rows[j * E + c]);
  }
  return true;
}

template <int PIECES>
static size_t forward_scratch(const Attention& A, int64_t queries) {
  const size_t own = Memory<PIECES>(A, tiles_of(queries), nullptr).end - (float*)nullptr;
  const size_t other = avx512::kernels.forward_scratch(A, queries);
  return PIECES > 1 && other > own ? other : own;
}

template <int PIECES>
static void forward(const Attention& A, int64_t b, int64_t h, int64_t t, int64_t queries, float* scratch) {
  bool done = false;
  if (PIECES == 1 || queries >= kWorthwhile) {
    Tiles configured;
    done = solved<PIECES>(A, b, h, t, queries, scratch);
  }
  if (!done) avx512::kernels.forward(A, b, h, t, queries, scratch);
}

// The backward pass is that of AVX-512.
extern const oplab::Kernels float32, bfloat16;
const oplab::Kernels float32 = {"AMX", kTile, forward_scratch<3>, forward<3>, nullptr, nullptr, nullptr};
const oplab::Kernels bfloat16 = {"AMX", kTile, forward_scratch<1>, forward<1>, nullptr, nullptr, nullptr};

}  // namespace amx

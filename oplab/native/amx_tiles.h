// Products of small matrices of bfloat16 by AMX, the processor's own unit for them, and of float32 in pieces.
//
// One instruction multiplies 16 x 32 numbers with 32 x 16 and adds the result to 16 x 16 sums in float32; a core
// does that 16 times as fast as the same work with vectors of float32. Its second operand wants pairs of rows
// side by side, and lanes that are queries give just that: a pair of keys, or of features, in each 32 bits of a
// lane.
//
// bfloat16 goes in as it is. A float32 has 24 bits, and three numbers of 8 bits hold them all:
//
//   x = x0 + x1 + x2,    x y = x0 y0 + (x0 y1 + x1 y0) + (x0 y2 + x1 y1 + x2 y0) + less than 2^-22 of it
//
// so six products in bfloat16 make one in float32, no less exact, and still in less than half the time (Henry,
// Tang and Heinecke, 2019, arXiv 1904.06376). The smallest are added first.
//
// (Intel, Architecture Instruction Set Extensions Programming Reference, 319433, chapter "Intel AMX".)
namespace amx {

typedef uint16_t bf16;
constexpr int kTile = 64;        // queries side by side
constexpr int N = kTile / VL;    // vectors of them
constexpr int64_t kKeys = 128;   // keys in a block
constexpr int64_t kGroup = 32;   // what one instruction takes of keys or features

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
// A and B stand `a_piece` and `b_piece` apart. The result goes to c, [rows][kTile]. Four
// multiplications keep the unit busy for 64 cycles, in which the vectors are free for `meanwhile`: after each of the
// six products it is called with that one's number.
#define LOAD_A(p) _tile_loadd(4, a + p * a_piece + i * kTileNumbers, 64); \
                  _tile_loadd(5, a + p * a_piece + i * kTileNumbers + a_row, 64)
#define LOAD_B(p) _tile_loadd(6, b + p * b_piece + i * N * kTilePairs, 64); \
                  _tile_loadd(7, b + p * b_piece + (i * N + 1) * kTilePairs, 64)
#define MULTIPLY _tile_dpbf16ps(0, 4, 6); \
                 _tile_dpbf16ps(1, 4, 7); \
                 _tile_dpbf16ps(2, 5, 6); \
                 _tile_dpbf16ps(3, 5, 7)
struct Nothing {
  template <class Number>
  INLINE void operator()(Number) const {}
};
template <int PIECES, class Meanwhile = Nothing>
INLINE void product(const bf16* a, int64_t a_row, int64_t a_piece, const uint32_t* b, int64_t b_piece, int64_t depth,
                    float* c, Meanwhile&& meanwhile = {}) {
  __asm__ volatile("" ::: "memory");  // GCC does not know that tiles are loaded from memory
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  if (PIECES == 3)  // the five small products, in an order in which each needs only one new operand
    for (int64_t i = 0; i < depth / kGroup; ++i) {
      LOAD_A(2); LOAD_B(0); MULTIPLY; meanwhile(count<0>{});
      LOAD_A(1); MULTIPLY; meanwhile(count<1>{});
      LOAD_B(1); MULTIPLY; meanwhile(count<2>{});
      LOAD_A(0); MULTIPLY; meanwhile(count<3>{});
      LOAD_B(2); MULTIPLY; meanwhile(count<4>{});
    }
  for (int64_t i = 0; i < depth / kGroup; ++i) {
    LOAD_A(0); LOAD_B(0); MULTIPLY; meanwhile(count<5>{});
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

// The same for x >= 0, towards zero: fewer instructions, and nothing is lost of 24 bits. One piece is rounded.
template <int PIECES>
INLINE void cut(vf x, vi (&piece)[PIECES]) {
  if (PIECES == 1) x = (vf)half_up(x);
  UNROLL for (int p = 0; p < PIECES; ++p) {
    piece[p] = (vi)x;
    if (p + 1 < PIECES) x -= upper(piece[p]);
  }
}

INLINE vi pair(vi lower, vi higher) {  // two such results in each lane
  return (higher & (int32_t)0xffff0000) | (vi)_mm512_srli_epi32((__m512i)lower, 16);
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

}  // namespace amx

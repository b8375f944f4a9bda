// The backward pass on AMX: the five products of backward.h, each in pieces of bfloat16 by amx_tiles.h.
//
//   S^T = K q^T    dP^T = V dO^T    dq^T = K^T dS^T    dV = P^T dO    dK = dS^T q
//
// P and dS are [keys][queries] here too. They go into the last two products as first operand, row by row, with
// q and dO in pairs of queries; and dS goes into dq^T as second operand, in pairs of keys, as P does in the
// forward pass. Some tiles of queries are taken together, so that keys and values are cut in pieces once for them.
namespace amx {

constexpr int64_t kPieces = 3;
constexpr int64_t kAcross = 64 * kTile / 2;  // pairs of 64 queries, 64 features wide

static int64_t padded(int64_t columns) { return (columns + VL - 1) / VL * VL; }  // as AVX-512 does
static int64_t wide(int64_t features) { return (features + 63) / 64; }              // of those, side by side
static int64_t together(int64_t features) { return features <= 128 ? 8 : 4; }       // tiles; features of k and v

struct Queries {  // one tile's
  Tile tile;
  int64_t number;  // of its first query in lse
  uint32_t *q_lanes, *dout_lanes;  // [pieces][features / 2][queries]
  uint32_t *q_pairs, *dout_pairs;  // [pieces][features / 64][queries / 2][64]
  float *dq, *lse, *d;             // [features][queries], [queries]
};

struct BackwardMemory {
  int64_t D, E;
  Queries queries[8];       // those taken together
  bf16 *K, *V, *Kt, *rows;  // [pieces] of [keys][features], [keys][value features], [features][keys]
  bf16 *P, *dS;             // [pieces][keys][queries]
  uint32_t* dS_pairs;       // [pieces][keys / 2][queries]
  float *S, *dP, *block;    // [keys][queries]
  float* end;

  BackwardMemory(const Attention& A, float* scratch) : D(rounded(A.features)), E(rounded(A.value_features)) {
    auto take = [&](int64_t floats) {
      float* taken = scratch;
      scratch += (floats + 15) / 16 * 16;
      return taken;
    };
    const int64_t most = std::max({D, E, kKeys});
    for (int64_t i = 0; i < together(D + E); ++i) {
      Queries& x = queries[i];
      x.q_lanes = (uint32_t*)take(kPieces * D / 2 * kTile), x.q_pairs = (uint32_t*)take(kPieces * wide(D) * kAcross);
      x.dout_lanes = (uint32_t*)take(kPieces * E / 2 * kTile), x.dout_pairs = (uint32_t*)take(kPieces * wide(E) * kAcross);
      x.dq = take(D * kTile), x.lse = take(kTile), x.d = take(kTile);
    }
    K = (bf16*)take(kPieces * kKeys * D / 2), Kt = (bf16*)take(kPieces * kKeys * D / 2);
    V = (bf16*)take(kPieces * kKeys * E / 2), rows = (bf16*)take(kPieces * kKeys * most / 2);
    P = (bf16*)take(kPieces * kKeys * kTile / 2), dS = (bf16*)take(kPieces * kKeys * kTile / 2);
    dS_pairs = (uint32_t*)take(kPieces * kKeys / 2 * kTile);
    S = take(kKeys * kTile), dP = take(kKeys * kTile), block = take(most * kTile);
    end = scratch;
  }
};

// Items of work, handed out in even portions over so many calls.
struct Share {
  int64_t items, calls, due = 0, next = 0;
  Share(int64_t items, int64_t calls) : items(items), calls(calls) {}
  template <class F>
  INLINE void some(F f) {
    for (due += items; due >= calls; due -= calls) f(next++);
  }
};

// C += factor A B for `rows` rows of A's tiles, `a_row` numbers apart, and at most 64 columns of C.
template <class Meanwhile = Nothing>
static void add_product(const bf16* a, int64_t a_row, int64_t a_piece, const uint32_t* b, int64_t b_piece, int64_t depth,
                        float* block, float factor, float* c, int64_t ldc, int64_t rows, int64_t columns,
                        Meanwhile&& meanwhile = {}) {
  for (int64_t r = 0; r < rows; r += 32)
    for (int64_t q = 0; q < columns; q += 32)
      product<kPieces>(a + r / 16 * a_row, a_row, a_piece, b + q / 16 * kTilePairs, b_piece, depth,
                       block + r * kTile + q, meanwhile);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t q = 0; q < columns; q += VL)
      store(c + r * ldc + q, load(c + r * ldc + q) + load(block + r * kTile + q) * factor);
}

// Two vectors, of one key and of 32 queries, into the pieces of a row of A's tiles.
INLINE void store_row(const vi (&low)[kPieces], const vi (&high)[kPieces], bf16* to) {
  alignas(64) static constexpr uint16_t upper[32] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31,
                                                     33, 35, 37, 39, 41, 43, 45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
  UNROLL for (int p = 0; p < kPieces; ++p)
    _mm512_storeu_si512(to + p * kKeys * kTile,
                        _mm512_permutex2var_epi16((__m512i)low[p], _mm512_load_si512(upper), (__m512i)high[p]));
}

// P of one key and 32 queries, from their scores: as numbers, in place of these, and in pieces.
static __attribute__((noinline)) void weights(const BackwardMemory& x, const Queries& of, float scale, int64_t r, int64_t v) {
  vi pieces[2][kPieces];
  UNROLL for (int i = 0; i < 2; ++i) {
    float* at = x.S + r * kTile + (v + i) * VL;
    const vf s = load(at) * scale;
    vf above = s - load(of.lse + (v + i) * VL);
    above = vf{} < above ? vf{} : above;  // lse is never less than a score: a rounding must not say so
    const vf weight = exponential(s == all(-kInfinity) ? s : above);
    store(at, weight);
    split(weight, pieces[i]);
  }
  store_row(pieces[0], pieces[1], x.P + place(r, v * VL, kTile));
}

// dS of two keys and 32 queries, in pieces for both of its products.
static __attribute__((noinline)) void changes(const BackwardMemory& x, const Queries& of, int64_t r, int64_t v) {
  vi pieces[2][2][kPieces];  // [key][vector]
  UNROLL for (int key = 0; key < 2; ++key) {
    UNROLL for (int i = 0; i < 2; ++i) {
      const int64_t at = (r + key) * kTile + (v + i) * VL;
      const vf weight = load(x.S + at), change = weight * (load(x.dP + at) - load(of.d + (v + i) * VL));
      split(weight == vf{} ? vf{} : change, pieces[key][i]);
    }
    store_row(pieces[key][0], pieces[key][1], x.dS + place(r + key, v * VL, kTile));
  }
  UNROLL for (int i = 0; i < 2; ++i)
    UNROLL for (int p = 0; p < kPieces; ++p)
      store((float*)(x.dS_pairs + p * kKeys / 2 * kTile + (r / 32 * N + v + i) * kTilePairs + r % 32 / 2 * 16),
            (vf)pair(pieces[0][i][p], pieces[1][i][p]));
}

// One tile of queries and keys [k, k + n): what they add to dq, dK and dV. The vectors make P while the tile unit
// makes dP, and dS while it makes dV, a little after every few instructions of the other.
static __attribute__((noinline)) void backward_block(const Attention& A, const BackwardMemory& x, const Queries& of,
                                                     int64_t k, int64_t n, float* dK, float* dV) {
  const int64_t D = x.D, E = x.E, D16 = padded(A.features), E16 = padded(A.value_features), keys = rounded(n);
  for (int q = 0; q < kTile; q += 32)
    for (int64_t r = 0; r < keys; r += 32)
      product<kPieces>(x.K + r * D, 16 * D, kKeys * D, of.q_lanes + q / 16 * kTilePairs, D / 2 * kTile, D,
                       x.S + r * kTile + q);
  const bool plain = !A.bias && n == keys && !hides(A, of.tile, k, n);
  if (!plain) {
    for (int64_t i = 0; i < n * kTile; i += VL) store(x.S + i, load(x.S + i) * A.scale);
    for (int64_t i = n * kTile; i < keys * kTile; i += VL) store(x.S + i, all(-kInfinity));  // keys that are not there
    change_scores(A, of.tile, k, n, x.S);
  }

  const float scale = plain ? A.scale : 1;
  Share of_weights(keys * 2, keys / 32 * 2 * (E / 32) * 6);
  auto some_weights = [&](auto) __attribute__((always_inline)) {
    of_weights.some([&](int64_t i) { weights(x, of, scale, i / 2, i % 2 * 2); });
  };
  for (int q = 0; q < kTile; q += 32)
    for (int64_t r = 0; r < keys; r += 32)
      product<kPieces>(x.V + r * E, 16 * E, kKeys * E, of.dout_lanes + q / 16 * kTilePairs, E / 2 * kTile, E,
                       x.dP + r * kTile + q, some_weights);

  Share of_changes(keys, (keys + 31) / 32 * ((E16 + 31) / 32) * (kTile / 32) * 6);
  auto some_changes = [&](auto) __attribute__((always_inline)) {
    of_changes.some([&](int64_t i) { changes(x, of, i / 2 * 2, i % 2 * 2); });
  };
  for (int64_t e = 0; e < E16; e += 64)
    add_product(x.P, 16 * kTile, kKeys * kTile, of.dout_pairs + e / 64 * kAcross, wide(E) * kAcross, kTile, x.block, 1,
                dV + e, E16, n, std::min<int64_t>(64, E16 - e), some_changes);
  for (int64_t d = 0; d < D16; d += 64)
    add_product(x.dS, 16 * kTile, kKeys * kTile, of.q_pairs + d / 64 * kAcross, wide(D) * kAcross, kTile, x.block, A.scale,
                dK + d, D16, n, std::min<int64_t>(64, D16 - d));
  add_product(x.Kt, 16 * kKeys, kKeys * D, x.dS_pairs, kKeys / 2 * kTile, keys, x.block, A.scale, of.dq, kTile, D, kTile);
}

// Rows (64 x padded) to pairs of rows, 64 features wide: the second operand where the sum is over queries.
static void rows_to_pairs(const bf16* rows, int64_t padded, uint32_t* to) {
  for (int64_t r = 0; r < kTile; r += 2)
    for (int64_t c = 0; c < padded; c += 16) {
      auto numbers = [&](int64_t row) {
        return (vi)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)(rows + row * padded + c)));
      };
      uint32_t* place = to + c / 64 * kAcross + (r / 32 * N + c % 64 / 16) * kTilePairs + r % 32 / 2 * 16;
      store((float*)place, (vf)(numbers(r) | numbers(r + 1) << 16));
    }
}

// False where AMX is not to answer: see `solved`, and gradients that are infinite have no pieces either.
static bool load_queries(const Attention& A, const BackwardMemory& x, Queries& of, int64_t b, int64_t h, int64_t t) {
  const int64_t row = A.heads * A.features, out_row = A.heads * A.value_features, E = A.value_features;
  const int64_t have = std::min<int64_t>(kTile, A.time - t);
  of.tile = {b, h, t, have, kTile}, of.number = (b * A.heads + h) * A.time + t;
  const float* dout = A.dout + (b * A.time + t) * out_row + h * E;
  const float* out = A.out + (b * A.time + t) * out_row + h * E;

  bool good = copy_rows<false>(A.q + (b * A.time + t) * row + h * A.features, row, have, A.features, x.rows, x.D, kTile,
                               kTile * x.D);
  for (int p = 0; p < kPieces; ++p) {
    pairs_to_lanes(x.rows + p * kTile * x.D, x.D, of.q_lanes + p * x.D / 2 * kTile);
    rows_to_pairs(x.rows + p * kTile * x.D, x.D, of.q_pairs + p * wide(x.D) * kAcross);
  }
  good &= copy_rows<false>(dout, out_row, have, E, x.rows, x.E, kTile, kTile * x.E);
  for (int p = 0; p < kPieces; ++p) {
    pairs_to_lanes(x.rows + p * kTile * x.E, x.E, of.dout_lanes + p * x.E / 2 * kTile);
    rows_to_pairs(x.rows + p * kTile * x.E, x.E, of.dout_pairs + p * wide(x.E) * kAcross);
  }
  std::memset(of.dq, 0, x.D * kTile * sizeof(float));
  for (int i = 0; i < kTile; ++i) {
    of.lse[i] = kInfinity, of.d[i] = 0;  // an empty lane, or a query that sees no key: P is 0
    if (i >= have) continue;
    const float lse = A.sum[of.number + i];
    if (lse != -kInfinity) of.lse[i] = lse, good &= std::fabs(lse) <= kHuge;
    vf d = {};
    int64_t c = 0;
    for (; c + VL <= E; c += VL) d += load(dout + i * out_row + c) * load(out + i * out_row + c);
    of.d[i] = sum(d) - A.dsum[of.number + i];
    for (; c < E; ++c) of.d[i] += dout[i * out_row + c] * out[i * out_row + c];
  }
  return good;
}

static bool finite(const float* x, int64_t count) {  // a multiple of VL
  vf odd = {};
  for (int64_t i = 0; i < count; i += VL) odd += load(x + i) - load(x + i);
  return sum(odd) == 0;
}

static bool solved_backward(const Attention& A, int64_t b, int64_t g, int64_t part, int64_t parts, float* scratch,
                            float* dK, float* dV) {
  BackwardMemory x(A, scratch);
  const int64_t key_row = A.kv_heads * A.features, value_row = A.kv_heads * A.value_features, row = A.heads * A.features;
  const int64_t D16 = padded(A.features), E16 = padded(A.value_features);
  const float* k = A.k + b * A.source * key_row + g * A.features;
  const float* v = A.v + b * A.source * value_row + g * A.value_features;
  float scale[kTile];
  for (float& s : scale) s = 1;  // dq has its scale already

  const int64_t tiles = tiles_of(A.time);
  for (int64_t number = part; number < A.group() * tiles;) {
    int64_t have = 0, end = 0;
    bool good = true;
    for (; have < together(x.D + x.E) && number < A.group() * tiles; number += parts, ++have) {
      Queries& of = x.queries[have];
      good &= load_queries(A, x, of, b, g * A.group() + number / tiles, number % tiles * kTile);
      end = std::max(end, A.seen(b, of.tile.t + of.tile.queries - 1));
    }
    for (int64_t from = 0; from < end && good; from += kKeys) {
      const int64_t keys = std::min(kKeys, end - from), whole = rounded(keys);
      good &= copy_rows<true>(k + from * key_row, key_row, keys, A.features, x.K, x.D, whole, kKeys * x.D);
      good &= copy_rows<true>(v + from * value_row, value_row, keys, A.value_features, x.V, x.E, whole, kKeys * x.E);
      copy_rows<false>(k + from * key_row, key_row, keys, A.features, x.rows, x.D, whole, kKeys * x.D);
      for (int p = 0; p < kPieces; ++p) values_to_rows(x.rows + p * kKeys * x.D, x.D, whole, x.Kt + p * kKeys * x.D);
      for (int64_t i = 0; i < have && good; ++i) {
        const Tile& tile = x.queries[i].tile;
        const int64_t n = std::min(keys, A.seen(b, tile.t + tile.queries - 1) - from);
        if (n > 0) backward_block(A, x, x.queries[i], from, n, dK + from * D16, dV + from * E16);
      }
    }
    for (int64_t i = 0; i < have; ++i) {
      const Queries& of = x.queries[i];
      good = good && finite(of.dq, x.D * kTile);
      if (!good) return false;
      lanes_to_rows(of.dq, kTile, A.features, scale, A.dq + (b * A.time + of.tile.t) * row + of.tile.h * A.features, row,
                    of.tile.queries);
    }
  }
  return finite(dK, A.source * D16) && finite(dV, A.source * E16);
}

static size_t backward_scratch(const Attention& A) {
  const size_t own = BackwardMemory(A, nullptr).end - (float*)nullptr, other = avx512::kernels.backward_scratch(A);
  return own > other ? own : other;
}

static void backward(const Attention& A, int64_t b, int64_t g, int64_t part, int64_t parts, float* scratch, float* dK,
                     float* dV) {
  bool done = false;
  if (A.time >= kWorthwhile) {
    Tiles configured;
    done = solved_backward(A, b, g, part, parts, scratch, dK, dV);
    const size_t rows = A.source * sizeof(float);
    if (!done) std::memset(dK, 0, rows * padded(A.features));
    if (!done) std::memset(dV, 0, rows * padded(A.value_features));
  }
  if (!done) avx512::kernels.backward(A, b, g, part, parts, scratch, dK, dV);
}

}  // namespace amx

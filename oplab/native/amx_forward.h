// The forward pass on AMX: the blocks and the softmax of forward.h, with products by amx_tiles.h, of float32 in
// pieces or of bfloat16 as it is.
namespace amx {

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
        uint32_t* P = x.P + p * kKeys / 2 * kTile + (r / 32 * N + v) * kTilePairs + r % 32 / 2 * 16;
        store((float*)P, (vf)pair(lower[p], higher[p]));
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
      if (std::fabs(x.m[i]) > kHuge && x.m[i] != -kInfinity) return false;

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

// Where a piece is none for AMX, each of its tiles is asked alone: so what answers for a query depends on the query
// and the keys that its tile sees, and not on how the work was shared out.
template <int PIECES>
static void forward(const Attention& A, int64_t b, int64_t h, int64_t t, int64_t queries, float* scratch) {
  if (PIECES == 1 || A.time >= kWorthwhile) {
    Tiles configured;
    if (solved<PIECES>(A, b, h, t, queries, scratch)) return;
    if (queries > kTile) {
      for (int64_t i = 0; i < queries; i += kTile)
        forward<PIECES>(A, b, h, t + i, std::min<int64_t>(kTile, queries - i), scratch);
      return;
    }
  }
  avx512::kernels.forward(A, b, h, t, queries, scratch);
}

}  // namespace amx

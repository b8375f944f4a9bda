// The forward pass: FlashAttention (Dao et al., 2022, arXiv 2205.14135), with one query in each lane.
//
//   S^T (keys x queries)     = K q^T             K is read number by number, q^T vector by vector
//   O^T (features x queries) = v^T P^T + O^T
//
// So a softmax over keys never adds up a vector's own lanes: maximum and sum of a query stay in its lane. The
// online softmax (Milakov and Gimelshein, 2018, arXiv 1805.02867) needs one block of keys at a time:
//
//   m' = max(m, max S)    P = exp(S - m')    l' = l exp(m - m') + sum P    O' = O exp(m - m') + P v
//
// and O / l at the end. The scores of a block stay in the cache and are never written out: that is all the
// memory the table of scores ever gets.
namespace OPLAB_ISA {

constexpr int kTile = NV * VL;   // queries side by side: as many vectors as the registers hold sums of
constexpr int64_t kKeys = 96;    // keys in a block

// One block of keys for N vectors of queries.
template <int N>
static __attribute__((noinline)) void forward_block(const Attention& A, const Tile& tile, int64_t k, int64_t n,
                                                    const float* K, const float* V, bool finite,
                                                    const float* Q, float* O, float* S, float* m, float* l) {
  constexpr int width = N * VL;
  const int D = A.features, E = A.value_features;
  vf before[N], top[N], factor[N], total[N];
  UNROLL for (int v = 0; v < N; ++v) before[v] = top[v] = load(m + v * VL);

  auto zero = [](int, int) __attribute__((always_inline)) { return vf{}; };
  in_groups(n, [&](auto rows, int64_t r) __attribute__((always_inline)) {
    product<decltype(rows)::value, N, false>(
        K + r * D, D, Q, width, D, zero, [&](int i, int v, vf s) __attribute__((always_inline)) {
          store(S + (r + i) * width + v * VL, s);
          top[v] = larger(top[v], s);
        });
  });
  const bool hidden = hides(A, tile, k, n);
  if (A.bias || hidden) {
    change_scores(A, tile, k, n, S);
    UNROLL for (int v = 0; v < N; ++v) top[v] = before[v];
    for (int64_t r = 0; r < n; ++r)
      UNROLL for (int v = 0; v < N; ++v) top[v] = larger(top[v], load(S + r * width + v * VL));
  }

  bool rescale = false;
  UNROLL for (int v = 0; v < N; ++v) {
    store(m + v * VL, top[v]);
    rescale |= any(top[v] != before[v]);
    top[v] = top[v] == -kInfinity ? vf{} : top[v];  // no key yet: there is nothing to subtract
    factor[v] = exponential(before[v] - top[v]);
    total[v] = load(l + v * VL) * factor[v];
  }
  for (int64_t r = 0; r < n; ++r)
    UNROLL for (int v = 0; v < N; ++v) {
      vf p = exponential(load(S + r * width + v * VL) - top[v]);
      store(S + r * width + v * VL, p);
      total[v] += p;
    }
  UNROLL for (int v = 0; v < N; ++v) store(l + v * VL, total[v]);

  auto so_far = [&](int64_t d, int v) __attribute__((always_inline)) {
    vf o = load(O + d * width + v * VL);
    return rescale ? o * factor[v] : o;
  };
  if (hidden && !finite) {
    for (int64_t d = 0; d < E; ++d)
      UNROLL for (int v = 0; v < N; ++v) store(O + d * width + v * VL, so_far(d, v));
    careful_lanes<true>(V, E, S, width, n, E, O);
    return;
  }
  in_groups(E, [&](auto rows, int64_t d) __attribute__((always_inline)) {
    product<decltype(rows)::value, N, true>(
        V + d, E, S, width, n, [&](int i, int v) __attribute__((always_inline)) { return so_far(d + i, v); },
        [&](int i, int v, vf o) __attribute__((always_inline)) { store(O + (d + i) * width + v * VL, o); });
  });
}

static int64_t tiles_of(int64_t queries) { return (queries + kTile - 1) / kTile; }

static int width_of(int64_t queries) {  // lanes for so many queries
  return queries > 2 * VL && NV > 2 ? kTile : queries > VL ? 2 * VL : VL;
}

static size_t forward_scratch(const Attention& A, int64_t queries) {
  size_t D = A.features, E = A.value_features;
  return tiles_of(queries) * kTile * (D + E + 3) + kKeys * (kTile + D + E) + 6 * 16;
}

// Queries [t, t + queries) of one head: every block of keys is fetched once for all of their tiles.
static void forward(const Attention& A, int64_t b, int64_t h, int64_t t, int64_t queries, float* scratch) {
  const int64_t D = A.features, E = A.value_features, tiles = tiles_of(queries);
  const int64_t key_row = A.kv_heads * D, value_row = A.kv_heads * E, row = A.heads * D, out_row = A.heads * E;
  float* Q = scratch;                       // [tiles][features][queries], times scale
  float* O = Q + tiles * D * kTile;         // [tiles][value features][queries]
  float* S = O + tiles * E * kTile;         // [keys][queries]
  float* m = S + kKeys * kTile;             // [tiles][queries]
  float* l = m + tiles * kTile;
  float* factor = l + tiles * kTile;
  float* K = factor + tiles * kTile;        // [keys][features]
  float* V = K + kKeys * D;

  const float* q = A.q + (b * A.time + t) * row + h * D;
  const float* k = A.k + b * A.source * key_row + h / A.group() * D;
  const float* v = A.v + b * A.source * value_row + h / A.group() * E;
  std::memset(O, 0, sizeof(float) * tiles * E * kTile);
  for (int64_t i = 0; i < tiles * kTile; ++i) m[i] = -kInfinity, l[i] = 0;
  auto tile_of = [&](int64_t i) {
    int64_t left = queries - i * kTile, have = left < kTile ? left : kTile;
    return Tile{b, h, t + i * kTile, have, width_of(have)};
  };
  for (int64_t i = 0; i < tiles; ++i) {
    Tile tile = tile_of(i);
    rows_to_lanes(q + i * kTile * row, row, tile.queries, D, A.scale, Q + i * D * kTile, tile.width);
  }

  const int64_t end = A.seen(b, t + queries - 1);
  for (int64_t from = 0; from < end; from += kKeys) {
    const int64_t keys = end - from < kKeys ? end - from : kKeys;
    pack(k + from * key_row, key_row, keys, D, 1, K, D);
    const bool finite = pack(v + from * value_row, value_row, keys, E, 1, V, E);
    for (int64_t i = 0; i < tiles; ++i) {
      Tile tile = tile_of(i);
      int64_t n = A.seen(b, tile.t + tile.queries - 1) - from;  // of this block, what the last query sees
      n = n < keys ? n : keys;
      if (n <= 0) continue;
      auto block = tile.width == VL ? forward_block<1> : tile.width == 2 * VL ? forward_block<2> : forward_block<NV>;
      block(A, tile, from, n, K, V, finite, Q + i * D * kTile, O + i * E * kTile, S, m + i * kTile, l + i * kTile);
    }
  }

  for (int64_t i = 0; i < tiles; ++i) {
    Tile tile = tile_of(i);
    for (int64_t j = 0; j < tile.queries; ++j) {
      const float top = m[i * kTile + j], total = l[i * kTile + j];
      factor[j] = total == 0 ? 0 : 1 / total;  // no key: 0, and lse is -inf
      A.lse[(b * A.heads + h) * A.time + tile.t + j] = total == 0 ? -kInfinity : top + std::log(total);
    }
    lanes_to_rows(O + i * E * kTile, tile.width, E, factor, A.o + (b * A.time + tile.t) * out_row + h * E,
                  out_row, tile.queries);
  }
}

}  // namespace OPLAB_ISA

// The backward pass: P again from the scores and lse, then four more products (FlashAttention, appendix B).
//
//   P  = exp(S - lse)             S  = scale q k^T + bias, as in the forward pass
//   dv = P^T dO                   dP = dO v^T
//   D  = sum_features dO O        dS = P (dP - D + dlse)
//   dq = scale dS k               dk = scale dS^T q
//
// Lanes are queries in S, dP and dq, and features in dk and dv, so each product finds its vectors in order:
//
//   S^T = K q^T    dP^T = V dO^T    dq^T = K^T dS^T    dV = P^T dO    dK = dS^T q
//
// A task has one key head, and all the queries that use it (or every `parts`-th tile of them): dK and dV grow
// in its own memory, and dq of a tile is done when all its blocks of keys are. Nothing is added to by two
// threads, so the result does not depend on who was faster.
namespace OPLAB_ISA {

constexpr int64_t kBackwardKeys = 96;

static int64_t padded(int64_t columns) { return (columns + VL - 1) / VL * VL; }

static size_t backward_scratch(const Attention& A) {
  const size_t D = padded(A.features), E = padded(A.value_features);
  return A.source * (D + E) + 3 * kTile * D + 2 * kTile * E + 2 * kBackwardKeys * kTile + 3 * kTile + 16 * 16;
}

// C[rows][columns] += W^T B for weights W^T (rows x queries): lanes are features, four vectors at a time.
template <int N>
INLINE void add_columns(const float* W, int width, const float* B, int64_t ldb, int64_t rows, float* C) {
  in_groups(rows, [&](auto group, int64_t r) __attribute__((always_inline)) {
    product<decltype(group)::value, N, false>(
        W + r * width, width, B, ldb, width,
        [&](int i, int v) __attribute__((always_inline)) { return load(C + (r + i) * ldb + v * VL); },
        [&](int i, int v, vf x) __attribute__((always_inline)) { store(C + (r + i) * ldb + v * VL, x); });
  });
}
static __attribute__((noinline)) void add_rows(const float* W, int width, const float* B, int64_t columns,
                                               int64_t rows, float* C, bool careful) {
  if (careful) {  // a weight of 0 keeps NaN out
    for (int64_t r = 0; r < rows; ++r)
      for (int i = 0; i < width; ++i)
        if (float w = W[r * width + i]; w != 0)
          for (int64_t c = 0; c < columns; ++c) C[r * columns + c] += w * B[i * columns + c];
    return;
  }
  int64_t c = 0;
  for (; c + NV * VL <= columns; c += NV * VL) add_columns<NV>(W, width, B + c, columns, rows, C + c);
  if (NV > 2)
    for (; c + 2 * VL <= columns; c += 2 * VL) add_columns<2>(W, width, B + c, columns, rows, C + c);
  for (; c < columns; c += VL) add_columns<1>(W, width, B + c, columns, rows, C + c);
}

struct Operands {  // of one tile of queries, and of one block of keys
  const float *q_lanes, *dout_lanes, *q_rows, *dout_rows, *lse, *d;
  const float *K, *V;
  float *dq_lanes, *dK, *dV, *P, *dS;
  bool queries_finite, keys_finite;
};

template <int N>
static __attribute__((noinline)) void backward_block(const Attention& A, const Tile& tile, int64_t k, int64_t n,
                                                     const Operands& x) {
  constexpr int width = N * VL;
  const int64_t D = padded(A.features), E = padded(A.value_features);
  const bool hidden = hides(A, tile, k, n), plain = !hidden && !A.bias;
  const bool odd = !x.keys_finite || !x.queries_finite;
  auto zero = [](int, int) __attribute__((always_inline)) { return vf{}; };
  auto weight = [&](vf s, int v) __attribute__((always_inline)) {
    vf above = s - load(x.lse + v * VL);
    above = vf{} < above ? vf{} : above;  // lse is never less than a score: a rounding must not say so
    return exponential(s == all(-kInfinity) ? s : above);  // 0 where hidden, even from a query whose lse is NaN
  };

  in_groups(n, [&](auto rows, int64_t r) __attribute__((always_inline)) {
    product<decltype(rows)::value, N, false>(
        x.K + r * D, D, x.q_lanes, width, A.features, zero, [&](int i, int v, vf s) __attribute__((always_inline)) {
          store(x.P + (r + i) * width + v * VL, plain ? weight(s, v) : s);
        });
  });
  if (!plain) {
    change_scores(A, tile, k, n, x.P);
    for (int64_t r = 0; r < n; ++r)
      UNROLL for (int v = 0; v < N; ++v) {
        float* p = x.P + r * width + v * VL;
        store(p, weight(load(p), v));
      }
  }
  in_groups(n, [&](auto rows, int64_t r) __attribute__((always_inline)) {
    product<decltype(rows)::value, N, false>(
        x.V + r * E, E, x.dout_lanes, width, A.value_features, zero,
        [&](int i, int v, vf dp) __attribute__((always_inline)) {
          vf p = load(x.P + (r + i) * width + v * VL), ds = p * (dp - load(x.d + v * VL));
          store(x.dS + (r + i) * width + v * VL, odd && hidden ? (p == vf{} ? vf{} : ds) : ds);
        });
  });
  add_rows(x.P, width, x.dout_rows, E, n, x.dV, hidden && !x.queries_finite);
  add_rows(x.dS, width, x.q_rows, D, n, x.dK, hidden && !x.queries_finite);
  if (hidden && !x.keys_finite) {
    careful_lanes<true>(x.K, D, x.dS, width, n, A.features, x.dq_lanes);
    return;
  }
  in_groups(A.features, [&](auto rows, int64_t d) __attribute__((always_inline)) {
    float* dq = x.dq_lanes + d * width;
    product<decltype(rows)::value, N, true>(
        x.K + d, D, x.dS, width, n, [&](int i, int v) __attribute__((always_inline)) { return load(dq + i * width + v * VL); },
        [&](int i, int v, vf y) __attribute__((always_inline)) { store(dq + i * width + v * VL, y); });
  });
}

// dK and dV, [source][padded features], are this task's own, and 0 when it starts.
static void backward(const Attention& A, int64_t b, int64_t g, int64_t part, int64_t parts, float* scratch,
                     float* dK, float* dV) {
  const int64_t D = padded(A.features), E = padded(A.value_features);
  const int64_t key_row = A.kv_heads * A.features, value_row = A.kv_heads * A.value_features;
  const int64_t row = A.heads * A.features, out_row = A.heads * A.value_features, end = A.keys(b);
  auto take = [&](int64_t floats) {
    float* taken = scratch;
    scratch += (floats + 15) / 16 * 16;
    return taken;
  };
  float *K = take(A.source * D), *V = take(A.source * E);
  float *q_lanes = take(kTile * D), *q_rows = take(kTile * D), *dq_lanes = take(kTile * D);
  float *dout_lanes = take(kTile * E), *dout_rows = take(kTile * E);
  float *P = take(kBackwardKeys * kTile), *dS = take(kBackwardKeys * kTile);
  float *lse = take(kTile), *d = take(kTile), *factor = take(kTile);
  for (int i = 0; i < kTile; ++i) factor[i] = A.scale;
  const bool keys_finite =
      (int)pack(A.k + b * A.source * key_row + g * A.features, key_row, end, A.features, 1, K, D) &
      (int)pack(A.v + b * A.source * value_row + g * A.value_features, value_row, end, A.value_features, 1, V, E);

  const int64_t tiles = tiles_of(A.time);
  for (int64_t number = part; number < A.group() * tiles; number += parts) {
    const int64_t h = g * A.group() + number / tiles, t = number % tiles * kTile;
    const int64_t left = A.time - t, have = left < kTile ? left : kTile;
    const Tile tile{b, h, t, have, width_of(have)};
    const float* q = A.q + (b * A.time + t) * row + h * A.features;
    const float* dout = A.dout + (b * A.time + t) * out_row + h * A.value_features;
    const float* out = A.out + (b * A.time + t) * out_row + h * A.value_features;
    const int64_t first = (b * A.heads + h) * A.time + t;

    rows_to_lanes(q, row, have, A.features, A.scale, q_lanes, tile.width);
    rows_to_lanes(dout, out_row, have, A.value_features, 1, dout_lanes, tile.width);
    std::memset(dq_lanes, 0, sizeof(float) * A.features * tile.width);
    std::memset(q_rows, 0, sizeof(float) * tile.width * D);
    std::memset(dout_rows, 0, sizeof(float) * tile.width * E);
    const bool queries_finite = (int)pack(q, row, have, A.features, A.scale, q_rows, D) &
                                (int)pack(dout, out_row, have, A.value_features, 1, dout_rows, E);
    for (int i = 0; i < tile.width; ++i) {
      lse[i] = kInfinity, d[i] = 0;  // an empty lane, or a query that sees no key: P is 0
      if (i >= have) continue;
      if (A.sum[first + i] != -kInfinity) lse[i] = A.sum[first + i];
      for (int64_t c = 0; c < A.value_features; ++c) d[i] += dout[i * out_row + c] * out[i * out_row + c];
      d[i] -= A.dsum[first + i];
    }
    const int64_t last = A.seen(b, t + have - 1);
    for (int64_t k = 0; k < last; k += kBackwardKeys) {
      const int64_t n = last - k < kBackwardKeys ? last - k : kBackwardKeys;
      Operands x{q_lanes, dout_lanes, q_rows, dout_rows, lse,        d,  K + k * D,      V + k * E,
                 dq_lanes, dK + k * D, dV + k * E, P,    dS, queries_finite, keys_finite};
      auto block = tile.width == VL ? backward_block<1> : tile.width == 2 * VL ? backward_block<2> : backward_block<NV>;
      block(A, tile, k, n, x);
    }
    lanes_to_rows(dq_lanes, tile.width, A.features, factor, A.dq + (b * A.time + t) * row + h * A.features, row,
                  have);
  }
}

}  // namespace OPLAB_ISA

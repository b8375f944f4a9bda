// The forward pass on AMX: that of forward.h, of float32 in pieces or of bfloat16 as it is, in the steps of
// amx_pipeline.h.
namespace amx {

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

  Pipeline<PIECES> pipeline(A, x);
  const int64_t end = A.seen(b, t + queries - 1);
  for (int64_t from = 0; from < end; from += kKeys) {
    const int64_t keys = end - from < kKeys ? end - from : kKeys, whole = rounded(keys), block = from / kKeys;
    bf16 *K = x.K + block % kUnderWay * x.each_K, *Vt = x.Vt + block % kUnderWay * x.each_Vt;
    finite = copy_rows<true>(k + from * key_row, key_row, keys, A.features, K, x.D, whole, kKeys * x.D);
    const bool values = copy_rows<false>(v + from * value_row, value_row, keys, A.value_features, x.rows, x.E, whole, kKeys * x.E);
    if (PIECES > 1 && !(finite && values)) return false;
    for (int p = 0; p < PIECES; ++p) values_to_rows(x.rows + p * kKeys * x.E, x.E, whole, Vt + p * kKeys * x.E);
    for (int64_t i = 0; i < tiles; ++i) {
      const Tile tile = tile_of(i);
      const int64_t n = std::min(A.seen(b, tile.t + tile.queries - 1) - from, keys);
      if (n > 0) pipeline.push({tile, i, from, n, block, values});
    }
  }
  pipeline.drain();
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

// How the tile unit and the vectors work at the same time.
//
// A step takes one tile of queries through one block of keys: a product, a softmax, a product. The products are the
// tile unit's work, the softmax is the vectors', and each would wait for the other. So three steps are under way:
//
//   tile unit    v^T P^T of the step before, then K q^T of the next one
//   vectors      P = exp(S - m) of this step
//
// and the exponentials stand between the multiplications, a few after every four. FlashAttention-3 does so on GPUs
// (Shah et al., 2024, arXiv 2407.08608).
namespace amx {

constexpr int kUnderWay = 3;  // steps, and as many blocks of keys where each has one tile only

// A task's memory. What is split has its pieces one after the other.
template <int PIECES>
struct Memory {
  int64_t D, E;
  uint32_t *Q, *P;
  bf16 *K, *Vt, *rows;
  float *O, *m, *l, *S, *block, *factor;
  int64_t each_P = PIECES * kKeys / 2 * kTile, each_S = kKeys * kTile, each_K, each_Vt;

  Memory(const Attention& A, int64_t tiles, float* scratch)
      : D(rounded(A.features)), E(rounded(A.value_features)), each_K(PIECES * kKeys * D), each_Vt(PIECES * kKeys * E) {
    auto take = [&](int64_t floats) {
      float* taken = scratch;
      scratch += (floats + 15) / 16 * 16;
      return taken;
    };
    Q = (uint32_t*)take(tiles * PIECES * D / 2 * kTile);  // [tiles][pieces][features / 2][queries]
    O = take(tiles * E * kTile);                          // [tiles][value features][queries]
    m = take(tiles * kTile), l = take(tiles * kTile);     // [tiles][queries]
    S = take(2 * each_S);                                 // [steps][keys][queries]
    P = (uint32_t*)take(2 * each_P);                      // [steps][pieces][keys / 2][queries]
    factor = take(2 * kTile);                             // [steps][queries]
    block = take((E > kKeys ? E : kKeys) * kTile);        // what a step adds to O
    K = (bf16*)take(kUnderWay * each_K / 2);              // [blocks][pieces][keys][features]
    Vt = (bf16*)take(kUnderWay * each_Vt / 2);            // [blocks][pieces][value features][keys]
    rows = (bf16*)take(PIECES * (kKeys > kTile ? kKeys : kTile) * (D > E ? D : E) / 2);
    end = scratch;
  }
  float* end;
};

struct Step {
  Tile tile;
  int64_t i;           // the tile's number
  int64_t k, n;        // the first key, and how many
  int64_t block;       // the number of their block
  bool finite;         // all of its values are
  int64_t number = 0;  // of the step itself: it says which half of S, P and factor is its own

  // Is there NaN or infinity where some query may not look? In bfloat16 alone: float32 does not come here with them.
  bool careful(const Attention& A) const { return !finite && hides(A, tile, k, n); }
};

// The softmax of a step. To begin, it finds the maxima, which takes all scores; the rest is done in pieces, by the
// calls that `product` makes and by `finish`.
template <int PIECES>
struct Softmax {
  float *S, *l;
  uint32_t* P;
  vf top[N], total[N];
  float scale;
  int64_t keys, next = 0;
  const bool careful;

  INLINE Softmax(const Attention& A, const Step& step, const Memory<PIECES>& x)
      : S(x.S + step.number % 2 * x.each_S), l(x.l + step.i * kTile), P(x.P + step.number % 2 * x.each_P), scale(A.scale),
        keys(rounded(step.n)), careful(PIECES == 1 && step.careful(A)) {
    const int64_t n = step.n;
    if (A.bias || hides(A, step.tile, step.k, n)) {
      for (int64_t i = 0; i < n * kTile; i += VL) store(S + i, load(S + i) * scale);
      scale = 1;
      change_scores(A, step.tile, step.k, n, S);
    }
    float* m = x.m + step.i * kTile;
    vf before[N];
    UNROLL for (int v = 0; v < N; ++v) before[v] = top[v] = load(m + v * VL);
    for (int64_t r = 0; r < n; ++r)
      UNROLL for (int v = 0; v < N; ++v) top[v] = larger(top[v], load(S + r * kTile + v * VL) * scale);
    for (int64_t i = n * kTile; i < keys * kTile; i += VL) store(S + i, all(-kInfinity));  // keys that are not there
    UNROLL for (int v = 0; v < N; ++v) {
      store(m + v * VL, top[v]);
      top[v] = top[v] == -kInfinity ? vf{} : top[v];  // no key yet: there is nothing to subtract
      const vf factor = exponential(before[v] - top[v]);
      store(x.factor + step.number % 2 * kTile + v * VL, factor);
      total[v] = load(l + v * VL) * factor;
    }
  }

  template <int v>
  INLINE void weights(int64_t r) {  // of the keys r and r + 1
    float* s = S + r * kTile + v * VL;
    const vf first = exponential(load(s) * scale - top[v]), second = exponential(load(s + kTile) * scale - top[v]);
    total[v] += first + second;
    if (careful) store(s, first), store(s + kTile, second);
    vi lower[PIECES], higher[PIECES];
    cut(first, lower), cut(second, higher);
    UNROLL for (int p = 0; p < PIECES; ++p)
      store((float*)(P + p * kKeys / 2 * kTile + (r / 32 * N + v) * kTilePairs + r % 32 / 2 * 16),
            (vf)pair(lower[p], higher[p]));
  }

  template <int NUMBER>
  INLINE void operator()(count<NUMBER>) {  // four keys for five products
    if (next >= keys) return;
    if (NUMBER == 0) weights<0>(next);
    if (NUMBER == 1) weights<1>(next);
    if (NUMBER == 2) weights<2>(next), weights<3>(next);
    if (NUMBER == 3) weights<0>(next + 2), weights<1>(next + 2);
    if (NUMBER == 4) weights<2>(next + 2), weights<3>(next + 2), next += 4;
  }

  INLINE void finish() {
    for (; next < keys; next += 2) weights<0>(next), weights<1>(next), weights<2>(next), weights<3>(next);
    UNROLL for (int v = 0; v < N; ++v) store(l + v * VL, total[v]);
  }
};

template <int PIECES>
class Pipeline {
 public:
  Pipeline(const Attention& A, const Memory<PIECES>& x) : A(A), x(x) {}

  // Begins this step, whose block of keys and values has to be there, and takes the last two further.
  void push(Step step) {
    step.number = pushed++;
    advance(&step);
  }
  void drain() {
    advance(nullptr);
    advance(nullptr);
  }

 private:
  const Attention& A;
  const Memory<PIECES>& x;
  int64_t pushed = 0;
  Step now, before;
  bool is_now = false, is_before = false;

  __attribute__((noinline)) void advance(const Step* next) {
    if (is_now) {
      Softmax<PIECES> softmax(A, now, x);
      if (is_before) add_values(before, softmax);
      if (next) find_scores(*next, softmax);
      softmax.finish();
    } else {
      Nothing nothing;
      if (is_before) add_values(before, nothing);
      if (next) find_scores(*next, nothing);
    }
    before = now, is_before = is_now;
    if ((is_now = next)) now = *next;
  }

  template <class Meanwhile>
  INLINE void find_scores(const Step& step, Meanwhile& meanwhile) {
    const bf16* K = x.K + step.block % kUnderWay * x.each_K;
    const uint32_t* Q = x.Q + step.i * PIECES * x.D / 2 * kTile;
    float* S = x.S + step.number % 2 * x.each_S;
    for (int64_t r = 0; r < rounded(step.n); r += 32)
      for (int q = 0; q < kTile; q += 32)
        product<PIECES>(K + r * x.D, 16 * x.D, kKeys * x.D, Q + q / 16 * kTilePairs, x.D / 2 * kTile, x.D,
                        S + r * kTile + q, meanwhile);
  }

  template <class Meanwhile>
  INLINE void add_values(const Step& step, Meanwhile& meanwhile) {
    const bf16* Vt = x.Vt + step.block % kUnderWay * x.each_Vt;
    const float *S = x.S + step.number % 2 * x.each_S, *factor = x.factor + step.number % 2 * kTile;
    const uint32_t* P = x.P + step.number % 2 * x.each_P;
    float* O = x.O + step.i * x.E * kTile;
    if (PIECES == 1 && step.careful(A)) {
      std::memset(x.block, 0, x.E * kTile * sizeof(float));
      for (int64_t r = 0; r < step.n; ++r)
        for (int64_t e = 0; e < x.E; ++e) {
          const uint32_t wide = (uint32_t)Vt[place(e, r, kKeys)] << 16;
          float value;
          std::memcpy(&value, &wide, 4);
          careful_lanes<true>(&value, 1, S + r * kTile, kTile, 1, 1, x.block + e * kTile);
        }
    } else {
      for (int64_t e = 0; e < x.E; e += 32)
        for (int q = 0; q < kTile; q += 32)
          product<PIECES>(Vt + e * kKeys, 16 * kKeys, kKeys * x.E, P + q / 16 * kTilePairs, kKeys / 2 * kTile,
                          rounded(step.n), x.block + e * kTile + q, meanwhile);
    }
    for (int64_t e = 0; e < x.E; ++e)
      UNROLL for (int v = 0; v < N; ++v) {
        float* o = O + e * kTile + v * VL;
        store(o, load(o) * load(factor + v * VL) + load(x.block + e * kTile + v * VL));
      }
  }
};

}  // namespace amx

// What changes the scores of a tile between the product and the softmax: bias, mask, and the causal diagonal.
//
// A tile is `keys` rows of `width` lanes, one lane a query. Hidden scores become -inf, of which exp is 0.
namespace OPLAB_ISA {
using oplab::Attention;

constexpr float kInfinity = __builtin_inff();

struct Tile {
  int64_t b, h;        // batch and head
  int64_t t, queries;  // the first query, and how many there are (lanes beyond are empty)
  int width;           // lanes, a multiple of VL
};

// Does the block of keys [k, k + n) hold one that some query of the tile may not see?
INLINE bool hides(const Attention& A, const Tile& tile, int64_t k, int64_t n) {
  return A.mask || A.seen(tile.b, tile.t) < k + n;
}

// numbers(r, lane) for one key r and VL queries from `lane` on, wherever they stand in memory.
template <class T, class F>
INLINE void each_row(const T* from, const int64_t* stride, const Tile& tile, int64_t k, int64_t n, F f) {
  from += tile.b * stride[0] + tile.h * stride[1] + tile.t * stride[2] + k * stride[3];
  for (int lane = 0; lane < tile.width; lane += VL) {
    const T* column = from + lane * stride[2];
    int64_t have = tile.queries - lane < 0 ? 0 : tile.queries - lane < VL ? tile.queries - lane : VL;
    if (!stride[2]) {  // the same for every query
      for (int64_t r = 0; r < n; ++r) f(r, lane, all((float)column[r * stride[3]]));
      continue;
    }
    int64_t r = 0;
    if (stride[3] == 1 && have == VL)
      for (; r + VL <= n; r += VL) {
        vf x[VL];
        for (int i = 0; i < VL; ++i) {
          const T* p = column + i * stride[2] + r;
          if constexpr (sizeof(T) == 1)
            x[i] = __builtin_convertvector(*(const vb_unaligned*)p, vf);
          else
            x[i] = load(p);
        }
        transpose(x);
        for (int i = 0; i < VL; ++i) f(r + i, lane, x[i]);
      }
    for (; r < n; ++r) {
      vf x = {};
      for (int i = 0; i < have; ++i) x[i] = column[i * stride[2] + r * stride[3]];
      f(r, lane, x);
    }
  }
}

static __attribute__((noinline)) void change_scores(const Attention& A, const Tile& tile, int64_t k,
                                                    int64_t n, float* S) {
  const int width = tile.width;
  if (A.bias)
    each_row(A.bias, A.bias_stride, tile, k, n, [&](int64_t r, int lane, vf x) __attribute__((always_inline)) {
      float* s = S + r * width + lane;
      store(s, load(s) + x);
    });
  if (A.mask)
    each_row(A.mask, A.mask_stride, tile, k, n, [&](int64_t r, int lane, vf x) __attribute__((always_inline)) {
      float* s = S + r * width + lane;
      store(s, x == vf{} ? all(-kInfinity) : load(s));
    });
  if (A.seen(tile.b, tile.t) < k + n)
    for (int lane = 0; lane < width; lane += VL) {
      vi end;  // of each lane's keys, counted from k
      for (int i = 0; i < VL; ++i) {
        int64_t last = A.seen(tile.b, tile.t + lane + i) - k;
        end[i] = (int32_t)(last < 0 ? 0 : last < n ? last : n);
      }
      for (int64_t r = 0; r < n; ++r) {
        float* s = S + r * width + lane;
        store(s, end > (int32_t)r ? load(s) : all(-kInfinity));
      }
    }
}

// C += A B as `product` does it, except that a weight of 0 keeps what it weighs out, even NaN: for blocks with
// keys that hold NaN or infinity and are hidden from some query. Slow, and rarely needed.
template <bool BY_COLUMN>
static __attribute__((noinline)) void careful_lanes(const float* a, ptrdiff_t lda, const float* weights,
                                                    int width, int64_t depth, int64_t rows, float* c) {
  for (int64_t i = 0; i < depth; ++i)
    for (int64_t r = 0; r < rows; ++r)
      for (int lane = 0; lane < width; lane += VL) {
        vf w = load(weights + i * width + lane), sum = load(c + r * width + lane);
        float x = BY_COLUMN ? a[i * lda + r] : a[r * lda + i];
        store(c + r * width + lane, w == vf{} ? sum : sum + w * x);
      }
}

}  // namespace OPLAB_ISA

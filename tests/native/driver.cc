// The kernels without XLA: every instruction set of this processor, against attention written out in double.
//
//   driver            every problem; a line each with the largest error; exit status 1 if one is too large
//
// Every array ends at a page that may not be touched (or at AddressSanitizer's red zone), every result starts as
// NaN, and threads come late, in other numbers than were promised, or not at all.
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <functional>
#include <limits>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "solve.h"

using oplab::Attention;
using oplab::Kernels;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

// Arrays ----------------------------------------------------------------------------------------------------

// `count` numbers, and not one byte more. Aligned as numbers are, so vectors must not expect more than that.
template <class T>
struct Array {
  int64_t count;
  T* data;
  explicit Array(int64_t n, T value = T()) : count(n) {
#if defined(__SANITIZE_ADDRESS__)
    data = new T[n];
#else
    const size_t page = sysconf(_SC_PAGESIZE), bytes = n * sizeof(T), inside = (bytes + page - 1) / page * page;
    mapped = inside + page;
    start = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED) std::abort();
    char* const guard = static_cast<char*>(start) + inside;
    if (mprotect(guard, page, PROT_NONE)) std::abort();
    data = reinterpret_cast<T*>(guard - bytes);
#endif
    std::fill(data, data + n, value);
  }
#if defined(__SANITIZE_ADDRESS__)
  ~Array() { delete[] data; }
#else
  void* start;
  size_t mapped;
  ~Array() { munmap(start, mapped); }
#endif
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  T& operator[](int64_t i) { return data[i]; }
};
typedef Array<float> Floats;

static uint16_t to_bfloat16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return x != x ? 0x7fc0 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
static float from_bfloat16(uint16_t x) {
  const uint32_t bits = uint32_t(x) << 16;
  float y;
  std::memcpy(&y, &bits, 4);
  return y;
}

// Problems --------------------------------------------------------------------------------------------------

struct Spec {
  const char* name;
  int64_t batch, time, source, heads, kv_heads;
  int features, value_features;
  int64_t causal = oplab::kEveryKey;
  std::string mask = "", bias = "";  // "bhts", with 1 in the place of an axis that is broadcast
  std::vector<int32_t> kv_len = {};
  // Puts into a drawn problem what the numbers alone do not have: NaN, infinity, rows without a key.
  std::function<void(struct Problem&)> change = nullptr;
};

// The operands of a spec, drawn, and what is to come out of them. q, k and v are numbers of bfloat16 too, so
// that one reference serves both kinds of kernel.
struct Problem {
  Spec spec;
  Attention A;
  Floats q, k, v, bias, dout, dsum;
  Array<uint8_t> mask;
  Array<int32_t> kv_len;
  std::vector<double> o, lse, dq, dk, dv;

  explicit Problem(const Spec& s)
      : spec(s), q(s.batch * s.time * s.heads * s.features), k(s.batch * s.source * s.kv_heads * s.features),
        v(s.batch * s.source * s.kv_heads * s.value_features), bias(size(s, s.bias)),
        dout(s.batch * s.time * s.heads * s.value_features), dsum(s.batch * s.heads * s.time), mask(size(s, s.mask)),
        kv_len(s.kv_len.size()) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (Floats* x : {&q, &k, &v})
      for (int64_t i = 0; i < x->count; ++i) (*x)[i] = from_bfloat16(to_bfloat16(normal(random)));
    for (Floats* x : {&bias, &dout, &dsum})
      for (int64_t i = 0; i < x->count; ++i) (*x)[i] = normal(random);
    for (int64_t i = 0; i < mask.count; ++i) mask[i] = random() % 10 < 6;
    std::copy(s.kv_len.begin(), s.kv_len.end(), kv_len.data);

    A.q = q.data, A.k = k.data, A.v = v.data, A.dout = dout.data, A.dsum = dsum.data;
    A.batch = s.batch, A.time = s.time, A.source = s.source, A.heads = s.heads, A.kv_heads = s.kv_heads;
    A.features = s.features, A.value_features = s.value_features, A.causal = s.causal;
    A.scale = 1 / std::sqrt((float)s.features);
    if (!s.mask.empty()) A.mask = mask.data, strides(s.mask, A.mask_stride);
    if (!s.bias.empty()) A.bias = bias.data, strides(s.bias, A.bias_stride);
    if (!s.kv_len.empty()) A.kv_len = kv_len.data;
    if (s.change) s.change(*this);
    solve();
  }

  static int64_t size(const Spec& s, const std::string& axes) {
    const int64_t full[4] = {s.batch, s.heads, s.time, s.source};
    int64_t n = !axes.empty();
    for (size_t i = 0; i < axes.size(); ++i) n *= axes[i] == '1' ? 1 : full[i];
    return n;
  }
  void strides(const std::string& axes, int64_t* stride) const {
    const int64_t full[4] = {A.batch, A.heads, A.time, A.source};
    int64_t step = 1;
    for (int i = 3; i >= 0; --i) {
      stride[i] = axes[i] == '1' ? 0 : step;
      if (axes[i] != '1') step *= full[i];
    }
  }
  static int64_t at(const int64_t* stride, int64_t b, int64_t h, int64_t t, int64_t s) {
    return b * stride[0] + h * stride[1] + t * stride[2] + s * stride[3];
  }
  bool sees(int64_t b, int64_t h, int64_t t, int64_t s) const {
    const int64_t ahead = A.causal == oplab::kBottomRight ? A.source - A.time : 0;
    return !(A.causal && s > t + ahead) && !(A.kv_len && s >= A.kv_len[b]) &&
           !(A.mask && !A.mask[at(A.mask_stride, b, h, t, s)]);
  }

  // The definition, pair by pair. A pair that does not see each other takes part in no sum at all.
  void solve() {
    const int64_t D = A.features, E = A.value_features;
    o.assign(dout.count, 0), lse.assign(dsum.count, 0), dq.assign(q.count, 0);
    dk.assign(k.count, 0), dv.assign(v.count, 0);
    for (int64_t b = 0; b < A.batch; ++b)
      for (int64_t h = 0; h < A.heads; ++h)
        for (int64_t t = 0; t < A.time; ++t) {
          const int64_t row = (b * A.time + t) * A.heads + h, g = h / A.group(), number = (b * A.heads + h) * A.time + t;
          const float *query = A.q + row * D, *cotangent = A.dout + row * E;
          double *out = &o[row * E], top = -INFINITY, total = 0;
          std::vector<int64_t> keys, rows;
          std::vector<double> p, dp;
          for (int64_t s = 0; s < A.source; ++s)
            if (sees(b, h, t, s)) keys.push_back(s), rows.push_back((b * A.source + s) * A.kv_heads + g);
          for (size_t i = 0; i < keys.size(); ++i) {
            double score = 0;
            for (int64_t d = 0; d < D; ++d) score += (double)query[d] * A.k[rows[i] * D + d];
            score *= A.scale;
            if (A.bias) score += A.bias[at(A.bias_stride, b, h, t, keys[i])];
            p.push_back(score);
            top = score > top ? score : top;
          }
          if (top == -INFINITY) top = 0;
          for (double& x : p) total += x = std::exp(x - top);
          lse[number] = total == 0 ? -INFINITY : top + std::log(total);
          for (double& x : p) x = total == 0 ? 0 : x / total;
          for (size_t i = 0; i < p.size(); ++i)
            for (int64_t e = 0; e < E; ++e) out[e] += p[i] * A.v[rows[i] * E + e];

          double mean = -(double)A.dsum[number];
          for (int64_t e = 0; e < E; ++e) mean += cotangent[e] * out[e];
          for (size_t i = 0; i < p.size(); ++i) {
            double ds = -mean;
            for (int64_t e = 0; e < E; ++e) ds += (double)cotangent[e] * A.v[rows[i] * E + e];
            ds *= p[i] * A.scale;
            for (int64_t d = 0; d < D; ++d) dq[row * D + d] += ds * A.k[rows[i] * D + d];
            for (int64_t d = 0; d < D; ++d) dk[rows[i] * D + d] += ds * query[d];
            for (int64_t e = 0; e < E; ++e) dv[rows[i] * E + e] += p[i] * cotangent[e];
          }
        }
  }

  float& key(int64_t b, int64_t s, int64_t g, int64_t d) { return k[((b * A.source + s) * A.kv_heads + g) * A.features + d]; }
  float& value(int64_t b, int64_t s, int64_t g, int64_t e) {
    return v[((b * A.source + s) * A.kv_heads + g) * A.value_features + e];
  }
  void poison(int64_t s, float of_key, float of_value) {  // key s of every batch and head
    for (int64_t b = 0; b < A.batch; ++b)
      for (int64_t g = 0; g < A.kv_heads; ++g) {
        key(b, s, g, s % A.features) = of_key;
        for (int64_t e = 0; e < A.value_features; ++e) value(b, s, g, e) = of_value;
      }
  }
  void hide(int64_t t, int64_t s) {  // of a mask with axes "11ts"
    mask[t * A.source + s] = 0;
  }
};

static std::vector<Spec> specs() {
  const int64_t top = oplab::kTopLeft, bottom = oplab::kBottomRight;
  auto poison_from = [](int64_t from) {
    return [from](Problem& p) {
      for (int64_t s = from; s < p.A.source; ++s) p.poison(s, s % 2 ? kNaN : kInf, s % 3 ? kInf : kNaN);
    };
  };
  auto blind = [](Problem& p) {  // queries 1, 5 and 70 see nothing
    for (int64_t t : {1, 5, 70})
      for (int64_t s = 0; s < p.A.source; ++s) p.hide(t, s);
  };
  auto hidden_key = [](float key, float value) {  // key 3 from every query, whatever the mask says
    return [=](Problem& p) {
      for (int64_t t = 0; t < p.A.time; ++t) p.hide(t, 3);
      p.poison(3, key, value);
    };
  };
  auto seen_by_one = [](float key, float value) {  // key 3, from all but query 2
    return [=](Problem& p) {
      for (int64_t t = 0; t < p.A.time; ++t) p.hide(t, 3);
      p.mask[2 * p.A.source + 3] = 1;
      p.poison(3, key, value);
    };
  };
  auto minus_infinity = [](Problem& p) {  // a bias that hides; all keys from query 2
    for (int64_t i = 0; i < p.bias.count; i += 3) p.bias[i] = -kInf;
    for (int64_t s = 0; s < p.A.source; ++s) p.bias[2 * p.A.source + s] = -kInf;
  };
  auto large = [](Problem& p) {  // scores of some thousands, and one key far above the rest
    for (int64_t i = 0; i < p.q.count; ++i) p.q[i] *= 64;
    for (int64_t i = 0; i < p.A.features; ++i) p.k[i] *= 64;
  };
  auto odd_query = [](Problem& p) {
    for (int64_t h = 0; h < p.A.heads; ++h) p.q[(3 * p.A.heads + h) * p.A.features] = kNaN;
  };
  return {
      // name, batch, time, source, heads, kv_heads, features, value features
      {"small", 1, 5, 7, 2, 1, 3, 2},
      {"round", 2, 64, 96, 2, 2, 64, 64},
      {"ragged", 2, 67, 101, 2, 1, 19, 33},
      {"one more than a tile", 1, 65, 97, 1, 1, 17, 16},
      {"several tiles to a piece", 2, 200, 130, 4, 2, 8, 8},
      {"grouped heads", 1, 33, 50, 6, 2, 16, 16},
      {"wide values", 1, 20, 40, 2, 2, 5, 70},
      {"one feature", 1, 9, 9, 1, 1, 1, 1},
      {"one query", 2, 1, 130, 4, 2, 16, 16},
      {"one query, bottom right", 2, 1, 130, 4, 2, 16, 16, bottom},
      {"one key", 1, 70, 1, 2, 1, 16, 16},
      {"causal", 2, 70, 70, 2, 1, 16, 16, top},
      {"causal, more keys", 1, 70, 150, 2, 1, 16, 12, top},
      {"causal, fewer keys", 1, 150, 70, 2, 1, 16, 12, top},
      {"bottom right, more keys", 1, 70, 150, 2, 1, 16, 12, bottom},
      {"bottom right, fewer keys", 1, 150, 70, 2, 1, 16, 12, bottom},
      {"mask bhts", 2, 37, 50, 2, 1, 16, 16, 0, "bhts"},
      {"mask 1hts", 2, 37, 50, 2, 1, 16, 16, 0, "1hts"},
      {"mask b1ts", 2, 70, 50, 2, 1, 16, 16, 0, "b1ts"},
      {"mask 11ts", 2, 37, 50, 2, 1, 16, 16, 0, "11ts"},
      {"mask b11s", 2, 37, 50, 2, 1, 16, 16, 0, "b11s"},
      {"mask bht1", 2, 37, 50, 2, 1, 16, 16, 0, "bht1"},
      {"mask 1111", 2, 37, 50, 2, 1, 16, 16, 0, "1111"},
      {"bias bhts", 2, 37, 50, 2, 1, 16, 16, 0, "", "bhts"},
      {"bias 1hts", 2, 70, 50, 2, 1, 16, 16, 0, "", "1hts"},
      {"bias b11s", 2, 37, 50, 2, 1, 16, 16, 0, "", "b11s"},
      {"bias 1ht1", 2, 37, 50, 2, 1, 16, 16, 0, "", "1ht1"},
      {"bias 1h1s", 2, 37, 50, 2, 1, 16, 16, 0, "", "1h1s"},
      {"bias 1111", 2, 37, 50, 2, 1, 16, 16, 0, "", "1111"},
      {"everything", 2, 67, 101, 4, 2, 12, 20, bottom, "b1ts", "1h1s", {101, 60}},
      {"kv_len", 4, 20, 30, 2, 1, 8, 8, 0, "", "", {30, 17, 1, 99}},
      {"kv_len 0 and below", 3, 20, 30, 2, 1, 8, 8, 0, "", "", {0, -5, 3}},
      {"kv_len, causal", 3, 70, 110, 2, 1, 8, 8, top, "", "", {0, 98, 40}},
      {"no query", 2, 0, 7, 2, 1, 4, 4},
      {"no key", 2, 7, 0, 2, 1, 4, 4},
      {"no key, many threads", 1, 70, 0, 1, 1, 4, 4},
      {"no batch", 0, 7, 7, 2, 1, 4, 4},
      {"queries that see no key", 1, 80, 100, 2, 1, 16, 16, 0, "11ts", "", {}, blind},
      {"bias of -inf", 1, 20, 31, 1, 1, 8, 8, 0, "", "11ts", {}, minus_infinity},
      {"large scores", 1, 20, 31, 2, 1, 8, 8, 0, "", "", {}, large},
      {"padding of NaN", 2, 70, 110, 2, 1, 8, 8, 0, "", "", {40, 40}, poison_from(40)},
      {"causal padding of NaN", 2, 70, 110, 2, 1, 8, 8, top, "", "", {}, poison_from(70)},
      {"a hidden key of NaN", 1, 80, 110, 2, 1, 8, 8, 0, "11ts", "", {}, hidden_key(kNaN, 0)},
      {"a hidden key of inf", 1, 80, 110, 2, 1, 8, 8, 0, "11ts", "", {}, hidden_key(kInf, -kInf)},
      {"a hidden value of NaN", 1, 80, 110, 2, 1, 8, 8, 0, "11ts", "", {}, hidden_key(1, kNaN)},
      {"a value of NaN, seen by one", 1, 80, 110, 2, 1, 8, 8, 0, "11ts", "", {}, seen_by_one(1, kNaN)},
      {"a key of NaN, seen by one", 1, 80, 110, 2, 1, 8, 8, 0, "11ts", "", {}, seen_by_one(kNaN, 1)},
      {"a key of NaN, causal", 1, 80, 80, 2, 1, 8, 8, top, "", "", {}, [](Problem& p) { p.poison(50, kNaN, 1); }},
      {"a value of inf, causal", 1, 80, 80, 2, 1, 8, 8, top, "", "", {}, [](Problem& p) { p.poison(50, 1, kInf); }},
      {"a query of NaN", 1, 80, 80, 2, 1, 8, 8, 0, "", "", {}, odd_query},
      {"a query of NaN, causal", 1, 80, 80, 2, 1, 8, 8, top, "", "", {}, odd_query},
      // Queries enough for AMX to take numbers in pieces; some of these it has to hand on.
      {"long", 1, 300, 140, 1, 1, 64, 64},
      {"long, ragged", 1, 261, 70, 2, 1, 40, 70},
      {"long, causal", 1, 300, 170, 2, 2, 33, 17, top},
      {"long, everything", 1, 270, 140, 4, 2, 12, 100, bottom, "b1ts", "1h1s", {130}},
      {"long, blind queries", 1, 260, 50, 2, 1, 16, 16, 0, "11ts", "", {}, blind},
      {"long, large scores", 1, 256, 31, 2, 2, 8, 8, 0, "", "", {}, large},
      {"long, padding of NaN", 1, 256, 60, 2, 2, 8, 8, 0, "", "", {40}, poison_from(40)},
      {"long, a key of NaN", 1, 280, 200, 2, 2, 8, 8, top, "", "", {}, [](Problem& p) { p.poison(150, kNaN, 1); }},
      {"long, a query of NaN", 1, 280, 60, 2, 2, 8, 8, 0, "", "", {}, odd_query},
  };
}

// Threads ---------------------------------------------------------------------------------------------------

// A pool that promises `threads` and sends `sent`: every second one late, when there may be nothing left to do.
struct Threads {
  int64_t threads, sent;
  std::vector<std::thread> started;

  static bool start(void* context, void (*task)(void*), void* data) {
    auto* self = static_cast<Threads*>(context);
    const size_t number = self->started.size();
    if ((int64_t)number == self->sent) return false;
    self->started.emplace_back([=] {
      if (number % 2) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      task(data);
    });
    return true;
  }
  oplab::Pool pool() { return {threads, start, this}; }
  ~Threads() {
    for (auto& thread : started) thread.join();
  }
};

// Short calls close to each other, by two callers at once: threads stay in the lobby between them, go, come back late.
// On a busy machine it may take a while until one has waited there; in an emulator none may ever do.
static bool check_short_calls() {
  struct Crew {  // threads for all calls, as XLA's are
    std::mutex mutex;
    std::condition_variable asked;
    std::deque<std::function<void()>> tasks;
    bool closed = false;
    std::atomic<int64_t> sent{0};
    std::vector<std::thread> threads;
    static bool start(void* context, void (*task)(void*), void* data) {
      auto* crew = static_cast<Crew*>(context);
      crew->sent++;
      std::lock_guard<std::mutex> lock(crew->mutex);
      crew->tasks.push_back([=] { task(data); });
      crew->asked.notify_one();
      return true;
    }
    void work() {
      for (std::unique_lock<std::mutex> lock(mutex);;) {
        asked.wait(lock, [&] { return closed || !tasks.empty(); });
        if (tasks.empty()) return;
        auto task = tasks.front();
        tasks.pop_front();
        lock.unlock();
        task();
        lock.lock();
      }
    }
  } crew;
  for (int i = 0; i < 3; ++i) crew.threads.emplace_back([&] { crew.work(); });
  constexpr int64_t kCalls = 1500, kPieces = 5, kThreads = 3;
  std::atomic<int64_t> wrong{0};
  int64_t wanted = 0;
  auto call = [&] {
    for (int64_t i = 0; i < kCalls; ++i) {
      int64_t times[kPieces] = {};
      auto piece = [&](int64_t p, float* scratch) { times[p] += 1 + (scratch == nullptr); };
      wrong += !oplab::parallel_for({kThreads, Crew::start, &crew}, kPieces, 64, piece);
      for (int64_t found : times) wrong += found != 1;
      if (i % 100 == 99) std::this_thread::sleep_for(std::chrono::microseconds(i / 3));
    }
  };
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  do {
    std::thread other(call);
    call();
    other.join();
    wanted += 2 * kCalls * (kThreads - 1);
  } while (crew.sent == wanted && std::chrono::steady_clock::now() < end);
  {
    std::lock_guard<std::mutex> lock(crew.mutex);
    crew.closed = true;
    crew.asked.notify_all();
  }
  for (auto& thread : crew.threads) thread.join();
  std::printf("%s: %s of %lld threads waited for the next of the short calls; %lld pieces came out wrong\n",
              wrong ? "WRONG" : "right", crew.sent < wanted ? "some" : "none", (long long)wanted, (long long)wrong.load());
  return !wrong;
}

// Comparison ------------------------------------------------------------------------------------------------

// The largest error, as a part of the largest number (or of 1); infinite where one is finite and one is not.
static double error(const std::vector<double>& want, const float* got, double allowed, const char* what,
                    std::string& worst) {
  double largest = 1, most = 0;
  int64_t where = -1;
  for (double x : want)
    if (std::isfinite(x)) largest = std::max(largest, std::fabs(x));
  for (size_t i = 0; i < want.size(); ++i) {
    const bool same = want[i] == got[i] || (!std::isfinite(want[i]) && std::isnan(want[i]) && !std::isfinite(got[i]));
    const double e = same ? 0 : std::fabs(want[i] - got[i]) / largest;
    if (!(e <= most)) most = std::isnan(e) ? INFINITY : e, where = (int64_t)i;
  }
  if (most > allowed) {
    char text[160];
    std::snprintf(text, sizeof text, " %s[%ld]: %g for %g;", what, (long)where, got[where], want[where]);
    worst += text;
  }
  return most;
}

struct Results {
  Floats o, lse, dq, dk, dv;
  explicit Results(const Problem& p)
      : o(p.o.size(), kNaN), lse(p.lse.size(), kNaN), dq(p.dq.size(), kNaN), dk(p.dk.size(), kNaN), dv(p.dv.size(), kNaN) {}
  bool operator==(const Results& other) const {
    auto same = [](const Floats& x, const Floats& y) { return !std::memcmp(x.data, y.data, x.count * sizeof(float)); };
    return same(o, other.o) && same(lse, other.lse) && same(dq, other.dq) && same(dk, other.dk) && same(dv, other.dv);
  }
};

// False where the kernels report no memory. The backward pass is given the forward pass's own results.
static bool solve(const Problem& p, const Kernels& kernels, int64_t threads, int64_t sent, Results& r) {
  Attention A = p.A;
  Threads lent{threads, sent, {}};
  A.o = r.o.data, A.lse = r.lse.data;
  bool done = oplab::solve_forward(A, kernels, lent.pool());
  A.out = r.o.data, A.sum = r.lse.data, A.dq = r.dq.data, A.dk = r.dk.data, A.dv = r.dv.data;
  Threads again{threads, sent, {}};
  return oplab::solve_backward(A, kernels, again.pool()) && done;
}

static bool report(const Problem& p, const Kernels& kernels, double most, const std::string& wrong) {
  std::printf("%-7s  %-28s  %.1e  %s%s\n", kernels.name, p.spec.name, most, wrong.empty() ? "ok" : "WRONG", wrong.c_str());
  return wrong.empty();
}

static bool check(const Problem& p, const Kernels& kernels) {
  const double allowed = 1e-5;
  double most = 0;
  std::string wrong;
  for (int64_t threads : {1, 2, 7}) {  // 7 is more than the heads: their queries are then shared out
    Results r(p);
    if (!solve(p, kernels, threads, threads - 1, r)) wrong += " no memory;";
    most = std::max({most, error(p.o, r.o.data, allowed, "o", wrong), error(p.lse, r.lse.data, allowed, "lse", wrong),
                     error(p.dq, r.dq.data, allowed, "dq", wrong), error(p.dk, r.dk.data, allowed, "dk", wrong),
                     error(p.dv, r.dv.data, allowed, "dv", wrong)});
    for (int64_t sent : {0, 3}) {  // fewer come than were promised: the same work, by fewer hands
      Results other(p);
      solve(p, kernels, threads, sent, other);
      if (!(r == other)) wrong += " other bits where fewer threads came;";
    }
  }
  // Heads enough for one thread and for two are solved alike.
  if (p.A.batch * p.A.kv_heads >= 2) {
    Results one(p), two(p);
    solve(p, kernels, 1, 0, one), solve(p, kernels, 2, 1, two);
    if (!(one == two)) wrong += " other bits from two threads than from one;";
  }
  return report(p, kernels, most, wrong);
}

// bfloat16 in, bfloat16 out: O is off by 2^-9 when it is rounded, and P is rounded as well; lse is not.
static bool check_bfloat16(const Problem& p, const Kernels& kernels) {
  double most = 0;
  std::string wrong;
  Array<uint16_t> q(p.q.count), k(p.k.count), v(p.v.count);
  for (int64_t i = 0; i < q.count; ++i) q[i] = to_bfloat16(p.q.data[i]);
  for (int64_t i = 0; i < k.count; ++i) k[i] = to_bfloat16(p.k.data[i]);
  for (int64_t i = 0; i < v.count; ++i) v[i] = to_bfloat16(p.v.data[i]);
  for (int64_t threads : {1, 7}) {
    Array<uint16_t> o16(p.o.size(), 0x7fc0);
    Floats o(p.o.size()), lse(p.lse.size(), kNaN);
    Attention A = p.A;
    A.q16 = q.data, A.k16 = k.data, A.v16 = v.data, A.o16 = o16.data, A.lse = lse.data;
    A.q = A.k = A.v = nullptr;
    Threads lent{threads, threads - 1, {}};
    if (!oplab::solve_forward(A, kernels, lent.pool())) wrong += " no memory;";
    for (int64_t i = 0; i < o.count; ++i) o[i] = from_bfloat16(o16[i]);
    most = std::max({most, error(p.o, o.data, 6e-3, "o", wrong), error(p.lse, lse.data, 1e-5, "lse", wrong)});
  }
  return report(p, kernels, most, wrong);
}

int main() {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  std::vector<const Kernels*> sets{&plain::kernels};
#if defined(OPLAB_X86)
  if (oplab::vector_bits() >= 256) sets.push_back(&avx2::kernels);
  if (oplab::vector_bits() >= 512) sets.push_back(&avx512::kernels);
  if (oplab::has_amx()) sets.push_back(&oplab::best_kernels());
#endif
  bool good = check_short_calls();
  for (const Spec& spec : specs()) {
    Problem problem(spec);
    for (const Kernels* kernels : sets) good &= check(problem, *kernels);
    if (const Kernels* kernels = oplab::bfloat16_kernels()) good &= check_bfloat16(problem, *kernels);
  }
  std::printf(good ? "all is well\n" : "something is WRONG\n");
  return good ? 0 : 1;
}

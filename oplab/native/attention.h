// One problem of attention, as it comes from XLA, and the kernels that solve it.
//
//   S = scale q k^T + bias     P = softmax(S) over the keys that a query sees     O = P v
//
// All arrays are float32 and dense, in the order of their dimensions:
//   q, o, dq, dO  (batch, time, heads, features)         k, dk  (batch, source, kv_heads, features)
//   v, dv         (batch, source, kv_heads, value features)      lse, dlse  (batch, heads, time)
// mask and bias have a stride for each of (batch, heads, time, source), 0 where they are broadcast.
#pragma once
#include <cstddef>
#include <cstdint>

namespace oplab {

enum Causal : int64_t { kEveryKey = 0, kTopLeft = 1, kBottomRight = 2 };

struct Attention {
  const float *q = nullptr, *k = nullptr, *v = nullptr;
  const uint8_t* mask = nullptr;     // 1 where a query may see a key; null: everywhere
  const float* bias = nullptr;       // null: none
  const int32_t* kv_len = nullptr;   // (batch,): keys from there on are padding; null: none are
  int64_t batch = 0, time = 0, source = 0, heads = 0, kv_heads = 1;
  int features = 0, value_features = 0;
  int64_t mask_stride[4] = {}, bias_stride[4] = {};
  float scale = 1;
  int64_t causal = kEveryKey;

  float *o = nullptr, *lse = nullptr;                              // results of the forward pass
  const uint16_t *q16 = nullptr, *k16 = nullptr, *v16 = nullptr;   // or all in bfloat16, but lse (amx.cc)
  uint16_t* o16 = nullptr;
  const float *out = nullptr, *sum = nullptr;                      // O and lse again, for the backward pass
  const float *dout = nullptr, *dsum = nullptr;                    // the gradients of O and of lse
  float *dq = nullptr, *dk = nullptr, *dv = nullptr;               // its results

  int64_t group() const { return heads / kv_heads; }  // query heads that share a key head
  int64_t keys(int64_t b) const {                     // of batch b that are not padding
    if (!kv_len) return source;
    return kv_len[b] < 0 ? 0 : kv_len[b] < source ? kv_len[b] : source;
  }
  int64_t shift() const { return causal == kBottomRight ? source - time : 0; }
  int64_t seen(int64_t b, int64_t t) const {  // query t sees the keys before this one (and the mask's say)
    int64_t end = keys(b), last = t + shift() + 1;
    if (causal == kEveryKey || last > end) return end;
    return last < 0 ? 0 : last;
  }
};

// Work that is handed out in numbered pieces; `scratch` holds `scratch_floats` floats, 64-byte aligned.
struct Kernels {
  const char* name;
  int64_t tile;  // queries that are computed together, at most
  size_t (*forward_scratch)(const Attention&, int64_t queries);
  void (*forward)(const Attention&, int64_t b, int64_t h, int64_t t, int64_t queries, float* scratch);
  int64_t (*padded)(int64_t columns);  // as backward pads the rows of dk and dv
  size_t (*backward_scratch)(const Attention&);
  void (*backward)(const Attention&, int64_t b, int64_t g, int64_t part, int64_t parts, float* scratch,
                   float* dk, float* dv);
};

}  // namespace oplab

// How XLA calls the kernels: two handlers of its foreign function interface, in plain C.
//
// The C header (xla/ffi/api/c_api.h) is XLA's stable one: a library that declares version 0.1 of it is taken by
// every jaxlib that oplab supports, and it compiles in a tenth of the time that the C++ header needs.
#include <cstdio>

#include "solve.h"
#include "xla/ffi/api/c_api.h"
#if defined(_WIN32)
#define EXPORT extern "C" __declspec(dllexport)
#else
#define EXPORT extern "C" __attribute__((visibility("default")))
#endif

namespace {

using oplab::Attention;

XLA_FFI_Error* error(const XLA_FFI_Api* api, XLA_FFI_Error_Code code, const char* message) {
  XLA_FFI_Error_Create_Args args{};
  args.struct_size = sizeof args;
  args.message = message;
  args.errc = code;
  return api->XLA_FFI_Error_Create(&args);
}

bool refused(const XLA_FFI_Api* api, XLA_FFI_Error* e) {
  if (!e) return false;
  XLA_FFI_Error_Destroy_Args args{};
  args.struct_size = sizeof args;
  args.error = e;
  api->XLA_FFI_Error_Destroy(&args);
  return true;
}

template <class T>
T attribute(const XLA_FFI_CallFrame* frame, const char* name, T otherwise) {
  const XLA_FFI_Attrs& all = frame->attrs;
  for (int64_t i = 0; i < all.size; ++i)
    if (all.types[i] == XLA_FFI_AttrType_SCALAR && all.names[i]->len == std::strlen(name) &&
        !std::memcmp(all.names[i]->ptr, name, all.names[i]->len))
      return *static_cast<T*>(static_cast<const XLA_FFI_Scalar*>(all.attrs[i])->value);
  return otherwise;
}

// XLA asks every handler once which version it speaks, and passes through stages without work.
bool answered(XLA_FFI_CallFrame* frame) {
  for (auto* x = frame->extension_start; x; x = x->next)
    if (x->type == XLA_FFI_Extension_Metadata) {
      auto* metadata = reinterpret_cast<XLA_FFI_Metadata_Extension*>(x)->metadata;
      metadata->api_version.major_version = 0;
      metadata->api_version.minor_version = 1;
      return true;
    }
  return frame->stage != XLA_FFI_ExecutionStage_EXECUTE;
}

oplab::Pool xla_threads(XLA_FFI_CallFrame* frame) {
  XLA_FFI_ThreadPool_NumThreads_Args args{};
  int64_t threads = 1;
  args.struct_size = sizeof args;
  args.ctx = frame->ctx;
  args.num_threads = &threads;
  if (refused(frame->api, frame->api->XLA_FFI_ThreadPool_NumThreads(&args))) threads = 1;
  auto start = +[](void* context, void (*task)(void*), void* data) {
    auto* frame = static_cast<XLA_FFI_CallFrame*>(context);
    XLA_FFI_ThreadPool_Schedule_Args args{};
    args.struct_size = sizeof args;
    args.ctx = frame->ctx;
    args.task = task;
    args.data = data;
    return !refused(frame->api, frame->api->XLA_FFI_ThreadPool_Schedule(&args));
  };
  return {threads, start, frame};
}

// Operands in the order q, k, v, [mask], [bias], [kv_len], then those of the backward pass. A wrong call is a
// mistake of oplab's own: the Python side has checked what people give.
struct Call {
  XLA_FFI_CallFrame* frame;
  int64_t next = 0;
  const char* wrong = nullptr;

  const XLA_FFI_Buffer* operand(XLA_FFI_DataType dtype, int64_t rank) {
    if (next >= frame->args.size) return fail("too few operands"), nullptr;
    return check(static_cast<XLA_FFI_Buffer*>(frame->args.args[next++]), dtype, rank);
  }
  const XLA_FFI_Buffer* result(int64_t i, XLA_FFI_DataType dtype, int64_t rank) {
    if (i >= frame->rets.size) return fail("too few results"), nullptr;
    return check(static_cast<XLA_FFI_Buffer*>(frame->rets.rets[i]), dtype, rank);
  }
  const XLA_FFI_Buffer* check(const XLA_FFI_Buffer* x, XLA_FFI_DataType dtype, int64_t rank) {
    if (x->dtype != dtype || x->rank != rank) return fail("an array of another dtype or rank"), nullptr;
    return x;
  }
  void fail(const char* what) { wrong = wrong ? wrong : what; }
  template <class T = float>
  T* numbers(const XLA_FFI_Buffer* x, std::initializer_list<int64_t> shape) {
    if (!x || !std::equal(shape.begin(), shape.end(), x->dims)) return fail("an array of another shape"), nullptr;
    return static_cast<T*>(x->data);
  }
  void strides(const XLA_FFI_Buffer* x, const Attention& A, int64_t* stride) {
    const int64_t full[4] = {A.batch, A.heads, A.time, A.source};
    int64_t step = 1;
    for (int i = 3; i >= 0; step *= x->dims[i--]) {
      if (x->dims[i] != 1 && x->dims[i] != full[i]) return fail("a mask or bias of another shape");
      stride[i] = x->dims[i] == 1 ? 0 : step;
    }
  }
};

constexpr auto F32 = XLA_FFI_DataType_F32, BF16 = XLA_FFI_DataType_BF16;

Attention problem(Call& call, XLA_FFI_DataType dtype) {
  Attention A;
  const auto *q = call.operand(dtype, 4), *k = call.operand(dtype, 4), *v = call.operand(dtype, 4);
  if (call.wrong) return A;
  A.batch = q->dims[0], A.time = q->dims[1], A.heads = q->dims[2], A.features = (int)q->dims[3];
  A.source = k->dims[1], A.kv_heads = k->dims[2], A.value_features = (int)v->dims[3];
  if (A.kv_heads == 0 || A.heads % A.kv_heads) return call.fail("heads that are no multiple of kv_heads"), A;
  A.q = static_cast<float*>(q->data);
  A.k = call.numbers(k, {A.batch, A.source, A.kv_heads, A.features});
  A.v = call.numbers(v, {A.batch, A.source, A.kv_heads, A.value_features});
  A.q16 = static_cast<uint16_t*>(q->data), A.k16 = static_cast<uint16_t*>(k->data);
  A.v16 = static_cast<uint16_t*>(v->data);
  A.scale = attribute<float>(call.frame, "scale", 1.f);
  A.causal = attribute<int64_t>(call.frame, "causal", oplab::kEveryKey);
  const int64_t given = attribute<int64_t>(call.frame, "extras", 0);
  if (given & 1)
    if (const auto* x = call.operand(XLA_FFI_DataType_PRED, 4))
      A.mask = static_cast<uint8_t*>(x->data), call.strides(x, A, A.mask_stride);
  if (given & 2)
    if (const auto* x = call.operand(F32, 4))
      A.bias = static_cast<float*>(x->data), call.strides(x, A, A.bias_stride);
  if (given & 4) A.kv_len = call.numbers<int32_t>(call.operand(XLA_FFI_DataType_S32, 1), {A.batch});
  return A;
}

XLA_FFI_Error* finish(const Call& call, bool solved) {
  char text[160];
  if (call.wrong) {
    std::snprintf(text, sizeof text, "oplab's attention kernel was called with %s", call.wrong);
    return error(call.frame->api, XLA_FFI_Error_Code_INVALID_ARGUMENT, text);
  }
  if (!solved)
    return error(call.frame->api, XLA_FFI_Error_Code_RESOURCE_EXHAUSTED,
                 "oplab's attention kernel found no memory to work in");
  return nullptr;
}

}  // namespace

EXPORT const char* oplab_instruction_set(void) { return oplab::best_kernels().name; }

// 1 where q, k, v and O may be bfloat16 as they are, 0 where they must be converted to float32 first.
EXPORT int oplab_takes_bfloat16(void) { return oplab::bfloat16_kernels() != nullptr; }

EXPORT XLA_FFI_Error* OplabAttention(XLA_FFI_CallFrame* frame) {
  if (answered(frame)) return nullptr;
  Call call{frame};
  const auto* first = frame->args.size ? static_cast<const XLA_FFI_Buffer*>(frame->args.args[0]) : nullptr;
  const bool half = first && first->dtype == BF16 && oplab::bfloat16_kernels();
  Attention A = problem(call, half ? BF16 : F32);
  if (!call.wrong) A.o = call.numbers(call.result(0, half ? BF16 : F32, 4), {A.batch, A.time, A.heads, A.value_features});
  if (!call.wrong) A.lse = call.numbers(call.result(1, F32, 3), {A.batch, A.heads, A.time});
  A.o16 = reinterpret_cast<uint16_t*>(A.o);
  const oplab::Kernels& kernels = half ? *oplab::bfloat16_kernels() : oplab::best_kernels();
  return finish(call, !call.wrong && oplab::solve_forward(A, kernels, xla_threads(frame)));
}

EXPORT XLA_FFI_Error* OplabAttentionBackward(XLA_FFI_CallFrame* frame) {
  if (answered(frame)) return nullptr;
  Call call{frame};
  Attention A = problem(call, F32);
  const std::initializer_list<int64_t> out = {A.batch, A.time, A.heads, A.value_features};
  const std::initializer_list<int64_t> sum = {A.batch, A.heads, A.time};
  if (!call.wrong) A.out = call.numbers(call.operand(F32, 4), out);
  if (!call.wrong) A.sum = call.numbers(call.operand(F32, 3), sum);
  if (!call.wrong) A.dout = call.numbers(call.operand(F32, 4), out);
  if (!call.wrong) A.dsum = call.numbers(call.operand(F32, 3), sum);
  if (!call.wrong) A.dq = call.numbers(call.result(0, F32, 4), {A.batch, A.time, A.heads, A.features});
  if (!call.wrong) A.dk = call.numbers(call.result(1, F32, 4), {A.batch, A.source, A.kv_heads, A.features});
  if (!call.wrong) A.dv = call.numbers(call.result(2, F32, 4), {A.batch, A.source, A.kv_heads, A.value_features});
  return finish(call, !call.wrong && oplab::solve_backward(A, oplab::best_kernels(), xla_threads(frame)));
}

// Pieces of work, shared between the caller and threads that somebody else owns.
//
// XLA lends its own threads, so that the kernel and everything around it never fight over the cores. The caller
// works too: if no other thread ever comes (the pool may be busy with something that waits for us), the caller
// does it all, and nothing can lock up.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#if defined(_WIN32)
#include <malloc.h>
#endif
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#include "lobby.h"

namespace oplab {

struct Pool {  // `start` asks for task(data) to be run on another thread, and says whether that will happen
  int64_t threads = 1;
  bool (*start)(void* context, void (*task)(void*), void* data) = nullptr;
  void* context = nullptr;
};

struct Floats {  // memory that is aligned for vectors and given back at the end
  float* data = nullptr;
  explicit Floats(size_t count) {
    size_t bytes = (count * sizeof(float) + 127) / 64 * 64;
#if defined(_WIN32)
    data = static_cast<float*>(_aligned_malloc(bytes, 64));
#else
    void* p = nullptr;
    data = posix_memalign(&p, 64, bytes) ? nullptr : static_cast<float*>(p);
#endif
  }
  ~Floats() {
#if defined(_WIN32)
    _aligned_free(data);
#else
    free(data);
#endif
  }
  Floats(const Floats&) = delete;
  Floats& operator=(const Floats&) = delete;
};

// Numbers below 1e-38 count as 0 while this lives, as they do everywhere in XLA's own CPU code.
struct FlushDenormals {
#if defined(__SSE__)
  unsigned before = _mm_getcsr();
  FlushDenormals() { _mm_setcsr(before | 0x8040); }
  ~FlushDenormals() { _mm_setcsr(before); }
#elif defined(__aarch64__)
  uint64_t before;
  FlushDenormals() {
    __asm__ volatile("mrs %0, fpcr" : "=r"(before));
    __asm__ volatile("msr fpcr, %0" : : "r"(before | (1ull << 24)));
  }
  ~FlushDenormals() { __asm__ volatile("msr fpcr, %0" : : "r"(before)); }
#endif
};

// Memory of this thread, at least so large. It is kept for the next call, which then need not wait for fresh pages
// to be wiped; but what is large is given back at once, and costs little beside the work that needs it.
struct Scratch {
  static constexpr size_t kKept = size_t(1) << 20;  // floats: 4 MiB
  std::unique_ptr<Floats> own;
  float* data;
  explicit Scratch(size_t count) {
    static thread_local std::unique_ptr<Floats> kept;
    static thread_local size_t size = 0;
    if (count > kKept) {
      own = std::make_unique<Floats>(count);
      data = own->data;
      return;
    }
    if (count > size || !kept) {
      kept = nullptr;
      kept = std::make_unique<Floats>(count);
      size = kept->data ? count : 0;
    }
    data = kept->data;
  }
};

// work(i, scratch) for every i below total, in any order. False when there is no memory for the scratch.
template <class Work>
bool parallel_for(const Pool& pool, int64_t total, size_t scratch_floats, const Work& work) {
  struct Shared {  // outlives this call: a thread may come when everything is done, and find nothing left
    const Work* work;
    int64_t total;
    size_t scratch_floats;
    std::atomic<int64_t> next{0}, done{0};
    std::atomic<bool> failed{false};
    int callers_core = core();
    std::mutex mutex;
    std::condition_variable finished;

    void take_part() {
      int64_t i = next.fetch_add(1);
      if (i >= total) return;
      FlushDenormals flush;
      Scratch scratch(scratch_floats);
      if (!scratch.data) failed = true;
      int64_t mine = 0;
      for (; i < total; i = next.fetch_add(1), ++mine)
        if (scratch.data) (*work)(i, scratch.data);
      if (done.fetch_add(mine) + mine == total) {
        std::lock_guard<std::mutex> lock(mutex);
        finished.notify_all();
      }
    }
    static void run(void* data) {
      auto* mine = static_cast<std::shared_ptr<Shared>*>(data);
      if ((*mine)->next.load() < (*mine)->total) leave((*mine)->callers_core);
      (*mine)->take_part();
      delete mine;
    }
    static void run_and_wait(void* data) {
      Job job{run, data};
      do job.task(job.data);
      while (Lobby::ours().wait(&job));
    }
  };
  if (total <= 0) return true;
  auto shared = std::make_shared<Shared>();
  Lobby::ours().call_begins();
  shared->work = &work, shared->total = total, shared->scratch_floats = scratch_floats;
  for (int64_t i = 1; i < pool.threads && i < total; ++i) {
    auto* mine = new std::shared_ptr<Shared>(shared);
    if (Lobby::ours().give({Shared::run, mine})) continue;
    if (!pool.start(pool.context, Shared::run_and_wait, mine)) {
      delete mine;
      break;
    }
  }
  std::this_thread::yield();  // who was woken on this core can leave it now
  shared->take_part();
  within_a_moment([&] { return shared->done.load() == total; });
  std::unique_lock<std::mutex> lock(shared->mutex);
  shared->finished.wait(lock, [&] { return shared->done.load() == total; });
  Lobby::ours().call_ends();
  return !shared->failed;
}

}  // namespace oplab

// Where threads that are done wait for a moment, so that the next call finds them awake.
//
// A thread that sleeps takes about as long to come as attention over a hundred keys takes. So who has nothing to do
// looks around for a moment before going to sleep, as Eigen's and OpenMP's threads do. They do so only while calls
// follow each other that closely: in a program with much else between two calls, XLA needs its threads back.
#pragma once
#include <atomic>
#include <chrono>
#include <thread>
#if defined(__linux__)
#include <sched.h>
#endif
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace oplab {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::microseconds kMoment{200};

template <class Happened>
bool within_a_moment(const Happened& happened) {
  const auto end = Clock::now() + kMoment;
  do {
    for (int i = 0; i < 16; ++i) {
      if (happened()) return true;
#if defined(__SSE__)
      _mm_pause();
#elif defined(__aarch64__)
      __asm__ volatile("yield");
#endif
    }
    std::this_thread::yield();
  } while (Clock::now() < end);
  return happened();
}

struct Job {
  void (*task)(void*) = nullptr;
  void* data = nullptr;
};

inline int core() {  // where this thread runs, or -1
#if defined(__linux__)
  return sched_getcpu();
#else
  return -1;
#endif
}

// A thread that is woken often finds itself on the core of who woke it, and waits there while others stand idle. It
// goes to another one, if it may run on any, and gets its own set of cores back at once.
inline void leave(int busy) {
#if defined(__linux__)
  cpu_set_t mine, others;
  if (busy < 0 || core() != busy || sched_getaffinity(0, sizeof mine, &mine)) return;
  others = mine;
  CPU_CLR(busy, &others);
  if (CPU_COUNT(&others) && !sched_setaffinity(0, sizeof others, &others)) sched_setaffinity(0, sizeof mine, &mine);
#else
  (void)busy;
#endif
}

class Lobby {
  struct Waiting {
    Job job;
    std::atomic<bool> given{false};
  };
  std::atomic<Waiting*> seats[16] = {};
  std::atomic<Clock::rep> ended{0};
  std::atomic<bool> in_a_row{false};
  static Clock::rep now() { return Clock::now().time_since_epoch().count(); }

 public:
  void call_begins() { in_a_row = now() - ended < Clock::duration(kMoment).count(); }
  void call_ends() { ended = now(); }

  // False: nobody sits here.
  bool give(const Job& job) {
    for (auto& seat : seats) {
      if (!seat.load()) continue;
      if (Waiting* thread = seat.exchange(nullptr)) {
        thread->job = job;
        thread->given.store(true);
        return true;
      }
    }
    return false;
  }

  // False: nobody came.
  bool wait(Job* job) {
    if (!in_a_row) return false;
    Waiting me;
    for (auto& seat : seats) {
      Waiting* nobody = nullptr;
      if (!seat.compare_exchange_strong(nobody, &me)) continue;
      Waiting* still = &me;
      const bool called = within_a_moment([&] { return me.given.load(); });
      if (!called && seat.compare_exchange_strong(still, nullptr)) return false;
      while (!me.given.load()) std::this_thread::yield();  // who has called us is about to say what for
      *job = me.job;
      return true;
    }
    return false;
  }

  static Lobby& ours() {
    static Lobby* lobby = new Lobby;  // never destroyed: threads outlive the end of main
    return *lobby;
  }
};

}  // namespace oplab

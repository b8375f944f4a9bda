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

class Lobby {
  struct Waiting {
    Job job;
    std::atomic<bool> given{false};
  };
  struct Seat {
    std::atomic<Waiting*> taken{nullptr};
    std::atomic<int> core{-1};
  } seats[16];
  std::atomic<Clock::rep> ended{0};
  std::atomic<bool> in_a_row{false};
  static Clock::rep now() { return Clock::now().time_since_epoch().count(); }

 public:
  void call_begins() { in_a_row = now() - ended < Clock::duration(kMoment).count(); }
  void call_ends() { ended = now(); }

  // False: nobody sits here, or only who shares the caller's own core and would have to wait for it.
  bool give(const Job& job) {
    const int here = core();
    for (Seat& seat : seats) {
      if (!seat.taken.load() || (here >= 0 && seat.core.load() == here)) continue;
      if (Waiting* thread = seat.taken.exchange(nullptr)) {
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
    for (Seat& seat : seats) {
      Waiting* nobody = nullptr;
      if (!seat.taken.compare_exchange_strong(nobody, &me)) continue;
      Waiting* still = &me;
      const bool called = within_a_moment([&] { return seat.core.store(core()), me.given.load(); });
      if (!called && seat.taken.compare_exchange_strong(still, nullptr)) return false;
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

// A small pool of worker threads: woken for large work only, soon asleep otherwise, rebuilt in a forked child.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <thread>

namespace ndpool {

// Keeps subnormal numbers until the end of the scope. A thread may be set to treat them as zero, which creates ties and makes
// results depend on the thread that computes them.
class Subnormals {
public:
  Subnormals(const Subnormals&) = delete;
#if defined(__SSE__)
  Subnormals() : before_(__builtin_ia32_stmxcsr()) {
    if (before_ & flushing) __builtin_ia32_ldmxcsr(before_ & ~flushing);
  }
  ~Subnormals() {
    if (before_ & flushing) __builtin_ia32_ldmxcsr(before_);
  }

private:
  static constexpr unsigned flushing = 0x8040;  // flush results to zero, read operands as zero
  const unsigned before_;
#else
  Subnormals() {}
  ~Subnormals() {}
#endif
};

int num_threads();
// n >= 1; 0 goes back to the default: all cores this process may use, one in a forked child.
void set_num_threads(int n);
// Called once by the package: NDPOOL_NUM_THREADS, or 1 in a spawned worker process; 0 leaves the default.
void set_default_threads(int n);

// From now on the main thread works with the threads of the OpenMP library (libgomp) that PyTorch uses, if there is
// one and this process was not forked; says whether it does.
bool borrow_threads();
// Whether work of the calling thread on so many threads runs on borrowed ones.
bool borrows(int workers);

// Lets long work stop early: the calling thread asks a few times a second whether to, and every worker sees the answer.
class Watch {
public:
  using Clock = std::chrono::steady_clock;

  // `step`: how much of [0, n) a worker takes at first; after that, what takes a fraction of a second.
  Watch(std::function<bool()> ask, std::int64_t step) : ask_(std::move(ask)), step_(step) {}

  std::int64_t step() const { return step_; }
  bool stopped() const { return stopped_.load(std::memory_order_relaxed); }

  // Called by workers between pieces of work; the thread that made the watch asks.
  bool stops() {
    if (std::this_thread::get_id() == owner_ && !stopped() && Clock::now() - asked_ >= interval) {
      if (ask_()) stopped_.store(true, std::memory_order_relaxed);
      asked_ = Clock::now();
    }
    return stopped();
  }

private:
  static constexpr std::chrono::milliseconds interval{200};

  const std::function<bool()> ask_;
  const std::int64_t step_;
  const std::thread::id owner_ = std::this_thread::get_id();
  Clock::time_point asked_ = Clock::now();
  std::atomic<bool> stopped_{false};
};

// Calls run(data) once on each of so many borrowed threads, the caller's among them; false if they cannot be borrowed now.
bool run_on_borrowed(int workers, void (*run)(void*), void* data);
// Which of how many a borrowed thread is. There may be fewer than were asked for.
struct Place {
  int worker, workers;
};
Place place_among_borrowed();

// Calls run(worker, begin, end) for pieces of [0, n) on at most `workers` threads, the caller's among them.
// Pieces are handed out as workers become free; which worker gets which piece never changes a result.
// With a watch that stops, some pieces are left out; no worker is at work any more on return.
void parallel_for(std::int64_t n, int workers,
                  const std::function<void(int, std::int64_t, std::int64_t)>& run, Watch* watch = nullptr);

}  // namespace ndpool

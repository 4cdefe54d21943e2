// A small pool of worker threads, used by the bindings. Workers are woken for large work only, fall asleep soon
// after it, and are created anew in a forked child. Also: threads borrowed from OpenMP, and the interruption
// of long calls.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <thread>

namespace ndpool {

// Disables flush-to-zero until the end of the scope. A thread may be set to treat subnormal numbers as zero, which
// creates ties and makes results depend on the thread that computes them.
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
// n >= 1; 0 restores the default: all cores available to this process, one in a forked child.
void set_num_threads(int n);
// Called once by the package, with NDPOOL_NUM_THREADS or, in a spawned worker process, 1; 0 keeps the default.
void set_default_threads(int n);

// Lets the main thread use the threads of the OpenMP library (libgomp) that PyTorch uses, if it is loaded and this
// process was not forked. Returns whether it does.
bool borrow_threads();
// Whether the calling thread's work on `workers` threads would run on borrowed ones.
bool borrows(int workers);

// Stops long work early: the calling thread asks up to five times a second, and all workers see the answer.
class Watch {
public:
  using Clock = std::chrono::steady_clock;

  // `ask`: returns true to stop. `step`: the size of a worker's first piece of [0, n); later ones take a fraction
  // of a second.
  Watch(std::function<bool()> ask, std::int64_t step) : ask_(std::move(ask)), step_(step) {}

  std::int64_t step() const { return step_; }
  bool stopped() const { return stopped_.load(std::memory_order_relaxed); }

  // Called by workers between pieces of work; only the thread that created the watch asks.
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

// Calls run(data) once on each of `workers` borrowed threads, including the caller; false if they are unavailable.
bool run_on_borrowed(int workers, void (*run)(void*), void* data);
// The index of a borrowed thread, and the number of threads, which may be smaller than requested.
struct Place {
  int worker, workers;
};
Place place_among_borrowed();

// Calls run(worker, begin, end) for pieces of [0, n) on at most `workers` threads, including the caller. Pieces
// are handed out as workers become free; results do not depend on which worker gets which piece. If the watch
// stops, pieces are skipped. All workers have finished on return.
void parallel_for(std::int64_t n, int workers,
                  const std::function<void(int, std::int64_t, std::int64_t)>& run, Watch* watch = nullptr);

}  // namespace ndpool

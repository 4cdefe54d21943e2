// Selects the kernel of a problem and runs it: threads, scratch, GIL, signals, and the records of
// `ndpool.explain`.
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <unistd.h>
#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "kernels.h"
#include "python/buffers.h"
#include "runtime/cost.h"

namespace ndpool {
namespace {

namespace nb = nanobind;

constexpr double gil_bytes = 1 << 14;          // smaller calls keep the GIL, which is slow to change hands
constexpr int64_t huge_page_bytes = 1 << 25;   // larger outputs are advised to use huge pages
constexpr int64_t max_kept_scratch = 1 << 24;  // larger scratch is freed after the call
constexpr double long_visits = 1 << 26;        // calls that visit more elements can be interrupted
constexpr double first_bytes = 1 << 26;        // the largest first piece of such a call

std::atomic<const Kernels*> kernels{nullptr};

std::vector<std::string> isa_names() {
  int n;
  const Kernels* const* sets = available_kernels(n);
  std::vector<std::string> names;
  for (int i = 0; i < n; ++i) names.emplace_back(sets[i]->name);
  return names;
}

bool set_isa(const std::string& name) {
  int n;
  const Kernels* const* sets = available_kernels(n);
  for (int i = 0; i < n; ++i)
    if (name == sets[i]->name) {
      kernels.store(sets[i]);
      return true;
    }
  return false;
}

// The kernel of the chosen set, or of the next set that supports the problem.
Kernel kernel_for(const Problem& p, Kernel (*Kernels::*direction)(const Problem&)) {
  int n;
  const Kernels* const* sets = available_kernels(n);
  const Kernels* chosen = kernels.load();
  Kernel kernel;
  for (int i = int(std::find(sets, sets + n, chosen) - sets); i < n && !kernel.run; ++i) {
    kernel = (sets[i]->*direction)(p);
    kernel.isa = sets[i]->name;
  }
  if (!kernel.run) fault("no kernel for this problem");
  return kernel;
}

// The calls of this thread while recording is on, for `ndpool.explain`.
struct Step {
  const char *direction, *engine, *isa;
  int threads;
};
thread_local std::vector<Step> steps;
thread_local bool recording = false;

void set_recording(bool on) {
  recording = on;
  steps.clear();
}

std::vector<std::tuple<std::string, std::string, std::string, int>> recorded() {
  std::vector<std::tuple<std::string, std::string, std::string, int>> result;
  for (const Step& s : steps) result.emplace_back(s.direction, s.engine, s.isa, s.threads);
  return result;
}

// Scratch of the calling thread, kept between calls.
char* thread_scratch(int64_t bytes) {
  struct Kept {
    std::unique_ptr<char[]> memory;
    int64_t bytes = 0;
  };
  thread_local Kept kept;
  if (bytes > kept.bytes) {
    kept.bytes = 0;
    kept.memory.reset(new char[size_t(bytes) + 64]);
    kept.bytes = bytes;
  }
  const auto at = reinterpret_cast<std::uintptr_t>(kept.memory.get());
  return reinterpret_cast<char*>((at + 63) / 64 * 64);
}

// Releases the GIL until the end of the scope.
class GilRelease {
public:
  GilRelease() : state_(PyEval_SaveThread()) {}
  GilRelease(const GilRelease&) = delete;
  ~GilRelease() { take(); }

  // Runs the handlers of pending signals. Returns whether one of them raised; the error stays set in this thread.
  bool interrupted() {
    take();
    const bool raised = PyErr_CheckSignals() != 0;
    state_ = PyEval_SaveThread();
    return raised;
  }

private:
  // During finalisation of the interpreter (before Python 3.14), acquiring the GIL ends the thread by unwinding
  // its stack; functions that allow no exception would abort the process. The thread waits for the end of the
  // process instead.
  void take() {
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {
      for (;;) pause();
    }
  }

  PyThreadState* state_;
};

// Python runs signal handlers in the main thread only.
bool receives_signals() {
#if defined(__linux__)
  return getpid() == gettid();
#else
  return true;
#endif
}

// Advises huge pages for an output. Each page of new memory costs a page fault at its first write. NumPy advises
// huge pages itself, PyTorch does not. The advice does no harm to memory that is mapped already. Smaller outputs
// come from the heap, which returns memory to the system and requests it again between calls: there huge
// pages cost more.
void advise_huge_pages(const Array& array, int64_t bytes) {
#if defined(MADV_HUGEPAGE)
  if (bytes < huge_page_bytes) return;
  for (const int64_t step : array.lead)
    if (step < 0) return;  // then memory does not start at `data`
  for (const int64_t step : array.pooled)
    if (step < 0) return;
  static const std::uintptr_t page = std::uintptr_t(sysconf(_SC_PAGESIZE));
  const std::uintptr_t at = reinterpret_cast<std::uintptr_t>(array.data),
                       from = (at + page - 1) / page * page;
  madvise(reinterpret_cast<void*>(from), (at + std::uintptr_t(bytes) - from) / page * page, MADV_HUGEPAGE);
#endif
}

// The exception of a signal handler that ended a call.
struct Interrupted : nb::python_error {};

// A problem that is complete but for its memory.
struct Work {
  Problem p;
  Kernel (*Kernels::*direction)(const Problem&) = &Kernels::forward;
  int64_t results = 0;
  Cost cost;
};

// The addresses of the arrays of a problem.
struct Addresses {
  char *x, *y, *extra, *aux;

  void apply_to(Problem& p) const {
    p.x.data = x;
    p.y.data = y;
    p.extra_array.data = extra;
    p.aux.data = aux;
  }
};

// Work as prepared by its kernel for a number of threads. It is immutable and shares no cache line with mutable
// data, so that it stays in the caches of other processors between calls: fetching a line from another processor
// takes as long as hundreds of instructions. Each worker sets the addresses in its own copy.
class alignas(64) Prepared {
public:
  Prepared(const Work& work, int threads, const Addresses& at)
      : p_(work.p), cost_(work.cost), forward_(work.direction == &Kernels::forward), results_(work.results) {
    p_.threads = threads;
    if (!results_) return;
    kernel_ = kernel_for(p_, work.direction);
    at.apply_to(p_);
    kernel_.prepare(p_);
    scratch_ = (p_.scratch + 127) / 64 * 64;
    workers_ = int(std::max<int64_t>(1, std::min<int64_t>(threads, p_.units)));
  }

  int threads() const { return p_.threads; }

  void run(const Addresses& at) const {
    if (!results_) return;
    std::optional<GilRelease> released;
    if (cost_.bytes >= gil_bytes) released.emplace();
    Problem p = with_addresses(at);
    advise_huge_pages(p.y, results_ * size_of(p.y_type));
    if (forward_ && p.extra != Extra::none) advise_huge_pages(p.extra_array, results_ * size_of(p.extra));
    if (recording)
      steps.push_back({forward_ ? "forward" : "backward", kernel_.engine, kernel_.isa, workers_});
    std::optional<Watch> watch;
    if (released && cost_.visits >= long_visits && receives_signals()) {
      const double share = std::min(4 * long_visits / cost_.visits, first_bytes / cost_.bytes);
      watch.emplace([&] { return released->interrupted(); },
                    std::max<int64_t>(1, int64_t(share * double(p.units))));
      p.stops = [](void* watch) { return static_cast<Watch*>(watch)->stops(); };
      p.watch = &*watch;
    }
    // During a watched call, a signal handler may call a pooling function, which would use the same scratch.
    std::unique_ptr<char[]> memory;
    char* scratch;
    if (!watch && scratch_ * workers_ <= max_kept_scratch) {
      scratch = thread_scratch(scratch_ * workers_);
    } else {
      memory.reset(new char[size_t(scratch_) * size_t(workers_) + 64]);
      scratch = reinterpret_cast<char*>((reinterpret_cast<std::uintptr_t>(memory.get()) + 63) / 64 * 64);
    }
    if (workers_ == 1 && !watch) {
      const Subnormals subnormals;
      return kernel_.run(p, 0, p.units, scratch);
    }
    if (!watch && cost_.is_short()) {
      Shared shared{this, at, scratch};
      if (run_on_borrowed(p_.threads, [](void* shared) { static_cast<Shared*>(shared)->run(); }, &shared))
        return;
    }
    parallel_for(
        p.units, workers_,
        [&](int worker, int64_t begin, int64_t end) {
          Problem q = with_addresses(at);
          q.stops = p.stops;
          q.watch = p.watch;
          kernel_.run(q, begin, end, scratch + worker * scratch_);
        },
        watch ? &*watch : nullptr);
    if (watch && watch->stopped()) {
      released.reset();
      throw Interrupted();
    }
  }

private:
  // The arguments of workers for short work, in a single cache line: each worker computes its share in one piece.
  struct alignas(64) Shared {
    const Prepared* prepared;
    Addresses at;
    char* scratch;

    void run() const {
      const Subnormals subnormals;
      const auto [worker, team] = place_among_borrowed();
      const int workers = std::min(team, prepared->workers_);
      if (worker >= workers) return;
      const Problem p = prepared->with_addresses(at);
      const int64_t begin = p.units * worker / workers, end = p.units * (worker + 1) / workers;
      if (begin < end) prepared->kernel_.run(p, begin, end, scratch + worker * prepared->scratch_);
    }
  };

  Problem with_addresses(const Addresses& at) const {
    Problem p = p_;
    at.apply_to(p);
    return p;
  }

  Problem p_;
  Kernel kernel_;
  Cost cost_;
  bool forward_;
  int64_t results_, scratch_ = 0;
  int workers_ = 1;
};

void run(const Work& work) {
  const Problem& p = work.p;
  const Addresses at{p.x.data, p.y.data, p.extra_array.data, p.aux.data};
  Prepared(work, work.cost.threads(), at).run(at);
}

}  // namespace
}  // namespace ndpool

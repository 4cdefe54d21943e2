// Which kernel a problem gets, and its run: threads, scratch, the GIL, signals, and the notes that `ndpool.explain` reads.
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

constexpr double held_bytes = 1 << 14;     // below this the work is done before another thread has the GIL
constexpr int64_t huge_bytes = 1 << 25;    // from here on memory is asked for in large pages
constexpr int64_t kept_scratch = 1 << 24;  // bytes of scratch that a thread keeps between calls, at most
constexpr double long_visits = 1 << 26;    // elements visited by a call that may be interrupted, at least
constexpr double first_bytes = 1 << 26;    // cost of the first piece of such a call, at most

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

// The kernel of the chosen set, or of the next one that has it.
Kernel kernel_for(const Problem& p, Kernel (*Kernels::*direction)(const Problem&)) {
  int n;
  const Kernels* const* sets = available_kernels(n);
  const Kernels* chosen = kernels.load();
  Kernel found;
  for (int i = int(std::find(sets, sets + n, chosen) - sets); i < n && !found.run; ++i) {
    found = (sets[i]->*direction)(p);
    found.isa = sets[i]->name;
  }
  if (!found.run) fault("no kernel for this problem");
  return found;
}

// What the calls of this thread did while they were recorded, for `ndpool.explain`.
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

// Scratch of the calling thread, kept between calls while it is small.
char* own_scratch(int64_t bytes) {
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

// The GIL, released until the end of the scope.
class Released {
public:
  Released() : state_(PyEval_SaveThread()) {}
  Released(const Released&) = delete;
  ~Released() { take(); }

  // Runs the handlers of signals that have come; whether one of them raised. The error stays set in this thread.
  bool interrupted() {
    take();
    const bool raised = PyErr_CheckSignals() != 0;
    state_ = PyEval_SaveThread();
    return raised;
  }

private:
  // While the interpreter ends, taking the GIL ends a thread (before Python 3.14), and the stack is unwound through
  // functions that allow no exception, which would abort the process: the thread waits for its end instead.
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
bool hears_signals() {
#if defined(__linux__)
  return getpid() == gettid();
#else
  return true;
#endif
}

// Fresh memory costs a visit to the kernel for every page that is written first: large pages are few. NumPy asks for
// them by itself, PyTorch does not. It is a hint, and memory that has its pages already is none the worse for it. Less
// than this comes from a heap that is given back and taken again between calls: there large pages cost more.
void expect(const Array& array, int64_t bytes) {
#if defined(MADV_HUGEPAGE)
  if (bytes < huge_bytes) return;
  for (const int64_t step : array.lead)
    if (step < 0) return;  // then it does not lie behind its address
  for (const int64_t step : array.pooled)
    if (step < 0) return;
  static const std::uintptr_t page = std::uintptr_t(sysconf(_SC_PAGESIZE));
  const std::uintptr_t at = reinterpret_cast<std::uintptr_t>(array.data),
                       from = (at + page - 1) / page * page;
  madvise(reinterpret_cast<void*>(from), (at + std::uintptr_t(bytes) - from) / page * page, MADV_HUGEPAGE);
#endif
}

constexpr Dtype extra_types[] = {Dtype::u8, Dtype::u8, Dtype::i32, Dtype::i64};

// A problem that only waits for its memory.
struct Work {
  Problem p;
  Kernel (*Kernels::*direction)(const Problem&) = &Kernels::forward;
  int64_t results = 0;
  Cost cost;
};

// Where the arrays of a problem lie.
struct Addresses {
  char *x, *y, *extra, *aux;

  void put_into(Problem& p) const {
    p.x.data = x;
    p.y.data = y;
    p.extra_array.data = extra;
    p.aux.data = aux;
  }
};

// Work as its kernel prepared it for a number of threads. It does not change any more, and shares no line of a cache with
// anything that does, so that other processors keep it from call to call: a line that one has to get from another takes as
// long as hundreds of instructions. Every worker puts the addresses into a copy of its own.
class alignas(64) Prepared {
public:
  Prepared(const Work& work, int threads, const Addresses& at)
      : p_(work.p), cost_(work.cost), forward_(work.direction == &Kernels::forward), results_(work.results) {
    p_.threads = threads;
    if (!results_) return;
    kernel_ = kernel_for(p_, work.direction);
    at.put_into(p_);
    kernel_.prepare(p_);
    scratch_ = (p_.scratch + 127) / 64 * 64;
    workers_ = int(std::max<int64_t>(1, std::min<int64_t>(threads, p_.units)));
  }

  int threads() const { return p_.threads; }

  void run(const Addresses& at) const {
    if (!results_) return;
    std::optional<Released> released;
    if (cost_.bytes >= held_bytes) released.emplace();
    Problem p = located(at);
    expect(p.y, results_ * size_of(p.y_type));
    if (forward_ && p.extra != Extra::none)
      expect(p.extra_array, results_ * size_of(extra_types[int(p.extra)]));
    if (recording)
      steps.push_back({forward_ ? "forward" : "backward", kernel_.engine, kernel_.isa, workers_});
    std::optional<Watch> watch;
    if (released && cost_.visits >= long_visits && hears_signals()) {
      const double share = std::min(4 * long_visits / cost_.visits, first_bytes / cost_.bytes);
      watch.emplace([&] { return released->interrupted(); },
                    std::max<int64_t>(1, int64_t(share * double(p.units))));
      p.stops = [](void* watch) { return static_cast<Watch*>(watch)->stops(); };
      p.watch = &*watch;
    }
    // A signal handler may pool during a call that is watched: then this thread's own scratch is not free.
    std::unique_ptr<char[]> memory;
    char* scratch;
    if (!watch && scratch_ * workers_ <= kept_scratch) {
      scratch = own_scratch(scratch_ * workers_);
    } else {
      memory.reset(new char[size_t(scratch_) * size_t(workers_) + 64]);
      scratch = reinterpret_cast<char*>((reinterpret_cast<std::uintptr_t>(memory.get()) + 63) / 64 * 64);
    }
    if (workers_ == 1 && !watch) {
      const Subnormals kept;
      return kernel_.run(p, 0, p.units, scratch);
    }
    if (!watch && cost_.is_short()) {
      Shared shared{this, at, scratch};
      if (run_on_borrowed(workers_, [](void* shared) { static_cast<Shared*>(shared)->run(); }, &shared))
        return;
    }
    parallel_for(
        p.units, workers_,
        [&](int worker, int64_t begin, int64_t end) {
          Problem q = located(at);
          q.stops = p.stops;
          q.watch = p.watch;
          kernel_.run(q, begin, end, scratch + worker * scratch_);
        },
        watch ? &*watch : nullptr);
    if (watch && watch->stopped()) {
      released.reset();
      throw nb::python_error();
    }
  }

private:
  // What workers are told of short work, in a single line of a cache: each has a share of its own, in one piece.
  struct alignas(64) Shared {
    const Prepared* prepared;
    Addresses at;
    char* scratch;

    void run() const {
      const Subnormals kept;
      const auto [worker, workers] = place_among_borrowed();
      const Problem p = prepared->located(at);
      const int64_t begin = p.units * worker / workers, end = p.units * (worker + 1) / workers;
      if (begin < end) prepared->kernel_.run(p, begin, end, scratch + worker * prepared->scratch_);
    }
  };

  Problem located(const Addresses& at) const {
    Problem p = p_;
    at.put_into(p);
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

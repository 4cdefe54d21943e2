// The kernels of one instruction set, as a table of functions: the only interface between code compiled for a
// particular instruction set and code that runs on every processor.
#pragma once

#include "plan.h"

namespace ndpool {

struct Kernel {
  void (*prepare)(Problem&) = nullptr;  // sets tiles, units and scratch
  void (*run)(const Problem&, int64_t begin, int64_t end, char* scratch) = nullptr;
  const char *engine = nullptr, *isa = nullptr;
};

template <class Engine> constexpr Kernel kernel_of() {
  return {Engine::prepare, Engine::run, Engine::engine, nullptr};
}

// The kernel of the first engine that supports a problem; empty if none does.
template <class... Engines> Kernel first_supporting(const Problem& p) {
  Kernel kernel;
  const auto take = [&]<class Engine>(Engine*) {
    if (Engine::supports(p)) kernel = kernel_of<Engine>();
    return kernel.run != nullptr;
  };
  (void)(take(static_cast<Engines*>(nullptr)) || ...);
  return kernel;
}

// A function returns an empty kernel to leave a problem to the next set; the last set supports all problems.
struct Kernels {
  const char* name;
  Kernel (*forward)(const Problem&);
  Kernel (*backward)(const Problem&);
};

// The built-in sets that this processor supports, best first.
const Kernels* const* available_kernels(int& count);

}  // namespace ndpool

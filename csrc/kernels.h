// The kernels of one instruction set, as a table of functions: the only thing that crosses from the code compiled
// for a newer processor to the code that must run on every one.
#pragma once

#include "plan.h"

namespace ndpool {

struct Kernel {
  void (*prepare)(Problem&) = nullptr;  // tiles and scratch
  void (*run)(const Problem&, int64_t begin, int64_t end, char* scratch) = nullptr;
  const char *engine = nullptr, *isa = nullptr;
};

template <class Engine> constexpr Kernel kernel_of() {
  return {Engine::prepare, Engine::run, Engine::engine, nullptr};
}

// The kernel of the first of these engines that serves a problem; an empty one if none does.
template <class... Engines> Kernel first_serving(const Problem& p) {
  Kernel found;
  const auto take = [&]<class Engine>(Engine*) {
    if (Engine::serves(p)) found = kernel_of<Engine>();
    return found.run != nullptr;
  };
  (void)(take(static_cast<Engines*>(nullptr)) || ...);
  return found;
}

// A function may leave a problem to the next set by returning an empty kernel; the last set has them all.
struct Kernels {
  const char* name;
  Kernel (*forward)(const Problem&);
  Kernel (*backward)(const Problem&);
};

// The sets built into this binary, the best that this processor runs first.
const Kernels* const* available_kernels(int& count);

}  // namespace ndpool

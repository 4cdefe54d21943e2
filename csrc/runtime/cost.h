// What a call costs, as far as its plan tells, and how many threads are worth waking for it. The bindings of Python and
// of XLA share it.
#pragma once

#include <algorithm>
#include <atomic>

#include "plan.h"
#include "runtime/threads.h"

namespace ndpool {

// Work of fewer bytes and visits stays on one thread: waking another costs more than its help, but less where it is
// borrowed. Tests lower it.
inline std::atomic<int64_t> serial_bytes{1 << 20};
constexpr double borrowed = 0.25;  // of that

struct Cost {
  double bytes = 0;   // read and written, with separable windows
  double visits = 0;  // if every window reads all its elements; a power takes as long as several

  Cost() = default;
  explicit Cost(const Problem& p) {
    double inputs = double(p.planes) * double(p.lanes), outputs = inputs, taps = 0, all = inputs;
    for (int a = 0; a < p.n_axes; ++a) {
      inputs *= double(p.axes[a].size);
      outputs *= double(p.axes[a].out);
      taps += double(p.axes[a].kernel);
      all *= double(p.axes[a].out) * double(p.axes[a].kernel);
    }
    bytes = std::max(inputs + outputs, outputs * taps) * double(size_of(p.x_type));
    visits = std::max(inputs, all) * (p.op == Op::lp ? 16 : 1);
  }

  int workers(int64_t units) const {
    const double work = std::max(bytes, visits), serial = double(serial_bytes.load());
    const int most = std::max(1, int(std::min<int64_t>(num_threads(), units)));
    return work >= serial || (work >= borrowed * serial && borrows(most)) ? most : 1;
  }
};

}  // namespace ndpool

// Estimates from the plan: the cost of a call, the number of threads for it, and which leading axis is worth
// treating as channels. Shared by the bindings of Python and XLA.
#pragma once

#include <algorithm>
#include <atomic>

#include "plan.h"
#include "runtime/threads.h"

namespace ndpool {

// Work of fewer bytes and visits stays on one thread: waking another costs more than it saves. Tests lower it.
inline std::atomic<int64_t> serial_bytes{1 << 20};
// The same limit for each borrowed thread, as a fraction of serial_bytes. Borrowed threads are awake, but
// synchronise at the end, which takes longer the more there are.
constexpr double borrowed = 1.0 / 32;

struct Cost {
  // Bytes read and written, with separable windows.
  double bytes = 0;
  // Elements visited if every window reads all its taps. Powers other than 2 count 16 times.
  double visits = 0;

  Cost() = default;
  explicit Cost(const Problem& p) {
    double inputs = double(p.planes) * double(p.channels), outputs = inputs, taps = 0, all = inputs;
    for (int a = 0; a < p.n_axes; ++a) {
      inputs *= double(p.axes[a].size);
      outputs *= double(p.axes[a].out);
      taps += double(p.axes[a].kernel);
      all *= double(p.axes[a].out) * double(p.axes[a].kernel);
    }
    bytes = std::max(inputs + outputs, outputs * taps) * double(size_of(p.x_type));
    visits = std::max(inputs, all) * (p.op == Op::lp && p.norm != 2 ? 16 : 1);
  }

  double work() const { return std::max(bytes, visits); }

  // Whether balancing the load costs more than it saves: the shares of threads are then not split further.
  bool is_short() const { return work() < 4 * double(serial_bytes.load()); }

  // The number of threads that may share the work.
  int threads() const {
    const double work = this->work(), serial = double(serial_bytes.load());
    const int n = num_threads();
    return work >= serial || (work >= borrowed * n * serial && borrows(n)) ? n : 1;
  }
};

// The smallest extent at which a contiguous leading axis is pooled as channels, for `planes` planes in all.
// Forward, a small extent, such as the colours of images, pays if rows are long or planes few, or if windows are
// disjoint and there are no indices; otherwise many planes of short rows are faster side by side. Backward, any
// extent pays.
inline int64_t min_channels(bool backward, Extra extra, int64_t planes, const Axis* axes, int n_axes) {
  constexpr int64_t few_planes = 8, many_planes = 64, max_extent = 8;  // half a vector of floats
  constexpr double large_plane = 1 << 12;
  if (backward || planes < few_planes) return 2;
  double inputs = 1;
  bool overlap = false;
  for (int a = 0; a < n_axes; ++a) {
    inputs *= double(axes[a].size);
    overlap |= axes[a].regular() && axes[a].stride < axes[a].kernel;
  }
  const int64_t extent =
      std::clamp<int64_t>((inputs > large_plane ? 32 : 64) / axes[n_axes - 1].size, 2, max_extent);
  return overlap || extra != Extra::none ? extent : std::min<int64_t>(extent, planes < many_planes ? 2 : 3);
}

}  // namespace ndpool

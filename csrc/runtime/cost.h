// What a call costs, as far as its plan tells, how many threads are worth waking for it, and which axes are lanes. The
// bindings of Python and of XLA share it.
#pragma once

#include <algorithm>
#include <atomic>

#include "plan.h"
#include "runtime/threads.h"

namespace ndpool {

// Work of fewer bytes and visits stays on one thread: waking another costs more than its help. Borrowed threads are awake, but
// have to meet at the end, which takes the longer the more they are. Tests lower it.
inline std::atomic<int64_t> serial_bytes{1 << 20};
constexpr double borrowed = 1.0 / 32;  // of that, for each thread

struct Cost {
  double bytes = 0;  // read and written, with separable windows
  double visits =
      0;  // if every window reads all its elements; a power other than a square takes as long as several

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
    visits = std::max(inputs, all) * (p.op == Op::lp && p.norm != 2 ? 16 : 1);
  }

  double work() const { return std::max(bytes, visits); }

  // Whether threads gain less by helping each other at the end than it costs to cut their shares.
  bool is_short() const { return work() < 4 * double(serial_bytes.load()); }

  // How many threads may share the work.
  int threads() const {
    const double work = this->work(), serial = double(serial_bytes.load());
    const int most = num_threads();
    return work >= serial || (work >= borrowed * most * serial && borrows(most)) ? most : 1;
  }
};

// The fewest neighbours along a leading axis that are lanes, for `planes` planes. Few channels, as of images, are lanes where
// rows are long or planes few, and where windows share no inputs and no indices are asked for; forward, many other planes of
// short rows are pooled side by side. Backward, any channels are lanes, which are faster even then.
inline int64_t fewest_lanes(bool backward, Extra extra, int64_t planes, const Axis* axes, int n_axes) {
  constexpr int64_t few_planes = 8, many_planes = 64, many = 8;  // half a vector of floats
  constexpr double large_plane = 1 << 12;
  if (backward || planes < few_planes) return 2;
  double inputs = 1;
  bool overlap = false;
  for (int a = 0; a < n_axes; ++a) {
    inputs *= double(axes[a].size);
    overlap |= axes[a].regular() && axes[a].stride < axes[a].kernel;
  }
  const int64_t fewest =
      std::clamp<int64_t>((inputs > large_plane ? 32 : 64) / axes[n_axes - 1].size, 2, many);
  return overlap || extra != Extra::none ? fewest : std::min<int64_t>(fewest, planes < many_planes ? 2 : 3);
}

}  // namespace ndpool

// Which engine computes a gradient.
#pragma once

#include <cmath>

#include "backward/fill.h"
#include "backward/max_channels_last.h"
#include "backward/max_rows.h"
#include "backward/scatter.h"
#include "backward/sum_rows.h"
#include "kernels.h"

namespace ndpool {
namespace {

template <class V> Kernel max_backward(const Problem& p) {
  if constexpr (specialised) {
    Kernel found = first_serving<MaxBackwardRows<V, V>, MaxBackwardChannelsLast<V, V>>(p);
    if constexpr (std::is_same_v<V, float>)
      if (!found.run)
        found = first_serving<MaxBackwardRows<V, bf16>, MaxBackwardChannelsLast<V, bf16>,
                              MaxBackwardChannelsLast<V, f16>>(p);
    if (found.run) return found;
  }
  return kernel_of<Scatter<V>>();
}

// The longest rows whose gradients are faster side by side than along the rows, for one, two and three axes; float32, float64
// and halves. For sums this is the length times the root of the inputs per output: large windows are written fast along a
// row.
constexpr double longest_sums[3][3] = {{68, 60, 380}, {258, 90, 1750}, {1740, 590, 1750}};
constexpr double longest_norms[3][3] = {{0, 0, 0}, {50, 19, 60}, {44, 22, 60}};

// Whether the gradients of sums are faster side by side. A single window, disjoint windows of 2, and 3 x 3 with stride 1 have
// a fast way of their own along the rows.
inline bool short_sums(const Problem& p) {
  if (p.extra != Extra::none) return false;
  const bool halves = p.x_type == Dtype::f16 || p.x_type == Dtype::bf16;
  bool single = true, pairs = !halves, threes = !halves && p.n_axes == 2;
  for (int a = 0; a < p.n_axes; ++a) {
    const Axis& axis = p.axes[a];
    single &= axis.out == 1;
    pairs &= axis.regular() && axis.kernel == 2 && axis.stride == 2 && axis.size == 2 * axis.out;
    threes &= axis.regular() && axis.kernel == 3 && axis.stride == 1 && axis.step == 1;
  }
  if (single || pairs || threes) return false;
  const int64_t lanes = vector_bytes / (p.x_type == Dtype::f64 ? 8 : 4);
  const double used = double(p.planes) / double(ceil_div(p.planes, lanes) * lanes);  // of the lanes
  const int type = p.x_type == Dtype::f64 ? 1 : halves ? 2 : 0;
  const int64_t axes = least(p.n_axes, 3) - 1, size = p.axes[p.n_axes - 1].size;
  if (p.op == Op::lp) return double(size) <= longest_norms[axes][type] * used * used;
  const double inputs = double(plane_elements(p)) / double(plane_elements(p, Over::outputs));
  return double(size) * std::sqrt(inputs) <= longest_sums[axes][type] * used * used;
}

// The engine for a problem whose gradients add up in V.
template <class V> Kernel backward_kernel(const Problem& p) {
  if (p.extra != Extra::none) return max_backward<V>(p);
  return Fill<V>::serves(p) ? kernel_of<Fill<V>>() : kernel_of<SumBackward<V>>();
}

}  // namespace
}  // namespace ndpool

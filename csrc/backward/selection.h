// Which engine computes a gradient.
#pragma once

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

// Sums along rows too short for vectors, but for a single window. Halves are slow to begin a row with; other types have
// fast ways for stride 1 and for 2 x 2 windows side by side.
inline bool short_sums(const Problem& p) {
  const Axis &last = p.axes[p.n_axes - 1], &rows = p.axes[p.n_axes > 1 ? p.n_axes - 2 : 0];
  if (p.extra != Extra::none || last.size > 32) return false;
  bool single = true, halves = p.x_type == Dtype::f16 || p.x_type == Dtype::bf16;
  for (int a = 0; a < p.n_axes; ++a) single &= p.axes[a].out == 1;
  if (single || halves) return !single;
  const bool pairs = p.n_axes == 2 && last.kernel == 2 && rows.kernel == 2 && last.size == 2 * last.out &&
                     rows.size == 2 * rows.out;
  return p.n_axes > 1 && !pairs && !(last.regular() && last.stride == 1);
}

// The engine for a problem whose gradients add up in V.
template <class V> Kernel backward_kernel(const Problem& p) {
  if (p.extra != Extra::none) return max_backward<V>(p);
  return Fill<V>::serves(p) ? kernel_of<Fill<V>>() : kernel_of<SumBackward<V>>();
}

}  // namespace
}  // namespace ndpool

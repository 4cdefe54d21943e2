// Selects the engine of a backward problem; called from kernels.cpp.
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
    Kernel found = first_supporting<MaxBackwardRows<V, V>, MaxBackwardChannelsLast<V, V>>(p);
    if constexpr (std::is_same_v<V, float>)
      if (!found.run)
        found = first_supporting<MaxBackwardRows<V, bf16>, MaxBackwardChannelsLast<V, bf16>,
                                 MaxBackwardChannelsLast<V, f16>>(p);
    if (found.run) return found;
  }
  return kernel_of<Scatter<V>>();
}

// V: type of the sums of gradients.
template <class V> Kernel backward_kernel(const Problem& p) {
  if (p.extra != Extra::none) return max_backward<V>(p);
  return Fill<V>::supports(p) ? kernel_of<Fill<V>>() : kernel_of<SumBackward<V>>();
}

}  // namespace
}  // namespace ndpool

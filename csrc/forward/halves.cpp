// Halves, which are compared and added up in float32: they have engines of their own where these convert them as they
// read.
#include "forward/selection.h"

namespace ndpool {
namespace {

template <class S> Kernel direct_halves(const Problem& p) {
  if constexpr (specialised) {
    if (p.op == Op::sum)
      return sums_slide<float, S>(p) || p.x_type != p.y_type ? Kernel{}
                                                             : direct_engine<Sum<float>, S, false>(p);
    if (p.op == Op::max && p.extra == Extra::none)
      return slides<Max<float>, S, false>(p) ? Kernel{} : direct_engine<Max<float>, S, false>(p);
    if (p.op == Op::max)
      return slides<Max<float>, S, true>(p) ? Kernel{} : direct_engine<Max<float>, S, true>(p);
  }
  return {};
}

}  // namespace

Kernel NDPOOL_NAME(halves_, NDPOOL_ISA)(const Problem& p) {
  const Kernel found = p.x_type == Dtype::f16 ? direct_halves<f16>(p) : direct_halves<bf16>(p);
  return found.run ? found : NDPOOL_NAME(float32_, NDPOOL_ISA)(p);
}

}  // namespace ndpool

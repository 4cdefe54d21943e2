// Halves (float16 and bfloat16), computed in float32. The direct engines convert them as they read; all other
// windows go to float32.cpp, whose engines convert rows on loading.
#include "forward/selection.h"

namespace ndpool {
namespace {

template <class S> Kernel direct_halves(const Problem& p) {
  if constexpr (specialised) {
    if (SingleSums<float, S>::supports(p)) return kernel_of<SingleSums<float, S>>();
    if (p.op == Op::sum)
      return use_sliding_sums<float, S>(p) || p.x_type != p.y_type ? Kernel{}
                                                                   : tap_engine<Sum<float>, S, false>(p);
    if (p.op == Op::max && p.extra == Extra::none)
      return use_sliding<Max<float>, S, false>(p) ? Kernel{} : tap_engine<Max<float>, S, false>(p);
    if (p.op == Op::max)
      return use_sliding<Max<float>, S, true>(p) ? Kernel{} : tap_engine<Max<float>, S, true>(p);
  }
  return {};
}

}  // namespace

Kernel NDPOOL_NAME(halves_, NDPOOL_ISA)(const Problem& p) {
  const Kernel kernel = p.x_type == Dtype::f16 ? direct_halves<f16>(p) : direct_halves<bf16>(p);
  return kernel.run ? kernel : NDPOOL_NAME(float32_, NDPOOL_ISA)(p);
}

}  // namespace ndpool

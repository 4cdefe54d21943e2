// Float32. Also the types converted to float32 on loading: halves, and integers whose sums float32 holds
// exactly.
#include "forward/selection.h"
#include "forward/small_planes.h"

namespace ndpool {
namespace {

#if defined(__AVX512VL__)
Kernel planes_of_short_rows(const Problem& p) {
  if (p.x_type != Dtype::f32) return {};
  if (p.op == Op::sum) return first_supporting<SmallPlanes<Sum<float>, false>>(p);
  if (p.op != Op::max) return {};
  return p.extra == Extra::none ? first_supporting<SmallPlanes<Max<float>, false>>(p)
                                : first_supporting<SmallPlanes<Max<float>, true>>(p);
}
#else
Kernel planes_of_short_rows(const Problem&) { return {}; }
#endif

}  // namespace

Kernel NDPOOL_NAME(float32_, NDPOOL_ISA)(const Problem& p) {
  if (const Kernel kernel = planes_of_short_rows(p); kernel.run) return kernel;
  return p.op == Op::max || p.op == Op::min ? max_kernel<float>(p) : sum_kernel<float>(p);
}

}  // namespace ndpool

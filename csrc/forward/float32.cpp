// Float32; also halves and sums of integers that float32 holds, which become floats as they are loaded.
#include "forward/selection.h"
#include "forward/small_planes.h"

namespace ndpool {
namespace {

#if defined(__AVX512VL__)
Kernel planes_of_short_rows(const Problem& p) {
  if (p.x_type != Dtype::f32) return {};
  if (p.op == Op::sum) return first_serving<SmallPlanes<Sum<float>, false>>(p);
  if (p.op != Op::max) return {};
  return p.extra == Extra::none ? first_serving<SmallPlanes<Max<float>, false>>(p)
                                : first_serving<SmallPlanes<Max<float>, true>>(p);
}
#else
Kernel planes_of_short_rows(const Problem&) { return {}; }
#endif

}  // namespace

Kernel NDPOOL_NAME(float32_, NDPOOL_ISA)(const Problem& p) {
  if (const Kernel found = planes_of_short_rows(p); found.run) return found;
  return p.op == Op::max || p.op == Op::min ? pick<float>(p) : sum_of<float>(p);
}

}  // namespace ndpool

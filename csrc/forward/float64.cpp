// Float64; also sums of integers that float64 holds, and of everything that becomes float64.
#include "forward/selection.h"

namespace ndpool {

Kernel NDPOOL_NAME(float64_, NDPOOL_ISA)(const Problem& p) {
  return p.op == Op::max || p.op == Op::min ? pick<double>(p) : sum_of<double>(p);
}

}  // namespace ndpool

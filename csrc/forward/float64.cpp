// Float64. Also integers whose sums float64 holds exactly, and everything whose result is float64.
#include "forward/selection.h"

namespace ndpool {

Kernel NDPOOL_NAME(float64_, NDPOOL_ISA)(const Problem& p) {
  return p.op == Op::max || p.op == Op::min ? max_kernel<double>(p) : sum_kernel<double>(p);
}

}  // namespace ndpool

// Integers of 16 bits and more, and sums of all integers.
#include "forward/integer_averages.h"
#include "forward/selection.h"

namespace ndpool {
namespace {

// Integer results add up in the first of float32, float64 and 64-bit integers that holds twice every sum:
// floats divide faster, and the truncated quotient is the same. Floating-point results add up in float64.
template <class S> Kernel integer_sum_kernel(const Problem& p) {
  if constexpr (sizeof(S) <= 2)
    if (const Kernel kernel = integer_averages<S>(p); kernel.run) return kernel;
  if (!is_integer(p.y_type)) return NDPOOL_NAME(float64_, NDPOOL_ISA)(p);
  if (p.op == Op::sum) {
    const double largest = largest_sum(p);
    if (largest <= 0x1p23) return NDPOOL_NAME(float32_, NDPOOL_ISA)(p);
    if (largest <= 0x1p52) return NDPOOL_NAME(float64_, NDPOOL_ISA)(p);
  }
  if constexpr (sizeof(S) == 8) return kernel_of<Rows<Sum<S>, false>>();
  return kernel_of<Rows<Sum<std::int64_t>, false>>();
}

}  // namespace

Kernel NDPOOL_NAME(integers_, NDPOOL_ISA)(const Problem& p) {
  const bool sums = p.op != Op::max && p.op != Op::min;
  switch (p.x_type) {
  case Dtype::u16:
    return sums ? integer_sum_kernel<std::uint16_t>(p) : max_kernel<std::uint16_t>(p);
  case Dtype::i16:
    return sums ? integer_sum_kernel<std::int16_t>(p) : max_kernel<std::int16_t>(p);
  case Dtype::i32:
    return sums ? integer_sum_kernel<std::int32_t>(p) : max_kernel<std::int32_t>(p);
  case Dtype::u32:
    return sums ? integer_sum_kernel<std::uint32_t>(p) : max_kernel<std::int32_t>(p);
  case Dtype::i64:
    return sums ? integer_sum_kernel<std::int64_t>(p) : max_kernel<std::int64_t>(p);
  case Dtype::u64:
    return sums ? integer_sum_kernel<std::uint64_t>(p) : max_kernel<std::int64_t>(p);
  default:  // sums of bytes; bytes.cpp has tried integer_averages
    return integer_sum_kernel<std::int64_t>(p);
  }
}

}  // namespace ndpool

// Integers of 16 bits and more, and sums of all integers.
#include "forward/integer_averages.h"
#include "forward/selection.h"

namespace ndpool {
namespace {

// The most that the elements of a window of whole numbers can add up to.
double largest_sum(const Problem& p) {
  constexpr double most_of[] = {1, 0x1p7, 0x1p8, 0x1p15, 0x1p16, 0x1p31, 0x1p32, 0x1p63, 0x1p64};
  double sum = most_of[int(p.x_type)];
  for (int a = 0; a < p.n_axes; ++a) sum *= double(p.axes[a].kernel);
  return sum;
}

// Integers that stay integers are added up in the first of float32, float64 and 64 bits that holds twice every sum:
// floats are divided faster, and what is cut off from the quotient is the same. Those that become floats add up in
// float64.
template <class S> Kernel whole_sum(const Problem& p) {
  if constexpr (sizeof(S) <= 2)
    if (const Kernel found = integer_averages<S>(p); found.run) return found;
  if (p.y_type >= Dtype::f16) return NDPOOL_NAME(float64_, NDPOOL_ISA)(p);
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
    return sums ? whole_sum<std::uint16_t>(p) : pick<std::uint16_t>(p);
  case Dtype::i16:
    return sums ? whole_sum<std::int16_t>(p) : pick<std::int16_t>(p);
  case Dtype::i32:
    return sums ? whole_sum<std::int32_t>(p) : pick<std::int32_t>(p);
  case Dtype::u32:
    return sums ? whole_sum<std::uint32_t>(p) : pick<std::int32_t>(p);
  case Dtype::i64:
    return sums ? whole_sum<std::int64_t>(p) : pick<std::int64_t>(p);
  case Dtype::u64:
    return sums ? whole_sum<std::uint64_t>(p) : pick<std::int64_t>(p);
  default:  // bytes whose averages have been taken care of
    return whole_sum<std::int64_t>(p);
  }
}

}  // namespace ndpool

// 8-bit integers: max, min and averages. All other sums go to integers.cpp.
#include "forward/integer_averages.h"
#include "forward/selection.h"

namespace ndpool {

Kernel NDPOOL_NAME(bytes_, NDPOOL_ISA)(const Problem& p) {
  const bool is_signed = p.x_type == Dtype::i8;
  if (p.op == Op::max || p.op == Op::min)
    return is_signed ? max_kernel<std::int8_t>(p) : max_kernel<std::uint8_t>(p);
  const Kernel kernel = is_signed               ? integer_averages<std::int8_t>(p)
                        : p.x_type == Dtype::u8 ? integer_averages<std::uint8_t>(p)
                                                : Kernel{};
  return kernel.run ? kernel : NDPOOL_NAME(integers_, NDPOOL_ISA)(p);
}

}  // namespace ndpool

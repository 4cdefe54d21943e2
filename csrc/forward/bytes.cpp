// Integers of 8 bits.
#include "forward/integer_averages.h"
#include "forward/selection.h"

namespace ndpool {

Kernel NDPOOL_NAME(bytes_, NDPOOL_ISA)(const Problem& p) {
  const bool is_signed = p.x_type == Dtype::i8;
  if (p.op == Op::max || p.op == Op::min) return is_signed ? pick<std::int8_t>(p) : pick<std::uint8_t>(p);
  const Kernel found = is_signed               ? integer_averages<std::int8_t>(p)
                       : p.x_type == Dtype::u8 ? integer_averages<std::uint8_t>(p)
                                               : Kernel{};
  return found.run ? found : NDPOOL_NAME(integers_, NDPOOL_ISA)(p);
}

}  // namespace ndpool

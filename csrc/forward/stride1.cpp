// Common windows of float32 and of 8- and 16-bit integers with stride 1; an empty kernel for all others.
#include "forward/long_max.h"
#include "forward/longer_sums.h"
#include "forward/strips.h"
#include "forward/tracks.h"
#include "forward/types.h"

namespace ndpool {

Kernel NDPOOL_NAME(stride1_, NDPOOL_ISA)([[maybe_unused]] const Problem& p) {
  if constexpr (specialised) {
    using Best = Max<float>;
#if defined(__AVX512VL__)
    if (p.op == Op::max && is_integer(p.x_type))
      return size_of(p.x_type) == 1 ? first_supporting<LongMax<Max<std::uint8_t>>>(p)
                                    : first_supporting<LongMax<Max<std::uint16_t>>>(p);
    if (p.op == Op::max) return first_supporting<Tracks<Best>, Strips<Best>, LongMax<Best>>(p);
    return first_supporting<Tracks<Sum<float>>, Strips<Sum<float>>, LongerSums>(p);
#else
    return p.op == Op::max ? first_supporting<Tracks<Best>>(p) : first_supporting<Tracks<Sum<float>>>(p);
#endif
  }
  return {};
}

}  // namespace ndpool

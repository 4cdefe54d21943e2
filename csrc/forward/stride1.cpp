// Common windows of float32 and bytes with stride 1: an empty kernel for all others.
#include "forward/long_max.h"
#include "forward/longer_sums.h"
#include "forward/strips.h"
#include "forward/tracks.h"
#include "forward/types.h"

namespace ndpool {
namespace {

template <class Engine> Kernel engine_for(const Problem& p) {
  return Engine::serves(p) ? kernel_of<Engine>() : Kernel{};
}

template <class... Engines> Kernel first_of(const Problem& p) {
  Kernel found;
  (void)((found = engine_for<Engines>(p), found.run != nullptr) || ...);
  return found;
}

}  // namespace

Kernel NDPOOL_NAME(stride1_, NDPOOL_ISA)([[maybe_unused]] const Problem& p) {
  if constexpr (specialised) {
    using Best = Max<float>;
#if defined(__AVX512VL__)
    if (p.op == Op::max && size_of(p.x_type) == 1) return first_of<LongMax<Max<std::uint8_t>>>(p);
    if (p.op == Op::max) return first_of<Tracks<Best>, Strips<Best>, LongMax<Best>>(p);
    return first_of<Tracks<Sum<float>>, Strips<Sum<float>>, LongerSums>(p);
#else
    return p.op == Op::max ? first_of<Tracks<Best>>(p) : first_of<Tracks<Sum<float>>>(p);
#endif
  }
  return {};
}

}  // namespace ndpool

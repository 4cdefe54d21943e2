// Which forward engine takes a problem, for one group of types (NDPOOL_PART) and one instruction set (NDPOOL_ISA). Everything
// but the group's function has internal linkage, so that no function compiled for a newer processor can take the place of
// its namesake elsewhere.
//
// Strips, tracks, long_max, longer_sums (common windows of stride 1), sliding (all of stride 1), small_planes (planes of short
// rows), direct (windows of 2 and 3), blocks (disjoint windows), channels_last, integers (averages of 8- and 16-bit
// integers), rows (any window: general.h).
#include "forward/blocks.h"
#include "forward/channels_last.h"
#include "forward/direct.h"
#include "forward/integer_averages.h"
#include "forward/long_max.h"
#include "forward/longer_sums.h"
#include "forward/sliding.h"
#include "forward/small_planes.h"
#include "forward/strips.h"
#include "forward/tracks.h"
#include "forward/types.h"

#define NDPOOL_PART_float32 1
#define NDPOOL_PART_halves 2
#define NDPOOL_PART_float64 3
#define NDPOOL_PART_bytes 4
#define NDPOOL_PART_integers 5
#define NDPOOL_IS(part) (NDPOOL_NAME(NDPOOL_PART_, NDPOOL_PART) == NDPOOL_PART_##part)

namespace ndpool {
namespace {

// Which types have engines of their own, for windows that networks and images have.
template <class S> constexpr bool common = specialised && (is_half<S> || is_real<S> || sizeof(S) == 1);
template <> inline constexpr bool common<void> = false;

int64_t taps_of(const Problem& p) {
  int64_t n = 1;
  for (int a = 0; a < p.n_axes; ++a) n *= p.axes[a].kernel;
  return n;
}

// Whether an element is visited a few times only, if every window reads all of its own: fewer for halves, which are
// converted each time.
bool shares_little(const Problem& p) {
  int64_t visits = 1;
  for (int a = 0; a < p.n_axes; ++a)
    if (p.axes[a].regular()) visits *= ceil_div(p.axes[a].kernel, p.axes[a].stride);
  const bool converts = p.extra == Extra::none && (p.x_type == Dtype::f16 || p.x_type == Dtype::bf16);
  return visits <= (converts ? 4 : 9);
}

// Small and disjoint windows of values stored as S, whose taps are read directly.
template <class R, class S, bool coded> Kernel direct_engine(const Problem& p) {
  if (!stored_as<S>(p.x_type)) return {};
  if (p.lanes > 1) {
    if ((coded || shares_little(p)) && ChannelsLast<R, S, coded>::serves(p))
      return kernel_of<ChannelsLast<R, S, coded>>();
    return {};
  }
#if defined(__AVX512VL__)
  if constexpr (std::is_same_v<S, float>)
    if (SmallPlanes<R, coded>::serves(p)) return kernel_of<SmallPlanes<R, coded>>();
#endif
  if (DirectRows<R, S, coded>::serves(p)) return kernel_of<DirectRows<R, S, coded>>();
  if (Blocks<R, S, coded>::serves(p)) return kernel_of<Blocks<R, S, coded>>();
  return {};
}

// Single rows of two or three taps are read directly where there is an engine for it, twice as fast.
template <class R, class S, bool coded> bool slides(const Problem& p) {
  if (!Sliding<R, coded>::serves(p) || taps_of(p) < 2) return false;
  if constexpr (common<S>)
    if (stored_as<S>(p.x_type) && p.n_axes == 1 && p.lanes == 1 && DirectRows<R, S, coded>::serves(p))
      return false;
  return !(p.lanes > 1 && shares_little(p));
}

// Common windows of float32 and bytes with stride 1.
template <class R> Kernel common_stride1(const Problem& p) {
  if constexpr (specialised && std::is_same_v<typename R::V, float>) {
    if (Tracks<R>::serves(p)) return kernel_of<Tracks<R>>();
#if defined(__AVX512VL__)
    if (Strips<R>::serves(p)) return kernel_of<Strips<R>>();
    if constexpr (R::picks) {
      if (LongMax<R>::serves(p)) return kernel_of<LongMax<R>>();
    } else {
      if (LongerSums::serves(p)) return kernel_of<LongerSums>();
    }
  } else if constexpr (R::picks && std::is_same_v<typename R::V, std::uint8_t>) {
    if (LongMax<R>::serves(p)) return kernel_of<LongMax<R>>();
#endif
  }
  return {};
}

// Maxima; minima, and other values in another order than their type's, by engines that load every element into scratch.
template <class V> Kernel pick(const Problem& p) {
  using R = Max<V>;
  constexpr bool special = common<V>;
  const bool plain = !reordered(p);
  if constexpr (special)
    if (plain)
      if (const Kernel found = common_stride1<R>(p); found.run) return found;
  if (p.extra == Extra::none) {
    if (plain ? slides<R, V, false>(p) : slides<R, void, false>(p)) return kernel_of<Sliding<R, false>>();
    if constexpr (special) {
      if (plain)
        if (const Kernel found = direct_engine<R, V, false>(p); found.run) return found;
    } else if constexpr (specialised) {
      if (plain && p.lanes > 1 && shares_little(p) && ChannelsLast<R, V, false>::serves(p))
        return kernel_of<ChannelsLast<R, V, false>>();
    }
    return kernel_of<Rows<R, false>>();
  }
  if constexpr (special && is_real<V>) {
    if (plain ? slides<R, V, true>(p) : slides<R, void, true>(p)) {
      if constexpr (std::is_same_v<V, float>)  // small windows on rows that are no shorter than a vector
        if (plain && p.x_type == Dtype::f32 && taps_of(p) <= 9 && p.axes[p.n_axes - 1].out >= wide<V> &&
            DirectRows<R, V, true>::serves(p))
          return kernel_of<DirectRows<R, V, true>>();
      return kernel_of<Sliding<R, true>>();
    }
    if (plain)
      if (const Kernel found = direct_engine<R, V, true>(p); found.run) return found;
  }
  return kernel_of<Rows<R, true>>();
}

// Sums of long windows with stride 1 have an order of their own: the sliding engine takes them in every layout.
template <class V, class S> bool sums_slide(const Problem& p) {
  bool long_ones = false;
  for (int a = 0; a < p.n_axes; ++a) long_ones |= p.axes[a].kernel > 3;
  return (long_ones || slides<Sum<V>, S, false>(p)) && Sliding<Sum<V>, false>::serves(p);
}

template <class V> Kernel sum_of(const Problem& p) {
  if (p.op == Op::sum) {
    if (const Kernel found = common_stride1<Sum<V>>(p); found.run) return found;
    if (sums_slide<V, V>(p)) return kernel_of<Sliding<Sum<V>, false>>();
    if constexpr (common<V>)
      if (p.x_type == p.y_type)
        if (const Kernel found = direct_engine<Sum<V>, V, false>(p); found.run) return found;
  }
  return kernel_of<Rows<Sum<V>, false>>();
}

// Halves are compared and added up in float32: they have engines of their own where these convert them as they read.
template <class S> Kernel direct_halves(const Problem& p) {
  if constexpr (specialised) {
    if (p.op == Op::sum)
      return sums_slide<float, S>(p) || p.x_type != p.y_type ? Kernel{}
                                                             : direct_engine<Sum<float>, S, false>(p);
    if (p.op == Op::max && p.extra == Extra::none)
      return slides<Max<float>, S, false>(p) ? Kernel{} : direct_engine<Max<float>, S, false>(p);
    if (p.op == Op::max)
      return slides<Max<float>, S, true>(p) ? Kernel{} : direct_engine<Max<float>, S, true>(p);
  }
  return {};
}

// The most that the elements of a window of whole numbers can add up to.
[[maybe_unused]] double largest_sum(const Problem& p) {
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

#if NDPOOL_IS(float32)

// Also halves and sums of integers that float32 holds, which become floats as they are loaded.
Kernel NDPOOL_NAME(float32_, NDPOOL_ISA)(const Problem& p) {
  return p.op == Op::max || p.op == Op::min ? pick<float>(p) : sum_of<float>(p);
}

#elif NDPOOL_IS(halves)

Kernel NDPOOL_NAME(halves_, NDPOOL_ISA)(const Problem& p) {
  const Kernel found = p.x_type == Dtype::f16 ? direct_halves<f16>(p) : direct_halves<bf16>(p);
  return found.run ? found : NDPOOL_NAME(float32_, NDPOOL_ISA)(p);
}

#elif NDPOOL_IS(float64)

// Also sums of integers that float64 holds.
Kernel NDPOOL_NAME(float64_, NDPOOL_ISA)(const Problem& p) {
  return p.op == Op::max || p.op == Op::min ? pick<double>(p) : sum_of<double>(p);
}

#elif NDPOOL_IS(bytes)

Kernel NDPOOL_NAME(bytes_, NDPOOL_ISA)(const Problem& p) {
  const bool sums = p.op != Op::max && p.op != Op::min;
  if (p.x_type == Dtype::i8 && !sums) return pick<std::int8_t>(p);
  if (!sums) return pick<std::uint8_t>(p);
  if (p.x_type == Dtype::u8)
    if (const Kernel found = integer_averages<std::uint8_t>(p); found.run) return found;
  if (p.x_type == Dtype::i8)
    if (const Kernel found = integer_averages<std::int8_t>(p); found.run) return found;
  if (p.y_type < Dtype::f16 && p.op == Op::sum && largest_sum(p) <= 0x1p23)
    return NDPOOL_NAME(float32_, NDPOOL_ISA)(p);
  return NDPOOL_NAME(integers_, NDPOOL_ISA)(p);
}

#elif NDPOOL_IS(integers)

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

#endif

}  // namespace ndpool

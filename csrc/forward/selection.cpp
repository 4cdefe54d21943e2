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

// Small and disjoint windows, whose taps are read directly.
template <class R, class S, bool coded> Kernel direct_engine(const Problem& p) {
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
    if (p.n_axes == 1 && p.lanes == 1 && DirectRows<R, S, coded>::serves(p)) return false;
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

// Maxima of values stored as S and compared as V.
template <class R, class S> Kernel pick(const Problem& p) {
  using V = typename R::V;
  constexpr bool special = common<S>;
  if constexpr (special && std::is_same_v<S, V>)
    if (const Kernel found = common_stride1<R>(p); found.run) return found;
  if (p.extra == Extra::none) {
    if (slides<R, S, false>(p)) return kernel_of<Sliding<R, false>>();
    if constexpr (special)
      if (const Kernel found = direct_engine<R, S, false>(p); found.run) return found;
    if constexpr (specialised && !special)
      if (p.lanes > 1 && shares_little(p) && ChannelsLast<R, S, false>::serves(p))
        return kernel_of<ChannelsLast<R, S, false>>();
    return kernel_of<Rows<R, false>>();
  }
  if constexpr (special && is_real<V>) {
    if (slides<R, S, true>(p)) {
      if constexpr (std::is_same_v<S, float>)  // small windows on rows that are no shorter than a vector
        if (taps_of(p) <= 9 && p.axes[p.n_axes - 1].out >= wide<V> && DirectRows<R, S, true>::serves(p))
          return kernel_of<DirectRows<R, S, true>>();
      return kernel_of<Sliding<R, true>>();
    }
    if (const Kernel found = direct_engine<R, S, true>(p); found.run) return found;
  }
  return kernel_of<Rows<R, true>>();
}

// Minima are maxima of reversed values, by engines that load every element into scratch.
template <class R, class S> Kernel pick_reversed(const Problem& p) {
  if (p.extra == Extra::none)
    return slides<R, void, false>(p) ? kernel_of<Sliding<R, false>>() : kernel_of<Rows<R, false>>();
  if constexpr (common<S> && is_real<typename R::V>)
    if (slides<R, void, true>(p)) return kernel_of<Sliding<R, true>>();
  return kernel_of<Rows<R, true>>();
}

template <class V, class S = V> Kernel pick_any(const Problem& p) {
  return p.op == Op::max ? pick<Max<V>, S>(p) : pick_reversed<Max<V>, S>(p);
}

// Sums of long windows with stride 1 have an order of their own: the sliding engine takes them in every layout.
template <class V, class S = V> Kernel sum_of(const Problem& p) {
  bool long_ones = false;
  for (int a = 0; a < p.n_axes; ++a) long_ones |= p.axes[a].kernel > 3;
  if (p.op == Op::sum) {
    if constexpr (is_real<V>) {
      if constexpr (std::is_same_v<S, V>)
        if (const Kernel found = common_stride1<Sum<V>>(p); found.run) return found;
      if ((long_ones || slides<Sum<V>, S, false>(p)) && Sliding<Sum<V>, false>::serves(p))
        return kernel_of<Sliding<Sum<V>, false>>();
    }
    if constexpr (common<S>)
      if (p.x_type == p.y_type && stored_as<S>(p.x_type))
        if (const Kernel found = direct_engine<Sum<V>, S, false>(p); found.run) return found;
  }
  return kernel_of<Rows<Sum<V>, false>>();
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
    if (largest <= 0x1p23) return NDPOOL_NAME(bytes_, NDPOOL_ISA)(p);
    if (largest <= 0x1p52) return NDPOOL_NAME(float64_, NDPOOL_ISA)(p);
  }
  if constexpr (sizeof(S) == 8) return kernel_of<Rows<Sum<S>, false>>();
  return kernel_of<Rows<Sum<std::int64_t>, false>>();
}

}  // namespace

#if NDPOOL_IS(float32)

Kernel NDPOOL_NAME(float32_, NDPOOL_ISA)(const Problem& p) {
  return p.op == Op::max || p.op == Op::min ? pick_any<float>(p) : sum_of<float>(p);
}

#elif NDPOOL_IS(halves)

// Halves are compared and added up in float32.
Kernel NDPOOL_NAME(halves_, NDPOOL_ISA)(const Problem& p) {
  const bool sums = p.op != Op::max && p.op != Op::min;
  if (p.x_type == Dtype::f16) return sums ? sum_of<float, f16>(p) : pick_any<float, f16>(p);
  return sums ? sum_of<float, bf16>(p) : pick_any<float, bf16>(p);
}

#elif NDPOOL_IS(float64)

// Also sums of integers that float64 holds.
Kernel NDPOOL_NAME(float64_, NDPOOL_ISA)(const Problem& p) {
  return p.op == Op::max || p.op == Op::min ? pick_any<double>(p) : sum_of<double>(p);
}

#elif NDPOOL_IS(bytes)

// Also sums of other integers that float32 holds.
Kernel NDPOOL_NAME(bytes_, NDPOOL_ISA)(const Problem& p) {
  const bool sums = p.op != Op::max && p.op != Op::min;
  if (p.x_type == Dtype::i8 && !sums) return pick_any<std::int8_t>(p);
  if (!sums) return pick_any<std::uint8_t>(p);
  if (p.x_type == Dtype::u8)
    if (const Kernel found = integer_averages<std::uint8_t>(p); found.run) return found;
  if (p.x_type == Dtype::i8)
    if (const Kernel found = integer_averages<std::int8_t>(p); found.run) return found;
  if (p.y_type < Dtype::f16 && p.op == Op::sum && largest_sum(p) <= 0x1p23)
    return sum_of<float, std::int32_t>(p);
  return NDPOOL_NAME(integers_, NDPOOL_ISA)(p);
}

#elif NDPOOL_IS(integers)

Kernel NDPOOL_NAME(integers_, NDPOOL_ISA)(const Problem& p) {
  const bool sums = p.op != Op::max && p.op != Op::min;
  switch (p.x_type) {
  case Dtype::u16:
    return sums ? whole_sum<std::uint16_t>(p) : pick_any<std::uint16_t>(p);
  case Dtype::i16:
    return sums ? whole_sum<std::int16_t>(p) : pick_any<std::int16_t>(p);
  case Dtype::i32:
    return sums ? whole_sum<std::int32_t>(p) : pick_any<std::int32_t>(p);
  case Dtype::u32:
    return sums ? whole_sum<std::uint32_t>(p) : pick_any<std::uint32_t>(p);
  case Dtype::i64:
    return sums ? whole_sum<std::int64_t>(p) : pick_any<std::int64_t>(p);
  case Dtype::u64:
    return sums ? whole_sum<std::uint64_t>(p) : pick_any<std::uint64_t>(p);
  default:  // bytes whose averages have been taken care of
    return whole_sum<std::int64_t>(p);
  }
}

#endif

}  // namespace ndpool

// Compiled once per instruction set (NDPOOL_ISA names it) with that set's flags. Everything below has internal
// linkage, so that no function compiled for a newer processor can take the place of its namesake elsewhere.
//
// Forward:   strips, tracks, long_best, long_sums, longer_sums (the usual windows of stride 1), slide (all of stride
//            1), small (planes of short rows), direct (windows of 2 and 3), blocks (little shared),
//            lanes (channels last), forward (the rest)
// Backward:  pick, pick_lanes, scatter (maxima), spread (sums), backward (the rest)
#include "kernels.h"

#include "backward.h"
#include "blocks.h"
#include "direct.h"
#include "lanes.h"
#include "long_best.h"
#include "long_sums.h"
#include "longer_sums.h"
#include "slide.h"
#include "small.h"
#include "strips.h"
#include "tracks.h"

namespace ndpool {
namespace {

// Which engines pay for the code they make: all of them for maxima of floats and of integers up to 32 bits, the
// sliding one for every type. Processors without AVX2 are rare by now: they have the engines for what is common.
#if defined(__x86_64__) && !defined(__AVX2__)
template <class S> constexpr bool worth_it = std::is_same_v<S, float> || std::is_same_v<S, std::uint8_t>;
#else
template <class S> constexpr bool worth_it = true;
#endif
template <class R, class S> constexpr bool quick =
    worth_it<S> && ((std::is_same_v<R, Max<typename R::V>> && (is_real<typename R::V> || sizeof(S) <= 4)) ||
                    (std::is_same_v<R, Min<float>> && std::is_same_v<S, float>));
template <class R, class S> constexpr bool quick_codes =
    worth_it<S> && std::is_same_v<R, Max<typename R::V>> && is_real<typename R::V>;

int64_t taps_of(const Problem& p) {
  int64_t n = 1;
  for (int a = 0; a < p.n_axes; ++a) n *= p.axes[a].kernel;
  return n;
}

// How often an element is met, if every window reads all of its own.
bool shares_little(const Problem& p) {
  int64_t met = 1;
  for (int a = 0; a < p.n_axes; ++a)
    if (p.axes[a].regular()) met *= ceil_div(p.axes[a].kernel, p.axes[a].stride);
  return met <= 9;
}

template <class R, class S, bool coded> Kernel quick_engine(const Problem& p) {
  if (p.lanes > 1) {
    if (shares_little(p) && Lanes<R, S, coded>::serves(p)) return kernel_of<Lanes<R, S, coded>>();
    return {};
  }
#if defined(__AVX512VL__)
  if constexpr (std::is_same_v<S, float> && !std::is_same_v<R, Min<float>>)
    if (Small<R, coded>::serves(p)) return kernel_of<Small<R, coded>>();
#endif
  if (DirectRows<R, S, coded>::serves(p)) return kernel_of<DirectRows<R, S, coded>>();
  if (Blocks<R, S, coded>::serves(p)) return kernel_of<Blocks<R, S, coded>>();
  return {};
}

template <class R, bool coded> bool slides(const Problem& p) {
  return taps_of(p) > 1 && !(p.lanes > 1 && shares_little(p)) && Slide<R, coded>::serves(p);
}

// The usual windows of floats and bytes that move by one.
template <class R> Kernel usual(const Problem& p) {
  if constexpr (std::is_same_v<typename R::V, float>) {
    if (Tracks<R>::serves(p)) return kernel_of<Tracks<R>>();
#if defined(__AVX512VL__)
    if (Strips<R>::serves(p)) return kernel_of<Strips<R>>();
    if constexpr (R::picks) {
      if (LongBest<R>::serves(p)) return kernel_of<LongBest<R>>();
    } else {
      if (LongSums::serves(p)) return kernel_of<LongSums>();
      if (LongerSums::serves(p)) return kernel_of<LongerSums>();
    }
  } else if constexpr (R::picks && sizeof(typename R::V) == 1) {
    using Bytes = LongBest<Max<std::uint8_t>>;
    if (Bytes::serves(p)) return kernel_of<Bytes>();
#endif
  }
  return {};
}

template <template <class> class R, class V, class S = V> Kernel pick(const Problem& p) {
  Kernel found = usual<R<V>>(p);
  if (found.run) return found;
  if (p.extra == Extra::none) {
    if (slides<R<V>, false>(p)) return kernel_of<Slide<R<V>, false>>();
    if constexpr (quick<R<V>, S>) found = quick_engine<R<V>, S, false>(p);
  } else if constexpr (quick_codes<R<V>, S>) {
    if (slides<R<V>, true>(p)) {
      if constexpr (std::is_same_v<S, float>)  // small windows on rows that are no shorter than a vector
        if (taps_of(p) <= 9 && p.axes[p.n_axes - 1].out >= wide<V> && DirectRows<R<V>, S, true>::serves(p))
          return kernel_of<DirectRows<R<V>, S, true>>();
      return kernel_of<Slide<R<V>, true>>();
    }
    found = quick_engine<R<V>, S, true>(p);
  }
  if (found.run) return found;
  if (columns_first<V>(p)) return kernel_of<ColumnsFirst<R<V>>>();
  return p.extra == Extra::none ? kernel_of<RowsFirst<R<V>, false>>() : kernel_of<RowsFirst<R<V>, true>>();
}

// Integers of up to 32 bits. Those of more than a byte gain nothing from the widest vectors, nor do codes, which go
// with 32 bits: these are left to the next set.
template <template <class> class R, class S> Kernel pick_whole(const Problem& p) {
  const bool coded = p.extra != Extra::none;
#if defined(__AVX512F__)
  if constexpr (sizeof(S) == 1)
    if (!coded) return pick<R, S>(p);
  return {};
#else
  if constexpr (worth_it<S> && std::is_same_v<R<S>, Max<S>>)
    if (coded) {
      if constexpr (sizeof(S) < 4)
        if (slides<R<float>, true>(p)) return kernel_of<Slide<R<float>, true>>();
      using Wide = MaxOf<std::conditional_t<sizeof(S) < 4, std::int32_t, S>, S>;
      if (const Kernel found = quick_engine<Wide, S, true>(p); found.run) return found;
    }
  return pick<R, S>(p);
#endif
}

template <template <class> class R> Kernel pick(const Problem& p) {
  switch (p.x_type) {
  case Dtype::b8:
  case Dtype::u8:
    return pick_whole<R, std::uint8_t>(p);
  case Dtype::i8:
    return pick_whole<R, std::int8_t>(p);
  case Dtype::u16:
    return pick_whole<R, std::uint16_t>(p);
  case Dtype::i16:
    return pick_whole<R, std::int16_t>(p);
  case Dtype::i32:
    return pick_whole<R, std::int32_t>(p);
  case Dtype::u32:
    return pick_whole<R, std::uint32_t>(p);
#if !defined(__AVX512F__)
  case Dtype::u64:
    return pick<R, std::uint64_t>(p);
  case Dtype::i64:
    return pick<R, std::int64_t>(p);
#else
  default:
    return {};
#endif
  case Dtype::f64:
    return pick<R, double>(p);
  case Dtype::f16:
    return pick<R, float, f16>(p);
  case Dtype::bf16:
    return pick<R, float, bf16>(p);
  case Dtype::f32:
    return pick<R, float>(p);
  }
  return {};
}

// Sums of long windows that move by one have an order of their own: the sliding engine takes them in every layout.
template <class V, class S = V> Kernel sum_of(const Problem& p) {
  bool long_ones = false;
  for (int a = 0; a < p.n_axes; ++a) long_ones |= p.axes[a].kernel > 3;
  if (const Kernel found = usual<Sum<V>>(p); found.run) return found;
  if (p.op == Op::sum) {
    if ((long_ones || slides<Sum<V>, false>(p)) && Slide<Sum<V>, false>::serves(p))
      return kernel_of<Slide<Sum<V>, false>>();
    if constexpr (worth_it<S>)
      if (p.x_type == p.y_type && stored_as<S>(p.x_type))
        if (const Kernel found = quick_engine<Sum<V>, S, false>(p); found.run) return found;
  }
  return kernel_of<ColumnsFirst<Sum<V>>>();
}

// The most that the elements of a window of whole numbers can add up to.
double largest_sum(const Problem& p) {
  constexpr double most_of[] = {1, 0x1p7, 0x1p8, 0x1p15, 0x1p16, 0x1p31, 0x1p32, 0x1p63, 0x1p64};
  double sum = most_of[int(p.x_type)];
  for (int a = 0; a < p.n_axes; ++a) sum *= double(p.axes[a].kernel);
  return sum;
}

// Sums of integers that float32 holds.
Kernel whole_sum(const Problem& p) {
  switch (p.x_type) {
  case Dtype::u8:
    return sum_of<float, std::uint8_t>(p);
#if !defined(__AVX512F__)  // as above
  case Dtype::i8:
    return sum_of<float, std::int8_t>(p);
  case Dtype::i16:
    return sum_of<float, std::int16_t>(p);
  case Dtype::u16:
    return sum_of<float, std::uint16_t>(p);
#else
  case Dtype::i8:
  case Dtype::i16:
  case Dtype::u16:
    return slides<Sum<float>, false>(p) ? kernel_of<Slide<Sum<float>, false>>() : Kernel{};
#endif
  default:
    return sum_of<float>(p);
  }
}

// Halves and float32 add up in float32, float64 and integers that become floats in float64. Integers that stay
// integers do so in the first of float32, float64 and 64 bits that holds twice every sum: floats are divided faster,
// and what is cut off from the quotient is the same.
Kernel sum(const Problem& p) {
  if (p.y_type < Dtype::f16 && p.op == Op::sum) {
    const double largest = largest_sum(p);
    if (largest <= 0x1p23) return whole_sum(p);
    if (largest <= 0x1p52) return sum_of<double>(p);
  }
  if (p.y_type < Dtype::f16)
    return p.x_type == Dtype::u64 ? kernel_of<ColumnsFirst<Sum<std::uint64_t>>>()
                                  : kernel_of<ColumnsFirst<Sum<std::int64_t>>>();
  if (p.x_type < Dtype::f16 || p.x_type == Dtype::f64 || p.y_type == Dtype::f64) return sum_of<double>(p);
  if (p.x_type == Dtype::f16) return sum_of<float, f16>(p);
  return p.x_type == Dtype::bf16 ? sum_of<float, bf16>(p) : sum_of<float>(p);
}

Kernel backward(const Problem& p) {
  return p.x_type == Dtype::f64 ? backward_kernel<double>(p) : backward_kernel<float>(p);
}

}  // namespace

// The same source makes four objects of each set (NDPOOL_PART), so that they are compiled side by side.
#define NDPOOL_JOIN(a, b) a##b
#define NDPOOL_NAME(a, b) NDPOOL_JOIN(a, b)
#define NDPOOL_TEXT(a) NDPOOL_QUOTE(a)
#define NDPOOL_QUOTE(a) #a
Kernel NDPOOL_NAME(max_, NDPOOL_ISA)(const Problem& p);
Kernel NDPOOL_NAME(min_, NDPOOL_ISA)(const Problem& p);
Kernel NDPOOL_NAME(sum_, NDPOOL_ISA)(const Problem& p);
Kernel NDPOOL_NAME(backward_, NDPOOL_ISA)(const Problem& p);

#define NDPOOL_PART_max 1
#define NDPOOL_PART_min 2
#define NDPOOL_PART_sum 3
#define NDPOOL_PART_backward 4
#if NDPOOL_NAME(NDPOOL_PART_, NDPOOL_PART) == NDPOOL_PART_max
Kernel NDPOOL_NAME(max_, NDPOOL_ISA)(const Problem& p) { return pick<Max>(p); }
#elif NDPOOL_NAME(NDPOOL_PART_, NDPOOL_PART) == NDPOOL_PART_min
Kernel NDPOOL_NAME(min_, NDPOOL_ISA)(const Problem& p) { return pick<Min>(p); }
#elif NDPOOL_NAME(NDPOOL_PART_, NDPOOL_PART) == NDPOOL_PART_sum
Kernel NDPOOL_NAME(sum_, NDPOOL_ISA)(const Problem& p) { return sum(p); }
#else
Kernel NDPOOL_NAME(backward_, NDPOOL_ISA)(const Problem& p) { return backward(p); }

namespace {

Kernel forward(const Problem& p) {
  switch (p.op) {
  case Op::max:
    return NDPOOL_NAME(max_, NDPOOL_ISA)(p);
  case Op::min:
    return NDPOOL_NAME(min_, NDPOOL_ISA)(p);
  default:
    return NDPOOL_NAME(sum_, NDPOOL_ISA)(p);
  }
}

}  // namespace

extern const Kernels NDPOOL_NAME(kernels_, NDPOOL_ISA);
const Kernels NDPOOL_NAME(kernels_, NDPOOL_ISA) = {NDPOOL_TEXT(NDPOOL_ISA), forward, backward};
#endif

}  // namespace ndpool

// Which forward engine takes a problem of one group of types. Each group is a file of its own beside this one; its function
// alone has a name outside, so that no function compiled for a newer processor can take the place of its namesake
// elsewhere.
//
// Strips, tracks, long_max, longer_sums (stride 1: stride1.cpp), sliding (all of stride 1), small_planes
// (planes of short rows), direct (windows of 2 and 3), blocks (disjoint windows), channels_last, integers (averages of 8-
// and 16-bit integers), rows (any window: general.h).
#pragma once

#include "forward/blocks.h"
#include "forward/channels_last.h"
#include "forward/direct.h"
#include "forward/sliding.h"
#include "forward/types.h"

namespace ndpool {
namespace {

// Which types have engines of their own, for windows that networks and images have.
template <class S> constexpr bool common = specialised && (is_half<S> || is_real<S> || sizeof(S) == 1);
template <> inline constexpr bool common<void> = false;

// Whether an element is visited so few times, if every window reads all of its own, that folding rows and columns one after
// the other is slower: fewer for types that are wide, or converted each time.
bool shares_little(const Problem& p) {
  int64_t visits = 1;
  for (int a = 0; a < p.n_axes; ++a)
    if (p.axes[a].regular()) visits *= ceil_div(p.axes[a].kernel, p.axes[a].stride);
  const bool converts = p.extra == Extra::none && (p.x_type == Dtype::f16 || p.x_type == Dtype::bf16);
  if (converts || (p.x_type == Dtype::f64 && p.extra == Extra::none)) return visits <= 4;
  const bool few = p.x_type != Dtype::f32 || p.extra != Extra::none || taps_of(p) <= 9 ||
                   (p.op != Op::sum && p.n_axes > 2 && p.lanes >= 64);
  return visits <= (few ? 9 : 4);
}

// Small and disjoint windows of values stored as S, whose taps are read directly.
template <class R, class S, bool coded> Kernel direct_engine(const Problem& p) {
  if (!stored_as<S>(p.x_type)) return {};
  if (p.lanes > 1) {
    if (!coded && !shares_little(p)) return {};
    return first_serving<ChannelsLast<R, S, coded>>(p);
  }
  return first_serving<DirectRows<R, S, coded>, Blocks<R, S, coded>>(p);
}

// Long rows of a single axis, which are folded faster where they lie: laying them out first takes up to twice as long
// (maxima of 3 in a float64 signal).
template <class R> bool long_signal(const Problem& p) {
  constexpr int64_t long_row = 1024;
  const Axis& last = p.axes[0];
  return p.n_axes == 1 && p.lanes == 1 && last.out >= long_row && (R::picks || last.kernel <= 3);
}

// 8- and 16-bit integers of several lanes along a single axis of stride 1: a vector has so many of them that rows are folded
// fastest one after the other (maxima of 3 bytes along a middle axis: 3.1 times as fast).
template <class V> bool short_integers(const Problem& p) {
  const Axis& last = p.axes[0];
  return std::is_integral_v<V> && p.n_axes == 1 && p.lanes > 1 && last.regular() && last.stride == 1 &&
         (sizeof(V) == 1 || (sizeof(V) == 2 && last.kernel <= 8));
}

// Single rows of two or three taps are read directly where there is an engine for it, twice as fast.
template <class R, class S, bool coded> bool slides(const Problem& p) {
  if (!Sliding<R, coded>::serves(p) || taps_of(p) < 2 || (!coded && long_signal<R>(p))) return false;
  if constexpr (common<S>)
    if (stored_as<S>(p.x_type) && p.n_axes == 1 && p.lanes == 1 && DirectRows<R, S, coded>::serves(p))
      return false;
  return !(p.lanes > 1 && shares_little(p));
}

// Maxima; minima, and other values in another order than their type's, by engines that load every element into scratch.
template <class V> Kernel pick(const Problem& p) {
  using R = Max<V>;
  constexpr bool special = common<V>;
  const bool plain = !reordered(p);
  if constexpr (specialised && sizeof(V) <= 4)
    if (plain)
      if (const Kernel found = NDPOOL_NAME(stride1_, NDPOOL_ISA)(p); found.run) return found;
  if (p.extra == Extra::none) {
    if (short_integers<V>(p)) return kernel_of<Rows<R, false>>();
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
  if constexpr (is_real<V>)
    return kernel_of<Rows<R, true>>();
  else  // unsigned ones are reordered
    return kernel_of<Rows<Max<std::make_signed_t<V>>, true>>();
}

// Sums of long windows with stride 1 have an order of their own: the sliding engine takes them in every layout.
template <class V, class S> bool sums_slide(const Problem& p) {
  bool long_ones = false;
  for (int a = 0; a < p.n_axes; ++a) long_ones |= p.axes[a].kernel > 3;
  return (long_ones || slides<Sum<V>, S, false>(p)) && Sliding<Sum<V>, false>::serves(p);
}

template <class V> Kernel sum_of(const Problem& p) {
  if (p.op == Op::sum) {
    if constexpr (specialised)
      if (const Kernel found = NDPOOL_NAME(stride1_, NDPOOL_ISA)(p); found.run) return found;
    if (sums_slide<V, V>(p)) return kernel_of<Sliding<Sum<V>, false>>();
    if constexpr (common<V>)
      if (p.x_type == p.y_type)
        if (const Kernel found = direct_engine<Sum<V>, V, false>(p); found.run) return found;
  }
  return kernel_of<Rows<Sum<V>, false>>();
}

}  // namespace
}  // namespace ndpool

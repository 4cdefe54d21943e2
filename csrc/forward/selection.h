// Selects the forward engine for a problem of one group of types. Each group is a source file beside this one;
// only its function has external linkage, so that code compiled for a newer processor cannot replace a function
// of the same name elsewhere.
//
// Engines: strips, tracks, long_max, longer_sums (stride 1: stride1.cpp), sliding (any window of stride 1),
// single_sums (the only window of a plane, with stride 1), small_planes (planes of short rows: float32.cpp), direct (windows
// of 2 and 3), blocks (disjoint windows), channels_last, integers (averages of 8- and 16-bit integers:
// integer_averages.h), rows (any window: general.h).
//
// A new engine is a file beside this one with `engine`, `supports`, `prepare` and `run`, and one entry where its windows are
// selected: tap_engine here (taps are read where they lie), stride1.cpp, or float32.cpp. kernels.cpp asks by name whether
// planes side by side are faster still.
#pragma once

#include "forward/blocks.h"
#include "forward/channels_last.h"
#include "forward/direct.h"
#include "forward/single_sums.h"
#include "forward/sliding.h"
#include "forward/types.h"

namespace ndpool {
namespace {

// Whether the direct engines, for the common windows of networks and images, are compiled for this type.
template <class S> constexpr bool has_tap_engines =
    specialised && (is_half<S> || is_real<S> || sizeof(S) == 1);
template <> inline constexpr bool has_tap_engines<void> = false;

// Whether windows overlap so little that reading every tap of every window is faster than folding first the
// rows, then the columns. The limit on visits per element is lower for types that are wide or converted at each
// read.
inline bool overlaps_little(const Problem& p) {
  int64_t visits = 1;
  for (int a = 0; a < p.n_axes; ++a)
    if (p.axes[a].regular()) visits *= ceil_div(p.axes[a].kernel, p.axes[a].stride);
  const bool converts = p.extra == Extra::none && is_half_type(p.x_type);
  if (converts || (p.x_type == Dtype::f64 && p.extra == Extra::none)) return visits <= 4;
  const bool up_to_9 = p.x_type != Dtype::f32 || p.extra != Extra::none || taps_of(p) <= 9 ||
                       (p.op != Op::sum && p.n_axes > 2 && p.channels >= 64);
  return visits <= (up_to_9 ? 9 : 4);
}

// Engines that read the taps of small or disjoint windows directly from values stored as S.
template <class R, class S, bool indexed> Kernel tap_engine(const Problem& p) {
  if (!stored_as<S>(p.x_type)) return {};
  if (p.channels > 1) {
    if (!indexed && !overlaps_little(p)) return {};
    return first_supporting<ChannelsLast<R, S, indexed>>(p);
  }
  return first_supporting<DirectRows<R, S, indexed>, Blocks<R, S, indexed>>(p);
}

// Long rows of a single axis, which are faster to fold in place: copying them to scratch first takes up to
// twice as long (max of 3 in a float64 signal).
template <class R> bool long_signal(const Problem& p) {
  constexpr int64_t long_row = 1024;
  const Axis& last = p.axes[0];
  return p.n_axes == 1 && p.channels == 1 && last.out >= long_row && (R::is_max || last.kernel <= 3);
}

// 8- and 16-bit integers with several channels along a single axis of stride 1: a vector holds so many of them
// that folding row after row is fastest (max of 3 bytes along a middle axis: 3.1 times as fast).
template <class V> bool short_integers(const Problem& p) {
  const Axis& last = p.axes[0];
  return std::is_integral_v<V> && p.n_axes == 1 && p.channels > 1 && last.regular() && last.stride == 1 &&
         (sizeof(V) == 1 || (sizeof(V) == 2 && last.kernel <= 8));
}

// Whether the sliding engine takes a problem. Windows of two or three taps in single rows go to the direct
// engine where it supports them: it is twice as fast.
template <class R, class S, bool indexed> bool use_sliding(const Problem& p) {
  if (!Sliding<R, indexed>::supports(p) || taps_of(p) < 2 || (!indexed && long_signal<R>(p))) return false;
  if constexpr (has_tap_engines<S>)
    if (stored_as<S>(p.x_type) && p.n_axes == 1 && p.channels == 1 && DirectRows<R, S, indexed>::supports(p))
      return false;
  return !(p.channels > 1 && overlaps_little(p));
}

// Max pooling. Minima and unsigned integers are reordered on loading, so they need an engine that loads every
// element into scratch.
template <class V> Kernel max_kernel(const Problem& p) {
  using R = Max<V>;
  constexpr bool has_direct = has_tap_engines<V>;
  const bool plain = !reordered(p);
  if constexpr (specialised && sizeof(V) <= 4)
    if (plain)
      if (const Kernel kernel = NDPOOL_NAME(stride1_, NDPOOL_ISA)(p); kernel.run) return kernel;
  if (p.extra == Extra::none) {
    if (short_integers<V>(p)) return kernel_of<Rows<R, false>>();
    if (plain ? use_sliding<R, V, false>(p) : use_sliding<R, void, false>(p))
      return kernel_of<Sliding<R, false>>();
    if constexpr (has_direct) {
      if (plain)
        if (const Kernel kernel = tap_engine<R, V, false>(p); kernel.run) return kernel;
    } else if constexpr (specialised) {
      if (plain && p.channels > 1 && overlaps_little(p) && ChannelsLast<R, V, false>::supports(p))
        return kernel_of<ChannelsLast<R, V, false>>();
    }
    return kernel_of<Rows<R, false>>();
  }
  if constexpr (has_direct && is_real<V>) {
    if (plain ? use_sliding<R, V, true>(p) : use_sliding<R, void, true>(p)) {
      if constexpr (std::is_same_v<V, float>)  // small windows, rows of at least one vector
        if (plain && p.x_type == Dtype::f32 && taps_of(p) <= 9 && p.axes[p.n_axes - 1].out >= wide<V> &&
            DirectRows<R, V, true>::supports(p))
          return kernel_of<DirectRows<R, V, true>>();
      return kernel_of<Sliding<R, true>>();
    }
    if (plain)
      if (const Kernel kernel = tap_engine<R, V, true>(p); kernel.run) return kernel;
  }
  if constexpr (sizeof(V) >= 4)
    return kernel_of<Rows<R, true>>();
  else
    return {};  // shorter integers are compared as float32 (kernels.cpp)
}

// Sums of long windows of stride 1 have their own order of additions: the sliding engine takes them in every
// layout.
template <class V, class S> bool use_sliding_sums(const Problem& p) {
  bool long_window = false;
  for (int a = 0; a < p.n_axes; ++a) long_window |= p.axes[a].kernel > 3;
  return (long_window || use_sliding<Sum<V>, S, false>(p)) && Sliding<Sum<V>, false>::supports(p);
}

template <class V> Kernel sum_kernel(const Problem& p) {
  if (p.op == Op::sum) {
    if constexpr (specialised)
      if (const Kernel kernel = NDPOOL_NAME(stride1_, NDPOOL_ISA)(p); kernel.run) return kernel;
    if constexpr (specialised && is_real<V>)
      if (SingleSums<V, V>::supports(p)) return kernel_of<SingleSums<V, V>>();
    if (use_sliding_sums<V, V>(p)) return kernel_of<Sliding<Sum<V>, false>>();
    if constexpr (has_tap_engines<V>)
      if (p.x_type == p.y_type)
        if (const Kernel kernel = tap_engine<Sum<V>, V, false>(p); kernel.run) return kernel;
  }
  return kernel_of<Rows<Sum<V>, false>>();
}

}  // namespace
}  // namespace ndpool

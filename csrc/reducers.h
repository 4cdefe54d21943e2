// The reducers, in two kinds: folds (init, merge), which every engine uses, and those that collect the elements of a
// window (of), which the general engine runs. The final division or root is left to the engines. A later element replaces an earlier one only if it is strictly better or NaN: ties give the
// first offset, several NaNs the last.
#pragma once

#include <limits>

#include "simd.h"

namespace ndpool {
namespace {

using Offset = std::uint32_t;  // offset in the nominal window, padding included

template <class T> inline bool is_nan(T v) {
  if constexpr (is_real<T>)
    return v != v;
  else
    return false;
}

template <class T> struct Max {
  using V = T;
  static constexpr bool is_max = true;
  static V init() {
    if constexpr (is_real<V>)
      return -std::numeric_limits<V>::infinity();
    else
      return std::numeric_limits<V>::lowest();
  }
  template <class T2> static auto beats(T2 later, T2 best) { return later > best; }
  static bool better(V later, V best) { return beats(later, best) | int(is_nan(later)); }
  static V merge(V later, V best) { return better(later, best) ? later : best; }
};

// Values compared in another order than that of their compute type. Min is max in the reverse order: floats are
// negated, the bits of integers inverted. Unsigned integers of 32 and 64 bits are compared as signed integers with
// the highest bit inverted.
inline bool is_unsigned(const Problem& p) {
  return (p.op == Op::max || p.op == Op::min) && (p.x_type == Dtype::u32 || p.x_type == Dtype::u64);
}
inline bool reordered(const Problem& p) { return p.op == Op::min || is_unsigned(p); }

// Maps loaded values to that order, and results back before they are stored.
template <class V> inline void reorder(const Problem& p, const V* row, V* to, int64_t n) {
  if (!reordered(p)) return;
  if constexpr (is_real<V>) {
    if (p.op == Op::min) in_vectors(n, [=](int64_t j) { to[j] = -row[j]; });
  } else {
    const V bits =
        V((p.op == Op::min ? V(~V(0)) : V(0)) ^ (is_unsigned(p) ? std::numeric_limits<V>::lowest() : V(0)));
    in_vectors(n, [=](int64_t j) { to[j] = V(row[j] ^ bits); });
  }
}

template <class T> struct Sum {
  using V = T;
  static constexpr bool is_max = false;
  static V init() { return V(0); }
  // Unsigned arithmetic: integer sums wrap as in NumPy, without undefined behaviour.
  static V merge(V later, V sum) {
    if constexpr (is_real<V>)
      return sum + later;
    else
      return V(std::uint64_t(sum) + std::uint64_t(later));
  }
  static V negated(V v) {
    if constexpr (is_real<V>)
      return -v;
    else
      return V(0 - std::uint64_t(v));
  }
};

// A reducer that is not a fold, such as a median: it receives all elements of a window at once.
template <class R>
concept Collects = requires(typename R::V* x, int64_t n) { R::of(x, n); };

// Merges a later value and its offset into the best of a window so far.
template <class R>
inline void merge_indexed(typename R::V later, Offset offset, typename R::V& best, Offset& at) {
  const bool better = R::better(later, best);
  best = better ? later : best;
  at = better ? offset : at;
}

// The same for offsets in any order: among equal values the smallest offset wins, among NaNs the largest.
template <class R>
inline void merge_any_order(typename R::V later, Offset offset, typename R::V& best, Offset& at) {
  const bool earlier = offset < at;
  const bool take =
      is_nan(later) ? !is_nan(best) | !earlier : R::better(later, best) | ((later == best) & earlier);
  best = take ? later : best;
  at = take ? offset : at;
}

}  // namespace
}  // namespace ndpool

// The reducers: init, pick/add, and the fold of whole rows. Written once, used by every loop.
// A later element replaces an earlier one only if it is strictly better or NaN: first of ties, last of NaNs.
#pragma once

#include <limits>

#include "simd.h"

namespace ndpool {
namespace {

using Code = std::uint32_t;  // position inside a window, counted over its whole nominal extent

template <class T> inline bool is_nan(T v) {
  if constexpr (is_real<T>)
    return v != v;
  else
    return false;
}

template <class T> struct Max {
  using V = T;
  static constexpr bool picks = true;
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

// Maxima of integers in a wider type: of nothing, they are the least that can be stored.
template <class T, class S> struct MaxOf : Max<T> {
  static T init() { return T(std::numeric_limits<S>::lowest()); }
};

// Values that are compared in another order than their compute type's. Minima are maxima in the reverse order: floats are
// negated, the bits of integers inverted. Unsigned integers of 32 and 64 bits, and shorter ones whose places are asked for,
// are compared as signed ones, with their highest bit inverted.
inline bool is_unsigned(const Problem& p) {
  if (p.op != Op::max && p.op != Op::min) return false;
  if (p.x_type == Dtype::u32 || p.x_type == Dtype::u64) return true;
  const bool is_short = p.x_type == Dtype::b8 || p.x_type == Dtype::u8 || p.x_type == Dtype::u16;
  return is_short && p.extra != Extra::none;
}
inline bool reordered(const Problem& p) { return p.op == Op::min || is_unsigned(p); }

// To that order, when they are loaded, and back when they are stored.
template <class V> inline void reorder(const Problem& p, V* row, int64_t n) {
  if (!reordered(p)) return;
  if constexpr (is_real<V>) {
    in_vectors(n, [&](int64_t j) { row[j] = -row[j]; });
  } else {
    const V bits =
        V((p.op == Op::min ? V(~V(0)) : V(0)) ^ (is_unsigned(p) ? std::numeric_limits<V>::lowest() : V(0)));
    in_vectors(n, [&](int64_t j) { row[j] = V(row[j] ^ bits); });
  }
}

template <class T> struct Sum {
  using V = T;
  static constexpr bool picks = false;
  static V init() { return V(0); }
  // Integer sums wrap as NumPy's do, instead of overflowing into undefined behaviour.
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

// A reducer that cannot be a fold, such as a median: it gets the elements of a window together.
template <class R>
concept Collects = requires(typename R::V* x, int64_t n) { R::of(x, n); };

// Values with their codes: the candidate for the best of a window.
template <class R> inline void merge_coded(typename R::V later, Code code, typename R::V& best, Code& at) {
  const bool better = R::better(later, best);
  best = better ? later : best;
  at = better ? code : at;
}

// The same where codes come in any order: of equals the one with the least code wins, of NaNs the one with the highest.
template <class R> inline void merge_column(typename R::V later, Code code, typename R::V& best, Code& at) {
  const bool earlier = code < at;
  const bool take =
      is_nan(later) ? !is_nan(best) | !earlier : R::better(later, best) | ((later == best) & earlier);
  best = take ? later : best;
  at = take ? code : at;
}

// dst = rows[0] . rows[1] . ... (after dst itself when `go_on`), element by element, in this order.
template <class R> void fold(const typename R::V* const* rows, int n, typename R::V* __restrict dst,
                             int64_t length, bool go_on) {
  using V = typename R::V;
  const V *a = rows[0], *b = rows[n > 1], *c = rows[n > 2 ? 2 : 0], *d = rows[n > 3 ? 3 : 0];
  const auto each = [&](auto f) { in_vectors(length, [&](int64_t j) { dst[j] = f(j); }); };
  const auto two = [=](int64_t j, V v) { return R::merge(b[j], R::merge(a[j], v)); };
  if (go_on) {
    if (n == 1) return each([=](int64_t j) { return R::merge(a[j], dst[j]); });
    if (n == 2) return each([=](int64_t j) { return two(j, dst[j]); });
    if (n == 3) return each([=](int64_t j) { return R::merge(c[j], two(j, dst[j])); });
    return each([=](int64_t j) { return R::merge(d[j], R::merge(c[j], two(j, dst[j]))); });
  }
  if (n == 1) return each([=](int64_t j) { return a[j]; });
  if (n == 2) return each([=](int64_t j) { return R::merge(b[j], a[j]); });
  if (n == 3) return each([=](int64_t j) { return R::merge(c[j], R::merge(b[j], a[j])); });
  each([=](int64_t j) { return R::merge(d[j], R::merge(c[j], R::merge(b[j], a[j]))); });
}

// The same with codes: every element of a row has its row's code.
template <class R> void fold_coded(const typename R::V* const* rows, const Code* codes, int n,
                                   typename R::V* __restrict dst, Code* __restrict at, int64_t length,
                                   bool go_on) {
  for (int r = 0; r < n; ++r) {
    const typename R::V* a = rows[r];
    const Code code = codes[r];
    if (r == 0 && !go_on) {
      in_vectors(length, [&](int64_t j) { dst[j] = a[j]; });
      in_vectors(length, [&](int64_t j) { at[j] = code; });
    } else {
      in_vectors(length, [&](int64_t j) { merge_coded<R>(a[j], code, dst[j], at[j]); });
    }
  }
}

}  // namespace
}  // namespace ndpool

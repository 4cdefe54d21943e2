// The vertical step: rows of partial results to rows of results. Folds of whole rows, with and without offsets, and
// windows of an odd number of rows or columns that share what they have in common: windows r and r + 1 share all elements
// but the first of the one and the last of the other, and those come in pairs that later windows share, too.
#pragma once

#include "forward/speculation.h"

namespace ndpool {
namespace {

// dst = rows[0] . rows[1] . ..., element by element in this order, for 1 to 4 rows; `accumulate`: dst comes first.
template <class R> void fold(const typename R::V* const* rows, int n, typename R::V* __restrict dst,
                             int64_t length, bool accumulate) {
  using V = typename R::V;
  const V *a = rows[0], *b = rows[n > 1], *c = rows[n > 2 ? 2 : 0], *d = rows[n > 3 ? 3 : 0];
  const auto each = [&](auto f) { in_vectors(length, [&](int64_t j) { dst[j] = f(j); }); };
  const auto two = [=](int64_t j, V v) { return R::merge(b[j], R::merge(a[j], v)); };
  if (accumulate) {
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

// The same with offsets, for any number of rows; all elements of a row share one offset.
template <class R> void fold_indexed(const typename R::V* const* rows, const Offset* offsets, int n,
                                     typename R::V* __restrict dst, Offset* __restrict at, int64_t length,
                                     bool accumulate) {
  using V = typename R::V;
  constexpr int N = wide<V>;
  using Cn = Vec<UnsignedLike<V>, N>;
  int64_t j = 0;
  for (; j + N <= length; j += N) {
    Vec<V, N> best = read<V, N>(accumulate ? dst + j : rows[0] + j);
    Cn offset = accumulate ? converted<Cn>(read<Offset, N>(at + j)) : Cn{} + offsets[0];
    for (int r = accumulate ? 0 : 1; r < n; ++r)
      merge_with_offset<R>(read<V, N>(rows[r] + j), Cn{} + offsets[r], best, offset);
    write(dst + j, best);
    write(at + j, converted<Vec<Offset, N>>(offset));
  }
  for (; j < length; ++j)
    for (int r = 0; r < n; ++r) {
      if (r == 0 && !accumulate) {
        dst[j] = rows[0][j];
        at[j] = offsets[0];
      } else {
        merge_indexed<R>(rows[r][j], offsets[r], dst[j], at[j]);
      }
    }
}

// Folds up to 4 rows, assuming that there is no NaN; the last argument adds every element of the rows, but none that
// vectors read past their ends.
template <class R, class V, int N = wide<V>> void fold_speculatively(const V* const* rows, int n, V* to,
                                                                     int64_t width, bool reads_past_end,
                                                                     bool accumulate, Vec<V, N>& nan_sum) {
  const V *a = rows[0], *b = rows[n > 1], *c = rows[n > 2 ? 2 : 0], *d = rows[n > 3 ? 3 : 0];
  Vec<V, N> sum = nan_sum;
  const auto fold_vectors = [&](auto count) {
    const V* const from[] = {a, b, c, d};
    const auto vector = [&](int64_t j, auto inside) __attribute__((always_inline)) {
      Vec<V, N> best = read<V, N>(a + j), elements = best;
      for (int k = 1; k < count; ++k) {
        const Vec<V, N> v = read<V, N>(from[k] + j);
        elements += v;  // a shorter chain: `sum` waits for one addition per group
        best = merged<R, false>(v, best);
      }
      sum += inside(elements);
      write(to + j, accumulate ? merged<R, false>(best, read<V, N>(to + j)) : best);
    };
    int64_t j = 0;
    for (; j + N <= width; j += N) vector(j, [](Vec<V, N> v) { return v; });
    if (reads_past_end && j < width) {
      const auto inside_mask = lane_mask<V, N>(width - j);
      return vector(j, [inside_mask](Vec<V, N> v) { return inside_mask ? v : Vec<V, N>{}; });
    }
    for (; j < width; ++j)
      for (int k = 0; k < count; ++k) {
        sum[0] += from[k][j];
        to[j] = k || accumulate ? R::merge(from[k][j], to[j]) : from[k][j];
      }
  };
  if (n == 1) fold_vectors(std::integral_constant<int, 1>{});
  if (n == 2) fold_vectors(std::integral_constant<int, 2>{});
  if (n == 3) fold_vectors(std::integral_constant<int, 3>{});
  if (n == 4) fold_vectors(std::integral_constant<int, 4>{});
  nan_sum = sum;
}

// n windows of K elements; an element is W vectors. `next` reads the next element, `out` receives windows 0, 1,
// ... n - 1.
template <int K, int W, class Vn, class Merge, class Next, class Out>
__attribute__((always_inline)) inline void windows_in_pairs(int64_t n, Merge&& merge, Next&& next,
                                                            Out&& out) {
  constexpr int T = K / 2;
  Vn even[T][W], odd[W], pair[T][W];
  for (int k = 0; k < T; ++k) {
    next(even[k]);
    for (int w = 0; w < W && k > 0; ++w) pair[k - 1][w] = merge(even[k][w], odd[w]);
    next(odd);
  }
  for (int64_t r = 0; r < n; r += 2) {
    Vn fresh[W], shared[W], result[W];
    next(fresh);
    for (int w = 0; w < W; ++w) {
      pair[T - 1][w] = merge(fresh[w], odd[w]);
      shared[w] = pair[0][w];
      for (int k = 1; k < T; ++k) shared[w] = merge(pair[k][w], shared[w]);
      result[w] = merge(shared[w], even[0][w]);
      for (int k = 1; k < T; ++k) {
        pair[k - 1][w] = pair[k][w];
        even[k - 1][w] = even[k][w];
      }
      even[T - 1][w] = fresh[w];
    }
    out(r, result);
    if (r + 1 == n) break;
    next(odd);
    for (int w = 0; w < W; ++w) result[w] = merge(odd[w], shared[w]);
    out(r + 1, result);
  }
}

// The same on rows: K lines of memory hold what the last K - 1 rows contribute.
template <int K, class V> struct PairLines {
  static constexpr int T = K / 2;
  V *odd, *even[T], *pair[T];

  PairLines(V* lines, int64_t pitch) : odd(lines) {
    for (int k = 0; k < T; ++k) {
      even[k] = lines + (2 * k + 1) * pitch;
      pair[k] = lines + (2 * k + 2) * pitch;  // the last one is never written
    }
  }

  // Enters the k-th even row of the first K - 1 rows; the caller writes the odd row behind it to `odd`.
  template <class Vn, class Merge>
  __attribute__((always_inline)) inline void begin(int k, int64_t at, Vn row, Merge&& merge) const {
    if (k > 0) write(pair[k - 1] + at, merge(row, get<Vn>(odd + at)));
    write(even[k] + at, row);
  }

  // Enters a new even row; returns what its window shares with the next.
  template <class Vn, class Merge>
  __attribute__((always_inline)) inline Vn shared(int64_t at, Vn row, Merge&& merge) const {
    const Vn newest = merge(row, get<Vn>(odd + at));
    if constexpr (T == 1) return newest;
    Vn shared = get<Vn>(pair[0] + at);
    for (int k = 1; k < T - 1; ++k) shared = merge(get<Vn>(pair[k] + at), shared);
    write(pair[0] + at, newest);
    return merge(newest, shared);
  }

  // Replaces the oldest even row by the new one and returns it.
  template <class Vn> __attribute__((always_inline)) inline Vn replace(int64_t at, Vn row) const {
    const Vn oldest = get<Vn>(even[0] + at);
    write(even[0] + at, row);
    return oldest;
  }

  // To be called after two rows.
  void next() {
    V *const oldest = even[0], *const first = pair[0];
    for (int k = 1; k < T; ++k) even[k - 1] = even[k];
    even[T - 1] = oldest;
    for (int k = 1; k < T - 1; ++k) pair[k - 1] = pair[k];
    if constexpr (T > 1) pair[T - 2] = first;
  }

private:
  template <class Vn> static Vn get(const V* p) { return read<V, length_of<Vn>>(p); }
};

}  // namespace
}  // namespace ndpool

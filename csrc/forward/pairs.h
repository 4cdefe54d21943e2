// Windows of an odd number of rows or columns, one after the other. Windows r and r + 1 share all elements but the first of the
// one and the last of the other, and those come in pairs that later windows share, too: in registers, or in lines of memory.
#pragma once

#include "simd.h"

namespace ndpool {
namespace {

// n windows of K elements, each of them W vectors, of which `next` gives one after the other.
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

// What is kept of K - 1 rows: K lines.
template <int K, class V> struct PairLines {
  static constexpr int T = K / 2;
  V *odd, *even[T], *pair[T];

  PairLines(V* lines, int64_t pitch) : odd(lines) {
    for (int k = 0; k < T; ++k) {
      even[k] = lines + (2 * k + 1) * pitch;
      pair[k] = lines + (2 * k + 2) * pitch;  // the last of them is never kept
    }
  }

  // One of the first K - 1 rows: the k-th that is even, or the one behind it.
  template <class Vn, class Merge>
  __attribute__((always_inline)) inline void begin(int k, int64_t at, Vn row, Merge&& merge) const {
    if (k > 0) write(pair[k - 1] + at, merge(row, get<Vn>(odd + at)));
    write(even[k] + at, row);
  }

  // An even row that comes, to what its window shares with the next.
  template <class Vn, class Merge>
  __attribute__((always_inline)) inline Vn shared(int64_t at, Vn row, Merge&& merge) const {
    const Vn newest = merge(row, get<Vn>(odd + at));
    if constexpr (T == 1) return newest;
    Vn shared = get<Vn>(pair[0] + at);
    for (int k = 1; k < T - 1; ++k) shared = merge(get<Vn>(pair[k] + at), shared);
    write(pair[0] + at, newest);
    return merge(newest, shared);
  }

  // The oldest even row, which the one that has come replaces.
  template <class Vn> __attribute__((always_inline)) inline Vn replace(int64_t at, Vn row) const {
    const Vn oldest = get<Vn>(even[0] + at);
    write(even[0] + at, row);
    return oldest;
  }

  // After two rows.
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

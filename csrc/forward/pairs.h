// Sliding windows of an odd number K of rows or columns, two at a time. Windows r and r + 1 share all elements but
// the first of the one and the last of the other. The shared part is a merge of pairs, which later windows reuse:
// pairs are kept in registers (windows_in_pairs) or in lines of memory (PairLines). Used by strips.h, tracks.h and
// long_max.h.
#pragma once

#include "simd.h"

namespace ndpool {
namespace {

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

// Speculation: max pooling assumes that there is no NaN, which saves an instruction per element, and adds up the elements
// that it reads: a NaN stays in the sum. This file has the two ways to merge (exact and speculative), the check of a sum, and
// how long work stays exact after a NaN. What is computed again differs: rows and planes (direct, small_planes), windows
// (blocks, channels_last), tiles (strips, tracks, long_max, sliding), the folded row (general).
#pragma once

#include "reducers.h"

namespace ndpool {
namespace {

// Merges two vectors. Exact: NaN wins. Speculative (exact = false): assumes that there is no NaN, so one
// instruction suffices.
template <class R, bool exact = true, class Vx>
__attribute__((always_inline)) inline Vx merged(Vx later, Vx best) {
  if constexpr (!R::is_max) {
    if constexpr (is_real<typename R::V>) return best + later;
    using U = Vec<UnsignedLike<typename R::V>, length_of<Vx>>;  // wraps
    return reinterpret_cast<Vx>(reinterpret_cast<U>(best) + reinterpret_cast<U>(later));
  } else if constexpr (exact && is_real<typename R::V>) {
    const Vx value = R::beats(later, best) ? later : best;
    return later != later ? later : value;
  } else {
    return larger(later, best);
  }
}

// The same with offsets.
template <class R, bool exact = true, class Vx, class Cx> __attribute__((always_inline)) inline void
merge_with_offset(const Vx& later, const Cx& later_offset, Vx& best, Cx& offset) {
  auto better = R::beats(later, best);
  if constexpr (exact && is_real<typename R::V>) {
    better |= later != later;
    best = better ? later : best;
  } else {
    best = larger(later, best);
  }
  offset = better ? later_offset : offset;
}

// Whether a vector of sums contains a NaN. Opposite infinities look like one; their work is repeated in vain.
template <class V> inline bool contains_nan(V sum) { return any(sum != sum); }

// Whether n elements may contain a NaN: their sum then is NaN, as it is for opposite infinities. Vectors
// read past the end only if there are fewer elements than two vectors.
template <class V> bool may_contain_nan(const V* x, int64_t n) {
  constexpr int N = wide<V>;
  Vec<V, N> a{}, b{};
  for (int64_t j = 0; j < n; j += 2 * N) {
    if (n >= 2 * N) j = min(j, n - 2 * N);  // the last vectors may overlap
    a += read<V, N>(x + j);
    if (j + N < n) b += read<V, N>(x + j + N);
  }
  a += b;
  return any(a != a);
}

// Does work speculatively while it meets no NaN. Work that met one is done again exactly, and so are the next pieces,
// because NaNs come together.
class Speculation {
public:
  // `speculative` returns whether it met a NaN, `exact` nothing.
  template <class Speculative, class Exact>
  __attribute__((always_inline)) inline void run(Speculative&& speculative, Exact&& exact) {
    if (exact_left_ == 0) {
      if (!speculative()) return;
      exact_left_ = exact_pieces;
    }
    --exact_left_;
    exact();
  }

  // The same for large pieces: both return whether they met a NaN, and the next piece is exact only if this one has to be.
  template <class Speculative, class Exact>
  __attribute__((always_inline)) inline void run_large(Speculative&& speculative, Exact&& exact) {
    if (exact_left_ == 0 && !speculative()) return;
    exact_left_ = exact();
  }

  // How many pieces are done exactly after a NaN.
  static constexpr int exact_pieces = 32;

private:
  int exact_left_ = 0;
};

}  // namespace
}  // namespace ndpool

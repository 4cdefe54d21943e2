// Helpers shared by the backward engines: normalised problems, the outputs that cover an input (Cover), and slabs.
// An engine works slab by slab: the rows along the axis before the last, at one index of each axis before that. It
// writes whole vectors; where a vector writes a tail past the end of a row, the next row overwrites it. No kernel
// is here.
#pragma once

#include "simd.h"
#include "walk.h"

namespace ndpool {
namespace {

constexpr int64_t band_bytes = 128 * 1024;  // rows in use: well within L2
constexpr int max_slabs = 64;               // of outputs that one slab of inputs gathers from

// Gives a problem with a single pooled axis a row axis: its planes, as windows of one tap.
inline void add_row_axis(Problem& p) {
  if (p.n_axes > 1) return;
  const bool planes = p.n_lead > 0 && p.axes[0].table_stride == 0;
  p.axes[1] = p.axes[0];
  p.axes[0] = single_axis(planes ? p.lead_shape[--p.n_lead] : 1);
  p.planes /= p.axes[0].size;
  p.n_axes = 2;
  for (Array* array : {&p.x, &p.y, &p.extra_array}) {
    array->pooled[1] = array->pooled[0];
    array->pooled[0] = planes ? array->lead[p.n_lead] : 0;
  }
}

// Merges planes into one tall plane where disjoint rows of windows cover them and all arrays are contiguous across
// planes.
inline void merge_planes(Problem& p) {
  if (p.n_axes != 2 || p.n_lead == 0) return;
  Axis& a = p.axes[0];
  const int64_t n = p.lead_shape[p.n_lead - 1];
  if (!a.regular() || a.step != 1 || a.origin != 0 || a.kernel != a.stride || a.size != a.out * a.stride ||
      a.uncropped != a.kernel || p.axes[1].table_stride)
    return;
  for (const Array* array : {&p.x, &p.extra_array, &p.y})
    if (array->data && array->lead[p.n_lead - 1] != array->pooled[0] * (array == &p.y ? a.size : a.out))
      return;
  a.size *= n;
  a.out *= n;
  a.hi = a.size;
  p.planes /= n;
  --p.n_lead;
}

// Joins the axes of a window that covers a plane without gaps into one axis.
inline void join_axes(Problem& p) {
  int64_t by = 1, size = 1;
  for (int a = p.n_axes - 1; a >= 0; --a) {
    const Axis& axis = p.axes[a];
    if (axis.table_stride || axis.out != 1 || window(axis, 0).taps != axis.size) return;
    if (p.y.pooled[a] != p.y.pooled[p.n_axes - 1] * size && axis.size > 1) return;
    by *= max(1, share(axis, 0));
    size *= axis.size;
  }
  if (!p.divisor) p.divisor = by;
  p.y.pooled[0] = p.y.pooled[p.n_axes - 1];
  p.axes[0] = single_axis(size);
  p.axes[0].out = 1;
  p.axes[0].kernel = p.axes[0].stride = p.axes[0].uncropped = size;
  p.n_axes = 1;
}

inline void set_units(Problem& p, int64_t tile) {
  const Axis& last = p.axes[p.n_axes - 1];
  p.tile = max(1, min(tile, last.size));
  p.tiles = ceil_div(last.size, p.tile);
  p.units = p.planes * p.tiles;
  for (int a = 0; a + 1 < p.n_axes; ++a) p.units *= p.axes[a].size;
}

// The outputs [lo, hi) whose windows span input i; a dilated window may have no tap there. Moves forward only.
class Cover {
public:
  Cover(const Axis& a, int64_t i) : a_(a), i_(i), lo(0), hi(0) {
    if (a.regular()) {
      const Range over = outputs_over(a, i, 1);
      lo = max(0, min(a.out, over.lo));
      hi = max(lo, min(a.out, over.hi));
    } else {
      lo = hi = RowSet::first_ending_after(a, i);
      while (hi < a.out && a.starts[hi] <= i) ++hi;
    }
  }
  void next(int64_t n = 1) {
    i_ += n;
    while (lo < a_.out && start(lo) + (a_.regular() ? span_of(a_) : a_.counts[lo]) <= i_) ++lo;
    while (hi < a_.out && start(hi) <= i_) ++hi;
  }
  // The number of inputs from this one on that the same windows cover.
  int64_t run_length() const {
    if (a_.step != 1) return 1;
    const int64_t ends = lo < hi ? start(lo) + (a_.regular() ? span_of(a_) : a_.counts[lo]) : a_.size;
    return min(ends, hi < a_.out ? start(hi) : a_.size) - i_;
  }
  bool has_tap(int64_t o) const { return a_.step == 1 || (i_ - start(o)) % a_.step == 0; }
  int64_t tap(int64_t o) const { return a_.step == 1 ? i_ - start(o) : (i_ - start(o)) / a_.step; }

private:
  int64_t start(int64_t o) const { return begin_of(a_, o); }

  const Axis& a_;
  int64_t i_;

public:
  int64_t lo, hi;
};

// The most windows that span one input.
inline int64_t max_covers(const Axis& a, int64_t planes) {
  if (a.regular()) return max(1, min(a.out, (span_of(a) - 1) / a.stride + 1));
  int64_t n = 1;
  const int64_t tables = a.table_stride ? planes : 1;
  for (int64_t t = 0; t < tables; ++t) {
    const int64_t *starts = a.starts + t * a.table_stride, *counts = a.counts + t * a.table_stride;
    for (int64_t lo = 0, o = 0; o < a.out; ++o) {
      while (lo < o && starts[lo] + counts[lo] <= starts[o]) ++lo;
      n = max(n, o - lo + 1);
    }
  }
  return n;
}

// The most outputs of an axis whose windows reach n consecutive inputs.
inline int64_t max_outputs(const Axis& a, int64_t n) {
  return max(1, a.regular() ? min(a.out, (n + span_of(a)) / a.stride + 2) : a.out);
}

// Whether the input gradients of each plane are contiguous.
inline bool packed_planes(const Problem& p) {
  int64_t pitch = size_of(p.y_type);
  return plane_is_contiguous(p, p.y, pitch, Over::inputs);
}

// A slab of outputs that covers the walk's slab of inputs: where its gradients and offsets begin (in bytes), the
// offset of its first tap along the outer axes, and their share of the divisor. Slabs come in rising order.
struct Slab {
  int64_t grad, extra, offset, share;
};

inline int64_t count_slabs(const Problem& p) {
  int64_t n = 1;
  for (int a = 0; a + 2 < p.n_axes; ++a) n = min(max_slabs + 1, n * max_covers(p.axes[a], p.planes));
  return n;
}

inline int slabs_around(const Problem& p, const Walk<Over::inputs>& walk, Slab* slabs) {
  int n = 1;
  slabs[0] = {0, 0, 0, 1};
  for (int a = 0; a + 2 < p.n_axes; ++a) {
    const Axis& axis = walk.axis(a);
    const Cover cover(axis, walk.at(a));
    Slab extended[max_slabs];
    int m = 0;
    for (int k = 0; k < n; ++k)
      for (int64_t o = cover.lo; o < cover.hi; ++o)
        if (cover.has_tap(o))
          extended[m++] = {slabs[k].grad + o * p.x.pooled[a], slabs[k].extra + o * p.extra_array.pooled[a],
                           slabs[k].offset * axis.kernel + cover.tap(o), slabs[k].share * share(axis, o)};
    for (int k = 0; k < m; ++k) slabs[k] = extended[k];
    n = m;
  }
  return n;
}

// Whether the rows of the input gradient are contiguous in memory in the order in which they are written.
template <class V> bool rows_contiguous(const Problem& p) {
  return stored_as<V>(p.y_type) && p.tiles == 1 && is_contiguous(p, p.y, sizeof(V), Over::inputs);
}

// Layout of a padded row of output gradients, in which the inputs of a tile find their windows at fixed distances.
// Outputs outside the axis are zeros.
struct Columns {
  int64_t first, count;  // outputs
  int64_t real_lo, real_hi;
  int64_t evens, odds;  // stride 2: windows that cover an input at an even (odd) distance from the origin
  bool odd;             // the tile begins at an odd distance

  // Strides above 2 need permutations of vectors.
  static constexpr int64_t max_stride = has_permute<float> ? 8 : 2;
  static bool fixed(const Axis& a) {
    return a.regular() && (a.stride == 1 || (a.stride <= max_stride && a.step == 1));
  }

  Columns(const Axis& a, int64_t i0, int64_t i1)
      : evens((a.kernel + 1) / 2), odds(a.kernel / 2), odd((i0 - a.origin) & 1) {
    if (!fixed(a)) {
      first = Cover(a, i0).lo;
      count = Cover(a, i1 - 1).hi - first;
    } else if (a.stride == 1) {
      first = i0 - a.origin - (a.kernel - 1) * a.step;
      count = i1 - i0 + (a.kernel - 1) * a.step;
    } else {
      const int64_t covers = ceil_div(a.kernel, a.stride);
      first = floor_div(i0 - a.origin, a.stride) - (covers - 1);
      count = (i1 - i0) / a.stride + 1 + covers;
    }
    real_lo = max(first, min(first + count, 0));
    real_hi = max(real_lo, min(first + count, a.out));
  }
  // The most outputs of a padded row.
  static int64_t max_of(const Axis& a, int64_t tile) {
    if (!a.regular()) return a.out;
    if (!fixed(a)) return min(a.out, (tile + (a.kernel - 1) * a.step) / a.stride + 2);
    return a.stride == 1 ? tile + (a.kernel - 1) * a.step
                         : tile / a.stride + 2 + ceil_div(a.kernel, a.stride);
  }
};

// N integers widened to To. Fewer than 8 bytes are interleaved with zeros, because the compiler would widen them
// one at a time.
template <class To, int N, class From> inline Vec<To, N> widened(const From* p) {
  if constexpr (N * sizeof(From) >= 8) {
    return converted<Vec<To, N>>(read<From, N>(p));
  } else {
    static_assert(sizeof(From) == 1);
    UnsignedLike<Vec<From, N>> bits;
    __builtin_memcpy(&bits, p, sizeof bits);
    const auto bytes = reinterpret_cast<Vec<std::uint8_t, 16>>(Vec<std::uint64_t, 2>{bits});
    const auto pairs = reinterpret_cast<Vec<std::uint16_t, 8>>(zip_lo(bytes, Vec<std::uint8_t, 16>{}));
    const auto words = reinterpret_cast<Vec<std::uint32_t, 4>>(zip_lo(pairs, Vec<std::uint16_t, 8>{}));
    if constexpr (N == 4)
      return converted<Vec<To, 4>>(words);
    else
      return reinterpret_cast<Vec<To, N>>(zip_lo(words, Vec<std::uint32_t, 4>{}));
  }
}

// n rounded up to whole vectors.
template <class V> constexpr int64_t whole_vectors(int64_t n) {
  return (n + wide<V> - 1) / wide<V> * wide<V>;
}

}  // namespace
}  // namespace ndpool

// Iteration over a problem: its planes, tiles and rows. An engine, forward or backward, gets its work as a range
// of units; for engines that use Walk, a unit is one row of results of one tile of one plane. Planes are outermost
// and rows innermost, so that a worker visits adjacent rows in sequence and can reuse what they share.
#pragma once

#include "convert.h"
#include "memory.h"
#include "reducers.h"

namespace ndpool {
namespace {

// A list of n (index, tap) pairs along one outer axis.
struct Taps {
  int64_t *index, *tap, n;
};

// Allocates arrays from the scratch of a worker, at least 64 bytes apart.
class Scratch {
public:
  explicit Scratch(char* at) : at_(at) {}
  template <class T> T* take(int64_t n) {
    T* array = reinterpret_cast<T*>(at_);
    at_ += bytes<T>(n);
    return array;
  }
  template <class T> static int64_t bytes(int64_t n) { return (n * int64_t(sizeof(T)) + 127) / 64 * 64; }

private:
  char* at_;
};

// The first element of plane q of an array.
static inline char* plane_of(const Problem& p, const Array& array, int64_t q) {
  char* data = array.data;
  for (int a = p.n_lead - 1; a >= 0; --a) {
    data += q % p.lead_shape[a] * array.lead[a];
    q /= p.lead_shape[a];
  }
  return data;
}

// A position among the units of a problem. Rows are counted over the outputs (forward) or the inputs (backward) of
// the outer axes.
template <Over over> class Walk {
public:
  Walk(const Problem& p, int64_t unit) : p_(p), outer_(p.n_axes - 1) {
    for (int a = 0; a < p.n_axes; ++a) axes_[a] = p.axes[a];
    seek(unit);
  }

  void seek(int64_t unit) {
    for (int a = outer_ - 1; a >= 0; --a) {
      at_[a] = unit % extent(a);
      unit /= extent(a);
    }
    tile_ = unit % p_.tiles;
    plane_ = unit / p_.tiles;
    for (int64_t rest = plane_, a = p_.n_lead - 1; a >= 0; --a) {
      lead_[a] = rest % p_.lead_shape[a];
      rest /= p_.lead_shape[a];
    }
    enter_plane();
  }

  // Advances to the next unit; true if it belongs to another tile or plane, where nothing can be reused.
  bool next() {
    for (int a = outer_ - 1; a >= 0; --a) {
      if (++at_[a] < extent(a)) return false;
      at_[a] = 0;
    }
    if (++tile_ == p_.tiles) {
      tile_ = 0;
      ++plane_;
      for (int a = p_.n_lead - 1; a >= 0; --a) {
        if (++lead_[a] < p_.lead_shape[a]) break;
        lead_[a] = 0;
      }
      enter_plane();
    }
    return true;
  }

  // Advances to the first unit of the next slab; a slab is the rows along the last of the outer axes.
  void next_slab() {
    at_[outer_ - 1] = extent(outer_ - 1) - 1;
    next();
  }

  int64_t outer() const { return outer_; }
  int64_t at(int a) const { return at_[a]; }
  const Axis& axis(int a) const { return axes_[a]; }
  const Axis& last() const { return axes_[outer_]; }
  int64_t tile_begin() const { return tile_ * p_.tile; }
  int64_t tile_end() const {
    return min((tile_ + 1) * p_.tile, over == Over::outputs ? last().out : last().size);
  }

  char* plane(const Array& array) const { return base(array); }

  // Elements [from, to) of the row of an array at the given outer indices of this plane.
  Row row(const Array& array, const int64_t* outer_index, int64_t from, int64_t to) const {
    char* data = base(array);
    for (int a = 0; a < outer_; ++a) data += outer_index[a] * array.pooled[a];
    return {data + from * array.pooled[outer_], array.pooled[outer_], array.channel, to - from, p_.channels};
  }
  Row row(const Array& array, int64_t from, int64_t to) const { return row(array, at_, from, to); }

private:
  int64_t extent(int a) const { return ndpool::extent(axes_[a], over); }

  char* base(const Array& array) const { return base_[&array - p_.arrays()]; }

  void enter_plane() {
    for (int k = 0; k < Problem::n_arrays; ++k) {
      const Array& array = p_.arrays()[k];
      base_[k] = array.data;
      for (int a = 0; a < p_.n_lead; ++a) base_[k] += lead_[a] * array.lead[a];
    }
    for (int a = 0; a < p_.n_axes; ++a) {
      const Axis& shared = p_.axes[a];
      if (shared.table_stride) {
        axes_[a].starts = shared.starts + plane_ * shared.table_stride;
        axes_[a].counts = shared.counts + plane_ * shared.table_stride;
      }
    }
  }

  const Problem& p_;
  Axis axes_[max_axes];
  int outer_;
  int64_t plane_, tile_;
  int64_t at_[max_axes] = {}, lead_[max_lead];
  char* base_[Problem::n_arrays];  // first elements of this plane
};

// The rows that a unit reads: the product of the (index, tap) lists of the outer axes, in row-major order.
class RowSet {
public:
  RowSet(const Problem& p, Scratch& scratch) : n_axes_(p.n_axes - 1) {
    for (int a = 0; a < n_axes_; ++a) {
      const int64_t n = max_taps(p.axes[a]);
      taps_[a] = {scratch.take<int64_t>(n), scratch.take<int64_t>(n), 0};
    }
  }
  static int64_t bytes(const Problem& p) {
    int64_t sum = 0;
    for (int a = 0; a + 1 < p.n_axes; ++a) sum += 2 * Scratch::bytes<int64_t>(max_taps(p.axes[a]));
    return sum;
  }

  // Forward: the inputs in the windows of the walk's outer outputs.
  void windows(const Walk<Over::outputs>& walk) {
    for (int a = 0; a < n_axes_; ++a) {
      const Axis& axis = walk.axis(a);
      const Window w = window(axis, walk.at(a));
      taps_[a].n = w.taps;
      for (int64_t t = 0; t < w.taps; ++t) {
        taps_[a].index[t] = w.start + t * axis.step;
        taps_[a].tap[t] = w.lead + t;
      }
    }
    reset();
  }

  // Backward: the outputs whose windows contain the walk's outer inputs, in ascending order.
  void covers(const Walk<Over::inputs>& walk) {
    for (int a = 0; a < n_axes_; ++a) {
      const Axis& axis = walk.axis(a);
      const int64_t i = walk.at(a);
      Taps& list = taps_[a];
      list.n = 0;
      if (axis.regular()) {
        const Range over = outputs_over(axis, i, 1);
        for (int64_t o = max(0, over.lo), end = min(axis.out, over.hi); o < end; ++o) {
          const int64_t distance = i - axis.origin - o * axis.stride;
          if (distance % axis.step == 0) {
            list.index[list.n] = o;
            list.tap[list.n++] = distance / axis.step;
          }
        }
      } else {
        for (int64_t o = first_ending_after(axis, i); o < axis.out && axis.starts[o] <= i; ++o) {
          list.index[list.n] = o;
          list.tap[list.n++] = i - axis.starts[o];
        }
      }
    }
    reset();
  }

  // The first output of an irregular axis whose window ends after i, by bisection: ends never decrease.
  static int64_t first_ending_after(const Axis& axis, int64_t i) {
    int64_t lo = 0, hi = axis.out;
    while (lo < hi) {
      const int64_t mid = (lo + hi) / 2;
      if (axis.starts[mid] + axis.counts[mid] > i)
        hi = mid;
      else
        lo = mid + 1;
    }
    return lo;
  }

  int64_t count() const { return count_; }
  const int64_t* index() const { return index_; }
  // The offset of the current row's first tap in the nominal window of `axes`.
  Offset offset(const Axis* axes) const {
    int64_t offset = 0;
    for (int a = 0; a < n_axes_; ++a) offset = offset * axes[a].kernel + taps_[a].tap[at_[a]];
    return Offset(offset * axes[n_axes_].kernel);
  }

  void reset() {
    count_ = 1;
    for (int a = 0; a < n_axes_; ++a) {
      count_ *= taps_[a].n;
      at_[a] = 0;
    }
    if (count_)
      for (int a = 0; a < n_axes_; ++a) index_[a] = taps_[a].index[0];
  }
  void next() {
    for (int a = n_axes_ - 1; a >= 0; --a) {
      if (++at_[a] < taps_[a].n) {
        index_[a] = taps_[a].index[at_[a]];
        return;
      }
      at_[a] = 0;
      index_[a] = taps_[a].index[0];
    }
  }

private:
  // Upper bound of the taps of a window inside the input, and of the windows that contain an input.
  static int64_t max_taps(const Axis& a) {
    return a.regular() ? max(1, min(a.kernel, max(a.size, a.out))) : max(a.kernel, a.out);
  }

  int n_axes_;
  Taps taps_[max_axes];
  int64_t at_[max_axes], index_[max_axes], count_ = 0;
};

}  // namespace
}  // namespace ndpool

// The edges of memory: how far a vector may read or write past the end of a row. Every engine asks here.
//   Reading: from the beginning of the whole array to its end, where its strides rise (Readable). What lies between two rows
//   of a view is read and thrown away.
//   Writing: past the end of a row only where the next element in memory is the next result of the same worker, which
//   overwrites it later. An engine says how many results its worker still has to write; `follows` says whether they
//   lie in memory as they are written.
#pragma once

#include "plan.h"

namespace ndpool {
namespace {

// Which extents an array has along the pooled axes: the plan's outputs or its inputs.
enum class Over { outputs, inputs };

inline int64_t extent(const Axis& axis, Over over) { return over == Over::outputs ? axis.out : axis.size; }

inline int64_t plane_elements(const Problem& p, Over over = Over::inputs) {
  int64_t n = 1;
  for (int a = 0; a < p.n_axes; ++a) n *= extent(p.axes[a], over);
  return n;
}

// What vectors may read of an array, past the ends of its rows: everything from its first element to its last; nothing where
// a stride is negative.
class Readable {
public:
  Readable(const Problem& p, const Array& array, int64_t item, Over over) : begin_(array.data) {
    const char* end = array.data + item + (p.lanes - 1) * array.lane;
    bool rising = p.lanes == 1 || array.lane >= 0;
    for (int a = 0; a < p.n_axes; ++a) {
      const int64_t n = extent(p.axes[a], over);
      end += (n - 1) * array.pooled[a];
      rising &= n < 2 || array.pooled[a] >= 0;
    }
    for (int a = 0; a < p.n_lead; ++a) {
      end += (p.lead_shape[a] - 1) * array.lead[a];
      rising &= array.lead[a] >= 0;
    }
    if (rising) end_ = end;
  }

  // Whether n elements from `at` on may be read.
  template <class T> bool holds(const T* at, int64_t n) const {
    return reinterpret_cast<const char*>(at) >= begin_ && reinterpret_cast<const char*>(at + n) <= end_;
  }

  // Of `count` rows, `step` elements apart, those of which elements [-before, n) may be read.
  template <class T> Range rows(const T* row, int64_t before, int64_t n, int64_t step, int64_t count) const {
    const int64_t missing = reinterpret_cast<const T*>(begin_) - (row - before);
    const int64_t room = end_ ? reinterpret_cast<const T*>(end_) - (row + n) : -1;
    const int64_t lo = missing <= 0 ? 0 : step ? ceil_div(missing, step) : count;
    return {lo, room < 0 ? 0 : step ? least(count, room / step + 1) : count};
  }

private:
  const char *begin_, *end_ = nullptr;
};

inline double input_bytes(const Problem& p) {
  return double(p.planes) * double(p.lanes) * double(plane_elements(p)) * double(size_of(p.x_type));
}

// Whether the input of a call comes from memory, as far as can be told: engines ask for rows before they read them.
inline bool comes_from_far(const Problem& p) { return input_bytes(p) > 12e6; }

// How far ahead to ask for rows that step evenly through memory: so many bytes that they arrive in time, and no more than is
// left alone until then where several such streams are read side by side.
inline int64_t fetched_ahead(int64_t step, int64_t item, int64_t streams) {
  constexpr int64_t all_bytes = 8192;
  return step * most(1, ceil_div(all_bytes / streams, most(1, step < 0 ? -step : step) * item));
}

// Whether a call moves more than caches keep.
inline bool goes_past_caches(const Problem& p) {
  const double outputs = double(plane_elements(p, Over::outputs)) * double(size_of(p.y_type));
  return input_bytes(p) + double(p.planes) * double(p.lanes) * outputs > 24e6;
}

// Whether the elements of a plane lie in memory in the order of its rows and columns, without gaps. The stride of an axis
// with one element says nothing and is ignored. `pitch` becomes the bytes of a plane.
inline bool plane_follows(const Problem& p, const Array& array, int64_t& pitch, Over over) {
  if (p.lanes > 1) {
    if (array.lane != pitch) return false;
    pitch *= p.lanes;
  }
  for (int a = p.n_axes - 1; a >= 0; --a) {
    const int64_t n = extent(p.axes[a], over);
    if (n > 1 && array.pooled[a] != pitch) return false;
    pitch *= n;
  }
  return true;
}

// The same of all planes, one after the other.
inline bool follows(const Problem& p, const Array& array, int64_t item, Over over) {
  int64_t pitch = item;
  if (!plane_follows(p, array, pitch, over)) return false;
  for (int a = p.n_lead - 1; a >= 0; --a) {
    if (p.lead_shape[a] > 1 && array.lead[a] != pitch) return false;
    pitch *= p.lead_shape[a];
  }
  return true;
}

}  // namespace
}  // namespace ndpool

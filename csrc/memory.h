// Bounds of memory: how far a vector may read or write past the end of a row. Engines say which elements a vector
// would read; the answer is here. Those for AVX-512 ask only where they do not mask what lies outside a row.
//   Reading: from the first to the last element of the whole array, if no stride is negative (Readable). Elements
//   between two rows of a view are read and discarded.
//   Writing: past the end of a row only if the next element in memory is the next result of the same worker, which
//   overwrites it later. An engine counts the results that its worker still has to write; `is_contiguous` says
//   whether they lie in memory in the order in which they are written.
#pragma once

#include "plan.h"

namespace ndpool {
namespace {

// The extents of an array along the pooled axes: the outputs or the inputs of the plan.
enum class Over { outputs, inputs };

inline int64_t extent(const Axis& axis, Over over) { return over == Over::outputs ? axis.out : axis.size; }

inline int64_t plane_elements(const Problem& p, Over over = Over::inputs) {
  int64_t n = 1;
  for (int a = 0; a < p.n_axes; ++a) n *= extent(p.axes[a], over);
  return n;
}

// The memory of an array that vectors may read, past the ends of rows too: everything from the first element to
// the last, or nothing if a stride is negative.
class Readable {
public:
  Readable(const Problem& p, const Array& array, int64_t item, Over over) : begin_(array.data) {
    const char* end = array.data + item + (p.channels - 1) * array.channel;
    bool non_negative = p.channels == 1 || array.channel >= 0;
    for (int a = 0; a < p.n_axes; ++a) {
      const int64_t n = extent(p.axes[a], over);
      end += (n - 1) * array.pooled[a];
      non_negative &= n < 2 || array.pooled[a] >= 0;
    }
    for (int a = 0; a < p.n_lead; ++a) {
      end += (p.lead_shape[a] - 1) * array.lead[a];
      non_negative &= array.lead[a] >= 0;
    }
    if (non_negative) end_ = end;
  }

  // Whether the n elements at `at` may be read.
  template <class T> bool contains(const T* at, int64_t n) const {
    return reinterpret_cast<const char*>(at) >= begin_ && reinterpret_cast<const char*>(at + n) <= end_;
  }

  // Among `count` rows, `step` elements apart, those whose elements [-before, n) may be read.
  template <class T> Range rows(const T* row, int64_t before, int64_t n, int64_t step, int64_t count) const {
    const int64_t missing = reinterpret_cast<const T*>(begin_) - (row - before);
    const int64_t room = end_ ? reinterpret_cast<const T*>(end_) - (row + n) : -1;
    const int64_t lo = missing <= 0 ? 0 : step ? ceil_div(missing, step) : count;
    return {lo, room < 0 ? 0 : step ? min(count, room / step + 1) : count};
  }

private:
  const char *begin_, *end_ = nullptr;
};

inline double input_bytes(const Problem& p) {
  return double(p.planes) * double(p.channels) * double(plane_elements(p)) * double(size_of(p.x_type));
}

// Whether the input is likely to come from memory and not from a cache: engines then prefetch rows.
inline bool input_exceeds_cache(const Problem& p) { return input_bytes(p) > 12e6; }

// Prefetch distance, in elements, for rows `step` elements apart: far enough that they arrive in time, and near
// enough that they stay in the cache until they are read, although `streams` such streams are read at once.
inline int64_t prefetch_distance(int64_t step, int64_t item, int64_t streams) {
  constexpr int64_t all_bytes = 8192;
  return step * max(1, ceil_div(all_bytes / streams, max(1, step < 0 ? -step : step) * item));
}

// Whether the inputs and outputs of a call together exceed the cache.
inline bool call_exceeds_cache(const Problem& p) {
  const double outputs = double(plane_elements(p, Over::outputs)) * double(size_of(p.y_type));
  return input_bytes(p) + double(p.planes) * double(p.channels) * outputs > 24e6;
}

// Whether a plane is contiguous in memory in row-major order. The stride of an axis with one element is arbitrary
// and ignored. `pitch`: the bytes of an element; if true, the bytes of the plane on return.
inline bool plane_is_contiguous(const Problem& p, const Array& array, int64_t& pitch, Over over) {
  if (p.channels > 1) {
    if (array.channel != pitch) return false;
    pitch *= p.channels;
  }
  for (int a = p.n_axes - 1; a >= 0; --a) {
    const int64_t n = extent(p.axes[a], over);
    if (n > 1 && array.pooled[a] != pitch) return false;
    pitch *= n;
  }
  return true;
}

// Whether the whole array is contiguous in that way, plane after plane.
inline bool is_contiguous(const Problem& p, const Array& array, int64_t item, Over over) {
  int64_t pitch = item;
  if (!plane_is_contiguous(p, array, pitch, over)) return false;
  for (int a = p.n_lead - 1; a >= 0; --a) {
    if (p.lead_shape[a] > 1 && array.lead[a] != pitch) return false;
    pitch *= p.lead_shape[a];
  }
  return true;
}

}  // namespace
}  // namespace ndpool

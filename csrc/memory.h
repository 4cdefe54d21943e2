// The edges of memory: how far a vector may read or write past the end of a row. Every engine asks here.
//   Reading: up to the end of the whole array, where its strides rise. What lies between two rows of a view is read
//   and thrown away.
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

// Behind the last element of an array; null where a stride is negative, so that no vector reads past a row there.
inline const char* readable_end(const Problem& p, const Array& array, int64_t item, Over over) {
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
  return rising ? end : nullptr;
}

// Whether the elements of an array lie in memory in the order of its planes, rows and columns, without gaps. The
// stride of an axis with one element says nothing and is ignored.
inline bool follows(const Problem& p, const Array& array, int64_t item, Over over) {
  int64_t pitch = item;
  if (p.lanes > 1) {
    if (array.lane != pitch) return false;
    pitch *= p.lanes;
  }
  for (int a = p.n_axes - 1; a >= 0; --a) {
    const int64_t n = extent(p.axes[a], over);
    if (n > 1 && array.pooled[a] != pitch) return false;
    pitch *= n;
  }
  for (int a = p.n_lead - 1; a >= 0; --a) {
    if (p.lead_shape[a] > 1 && array.lead[a] != pitch) return false;
    pitch *= p.lead_shape[a];
  }
  return true;
}

}  // namespace
}  // namespace ndpool

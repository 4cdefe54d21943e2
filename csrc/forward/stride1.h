// What the engines for stride 1 share: which windows they support, and interleaved channels as one row.
#pragma once

#include <initializer_list>

#include "walk.h"

namespace ndpool {
namespace {

// The kernel size of square two-dimensional float32 windows with stride 1 and dilation `step`; 0 for all others.
static inline int64_t square_kernel(const Problem& p, int64_t step = 1) {
  if (p.n_axes != 2 || p.op == Op::lp || p.extra != Extra::none) return 0;
  if (p.x_type != Dtype::f32 || p.y_type != Dtype::f32) return 0;
  for (int a = 0; a < 2; ++a) {
    const Axis& axis = p.axes[a];
    if (!axis.regular() || axis.stride != 1 || axis.step != step || axis.kernel != p.axes[0].kernel) return 0;
  }
  return p.axes[0].kernel;
}

// Whether the rows of both arrays are contiguous, and so are their channels.
static inline bool rows_contiguous(const Problem& p, int64_t item) {
  for (const Array* array : {&p.x, &p.y})
    if (array->pooled[p.n_axes - 1] != p.channels * item || (p.channels > 1 && array->channel != item))
      return false;
  return true;
}

// The columns of packed rows as an axis: interleaved channels form one row, whose taps are `channels` elements
// apart.
static inline Axis columns(const Problem& p) {
  Axis axis = p.axes[p.n_axes - 1];
  for (int64_t* n : {&axis.size, &axis.out, &axis.origin, &axis.step}) *n *= p.channels;
  return axis;
}

// Part of a plane: output rows [o0, o1) and columns [c0, c1).
struct PlaneTile {
  const char* x;
  char* y;
  int64_t o0, o1, c0, c1;
};

// Calls f with the tiles of units that are bands of `height` output rows; tiles are `width` columns wide. Consecutive bands
// of a plane are computed as one.
template <class F>
void each_tile(const Problem& p, int64_t begin, int64_t end, int64_t height, int64_t width, F&& f) {
  const int64_t out = columns(p).out;
  for (int64_t unit = begin, n; unit < end; unit += n) {
    const int64_t q = unit / p.tiles, first = unit % p.tiles;
    n = min(p.tiles - first, end - unit);
    for (int64_t c = 0; c < out; c += width)
      f(PlaneTile{plane_of(p, p.x, q), plane_of(p, p.y, q), first * height,
                  min(p.axes[0].out, (first + n) * height), c, min(out, c + width)});
  }
}

}  // namespace
}  // namespace ndpool

// The selection table: the engine of each problem. Compiled once per instruction set (NDPOOL_ISA) with the flags
// of that set. Everything below has internal linkage, so that no function compiled for a newer instruction set
// replaces the function of the same name in another set.
//
// Forward:   by the types of the arrays (forward/selection.h); side_by_side (any window on short rows, by means of
//            another engine); axis_by_axis (large overlaps, by means of two others); norms (Lp pooling, by means of
//            the engines of sums)
// Backward:  max_rows (windows of 2 and 3), max_channels_last (small windows, many channels) and scatter (any
//            window) for max and min; fill (whole planes) and sum_rows (any window) for sums and averages; norms;
//            side_by_side (sums of short rows). `explain` calls them max_backward, max_backward_channels_last,
//            max_backward_scatter, fill, sum_backward.
#include "kernels.h"

#include <cmath>
#include <string_view>

#include "backward/selection.h"
#include "forward/axis_by_axis.h"
#include "forward/types.h"
#include "norms.h"
#include "side_by_side.h"

#define NDPOOL_TEXT(a) NDPOOL_QUOTE(a)
#define NDPOOL_QUOTE(a) #a

namespace ndpool {
namespace {

Kernel forward_along_rows(const Problem& p) {
  // The engines for float32 find the offsets of short integers, too: it holds them exactly.
  if (p.extra != Extra::none && is_integer(p.x_type) && size_of(p.x_type) <= 2)
    return NDPOOL_NAME(float32_, NDPOOL_ISA)(p);
  if (p.x_type == Dtype::f32)
    return p.y_type == Dtype::f64 ? NDPOOL_NAME(float64_, NDPOOL_ISA)(p)
                                  : NDPOOL_NAME(float32_, NDPOOL_ISA)(p);
  if (p.x_type == Dtype::f64 || p.y_type == Dtype::f64) return NDPOOL_NAME(float64_, NDPOOL_ISA)(p);
  if (!is_integer(p.x_type)) return NDPOOL_NAME(halves_, NDPOOL_ISA)(p);
  if (size_of(p.x_type) == 1) return NDPOOL_NAME(bytes_, NDPOOL_ISA)(p);
  return NDPOOL_NAME(integers_, NDPOOL_ISA)(p);
}

Kernel backward_along_rows(const Problem& p) {
  return p.x_type == Dtype::f64 ? backward_kernel<double>(p) : backward_kernel<float>(p);
}

// Lanes of a vector, the share of lanes that planes side by side fill, and the column of a type in the tables.
int64_t vector_lanes(const Problem& p) { return vector_bytes / max(4, size_of(p.x_type)); }
double lane_usage(const Problem& p) {
  const int64_t lanes = vector_lanes(p);
  return double(p.planes) / double(ceil_div(p.planes, lanes) * lanes);
}
int column_of(Dtype type) { return type == Dtype::f64 ? 1 : is_half_type(type) ? 2 : 0; }

// The largest number of inputs per row of outputs for which side_by_side is faster than an engine along the rows,
// for float32, float64 and halves, without and with offsets. Along the rows, each row of outputs has a fixed cost,
// and in the general engine each row of its windows a quarter of it; side by side, every input is
// transposed.
struct Limits {
  const char* engine;
  double values[3], offsets[3];
};
constexpr double always = 1e9;
constexpr Limits limits[] = {{"blocks", {250, 155, 450}, {1200, 450, always}},
                             {"rows", {205, 125, 340}, {always, always, always}},
                             {"integers", {200, 0, 0}, {0, 0, 0}},
                             {"sliding", {20, 8, 75}, {30, 11, 36}}};
constexpr int64_t short_row = 32;  // inputs; integers use side_by_side up to this length only

// Whether transposing a volume costs less than the reads of the direct engine, whose vectors short rows do not
// fill.
bool slow_volume(const Problem& p, double used, int64_t lanes) {
  const Axis& last = p.axes[p.n_axes - 1];
  const double taps = double(taps_of(p)), outputs = double(plane_elements(p, Over::outputs));
  const double read =
      outputs / double(last.out) * taps / double(last.kernel) * double(ceil_div(last.out, lanes) * lanes);
  return read * used >= 0.85 * (double(plane_elements(p)) + 0.1 * outputs * taps);
}

// Whether a problem is pooled axis by axis: sums for every instruction set, because it determines their order.
bool pools_axis_by_axis(const Problem& p) {
  return (specialised || p.op == Op::sum) && AxisByAxis::supports(p);
}

// Whether a volume that is pooled axis by axis is so faster side by side, where `otherwise` says so for one that is not: only
// if its rows are short, and its planes fill the vectors. The longest rows of outputs with stride 1 are those of
// float32, float64 and halves; of bytes, for few planes and for many.
bool axes_side_by_side(const Problem& p, bool otherwise) {
  constexpr double longest[] = {16, 24, 75}, longest_bytes[] = {20, 32};
  const Axis& last = p.axes[p.n_axes - 1];
  const double used = lane_usage(p);
  if (last.stride > 1) return otherwise && used >= 0.75;
  const double limit =
      size_of(p.x_type) == 1 ? longest_bytes[p.planes >= 2 * vector_lanes(p)] : longest[column_of(p.x_type)];
  return double(last.out) <= limit * used * used;
}

// Whether a forward problem is faster side by side than with an engine along the rows; engines that are not named here
// never are slower. SideBySide::supports has the limits of memory and planes. "blocks" has a fast path for
// single outputs per plane, except of bytes.
bool forward_side_by_side(std::string_view engine, const Problem& p) {
  const Axis& last = p.axes[p.n_axes - 1];
  const bool halves = is_half_type(p.x_type), offsets = p.extra != Extra::none;
  if (is_integer(p.x_type) && !offsets && last.size > short_row) return false;
  const int64_t lanes = vector_lanes(p);
  const double used = lane_usage(p);
  if (engine == "direct") {
    if (p.n_axes > 2) return !is_integer(p.x_type) && slow_volume(p, used, lanes);
    if (last.size > short_row || 2 * last.out > lanes || (halves ? 2 : 1) * p.planes < lanes) return false;
    const bool tiled = last.regular() && last.kernel == last.stride && last.size == last.out * last.stride;
    // Where windows are disjoint along all axes, the direct engine computes all planes in one strip.
    if (tiled && p.axes[0].regular() && p.axes[0].kernel == p.axes[0].stride) return last.size <= 4;
    return (!tiled && !is_integer(p.x_type)) || 3 * last.size <= p.planes;
  }
  // A single row has nothing to fold: each offset would be found window by window.
  if (engine == "blocks" && offsets && p.n_axes == 1 && last.out > 1 && last.kernel <= 64) return used >= 0.3;
  if (engine == "blocks" && offsets && unzips(last) && last.size > short_row) return false;
  if (engine == "blocks" && !offsets && size_of(p.x_type) > 1 && plane_elements(p, Over::outputs) == 1)
    return false;
  const int type = column_of(p.x_type);
  for (const Limits& limit : limits)
    if (engine == limit.engine) {
      const double outputs = double(max(1, plane_elements(p, Over::outputs)));
      double max_inputs = (offsets ? limit.offsets : limit.values)[type] * used * used;
      if (engine == "rows") max_inputs *= 1 + 0.25 * double(taps_of(p)) / double(last.kernel);
      return double(plane_elements(p)) * double(last.out) <= max_inputs * outputs;
    }
  return false;
}

// The longest rows whose gradients are faster side by side than along the rows, for one, two and three axes (rows
// of the table) and float32, float64 and halves (columns). For sums the limit is on the length times the square
// root of the inputs per output, because the gradients of large windows are written fast along a row.
constexpr double max_sum_row[3][3] = {{68, 60, 380}, {258, 90, 1750}, {1740, 590, 1750}};
constexpr double max_norm_row[3][3] = {{0, 0, 0}, {50, 19, 60}, {44, 22, 60}};

// Whether a backward problem, of sums or norms, is faster side by side. Whole planes, disjoint windows of 2, and
// 3 x 3 with stride 1 have fast paths along the rows.
bool backward_side_by_side(const Problem& p) {
  if (p.extra != Extra::none) return false;
  const bool halves = is_half_type(p.x_type);
  bool single = true, pairs = !halves, threes = !halves && p.n_axes == 2;
  for (int a = 0; a < p.n_axes; ++a) {
    const Axis& axis = p.axes[a];
    single &= axis.out == 1 && !axis.table_stride && window(axis, 0).taps == axis.size;
    pairs &= axis.regular() && axis.kernel == 2 && axis.stride == 2 && axis.size == 2 * axis.out;
    threes &= axis.regular() && axis.kernel == 3 && axis.stride == 1 && axis.step == 1;
  }
  if (single || pairs || threes) return false;
  const double used = lane_usage(p);
  const int type = column_of(p.x_type);
  const int64_t axes = min(p.n_axes, 3) - 1, size = p.axes[p.n_axes - 1].size;
  if (p.op == Op::lp) return double(size) <= max_norm_row[axes][type] * used * used;
  const double inputs = double(plane_elements(p)) / double(plane_elements(p, Over::outputs));
  return double(size) * std::sqrt(inputs) <= max_sum_row[axes][type] * used * used;
}

// Norms of large windows are left to the general engine.
Kernel forward_norms(const Problem& p) {
  const bool single = (is_half_type(p.x_type) || p.x_type == Dtype::f32) && p.y_type != Dtype::f64;
  const Kernel kernel = single ? first_supporting<Norms<float, Over::outputs>>(p)
                               : first_supporting<Norms<double, Over::outputs>>(p);
  return kernel.run ? kernel : forward_along_rows(p);
}

Kernel backward_norms(const Problem& p) {
  return p.x_type == Dtype::f64 ? kernel_of<Norms<double, Over::inputs>>()
                                : kernel_of<Norms<float, Over::inputs>>();
}

template <> Kernel SideBySide<Over::outputs>::inner_kernel(const Problem& inner) {
  if (inner.op == Op::lp) return forward_norms(inner);
  // Rows of bytes are folded faster unless windows are large.
  return pools_axis_by_axis(inner) && (size_of(inner.x_type) > 1 || AxisByAxis::overlap(inner) >= 16)
             ? kernel_of<AxisByAxis>()
             : forward_along_rows(inner);
}
template <> Kernel SideBySide<Over::inputs>::inner_kernel(const Problem& inner) {
  return inner.op == Op::lp ? backward_norms(inner) : backward_along_rows(inner);
}

Kernel forward(const Problem& p) {
  using Planes = SideBySide<Over::outputs>;
  if (p.op == Op::lp) {
    Problem sums = p;
    sums.op = Op::sum;
    if (p.y_type < Dtype::f32) sums.x_type = sums.y_type = Dtype::f32;
    return forward_side_by_side(forward_along_rows(sums).engine, sums) && Planes::supports(p)
               ? kernel_of<Planes>()
               : forward_norms(p);
  }
  const Kernel along = forward_along_rows(p);
  const bool by_axis = pools_axis_by_axis(p);
  bool beside = forward_side_by_side(along.engine, p);
  if (by_axis) beside = axes_side_by_side(p, beside);
  if (beside && Planes::supports(p)) return kernel_of<Planes>();
  return by_axis ? kernel_of<AxisByAxis>() : along;
}

Kernel backward(const Problem& p) {
  using Planes = SideBySide<Over::inputs>;
  if (backward_side_by_side(p) && Planes::supports(p)) return kernel_of<Planes>();
  return p.op == Op::lp ? backward_norms(p) : backward_along_rows(p);
}

Kernel AxisByAxis::inner_kernel(const Problem& inner) { return ndpool::forward(inner); }

template <class V, Over work> Kernel Norms<V, work>::inner_kernel(const Problem& inner) {
  return work == Over::outputs ? ndpool::forward(inner) : ndpool::backward(inner);
}

}  // namespace

extern const Kernels NDPOOL_NAME(kernels_, NDPOOL_ISA);
const Kernels NDPOOL_NAME(kernels_, NDPOOL_ISA) = {NDPOOL_TEXT(NDPOOL_ISA), forward, backward};

}  // namespace ndpool

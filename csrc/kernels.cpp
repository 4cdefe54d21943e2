// The selection table: which engine takes a problem. Compiled once per instruction set (NDPOOL_ISA names it) with that
// set's flags. Everything below has internal linkage, so that no function compiled for a newer processor can take the
// place of its namesake elsewhere.
//
// Forward:   by the types of the arrays (forward/selection.h); side_by_side (any window of short rows, by another engine);
//            norms (Lp pooling, by those of sums)
// Backward:  max_rows (windows of 2 and 3), max_channels_last (small windows, many channels) and scatter (any window) for
//            max and min; fill (whole planes) and sum_rows (any window) for sums and averages; norms; side_by_side (sums
//            of short rows)
#include "kernels.h"

#include <cmath>
#include <string_view>

#include "backward/selection.h"
#include "forward/types.h"
#include "norms.h"
#include "side_by_side.h"

#define NDPOOL_TEXT(a) NDPOOL_QUOTE(a)
#define NDPOOL_QUOTE(a) #a

namespace ndpool {
namespace {

Kernel along_rows(const Problem& p) {
  if (p.x_type == Dtype::f32)
    return p.y_type == Dtype::f64 ? NDPOOL_NAME(float64_, NDPOOL_ISA)(p)
                                  : NDPOOL_NAME(float32_, NDPOOL_ISA)(p);
  if (p.x_type == Dtype::f64 || p.y_type == Dtype::f64) return NDPOOL_NAME(float64_, NDPOOL_ISA)(p);
  if (p.x_type >= Dtype::f16) return NDPOOL_NAME(halves_, NDPOOL_ISA)(p);
  if (size_of(p.x_type) == 1) return NDPOOL_NAME(bytes_, NDPOOL_ISA)(p);
  return NDPOOL_NAME(integers_, NDPOOL_ISA)(p);
}

Kernel backward_along(const Problem& p) {
  return p.x_type == Dtype::f64 ? backward_kernel<double>(p) : backward_kernel<float>(p);
}

// Side by side or along the rows: the lanes of a vector, the share of them that has a plane, and a type's column in the tables
// below.
int64_t lanes_beside(const Problem& p) { return vector_bytes / most(4, size_of(p.x_type)); }
double lanes_used(const Problem& p) {
  const int64_t lanes = lanes_beside(p);
  return double(p.planes) / double(ceil_div(p.planes, lanes) * lanes);
}
bool is_half_type(Dtype type) { return type == Dtype::f16 || type == Dtype::bf16; }
int column_of(Dtype type) { return type == Dtype::f64 ? 1 : is_half_type(type) ? 2 : 0; }

// The most inputs per row of outputs for which planes are faster side by side than by an engine along the rows: float32,
// float64 and halves, without codes and with them. Along the rows, every row of outputs has a fixed cost, and in the general
// engine every row of its windows a quarter of it; side by side, every input has to be transposed.
struct Limits {
  const char* engine;
  double values[3], codes[3];
};
constexpr double always = 1e9;
constexpr Limits limits[] = {{"blocks", {250, 155, 450}, {1200, 450, always}},
                             {"rows", {205, 125, 340}, {always, always, always}},
                             {"sliding", {20, 8, 75}, {30, 11, 36}}};
constexpr int64_t short_row = 32;  // of integers

// Whether the direct engine reads more for a volume, with vectors that short rows do not fill, than transposing it costs.
bool slow_volume(const Problem& p, double used, int64_t lanes) {
  const Axis& last = p.axes[p.n_axes - 1];
  const double taps = double(taps_of(p)), outputs = double(plane_elements(p, Over::outputs));
  const double read =
      outputs / double(last.out) * taps / double(last.kernel) * double(ceil_div(last.out, lanes) * lanes);
  return read * used >= 0.85 * (double(plane_elements(p)) + 0.1 * outputs * taps);
}

// Whether planes are pooled faster side by side than by an engine along their rows. Whole planes, and longer rows of windows
// whose width halves a vector, have a way of their own.
bool slow_along(std::string_view engine, const Problem& p) {
  const Axis& last = p.axes[p.n_axes - 1];
  const bool halves = is_half_type(p.x_type), codes = p.extra != Extra::none;
  if (p.x_type < Dtype::f16 && last.size > short_row) return false;
  const int64_t lanes = lanes_beside(p);
  const double used = lanes_used(p);
  if (engine == "direct") {
    if (p.n_axes > 2) return p.x_type >= Dtype::f16 && slow_volume(p, used, lanes);
    const bool tiled = last.regular() && last.kernel == last.stride && last.size == last.out * last.stride;
    return p.x_type >= Dtype::f16 && last.size <= short_row && 2 * last.out <= lanes && !tiled &&
           (halves ? 2 : 1) * p.planes >= lanes;
  }
  const bool halved = last.regular() && (last.kernel == 4 || last.kernel == 8) && last.stride == last.kernel;
  if (engine == "blocks" && codes && halved && last.size > short_row) return false;
  if (engine == "blocks" && !codes && plane_elements(p, Over::outputs) == 1) return false;
  const int type = column_of(p.x_type);
  for (const Limits& limit : limits)
    if (engine == limit.engine) {
      const double outputs = double(most(1, plane_elements(p, Over::outputs)));
      double most_inputs = (codes ? limit.codes : limit.values)[type] * used * used;
      if (engine == "rows") most_inputs *= 1 + 0.25 * double(taps_of(p)) / double(last.kernel);
      return double(plane_elements(p)) * double(last.out) <= most_inputs * outputs;
    }
  return false;
}

// The longest rows whose gradients are faster side by side than along the rows, for one, two and three axes; float32, float64
// and halves. For sums this is the length times the root of the inputs per output: large windows are written fast along a
// row.
constexpr double longest_sums[3][3] = {{68, 60, 380}, {258, 90, 1750}, {1740, 590, 1750}};
constexpr double longest_norms[3][3] = {{0, 0, 0}, {50, 19, 60}, {44, 22, 60}};

// Whether the gradients of sums are faster side by side. A single window, disjoint windows of 2, and 3 x 3 with stride 1 have
// a fast way of their own along the rows.
bool short_sums(const Problem& p) {
  if (p.extra != Extra::none) return false;
  const bool halves = is_half_type(p.x_type);
  bool single = true, pairs = !halves, threes = !halves && p.n_axes == 2;
  for (int a = 0; a < p.n_axes; ++a) {
    const Axis& axis = p.axes[a];
    single &= axis.out == 1;
    pairs &= axis.regular() && axis.kernel == 2 && axis.stride == 2 && axis.size == 2 * axis.out;
    threes &= axis.regular() && axis.kernel == 3 && axis.stride == 1 && axis.step == 1;
  }
  if (single || pairs || threes) return false;
  const double used = lanes_used(p);
  const int type = column_of(p.x_type);
  const int64_t axes = least(p.n_axes, 3) - 1, size = p.axes[p.n_axes - 1].size;
  if (p.op == Op::lp) return double(size) <= longest_norms[axes][type] * used * used;
  const double inputs = double(plane_elements(p)) / double(plane_elements(p, Over::outputs));
  return double(size) * std::sqrt(inputs) <= longest_sums[axes][type] * used * used;
}

// Norms of large windows have the engine of any window alone.
Kernel norms(const Problem& p) {
  const bool single = p.x_type >= Dtype::f16 && p.x_type <= Dtype::f32 && p.y_type != Dtype::f64;
  const Kernel found =
      single ? first_serving<Norms<float, Over::outputs>>(p) : first_serving<Norms<double, Over::outputs>>(p);
  return found.run ? found : along_rows(p);
}

Kernel gradients_of_norms(const Problem& p) {
  return p.x_type == Dtype::f64 ? kernel_of<Norms<double, Over::inputs>>()
                                : kernel_of<Norms<float, Over::inputs>>();
}

template <> Kernel SideBySide<Over::outputs>::chosen(const Problem& inner) {
  return inner.op == Op::lp ? norms(inner) : along_rows(inner);
}
template <> Kernel SideBySide<Over::inputs>::chosen(const Problem& inner) {
  return inner.op == Op::lp ? gradients_of_norms(inner) : backward_along(inner);
}

Kernel forward(const Problem& p) {
  using Planes = SideBySide<Over::outputs>;
  if (p.op == Op::lp) {
    Problem sums = p;
    sums.op = Op::sum;
    if (p.y_type < Dtype::f32) sums.x_type = sums.y_type = Dtype::f32;
    return slow_along(along_rows(sums).engine, sums) && Planes::serves(p) ? kernel_of<Planes>() : norms(p);
  }
  const Kernel along = along_rows(p);
  return slow_along(along.engine, p) && Planes::serves(p) ? kernel_of<Planes>() : along;
}

Kernel backward(const Problem& p) {
  using Planes = SideBySide<Over::inputs>;
  if (short_sums(p) && Planes::serves(p)) return kernel_of<Planes>();
  return p.op == Op::lp ? gradients_of_norms(p) : backward_along(p);
}

template <class V, Over work> Kernel Norms<V, work>::chosen(const Problem& inner) {
  return work == Over::outputs ? ndpool::forward(inner) : ndpool::backward(inner);
}

}  // namespace

extern const Kernels NDPOOL_NAME(kernels_, NDPOOL_ISA);
const Kernels NDPOOL_NAME(kernels_, NDPOOL_ISA) = {NDPOOL_TEXT(NDPOOL_ISA), forward, backward};

}  // namespace ndpool

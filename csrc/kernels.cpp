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

// Short rows: planes side by side, where rows have no engine of their own. Disjoint windows that are long enough go along
// the row all the same.
constexpr int64_t short_row = 32, short_halves = 64, short_window = 4, short_windows = 13,
                  longest_blocks = 160, few_planes_taps = 20;

// The longest rows that are faster side by side than by the general engine, if there is a plane for every lane.
int64_t longest_beside(const Problem& p) {
  const bool codes = p.extra != Extra::none, picks = p.op != Op::sum, signal = p.n_axes == 1;
  if (p.x_type == Dtype::f64) return codes ? (signal ? 96 : 160) : picks ? 64 : short_row;
  if (p.x_type == Dtype::f32) return codes ? (signal ? 144 : 192) : picks ? 96 : 64;
  return p.x_type >= Dtype::f16 ? 192 : short_row;
}

// Whether windows of longer rows are so small that finding each costs more than folding it, above all with its place. Widths
// that divide a vector have a way of their own.
bool few_taps(const Problem& p) {
  const Axis& last = p.axes[p.n_axes - 1];
  if (last.size > longest_blocks || p.x_type < Dtype::f16) return false;
  if (last.regular() && (last.kernel & (last.kernel - 1)) == 0) return false;
  const bool wide_type = p.x_type == Dtype::f64;
  const int64_t taps = taps_of(p);
  if (p.extra != Extra::none) return taps <= (wide_type ? 80 : 192);
  return taps <= (wide_type ? 18 : 32);
}

// Whether an engine is slow along such rows: those that go by windows where there is hardly a vector of them, and halves
// row by row, which are converted again for every row.
bool slow_along(std::string_view engine, const Problem& p) {
  const Axis& last = p.axes[p.n_axes - 1];
  const bool halves = p.x_type == Dtype::f16 || p.x_type == Dtype::bf16;
  const int64_t lanes = vector_bytes / most(4, size_of(p.x_type));
  if (engine == "sliding" && halves)
    return 2 * p.planes >= lanes && last.size <= (p.extra == Extra::none ? short_halves : short_row);
  if (engine == "rows") return last.size <= (p.planes < lanes ? short_row : longest_beside(p));
  if (engine == "blocks" && last.size > short_row) return p.planes >= lanes && few_taps(p);
  if (last.size > short_row) return false;
  if (engine == "blocks") {
    // With few planes most lanes have none, which pays where windows are small, and for halves.
    if (p.extra != Extra::none)
      return last.kernel <= short_row && (2 * p.planes >= lanes || halves || taps_of(p) < few_planes_taps);
    if (p.planes < lanes || (p.n_axes > 2 && p.x_type == Dtype::f64)) return false;
    return last.kernel <= (last.out > 1 ? short_windows : short_window);
  }
  const bool tiled = last.regular() && last.kernel == last.stride && last.size == last.out * last.stride;
  return engine == "direct" && p.x_type >= Dtype::f16 && 2 * last.out <= lanes && !tiled &&
         (halves ? 2 : 1) * p.planes >= lanes;
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

// The backward engine: every input row gathers from the windows that hold it, in rising order of their outputs.
// No two workers write one element and no order depends on them, so the bits are the same on every run.
// On a regular last axis of small stride the gathered row is kept split by residue (position mod stride), where
// the contributions of one tap are neighbours; it is interleaved once, when stored.
#pragma once

#include "backward/max_channels_last.h"
#include "backward/max_rows.h"
#include "backward/max_tiles.h"
#include "backward/scatter.h"
#include "backward/sum_rows.h"
#include "forward/general.h"
#include "kernels.h"

namespace ndpool {
namespace {

struct Spread {};  // the whole gradient to every tap: sums, averages, Lp

template <class V, class Offset> struct Gather {
  static constexpr const char* engine = "gather";
  static constexpr bool picks = !std::is_same_v<Offset, Spread>;

  // Where the inputs of one tile are gathered: `pitch` elements for each residue of the distance from the origin.
  struct Layout {
    int64_t first, residues, pitch;  // distance of the tile's first input

    int64_t at(int64_t distance) const {
      return distance % residues * pitch + distance / residues - first / residues;
    }
  };

  static int64_t residues(const Axis& a) {
    return a.regular() && a.stride <= 16 && a.origin <= 0 ? a.stride : 1;
  }

  static Layout layout(const Problem& p, const Axis& a, int64_t i0) {
    const int64_t n = residues(a);
    return {n > 1 ? i0 - a.origin : 0, n, p.tile / n + 2};
  }

  static void prepare(Problem& p) {
    const Axis& last = p.axes[p.n_axes - 1];
    set_units(p, most(least_tile, tile_bytes / most(1, 4 * p.lanes * int64_t(sizeof(V)))));
    const int64_t gathered = residues(last) * (p.tile / residues(last) + 2) * p.lanes;
    const int64_t grads = reach(last, p.tile) * p.lanes;
    p.scratch = RowSet::bytes(p) + Scratch::bytes<V>(gathered) + 2 * Scratch::bytes<V>(grads) +
                Scratch::bytes<std::int32_t>(grads) + 2 * Scratch::bytes<V>(p.tile * p.lanes);
  }

  // x: gradient of the outputs; extra_array: offsets; y: gradient of the inputs; Lp: aux holds the outputs and
  // y, when a unit begins, the inputs.
  static void run(const Problem& p, int64_t begin, int64_t end, char* memory) {
    Scratch scratch(memory);
    Walk<Over::inputs> walk(p, begin);
    RowSet rows(p, scratch);
    const Axis& shape = p.axes[p.n_axes - 1];
    const int64_t gathered = residues(shape) * (p.tile / residues(shape) + 2) * p.lanes;
    const int64_t grads = reach(shape, p.tile) * p.lanes;
    V* sums = scratch.take<V>(gathered);
    V* grad_buffer = scratch.take<V>(grads);
    V* norms = scratch.take<V>(grads);
    Offset* offset_buffer = reinterpret_cast<Offset*>(scratch.take<std::int32_t>(grads));
    V* packed = scratch.take<V>(p.tile * p.lanes);
    V* inputs = scratch.take<V>(p.tile * p.lanes);
    const Load<V> load = loader<V>(p.x_type, false);
    const Store<V> store = storer<V>(p.y_type, false);

    for (int64_t unit = begin; unit < end; ++unit, walk.next()) {
      const int64_t i0 = walk.tile_begin(), i1 = walk.tile_end();
      const Axis& last = walk.last();
      const Layout to = layout(p, last, i0);
      for (int64_t j = 0; j < gathered; ++j) sums[j] = V(0);
      rows.covers(walk);
      const Range outs = reaching(last, i0, i1);
      for (int64_t r = 0; r < rows.count() && outs.lo < outs.hi; ++r, rows.next()) {
        const Row grad_row = walk.row(p.x, rows.index(), outs.lo, outs.hi);
        const int64_t shift = outs.lo * p.lanes;
        const V* grad = grad_buffer - shift;
        if (stored_as<V>(p.x_type) && picks && grad_row.packed(sizeof(V)))
          grad = reinterpret_cast<const V*>(grad_row.data) - shift;
        else
          load(grad_row, grad_buffer);
        if constexpr (picks) {
          const Row offset_row = walk.row(p.extra_array, rows.index(), outs.lo, outs.hi);
          const Offset* offsets = reinterpret_cast<const Offset*>(offset_row.data) - shift;
          if (!offset_row.packed(sizeof(Offset))) {
            each<Offset>(offset_row, [&](Offset& o, int64_t j) { offset_buffer[j] = o; });
            offsets = offset_buffer - shift;
          }
          const int64_t code = int64_t(rows.code(p.axes));
          spread(last, to, outs, i0, i1, p.lanes, sums,
                 [&](int64_t j, int64_t tap) { return offsets[j] == Offset(code + tap) ? grad[j] : V(0); });
        } else {
          scale(p, walk, rows.index(), outs, grad_buffer, norms);
          spread(last, to, outs, i0, i1, p.lanes, sums, [&](int64_t j, int64_t) { return grad[j]; });
        }
      }
      finish(p, walk, to, i0, i1, sums, packed, inputs, store);
    }
  }

private:
  // The most outputs that touch one tile of inputs.
  static int64_t reach(const Axis& a, int64_t tile) {
    if (!a.regular()) return most(1, a.out);
    return most(1, least(a.out, (tile + (a.kernel - 1) * a.step) / a.stride + 2));
  }

  // The outputs with a tap in [i0, i1), padded to whole windows.
  static Range reaching(const Axis& a, int64_t i0, int64_t i1) {
    if (a.out == 0) return {0, 0};
    if (a.regular())
      return {most(0, ceil_div(i0 - a.origin - (a.kernel - 1) * a.step, a.stride)),
              least(a.out, floor_div(i1 - 1 - a.origin, a.stride) + 1)};
    int64_t hi = RowSet::first_ending_after(a, i0);
    const int64_t lo = hi;
    while (hi < a.out && a.starts[hi] < i1) ++hi;
    return {lo, hi};
  }

  // Adds value(element, tap) to the input under every tap. Taps fall while outputs rise, so each input adds up in
  // rising order of its outputs.
  template <class F> static void spread(const Axis& a, const Layout& to, Range outs, int64_t i0, int64_t i1,
                                        int64_t lanes, V* sums, F&& value) {
    if (to.residues == 1 && !(a.regular() && a.stride == 1 && a.origin <= 0)) {
      for (int64_t o = outs.lo; o < outs.hi; ++o) {
        const Window w = window(a, o);
        const int64_t end = least(w.taps, ceil_div(i1 - w.start, a.step));
        for (int64_t t = most(0, ceil_div(i0 - w.start, a.step)); t < end; ++t) {
          V* at = sums + (w.start + t * a.step - i0) * lanes;
          for (int64_t c = 0; c < lanes; ++c) at[c] += value(o * lanes + c, w.lead + t);
        }
      }
      return;
    }
    for (int64_t t = a.kernel - 1; t >= 0; --t) {
      const Range r = outputs_with_tap(a, t, i0, i1);
      if (r.lo >= r.hi) continue;
      const int64_t distance = r.lo * a.stride + t * a.step;
      V* __restrict at = sums + (to.residues == 1 ? distance + a.origin - i0 : to.at(distance)) * lanes;
      const int64_t from = r.lo * lanes, n = (r.hi - r.lo) * lanes;
      for (int64_t j = 0; j < n; ++j) at[j] += value(from + j, t);
    }
  }

  // Gradients of means and norms, from those of their results.
  static void scale(const Problem& p, const Walk<Over::inputs>& walk, const int64_t* index, Range outs,
                    V* grad, V* norms) {
    if (!p.divide) return;
    int64_t outer = 1, taps = 1;
    for (int a = 0; a < walk.outer(); ++a) outer *= share(walk.axis(a), index[a]);
    for (int a = 0; a < p.n_axes; ++a) taps *= p.axes[a].uncropped;
    if (p.op == Op::lp) loader<V>(p.y_type, false)(walk.row(p.aux, index, outs.lo, outs.hi), norms);
    for (int64_t o = outs.lo; o < outs.hi; ++o) {
      const V by = V(p.divisor ? p.divisor : outer * share(walk.last(), o));
      for (int64_t c = 0, j = (o - outs.lo) * p.lanes; c < p.lanes; ++c, ++j) {
        grad[j] /= by;
        if (p.op == Op::lp)
          grad[j] = norms[j] == 0 ? V(0) : grad[j] * V(taps) * power(norms[j], V(1 - p.norm));
      }
    }
  }

  static void finish(const Problem& p, const Walk<Over::inputs>& walk, const Layout& to, int64_t i0,
                     int64_t i1, V* sums, V* packed, V* inputs, Store<V> store) {
    const Row y = walk.row(p.y, i0, i1);
    V* dst = writes_directly<V>(p, y) && p.op != Op::lp ? reinterpret_cast<V*>(y.data) : packed;
    if (to.residues == 1) {
      for (int64_t j = 0; j < (i1 - i0) * p.lanes; ++j) dst[j] = sums[j];
    } else {
      interleave(to, i1 - i0, p.lanes, sums, dst);
    }
    if (p.op == Op::lp) {
      loader<V>(p.y_type, false)(y, inputs);
      for (int64_t j = 0; j < (i1 - i0) * p.lanes; ++j)
        dst[j] = dst[j] == 0 ? V(0) : dst[j] * power(inputs[j], V(p.norm - 1));
    }
    if (dst == packed) store(packed, y);
  }

  static void interleave(const Layout& from, int64_t n, int64_t lanes, const V* sums, V* dst) {
    if (from.residues == 2 && lanes == 1) {
      const V *a = sums + from.at(from.first), *b = sums + from.at(from.first + 1);
      for (int64_t j = 0; j < n / 2; ++j) {
        dst[2 * j] = a[j];
        dst[2 * j + 1] = b[j];
      }
      if (n % 2) dst[n - 1] = a[n / 2];
      return;
    }
    for (int64_t j = 0; j < n; ++j) {
      const V* at = sums + from.at(from.first + j) * lanes;
      for (int64_t c = 0; c < lanes; ++c) dst[j * lanes + c] = at[c];
    }
  }
};

// Whether windows are large: then it is cheaper to visit outputs than inputs.
inline bool few_outputs(const Problem& p) {
  double inputs = 1, outputs = 16;
  for (int a = 0; a < p.n_axes; ++a) inputs *= double(p.axes[a].size), outputs *= double(p.axes[a].out);
  return inputs >= outputs;
}

template <class V, class Offset> Kernel max_backward(const Problem& p) {
  if (!specialised || few_outputs(p) || (p.lanes > 1 && p.lanes < wide<V>)) {
    if (Scatter<V, V, Offset>::serves(p)) return kernel_of<Scatter<V, V, Offset>>();
    if constexpr (std::is_same_v<V, float>) {
      if (Scatter<V, bf16, Offset>::serves(p)) return kernel_of<Scatter<V, bf16, Offset>>();
      if (Scatter<V, f16, Offset>::serves(p)) return kernel_of<Scatter<V, f16, Offset>>();
    }
  }
  if constexpr (specialised) {
    if (MaxBackwardChannelsLast<V, V, Offset>::serves(p))
      return kernel_of<MaxBackwardChannelsLast<V, V, Offset>>();
    if constexpr (std::is_same_v<V, float>) {
      if (MaxBackwardChannelsLast<V, bf16, Offset>::serves(p))
        return kernel_of<MaxBackwardChannelsLast<V, bf16, Offset>>();
      if (MaxBackwardChannelsLast<V, f16, Offset>::serves(p))
        return kernel_of<MaxBackwardChannelsLast<V, f16, Offset>>();
    }
    if (ScatterTiles<V, Offset>::serves(p)) return kernel_of<ScatterTiles<V, Offset>>();
  }
  return kernel_of<Gather<V, Offset>>();
}

// The engine for a problem whose gradients add up in V.
template <class V> Kernel backward_kernel(const Problem& p) {
  if constexpr (specialised) {
    if (MaxBackwardRows<V, V>::serves(p)) return kernel_of<MaxBackwardRows<V, V>>();
    if constexpr (std::is_same_v<V, float>)
      if (MaxBackwardRows<V, bf16>::serves(p)) return kernel_of<MaxBackwardRows<V, bf16>>();
  }
  if (p.extra == Extra::offset8) return max_backward<V, std::uint8_t>(p);
  if (p.extra == Extra::offset32) return max_backward<V, std::int32_t>(p);
  return SumBackward<V>::serves(p) ? kernel_of<SumBackward<V>>() : kernel_of<Gather<V, Spread>>();
}

}  // namespace
}  // namespace ndpool

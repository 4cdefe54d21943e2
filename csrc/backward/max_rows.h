// The backward of max and min for rows of windows of 2 and 3 with stride 1 or 2, called from backward/selection.h.
// Every input row gathers from the rows of outputs that cover it, in rising order: PyTorch's order to the bit.
// Along a row, the inputs at even and at odd distances from the origin find their windows at fixed distances; an
// output contributes where its offset is that of the input in its window. Other windows and channels-last arrays
// stay out.
//
// By scattering, the gradients of VGG's 2 x 2 pooling at (8, 256, 56, 56) take 2.2 times as long, those of
// ResNet's 3 x 3 pooling at (8, 64, 112, 112) twice as long.
#pragma once

#include "backward/bands.h"

namespace ndpool {
namespace {

// S: storage type of the gradients; V: type of their sums.
template <class V, class S> class MaxBackwardRows {
  static constexpr int N = wide<V>;
  using Vn = Vec<V, N>;
  using C = UnsignedLike<V>;
  using Cn = Vec<C, N>;
  using Offset = std::uint8_t;
  static constexpr int max_sources = 16;  // rows of outputs that cover an input row
  static constexpr int margin = 8;        // outputs read before and after a row
  static constexpr int64_t widest_tile = 1 << 12;

  // A row of outputs that covers the input row: its gradients and offsets, and the offset of its first tap there.
  struct Source {
    const S* grad;
    const Offset* offsets;
    C tap;
  };

public:
  static constexpr const char* engine = "max_backward";

  static bool supports(const Problem& p) {
    const Axis& last = p.axes[p.n_axes - 1];
    if (p.extra != Extra::offset8 || p.channels > 1 || !last.regular() || last.stride > 2 ||
        last.kernel < 2 || last.kernel > 3 || (last.kernel - 1) * last.step > margin * last.stride ||
        !stored_as<S>(p.x_type) || !stored_as<S>(p.y_type))
      return false;
    // For short rows, and windows that span several slabs, scattering is faster.
    if (last.size < min_row(last) || count_slabs(p) > 1) return false;
    if (p.n_axes > 2 && last.size < 4 * N) return false;
    int64_t rows = 1;
    if (p.n_axes > 1) {
      const Axis& a = p.axes[p.n_axes - 2];
      rows = max_covers(a, p.planes);
      if (a.regular()) rows = min(rows, a.kernel);  // dilated windows span inputs without a tap there
    }
    return rows <= (last.stride == 1 ? 3 : max_sources);
  }

  // The shortest rows for which gathering is faster than scattering.
  static int64_t min_row(const Axis& last) {
    if (last.kernel == 2 && last.stride == 2 && last.step == 1) return is_half<S> ? 96 : 10;
    if (sizeof(V) > 4) return INT64_MAX;
    if (is_half<S> || last.step > 1) return 96;
    return last.stride == 2 ? 64 : 48;
  }

  static void prepare(Problem& p) {
    merge_planes(p);
    add_row_axis(p);
    set_units(p, widest_tile);
    char begin;  // never used as memory: only the size counts
    MaxBackwardRows(p, &begin, p.scratch);
  }

  static void run(const Problem& p, int64_t begin, int64_t end, char* memory) {
    Walk<Over::inputs> walk(p, begin);
    int64_t unused = 0;
    MaxBackwardRows worker(p, memory, unused);
    const int64_t size = p.axes[p.n_axes - 2].size;
    for (int64_t unit = begin; unit < end;) {
      const int64_t h0 = walk.at(p.n_axes - 2), h1 = min(size, h0 + end - unit);
      worker.slab(walk, h0, h1, end - unit);
      unit += h1 - h0;
      if (unit < end) walk.next_slab();
    }
  }

private:
  MaxBackwardRows(const Problem& p, char* memory, int64_t& bytes)
      : p_(p), contiguous_(rows_contiguous<S>(p)),
        direct_(contiguous_ || p.y.pooled[p.n_axes - 1] == sizeof(S)),
        unit_stride_(p.x.pooled[p.n_axes - 1] == sizeof(S) && p.extra_array.pooled[p.n_axes - 1] == 1),
        readable_grads_(p, p.x, sizeof(S), Over::outputs),
        readable_offsets_(p, p.extra_array, 1, Over::outputs), row_elements_(p.tile + 2 * margin + 2 * N) {
    Scratch scratch(memory);
    row_ = scratch.take<S>(p.tile + 2 * N);
    invalid_ = scratch.take<C>(row_elements_) + margin;
    grads_ = scratch.take<S>(row_elements_ * max_sources);
    offsets_ = scratch.take<Offset>(row_elements_ * max_sources);
    bytes = scratch.take<char>(0) - memory;
  }

  void enter_tile(const Axis& last, int64_t i0, int64_t i1) {
    tile_ = i0;
    width_ = i1 - i0;
    odd_ = (i0 - last.origin) & 1;
    // The output whose window begins at the tile's first input or, with stride 2, perhaps one input before it.
    first_ = last.stride == 2 ? floor_div(i0 - last.origin, 2) : i0 - last.origin;
    out_ = last.out;
    in_vectors(row_elements_, [this](int64_t k) {
      const int64_t j = k - margin;
      invalid_[j] = first_ + j >= 0 && first_ + j < out_ ? C(0) : ~C(0);
    });
    step_ = last.step;
    all_inside_ = last.kernel == 2 && last.stride == 2 && step_ == 1 && !odd_ && first_ >= 0 &&
                  2 * (out_ - first_) >= width_;
  }

  // Input rows [h0, h1) of the walk's slab; from h0 on, this worker writes `left` rows.
  void slab(const Walk<Over::inputs>& walk, int64_t h0, int64_t h1, int64_t left) {
    const Axis &rows = walk.axis(p_.n_axes - 2), &last = walk.last();
    if (walk.tile_begin() != tile_) enter_tile(last, walk.tile_begin(), walk.tile_end());
    Slab slabs[max_slabs];
    const int n = slabs_around(p_, walk, slabs);
    const int64_t y_pitch = p_.y.pooled[p_.n_axes - 2];
    char* y = walk.plane(p_.y) + tile_ * p_.y.pooled[p_.n_axes - 1];
    for (int a = 0; a + 1 < p_.n_axes; ++a) y += (a + 2 == p_.n_axes ? h0 : walk.at(a)) * p_.y.pooled[a];
    const SlabRows at{walk, slabs, n, h0, y, left};
    int64_t lo = h0, hi = h0;  // rows [lo, hi) are the strip, which needs no checks at the edges
    const int64_t stride = last.stride, above = (rows.kernel - 1) / stride;
    if (n == 1 && contiguous_ && unit_stride_ && rows.regular() && rows.step == 1 && step_ == 1 &&
        rows.stride == stride && rows.kernel == last.kernel && (stride == 2 || last.kernel == 3)) {
      const int64_t tail_rows = 1 + (width_ + 2 * N - 1) / width_;
      int64_t qa = max(above, ceil_div(h0 - rows.origin, stride)),
              qb = min(rows.out, floor_div(min(h1, h0 + left - tail_rows) - rows.origin, stride));
      while (qa < qb && !readable(grad_at(walk, slabs[0], qa - above), offset_at(walk, slabs[0], qa - above)))
        ++qa;
      while (qa < qb && !readable(grad_at(walk, slabs[0], qb - 1), offset_at(walk, slabs[0], qb - 1))) --qb;
      if (qa < qb) {
        lo = rows.origin + stride * qa;
        hi = rows.origin + stride * qb;
        const Strip strip{reinterpret_cast<const S*>(grad_at(walk, slabs[0], qa)),
                          reinterpret_cast<const Offset*>(offset_at(walk, slabs[0], qa)),
                          p_.x.pooled[p_.n_axes - 2] / int64_t(sizeof(S)),
                          p_.extra_array.pooled[p_.n_axes - 2],
                          qb - qa,
                          C(slabs[0].offset * rows.kernel * last.kernel),
                          reinterpret_cast<S*>(y + (lo - h0) * y_pitch)};
        row_by_row(at, h0, lo);
        if (stride == 1)
          run_strip<1, 3, 1>(strip);
        else
          all_inside_                ? run_strip<2, 2, 0>(strip)
          : last.kernel == 2 && odd_ ? run_strip<2, 2, 2>(strip)
          : last.kernel == 2         ? run_strip<2, 2, 1>(strip)
          : odd_                     ? run_strip<2, 3, 2>(strip)
                                     : run_strip<2, 3, 1>(strip);
      }
    }
    row_by_row(at, hi, h1);
  }

  // Interior input rows: `stride` of them for each row of outputs; they gather from that row and those above it.
  struct Strip {
    const S* grad;
    const Offset* offsets;
    int64_t grad_pitch, offset_pitch, count;
    C first;
    S* y;
  };

  template <int Stride, int Kernel, int Mode> __attribute__((noinline)) void run_strip(const Strip& s) const {
    const S* grad = s.grad;
    const Offset* offsets = s.offsets;
    const int64_t width = width_;
    S* y = s.y;
    // The input row whose tap in row q of the outputs is `residue`; it gathers from that row and those above that
    // cover it.
    const auto do_row = [&](auto residue) __attribute__((always_inline)) {
      constexpr int first_tap = decltype(residue)::value, count = (Kernel - 1 - first_tap) / Stride + 1;
      Source sources[count];
      for (int e = 0; e < count; ++e) {
        const int up = count - 1 - e;
        sources[e] = {grad - up * s.grad_pitch, offsets - up * s.offset_pitch,
                      C(s.first + C((first_tap + up * Stride) * Kernel))};
      }
      for (int64_t j = 0; Stride * j < width; j += N) {
        Vn first, second;
        block<Stride, Kernel, Mode, count>(sources, 0, j, first, second);
        store<Stride>(y + Stride * j, first, second, width - Stride * j);
      }
      y += width;
    };
    for (int64_t q = 0; q < s.count; ++q, grad += s.grad_pitch, offsets += s.offset_pitch) {
      do_row(std::integral_constant<int, 0>{});
      if constexpr (Stride == 2) do_row(std::integral_constant<int, 1>{});
    }
  }

  // A slab of inputs from row h0 on, and the slabs of outputs that it gathers from.
  struct SlabRows {
    const Walk<Over::inputs>& walk;
    const Slab* slabs;
    int n;
    int64_t h0;
    char* y;
    int64_t left;
  };

  // Input rows [from, to) of a slab, one at a time.
  void row_by_row(const SlabRows& s, int64_t from, int64_t to) const {
    if (from >= to) return;
    const Axis &rows = s.walk.axis(p_.n_axes - 2), &last = s.walk.last();
    Cover cover(rows, from);
    char* y = s.y + (from - s.h0) * p_.y.pooled[p_.n_axes - 2];
    int64_t left = s.left - (from - s.h0);
    for (int64_t h = from; h < to; ++h, cover.next(), --left, y += p_.y.pooled[p_.n_axes - 2]) {
      Source sources[max_sources];
      int m = 0;
      for (int k = 0; k < s.n; ++k) {
        const auto add = [&](int64_t o, int64_t tap) {
          sources[m] = source(s.walk, s.slabs[k], o, m);
          sources[m++].tap = C((s.slabs[k].offset * rows.kernel + tap) * last.kernel);
        };
        if (!rows.regular() || rows.stride > 2) {
          for (int64_t o = cover.lo; o < cover.hi; ++o)
            if (cover.has_tap(o)) add(o, cover.tap(o));
          continue;
        }
        for (int64_t t = rows.kernel - 1; t >= 0; --t) {  // avoids divisions
          const int64_t distance = h - rows.origin - t * rows.step, o = distance >> (rows.stride - 1);
          if (o >= 0 && o < rows.out && o << (rows.stride - 1) == distance) add(o, t);
        }
      }
      if (step_ != 1) {
        if (last.stride == 1)
          last.kernel == 2 ? row_of<1, 2, 3, 0>(sources, m, y, left)
                           : row_of<1, 3, 3, 0>(sources, m, y, left);
        else if (last.kernel == 2)
          odd_ ? row_of<2, 2, 4, 0>(sources, m, y, left) : row_of<2, 2, 3, 0>(sources, m, y, left);
        else
          odd_ ? row_of<2, 3, 4, 0>(sources, m, y, left) : row_of<2, 3, 3, 0>(sources, m, y, left);
      } else if (last.stride == 1)
        last.kernel == 2 ? row<1, 2, 1>(sources, m, y, left) : row<1, 3, 1>(sources, m, y, left);
      else if (last.kernel == 2)
        all_inside_ ? row<2, 2, 0>(sources, m, y, left)
        : odd_      ? row<2, 2, 2>(sources, m, y, left)
                    : row<2, 2, 1>(sources, m, y, left);
      else
        odd_ ? row<2, 3, 2>(sources, m, y, left) : row<2, 3, 1>(sources, m, y, left);
    }
  }

  const char* grad_at(const Walk<Over::inputs>& walk, const Slab& slab, int64_t o) const {
    const int a = p_.n_axes - 1;
    return walk.plane(p_.x) + slab.grad + o * p_.x.pooled[a - 1] + first_ * p_.x.pooled[a];
  }
  const char* offset_at(const Walk<Over::inputs>& walk, const Slab& slab, int64_t o) const {
    const int a = p_.n_axes - 1;
    return walk.plane(p_.extra_array) + slab.extra + o * p_.extra_array.pooled[a - 1] +
           first_ * p_.extra_array.pooled[a];
  }
  bool readable(const char* grad, const char* offset) const {
    const int64_t reach = margin + width_ + 2 * N;
    return readable_offsets_.contains(offset - margin, reach) &&
           readable_grads_.contains(reinterpret_cast<const S*>(grad) - margin, reach);
  }

  // A row of outputs that vectors may read with its margins: in place, or a copy.
  Source source(const Walk<Over::inputs>& walk, const Slab& slab, int64_t o, int m) const {
    const int64_t a = p_.n_axes - 1, lo = max(0, first_ - margin),
                  hi = min(out_, first_ + row_elements_ - 2 * margin - N);
    const char *grad = grad_at(walk, slab, o), *offset = offset_at(walk, slab, o);
    if (unit_stride_ && readable(grad, offset))
      return {reinterpret_cast<const S*>(grad), reinterpret_cast<const Offset*>(offset), 0};
    S* grads = grads_ + m * row_elements_ + margin;
    Offset* offsets = offsets_ + m * row_elements_ + margin;
    for (int64_t j = lo - first_; j < hi - first_; ++j) {
      grads[j] = *reinterpret_cast<const S*>(grad + j * p_.x.pooled[a]);
      offsets[j] = Offset(offset[j * p_.extra_array.pooled[a]]);
    }
    return {grads, offsets, 0};
  }

  // One input row. Mode 0: every output read belongs to the row; 1, 2: some may not, and the first input is at an
  // even (odd) distance from the origin; 3, 4: the same for dilated windows.
  template <int Stride, int Kernel, int Mode>
  void row(const Source* sources, int n, char* y, int64_t left) const {
    if (n == 1)
      row_of<Stride, Kernel, Mode, 1>(sources, n, y, left);
    else if (n == 2 && Kernel > 2)
      row_of<Stride, Kernel, Mode, 2>(sources, n, y, left);
    else
      row_of<Stride, Kernel, Mode, 0>(sources, n, y, left);
  }

  // Gathers N inputs, or N pairs of inputs, from the outputs at j.
  template <int Stride, int Kernel, int Mode, int Count> __attribute__((always_inline)) inline void
  block(const Source* sources, int n, int64_t j, Vn& first, Vn& second) const {
    first = second = Vn{};
    for (int e = 0; e < (Count ? Count : n); ++e) {
      const auto take = [&](int64_t at, int tap, Vn& sum) __attribute__((always_inline)) {
        Cn offsets = widened<C, N>(sources[e].offsets + at);
        if constexpr (Mode) offsets |= read<C, N>(invalid_ + at);
        sum += offsets == C(sources[e].tap + C(tap)) ? read_as<V, N>(sources[e].grad + at) : Vn{};
      };
      constexpr int even = Mode == 2 || Mode == 4;  // shift of the outputs of inputs at even distances
      Vn &evens = even ? second : first, &odds = even ? first : second;
      if constexpr (Stride == 1) {
        for (int t = Kernel - 1; t >= 0; --t) take(j - t * (Mode == 3 ? step_ : 1), t, first);
      } else if constexpr (Mode > 2) {
        for (int t = Kernel - 1; t >= 0; --t)
          if (const int64_t distance = t * step_; distance & 1)
            take(j - distance / 2, t, odds);
          else
            take(j + even - distance / 2, t, evens);
      } else {
        if constexpr (Kernel == 3) take(j + even - 1, 2, evens);
        take(j + even, 0, evens);
        take(j, 1, odds);
      }
    }
  }

  template <int Stride, int Kernel, int Mode, int Count> __attribute__((always_inline)) inline void
  row_of(const Source* sources, int n, char* y, int64_t left) const {
    const int64_t width = width_;
    // Writes to the gradient, or to row_ where the last vectors of a row must not write its tail.
    const bool writes_tail = contiguous_ && left * width >= width + 2 * N;
    const int64_t direct = writes_tail ? width : direct_ ? width / (Stride * N) * (Stride * N) : 0;
    S* const dst = reinterpret_cast<S*>(y);
    for (int64_t j = 0; Stride * j < width; j += N) {
      S* const to = (Stride * j < direct ? dst : row_) + Stride * j;
      Vn first, second;
      block<Stride, Kernel, Mode, Count>(sources, n, j, first, second);
      store<Stride>(to, first, second, width - Stride * j);
    }
    const int64_t stride = p_.y.pooled[p_.n_axes - 1];
    for (int64_t j = direct; j < width; ++j) *reinterpret_cast<S*>(y + j * stride) = row_[j];
  }

  // Stores N inputs, or N pairs of inputs; `left` inputs of the row remain.
  template <int Stride>
  __attribute__((always_inline)) static inline void store(S* to, Vn first, Vn second, int64_t left) {
    if constexpr (Stride == 1) {
      write_as<N, false, S, V>(to, first);
    } else {
      write_as<N, false, S, V>(to, zip_lo(first, second));
      if (left > N) write_as<N, false, S, V>(to + N, zip_hi(first, second));
    }
  }

  const Problem& p_;
  bool contiguous_, direct_, unit_stride_, odd_ = false, all_inside_ = false;
  const Readable readable_grads_, readable_offsets_;
  int64_t row_elements_, width_ = 0, tile_ = -1, first_ = 0, out_ = 0, step_ = 1;
  S *row_, *grads_;
  C* invalid_;
  Offset* offsets_;
};

}  // namespace
}  // namespace ndpool

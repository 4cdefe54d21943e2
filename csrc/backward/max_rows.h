// The backward of maxima and minima for small windows: every input row gathers from the rows of outputs that hold it,
// in rising order, PyTorch's order to the bit. Along a row the inputs at even and at odd distances from the origin
// find their windows at fixed places; an output counts where its offset is the input's own place in its window.
// For windows of 2 and 3 with stride 1 or 2 over rows: the gradients of VGG's 2 x 2 pooling at (8, 256, 56, 56) take 2.2
// times as long by scattering, those of ResNet's 3 x 3 pooling at (8, 64, 112, 112) twice as long.
#pragma once

#include "backward/bands.h"

namespace ndpool {
namespace {

// S is what gradients are stored as, V what they add up in.
template <class V, class S> class MaxBackwardRows {
  static constexpr int N = wide<V>;
  using Vn = Vec<V, N>;
  using C = UnsignedLike<V>;
  using Cn = Vec<C, N>;
  using Offset = std::uint8_t;
  static constexpr int most_listed = 16,
                       margin = 8;  // rows around an input; outputs read beside a row
  static constexpr int64_t widest_tile = 1 << 12;

  // A row of outputs that holds the input row: its gradients and offsets, and the code of its first tap there.
  struct Listed {
    const S* grad;
    const Offset* offset;
    C code;
  };

public:
  static constexpr const char* engine = "max_backward";

  static bool serves(const Problem& p) {
    const Axis& last = p.axes[p.n_axes - 1];
    if (p.extra != Extra::offset8 || p.lanes > 1 || !last.regular() || last.stride > 2 || last.kernel < 2 ||
        last.kernel > 3 || (last.kernel - 1) * last.step > margin * last.stride || !stored_as<S>(p.x_type) ||
        !stored_as<S>(p.y_type))
      return false;
    // Short rows and windows of several slabs are scattered faster.
    if (last.size < least_row(last) || most_slabs(p) > 1) return false;
    if (p.n_axes > 2 && last.size < 4 * N) return false;
    int64_t rows = 1;
    if (p.n_axes > 1) {
      const Axis& a = p.axes[p.n_axes - 2];
      rows = most_covers(a, p.planes);
      if (a.regular()) rows = least(rows, a.kernel);  // of dilated windows not all hold what they reach over
    }
    return rows <= (last.stride == 1 ? 3 : most_listed);
  }

  // The shortest rows that are gathered faster than they are scattered.
  static int64_t least_row(const Axis& last) {
    if (last.kernel == 2 && last.stride == 2 && last.step == 1) return is_half<S> ? 96 : 10;
    if (sizeof(V) > 4) return INT64_MAX;
    if (is_half<S> || last.step > 1) return 96;
    return last.stride == 2 ? 64 : 48;
  }

  static void prepare(Problem& p) {
    merge_planes(p);
    add_row_axis(p);
    set_units(p, widest_tile);
    char begin;  // only what is taken is of interest
    MaxBackwardRows(p, &begin, p.scratch);
  }

  static void run(const Problem& p, int64_t begin, int64_t end, char* memory) {
    Walk<Over::inputs> walk(p, begin);
    int64_t unused = 0;
    MaxBackwardRows worker(p, memory, unused);
    const int64_t size = p.axes[p.n_axes - 2].size;
    for (int64_t unit = begin; unit < end;) {
      const int64_t h0 = walk.at(p.n_axes - 2), h1 = least(size, h0 + end - unit);
      worker.slab(walk, h0, h1, end - unit);
      unit += h1 - h0;
      if (unit < end) walk.next_slab();
    }
  }

private:
  MaxBackwardRows(const Problem& p, char* memory, int64_t& bytes)
      : p_(p), follow_(rows_follow<S>(p)), direct_(follow_ || p.y.pooled[p.n_axes - 1] == sizeof(S)),
        reads_(p.x.pooled[p.n_axes - 1] == sizeof(S) && p.extra_array.pooled[p.n_axes - 1] == 1),
        readable_grads_(p, p.x, sizeof(S), Over::outputs),
        readable_offsets_(p, p.extra_array, 1, Over::outputs), held_(p.tile + 2 * margin + 2 * N) {
    Scratch scratch(memory);
    row_ = scratch.take<S>(p.tile + 2 * N);
    invalid_ = scratch.take<C>(held_) + margin;
    grads_ = scratch.take<S>(held_ * most_listed);
    offsets_ = scratch.take<Offset>(held_ * most_listed);
    bytes = scratch.take<char>(0) - memory;
  }

  void enter_tile(const Axis& last, int64_t i0, int64_t i1) {
    tile_ = i0;
    width_ = i1 - i0;
    shift_ = (i0 - last.origin) & 1;
    // The output of which the tile's first input is at the last tap but (kernel - stride)
    first_ = last.stride == 2 ? floor_div(i0 - last.origin, 2) : i0 - last.origin;
    out_ = last.out;
    in_vectors(held_, [this](int64_t k) {
      const int64_t j = k - margin;
      invalid_[j] = first_ + j >= 0 && first_ + j < out_ ? C(0) : ~C(0);
    });
    step_ = last.step;
    whole_ = last.kernel == 2 && last.stride == 2 && step_ == 1 && !shift_ && first_ >= 0 &&
             2 * (out_ - first_) >= width_;
  }

  // Input rows [h0, h1) of the walk's slab; `left` rows from the first of them on are this worker's to write.
  void slab(const Walk<Over::inputs>& walk, int64_t h0, int64_t h1, int64_t left) {
    const Axis &rows = walk.axis(p_.n_axes - 2), &last = walk.last();
    if (walk.tile_begin() != tile_) enter_tile(last, walk.tile_begin(), walk.tile_end());
    Slab slabs[max_slabs];
    const int n = slabs_around(p_, walk, slabs);
    const int64_t y_pitch = p_.y.pooled[p_.n_axes - 2];
    char* y = walk.plane(p_.y) + tile_ * p_.y.pooled[p_.n_axes - 1];
    for (int a = 0; a + 1 < p_.n_axes; ++a) y += (a + 2 == p_.n_axes ? h0 : walk.at(a)) * p_.y.pooled[a];
    const Place at{walk, slabs, n, h0, y, left};
    int64_t lo = h0,
            hi = h0;  // rows [lo, hi) lie inside the plane and the arrays: the strip
    const int64_t stride = last.stride, above = (rows.kernel - 1) / stride;
    if (n == 1 && follow_ && reads_ && rows.regular() && rows.step == 1 && step_ == 1 &&
        rows.stride == stride && rows.kernel == last.kernel && (stride == 2 || last.kernel == 3)) {
      const int64_t spilled = 1 + (width_ + 2 * N - 1) / width_;
      int64_t qa = most(above, ceil_div(h0 - rows.origin, stride)),
              qb = least(rows.out, floor_div(least(h1, h0 + left - spilled) - rows.origin, stride));
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
                          C(slabs[0].code * rows.kernel * last.kernel),
                          reinterpret_cast<S*>(y + (lo - h0) * y_pitch)};
        one_by_one(at, h0, lo);
        if (stride == 1)
          run_strip<1, 3, 1>(strip);
        else
          whole_                       ? run_strip<2, 2, 0>(strip)
          : last.kernel == 2 && shift_ ? run_strip<2, 2, 2>(strip)
          : last.kernel == 2           ? run_strip<2, 2, 1>(strip)
          : shift_                     ? run_strip<2, 3, 2>(strip)
                                       : run_strip<2, 3, 1>(strip);
      }
    }
    one_by_one(at, hi, h1);
  }

  // Input rows inside a plane: `stride` of them for each row of outputs, gathering from it and from those above.
  struct Strip {
    const S* grad;
    const Offset* offset;
    int64_t grad_pitch, offset_pitch, count;
    C code;
    S* y;
  };

  template <int Stride, int Kernel, int Mode> __attribute__((noinline)) void run_strip(const Strip& s) const {
    const S* grad = s.grad;
    const Offset* offset = s.offset;
    const int64_t width = width_;
    S* y = s.y;
    // The row at distance `residue` from row q of the outputs: that row and those above which still hold it.
    const auto do_row = [&](auto residue) __attribute__((always_inline)) {
      constexpr int first_tap = decltype(residue)::value, count = (Kernel - 1 - first_tap) / Stride + 1;
      Listed list[count];
      for (int e = 0; e < count; ++e) {
        const int up = count - 1 - e;
        list[e] = {grad - up * s.grad_pitch, offset - up * s.offset_pitch,
                   C(s.code + C((first_tap + up * Stride) * Kernel))};
      }
      for (int64_t j = 0; Stride * j < width; j += N) {
        Vn first, second;
        block<Stride, Kernel, Mode, count>(list, 0, j, first, second);
        put<Stride>(y + Stride * j, first, second, width - Stride * j);
      }
      y += width;
    };
    for (int64_t q = 0; q < s.count; ++q, grad += s.grad_pitch, offset += s.offset_pitch) {
      do_row(std::integral_constant<int, 0>{});
      if constexpr (Stride == 2) do_row(std::integral_constant<int, 1>{});
    }
  }

  // Where a slab of inputs is, and what it gathers from.
  struct Place {
    const Walk<Over::inputs>& walk;
    const Slab* slabs;
    int n;
    int64_t h0;
    char* y;
    int64_t left;
  };

  // Input rows [from, to) of a slab, each for itself.
  void one_by_one(const Place& s, int64_t from, int64_t to) const {
    if (from >= to) return;
    const Axis &rows = s.walk.axis(p_.n_axes - 2), &last = s.walk.last();
    Cover cover(rows, from);
    char* y = s.y + (from - s.h0) * p_.y.pooled[p_.n_axes - 2];
    int64_t left = s.left - (from - s.h0);
    for (int64_t h = from; h < to; ++h, cover.next(), --left, y += p_.y.pooled[p_.n_axes - 2]) {
      Listed list[most_listed];
      int m = 0;
      for (int k = 0; k < s.n; ++k) {
        const auto add = [&](int64_t o, int64_t tap) {
          list[m] = listed(s.walk, s.slabs[k], o, m);
          list[m++].code = C((s.slabs[k].code * rows.kernel + tap) * last.kernel);
        };
        if (!rows.regular() || rows.stride > 2) {
          for (int64_t o = cover.lo; o < cover.hi; ++o)
            if (cover.holds(o)) add(o, cover.tap(o));
          continue;
        }
        for (int64_t t = rows.kernel - 1; t >= 0; --t) {  // without divisions
          const int64_t away = h - rows.origin - t * rows.step, o = away >> (rows.stride - 1);
          if (o >= 0 && o < rows.out && o << (rows.stride - 1) == away) add(o, t);
        }
      }
      if (step_ != 1) {
        if (last.stride == 1)
          last.kernel == 2 ? row_of<1, 2, 3, 0>(list, m, y, left) : row_of<1, 3, 3, 0>(list, m, y, left);
        else if (last.kernel == 2)
          shift_ ? row_of<2, 2, 4, 0>(list, m, y, left) : row_of<2, 2, 3, 0>(list, m, y, left);
        else
          shift_ ? row_of<2, 3, 4, 0>(list, m, y, left) : row_of<2, 3, 3, 0>(list, m, y, left);
      } else if (last.stride == 1)
        last.kernel == 2 ? row<1, 2, 1>(list, m, y, left) : row<1, 3, 1>(list, m, y, left);
      else if (last.kernel == 2)
        whole_   ? row<2, 2, 0>(list, m, y, left)
        : shift_ ? row<2, 2, 2>(list, m, y, left)
                 : row<2, 2, 1>(list, m, y, left);
      else
        shift_ ? row<2, 3, 2>(list, m, y, left) : row<2, 3, 1>(list, m, y, left);
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
    return readable_offsets_.holds(offset - margin, reach) &&
           readable_grads_.holds(reinterpret_cast<const S*>(grad) - margin, reach);
  }

  // A row of outputs that may be read a whole vector at a time, margins and all: a copy where it lies otherwise.
  Listed listed(const Walk<Over::inputs>& walk, const Slab& slab, int64_t o, int m) const {
    const int64_t a = p_.n_axes - 1, lo = most(0, first_ - margin),
                  hi = least(out_, first_ + held_ - 2 * margin - N);
    const char *grad = grad_at(walk, slab, o), *offset = offset_at(walk, slab, o);
    if (reads_ && readable(grad, offset))
      return {reinterpret_cast<const S*>(grad), reinterpret_cast<const Offset*>(offset), 0};
    S* grads = grads_ + m * held_ + margin;
    Offset* offsets = offsets_ + m * held_ + margin;
    for (int64_t j = lo - first_; j < hi - first_; ++j) {
      grads[j] = *reinterpret_cast<const S*>(grad + j * p_.x.pooled[a]);
      offsets[j] = Offset(offset[j * p_.extra_array.pooled[a]]);
    }
    return {grads, offsets, 0};
  }

  // One input row. Mode 0: every output read is one of the row; 1, 2: some may not be, and the first input is at an
  // even (an odd) distance from the origin; 3, 4: the same for dilated windows.
  template <int Stride, int Kernel, int Mode>
  void row(const Listed* list, int n, char* y, int64_t left) const {
    if (n == 1)
      row_of<Stride, Kernel, Mode, 1>(list, n, y, left);
    else if (n == 2 && Kernel > 2)
      row_of<Stride, Kernel, Mode, 2>(list, n, y, left);
    else
      row_of<Stride, Kernel, Mode, 0>(list, n, y, left);
  }

  // What N inputs, or N pairs of them, gather from the outputs beginning at j.
  template <int Stride, int Kernel, int Mode, int Count> __attribute__((always_inline)) inline void
  block(const Listed* list, int n, int64_t j, Vn& first, Vn& second) const {
    first = second = Vn{};
    for (int e = 0; e < (Count ? Count : n); ++e) {
      const auto take = [&](int64_t at, int tap, Vn& sum) __attribute__((always_inline)) {
        Cn codes = widened<C, N>(list[e].offset + at);
        if constexpr (Mode) codes |= read<C, N>(invalid_ + at);
        sum += codes == C(list[e].code + C(tap)) ? read_as<V, N>(list[e].grad + at) : Vn{};
      };
      constexpr int even = Mode == 2 || Mode == 4;  // where the even ones stand
      Vn &evens = even ? second : first, &odds = even ? first : second;
      if constexpr (Stride == 1) {
        for (int t = Kernel - 1; t >= 0; --t) take(j - t * (Mode == 3 ? step_ : 1), t, first);
      } else if constexpr (Mode > 2) {
        for (int t = Kernel - 1; t >= 0; --t)
          if (const int64_t away = t * step_; away & 1)
            take(j - away / 2, t, odds);
          else
            take(j + even - away / 2, t, evens);
      } else {
        if constexpr (Kernel == 3) take(j + even - 1, 2, evens);
        take(j + even, 0, evens);
        take(j, 1, odds);
      }
    }
  }

  template <int Stride, int Kernel, int Mode, int Count>
  __attribute__((always_inline)) inline void row_of(const Listed* list, int n, char* y, int64_t left) const {
    const int64_t width = width_;
    // Straight to the gradient, but for the last vectors of a row that may not spill over its end.
    const bool spills = follow_ && left * width >= width + 2 * N;
    const int64_t straight = spills ? width : direct_ ? width / (Stride * N) * (Stride * N) : 0;
    S* const dst = reinterpret_cast<S*>(y);
    for (int64_t j = 0; Stride * j < width; j += N) {
      S* const to = (Stride * j < straight ? dst : row_) + Stride * j;
      Vn first, second;
      block<Stride, Kernel, Mode, Count>(list, n, j, first, second);
      put<Stride>(to, first, second, width - Stride * j);
    }
    const int64_t apart = p_.y.pooled[p_.n_axes - 1];
    for (int64_t j = straight; j < width; ++j) *reinterpret_cast<S*>(y + j * apart) = row_[j];
  }

  // N inputs, or N pairs of them, of `left` that the row still has.
  template <int Stride>
  __attribute__((always_inline)) static inline void put(S* to, Vn first, Vn second, int64_t left) {
    if constexpr (Stride == 1) {
      write_as<N, false, S, V>(to, first);
    } else {
      write_as<N, false, S, V>(to, zip_lo(first, second));
      if (left > N) write_as<N, false, S, V>(to + N, zip_hi(first, second));
    }
  }

  const Problem& p_;
  bool follow_, direct_, reads_, shift_ = false, whole_ = false;
  const Readable readable_grads_, readable_offsets_;
  int64_t held_, width_ = 0, tile_ = -1, first_ = 0, out_ = 0, step_ = 1;
  S *row_, *grads_;
  C* invalid_;
  Offset* offsets_;
};

}  // namespace
}  // namespace ndpool

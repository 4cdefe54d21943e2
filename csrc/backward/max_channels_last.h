// The backward of max and min where the elements of a leading axis are neighbours (channels last): every input
// position is a row of channels of its own, gathered from the positions of outputs whose windows contain it, rising.
// For small windows and many channels: by scattering, gradients of 3 x 3 pooling with stride 2 at (8, 192, 28, 28)
// (GoogLeNet) take 2.3 times as long, of 2 x 2 pooling at (8, 256, 28, 28) (VGG) 3.9 times.
#pragma once

#include "backward/bands.h"

namespace ndpool {
namespace {

// Gradients are stored as S and added up in V.
template <class V, class S> class MaxBackwardChannelsLast {
  static constexpr int N = wide<V>;
  using C = UnsignedLike<V>;
  using Offset = std::uint8_t;
  static constexpr int64_t most_listed = 64;
  static constexpr int64_t least_lanes = 96, least_far_lanes = 48;  // of gradients in a cache, and in memory

  struct Listed {
    const S* grad;
    const Offset* offset;
    C code;
  };
  // Outputs [lo, hi) of the last axis around an input.
  struct Column {
    int64_t lo, hi;
  };

public:
  static constexpr const char* engine = "max_backward_channels_last";

  static bool serves(const Problem& p) {
    const int a = p.n_axes - 1;
    const int64_t item = sizeof(S);
    return p.extra == Extra::offset8 && p.lanes >= (goes_past_caches(p) ? least_far_lanes : least_lanes) &&
           pays(p) && stored_as<S>(p.x_type) && p.x_type == p.y_type && p.x.lane == item &&
           p.y.lane == item && p.extra_array.lane == sizeof(Offset) && p.axes[a].table_stride == 0 &&
           p.axes[a].step == 1 && most_slabs(p) <= max_slabs &&
           most_slabs(p) * (a ? most_covers(p.axes[a - 1], p.planes) : 1) *
                   most_covers(p.axes[a], p.planes) <=
               most_listed;
  }

  // Whether gathering from all windows around a position costs less than adding once for each output: cycles for each
  // input position, measured.
  static bool pays(const Problem& p) {
    double outputs = 1, taps = 1;
    for (int a = 0; a < p.n_axes; ++a) {
      outputs *= double(p.axes[a].out) / double(p.axes[a].size);
      taps *= double(p.axes[a].kernel);
    }
    return 12 + outputs * taps * (6 + 2.5 * double(p.lanes) / N) < 4 * outputs * double(p.lanes);
  }

  static void prepare(Problem& p) {
    add_row_axis(p);
    set_units(p, 256);
    p.scratch = Scratch::bytes<Column>(p.tile);
  }

  static void run(const Problem& p, int64_t begin, int64_t end, char* memory) {
    Walk<Over::inputs> walk(p, begin);
    const int a = p.n_axes - 1;
    const Axis& rows = walk.axis(a - 1);
    Column* columns = reinterpret_cast<Column*>(memory);
    int64_t tile = -1;
    for (int64_t unit = begin; unit < end;) {
      const int64_t h0 = walk.at(a - 1), h1 = least(rows.size, h0 + end - unit);
      if (walk.tile_begin() != tile) {
        tile = walk.tile_begin();
        Cover cover(walk.last(), tile);
        for (int64_t i = tile; i < walk.tile_end(); ++i, cover.next())
          columns[i - tile] = {cover.lo, cover.hi};
      }
      Slab slabs[max_slabs];
      const int n = slabs_around(p, walk, slabs);
      char* y = walk.plane(p.y) + tile * p.y.pooled[a];
      for (int b = 0; b < a; ++b) y += (b + 1 == a ? h0 : walk.at(b)) * p.y.pooled[b];
      Cover cover(rows, h0);
      for (int64_t h = h0; h < h1; ++h, cover.next(), y += p.y.pooled[a - 1])
        row(p, walk, slabs, n, cover, columns, y);
      unit += h1 - h0;
      if (unit < end) walk.next_slab();
    }
  }

private:
  static void row(const Problem& p, const Walk<Over::inputs>& walk, const Slab* slabs, int n,
                  const Cover& cover, const Column* columns, char* y) {
    const int a = p.n_axes - 1;
    const Axis &rows = walk.axis(a - 1), &last = walk.last();
    const char *grads = walk.plane(p.x), *offsets = walk.plane(p.extra_array);
    for (int64_t i = walk.tile_begin(); i < walk.tile_end(); ++i, ++columns, y += p.y.pooled[a]) {
      Listed list[most_listed];
      int m = 0;
      for (int k = 0; k < n; ++k)
        for (int64_t o = cover.lo; o < cover.hi; ++o) {
          if (!cover.holds(o)) continue;
          const int64_t code = (slabs[k].code * rows.kernel + cover.tap(o)) * last.kernel;
          for (int64_t c = columns->lo; c < columns->hi; ++c)
            list[m++] = {
                reinterpret_cast<const S*>(grads + slabs[k].grad + o * p.x.pooled[a - 1] + c * p.x.pooled[a]),
                reinterpret_cast<const Offset*>(offsets + slabs[k].extra + o * p.extra_array.pooled[a - 1] +
                                                c * p.extra_array.pooled[a]),
                C(code + i - (last.regular() ? last.origin + c * last.stride : last.starts[c]))};
        }
      S* to = reinterpret_cast<S*>(y);
      if (m == 1)
        gather<1>(list, m, to, p.lanes);
      else if (m == 2)
        gather<2>(list, m, to, p.lanes);
      else
        gather<0>(list, m, to, p.lanes);
    }
  }

  template <int Count> static void gather(const Listed* list, int n, S* to, int64_t lanes) {
    if (Count) n = Count;
    const auto block = [&](auto vectors, int64_t c) __attribute__((always_inline)) {
      constexpr int U = decltype(vectors)::value;
      Vec<V, N> sums[U] = {};
      for (int e = 0; e < n; ++e)
        for (int u = 0; u < U; ++u)
          sums[u] += widened<C, N>(list[e].offset + c + u * N) == list[e].code
                         ? read_as<V, N>(list[e].grad + c + u * N)
                         : Vec<V, N>{};
      for (int u = 0; u < U; ++u) write_as<N, false, S, V>(to + c + u * N, sums[u]);
    };
    using One = std::integral_constant<int, 1>;
    using Four = std::integral_constant<int, 4>;
    int64_t c = 0;
    for (; c + 4 * N <= lanes; c += 4 * N) block(Four{}, c);
    for (; c < lanes; c += N) block(One{}, least(c, lanes - N));  // the last ones may be done twice
  }
};

}  // namespace
}  // namespace ndpool

// The backward of max and min for channels-last arrays, small windows and many channels, called from
// backward/selection.h. The channels of each input gather from the outputs whose windows contain it, in rising
// order. Other windows and layouts go to max_rows.h or scatter.h.
//
// By scattering, the gradients of 3 x 3 pooling with stride 2 at (8, 192, 28, 28) (GoogLeNet) take 2.3 times as
// long, those of 2 x 2 pooling at (8, 256, 28, 28) (VGG) 3.9 times.
#pragma once

#include "backward/bands.h"

namespace ndpool {
namespace {

// S: storage type of the gradients; V: type of their sums.
template <class V, class S> class MaxBackwardChannelsLast {
  static constexpr int N = wide<V>;
  using C = UnsignedLike<V>;
  using Offset = std::uint8_t;
  static constexpr int64_t max_sources = 64;
  static constexpr int64_t min_channels = 96,
                           min_far_channels = 48;  // gradients in cache; where scattering is slow

  // An output that covers the input: its gradients, its offsets, and the offset of the input in its window.
  struct Source {
    const S* grad;
    const Offset* offsets;
    C tap;
  };
  // The outputs [lo, hi) of the last axis that cover an input.
  struct Column {
    int64_t lo, hi;
  };

public:
  static constexpr const char* engine = "max_backward_channels_last";

  static bool supports(const Problem& p) {
    const int a = p.n_axes - 1;
    const int64_t item = sizeof(S);
    return p.extra == Extra::offset8 &&
           p.channels >= (call_exceeds_cache(p) || many_outputs(p) ? min_far_channels : min_channels) &&
           pays(p) && stored_as<S>(p.x_type) && p.x_type == p.y_type && p.x.channel == item &&
           p.y.channel == item && p.extra_array.channel == sizeof(Offset) && p.axes[a].table_stride == 0 &&
           count_slabs(p) <= max_slabs &&
           count_slabs(p) * (a ? max_covers(p.axes[a - 1], p.planes) : 1) * max_covers(p.axes[a], p.planes) <=
               max_sources;
  }

  // Whether there is nearly an output for each input, and scattering would visit most of them in several boxes.
  static bool many_outputs(const Problem& p) {
    const int64_t outputs = plane_elements(p, Over::outputs);
    return 2 * outputs > plane_elements(p) && outputs * p.channels > 64 * 1024;
  }

  // Whether to gather costs less than to scatter: measured cycles per input with all its channels.
  static bool pays(const Problem& p) {
    double outputs = 1, taps = 1;
    for (int a = 0; a < p.n_axes; ++a) {
      outputs *= double(p.axes[a].out) / double(p.axes[a].size);
      taps *= double(p.axes[a].kernel);
    }
    return 12 + outputs * taps * (6 + 2.5 * double(p.channels) / N) < 4 * outputs * double(p.channels);
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
      const int64_t h0 = walk.at(a - 1), h1 = min(rows.size, h0 + end - unit);
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
      Source sources[max_sources];
      int m = 0;
      for (int k = 0; k < n; ++k)
        for (int64_t o = cover.lo; o < cover.hi; ++o) {
          if (!cover.has_tap(o)) continue;
          const int64_t first = (slabs[k].offset * rows.kernel + cover.tap(o)) * last.kernel;
          const auto add = [&](int64_t c, int64_t tap) __attribute__((always_inline)) {
            sources[m++] = {
                reinterpret_cast<const S*>(grads + slabs[k].grad + o * p.x.pooled[a - 1] + c * p.x.pooled[a]),
                reinterpret_cast<const Offset*>(offsets + slabs[k].extra + o * p.extra_array.pooled[a - 1] +
                                                c * p.extra_array.pooled[a]),
                C(first + tap)};
          };
          if (last.step == 1) {
            for (int64_t c = columns->lo; c < columns->hi; ++c) add(c, i - begin_of(last, c));
          } else {
            for (int64_t c = columns->lo; c < columns->hi; ++c)
              if (const int64_t distance = i - begin_of(last, c); distance % last.step == 0)
                add(c, distance / last.step);
          }
        }
      S* to = reinterpret_cast<S*>(y);
      if (m == 1)
        gather<1>(sources, m, to, p.channels);
      else if (m == 2)
        gather<2>(sources, m, to, p.channels);
      else
        gather<0>(sources, m, to, p.channels);
    }
  }

  template <int Count> static void gather(const Source* sources, int n, S* to, int64_t channels) {
    if (Count) n = Count;
    const auto block = [&](auto vectors, int64_t c) __attribute__((always_inline)) {
      constexpr int U = decltype(vectors)::value;
      Vec<V, N> sums[U] = {};
      for (int e = 0; e < n; ++e)
        for (int u = 0; u < U; ++u)
          sums[u] += widened<C, N>(sources[e].offsets + c + u * N) == sources[e].tap
                         ? read_as<V, N>(sources[e].grad + c + u * N)
                         : Vec<V, N>{};
      for (int u = 0; u < U; ++u) write_as<N, false, S, V>(to + c + u * N, sums[u]);
    };
    using One = std::integral_constant<int, 1>;
    using Four = std::integral_constant<int, 4>;
    int64_t c = 0;
    for (; c + 4 * N <= channels; c += 4 * N) block(Four{}, c);
    for (; c < channels; c += N) block(One{}, min(c, channels - N));  // the last vector may overlap
  }
};

}  // namespace
}  // namespace ndpool

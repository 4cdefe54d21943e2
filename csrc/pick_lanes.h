// The backward of maxima and minima where the elements of a leading axis are neighbours (channels last): every input
// position is a row of lanes of its own, gathered from the positions of outputs whose windows hold it, rising.
#pragma once

#include "bands.h"

namespace ndpool {
namespace {

template <class V> class PickLanes {
  static constexpr int N = wide<V>;
  using Vn = Vec<V, N>;
  using C = UnsignedLike<V>;
  using Offset = std::uint8_t;
  static constexpr int64_t most_listed = 64;

  struct Listed {
    const V* grad;
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
    const int64_t item = sizeof(V);
    return p.extra == Extra::offset8 && p.lanes > 1 && stored_as<V>(p.x_type) && p.x.lane == item &&
           p.y.lane == item && p.extra_array.lane == 1 && p.axes[a].table_stride == 0 &&
           p.axes[a].step == 1 && most_slabs(p) <= max_slabs &&
           most_slabs(p) * (a ? most_covers(p.axes[a - 1], p.planes) : 1) *
                   most_covers(p.axes[a], p.planes) <=
               most_listed;
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
                reinterpret_cast<const V*>(grads + slabs[k].grad + o * p.x.pooled[a - 1] + c * p.x.pooled[a]),
                reinterpret_cast<const Offset*>(offsets + slabs[k].extra + o * p.extra_array.pooled[a - 1] +
                                                c * p.extra_array.pooled[a]),
                C(code + i - (last.regular() ? last.origin + c * last.stride : last.starts[c]))};
        }
      V* to = reinterpret_cast<V*>(y);
      if (m == 1)
        gather<1>(list, m, to, p.lanes);
      else if (m == 2)
        gather<2>(list, m, to, p.lanes);
      else
        gather<0>(list, m, to, p.lanes);
    }
  }

  template <int Count> static void gather(const Listed* list, int n, V* to, int64_t lanes) {
    if (Count) n = Count;
    int64_t c = 0;
    const auto block = [&](auto vectors) __attribute__((always_inline)) {
      constexpr int U = decltype(vectors)::value;
      Vn sums[U] = {};
      for (int e = 0; e < n; ++e)
        for (int u = 0; u < U; ++u)
          sums[u] += widened<C, N>(list[e].offset + c + u * N) == list[e].code
                         ? read<V, N>(list[e].grad + c + u * N)
                         : Vn{};
      for (int u = 0; u < U; ++u) write(to + c + u * N, sums[u]);
      c += U * N;
    };
    while (c + 4 * N <= lanes) block(std::integral_constant<int, 4>{});
    while (c + N <= lanes) block(std::integral_constant<int, 1>{});
    for (; c < lanes; ++c) {
      V sum = V(0);
      for (int e = 0; e < n; ++e) sum += list[e].offset[c] == list[e].code ? list[e].grad[c] : V(0);
      to[c] = sum;
    }
  }
};

}  // namespace
}  // namespace ndpool

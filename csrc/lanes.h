// The engine for lanes: elements that are neighbours in memory belong to different planes (channels last). Every
// output position is a few vectors, made of its window's taps in registers.
#pragma once

#include "forward.h"
#include "simd.h"

namespace ndpool {
namespace {

template <class R, class S, bool coded> struct Lanes {
  using V = typename R::V;
  using C = UnsignedLike<V>;
  static constexpr int N = wide<V>, broad = vector_bytes == 64 ? (coded || !R::picks ? 8 : 16) : 4;
  using Vn = Vec<V, N>;
  using Cn = Vec<C, N>;

  static bool serves(const Problem& p) {
    if (p.lanes < N || p.op == Op::lp || p.n_axes > 3 || p.x_type != p.y_type) return false;
    if (p.x.lane != sizeof(S) || p.y.lane != sizeof(S)) return false;
    for (int a = 0; a < p.n_axes; ++a)
      if (!p.axes[a].regular() && p.axes[a].table_stride) return false;
    if constexpr (coded) {
      const int64_t item = p.extra == Extra::offset8 ? 1 : p.extra == Extra::offset32 ? 4 : 8;
      double plane = 1;
      for (int a = 0; a < p.n_axes; ++a) plane *= double(p.axes[a].size);
      if (p.extra_array.lane != item || (item > 1 && sizeof(V) < 4) || plane > 4e9) return false;
    }
    return true;
  }

  static void prepare(Problem& p) {
    const Axis& last = p.axes[p.n_axes - 1];
    p.tile = most(1, least(last.out, 65536 / p.lanes));
    p.tiles = ceil_div(last.out, p.tile);
    p.units = p.planes * p.tiles * p.rows;
    p.scratch = Scratch::bytes<V>(p.lanes);
  }

  // The outer part of a window: (slabs x rows) taps, with their codes.
  struct Outer {
    int64_t slabs, rows, slab_step, row_step;  // steps in bytes
    C first, slab_code, row_code, col_code;    // of the first tap, and from one to the next
    int64_t position;                          // of the nominal window's beginning
    int64_t share;
  };

  static void run(const Problem& p, int64_t begin, int64_t end, char* memory) {
    Scratch scratch(memory);
    V* acc = scratch.take<V>(p.lanes);
    Walk<Over::outputs> walk(p, begin);
    const int last = p.n_axes - 1;
    for (int64_t unit = begin; unit < end; ++unit, walk.next()) {
      Outer outer;
      const char* x = walk.plane(p.x);
      locate(p, walk, outer, x);
      const int64_t o0 = walk.tile_begin(), o1 = walk.tile_end();
      char* y = walk.row(p.y, o0, o1).data;
      char* extra = coded ? walk.row(p.extra_array, o0, o1).data : nullptr;
      for (int64_t o = o0; o < o1;
           ++o, y += p.y.pooled[last], extra += coded ? p.extra_array.pooled[last] : 0) {
        const Window w = window(walk.last(), o);
        const V by = V(p.divisor ? p.divisor : most(1, p.divide ? outer.share * share(walk.last(), o) : 1));
        Outer here = outer;
        here.first += C(w.lead) * here.col_code;
        here.position += begin_of(walk.last(), o);
        position(p, here, x + w.start * p.x.pooled[last], w.taps, walk.last().step * p.x.pooled[last], y,
                 extra, by, acc);
      }
    }
  }

private:
  static void locate(const Problem& p, const Walk<Over::outputs>& walk, Outer& outer, const char*& x) {
    const int n = p.n_axes - 1;
    const bool positions = p.extra == Extra::index64;
    const Axis& last = walk.last();
    outer = {1, 1, 0, 0, 0, 0, 0, C(positions ? last.step : 1), 0, 1};
    if (n >= 1) {
      const Axis& a = walk.axis(n - 1);
      const int64_t o = walk.at(n - 1);
      const Window w = window(a, o);
      outer.rows = w.taps;
      outer.row_step = a.step * p.x.pooled[n - 1];
      outer.row_code = C(positions ? a.step * last.size : last.kernel);
      outer.first += C(w.lead) * outer.row_code;
      outer.position += begin_of(a, o) * last.size;
      outer.share *= p.divide && !p.divisor ? share(a, o) : 1;
      x += w.start * p.x.pooled[n - 1];
    }
    if (n == 2) {
      const Axis &a = walk.axis(0), &rows = walk.axis(1);
      const int64_t o = walk.at(0);
      const Window w = window(a, o);
      outer.slabs = w.taps;
      outer.slab_step = a.step * p.x.pooled[0];
      outer.slab_code = C(positions ? a.step * rows.size * last.size : rows.kernel * last.kernel);
      outer.first += C(w.lead) * outer.slab_code;
      outer.position += begin_of(a, o) * rows.size * last.size;
      outer.share *= p.divide && !p.divisor ? share(a, o) : 1;
      x += w.start * p.x.pooled[0];
    }
  }

  static void position(const Problem& p, const Outer& outer, const char* x, int64_t taps, int64_t step,
                       char* y, char* extra, V by, V* acc) {
    if constexpr (R::picks && !coded)
      if (outer.slabs * outer.rows * taps > 16 && p.lanes > 4 * N)
        return streamed(p, outer, x, taps, step, reinterpret_cast<S*>(y), acc);
    int64_t c = 0;
    for (; c + broad * N <= p.lanes; c += broad * N) vectors<broad>(p, outer, x, taps, step, y, extra, by, c);
    if constexpr (broad == 16)
      for (; c + 8 * N <= p.lanes; c += 8 * N) vectors<8>(p, outer, x, taps, step, y, extra, by, c);
    for (; c + 4 * N <= p.lanes; c += 4 * N) vectors<4>(p, outer, x, taps, step, y, extra, by, c);
    for (; c < p.lanes; c += N) vectors<1>(p, outer, x, taps, step, y, extra, by, least(c, p.lanes - N));
  }

  static Vn merge(Vn later, Vn best) {
    best = R::beats(later, best) ? later : best;  // one instruction; a NaN would be lost
    if constexpr (is_real<V>) best = later != later ? later : best;
    return best;
  }

  // Large windows: all lanes of a tap before the next tap, as they lie in memory; the best so far wait in L1.
  static void streamed(const Problem& p, const Outer& outer, const char* x, int64_t taps, int64_t step, S* y,
                       V* acc) {
    const int64_t whole = p.lanes / N * N, rest = p.lanes - N;
    const auto add = [&](const char* at, bool first) __attribute__((always_inline)) {
      const S* from = reinterpret_cast<const S*>(at);
      for (int64_t c = 0; c < whole; c += N)
        write(acc + c, first ? read_as<V, N>(from + c) : merge(read_as<V, N>(from + c), read<V, N>(acc + c)));
      if (whole < p.lanes)
        write(acc + rest,
              first ? read_as<V, N>(from + rest) : merge(read_as<V, N>(from + rest), read<V, N>(acc + rest)));
    };
    for (int64_t s = 0; s < outer.slabs; ++s)
      for (int64_t r = 0; r < outer.rows; ++r)
        for (int64_t t = 0; t < taps; ++t)
          add(x + s * outer.slab_step + r * outer.row_step + t * step, s + r + t == 0);
    for (int64_t c = 0; c < p.lanes; c += N) {
      const int64_t at = least(c, rest);
      write_as<N, true, S, V>(y + at, read<V, N>(acc + at));
    }
  }

  template <int W> static void vectors(const Problem& p, const Outer& outer, const char* x, int64_t taps,
                                       int64_t step, char* y, char* extra, V by, int64_t lane) {
    Vn best[W];
    Cn code[W];
    x += lane * int64_t(sizeof(S));
    const bool ahead = lane + W * N < p.lanes;  // the next lanes of the same taps
    if constexpr (R::picks) {
      for (int w = 0; w < W; ++w) {
        best[w] = Vn{} + R::init();
        if constexpr (coded) code[w] = Cn{} + outer.first;
      }
      C slab_code = outer.first;
      for (int64_t s = 0; s < outer.slabs; ++s, slab_code += outer.slab_code) {
        C row_code = slab_code;
        for (int64_t r = 0; r < outer.rows; ++r, row_code += outer.row_code) {
          const char* from = x + s * outer.slab_step + r * outer.row_step;
          C tap_code = row_code;
          for (int64_t t = 0; t < taps; ++t, from += step, tap_code += outer.col_code)
            for (int w = 0; w < W; ++w) {
              const Vn v = read_as<V, N>(reinterpret_cast<const S*>(from) + w * N);
              if (ahead) __builtin_prefetch(reinterpret_cast<const S*>(from) + (W + w) * N);
              if constexpr (coded) {
                auto better = R::beats(v, best[w]);
                if constexpr (is_real<V>) better |= v != v;
                best[w] = better ? v : best[w];
                code[w] = better ? Cn{} + tap_code : code[w];
              } else {
                best[w] = merge(v, best[w]);
              }
            }
        }
      }
    } else {  // columns first
      for (int w = 0; w < W; ++w) best[w] = Vn{};
      for (int64_t t = 0; t < taps && outer.slabs * outer.rows > 0; ++t, x += step) {
        Vn down[W];
        for (int64_t s = 0; s < outer.slabs; ++s)
          for (int64_t r = 0; r < outer.rows; ++r) {
            const S* from = reinterpret_cast<const S*>(x + s * outer.slab_step + r * outer.row_step);
            for (int w = 0; w < W; ++w) {
              const Vn v = read_as<V, N>(from + w * N);
              down[w] = s + r ? down[w] + v : v;
            }
          }
        for (int w = 0; w < W; ++w) best[w] = t ? best[w] + down[w] : down[w];
      }
      if (p.divide)
        for (int w = 0; w < W; ++w) best[w] /= by;
    }
    for (int w = 0; w < W; ++w) {
      write_as<N, R::picks, S, V>(reinterpret_cast<S*>(y) + lane + w * N, best[w]);
      if constexpr (coded) write_codes<N>(p.extra, extra, lane + w * N, code[w], outer.position);
    }
  }
};

}  // namespace
}  // namespace ndpool

// Channels-last: neighbours in memory are channels, which belong to different planes. Each output position is a few
// vectors of channels, made of the taps of its window in registers, or in L1 where there are many. As in the direct
// engine, maxima are taken the speculative way while the elements are added up; a position whose sum is NaN is done again
// the exact way. Without this engine max pooling 3 x 3 with stride 2 and indices takes 3.9 times as long on 112 x 112
// (ResNet), 2 x 2 without 2.6 times on 56 x 56 (VGG).
#pragma once

#include "forward/general.h"
#include "simd.h"

namespace ndpool {
namespace {

template <class R, class S, bool coded> struct ChannelsLast {
  static constexpr const char* engine = "channels_last";
  using V = typename R::V;
  using C = UnsignedLike<V>;
  static constexpr int N = wide<V>;
  static constexpr int broad = vector_bytes < 64           ? 4
                               : !R::picks                 ? 8
                               : !std::is_same_v<S, float> ? 4
                               : coded                     ? 8
                                                           : 16;
  using Vn = Vec<V, N>;
  using Cn = Vec<C, N>;

  static bool serves(const Problem& p) {
    if (p.lanes < N || p.op == Op::lp || p.n_axes > 3 || p.x_type != p.y_type) return false;
    if (!R::picks && p.axes[p.n_axes - 1].kernel > sum_block) return false;
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
    p.scratch = Scratch::bytes<V>(lanes_kept(p)) + (coded ? Scratch::bytes<C>(lanes_kept(p)) : 0);
  }

  // The outer part of a window: (slabs x rows) taps, with their codes.
  struct Outer {
    int64_t slabs, rows, slab_step, row_step;  // steps in bytes
    C first, slab_code, row_code, col_code;    // of the first tap, and from one to the next
    int64_t position;                          // of the nominal window's beginning
    int64_t share;
    int64_t lanes;      // done at a time
    int64_t ahead = 0;  // bytes to elements to ask for, or 0
  };

  static void run(const Problem& p, int64_t begin, int64_t end, char* memory) {
    Scratch scratch(memory);
    Kept kept{scratch.take<V>(lanes_kept(p)), coded ? scratch.take<C>(lanes_kept(p)) : nullptr, 0,
              from_memory(p)};
    Walk<Over::outputs> walk(p, begin);
    const int last = p.n_axes - 1;
    int64_t divisor = p.divide && p.divisor ? p.divisor : 1;
    const int64_t ahead = comes_from_far(p) ? fetched_ahead(1, 1, 2) : 0;
    Quotient<V> quotient(divisor);
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
        if (!R::picks && p.divide && !p.divisor) {
          const int64_t share = outer.share * ndpool::share(walk.last(), o);
          if (share != divisor) quotient = Quotient<V>(divisor = share);
        }
        const Quotient<V> by = quotient;  // which no write to the results changes
        Outer here = outer;
        here.ahead = ahead;
        here.first += C(w.lead) * here.col_code;
        here.position += begin_of(walk.last(), o);
        const int64_t step = walk.last().step * p.x.pooled[last];
        for (int64_t c = 0; c < p.lanes; c += here.lanes) {
          here.lanes = p.lanes - c < 2 * most_lanes ? p.lanes - c : most_lanes;
          position(p, here, x + w.start * p.x.pooled[last] + c * int64_t(sizeof(S)), w.taps, step,
                   y + c * int64_t(sizeof(S)), extra + c * (coded ? p.extra_array.lane : 0), by, kept);
        }
      }
    }
  }

private:
  static constexpr bool can_be_nan = R::picks && is_real<V>;
  static constexpr int64_t most_lanes =
      16 * 1024 / sizeof(V) * (coded ? 1 : 2);  // at a time: what is found so far stays near
  static constexpr int calm_positions = 32;     // done the exact way after a NaN was met

  // Windows that share nothing come from memory, not from a cache, if the array is larger than one.
  static bool from_memory(const Problem& p) {
    constexpr double cached = 4 << 20;  // bytes
    const Axis& last = p.axes[p.n_axes - 1];
    const double lanes = double(p.planes) * double(p.lanes);
    return (!last.regular() || last.stride >= last.kernel) &&
           lanes * double(plane_elements(p)) * double(sizeof(S)) > cached;
  }

  // What lasts from one position to the next: room for results that do not fit into registers, positions that are done the
  // exact way, and where windows come from.
  struct Kept {
    V* values;
    C* codes;
    int calm;
    bool from_memory;
  };

  static int64_t lanes_kept(const Problem& p) {
    return R::picks ? least(p.lanes, 2 * most_lanes) + N : lanes_summed(p) * p.axes[p.n_axes - 1].kernel;
  }

  static void locate(const Problem& p, const Walk<Over::outputs>& walk, Outer& outer, const char*& x) {
    const int n = p.n_axes - 1;
    const bool positions = p.extra == Extra::index64;
    const Axis& last = walk.last();
    outer = {1, 1, 0, 0, 0, 0, 0, C(positions ? last.step : 1), 0, 1, p.lanes};
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
                       char* y, char* extra, const Quotient<V>& by, Kept& kept) {
    const int64_t rows = outer.slabs * outer.rows;
    if constexpr (!R::picks) {
      if (rows == 1 && outer.lanes > 4 * N && (taps >= long_sum || (taps > 1 && kept.from_memory)))
        return streamed_sums(p, outer, x, taps, step, reinterpret_cast<S*>(y), by, kept.values);
      if ((rows > (outer.lanes <= 4 * N ? 12 : 3) && taps > 1) || (rows > 0 && taps >= long_sum))
        return summed(p, outer, x, taps, step, reinterpret_cast<S*>(y), by, kept.values);
      in_registers<true>(p, outer, x, taps, step, y, extra, by);
    } else {
      if (kept.calm == 0) {
        const bool stream = outer.lanes > broad * N || (rows * taps > 16 && outer.lanes > 4 * N);
        if (stream && rows * taps > 0 ? streamed(p, outer, x, taps, step, y, extra, kept)
                                      : in_registers<true>(p, outer, x, taps, step, y, extra, by))
          return;
        kept.calm = calm_positions;
      }
      --kept.calm;
      in_registers<false>(p, outer, x, taps, step, y, extra, by);
    }
  }

  template <bool speculative> static bool in_registers(const Problem& p, const Outer& outer, const char* x,
                                                       int64_t taps, int64_t step, char* y, char* extra,
                                                       const Quotient<V>& by) {
    Vn poison[4] = {};  // several, so that one addition need not wait for the other
    int64_t c = 0;
    const auto go = [&](auto width, int64_t lane) __attribute__((always_inline)) {
      vectors<decltype(width)::value, speculative>(p, outer, x, taps, step, y, extra, by, lane, poison);
    };
    if constexpr (speculative) {
      for (; c + broad * N <= outer.lanes; c += broad * N) go(std::integral_constant<int, broad>{}, c);
      if constexpr (broad == 16)
        for (; c + 8 * N <= outer.lanes; c += 8 * N) go(std::integral_constant<int, 8>{}, c);
    }
    for (; c + 4 * N <= outer.lanes; c += 4 * N) go(std::integral_constant<int, 4>{}, c);
    if constexpr (!R::picks) {
      // Two or three vectors at the end, which may overlap the ones before.
      const int64_t left = ceil_div(outer.lanes - c, N);
      if (left == 3 && outer.lanes >= 3 * N)
        return go(std::integral_constant<int, 3>{}, outer.lanes - 3 * N), true;
      if (left == 2 && outer.lanes >= 2 * N)
        return go(std::integral_constant<int, 2>{}, outer.lanes - 2 * N), true;
    }
    for (; c < outer.lanes; c += N) go(std::integral_constant<int, 1>{}, least(c, outer.lanes - N));
    if constexpr (can_be_nan && speculative) return !nan_in(poison[0] + poison[1] + (poison[2] + poison[3]));
    return true;
  }

  // Sums of large windows: row by row as they lie in memory; every column's sum so far waits in a near cache.
  static void summed(const Problem& p, const Outer& outer, const char* x, int64_t taps, int64_t step, S* y,
                     const Quotient<V>& by, V* sums) {
    const int64_t share = lanes_summed(p);
    for (int64_t c = 0; c < outer.lanes; c += share) {
      const int64_t n = least(share, outer.lanes - c), first = n < N ? outer.lanes - N : c;
      const int64_t vectors = ceil_div(n, N),
                    rest = most(n, N) - N;  // the last one may overlap its neighbour
      // A few rows at a time, in their order: seven, since so many are common, then four.
      const auto add = [&](const char* row, auto rows, bool begin) {
        for (int64_t t = 0; t < taps; ++t, row += step)
          for (int64_t v = 0; v < vectors; ++v) {
            V* to = sums + (t * vectors + v) * N;
            const auto at = [&](int r) {
              return read_as<V, N>(reinterpret_cast<const S*>(row + r * outer.row_step) + first +
                                   least(v * N, rest));
            };
            Vn sum = begin ? at(0) : read<V, N>(to) + at(0);
            for (int r = 1; r < rows; ++r) sum += at(r);
            write(to, sum);
          }
      };
      for (int64_t s = 0; s < outer.slabs; ++s) {
        int64_t r = 0;
        const auto from = [&] { return x + s * outer.slab_step + r * outer.row_step; };
        for (; r + 7 <= outer.rows; r += 7) add(from(), std::integral_constant<int, 7>{}, s + r == 0);
        for (; r + 4 <= outer.rows; r += 4) add(from(), std::integral_constant<int, 4>{}, s + r == 0);
        for (; r < outer.rows; ++r) add(from(), std::integral_constant<int, 1>{}, s + r == 0);
      }
      for (int64_t v = 0; v < vectors; ++v) {
        Vn sum;
        windows_everywhere<R>(sums + v * N, N, taps, vectors * N, reinterpret_cast<V*>(&sum));
        if (p.divide) sum = by(sum);
        write_as<N, false, S, V>(y + first + least(v * N, rest), sum);
      }
    }
  }

  // Taps that are read at a time: those that share a page of memory are better read one by one.
  static constexpr int few = 4;
  static int taps_at_a_time(int64_t step) { return step > -4096 && step < 4096 ? 1 : few; }
  template <class F> static void with_count(int64_t n, F&& f) {
    if (n == 1) return f(std::integral_constant<int, 1>{});
    if (n == 2) return f(std::integral_constant<int, 2>{});
    if (n == 3) return f(std::integral_constant<int, 3>{});
    f(std::integral_constant<int, few>{});
  }

  // Sums of a single row as they lie in memory; the sums so far wait in a near cache. Those of long rows are interleaved.
  static void streamed_sums(const Problem& p, const Outer& outer, const char* x, int64_t taps, int64_t step,
                            S* y, const Quotient<V>& by, V* sums) {
    const int64_t parts = taps < long_sum ? 1 : interleaved, at_a_time = taps_at_a_time(parts * step);
    const int64_t share = least(most_lanes, most(N, lanes_kept(p) / parts / N * N));
    for (int64_t c = 0; c < outer.lanes; c += share) {
      const int64_t n = least(share, outer.lanes - c), first = n < N ? outer.lanes - N : c;
      const int64_t vectors = ceil_div(n, N),
                    rest = most(n, N) - N;  // the last one may overlap its neighbour
      const auto finish = [&](int64_t v, Vn sum) __attribute__((always_inline)) {
        if (p.divide) sum = by(sum);
        write_as<N, false, S, V>(y + first + least(v * N, rest), sum);
      };
      // Taps t, t + parts, ... of one part.
      const auto add = [&](int64_t t, bool last) {
        with_count(least(at_a_time, ceil_div(taps - t, parts)), [&](auto count) {
          const char* const from = x + t * step + first * int64_t(sizeof(S));
          V* const to = sums + t % parts * vectors * N;
          const auto sum_at = [=](int64_t j) __attribute__((always_inline)) {
            const S* at = reinterpret_cast<const S*>(from) + least(j, rest);
            if (outer.ahead) fetch(reinterpret_cast<const char*>(at) + outer.ahead);
            Vn sum = t < parts ? read_as<V, N>(at) : read<V, N>(to + j) + read_as<V, N>(at);
            for (int k = 1; k < count; ++k) {
              at = reinterpret_cast<const S*>(reinterpret_cast<const char*>(at) + parts * step);
              if (outer.ahead) fetch(reinterpret_cast<const char*>(at) + outer.ahead);
              sum += read_as<V, N>(at);
            }
            return sum;
          };
          if (last)
            for (int64_t v = 0; v < vectors; ++v) finish(v, sum_at(v * N));
          else
            for (int64_t j = 0; j < vectors * N; j += N) write(to + j, sum_at(j));
        });
      };
      if (parts == 1) {
        for (int64_t t = 0; t < taps; t += at_a_time) add(t, t + at_a_time >= taps);
        continue;
      }
      for (int64_t q = 0; q < parts; ++q)
        for (int64_t t = q; t < taps; t += at_a_time * parts) add(t, false);
      for (int64_t v = 0; v < vectors; ++v) {
        Vn all[interleaved];
        for (int q = 0; q < interleaved; ++q) all[q] = read<V, N>(sums + (q * vectors + v) * N);
        for (int m = interleaved / 2; m > 0; m /= 2)
          for (int q = 0; q < m; ++q) all[q] += all[q + m];
        finish(v, all[0]);
      }
    }
  }

  // How many lanes are summed at a time: as many for every window, whole or cut off.
  static int64_t lanes_summed(const Problem& p) {
    constexpr int64_t near = 128 * 1024 / sizeof(V);
    const int64_t taps = most(1, p.axes[p.n_axes - 1].kernel);
    return least(ceil_div(p.lanes, N), most(8, near / taps / N)) * N;
  }

  // A few taps of all lanes before the next ones, as they lie in memory; the best so far wait in a near cache.
  static bool streamed(const Problem& p, const Outer& outer, const char* x, int64_t taps, int64_t step,
                       char* y, char* extra, const Kept& kept) {
    if constexpr (coded) return streamed_codes(p, outer, x, taps, step, y, extra, kept);
    Vn poison[2] = {};
    const S* from[few];
    int n = 0;
    const int64_t all = outer.slabs * outer.rows * taps, at_a_time = taps_at_a_time(step);
    const int64_t ahead = outer.ahead / int64_t(sizeof(S));
    int64_t done = 0;
    const auto add = [&](bool first, bool last) {
      with_count(n, [&](auto count) {
        const auto one = [&](int64_t slot, int64_t at, Vn& sum) __attribute__((always_inline)) {
          if (ahead) fetch(from[0] + at + ahead);
          Vn best = read_as<V, N>(from[0] + at);
          if constexpr (can_be_nan) sum += best;
          for (int k = 1; k < count; ++k) {
            if (ahead) fetch(from[k] + at + ahead);
            const Vn v = read_as<V, N>(from[k] + at);
            if constexpr (can_be_nan) sum += v;
            best = R::beats(v, best) ? v : best;
          }
          if (!first) {
            const Vn before = read<V, N>(kept.values + slot);
            best = R::beats(best, before) ? best : before;
          }
          if (last)
            write_as<N, true, S, V>(reinterpret_cast<S*>(y) + at, best);
          else
            write(kept.values + slot, best);
        };
        int64_t c = 0;
        for (; c + 2 * N <= outer.lanes; c += 2 * N) {
          one(c, c, poison[0]);
          one(c + N, c + N, poison[1]);
        }
        // Some of the last ones are done twice, but kept apart: reading what was written by halves would wait.
        for (; c < outer.lanes; c += N) one(c, least(c, outer.lanes - N), poison[0]);
      });
      n = 0;
    };
    for (int64_t s = 0; s < outer.slabs; ++s)
      for (int64_t r = 0; r < outer.rows; ++r)
        for (int64_t t = 0; t < taps; ++t) {
          from[n++] = reinterpret_cast<const S*>(x + s * outer.slab_step + r * outer.row_step + t * step);
          ++done;
          if (n == at_a_time || done == all) add(done == n, done == all);
        }
    if constexpr (can_be_nan) return !nan_in(poison[0] + poison[1]);
    return true;
  }

  // All lanes of a tap before the next tap, as they lie in memory; the best so far wait in L1.
  static bool streamed_codes(const Problem& p, const Outer& outer, const char* x, int64_t taps, int64_t step,
                             char* y, char* extra, const Kept& kept) {
    Vn poison[2] = {};
    const auto add = [&](const S* from, C tap_code, bool first, bool last) __attribute__((always_inline)) {
      const auto one = [&](int64_t slot, int64_t at, Vn& sum) __attribute__((always_inline)) {
        const Vn v = read_as<V, N>(from + at);
        if constexpr (can_be_nan) sum += v;
        Vn best = v;
        Cn code = Cn{} + tap_code;
        if (!first) {
          best = read<V, N>(kept.values + slot);
          const auto better = R::beats(v, best);
          best = better ? v : best;
          if constexpr (coded) code = better ? code : read<C, N>(kept.codes + slot);
        }
        if (last) {
          write_as<N, true, S, V>(reinterpret_cast<S*>(y) + at, best);
          if constexpr (coded) write_codes<N>(p.extra, extra, at, code, outer.position);
        } else {
          write(kept.values + slot, best);
          if constexpr (coded) write(kept.codes + slot, code);
        }
      };
      int64_t c = 0;
      for (; c + 2 * N <= outer.lanes; c += 2 * N) {
        one(c, c, poison[0]);
        one(c + N, c + N, poison[1]);
      }
      for (; c < outer.lanes; c += N) one(c, least(c, outer.lanes - N), poison[0]);
    };
    const int64_t all = outer.slabs * outer.rows * taps;
    int64_t done = 0;
    C slab_code = outer.first;
    for (int64_t s = 0; s < outer.slabs; ++s, slab_code += outer.slab_code) {
      C row_code = slab_code;
      for (int64_t r = 0; r < outer.rows; ++r, row_code += outer.row_code) {
        const char* from = x + s * outer.slab_step + r * outer.row_step;
        C tap_code = row_code;
        for (int64_t t = 0; t < taps; ++t, from += step, tap_code += outer.col_code) {
          const S* tap = reinterpret_cast<const S*>(from);
          ++done;
          if (done == 1)
            add(tap, tap_code, true, all == 1);
          else if (done < all)
            add(tap, tap_code, false, false);
          else
            add(tap, tap_code, false, true);
        }
      }
    }
    if constexpr (can_be_nan) return !nan_in(poison[0] + poison[1]);
    return true;
  }

  static bool nan_in(Vn sum) { return any(sum != sum); }

  template <int W, bool speculative>
  static void vectors(const Problem& p, const Outer& outer, const char* x, int64_t taps, int64_t step,
                      char* y, char* extra, const Quotient<V>& by, int64_t lane, Vn (&poison)[4]) {
    Vn best[W];
    Cn code[W];
    x += lane * int64_t(sizeof(S));
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
              if (outer.ahead) fetch(from + outer.ahead + w * N * int64_t(sizeof(S)));
              const Vn v = read_as<V, N>(reinterpret_cast<const S*>(from) + w * N);
              auto better = R::beats(v, best[w]);
              if constexpr (coded) {
                if constexpr (can_be_nan && !speculative) better |= v != v;
                best[w] = better ? v : best[w];
                code[w] = better ? Cn{} + tap_code : code[w];
              } else {
                best[w] = better ? v : best[w];  // one instruction; a NaN would be lost
                if constexpr (can_be_nan && !speculative) best[w] = v != v ? v : best[w];
              }
              if constexpr (can_be_nan && speculative) poison[w % 4] += v;
            }
        }
      }
    } else {                                       // columns first
      for (int w = 0; w < W; ++w) best[w] = Vn{};  // also of windows with nothing in them
      for (int64_t t = 0; t < taps && outer.slabs * outer.rows > 0; ++t, x += step) {
        Vn down[W];
        for (int64_t s = 0; s < outer.slabs; ++s)
          for (int64_t r = 0; r < outer.rows; ++r) {
            const S* from = reinterpret_cast<const S*>(x + s * outer.slab_step + r * outer.row_step);
            for (int w = 0; w < W; ++w) {
              if (outer.ahead) fetch(reinterpret_cast<const char*>(from + w * N) + outer.ahead);
              const Vn v = read_as<V, N>(from + w * N);
              down[w] = s + r ? down[w] + v : v;
            }
          }
        for (int w = 0; w < W; ++w) best[w] += down[w];
      }
      if (p.divide)
        for (int w = 0; w < W; ++w) best[w] = by(best[w]);
    }
    for (int w = 0; w < W; ++w) {
      write_as<N, R::picks, S, V>(reinterpret_cast<S*>(y) + lane + w * N, best[w]);
      if constexpr (coded) write_codes<N>(p.extra, extra, lane + w * N, code[w], outer.position);
    }
  }
};

}  // namespace
}  // namespace ndpool

// The forward engine for channels-last arrays, called from forward/selection.h. It reduces each window in vectors
// of channels, in registers, or in L1 where a window has too many channels or taps. Lp pooling and results of
// another type stay out.
//
// Max pooling is speculative, as in the direct engine: it assumes that there is no NaN and adds up the elements
// that it reads; an output whose sum is NaN is computed again by the exact code.
//
// Without this engine max pooling 3 x 3 with stride 2 takes 2.8 times as long in training on 112 x 112 (ResNet), 2 x 2 takes
// 2.4 times as long in training on 56 x 56 (VGG).
#pragma once

#include "forward/general.h"
#include "simd.h"

namespace ndpool {
namespace {

template <class R, class S, bool indexed> struct ChannelsLast {
  static constexpr const char* engine = "channels_last";
  using V = typename R::V;
  using C = UnsignedLike<V>;
  static constexpr int N = wide<V>;
  static constexpr int max_block = vector_bytes < 64           ? 4
                                   : !R::is_max                ? 8
                                   : !std::is_same_v<S, float> ? 4
                                   : indexed                   ? 8
                                                               : 16;
  using Vn = Vec<V, N>;
  using Cn = Vec<C, N>;

  static bool supports(const Problem& p) {
    if (p.channels < N || p.op == Op::lp || p.n_axes > 3 || p.x_type != p.y_type) return false;
    if (!R::is_max && p.axes[p.n_axes - 1].kernel > sum_block) return false;
    if (p.x.channel != sizeof(S) || p.y.channel != sizeof(S)) return false;
    for (int a = 0; a < p.n_axes; ++a)
      if (!p.axes[a].regular() && p.axes[a].table_stride) return false;
    if constexpr (indexed) {
      const int64_t item = size_of(p.extra);
      double plane = 1;
      for (int a = 0; a < p.n_axes; ++a) plane *= double(p.axes[a].size);
      if (p.extra_array.channel != item || (item > 1 && sizeof(V) < 4) || plane > 4e9) return false;
    }
    return true;
  }

  static void prepare(Problem& p) {
    const Axis& last = p.axes[p.n_axes - 1];
    p.tile = max(1, min(ceil_div(last.out, ceil_div(p.threads, p.planes * p.rows)), 65536 / p.channels));
    p.tiles = ceil_div(last.out, p.tile);
    // Threads without an output share the channels of one.
    while (p.planes * p.tiles * p.rows < p.threads && p.channels % 2 == 0 && p.channels >= 4 * N &&
           p.n_lead < max_lead)
      halve_channels(p);
    p.units = p.planes * p.tiles * p.rows;
    p.scratch =
        Scratch::bytes<V>(scratch_elements(p)) + (indexed ? Scratch::bytes<C>(scratch_elements(p)) : 0);
  }

  static void halve_channels(Problem& p) {
    p.channels /= 2;
    p.planes *= 2;
    p.lead_shape[p.n_lead] = 2;
    for (Array* array : {&p.x, &p.y, &p.extra_array}) array->lead[p.n_lead] = p.channels * array->channel;
    ++p.n_lead;
  }

  // A window along all axes but the last: slabs x rows taps and their offsets.
  struct Outer {
    int64_t slabs, rows, slab_step, row_step;      // steps in bytes
    C first, slab_offset, row_offset, col_offset;  // of the first tap; from one to the next
    int64_t index;                                 // in the plane, of the first nominal tap
    int64_t share;
    int64_t channels;      // per call
    int64_t prefetch = 0;  // distance in bytes, or 0
  };

  static void run(const Problem& p, int64_t begin, int64_t end, char* memory) {
    Scratch scratch(memory);
    State state{scratch.take<V>(scratch_elements(p)),
                indexed ? scratch.take<C>(scratch_elements(p)) : nullptr, from_memory(p)};
    Walk<Over::outputs> walk(p, begin);
    const int last = p.n_axes - 1;
    int64_t divisor = p.divide && p.divisor ? p.divisor : 1;
    // Of overlapping windows most elements are in a cache already.
    const Axis& columns = p.axes[last];
    const bool disjoint = !columns.regular() || 2 * columns.stride > columns.kernel;
    const int64_t distance = disjoint && input_exceeds_cache(p) ? prefetch_distance(1, 1, 2) : 0;
    Quotient<V> quotient(divisor);
    for (int64_t unit = begin; unit < end; ++unit, walk.next()) {
      Outer outer;
      const char* x = walk.plane(p.x);
      locate(p, walk, outer, x);
      const int64_t o0 = walk.tile_begin(), o1 = walk.tile_end();
      char* y = walk.row(p.y, o0, o1).data;
      char* extra = indexed ? walk.row(p.extra_array, o0, o1).data : nullptr;
      for (int64_t o = o0; o < o1;
           ++o, y += p.y.pooled[last], extra += indexed ? p.extra_array.pooled[last] : 0) {
        const Window w = window(walk.last(), o);
        if (!R::is_max && p.divide && !p.divisor) {
          const int64_t share = outer.share * ndpool::share(walk.last(), o);
          if (share != divisor) quotient = Quotient<V>(divisor = share);
        }
        const Quotient<V> by = quotient;  // a local copy: no store to the results can alias it
        Outer here = outer;
        here.prefetch = distance;
        here.first += C(w.lead) * here.col_offset;
        here.index += begin_of(walk.last(), o);
        const int64_t step = walk.last().step * p.x.pooled[last];
        for (int64_t c = 0; c < p.channels; c += here.channels) {
          here.channels = p.channels - c < 2 * max_channels ? p.channels - c : max_channels;
          output(p, here, x + w.start * p.x.pooled[last] + c * int64_t(sizeof(S)), w.taps, step,
                 y + c * int64_t(sizeof(S)), extra + c * (indexed ? p.extra_array.channel : 0), by, state);
        }
      }
    }
  }

private:
  static constexpr bool can_be_nan = R::is_max && is_real<V>;
  static constexpr bool prefetches =
      std::is_same_v<S, float> || std::is_same_v<S, double>;  // loops of their own, to limit the code size
  // Channels per call: their partial results stay in L1.
  static constexpr int64_t max_channels = 16 * 1024 / sizeof(V) * (indexed ? 1 : 2);

  // Whether windows are read from memory: they are disjoint and the input exceeds the cache. Loops that prefetch keep up
  // with the outer cache, too, unless the channels of one element fill a page.
  static bool from_memory(const Problem& p) {
    const double cached = prefetches && p.channels * int64_t(sizeof(S)) < 4096 ? 20 << 20 : 4 << 20;  // bytes
    const Axis& last = p.axes[p.n_axes - 1];
    const double channels = double(p.planes) * double(p.channels);
    return (!last.regular() || last.stride >= last.kernel) &&
           channels * double(plane_elements(p)) * double(sizeof(S)) > cached;
  }

  // State between outputs: buffers for partial results that do not fit into registers, and whether windows are read
  // from memory.
  struct State {
    V* values;
    C* offsets;
    bool from_memory;
    Speculation speculation = {};
  };

  static int64_t scratch_elements(const Problem& p) {
    return R::is_max ? min(p.channels, 2 * max_channels) + N
                     : channels_summed(p) * p.axes[p.n_axes - 1].kernel;
  }

  static void locate(const Problem& p, const Walk<Over::outputs>& walk, Outer& outer, const char*& x) {
    const int n = p.n_axes - 1;
    const bool indices = p.extra == Extra::index64;
    const Axis& last = walk.last();
    outer = {1, 1, 0, 0, 0, 0, 0, C(indices ? last.step : 1), 0, 1, p.channels};
    if (n >= 1) {
      const Axis& a = walk.axis(n - 1);
      const int64_t o = walk.at(n - 1);
      const Window w = window(a, o);
      outer.rows = w.taps;
      outer.row_step = a.step * p.x.pooled[n - 1];
      outer.row_offset = C(indices ? a.step * last.size : last.kernel);
      outer.first += C(w.lead) * outer.row_offset;
      outer.index += begin_of(a, o) * last.size;
      outer.share *= p.divide && !p.divisor ? share(a, o) : 1;
      x += w.start * p.x.pooled[n - 1];
    }
    if (n == 2) {
      const Axis &a = walk.axis(0), &rows = walk.axis(1);
      const int64_t o = walk.at(0);
      const Window w = window(a, o);
      outer.slabs = w.taps;
      outer.slab_step = a.step * p.x.pooled[0];
      outer.slab_offset = C(indices ? a.step * rows.size * last.size : rows.kernel * last.kernel);
      outer.first += C(w.lead) * outer.slab_offset;
      outer.index += begin_of(a, o) * rows.size * last.size;
      outer.share *= p.divide && !p.divisor ? share(a, o) : 1;
      x += w.start * p.x.pooled[0];
    }
  }

  static void output(const Problem& p, const Outer& outer, const char* x, int64_t taps, int64_t step, char* y,
                     char* extra, const Quotient<V>& by, State& state) {
    const int64_t rows = outer.slabs * outer.rows;
    if constexpr (!R::is_max) {
      if (rows == 1 && outer.channels > 4 * N && (taps >= long_sum || (taps > 1 && state.from_memory)))
        return sum_streamed(p, outer, x, taps, step, reinterpret_cast<S*>(y), by, state.values);
      if ((rows > (outer.channels <= 4 * N ? 12 : 3) && taps > 1) || (rows > 0 && taps >= long_sum))
        return sum_rows(p, outer, x, taps, step, reinterpret_cast<S*>(y), by, state.values);
      in_registers<true>(p, outer, x, taps, step, y, extra, by);
    } else {
      const bool stream = outer.channels > max_block * N || (rows * taps > 16 && outer.channels > 4 * N);
      state.speculation.run(
          [&] {
            return stream && rows * taps > 0 ? max_streamed(p, outer, x, taps, step, y, extra, state)
                                             : in_registers<true>(p, outer, x, taps, step, y, extra, by);
          },
          [&] { in_registers<false>(p, outer, x, taps, step, y, extra, by); });
    }
  }

  template <bool speculative> static bool in_registers(const Problem& p, const Outer& outer, const char* x,
                                                       int64_t taps, int64_t step, char* y, char* extra,
                                                       const Quotient<V>& by) {
    Vn nan_sum[4] = {};  // several independent chains of additions
    int64_t c = 0;
    const auto block = [&](auto width, int64_t channel) __attribute__((always_inline)) {
      vectors<decltype(width)::value, speculative>(p, outer, x, taps, step, y, extra, by, channel, nan_sum);
    };
    if constexpr (speculative) {
      for (; c + max_block * N <= outer.channels; c += max_block * N)
        block(std::integral_constant<int, max_block>{}, c);
      if constexpr (max_block == 16)
        for (; c + 8 * N <= outer.channels; c += 8 * N) block(std::integral_constant<int, 8>{}, c);
    }
    for (; c + 4 * N <= outer.channels; c += 4 * N) block(std::integral_constant<int, 4>{}, c);
    if constexpr (!R::is_max) {
      // The last two or three vectors may overlap those before them.
      const int64_t left = ceil_div(outer.channels - c, N);
      if (left == 3 && outer.channels >= 3 * N)
        return block(std::integral_constant<int, 3>{}, outer.channels - 3 * N), false;
      if (left == 2 && outer.channels >= 2 * N)
        return block(std::integral_constant<int, 2>{}, outer.channels - 2 * N), false;
    }
    for (; c < outer.channels; c += N) block(std::integral_constant<int, 1>{}, min(c, outer.channels - N));
    if constexpr (can_be_nan && speculative)
      return contains_nan(nan_sum[0] + nan_sum[1] + (nan_sum[2] + nan_sum[3]));
    return false;
  }

  // Sums of large windows, row by row in memory order; the partial sums of the columns stay in L2.
  static void sum_rows(const Problem& p, const Outer& outer, const char* x, int64_t taps, int64_t step, S* y,
                       const Quotient<V>& by, V* sums) {
    const int64_t chunk = channels_summed(p);
    for (int64_t c = 0; c < outer.channels; c += chunk) {
      const int64_t n = min(chunk, outer.channels - c), first = n < N ? outer.channels - N : c;
      const int64_t vectors = ceil_div(n, N), rest = max(n, N) - N;  // the last vector may overlap
      // Several rows per pass, added in their order: seven (windows of 7 x 7 are common), then four.
      const auto add = [&](const char* row, auto rows, bool begin) {
        for (int64_t t = 0; t < taps; ++t, row += step)
          for (int64_t v = 0; v < vectors; ++v) {
            V* to = sums + (t * vectors + v) * N;
            const auto at = [&](int r) {
              return read_as<V, N>(reinterpret_cast<const S*>(row + r * outer.row_step) + first +
                                   min(v * N, rest));
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
        reduce_everywhere<R>(sums + v * N, N, taps, vectors * N, reinterpret_cast<V*>(&sum));
        if (p.divide) sum = by(sum);
        write_as<N, false, S, V>(y + first + min(v * N, rest), sum);
      }
    }
  }

  // Taps folded per pass. Taps within one page of memory are faster one per pass.
  static constexpr int tap_group = 4;
  static int taps_at_a_time(int64_t step) { return step > -4096 && step < 4096 ? 1 : tap_group; }
  template <class F> static void with_count(int64_t n, F&& f) {
    if (n == 1) return f(std::integral_constant<int, 1>{});
    if (n == 2) return f(std::integral_constant<int, 2>{});
    if (n == 3) return f(std::integral_constant<int, 3>{});
    f(std::integral_constant<int, tap_group>{});
  }

  // Sums of windows of a single row, tap by tap in memory order; the partial sums stay in cache. Long windows have
  // `interleaved` partial sums, which a tree adds up.
  static void sum_streamed(const Problem& p, const Outer& outer, const char* x, int64_t taps, int64_t step,
                           S* y, const Quotient<V>& by, V* sums) {
    const int64_t parts = taps < long_sum ? 1 : interleaved, at_a_time = taps_at_a_time(parts * step);
    const int64_t chunk = min(max_channels, max(N, scratch_elements(p) / parts / N * N));
    for (int64_t c = 0; c < outer.channels; c += chunk) {
      const int64_t n = min(chunk, outer.channels - c), first = n < N ? outer.channels - N : c;
      const int64_t vectors = ceil_div(n, N), rest = max(n, N) - N;  // the last vector may overlap
      const auto finish = [&](int64_t v, Vn sum) __attribute__((always_inline)) {
        if (p.divide) sum = by(sum);
        write_as<N, false, S, V>(y + first + min(v * N, rest), sum);
      };
      // Adds taps t, t + parts, ... to partial sum t % parts.
      const auto add = [&](int64_t t, bool last) {
        with_count(min(at_a_time, ceil_div(taps - t, parts)), [&](auto count) {
          const char* const from = x + t * step + first * int64_t(sizeof(S));
          V* const to = sums + t % parts * vectors * N;
          const auto sum_at = [=](int64_t j) __attribute__((always_inline)) {
            const S* at = reinterpret_cast<const S*>(from) + min(j, rest);
            if (outer.prefetch) prefetch(reinterpret_cast<const char*>(at) + outer.prefetch);
            Vn sum = t < parts ? read_as<V, N>(at) : read<V, N>(to + j) + read_as<V, N>(at);
            for (int k = 1; k < count; ++k) {
              at = reinterpret_cast<const S*>(reinterpret_cast<const char*>(at) + parts * step);
              if (outer.prefetch) prefetch(reinterpret_cast<const char*>(at) + outer.prefetch);
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

  // Channels summed per pass: the same for every window, whole or clipped.
  static int64_t channels_summed(const Problem& p) {
    constexpr int64_t cached = 128 * 1024 / sizeof(V);
    const int64_t taps = max(1, p.axes[p.n_axes - 1].kernel);
    return min(ceil_div(p.channels, N), max(8, cached / taps / N)) * N;
  }

  // Maxima in memory order: a few taps of all channels per pass; the best values so far stay in L1. True if there
  // is a NaN.
  static bool max_streamed(const Problem& p, const Outer& outer, const char* x, int64_t taps, int64_t step,
                           char* y, char* extra, const State& state) {
    if constexpr (indexed) return max_streamed_indexed(p, outer, x, taps, step, y, extra, state);
    Vn nan_sum[2] = {};
    const S* from[tap_group];
    int n = 0;
    const int64_t all = outer.slabs * outer.rows * taps, at_a_time = taps_at_a_time(step);
    const int64_t distance = outer.prefetch / int64_t(sizeof(S));
    int64_t done = 0;
    const auto add = [&](bool first, bool last) {
      with_count(n, [&](auto count) {
        const auto fold = [&](int64_t slot, int64_t at, Vn& sum) __attribute__((always_inline)) {
          if (distance) prefetch(from[0] + at + distance);
          Vn best = read_as<V, N>(from[0] + at);
          if constexpr (can_be_nan) sum += best;
          for (int k = 1; k < count; ++k) {
            if (distance) prefetch(from[k] + at + distance);
            const Vn v = read_as<V, N>(from[k] + at);
            if constexpr (can_be_nan) sum += v;
            best = merged<R, false>(v, best);
          }
          if (!first) {
            const Vn before = read<V, N>(state.values + slot);
            best = merged<R, false>(best, before);
          }
          if (last)
            write_as<N, true, S, V>(reinterpret_cast<S*>(y) + at, best);
          else
            write(state.values + slot, best);
        };
        int64_t c = 0;
        for (; c + 2 * N <= outer.channels; c += 2 * N) {
          fold(c, c, nan_sum[0]);
          fold(c + N, c + N, nan_sum[1]);
        }
        // The last vector overlaps the one before it in the arrays, but not in the buffer: a load of two partly
        // overlapping stores would stall.
        for (; c < outer.channels; c += N) fold(c, min(c, outer.channels - N), nan_sum[0]);
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
    if constexpr (can_be_nan) return contains_nan(nan_sum[0] + nan_sum[1]);
    return false;
  }

  // The same with offsets, one tap per pass.
  static bool max_streamed_indexed(const Problem& p, const Outer& outer, const char* x, int64_t taps,
                                   int64_t step, char* y, char* extra, const State& state) {
    Vn nan_sum[2] = {};
    const auto add = [&](const S* from, C tap_offset, bool first, bool last) __attribute__((always_inline)) {
      const auto fold = [&](int64_t slot, int64_t at, Vn& sum) __attribute__((always_inline)) {
        const Vn v = read_as<V, N>(from + at);
        if constexpr (can_be_nan) sum += v;
        Vn best = v;
        Cn offset = Cn{} + tap_offset;
        if (!first) {
          best = read<V, N>(state.values + slot);
          offset = read<C, N>(state.offsets + slot);
          merge_with_offset<R, false>(v, Cn{} + tap_offset, best, offset);
        }
        if (last) {
          write_as<N, true, S, V>(reinterpret_cast<S*>(y) + at, best);
          write_offsets<N>(p.extra, extra, at, offset, outer.index);
        } else {
          write(state.values + slot, best);
          write(state.offsets + slot, offset);
        }
      };
      int64_t c = 0;
      for (; c + 2 * N <= outer.channels; c += 2 * N) {
        fold(c, c, nan_sum[0]);
        fold(c + N, c + N, nan_sum[1]);
      }
      for (; c < outer.channels; c += N) fold(c, min(c, outer.channels - N), nan_sum[0]);
    };
    const int64_t all = outer.slabs * outer.rows * taps;
    int64_t done = 0;
    C slab_offset = outer.first;
    for (int64_t s = 0; s < outer.slabs; ++s, slab_offset += outer.slab_offset) {
      C row_offset = slab_offset;
      for (int64_t r = 0; r < outer.rows; ++r, row_offset += outer.row_offset) {
        const char* from = x + s * outer.slab_step + r * outer.row_step;
        C tap_offset = row_offset;
        for (int64_t t = 0; t < taps; ++t, from += step, tap_offset += outer.col_offset) {
          const S* tap = reinterpret_cast<const S*>(from);
          ++done;
          if (done == 1)
            add(tap, tap_offset, true, all == 1);
          else if (done < all)
            add(tap, tap_offset, false, false);
          else
            add(tap, tap_offset, false, true);
        }
      }
    }
    if constexpr (can_be_nan) return contains_nan(nan_sum[0] + nan_sum[1]);
    return false;
  }

  // W vectors of channels of one window, in registers.
  template <int W, bool speculative>
  static void vectors(const Problem& p, const Outer& outer, const char* x, int64_t taps, int64_t step,
                      char* y, char* extra, const Quotient<V>& by, int64_t channel, Vn (&nan_sum)[4]) {
    if (prefetches && outer.prefetch)
      fold<W, speculative, prefetches>(p, outer, x, taps, step, y, extra, by, channel, nan_sum);
    else
      fold<W, speculative, false>(p, outer, x, taps, step, y, extra, by, channel, nan_sum);
  }

  template <int W, bool speculative, bool prefetching>
  static void fold(const Problem& p, const Outer& outer, const char* x, int64_t taps, int64_t step, char* y,
                   char* extra, const Quotient<V>& by, int64_t channel, Vn (&nan_sum)[4]) {
    Vn best[W];
    Cn offset[W];
    x += channel * int64_t(sizeof(S));
    if constexpr (R::is_max) {
      for (int w = 0; w < W; ++w) {
        best[w] = Vn{} + R::init();
        if constexpr (indexed) offset[w] = Cn{} + outer.first;
      }
      C slab_offset = outer.first;
      for (int64_t s = 0; s < outer.slabs; ++s, slab_offset += outer.slab_offset) {
        C row_offset = slab_offset;
        for (int64_t r = 0; r < outer.rows; ++r, row_offset += outer.row_offset) {
          const char* from = x + s * outer.slab_step + r * outer.row_step;
          C tap_offset = row_offset;
          for (int64_t t = 0; t < taps; ++t, from += step, tap_offset += outer.col_offset)
            for (int w = 0; w < W; ++w) {
              if constexpr (prefetching) prefetch(from + outer.prefetch + w * N * int64_t(sizeof(S)));
              const Vn v = read_as<V, N>(reinterpret_cast<const S*>(from) + w * N);
              if constexpr (indexed)
                merge_with_offset<R, !speculative>(v, Cn{} + tap_offset, best[w], offset[w]);
              else
                best[w] = merged<R, !speculative>(v, best[w]);
              if constexpr (can_be_nan && speculative) nan_sum[w % 4] += v;
            }
        }
      }
    } else {  // down the columns first, then along the row; the sum of an empty window is zero
      for (int w = 0; w < W; ++w) best[w] = Vn{};
      for (int64_t t = 0; t < taps && outer.slabs * outer.rows > 0; ++t, x += step) {
        Vn column[W];
        const auto read_at = [&](const char* from, int w) __attribute__((always_inline)) {
          from += w * N * int64_t(sizeof(S));
          if constexpr (prefetching) prefetch(from + outer.prefetch);
          return read_as<V, N>(reinterpret_cast<const S*>(from));
        };
        for (int w = 0; w < W; ++w) column[w] = read_at(x, w);
        for (int64_t s = 0, first = 1; s < outer.slabs; ++s, first = 0)
          for (int64_t r = first; r < outer.rows; ++r)
            for (int w = 0; w < W; ++w) column[w] += read_at(x + s * outer.slab_step + r * outer.row_step, w);
        for (int w = 0; w < W; ++w) best[w] += column[w];
      }
      if (p.divide)
        for (int w = 0; w < W; ++w) best[w] = by(best[w]);
    }
    for (int w = 0; w < W; ++w) {
      write_as<N, R::is_max, S, V>(reinterpret_cast<S*>(y) + channel + w * N, best[w]);
      if constexpr (indexed) write_offsets<N>(p.extra, extra, channel + w * N, offset[w], outer.index);
    }
  }
};

}  // namespace
}  // namespace ndpool

// Max pooling with stride 1: on long packed rows, also of images with a few interleaved channels, and for large
// windows on packed rows of any length. The cost hardly depends on the window. Along a row, windows are built by
// doubling in registers. Down the columns, windows of 2, 3, 5 and 7 rows are computed two at a time and share
// their common part. Other heights use van Herk: a window is a suffix of one block of rows and a prefix of the
// next. Each new row is merged into the prefix and replaces a suffix that is no longer needed; a complete block is
// turned into its suffixes. Each row is read once, and one block of rows is stored. Called through stride1.cpp;
// short rows with small windows and channels-last arrays have engines of their own.
// Without this engine max pooling 31 x 31 takes 1.9 times as long on 512 x 512 floats and 1.6 times as long on a mask of
// bytes, 7 x 7 takes 1.7 times as long on an image of 1080 x 1920 with 3 channels of bytes.
#pragma once

#include "forward/stride1.h"
#include "forward/vertical.h"
#include "walk.h"

#if defined(__AVX512VL__)  // masked loads and stores are free

namespace ndpool {
namespace {

// For floats and for integers of 8 and 16 bits; signed integers are compared as unsigned ones with the highest bit
// inverted.
template <class R> struct LongMax {
  static constexpr const char* engine = "long_max";
  using V = typename R::V;
  static constexpr int N = wide<V>;
  static constexpr bool real = is_real<V>;
  static_assert(real ? std::is_same_v<V, float> : std::is_unsigned_v<V> && sizeof(V) <= 2);
  using Bits = UnsignedLike<V>;
  using Vn = Vec<V, N>;
  using Mask = MaskOf<V>;
  static constexpr int64_t max_tile = 4096 / sizeof(V), band_elements = 128 * 1024;

  static bool supports(const Problem& p) {
    if (p.n_axes != 2 || p.extra != Extra::none || !rows_contiguous(p, sizeof(V))) return false;
    if (real ? p.x_type != Dtype::f32 : !is_integer(p.x_type) || size_of(p.x_type) != sizeof(V)) return false;
    for (int a = 0; a < 2; ++a) {
      const Axis& axis = p.axes[a];
      if (!axis.regular() || axis.stride != 1 || axis.step != 1 || axis.kernel < 2) return false;
    }
    const int64_t k = p.axes[1].kernel, out = columns(p).out;
    if (runtime_shifts(p)) return p.channels <= 4 && k <= 8 && p.axes[0].kernel <= 8 && out >= 4 * N;
    if (k > 64 || p.axes[0].kernel > 256) return false;
    // Engines that put several short rows into one vector are faster on bytes and for small windows.
    if (real) return out >= 6 * N || min(k, p.axes[0].kernel) >= 4;
    return out >= 4 * N || (k > 16 && out >= N);
  }

  // Whether vectors are shifted by distances known only at run time, of at most one vector.
  static bool runtime_shifts(const Problem& p) { return p.channels > 1 || sizeof(V) == 2; }

  // A unit is a band of rows of a plane.
  static int64_t band_rows(const Problem& p) {
    return max(8 * p.axes[0].kernel, ceil_div(band_elements, columns(p).out));
  }
  static int64_t width(const Problem& p) {
    const int64_t out = columns(p).out, n = ceil_div(out, max_tile);
    return ceil_div(ceil_div(out, n), N) * N;
  }
  // No two lines are a page apart.
  static int64_t line_length(const Problem& p) { return width(p) + 5 * N; }

  static void prepare(Problem& p) {
    p.tile = p.axes[1].out;
    p.tiles = ceil_div(p.axes[0].out, band_rows(p));
    p.units = p.planes * p.tiles;
    p.scratch =
        Scratch::bytes<V>((p.axes[0].kernel + 5) * line_length(p)) + Scratch::bytes<Mask>(line_length(p) / N);
  }

  static void run(const Problem& p, int64_t begin, int64_t end, char* memory) {
    LongMax work(p, memory);
    each_tile(p, begin, end, band_rows(p), width(p), [&](const PlaneTile& t) { work.tile(t); });
  }

private:
  struct Line {  // one input row
    const V* x;
    V* slot;          // of the ring, for its windows
    const V* suffix;  // of the block before
    V* y;
  };

  const Problem& p_;
  const Axis &rows_, cols_;
  const int64_t line_length_;
  V *ring_, *prefix_, *identity_, *discarded_, *row_;
  Mask *inside_, last_mask_ = 0;
  int64_t n_ = 0;  // vectors of a row of results
  Speculation speculation_;
  Bits flip_ = 0;

  LongMax(const Problem& p, char* memory)
      : p_(p), rows_(p.axes[0]), cols_(columns(p)), line_length_(line_length(p)) {
    Scratch scratch(memory);
    ring_ = scratch.take<V>((rows_.kernel + 5) * line_length_);
    prefix_ = ring_ + rows_.kernel * line_length_;
    identity_ = prefix_ + line_length_;
    discarded_ = identity_ + line_length_;
    row_ = discarded_ + line_length_;  // two lines long
    inside_ = scratch.take<Mask>(line_length_ / N);
    for (int64_t j = 0; j < line_length_; ++j) identity_[j] = R::init();
    if (p.x_type == Dtype::i8 || p.x_type == Dtype::i16) flip_ = Bits(1ull << (8 * sizeof(V) - 1));
  }

  static Mask mask(int64_t from, int64_t to) {  // elements [from, to)
    const auto below = [](int64_t n) { return n <= 0 ? 0 : ~std::uint64_t(0) >> (64 - min(n, 64)); };
    return Mask(below(to) & ~below(from));
  }
  Vn flipped(Vn v) const {
    if constexpr (!real) v ^= Vn{} + flip_;
    return v;
  }
  Vn load(const V* p, Mask m) const {
    const Vn outside = flipped(broadcast<Vn>(R::init()));
    return flipped(read_where(m, p, outside));
  }
  void store(V* p, Mask m, Vn v) const { write_where(m, p, flipped(v)); }

  template <bool speculative> static Vn merge(Vn later, Vn best) {
    if constexpr (!real) {
      return larger(later, best);
    } else {
      return merged<R, !speculative>(later, best);
    }
  }

  // Steps double the windows up to 16 taps, then add 16 taps each; the last step adds the remaining taps.
  static constexpr int taps(int steps) { return steps < 4 ? 1 << steps : 16 * (steps - 3); }
  static constexpr int shift_of(int step) { return taps(step + 1) - taps(step); }

  // A shift by a distance known only at run time: the last step's, and every step's with interleaved channels.
  struct Shift {
    static constexpr bool is_byte = sizeof(V) == 1;
    Vec<Bits, N> from_a, from_b;

    Shift() = default;
    explicit Shift(int64_t by) {
      for (int c = 0; c < N; ++c) {
        const int64_t at = (is_byte ? c % 16 : c) + by;
        from_a[c] = Bits(!is_byte || at < 16 ? at : 0x80);
        from_b[c] = Bits(at < 16 ? 0x80 : at - 16);
      }
    }
    Vn operator()(Vn a, Vn b) const {
      if constexpr (is_byte)
        return shuffled_bytes_of_two(a, from_a, shifted_bytes<16>(a, b), from_b);
      else if constexpr (real)
        return permuted(a, b, reinterpret_cast<Ints>(from_a));
      else
        return permuted(a, b, from_a);
    }
  };
  template <int by> static Vn shift(Vn a, Vn b) {
    if constexpr (real && by == N)
      return b;
    else if constexpr (real)
      return shifted<by>(a, b);
    else
      return shifted_bytes<by>(a, b);
  }

  // Builds windows from the vectors of a row: 2, 4, ... taps. Step s works on the vector that step s - 1 produced
  // one vector earlier, so that no step waits for another. `fixed_shifts`: all shifts but the last are
  // compile-time constants.
  template <int S, bool fixed_shifts> struct Chain {
    static constexpr int lag = fixed_shifts ? 2 * S - 1 : S;
    Vn before[S], next[S];

    Chain() {
      for (int s = 0; s < S; ++s) before[s] = next[s] = broadcast<Vn>(R::init());
    }
    template <int s = S - 1> __attribute__((always_inline)) inline Vn step(Vn v, const Shift* shifts) {
      if constexpr (!fixed_shifts) return in_order(v, shifts);
      const Vn now = s ? next[s] : v, old = before[s];
      before[s] = now;
      Vn best;
      if constexpr (fixed_shifts && s < S - 1)
        best = merge<true>(shift<shift_of(s)>(old, now), old);
      else
        best = merge<true>(shifts[s](old, now), old);
      if constexpr (s > 0) next[s] = step<s - 1>(v, shifts);
      return best;
    }
    // A few steps may wait for each other; the lag is shorter.
    __attribute__((always_inline)) inline Vn in_order(Vn v, const Shift* shifts) {
      for (int s = 0; s < S; ++s) {
        const Vn old = before[s];
        before[s] = v;
        v = merge<true>(shifts[s](old, v), old);
      }
      return v;
    }
  };

  void tile(const PlaneTile& t) {
    const int64_t k = cols_.kernel;
    n_ = ceil_div(t.c1 - t.c0, N);
    last_mask_ = mask(0, t.c1 - t.c0 - (n_ - 1) * N);
    for (int64_t j = 0; j < line_length_ / N; ++j) {
      const int64_t from = t.c0 + cols_.origin + j * N;
      inside_[j] = mask(-from, cols_.size - from);
    }
    const auto try_speculative = [&]() {
      if (rows_.kernel == k && k == 2) return pairs<2, 1>(t);
      if (rows_.kernel == k && k == 3) return pairs<3, 2>(t);
      if (rows_.kernel == k && k == 5) return pairs<5, 3>(t);
      if (rows_.kernel == k && k == 7) return pairs<7, 3>(t);
      if (k <= 4) return run_speculative<2, false>(t);
      if (runtime_shifts(p_)) return run_speculative<3, false>(t);
      if constexpr (sizeof(V) != 2)
        return k > 48   ? run_speculative<7, true>(t)
               : k > 32 ? run_speculative<6, true>(t)
               : k > 16 ? run_speculative<5, true>(t)
               : k > 8  ? run_speculative<4, true>(t)
                        : run_speculative<3, true>(t);
      return false;
    };
    if constexpr (real)
      speculation_.run_large(try_speculative, [&] {
        return blocks<false>(t, [&](int64_t r0, int64_t r1, auto&& line) { return exact(r0, r1, line); });
      });
    else
      try_speculative();
  }

  // Windows of K rows (2 or an odd number), two output rows at a time; true if there was a NaN.
  template <int K, int S> bool pairs(const PlaneTile& t) const {
    constexpr int lag = Chain<S, false>::lag;
    Shift shifts[S];
    set_shifts<S>(shifts);
    PairLines<K, V> lines(ring_, line_length_);
    NanCheck<real ? N : 16> nan_check;
    const auto two_rows = [&](int64_t i, auto&& f) __attribute__((always_inline)) {
      const bool above = within(i, rows_), below = within(i + 1, rows_);
      const auto row = [&](int64_t i) {
        return reinterpret_cast<const V*>(t.x + i * p_.x.pooled[0]) + t.c0 + cols_.origin;
      };
      const V *x = row(above ? i : 0), *z = row(below ? i + 1 : 0);
      const int64_t distance = 2 * p_.x.pooled[0] / int64_t(sizeof(V));  // the next pair of rows
      Chain<S, false> upper, lower;
      for (int64_t j = 0; j < n_ + lag; ++j) {
        prefetch(x + distance + j * N);
        prefetch(z + distance + j * N);
        const Vn u = load(x + j * N, above ? inside_[j] : Mask(0)),
                 v = load(z + j * N, below ? inside_[j] : Mask(0));
        if constexpr (real) nan_check.add(u, v);
        const Vn g = upper.step(u, shifts), h = lower.step(v, shifts);
        if (j >= lag) f((j - lag) * N, g, h);
      }
    };
    int64_t i = t.o0 + rows_.origin - (K == 2);
    for (int k = 0; k < K / 2; ++k, i += 2)
      two_rows(i, [&](int64_t j, Vn v, Vn u) __attribute__((always_inline)) {
        if constexpr (K > 2) lines.begin(k, j, v, merge<true>);
        write(lines.odd + j, u);
      });
    const int64_t pitch = p_.y.pooled[0] / int64_t(sizeof(V));
    V* y = reinterpret_cast<V*>(t.y + t.o0 * p_.y.pooled[0]) + t.c0;
    for (int64_t o = t.o0; o < t.o1; o += 2, i += 2, y += 2 * pitch) {
      V* const z = o + 1 < t.o1 ? y + pitch : discarded_;
      two_rows(i, [&](int64_t j, Vn v, Vn u) __attribute__((always_inline)) {
        const Vn shared = K > 2 ? lines.shared(j, v, merge<true>) : v;
        const Vn top = merge<true>(shared, K > 2 ? lines.replace(j, v) : read<V, N>(lines.odd + j)),
                 bottom = merge<true>(u, shared);
        write(lines.odd + j, u);
        if (j < (n_ - 1) * N) {
          write(y + j, flipped(top));
          write(z + j, flipped(bottom));
        } else {
          store(y + j, last_mask_, top);
          store(z + j, last_mask_, bottom);
        }
      });
      lines.next();
    }
    return nan_check.any();
  }

  template <int S> void set_shifts(Shift* shifts) const {
    for (int s = 0; s < S; ++s)
      shifts[s] = Shift((s < S - 1 ? shift_of(s) : cols_.kernel - taps(S - 1)) * cols_.step);
  }

  template <int S, bool fixed_shifts> bool run_speculative(const PlaneTile& t) {
    Shift shifts[S];
    set_shifts<S>(shifts);
    return blocks<true>(t, [&](int64_t r0, int64_t r1, auto&& line) {
      return stream<S, fixed_shifts>(r0, r1, shifts, line);
    });
  }

  // van Herk: blocks of as many rows as a window has. `rows` computes the rows inside the input. True if there was
  // a NaN.
  template <bool speculative, class Rows> bool blocks(const PlaneTile& t, Rows&& rows) {
    const int64_t k = rows_.kernel, first = t.o0 + rows_.origin, end = t.o1 + rows_.origin + k - 1;
    int64_t lo_before = k, hi_before = 0;  // rows of the block before that are inside
    bool nan = false;
    for (int64_t i = first; i < end; i += k) {
      const int64_t lo = min(k, max(0, -i)), hi = max(lo, min(min(k, rows_.size - i), end - i));
      const auto line = [&](int64_t r) __attribute__((always_inline)) {
        const int64_t o = i + r - first - k + 1;
        return Line{reinterpret_cast<const V*>(t.x + (i + r) * p_.x.pooled[0]) + t.c0 + cols_.origin,
                    ring_ + r * line_length_,
                    r + 1 >= hi_before ? identity_ : ring_ + max(r + 1, lo_before) * line_length_,
                    o < 0 ? discarded_ : reinterpret_cast<V*>(t.y + (t.o0 + o) * p_.y.pooled[0]) + t.c0};
      };
      const auto outside = [&](int64_t r, int64_t r1, const V* prefix) {
        for (r = max(r, first + k - 1 - i); r < min(r1, end - i); ++r) {
          const Line l = line(r);
          for (int64_t j = 0; j < n_ * N; j += N)
            store(l.y + j, j < (n_ - 1) * N ? Mask(-1) : last_mask_,
                  merge<speculative>(read<V, N>(prefix + j), read<V, N>(l.suffix + j)));
        }
      };
      outside(0, lo, identity_);
      if (lo < hi) nan |= rows(lo, hi, line);
      outside(hi, k, lo < hi ? prefix_ : identity_);
      if (lo < hi && i + k < end) {
        int64_t j = 0;
        for (; j + 4 <= n_; j += 4) suffixes<4, speculative>(lo, hi, j * N);
        for (; j < n_; ++j) suffixes<1, speculative>(lo, hi, j * N);
      }
      lo_before = lo;
      hi_before = hi;
    }
    return nan;
  }

  // Turns a complete block into its suffixes: W vectors of every row.
  template <int W, bool speculative> void suffixes(int64_t lo, int64_t hi, int64_t j) const {
    Vn v[W];
    V* at = ring_ + (hi - 1) * line_length_ + j;
    for (int w = 0; w < W; ++w) v[w] = read<V, N>(at + w * N);
    for (int64_t r = hi - 2; r >= lo; --r) {
      at -= line_length_;
      for (int w = 0; w < W; ++w) {
        v[w] = merge<speculative>(v[w], read<V, N>(at + w * N));
        write(at + w * N, v[w]);
      }
    }
  }

  // Processes pairs of rows as one stream of vectors: each iteration reads one vector and produces an earlier one.
  template <int S, bool fixed_shifts, class F>
  __attribute__((noinline)) bool stream(int64_t r0, int64_t r1, const Shift* given, F&& line) const {
    const int64_t length = n_ + ceil_div((cols_.kernel - 1) * cols_.step, N), pairs = ceil_div(r1 - r0, 2);
    Shift shifts[S];
    for (int s = 0; s < S; ++s) shifts[s] = given[s];
    const Mask* const inside = inside_;
    const V* prefix = identity_;
    V* const new_prefix = prefix_;
    Chain<S, fixed_shifts> upper, lower;
    NanCheck<real ? N : 16> nan_check;
    // The last row of an odd number is paired with itself.
    const auto first_of = [&](int64_t m) { return line(min(r0 + 2 * m, r1 - 1)); };
    const auto second_of = [&](int64_t m) { return line(min(r0 + 2 * m + 1, r1 - 1)); };
    const V *x = first_of(0).x, *z = second_of(0).x;
    Line a = first_of(0), b = second_of(0);
    const int64_t distance = 2 * p_.x.pooled[0] / int64_t(sizeof(V));  // the next pair of rows
    int64_t i = 0, j = 0, in = 0, out = 0;
    for (int64_t at = -Chain<S, fixed_shifts>::lag; at < pairs * length; ++at) {
      prefetch(x + distance + i * N);
      prefetch(z + distance + i * N);
      const Vn u = load(x + i * N, inside[i]), v = load(z + i * N, inside[i]);
      if constexpr (real) nan_check.add(u, v);
      const Vn g = upper.step(u, shifts), h = lower.step(v, shifts);
      if (++i == length) {
        i = 0;
        ++in;
        x = first_of(in).x;
        z = second_of(in).x;
      }
      if (at < 0) continue;
      if (j < n_ * N) {
        const Vn one = merge<true>(g, read<V, N>(prefix + j)), two = merge<true>(h, one);
        const Vn y = merge<true>(one, read<V, N>(a.suffix + j)),
                 w = merge<true>(two, read<V, N>(b.suffix + j));
        write(a.slot + j, g);
        write(b.slot + j, h);
        write(new_prefix + j, two);
        if (j < (n_ - 1) * N) {
          write(a.y + j, flipped(y));
          write(b.y + j, flipped(w));
        } else {
          store(a.y + j, last_mask_, y);
          store(b.y + j, last_mask_, w);
        }
      }
      if ((j += N) == length * N) {
        j = 0;
        ++out;
        a = first_of(out);
        b = second_of(out);
        prefix = new_prefix;
      }
    }
    return nan_check.any();
  }

  // Exact: one row at a time, with windows doubled in memory.
  template <class F> bool exact(int64_t r0, int64_t r1, F&& line) const {
    const V* prefix = identity_;
    NanCheck<real ? N : 16> nan_check;
    for (int64_t r = r0; r < r1; ++r, prefix = prefix_) {
      const Line l = line(r);
      const int64_t k = cols_.kernel, length = n_ * N + ceil_div((k - 1) * cols_.step, N) * N;
      for (int64_t j = 0; j < length; j += N) {
        const Vn v = load(l.x + j, inside_[j / N]);
        nan_check.add(v, v);
        write(row_ + j, v);
      }
      for (int64_t m = 1, by; m < k; m += by) {
        by = min(m, k - m);
        for (int64_t j = 0; j < length; j += N)
          write(row_ + j, merge<false>(read<V, N>(row_ + j + by * cols_.step), read<V, N>(row_ + j)));
      }
      for (int64_t j = 0; j < n_ * N; j += N) {
        const Vn v = read<V, N>(row_ + j), all = merge<false>(v, read<V, N>(prefix + j)),
                 suffix = read<V, N>(l.suffix + j);
        write(l.slot + j, v);
        write(prefix_ + j, all);
        store(l.y + j, j < (n_ - 1) * N ? Mask(-1) : last_mask_, merge<false>(all, suffix));
      }
    }
    return nan_check.any();
  }
};

}  // namespace
}  // namespace ndpool

#endif

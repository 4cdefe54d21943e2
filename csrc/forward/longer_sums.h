// Sums of stride 1 on packed rows of floats, of images with a few interleaved channels, too. Rows enter in pairs: sums of 2 n
// or 2 n + 1 rows are made of sums of n rows, which wait in rings; sums of columns are made of these in the same way, in
// registers. Additions have the order of the sliding engine. Without this engine an average of 31 x 31 takes 1.4 times as
// long on 512 x 512, one of 9 x 9 1.3 times on an image of 719 x 1283 with 4 channels.
#pragma once

#include "forward/general.h"
#include "simd.h"

#if defined(__AVX512VL__)  // masks that cost nothing

namespace ndpool {
namespace {

struct LongerSums {
  static constexpr const char* engine = "longer_sums";
  using V = float;
  static constexpr int N = wide<V>, most_steps = 4;
  using Vn = Vec<V, N>;
  static constexpr int64_t band_elements = 32 * 1024;

  static bool serves(const Problem& p) {
    if (!packed_rows(p, sizeof(V))) return false;
    const int64_t k = square_kernel(p);
    return k >= 2 && p.lanes <= 4 && k / 2 * p.lanes <= N && k < 2 * N && columns(p).out > N;
  }

  static int64_t band_rows(const Problem& p) {
    return most(8 * p.axes[0].kernel, ceil_div(band_elements, columns(p).out));
  }
  static int64_t width(const Problem& p) {
    // The more rows wait, the narrower they are, so that they stay in L1.
    const int64_t widest = p.axes[0].kernel < 8 ? 1024 : 256;
    const int64_t out = columns(p).out, n = ceil_div(out, widest);
    return ceil_div(ceil_div(out, n), N) * N;
  }
  // A row of windows needs some vectors beyond its own, and sums come out some vectors after what they are made of.
  static constexpr int64_t beyond = 2, lag = 2 * most_steps - 1, batch_vectors = 64;
  static int64_t line(const Problem& p) { return width(p) + (beyond + 1) * N; }
  // Pairs of rows that are summed along at a time.
  static int64_t batch(const Problem& p) { return most(1, batch_vectors * N / line(p)); }
  static int64_t batch_elements(const Problem& p) { return batch(p) * line(p) + (2 * lag + beyond + 1) * N; }
  static int steps(int64_t kernel) { return 63 - __builtin_clzll(std::uint64_t(kernel)); }
  // Rows of sums of n that wait for others.
  static int64_t depth(int64_t n) { return n + 3; }
  static int64_t lines(int64_t kernel) {
    int64_t sum = 2;
    for (int64_t n = kernel >> 1; n > 1; n >>= 1) sum += depth(n);
    return sum;
  }

  static void prepare(Problem& p) {
    p.tile = p.axes[1].out;
    p.tiles = ceil_div(p.axes[0].out, band_rows(p));
    p.units = p.planes * p.tiles;
    p.scratch = Scratch::bytes<V>(lines(p.axes[0].kernel) * line(p)) +
                2 * Scratch::bytes<V>(batch_elements(p)) + Scratch::bytes<V>(columns(p).out + N) +
                Scratch::bytes<Part<N>>(line(p) / N);
  }

  static void run(const Problem& p, int64_t begin, int64_t end, char* memory) {
    LongerSums work(p, memory);
    const int64_t height = band_rows(p), out = work.cols_.out;
    for (int64_t unit = begin, n; unit < end; unit += n) {  // bands that follow one another are one
      const int64_t q = unit / p.tiles, first = unit % p.tiles;
      n = least(p.tiles - first, end - unit);
      for (int64_t c = 0; c < out; c += width(p)) {
        const Tile t{plane_of(p, p.x, q),
                     plane_of(p, p.y, q),
                     first * height,
                     least(p.axes[0].out, (first + n) * height),
                     c,
                     least(out, c + width(p))};
        work.steps_ == 4   ? work.tile<4>(t)
        : work.steps_ == 3 ? work.tile<3>(t)
        : work.steps_ == 2 ? work.tile<2>(t)
                           : work.tile<1>(t);
      }
    }
  }

private:
  struct Tile {
    const char* x;
    char* y;
    int64_t o0, o1, c0, c1;
  };
  // From sums of n to sums of 2 n, or 2 n + 1 if it is odd.
  struct Step {
    int64_t n;
    bool odd;
    Vec<std::int32_t, N> shift;  // of vectors by n
    V *ring, *end;               // rows of sums of n
    V *fresh[2], *old[3];        // rows to write and to read
  };

  const Problem& p_;
  const Axis &rows_, cols_;
  const int64_t line_;
  const int steps_;
  Step step_[most_steps];
  V *zero_, *unwanted_, *down_[2], *by_;  // by: what the columns contribute to the divisors
  Part<N>* inside_;
  V even_ = 0;  // the divisor, if all windows share it

  LongerSums(const Problem& p, char* memory)
      : p_(p), rows_(p.axes[0]), cols_(columns(p)), line_(line(p)), steps_(steps(rows_.kernel)) {
    Scratch scratch(memory);
    zero_ = scratch.take<V>(lines(rows_.kernel) * line_);
    unwanted_ = zero_ + line_;
    V* at = unwanted_ + line_;
    for (int l = 0; l < steps_; ++l) {
      Step& s = step_[l];
      s.n = rows_.kernel >> (steps_ - l);
      s.odd = rows_.kernel >> (steps_ - l - 1) & 1;
      for (int c = 0; c < N; ++c) s.shift[c] = c + int(s.n * cols_.step);
      s.ring = at;
      if (l > 0) at += depth(s.n) * line_;
      s.end = at;
    }
    for (int64_t j = 0; j < line_; ++j) zero_[j] = 0;
    for (V*& down : down_) {
      down = scratch.take<V>(batch_elements(p));
      for (int64_t j = 0; j < batch_elements(p); ++j) down[j] = 0;
      down += lag * N;
    }
    by_ = scratch.take<V>(cols_.out + N);
    inside_ = scratch.take<Part<N>>(line_ / N);
    bool even = true;
    for (int64_t o = 0; o < cols_.out + N; ++o) {
      by_[o] = V(!p.divide ? 1 : p.divisor ? p.divisor : o < cols_.out ? share(p.axes[1], o / p.lanes) : 1);
      even &= o >= cols_.out || by_[o] == by_[0];
    }
    // The shares in the middle are no less than those of both ends.
    if (even && p.divide &&
        (p.divisor || (share(rows_, 0) == rows_.uncropped && share(rows_, rows_.out - 1) == rows_.uncropped)))
      even_ = by_[0] * (p.divisor ? V(1) : V(rows_.uncropped));
  }

  template <int L> void tile(const Tile& t) {
    const int64_t n = ceil_div(t.c1 - t.c0, N), length = n + ceil_div((cols_.kernel - 1) * cols_.step, N);
    for (int64_t j = 0; j < length; ++j) {
      const int64_t from = t.c0 + cols_.origin + j * N;
      inside_[j] = Part<N>(-from, cols_.size - from);
    }
    for (int l = 1; l < L; ++l) {
      Step& s = step_[l];
      for (V* row = s.ring; row < s.end; row += line_)
        for (int64_t j = 0; j < length * N; j += N) write(row + j, Vn{});
      s.fresh[0] = s.ring;
      s.fresh[1] = s.ring + line_;
      s.old[0] = s.end - s.n * line_;
      s.old[1] = s.end - (s.odd ? s.n + 1 : s.n - 1) * line_;
      s.old[2] = s.end - line_;
    }
    const int64_t first = t.o0 + rows_.origin, last = first + rows_.kernel - 1, end = last + t.o1 - t.o0;
    // What is above the input is not met, but rows and results begin with a pair.
    int64_t i = least(last, most(first, 0)), pairs = 0;
    for (i -= (last - i) & 1; i < end; i += 2) {
      down<L>(t, i, first, end, length, pairs);
      if (i < last) continue;
      if (++pairs < batch(p_) && i + 2 < end) continue;
      across<L>(t, t.o0 + i - last - 2 * (pairs - 1), pairs, n, length);
      pairs = 0;
    }
  }

  // Rows i and i + 1: what they make of the sums of rows before them.
  template <int L>
  void down(const Tile& t, int64_t i, int64_t first, int64_t end, int64_t length, int64_t pair) {
    const V* x[4];
    for (int h = 0; h < 4; ++h) {
      const int64_t r = i - 2 + h;
      x[h] = r >= first && r < end && within(r, rows_)
                 ? reinterpret_cast<const V*>(t.x + r * p_.x.pooled[0]) + t.c0 + cols_.origin
                 : zero_;
    }
    V *fresh[L][2], *to[2] = {down_[0] + pair * length * N, down_[1] + pair * length * N};
    const V* old[L][3];
    bool odd[L];
    for (int l = 0; l < L; ++l) {
      Step& s = step_[l];
      odd[l] = s.odd;
      if (l == 0) continue;
      const auto next = [&](V*& row) {
        V* const at = row;
        row += 2 * line_;
        if (row >= s.end) row -= s.end - s.ring;
        return at;
      };
      for (int h = 0; h < 2; ++h) fresh[l][h] = next(s.fresh[h]);
      for (int h = 0; h < 3; ++h) old[l][h] = next(s.old[h]);
    }
    const int64_t ahead = 2 * p_.x.pooled[0] / int64_t(sizeof(V));
    for (int64_t j = 0; j < length; ++j) {
      const int64_t at = j * N;
      fetch(x[2] + ahead + at);  // processors see the row, but not the next ones
      fetch(x[3] + ahead + at);
      const Vn a = inside_[j].read(x[2] + at), b = inside_[j].read(x[3] + at),
               before = inside_[j].read(x[1] + at);
      Vn u = before + a, v = a + b;
      if (odd[0]) {
        v = u + b;
        u = inside_[j].read(x[0] + at) + before + a;
      }
      for (int l = 1; l < L; ++l) {
        write(fresh[l][0] + at, u);
        write(fresh[l][1] + at, v);
        const Vn middle = read<V, N>(old[l][0] + at), far = read<V, N>(old[l][1] + at);
        if (odd[l]) {
          v = multiplied_sum(middle + u, b);
          u = multiplied_sum(far + read<V, N>(old[l][2] + at), a);
        } else {
          u = middle + u;
          v = far + v;
        }
      }
      write(to[0] + at, u);
      write(to[1] + at, v);
    }
  }

  // Each step takes what the one before it made of the vector before, so that none waits for another.
  template <int L> struct Chain {
    Vn before[L], next[L];

    Chain() {
      for (int l = 0; l < L; ++l) before[l] = next[l] = Vn{};
    }
    // `x` is where the vector came from.
    template <int l = L - 1> __attribute__((always_inline)) inline Vn
    step(const Vec<std::int32_t, N>* shift, const bool* odd, const int64_t* twice, const V* x, Vn v) {
      const Vn now = l ? next[l] : v, old = before[l];
      before[l] = now;
      Vn sum = old + taken(old, now, shift[l]);
      if (odd[l]) sum = multiplied_sum(sum, read<V, N>(x - (2 * l + 1) * N + twice[l]));
      if constexpr (l > 0) next[l] = step<l - 1>(shift, odd, twice, x, v);
      return sum;
    }
  };

  // Pairs of rows that follow one another, from row o of the results on.
  template <int L> __attribute__((noinline)) void across(const Tile& t, int64_t o, int64_t pairs, int64_t n,
                                                         int64_t length) const {
    const Part<N> last(0, t.c1 - t.c0 - (n - 1) * N);
    Vec<std::int32_t, N> shift[L];
    bool odd[L];
    int64_t twice[L];
    for (int l = 0; l < L; ++l) {
      shift[l] = step_[l].shift;
      odd[l] = step_[l].odd;
      twice[l] = 2 * step_[l].n * cols_.step;
    }
    V* y[2];
    V outer[2];
    const auto begin = [&]() {
      for (int h = 0; h < 2; ++h, ++o) {
        y[h] = o < t.o1 ? reinterpret_cast<V*>(t.y + o * p_.y.pooled[0]) + t.c0 : unwanted_;
        outer[h] = V(p_.divide && !p_.divisor && o < rows_.out ? share(rows_, o) : 1);
      }
    };
    begin();
    Chain<L> upper, lower;
    const V *p = down_[0], *q = down_[1];
    const auto go = [&](auto&& finish) __attribute__((always_inline)) {
      for (int64_t left = pairs * length, j = -(2 * L - 1); left > 0; p += N, q += N) {
        Vn u = upper.step(shift, odd, twice, p, read<V, N>(p)),
           v = lower.step(shift, odd, twice, q, read<V, N>(q));
        if (j >= 0 && j < n) {
          const int64_t at = j * N;
          u = finish(u, at, 0);
          v = finish(v, at, 1);
          if (j < n - 1) {
            write(y[0] + at, u);
            write(y[1] + at, v);
          } else {
            last.write(y[0] + at, u);
            last.write(y[1] + at, v);
          }
        }
        left -= j >= 0;
        if (++j == length) {
          j = 0;
          begin();
        }
      }
    };
    if (!p_.divide) return go([&](Vn sum, int64_t, int) { return sum; });
    if (even_ != 0) return go([&](Vn sum, int64_t, int) { return sum / even_; });
    go([&](Vn sum, int64_t at, int h) {
      const Vn by = read<V, N>(by_ + t.c0 + at) * outer[h];
      return sum / (by == V(0) ? Vn{} + V(1) : by);
    });
  }
};

}  // namespace
}  // namespace ndpool

#endif

// Sum and average pooling with stride 1 on packed rows of floats, also of images with a few interleaved channels.
// Sums are doubled: rows enter in pairs; sums of 2 n or 2 n + 1 rows are made of sums of n rows, which are stored
// in rings; sums of columns are made from these in the same way, in registers. Additions have the order of the
// sliding engine. Called through stride1.cpp.
// Without this engine average pooling 31 x 31 takes 1.9 times as long on 512 x 512, 3 x 3 takes 1.6 times as long on an image
// of 1080 x 1920 with 3 channels.
#pragma once

#include "forward/stride1.h"
#include "walk.h"

#if defined(__AVX512VL__)  // masked loads and stores are free

namespace ndpool {
namespace {

struct LongerSums {
  static constexpr const char* engine = "longer_sums";
  using V = float;
  static constexpr int N = wide<V>, max_steps = 4;
  using Vn = Vec<V, N>;
  static constexpr int64_t band_elements = 32 * 1024;

  static bool supports(const Problem& p) {
    if (!rows_contiguous(p, sizeof(V))) return false;
    const int64_t k = square_kernel(p);
    return k >= 2 && p.channels <= 4 && k / 2 * p.channels <= N && k < 2 * N && columns(p).out > N;
  }

  static int64_t band_rows(const Problem& p) {
    return max(8 * p.axes[0].kernel, ceil_div(band_elements, columns(p).out));
  }
  static int64_t width(const Problem& p) {
    // Large windows store more rows, which must be narrower to stay in L1.
    const int64_t max_width = p.axes[0].kernel < 8 ? 1024 : 256;
    const int64_t out = columns(p).out, n = ceil_div(out, max_width);
    return ceil_div(ceil_div(out, n), N) * N;
  }
  // A row of windows reads `halo` vectors beyond its own; sums along a row lag up to `lag` vectors behind their
  // input.
  static constexpr int64_t halo = 2, lag = 2 * max_steps - 1, batch_vectors = 64;
  static int64_t line_length(const Problem& p) { return width(p) + (halo + 1) * N; }
  // Pairs of rows summed along the rows at a time.
  static int64_t batch(const Problem& p) { return max(1, batch_vectors * N / line_length(p)); }
  static int64_t batch_elements(const Problem& p) {
    return batch(p) * line_length(p) + (2 * lag + halo + 1) * N;
  }
  static int steps(int64_t kernel) { return 63 - __builtin_clzll(std::uint64_t(kernel)); }
  // Rows of sums of n in their ring.
  static int64_t ring_rows(int64_t n) { return n + 3; }
  static int64_t lines(int64_t kernel) {
    int64_t sum = 2;
    for (int64_t n = kernel >> 1; n > 1; n >>= 1) sum += ring_rows(n);
    return sum;
  }

  static void prepare(Problem& p) {
    p.tile = p.axes[1].out;
    p.tiles = ceil_div(p.axes[0].out, band_rows(p));
    p.units = p.planes * p.tiles;
    p.scratch = Scratch::bytes<V>(lines(p.axes[0].kernel) * line_length(p)) +
                2 * Scratch::bytes<V>(batch_elements(p)) + Scratch::bytes<V>(columns(p).out + N) +
                Scratch::bytes<MaskedFloats<N>>(line_length(p) / N);
  }

  static void run(const Problem& p, int64_t begin, int64_t end, char* memory) {
    LongerSums work(p, memory);
    each_tile(p, begin, end, band_rows(p), width(p), [&](const PlaneTile& t) {
      work.steps_ == 4   ? work.tile<4>(t)
      : work.steps_ == 3 ? work.tile<3>(t)
      : work.steps_ == 2 ? work.tile<2>(t)
                         : work.tile<1>(t);
    });
  }

private:
  // From sums of n to sums of 2 n, or 2 n + 1 if `odd`.
  struct Step {
    int64_t n;
    bool odd;
    Vec<std::int32_t, N> shift;  // lane indices of a shift by n
    V *ring, *end;               // rows of sums of n
    V *fresh[2], *old[3];        // rows to write and to read
  };

  const Problem& p_;
  const Axis &rows_, cols_;
  const int64_t line_length_;
  const int steps_;
  Step step_[max_steps];
  V *zero_, *discarded_, *down_[2];
  V* col_shares_;  // the columns' factor of the divisors
  MaskedFloats<N>* inside_;
  V uniform_divisor_ = 0;  // the divisor, if it is the same for all windows; otherwise 0

  LongerSums(const Problem& p, char* memory)
      : p_(p), rows_(p.axes[0]), cols_(columns(p)), line_length_(line_length(p)),
        steps_(steps(rows_.kernel)) {
    Scratch scratch(memory);
    zero_ = scratch.take<V>(lines(rows_.kernel) * line_length_);
    discarded_ = zero_ + line_length_;
    V* at = discarded_ + line_length_;
    for (int l = 0; l < steps_; ++l) {
      Step& s = step_[l];
      s.n = rows_.kernel >> (steps_ - l);
      s.odd = rows_.kernel >> (steps_ - l - 1) & 1;
      for (int c = 0; c < N; ++c) s.shift[c] = c + int(s.n * cols_.step);
      s.ring = at;
      if (l > 0) at += ring_rows(s.n) * line_length_;
      s.end = at;
    }
    for (int64_t j = 0; j < line_length_; ++j) zero_[j] = 0;
    for (V*& down : down_) {
      down = scratch.take<V>(batch_elements(p));
      for (int64_t j = 0; j < batch_elements(p); ++j) down[j] = 0;
      down += lag * N;
    }
    col_shares_ = scratch.take<V>(cols_.out + N);
    inside_ = scratch.take<MaskedFloats<N>>(line_length_ / N);
    bool uniform = true;
    for (int64_t o = 0; o < cols_.out + N; ++o) {
      col_shares_[o] = V(!p.divide       ? 1
                         : p.divisor     ? p.divisor
                         : o < cols_.out ? share(p.axes[1], o / p.channels)
                                         : 1);
      uniform &= o >= cols_.out || col_shares_[o] == col_shares_[0];
    }
    // Windows in the middle have no smaller share than those at both ends.
    if (uniform && p.divide &&
        (p.divisor || (share(rows_, 0) == rows_.uncropped && share(rows_, rows_.out - 1) == rows_.uncropped)))
      uniform_divisor_ = col_shares_[0] * (p.divisor ? V(1) : V(rows_.uncropped));
  }

  template <int L> void tile(const PlaneTile& t) {
    const int64_t n = ceil_div(t.c1 - t.c0, N), length = n + ceil_div((cols_.kernel - 1) * cols_.step, N);
    for (int64_t j = 0; j < length; ++j) {
      const int64_t from = t.c0 + cols_.origin + j * N;
      inside_[j] = MaskedFloats<N>(-from, cols_.size - from);
    }
    for (int l = 1; l < L; ++l) {
      Step& s = step_[l];
      for (V* row = s.ring; row < s.end; row += line_length_)
        for (int64_t j = 0; j < length * N; j += N) write(row + j, Vn{});
      s.fresh[0] = s.ring;
      s.fresh[1] = s.ring + line_length_;
      s.old[0] = s.end - s.n * line_length_;
      s.old[1] = s.end - (s.odd ? s.n + 1 : s.n - 1) * line_length_;
      s.old[2] = s.end - line_length_;
    }
    const int64_t first = t.o0 + rows_.origin, last = first + rows_.kernel - 1, end = last + t.o1 - t.o0;
    // Rows above the input are skipped, but input rows and output rows must begin with the same pair.
    int64_t i = min(last, max(first, 0)), pairs = 0;
    for (i -= (last - i) & 1; i < end; i += 2) {
      down<L>(t, i, first, end, length, pairs);
      if (i < last) continue;
      if (++pairs < batch(p_) && i + 2 < end) continue;
      across<L>(t, t.o0 + i - last - 2 * (pairs - 1), pairs, n, length);
      pairs = 0;
    }
  }

  // Adds rows i and i + 1 to the sums of the rows above: the two vertical sums that end with these rows.
  template <int L>
  void down(const PlaneTile& t, int64_t i, int64_t first, int64_t end, int64_t length, int64_t pair) {
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
        row += 2 * line_length_;
        if (row >= s.end) row -= s.end - s.ring;
        return at;
      };
      for (int h = 0; h < 2; ++h) fresh[l][h] = next(s.fresh[h]);
      for (int h = 0; h < 3; ++h) old[l][h] = next(s.old[h]);
    }
    const int64_t distance = 2 * p_.x.pooled[0] / int64_t(sizeof(V));  // the next pair of rows
    for (int64_t j = 0; j < length; ++j) {
      const int64_t at = j * N;
      prefetch(x[2] + distance + at);
      prefetch(x[3] + distance + at);
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
          v = fma_sum(middle + u, b);
          u = fma_sum(far + read<V, N>(old[l][2] + at), a);
        } else {
          u = middle + u;
          v = far + v;
        }
      }
      write(to[0] + at, u);
      write(to[1] + at, v);
    }
  }

  // Step l works on the vector that step l - 1 produced one vector earlier, so that no step waits for another.
  template <int L> struct Chain {
    Vn before[L], next[L];

    Chain() {
      for (int l = 0; l < L; ++l) before[l] = next[l] = Vn{};
    }
    // `x`: the address that v was read from.
    template <int l = L - 1> __attribute__((always_inline)) inline Vn
    step(const Vec<std::int32_t, N>* shift, const bool* odd, const int64_t* twice, const V* x, Vn v) {
      const Vn now = l ? next[l] : v, old = before[l];
      before[l] = now;
      Vn sum = old + permuted(old, now, shift[l]);
      if (odd[l]) sum = fma_sum(sum, read<V, N>(x - (2 * l + 1) * N + twice[l]));
      if constexpr (l > 0) next[l] = step<l - 1>(shift, odd, twice, x, v);
      return sum;
    }
  };

  // Sums along `pairs` consecutive pairs of rows; the first is output row o.
  template <int L> __attribute__((noinline)) void across(const PlaneTile& t, int64_t o, int64_t pairs,
                                                         int64_t n, int64_t length) const {
    const MaskedFloats<N> last(0, t.c1 - t.c0 - (n - 1) * N);
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
    const auto next_rows = [&]() {
      for (int h = 0; h < 2; ++h, ++o) {
        y[h] = o < t.o1 ? reinterpret_cast<V*>(t.y + o * p_.y.pooled[0]) + t.c0 : discarded_;
        outer[h] = V(p_.divide && !p_.divisor && o < rows_.out ? share(rows_, o) : 1);
      }
    };
    next_rows();
    Chain<L> upper, lower;
    const V *p = down_[0], *q = down_[1];
    const auto run = [&](auto&& finish) __attribute__((always_inline)) {
      for (int64_t remaining = pairs * length, j = -(2 * L - 1); remaining > 0; p += N, q += N) {
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
        remaining -= j >= 0;
        if (++j == length) {
          j = 0;
          next_rows();
        }
      }
    };
    if (!p_.divide) return run([&](Vn sum, int64_t, int) { return sum; });
    if (uniform_divisor_ != 0) return run([&](Vn sum, int64_t, int) { return sum / uniform_divisor_; });
    run([&](Vn sum, int64_t at, int h) {
      const Vn divisors = read<V, N>(col_shares_ + t.c0 + at) * outer[h];
      return sum / (divisors == V(0) ? Vn{} + V(1) : divisors);
    });
  }
};

}  // namespace
}  // namespace ndpool

#endif

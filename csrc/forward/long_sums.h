// Sums of long windows that move by one, of floats whose rows are neighbours: one pass over the rows. A vector of a
// new row goes through sums of 2 n or 2 n + 1 rows, made of those of n that wait in L1, and what comes out goes through
// sums of as many columns, made in registers. The order of additions is that of the sliding engine.
#pragma once

#include "forward/general.h"
#include "simd.h"

#if defined(__AVX512VL__)  // masks that cost nothing

namespace ndpool {
namespace {

struct LongSums {
  static constexpr const char* engine = "long_sums";
  using V = float;
  static constexpr int N = wide<V>;
  using Vn = Vec<V, N>;
  static constexpr int64_t band_elements = 32 * 1024, ring_elements = 8 * 1024, long_row = 4 * N;

  // How a window of K is doubled: before step l there are sums of `before` elements, after it twice as many and one more
  // if it is odd.
  template <int K> struct Steps {
    static constexpr int n = 31 - __builtin_clz(unsigned(K));
    static constexpr int before(int l) { return K >> (n - l); }
    static constexpr bool odd(int l) { return before(l + 1) & 1; }
    // Rows of those sums that wait for others.
    static constexpr int depth(int l) { return before(l) + (odd(l) ? 2 : 1); }
    static constexpr int rows() {
      int sum = 0;
      for (int l = 1; l < n; ++l) sum += depth(l);
      return sum;
    }
    static_assert(K <= N);
    static constexpr int64_t width =
        ring_elements / rows() / N;  // vectors of a tile, with what it lags behind
  };

  static bool serves(const Problem& p) {
    if (p.lanes != 1 || p.x.pooled[1] != sizeof(V) || p.y.pooled[1] != sizeof(V)) return false;
    const int64_t k = square_kernel(p);
    return p.axes[1].out >= long_row && (k == 5 || k == 7 || k == 9 || k == 11 || k == 13 || k == 15);
  }

  static int64_t band_rows(const Problem& p) {
    return most(8 * p.axes[0].kernel, ceil_div(band_elements, p.axes[1].out));
  }

  static void prepare(Problem& p) {
    p.tile = p.axes[1].out;
    p.tiles = ceil_div(p.axes[0].out, band_rows(p));
    p.units = p.planes * p.tiles;
    p.scratch = Scratch::bytes<V>(ring_elements) + Scratch::bytes<V>(p.axes[1].out + N) +
                2 * Scratch::bytes<Part<N>>(ring_elements / N);
  }

  static void run(const Problem& p, int64_t begin, int64_t end, char* memory) {
    LongSums work(p, memory);
    switch (p.axes[0].kernel) {
    case 5:
      return work.all<5>(begin, end);
    case 7:
      return work.all<7>(begin, end);
    case 9:
      return work.all<9>(begin, end);
    case 11:
      return work.all<11>(begin, end);
    case 13:
      return work.all<13>(begin, end);
    default:
      return work.all<15>(begin, end);
    }
  }

private:
  const Problem& p_;
  const Axis &rows_, &cols_;
  V *rings_, *by_;  // by: what the columns contribute to the divisors
  Part<N>*inside_, *nowhere_;

  LongSums(const Problem& p, char* memory) : p_(p), rows_(p.axes[0]), cols_(p.axes[1]) {
    Scratch scratch(memory);
    rings_ = scratch.take<V>(ring_elements);
    by_ = scratch.take<V>(cols_.out + N);
    inside_ = scratch.take<Part<N>>(ring_elements / N);
    nowhere_ = scratch.take<Part<N>>(ring_elements / N);
    for (int64_t j = 0; j < ring_elements / N; ++j) nowhere_[j] = Part<N>(0, 0);
    for (int64_t j = 0; j < ring_elements; ++j) rings_[j] = 0;
    for (int64_t o = 0; o < cols_.out + N; ++o)
      by_[o] = V(!p.divide ? 1 : p.divisor ? p.divisor : o < cols_.out ? share(cols_, o) : 1);
  }

  template <int K> void all(int64_t begin, int64_t end) {
    const int64_t height = band_rows(p_), step = (Steps<K>::width - Steps<K>::n) * N;
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t q = unit / p_.tiles, o = unit % p_.tiles * height;
      for (int64_t c = 0; c < cols_.out; c += step)
        tile<K>(plane_of(p_, p_.x, q), plane_of(p_, p_.y, q), o, least(rows_.out, o + height), c,
                least(cols_.out, c + step));
    }
  }

  // From sums of before(l) columns on; `d` holds the vectors that came last, `s` one of each step.
  template <int K, int l = 0> static Vn across(Vn* s, const Vn* d, Vn v) {
    using Step = Steps<K>;
    if constexpr (l < Step::n) {
      constexpr int n = Step::before(l);
      const Vn old = s[l];
      s[l] = v;
      Vn sum = old + shifted<n>(old, v);
      if constexpr (Step::odd(l)) sum += shifted<2 * n>(d[l + 1], d[l]);
      return across<K, l + 1>(s, d, sum);
    }
    return v;
  }

  template <int K>
  void tile(const char* plane_x, char* plane_y, int64_t o0, int64_t o1, int64_t c0, int64_t c1) {
    using Step = Steps<K>;
    constexpr int L = Step::n;
    const int64_t n = ceil_div(c1 - c0, N), line = (n + L) * N;
    for (int64_t j = 0; j < n + L; ++j) {
      const int64_t from = c0 + cols_.origin + j * N;
      inside_[j] = Part<N>(-from, cols_.size - from);
    }
    const Part<N> last(0, c1 - c0 - (n - 1) * N);
    const int64_t first = o0 + rows_.origin;
    char* y = plane_y + o0 * p_.y.pooled[0] + c0 * int64_t(sizeof(V));
    for (int64_t i = first; i < o1 - o0 + first + K - 1; ++i) {
      // Rows i, i - 1 and i - 2 of the input, and of each ring the row to write and those to read.
      const V* x[3];
      const Part<N>* there[3];
      for (int k = 0; k < 3; ++k) {
        const bool row = within(i - k, rows_) && i - k >= first;
        x[k] = reinterpret_cast<const V*>(plane_x + (row ? i - k : 0) * p_.x.pooled[0]) + c0 + cols_.origin;
        there[k] = row ? inside_ : nowhere_;
      }
      V *fresh[L], *old[L], *older[L];
      V* ring = rings_;
      for (int l = 1; l < L; ++l) {
        const int64_t depth = Step::depth(l), at = i - first;
        fresh[l] = ring + at % depth * line;
        old[l] = ring + (at + depth - 1) % depth * line;
        older[l] = ring + (at + 1) % depth * line;
        ring += depth * line;
      }
      const auto down = [&](int64_t j) __attribute__((always_inline)) {
        const Vn v = there[0][j].read(x[0] + j * N);
        Vn sum = there[1][j].read(x[1] + j * N);
        if constexpr (Step::odd(0)) sum = there[2][j].read(x[2] + j * N) + sum;
        sum += v;
        for (int l = 1; l < L; ++l) {
          write(fresh[l] + j * N, sum);
          if (Step::odd(l))
            sum = read<V, N>(older[l] + j * N) + read<V, N>(old[l] + j * N) + v;
          else
            sum = read<V, N>(older[l] + j * N) + sum;
        }
        return sum;
      };
      if (i < first + K - 1) {
        for (int64_t j = 0; j < n + L; ++j) down(j);
        continue;
      }
      const int64_t o = o0 + i - (first + K - 1);
      const V outer = V(p_.divide && !p_.divisor ? share(rows_, o) : 1);
      Vn s[L], d[L + 1];
      for (int l = 0; l < L; ++l) s[l] = Vn{};
      for (int l = 0; l <= L; ++l) d[l] = Vn{};
      for (int64_t j = 0; j < n + L; ++j) {
        for (int l = L; l > 0; --l) d[l] = d[l - 1];
        d[0] = down(j);
        Vn sum = across<K>(s, d, d[0]);
        if (j < L) continue;
        const int64_t at = (j - L) * N;
        if (p_.divide) {
          const Vn by = read<V, N>(by_ + c0 + at) * outer;
          sum /= by == V(0) ? Vn{} + V(1) : by;
        }
        V* to = reinterpret_cast<V*>(y) + at;
        j < n + L - 1 ? write(to, sum) : last.write(to, sum);
      }
      y += p_.y.pooled[0];
    }
  }
};

}  // namespace
}  // namespace ndpool

#endif

// Strips: common windows of stride 1 on packed rows of floats; of 3 x 3 also with dilation 2 and 3. A strip of columns
// goes down a plane in registers: rows are read in place, and masks leave out what lies outside. Maxima are taken along
// the rows first, by doubling, and then down the columns, where every two rows of results share what they have in
// common; those of long rows are left to `long_max`. Sums are added down the columns first. Without this engine max pooling 5 x 5 takes 4.4 times as long on 20 x 20 (SPPF), average
// pooling 3 x 3 takes 3.1 times as long on 35 x 35 (Inception).
#pragma once

#include "forward/general.h"
#include "forward/pairs.h"
#include "simd.h"

#if defined(__AVX512VL__)  // masks that cost nothing

namespace ndpool {
namespace {

template <class R> struct Strips {
  static constexpr const char* engine = "strips";
  using V = typename R::V;
  static_assert(std::is_same_v<V, float>);
  static constexpr int broad = wide<V>, slim = broad / 2;
  static constexpr int64_t band_elements = 32 * 1024, group_elements = 4 * 1024;
  static constexpr int64_t ahead = 1024;  // elements to those that are asked for: rows and planes to come
  static constexpr int64_t long_row = 6 * broad;  // whose maxima have an engine of their own

  static bool serves(const Problem& p) {
    if (p.lanes != 1 || p.x.pooled[1] != sizeof(V) || p.y.pooled[1] != sizeof(V)) return false;
    const int64_t k = square_kernel(p);
    if (R::picks && k == 0) return square_kernel(p, 2) == 3 || square_kernel(p, 3) == 3;
    if (R::picks && p.axes[1].out >= long_row) return false;
    return k == 3 || (R::picks && (k == 5 || k == 7 || k == 9 || k == 13));
  }

  // A unit is a band of rows of a plane, or of a few planes that are small and equally far apart.
  static int64_t band_rows(const Problem& p) {
    return most(8 * p.axes[0].kernel, ceil_div(band_elements, p.axes[1].out));
  }
  static int64_t group(const Problem& p) {
    if (p.n_lead != 1 || p.axes[0].out > band_rows(p)) return 1;
    return most(1, group_elements / (p.axes[0].out * p.axes[1].out));
  }
  static void prepare(Problem& p) {
    p.tile = p.axes[1].out;
    p.tiles = ceil_div(p.axes[0].out, band_rows(p));
    p.units = ceil_div(p.planes, group(p)) * p.tiles;
    p.scratch = R::picks ? 0 : Scratch::bytes<V>(p.axes[1].out + 4 * broad);
  }

  static void run(const Problem& p, int64_t begin, int64_t end, char* memory) {
    Strips work(p, memory);
    if constexpr (R::picks) {
      if (p.axes[0].step == 2) return work.template all<3, 2>(begin, end);
      if (p.axes[0].step == 3) return work.template all<3, 3>(begin, end);
      switch (p.axes[0].kernel) {
      case 5:
        return work.template all<5>(begin, end);
      case 7:
        return work.template all<7>(begin, end);
      case 9:
        return work.template all<9>(begin, end);
      case 13:
        return work.template all<13>(begin, end);
      }
    }
    work.template all<3>(begin, end);
  }

private:
  struct Band {
    const char* x;    // row 0 of the plane
    char* y;          // the band's first row
    int64_t o, rows;  // number of the first row of results, rows of results
    int64_t planes;   // in which the same is done
  };

  const Problem& p_;
  const Axis &rows_, &cols_;
  bool exact_ = false;  // after a NaN
  bool even_ = true;    // all windows share the divisor
  V* lines_ = nullptr;  // what the columns contribute to the divisors

  Strips(const Problem& p, char* memory) : p_(p), rows_(p.axes[0]), cols_(p.axes[1]) {
    if (!R::picks && p.divide) {
      lines_ = Scratch(memory).take<V>(cols_.out + 4 * broad);
      for (int64_t o = 0; o < cols_.out + 4 * broad; ++o)
        lines_[o] = V(p.divisor ? p.divisor : o < cols_.out ? share(cols_, o) : 1);
      // The shares in the middle are no less than those of both ends.
      even_ = p.divisor ||
              (share(rows_, 0) == rows_.uncropped && share(rows_, rows_.out - 1) == rows_.uncropped &&
               share(cols_, 0) == cols_.uncropped && share(cols_, cols_.out - 1) == cols_.uncropped);
    }
  }

  // K taps, D elements and rows apart.
  template <int K, int D = 1> void all(int64_t begin, int64_t end) {
    const int64_t planes = group(p_), height = band_rows(p_);
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t q = unit / p_.tiles * planes, o = unit % p_.tiles * height;
      band<K, D>({plane_of(p_, p_.x, q), plane_of(p_, p_.y, q) + o * p_.y.pooled[0], o,
                  least(height, rows_.out - o), least(planes, p_.planes - q)});
    }
  }

  // Strips of whole vectors, as many as there are registers for; what is left takes half vectors.
  template <int K, int D> void band(const Band& b) {
    constexpr int W = K <= 5 ? 4 : K == 7 ? 3 : 2, half = (K - 1) * D <= slim ? slim : broad;
    int64_t c = 0;
    for (; cols_.out - c >= W * broad; c += W * broad) strip<K, broad, W, D>(b, c);
    const int64_t left = ceil_div(cols_.out - c, slim);
    if (left == 1) return strip<K, half, 1, D>(b, c);
    constexpr int halves = half == slim ? 2 : 1;
    if (left == 2) return strip<K, half, halves, D>(b, c);
    if constexpr (W > 2) {
      if (left == 3) return strip<K, half, 3, D>(b, c);
      if (left >= 6) {
        strip<K, broad, 3, D>(b, c);
        return left == 6 ? void() : strip<K, broad, 1, D>(b, c + 3 * broad);
      }
    }
    if (left >= 3) strip<K, broad, 2, D>(b, c);
    if (left == 5) strip<K, half, 1, D>(b, c + 2 * broad);
  }

  template <int K, int N, int W, int D> void strip(const Band& b, int64_t c) {
    if constexpr (!R::picks) {
      even_ ? sums<N, W, true>(b, c) : sums<N, W, false>(b, c);
    } else {
      if (!exact_ && !best<K, N, W, D, true>(b, c)) return;
      carefully<K, D>(b, c, least(cols_.out, c + N * W));
    }
  }

  template <int K, int D = 1> void carefully(const Band& b, int64_t c, int64_t end) {
    exact_ = false;
    for (; c < end; c += broad) exact_ |= best<K, broad, 1, D, false>(b, c);
  }

  template <class T> static T* further(T* p, int64_t bytes) {
    using Byte = std::conditional_t<std::is_const_v<T>, const char, char>;
    return reinterpret_cast<T*>(reinterpret_cast<Byte*>(p) + bytes);
  }

  // Where the windows of column c begin in row i of a plane.
  const V* at(const char* x, int64_t i, int64_t c) const {
    return reinterpret_cast<const V*>(x + i * p_.x.pooled[0]) + c + cols_.origin;
  }

  // Those of the N elements from there on that exist.
  template <int N> Part<N> inside(int64_t c) const {
    return Part<N>(-(c + cols_.origin), cols_.size - (c + cols_.origin));
  }

  template <bool speculative, class Vn> static Vn merge(Vn later, Vn best) {
    auto better = R::beats(later, best);
    if constexpr (!speculative) better |= later != later;
    return better ? later : best;
  }

  // How much longer windows get that have M elements and shall have K, if they double as long as they can.
  static constexpr int more(int M, int K) { return M < K - M ? M : K - M; }

  // x[0 .. W] to the windows of K taps that begin in the first W of them.
  template <int K, int W, int D, bool speculative, int M = 1, class Vn> static void across(Vn* x) {
    if constexpr (M < K) {
      constexpr int more_taps = more(M, K), by = more_taps * D;
      for (int w = 0; w < W; ++w) x[w] = merge<speculative>(shifted<by>(x[w], x[w + 1]), x[w]);
      if constexpr (M + more_taps < K) x[W] = merge<speculative>(shifted<by>(x[W], x[W]), x[W]);
      across<K, W, D, speculative, M + more_taps>(x);
    }
  }

  // The maxima of a strip; true if there was a NaN. Where taps are apart, so are the rows that go together: every D-th.
  template <int K, int N, int W, int D, bool speculative> bool best(const Band& b, int64_t c) const {
    using Vn = Vec<V, N>;
    const Vn init = Vn{} + R::init();
    const int64_t x_pitch = D * p_.x.pooled[0], y_pitch = D * p_.y.pooled[0], sets = least(D, b.rows);
    const Part<N> last(0, cols_.out - c - (W - 1) * N);
    Part<N> there[W + 1];
    for (int w = 0; w <= W; ++w) there[w] = inside<N>(c + w * N);
    Met<N> nan;
    for (int64_t set = 0; set < b.planes * sets; ++set) {
      const int64_t q = set / sets, first = set % sets, rows = ceil_div(b.rows - first, D);
      int64_t i = b.o + rows_.origin + first;
      const V* x = at(b.x + q * p_.x.lead[0], i, c);
      V* y = reinterpret_cast<V*>(b.y + q * p_.y.lead[0] + first * p_.y.pooled[0]) + c;
      const auto next = [&](Vn* h) __attribute__((always_inline)) {
        Vn v[W + 1];
        for (int w = 0; w < W; ++w) fetch(x + ahead + w * N);
        if (within(i, rows_)) {
          for (int w = 0; w <= W; ++w) v[w] = there[w].read(x + w * N, init);
          for (int w = 0; w <= W; w += 2) nan.meet(v[w], v[w < W ? w + 1 : w]);
          across<K, W, D, speculative>(v);
        }
        for (int w = 0; w < W; ++w) h[w] = within(i, rows_) ? v[w] : init;
        i += D;
        x = further(x, x_pitch);
      };
      const auto put = [&](int64_t r, const Vn* v) __attribute__((always_inline)) {
        V* to = further(y, r * y_pitch);
        for (int w = 0; w < W - 1; ++w) write(to + w * N, v[w]);
        last.write(to + (W - 1) * N, v[W - 1]);
      };
      windows_in_pairs<K, W, Vn>(rows, merge<speculative, Vn>, next, put);
    }
    return nan.any();
  }

  // Sums of 3 x 3, columns first.
  template <int N, int W, bool even> void sums(const Band& b, int64_t c) const {
    using Vn = Vec<V, N>;
    const int64_t x_pitch = p_.x.pooled[0], y_pitch = p_.y.pooled[0];
    const Part<N> last(0, cols_.out - c - (W - 1) * N);
    Part<N> there[W + 1];
    for (int w = 0; w <= W; ++w) there[w] = inside<N>(c + w * N);
    const V all = p_.divide ? lines_[0] * (p_.divisor ? V(1) : V(rows_.uncropped)) : V(1);
    for (int64_t q = 0; q < b.planes; ++q) {
      int64_t i = b.o + rows_.origin;
      const V* x = at(b.x + q * p_.x.lead[0], i, c);
      V* y = reinterpret_cast<V*>(b.y + q * p_.y.lead[0]) + c;
      const auto next = [&](Vn* v) __attribute__((always_inline)) {
        const bool row = within(i, rows_);
        for (int w = 0; w < W; ++w) fetch(x + ahead + w * N);
        for (int w = 0; w <= W; ++w) v[w] = row ? there[w].read(x + w * N) : Vn{};
        ++i;
        x = further(x, x_pitch);
      };
      Vn above[W + 1], middle[W + 1];
      next(above);
      next(middle);
      for (int64_t r = 0; r < b.rows; ++r, y = further(y, y_pitch)) {
        Vn below[W + 1], down[W + 1];
        next(below);
        for (int w = 0; w <= W; ++w) {
          down[w] = above[w] + middle[w] + below[w];
          above[w] = middle[w];
          middle[w] = below[w];
        }
        const V outer = even ? V(1) : V(share(rows_, b.o + r));
        for (int w = 0; w < W; ++w) {
          Vn sum = down[w] + shifted<1>(down[w], down[w + 1]) + shifted<2>(down[w], down[w + 1]);
          if constexpr (even) {
            if (p_.divide) sum /= all;
          } else {
            const Vn by = read<V, N>(lines_ + c + w * N) * outer;
            sum /= by == V(0) ? Vn{} + V(1) : by;
          }
          if (w < W - 1)
            write(y + w * N, sum);
          else
            last.write(y + w * N, sum);
        }
      }
    }
  }
};

}  // namespace
}  // namespace ndpool

#endif

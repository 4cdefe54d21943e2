// Strips: common windows of stride 1 on packed rows of floats; windows of 3 x 3 also with dilation 2 and 3. A
// strip of columns moves down a plane in registers: rows are read in place, and masks exclude what is outside. Max
// pooling reduces along the rows first, by doubling, and then down the columns, where two consecutive output rows
// reuse their common part; average pooling adds down the columns first. Called through stride1.cpp; max pooling of
// long rows is left to long_max.h.
// Without this engine max pooling 5 x 5 takes 2.7 times as long on 20 x 20 (SPPF), average pooling 3 x 3 takes 1.8 times as
// long on 35 x 35 and 2.9 times on 17 x 17 (Inception).
#pragma once

#include "forward/stride1.h"
#include "forward/vertical.h"
#include "walk.h"

#if defined(__AVX512VL__)  // masked loads and stores are free

namespace ndpool {
namespace {

template <class R> struct Strips {
  static constexpr const char* engine = "strips";
  using V = typename R::V;
  static_assert(std::is_same_v<V, float>);
  static constexpr int full_lanes = wide<V>, half_lanes = full_lanes / 2;
  static constexpr int64_t band_elements = 32 * 1024, group_elements = 4 * 1024;
  static constexpr int64_t prefetch_elements = 1024;   // prefetch distance: later rows and planes
  static constexpr int64_t long_row = 6 * full_lanes;  // from here on long_max takes max pooling

  static bool supports(const Problem& p) {
    if (p.channels != 1 || p.x.pooled[1] != sizeof(V) || p.y.pooled[1] != sizeof(V)) return false;
    const int64_t k = square_kernel(p);
    if (R::is_max && k == 0) return square_kernel(p, 2) == 3 || square_kernel(p, 3) == 3;
    if (R::is_max && p.axes[1].out >= long_row) return false;
    return k == 3 || (R::is_max && (k == 5 || k == 7 || k == 9 || k == 13));
  }

  // A unit is a band of rows of a plane, or a group of small planes at a constant distance.
  static int64_t band_rows(const Problem& p) {
    return max(8 * p.axes[0].kernel, ceil_div(band_elements, p.axes[1].out));
  }
  static int64_t group(const Problem& p) {
    if (p.n_lead != 1 || p.axes[0].out > band_rows(p)) return 1;
    return max(1, group_elements / (p.axes[0].out * p.axes[1].out));
  }
  static void prepare(Problem& p) {
    p.tile = p.axes[1].out;
    p.tiles = ceil_div(p.axes[0].out, band_rows(p));
    p.units = ceil_div(p.planes, group(p)) * p.tiles;
    p.scratch = R::is_max ? 0 : Scratch::bytes<V>(p.axes[1].out + 4 * full_lanes);
  }

  static void run(const Problem& p, int64_t begin, int64_t end, char* memory) {
    Strips work(p, memory);
    if constexpr (R::is_max) {
      if (p.axes[0].step == 2) return work.template bands<3, 2>(begin, end);
      if (p.axes[0].step == 3) return work.template bands<3, 3>(begin, end);
      switch (p.axes[0].kernel) {
      case 5:
        return work.template bands<5>(begin, end);
      case 7:
        return work.template bands<7>(begin, end);
      case 9:
        return work.template bands<9>(begin, end);
      case 13:
        return work.template bands<13>(begin, end);
      }
    }
    work.template bands<3>(begin, end);
  }

private:
  struct Band {
    const char* x;    // row 0 of the plane
    char* y;          // the band's first row
    int64_t o, rows;  // first output row, number of output rows
    int64_t planes;   // planes that have the same band
  };

  const Problem& p_;
  const Axis &rows_, &cols_;
  Speculation speculation_;
  bool uniform_ = true;      // all windows have the same divisor
  V* col_shares_ = nullptr;  // the columns' factor of the divisors

  Strips(const Problem& p, char* memory) : p_(p), rows_(p.axes[0]), cols_(p.axes[1]) {
    if (!R::is_max && p.divide) {
      col_shares_ = Scratch(memory).take<V>(cols_.out + 4 * full_lanes);
      for (int64_t o = 0; o < cols_.out + 4 * full_lanes; ++o)
        col_shares_[o] = V(p.divisor ? p.divisor : o < cols_.out ? share(cols_, o) : 1);
      // Windows in the middle have no smaller share than those at both ends.
      uniform_ = p.divisor ||
                 (share(rows_, 0) == rows_.uncropped && share(rows_, rows_.out - 1) == rows_.uncropped &&
                  share(cols_, 0) == cols_.uncropped && share(cols_, cols_.out - 1) == cols_.uncropped);
    }
  }

  // K taps with dilation D.
  template <int K, int D = 1> void bands(int64_t begin, int64_t end) {
    const int64_t planes = group(p_), height = band_rows(p_);
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t q = unit / p_.tiles * planes, o = unit % p_.tiles * height;
      band<K, D>({plane_of(p_, p_.x, q), plane_of(p_, p_.y, q) + o * p_.y.pooled[0], o,
                  min(height, rows_.out - o), min(planes, p_.planes - q)});
    }
  }

  // Strips of W full vectors, as many as the registers hold; the last columns take narrower strips, in half
  // vectors if the window fits.
  template <int K, int D> void band(const Band& b) {
    constexpr int W = K <= 5 ? 4 : K == 7 ? 3 : 2;
    constexpr int narrow = (K - 1) * D <= half_lanes ? half_lanes : full_lanes;
    int64_t c = 0;
    for (; cols_.out - c >= W * full_lanes; c += W * full_lanes) strip<K, full_lanes, W, D>(b, c);
    const int64_t remaining = ceil_div(cols_.out - c, half_lanes);
    if (remaining == 1) return strip<K, narrow, 1, D>(b, c);
    constexpr int narrow_count = narrow == half_lanes ? 2 : 1;
    if (remaining == 2) return strip<K, narrow, narrow_count, D>(b, c);
    if constexpr (W > 2) {
      if (remaining == 3) return strip<K, narrow, 3, D>(b, c);
      if (remaining >= 6) {
        strip<K, full_lanes, 3, D>(b, c);
        return remaining == 6 ? void() : strip<K, full_lanes, 1, D>(b, c + 3 * full_lanes);
      }
    }
    if (remaining >= 3) strip<K, full_lanes, 2, D>(b, c);
    if (remaining == 5) strip<K, narrow, 1, D>(b, c + 2 * full_lanes);
  }

  template <int K, int N, int W, int D> void strip(const Band& b, int64_t c) {
    if constexpr (!R::is_max) {
      uniform_ ? sums<N, W, true>(b, c) : sums<N, W, false>(b, c);
    } else {
      speculation_.run_large([&] { return maxima<K, N, W, D, true>(b, c); },
                             [&] { return exact_maxima<K, D>(b, c, min(cols_.out, c + N * W)); });
    }
  }

  template <int K, int D> bool exact_maxima(const Band& b, int64_t c, int64_t end) const {
    bool nan = false;
    for (; c < end; c += full_lanes) nan |= maxima<K, full_lanes, 1, D, false>(b, c);
    return nan;
  }

  template <class T> static T* advanced(T* p, int64_t bytes) {
    using Byte = std::conditional_t<std::is_const_v<T>, const char, char>;
    return reinterpret_cast<T*>(reinterpret_cast<Byte*>(p) + bytes);
  }

  // The first tap of the windows of column c in row i of a plane.
  const V* at(const char* x, int64_t i, int64_t c) const {
    return reinterpret_cast<const V*>(x + i * p_.x.pooled[0]) + c + cols_.origin;
  }

  // Which of the N elements from `at(..., c)` on are inside the input.
  template <int N> MaskedFloats<N> part_inside(int64_t c) const {
    return MaskedFloats<N>(-(c + cols_.origin), cols_.size - (c + cols_.origin));
  }

  // How many taps one doubling step adds to windows of M taps on the way to K.
  static constexpr int growth(int M, int K) { return M < K - M ? M : K - M; }

  // From the vectors x[0 .. W] to windows of K taps, in x[0 .. W - 1].
  template <int K, int W, int D, bool speculative, int M = 1, class Vn> static void across(Vn* x) {
    if constexpr (M < K) {
      constexpr int more_taps = growth(M, K), by = more_taps * D;
      for (int w = 0; w < W; ++w) x[w] = merged<R, !speculative>(shifted<by>(x[w], x[w + 1]), x[w]);
      if constexpr (M + more_taps < K) x[W] = merged<R, !speculative>(shifted<by>(x[W], x[W]), x[W]);
      across<K, W, D, speculative, M + more_taps>(x);
    }
  }

  // Max pooling of a strip; true if there was a NaN. With dilation D, rows are processed in D interleaved sets:
  // every D-th row.
  template <int K, int N, int W, int D, bool speculative> bool maxima(const Band& b, int64_t c) const {
    using Vn = Vec<V, N>;
    const Vn init = Vn{} + R::init();
    const int64_t x_pitch = D * p_.x.pooled[0], y_pitch = D * p_.y.pooled[0], sets = min(D, b.rows);
    const MaskedFloats<N> last(0, cols_.out - c - (W - 1) * N);
    MaskedFloats<N> inside[W + 1];
    for (int w = 0; w <= W; ++w) inside[w] = part_inside<N>(c + w * N);
    NanCheck<N> nan;
    for (int64_t set = 0; set < b.planes * sets; ++set) {
      const int64_t q = set / sets, first = set % sets, rows = ceil_div(b.rows - first, D);
      int64_t i = b.o + rows_.origin + first;
      const V* x = at(b.x + q * p_.x.lead[0], i, c);
      V* y = reinterpret_cast<V*>(b.y + q * p_.y.lead[0] + first * p_.y.pooled[0]) + c;
      const auto next = [&](Vn* h) __attribute__((always_inline)) {
        Vn v[W + 1];
        for (int w = 0; w < W; ++w) prefetch(x + prefetch_elements + w * N);
        if (within(i, rows_)) {
          for (int w = 0; w <= W; ++w) v[w] = inside[w].read(x + w * N, init);
          for (int w = 0; w <= W; w += 2) nan.add(v[w], v[w < W ? w + 1 : w]);
          across<K, W, D, speculative>(v);
        }
        for (int w = 0; w < W; ++w) h[w] = within(i, rows_) ? v[w] : init;
        i += D;
        x = advanced(x, x_pitch);
      };
      const auto store = [&](int64_t r, const Vn* v) __attribute__((always_inline)) {
        V* to = advanced(y, r * y_pitch);
        for (int w = 0; w < W - 1; ++w) write(to + w * N, v[w]);
        last.write(to + (W - 1) * N, v[W - 1]);
      };
      windows_in_pairs<K, W, Vn>(rows, merged<R, !speculative, Vn>, next, store);
    }
    return nan.any();
  }

  // Sums of 3 x 3, down the columns first.
  template <int N, int W, bool uniform> void sums(const Band& b, int64_t c) const {
    using Vn = Vec<V, N>;
    const int64_t x_pitch = p_.x.pooled[0], y_pitch = p_.y.pooled[0];
    const MaskedFloats<N> last(0, cols_.out - c - (W - 1) * N);
    MaskedFloats<N> inside[W + 1];
    for (int w = 0; w <= W; ++w) inside[w] = part_inside<N>(c + w * N);
    const V divisor = p_.divide ? col_shares_[0] * (p_.divisor ? V(1) : V(rows_.uncropped)) : V(1);
    for (int64_t q = 0; q < b.planes; ++q) {
      int64_t i = b.o + rows_.origin;
      const V* x = at(b.x + q * p_.x.lead[0], i, c);
      V* y = reinterpret_cast<V*>(b.y + q * p_.y.lead[0]) + c;
      const auto next = [&](Vn* v) __attribute__((always_inline)) {
        const bool is_inside = within(i, rows_);
        for (int w = 0; w < W; ++w) prefetch(x + prefetch_elements + w * N);
        for (int w = 0; w <= W; ++w) v[w] = is_inside ? inside[w].read(x + w * N) : Vn{};
        ++i;
        x = advanced(x, x_pitch);
      };
      Vn above[W + 1], middle[W + 1];
      next(above);
      next(middle);
      for (int64_t r = 0; r < b.rows; ++r, y = advanced(y, y_pitch)) {
        Vn below[W + 1], down[W + 1];
        next(below);
        for (int w = 0; w <= W; ++w) {
          down[w] = above[w] + middle[w] + below[w];
          above[w] = middle[w];
          middle[w] = below[w];
        }
        const V outer = uniform ? V(1) : V(share(rows_, b.o + r));
        for (int w = 0; w < W; ++w) {
          Vn sum = down[w] + shifted<1>(down[w], down[w + 1]) + shifted<2>(down[w], down[w + 1]);
          if constexpr (uniform) {
            if (p_.divide) sum /= divisor;
          } else {
            const Vn divisors = read<V, N>(col_shares_ + c + w * N) * outer;
            sum /= divisors == V(0) ? Vn{} + V(1) : divisors;
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

// Tracks: common windows of stride 1, channels-last. Max pooling reduces along the rows first: a few vectors of
// channels move along a row and read each element once; neighbouring windows share partial results in registers,
// neighbouring rows in L1. Average pooling adds down the columns first. Called through stride1.cpp; packed rows of
// a single channel have engines of their own.
// Without this engine max pooling 5 x 5 takes 1.4 times as long on 20 x 20 (SPPF), average pooling 3 x 3 1.9 times as long on
// 35 x 35 (Inception).
#pragma once

#include "forward/stride1.h"
#include "forward/vertical.h"
#include "walk.h"

namespace ndpool {
namespace {

template <class R> struct Tracks {
  static constexpr const char* engine = "tracks";
  using V = typename R::V;
  static_assert(std::is_same_v<V, float>);
  static constexpr int N = wide<V>, max_vectors = vector_bytes == 64 ? 4 : 2;
  static constexpr int64_t line_elements = 8 * 1024, band_elements = 64 * 1024;
  // Channels summed at a time, and the distance between their lines in L1, chosen so that no two are a page apart.
  static constexpr int64_t max_channels = 512, line_pitch = max_channels + 3 * N;
  using Vn = Vec<V, N>;

  static bool supports(const Problem& p) {
    if (p.channels < N || p.x.channel != sizeof(V) || p.y.channel != sizeof(V)) return false;
    const int64_t k = square_kernel(p);
    return k == 3 || (R::is_max && (k == 5 || k == 7));
  }

  // A unit is a band of rows; for max pooling, a chunk of its channels: a few vectors, the last of which may
  // overlap.
  static int64_t band_rows(const Problem& p) {
    return max(8 * p.axes[0].kernel, ceil_div(band_elements, p.axes[1].out * p.channels)) / 2 * 2;
  }
  static int64_t chunks(const Problem& p) {
    return p.channels / (max_vectors * N) + ceil_div(p.channels % (max_vectors * N), N);
  }
  // The number of columns whose lines fill L1.
  static int64_t columns(int64_t kernel) { return line_elements / (kernel + 1) / (max_vectors * N) / 2 * 2; }

  static void prepare(Problem& p) {
    p.tile = p.axes[1].out;
    p.tiles = ceil_div(p.axes[0].out, band_rows(p));
    p.units = p.planes * p.tiles * (R::is_max ? chunks(p) : 1);
    p.scratch = Scratch::bytes<V>(R::is_max ? line_elements : 8 * line_pitch);
  }

  static void run(const Problem& p, int64_t begin, int64_t end, char* memory) {
    Tracks work(p, memory);
    const int64_t n = R::is_max ? chunks(p) : 1, height = band_rows(p);
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t q = unit / n / p.tiles, o = unit / n % p.tiles * height;
      const Band b{plane_of(p, p.x, q), plane_of(p, p.y, q), o, min(p.axes[0].out, o + height)};
      if constexpr (R::is_max)
        work.on_chunk(unit % n, b, [&]<int W>(const Band& channels) { work.template maxima<W>(channels); });
      else
        work.sums(b);
    }
  }

private:
  struct Band {
    const char* x;
    char* y;
    int64_t o0, o1;  // output rows
  };

  const Problem& p_;
  const Axis &rows_, &cols_;
  V* lines_;
  Speculation speculation_;

  Tracks(const Problem& p, char* memory)
      : p_(p), rows_(p.axes[0]), cols_(p.axes[1]), lines_(reinterpret_cast<V*>(memory)) {
    for (int64_t j = 0; j < line_pitch && !R::is_max; ++j) lines_[7 * line_pitch + j] = 0;
  }

  // Calls f<vectors>(band) for a chunk, with the band at its first channel.
  template <class F> void on_chunk(int64_t chunk, Band b, F&& f) const {
    const int64_t whole = p_.channels / (max_vectors * N);
    const bool single = chunk >= whole;
    const int64_t channel = single ? min(whole * max_vectors * N + (chunk - whole) * N, p_.channels - N)
                                   : chunk * max_vectors * N;
    b.x += channel * int64_t(sizeof(V));
    b.y += channel * int64_t(sizeof(V));
    single ? f.template operator()<1>(b) : f.template operator()<max_vectors>(b);
  }

  template <int W> void maxima(const Band& b) {
    const int64_t step = columns(cols_.kernel);
    for (int64_t c = 0; c < cols_.out; c += step) {
      const int64_t end = min(cols_.out, c + step);
      if (cols_.kernel == 3)
        tile<3, W>(b, c, end);
      else if (cols_.kernel == 5)
        tile<5, W>(b, c, end);
      else
        tile<7, W>(b, c, end);
    }
  }

  // Row by row, column by column, all channels of each, so that memory is accessed sequentially.
  void sums(const Band& b) const {
    const int64_t n = min(max_channels, p_.channels);
    for (int64_t channel = 0; channel < p_.channels; channel += max_channels) {
      const int64_t first = min(channel, p_.channels - n) * int64_t(sizeof(V));
      for (int64_t o = b.o0; o < b.o1; o += 2) sums(b.x + first, b.y + first, o, n);
    }
  }

  // Two rows of sums of 3 x 3, down the columns first; the sums of the two columns before stay in L1.
  void sums(const char* x, char* y, int64_t o, int64_t channels) const {
    V *left = lines_, *middle = left + 2 * line_pitch, *right = middle + 2 * line_pitch,
      *discarded = right + 2 * line_pitch;
    const V* outside = discarded + line_pitch;
    V outer[2];
    for (int h = 0; h < 2; ++h)
      outer[h] = V(p_.divide && !p_.divisor && o + h < rows_.out ? share(rows_, o + h) : 1);
    for (int64_t j = -2; j < cols_.out; ++j) {
      const int64_t c = j + 2 + cols_.origin, i = o + rows_.origin;
      const V* from[4];
      for (int r = 0; r < 4; ++r)
        from[r] = within(c, cols_) && within(i + r, rows_)
                      ? reinterpret_cast<const V*>(x + (i + r) * p_.x.pooled[0] + c * p_.x.pooled[1])
                      : outside;
      const auto down = [&](int64_t at, int h) __attribute__((always_inline)) {
        const Vn sum = read<V, N>(from[h] + at) + read<V, N>(from[h + 1] + at) + read<V, N>(from[h + 2] + at);
        write(right + h * line_pitch + at, sum);
        return sum;
      };
      if (j < 0) {
        for (int64_t l = 0; l < channels; l += N)
          for (int h = 0; h < 2; ++h) down(min(l, channels - N), h);
      } else {
        const V inner = V(p_.divisor ? p_.divisor : p_.divide ? share(cols_, j) : 1);
        V *to[2], by[2];
        for (int h = 0; h < 2; ++h) {
          to[h] = o + h < rows_.out ? reinterpret_cast<V*>(y + (o + h) * p_.y.pooled[0] + j * p_.y.pooled[1])
                                    : discarded;
          by[h] = inner * outer[h] == V(0) ? V(1) : inner * outer[h];
        }
        for (int64_t l = 0; l < channels; l += N) {
          const int64_t at = min(l, channels - N);
          for (int h = 0; h < 2; ++h) {
            Vn sum = read<V, N>(left + h * line_pitch + at) + read<V, N>(middle + h * line_pitch + at) +
                     down(at, h);
            if (p_.divide) sum /= by[h];
            write(to[h] + at, sum);
          }
        }
      }
      V* const oldest = left;
      left = middle;
      middle = right;
      right = oldest;
    }
  }

  template <int K, int W> void tile(const Band& b, int64_t c0, int64_t c1) {
    speculation_.run_large([&] { return window_maxima<K, W, true>(b, c0, c1); },
                           [&] { return window_maxima<K, W, false>(b, c0, c1); });
  }

  // Max pooling of the columns [c0, c1) of a band; true if there was a NaN.
  template <int K, int W, bool speculative> bool window_maxima(const Band& b, int64_t c0, int64_t c1) {
    const int64_t n = c1 - c0, x_step = p_.x.pooled[1], y_step = p_.y.pooled[1];
    PairLines<K, V> lines(lines_, n * W * N);
    V* const shared = lines_ + K * n * W * N;
    NanCheck<N> nan;
    const auto row = [&](int64_t i, auto&& out) __attribute__((always_inline)) {
      int64_t c = c0 + cols_.origin;
      const char* x = b.x + i * p_.x.pooled[0] + c * x_step;
      const bool is_inside = within(i, rows_);
      windows_in_pairs<K, W, Vn>(
          n, merged<R, !speculative, Vn>,
          [&](Vn* v) __attribute__((always_inline)) {
            if (is_inside && within(c, cols_)) {
              for (int w = 0; w < W; ++w) v[w] = read<V, N>(reinterpret_cast<const V*>(x) + w * N);
              for (int w = 0; w < W; w += 2) nan.add(v[w], v[w + 1 < W ? w + 1 : w]);
            } else {
              for (int w = 0; w < W; ++w) v[w] = Vn{} + R::init();
            }
            ++c;
            x += x_step;
          },
          out);
    };
    const auto store_odd = [&](int64_t j, Vn* v) __attribute__((always_inline)) {
      for (int w = 0; w < W; ++w) write(lines.odd + (j * W + w) * N, v[w]);
    };
    int64_t i = b.o0 + rows_.origin;
    for (int k = 0; k < K / 2; ++k, i += 2) {
      row(i, [&](int64_t j, Vn* v) __attribute__((always_inline)) {
        for (int w = 0; w < W; ++w) lines.begin(k, (j * W + w) * N, v[w], merged<R, !speculative, Vn>);
      });
      row(i + 1, store_odd);
    }
    char* y = b.y + b.o0 * p_.y.pooled[0] + c0 * y_step;
    for (int64_t o = b.o0; o < b.o1; o += 2, i += 2, y += 2 * p_.y.pooled[0]) {
      row(i, [&](int64_t j, Vn* v) __attribute__((always_inline)) {
        V* to = reinterpret_cast<V*>(y + j * y_step);
        for (int w = 0; w < W; ++w) {
          const int64_t at = (j * W + w) * N;
          const Vn common = lines.shared(at, v[w], merged<R, !speculative, Vn>);
          write(shared + at, common);
          write(to + w * N, merged<R, !speculative>(common, lines.replace(at, v[w])));
        }
      });
      lines.next();
      if (o + 1 == b.o1) break;
      row(i + 1, [&](int64_t j, Vn* v) __attribute__((always_inline)) {
        V* to = reinterpret_cast<V*>(y + p_.y.pooled[0] + j * y_step);
        for (int w = 0; w < W; ++w)
          write(to + w * N, merged<R, !speculative>(v[w], read<V, N>(shared + (j * W + w) * N)));
        store_odd(j, v);
      });
    }
    return nan.any();
  }
};

}  // namespace
}  // namespace ndpool

// Single sums: planes whose only window has stride 1, such as the last pooling of a network that does not call it global.
// Additions have the order of the sliding engine, by doubling, down the columns first; but only those of the one window are
// done, where the plane lies. Called by selection.h; windows that reach into padding stay out.
// Without this engine average pooling 7 x 7 with stride 1 of 7 x 7 (ResNet, DenseNet) takes 10 times as long.
#pragma once

#include "forward/sink.h"
#include "simd.h"

namespace ndpool {
namespace {

// x(first) + ... + x(first + n - 1) by doubling: the first half, the second half, and the last one if n is odd.
template <class F> __attribute__((noinline)) auto doubled_sum(int64_t first, int64_t n, const F& x)
    -> decltype(x(0)) {
  if (n == 1) return x(first);
  if (n == 2) return x(first) + x(first + 1);
  if (n == 3) return x(first) + x(first + 1) + x(first + 2);
  if (n == 4) return (x(first) + x(first + 1)) + (x(first + 2) + x(first + 3));
  const int64_t half = n / 2;
  const auto both = doubled_sum(first, half, x) + doubled_sum(first + half, half, x);
  return n % 2 ? both + x(first + n - 1) : both;
}

template <class V, class S> class SingleSums {
  static constexpr int N = wide<V>, L = N / 2;  // lanes: of channels, and of columns
  static constexpr int batch = 16;
  static constexpr int64_t block_channels = 16 * N, widest = 64, tallest = 128;  // of a window

public:
  static constexpr const char* engine = "single_sums";

  static bool supports(const Problem& p) {
    if (p.op != Op::sum || p.n_axes > 2 || !stored_as<S>(p.x_type) || is_integer(p.y_type)) return false;
    const int last = p.n_axes - 1;
    bool large = false;
    for (int a = 0; a < p.n_axes; ++a) {
      const Axis& axis = p.axes[a];
      if (!axis.regular() || axis.out != 1 || axis.stride != 1 || axis.step != 1 ||
          window(axis, 0).taps != axis.uncropped)
        return false;
      large |= axis.kernel > 3;
    }
    if (!large || p.axes[last].kernel > widest || p.axes[0].kernel > tallest) return false;
    if (p.channels > 1) return p.channels >= N && p.x.channel == sizeof(S);
    return p.x.pooled[last] == sizeof(S) && p.n_lead <= 1;
  }

  // A unit is a plane, or a block of its channels.
  static void prepare(Problem& p) {
    p.tile = 1;
    p.units = p.planes * blocks(p);
    p.scratch = 2 * Scratch::bytes<V>(sums_length(p)) +
                Scratch::bytes<S>(p.axes[0].kernel * p.axes[p.n_axes - 1].kernel + 2 * N);
  }

  static void run(const Problem& p, int64_t begin, int64_t end, char* memory) {
    const SingleSums work(p, memory);
    if (p.channels == 1) return work.planes(begin, end);
    for (int64_t unit = begin; unit < end; ++unit) work.channels(unit / blocks(p), unit % blocks(p));
  }

private:
  static int64_t blocks(const Problem& p) {
    return p.channels > 1 ? ceil_div(p.channels, block_channels) : 1;
  }
  // Elements from one row of sums to the next.
  static int64_t pitch(const Problem& p) { return ceil_div(p.axes[p.n_axes - 1].kernel, N) * N; }

  // Sums of the rows of a batch, and what vectors read past them; or of the columns of a block of channels, and halves.
  static int64_t sums_length(const Problem& p) {
    return p.channels > 1 ? max(16, p.axes[p.n_axes - 1].kernel) * block_channels
                          : batch * pitch(p) + 2 * widest + N;
  }

  struct Kernel2d {
    int64_t rows, cols;
  };

  const Problem& p_;
  const Kernel2d kernel_;
  // Bytes from one row to the next, from one column to the next, and to the first tap.
  const int64_t row_, col_, start_;
  const Readable readable_;
  const Store<V> store_;
  const V by_;
  V *sums_, *partial_;
  S* copy_;

  SingleSums(const Problem& p, char* memory)
      : p_(p), kernel_{p.n_axes == 2 ? p.axes[0].kernel : 1, p.axes[p.n_axes - 1].kernel},
        row_(p.n_axes == 2 ? p.x.pooled[0] : 0), col_(p.x.pooled[p.n_axes - 1]),
        start_((p.n_axes == 2 ? p.axes[0].origin * row_ : 0) + p.axes[p.n_axes - 1].origin * col_),
        readable_(p, p.x, sizeof(S), Over::inputs), store_(storer<V>(p.y_type, false)),
        by_(V(!p.divide   ? 1
              : p.divisor ? p.divisor
                          : kernel_.rows * kernel_.cols)) {
    Scratch scratch(memory);
    sums_ = scratch.take<V>(sums_length(p));
    partial_ = scratch.take<V>(sums_length(p));
    copy_ = scratch.take<S>(kernel_.rows * kernel_.cols + 2 * N);
  }

  // A few planes at a time.
  void planes(int64_t begin, int64_t end) const {
    const int64_t length = ceil_div(kernel_.cols, L) * L, pitch = SingleSums::pitch(p_);
    for (int64_t q = begin; q < end; q += batch) {
      const int64_t count = min(batch, end - q);
      for (int64_t k = 0; k < count; ++k) {
        const char* x = p_.x.data + (p_.n_lead ? (q + k) * p_.x.lead[0] : 0) + start_;
        int64_t row = row_;
        if (!readable_.contains(reinterpret_cast<const S*>(x + (kernel_.rows - 1) * row), length)) {
          for (int64_t r = 0; r < kernel_.rows; ++r)
            copy_exactly(reinterpret_cast<const S*>(x + r * row), copy_ + r * kernel_.cols, kernel_.cols);
          x = reinterpret_cast<const char*>(copy_);
          row = kernel_.cols * int64_t(sizeof(S));
        }
        for (int64_t j = 0; j < length; j += L)
          write(sums_ + k * pitch + j, doubled_sum(0, kernel_.rows, [=](int64_t r) {
                  return read_as<V, L>(reinterpret_cast<const S*>(x + r * row) + j);
                }));
      }
      V results[batch];
      const V* const sums = across(count * pitch);
      for (int64_t k = 0; k < count; ++k) results[k] = sums[k * pitch] / by_;
      store_(results,
             {p_.y.data + (p_.n_lead ? q * p_.y.lead[0] : 0), p_.n_lead ? p_.y.lead[0] : 0, 0, count, 1});
    }
  }

  // Sums along all rows, by doubling; only the first element of each is used.
  const V* across(int64_t length) const {
    const V* from = sums_;
    int64_t n = 1;
    for (int bit = 62 - __builtin_clzll(std::uint64_t(kernel_.cols)); bit >= 0; --bit) {
      const bool odd = kernel_.cols >> bit & 1;
      for (int64_t j = 0; j < length; j += L) {
        Vec<V, L> sum = read<V, L>(from + j) + read<V, L>(from + j + n);
        if (odd) sum += read<V, L>(sums_ + j + 2 * n);
        write(partial_ + j, sum);
      }
      from = partial_;
      n = 2 * n + odd;
    }
    return from;
  }

  // A block of the channels of a plane; the last vector of a block may overlap the one before it.
  void channels(int64_t plane, int64_t block) const {
    const int64_t first = min(block * block_channels, max(0, p_.channels - block_channels));
    const int64_t n = min(block_channels, p_.channels);
    const char* x = plane_of(p_, p_.x, plane) + start_ + first * int64_t(sizeof(S));
    V* const results = partial_;
    for (int64_t c = 0; c < kernel_.cols; ++c)
      sum_lines<S>(x + c * col_, row_, kernel_.rows, n, sums_ + c * block_channels, partial_);
    sum_lines<V>(reinterpret_cast<const char*>(sums_), block_channels * int64_t(sizeof(V)), kernel_.cols, n,
                 results, partial_ + block_channels);
    for (int64_t j = 0; j < n; ++j) results[j] /= by_;
    store_(results, {plane_of(p_, p_.y, plane) + first * p_.y.channel, 0, p_.y.channel, 1, n});
  }

  // Adds up `count` lines of n elements, at least a vector, `pitch` bytes apart, by doubling.
  template <class T> __attribute__((noinline)) static void
  sum_lines(const char* x, int64_t pitch, int64_t count, int64_t n, V* to, V* unused) {
    const auto each = [=](auto&& f) __attribute__((always_inline)) {
      for (int64_t j = 0; j < n; j += N) {
        const int64_t at = min(j, n - N);
        write(to + at, f(at));
      }
    };
    const auto line = [=](int64_t k, int64_t at) __attribute__((always_inline)) {
      return read_as<V, N>(reinterpret_cast<const T*>(x + k * pitch) + at);
    };
    if (count == 1) return each([=](int64_t at) { return line(0, at); });
    if (count == 2) return each([=](int64_t at) { return line(0, at) + line(1, at); });
    if (count == 3) return each([=](int64_t at) { return line(0, at) + line(1, at) + line(2, at); });
    const int64_t half = count / 2;
    V* const second = unused + block_channels;
    sum_lines<T>(x, pitch, half, n, unused, second);
    sum_lines<T>(x + half * pitch, pitch, half, n, second, second + block_channels);
    const auto both = [=](int64_t at) __attribute__((always_inline)) {
      return read<V, N>(unused + at) + read<V, N>(second + at);
    };
    if (count % 2) return each([=](int64_t at) { return both(at) + line(count - 1, at); });
    each(both);
  }
};

}  // namespace
}  // namespace ndpool

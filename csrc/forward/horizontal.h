// The horizontal step: reduces one row, already folded over the rows of a window, to the windows along it.
// Called by the general engine (general.h) and by engines that reduce rows themselves (blocks, channels_last,
// integer_averages). Loading rows, padding them, and dividing sums are left to the callers.
// Each position of a row holds `unit` contiguous elements: the channels of a channels-last array, or one
// element. A row is padded so that every regular window is whole. The loops run over flat elements, whatever
// the unit: they reduce a window at every position, then take_every() keeps those of the outputs.
//   Max and min use doubling: windows of 1, 2, 4, ... taps, then two overlapping ones form a window of any
//   length.
//   Sums add tap after tap. From 32 taps on they use 16 interleaved partial sums, which are added by halves at
//   the end; rows longer than 512 taps are sums of blocks of 512 taps.
// The order of additions therefore depends on the number of taps alone.
#pragma once

#include "forward/speculation.h"

namespace ndpool {
namespace {

constexpr int64_t long_sum = 32;    // taps from which on sums are interleaved
constexpr int interleaved = 16;     // partial sums
constexpr int64_t sum_block = 512;  // taps of a block

// dst[j] = f(j), a vector at a time. The last vector may write past n: scratch rows have room for it.
template <class V, class F> __attribute__((always_inline)) inline void each_vector(int64_t n, V* dst, F&& f) {
  constexpr int N = wide<V>;
  for (int64_t j = 0; j < n; j += N) write(dst + j, f(j));
}

// Reduces whole windows of `kernel` taps, `tap_stride` elements apart, at every element of a row: dst[j] for j
// < n. Sums take at most 512 taps. `x` and `dst` are scratch rows, which may be the same, with room for a
// vector past their ends.
template <class R, bool exact = true> void
reduce_everywhere(const typename R::V* x, int64_t n, int64_t kernel, int64_t tap_stride, typename R::V* dst) {
  using V = typename R::V;
  constexpr int N = wide<V>;
  if constexpr (exact && R::is_max && is_real<V>)
    if (!may_contain_nan(x, n + (kernel - 1) * tap_stride))
      return reduce_everywhere<R, false>(x, n, kernel, tap_stride, dst);
  if constexpr (R::is_max) {
    int64_t m = 1;
    for (; 4 * m <= kernel; m *= 2) {
      const int64_t shift = m * tap_stride;
      each_vector(n + (kernel - 2 * m) * tap_stride, dst,
                  [&](int64_t j) { return merged<R, exact>(read<V, N>(x + j + shift), read<V, N>(x + j)); });
      x = dst;
    }
    // The window is covered by 1 to 4 windows of m taps, the last of which may overlap.
    const int64_t parts = ceil_div(kernel, m), rest = (kernel - m) * tap_stride, middle = m * tap_stride;
    if (parts == 1)
      each_vector(n, dst, [&](int64_t j) { return read<V, N>(x + j); });
    else if (parts == 2)
      each_vector(n, dst,
                  [&](int64_t j) { return merged<R, exact>(read<V, N>(x + j + rest), read<V, N>(x + j)); });
    else
      each_vector(n, dst, [&](int64_t j) {
        const Vec<V, N> two = merged<R, exact>(read<V, N>(x + j + middle), read<V, N>(x + j));
        const int64_t more = kernel > 3 * m ? 2 * middle : rest;
        const Vec<V, N> three = merged<R, exact>(read<V, N>(x + j + more), two);
        return kernel > 3 * m ? merged<R, exact>(read<V, N>(x + j + rest), three) : three;
      });
  } else if (kernel < long_sum) {
    each_vector(n, dst, [&](int64_t j) {
      Vec<V, N> sum = read<V, N>(x + j);
      for (int64_t t = 1; t < kernel; ++t) sum = merged<R>(read<V, N>(x + j + t * tap_stride), sum);
      return sum;
    });
  } else {  // one block
    each_vector(n, dst, [&](int64_t j) {
      Vec<V, N> sums[interleaved];
      for (int64_t t = 0; t < interleaved; ++t) sums[t] = read<V, N>(x + j + t * tap_stride);
      for (int64_t t = interleaved; t < kernel; ++t) {
        Vec<V, N>& sum = sums[t % interleaved];
        sum = merged<R>(read<V, N>(x + j + t * tap_stride), sum);
      }
      for (int m = interleaved / 2; m > 0; m /= 2)
        for (int k = 0; k < m; ++k) sums[k] = merged<R>(sums[k + m], sums[k]);
      return sums[0];
    });
  }
}

// Reduces a vector to one element, by halves.
template <class R, bool exact = true, class Vx>
__attribute__((always_inline)) inline typename R::V reduce_vector(Vx v) {
  constexpr int n = length_of<Vx>;
  if constexpr (n >= 64) v = merged<R, exact>(shifted<n >= 64 ? 32 : 0>(v, v), v);
  if constexpr (n >= 32) v = merged<R, exact>(shifted<n >= 32 ? 16 : 0>(v, v), v);
  if constexpr (n >= 16) v = merged<R, exact>(shifted<n >= 16 ? 8 : 0>(v, v), v);
  if constexpr (n >= 8) v = merged<R, exact>(shifted<n >= 8 ? 4 : 0>(v, v), v);
  if constexpr (n >= 4) v = merged<R, exact>(shifted<n >= 4 ? 2 : 0>(v, v), v);
  v = merged<R, exact>(shifted<1>(v, v), v);
  return v[0];
}

// Reduces one block of at least 16 taps: 16 interleaved results, then by halves. Reads whole vectors past its end if
// `reads_past`.
template <class R, bool exact>
typename R::V reduce_block(const typename R::V* x, int64_t taps, bool reads_past) {
  using V = typename R::V;
  constexpr int N = min(interleaved, wide<V>), W = interleaved / N;
  using Vn = Vec<V, N>;
  Vn parts[W];
  for (int w = 0; w < W; ++w) parts[w] = read<V, N>(x + w * N);
  int64_t at = interleaved;
  for (; at + interleaved <= taps; at += interleaved)
    for (int w = 0; w < W; ++w) parts[w] = merged<R, exact>(read<V, N>(x + at + w * N), parts[w]);
  V copy[interleaved];
  const V* tail = x + at;
  if (at < taps && !reads_past) {
    for (int t = 0; t < interleaved && at + t < taps; ++t) copy[t] = tail[t];
    tail = copy;
  }
  for (int w = 0; w < W && at + w * N < taps; ++w) {
    const auto inside = lane_mask<V, N>(min(N, taps - at - w * N));
    parts[w] = merged<R, exact>(inside ? read<V, N>(tail + w * N) : broadcast<Vn>(R::init()), parts[w]);
  }
  for (int m = W / 2; m > 0; m /= 2)
    for (int w = 0; w < m; ++w) parts[w] = merged<R, exact>(parts[w + m], parts[w]);
  return reduce_vector<R, exact>(parts[0]);
}

// Reduces B windows of at least `long_sum` contiguous elements each, `gap` elements apart, at once, so that no addition
// waits for the one before it. Reads up to 15 elements past their ends. False if maxima met a NaN.
template <class R, int B, class S>
bool reduce_windows(const S* x, int64_t gap, int64_t taps, typename R::V (&dst)[B]) {
  using V = typename R::V;
  constexpr int N = min(interleaved, wide<V>), W = interleaved / N;
  using Vn = Vec<V, N>;
  constexpr bool can_be_nan = R::is_max && is_real<V>;
  Vn nan_sum[B] = {};
  for (int64_t first = 0; first < taps; first += sum_block, x += sum_block) {
    const int64_t length = min(sum_block, taps - first);
    V block[B];
    if (length < long_sum) {
      for (int b = 0; b < B; ++b) {
        block[b] = load_as<V>(x[b * gap]);
        for (int64_t t = 1; t < length; ++t) block[b] = R::merge(load_as<V>(x[b * gap + t]), block[b]);
        if constexpr (can_be_nan) nan_sum[b] += block[b];
      }
    } else {
      Vn parts[B][W];
      for (int b = 0; b < B; ++b)
        for (int w = 0; w < W; ++w) {
          parts[b][w] = read_as<V, N>(x + b * gap + w * N);
          if constexpr (can_be_nan) nan_sum[b] += parts[b][w];
        }
      int64_t at = interleaved;
      for (; at + interleaved <= length; at += interleaved)
        for (int b = 0; b < B; ++b)
          for (int w = 0; w < W; ++w) {
            prefetch(x + (b + B) * gap + at + w * N);  // the hardware prefetcher follows one stream per page
            const Vn v = read_as<V, N>(x + b * gap + at + w * N);
            if constexpr (can_be_nan) nan_sum[b] += v;
            parts[b][w] = merged<R, false>(v, parts[b][w]);
          }
      for (int w = 0; w < W && at + w * N < length; ++w) {
        const auto inside = lane_mask<V, N>(min(N, length - at - w * N));
        for (int b = 0; b < B; ++b) {
          const Vn v = inside ? read_as<V, N>(x + b * gap + at + w * N) : broadcast<Vn>(R::init());
          if constexpr (can_be_nan) nan_sum[b] += inside ? v : Vn{};
          parts[b][w] = merged<R, false>(v, parts[b][w]);
        }
      }
      for (int b = 0; b < B; ++b) {
        for (int m = W / 2; m > 0; m /= 2)
          for (int w = 0; w < m; ++w) parts[b][w] = merged<R, false>(parts[b][w + m], parts[b][w]);
        block[b] = reduce_vector<R, false>(parts[b][0]);
      }
    }
    for (int b = 0; b < B; ++b) dst[b] = first ? R::merge(block[b], dst[b]) : block[b];
  }
  for (int b = 1; b < B; ++b) nan_sum[0] += nan_sum[b];
  return !can_be_nan || !any(nan_sum[0] != nan_sum[0]);
}

// The maximum of at least a vector of elements, in any order: four independent vectors; the last one read may
// overlap.
template <class R, bool exact> typename R::V reduce_max(const typename R::V* x, int64_t taps) {
  using V = typename R::V;
  constexpr int N = wide<V>, streams = 4;
  using Vn = Vec<V, N>;
  Vn best[streams], nan_sums[streams] = {};
  for (Vn& b : best) b = read<V, N>(x);
  int64_t t = 0;
  const auto add = [&](int64_t at, int k) __attribute__((always_inline)) {
    const Vn v = read<V, N>(x + at);
    best[k] = merged<R, false>(v, best[k]);
    if constexpr (exact && is_real<V>) nan_sums[k] += v;
  };
  for (; t + streams * N <= taps; t += streams * N)
    for (int k = 0; k < streams; ++k) add(t + k * N, k);
  for (; t + N <= taps; t += N) add(t, 0);
  if (t < taps) add(taps - N, 1);
  if constexpr (exact && is_real<V>) {
    const Vn sum = nan_sums[0] + nan_sums[1] + (nan_sums[2] + nan_sums[3]);
    if (any(sum != sum)) {  // a NaN, or opposite infinities
      V value = R::init();
      for (int64_t k = 0; k < taps; ++k) value = R::merge(x[k], value);
      return value;
    }
  }
  const Vn two = merged<R, false>(best[1], best[0]), more = merged<R, false>(best[3], best[2]);
  return reduce_vector<R, false>(merged<R, false>(more, two));
}

// The maximum of fewer elements than a vector has, in vectors of L that read past the end.
template <class R, bool exact, int L>
__attribute__((noinline)) typename R::V reduce_few(const typename R::V* x, int64_t taps) {
  using V = typename R::V;
  const auto lane = lane_numbers<V, L>();
  Vec<V, L> best = broadcast<Vec<V, L>>(R::init());
  for (int64_t t = 0; t < taps; t += L) {
    const auto inside = lane < UnsignedLike<V>(min(L, taps - t));
    best = merged<R, exact>(inside ? read<V, L>(x + t) : broadcast<Vec<V, L>>(R::init()), best);
  }
  return reduce_vector<R, exact>(best);
}

// Reduces one window of `taps` contiguous elements. Vectors may read past its end; without `reads_past` only if a vector
// is longer.
template <class R, bool exact = true>
typename R::V reduce_window(const typename R::V* x, int64_t taps, bool reads_past = true) {
  using V = typename R::V;
  constexpr int few = min(wide<V>, 16), fewer = few >= 8 ? few / 2 : few;
  if constexpr (R::is_max) {
    if (taps >= wide<V>) return reduce_max<R, exact>(x, taps);
    if (taps > fewer) return reduce_few<R, exact, few>(x, taps);
    if (taps > 2) return reduce_few<R, exact, fewer>(x, taps);
  }
  constexpr int streams =
      interleaved / wide<V> >= 4 ? 1 : 4;  // with narrow vectors one block fills the registers
  const auto part = [reads_past](const V* x, int64_t taps) {
    if (taps >= long_sum) return reduce_block<R, exact>(x, taps, reads_past);
    V best = x[0];
    for (int64_t t = 1; t < taps; ++t) best = R::merge(x[t], best);
    return best;
  };
  if (taps <= sum_block) return part(x, taps);
  V all = part(x, sum_block);
  int64_t at = sum_block;
  for (; at + streams * sum_block <= taps; at += streams * sum_block) {
    V blocks[streams];
    reduce_windows<R>(x + at, sum_block, sum_block, blocks);
    for (const V& block : blocks) all = R::merge(block, all);
  }
  for (; at < taps; at += sum_block) all = R::merge(part(x + at, min(sum_block, taps - at)), all);
  return all;
}

// Reduces one window of `taps` contiguous positions of `unit` elements to `unit` results. `work` holds 16
// units.
template <class R> void reduce_window(const typename R::V* x, int64_t taps, int64_t unit, typename R::V* work,
                                      typename R::V* dst) {
  using V = typename R::V;
  constexpr int N = wide<V>;
  if (unit == 1) {
    *dst = reduce_window<R>(x, taps);
    return;
  }
  const auto add = [&](const V* from, V* to, int64_t n) {
    int64_t j = 0;
    for (; j + N <= n; j += N) write(to + j, merged<R>(read<V, N>(from + j), read<V, N>(to + j)));
    for (; j < n; ++j) to[j] = R::merge(from[j], to[j]);
  };
  for (int64_t first = 0; first < taps; first += sum_block, x += sum_block * unit) {
    const int64_t block_taps = min(sum_block, taps - first), length = block_taps * unit;
    const int64_t partial = (block_taps < long_sum ? 1 : interleaved) * unit;
    in_vectors(partial, [&](int64_t j) { work[j] = x[j]; });
    for (int64_t at = partial; at < length; at += partial) add(x + at, work, min(partial, length - at));
    for (int64_t n = partial / 2; n >= unit; n /= 2) add(work + n, work, n);
    if (first == 0)
      in_vectors(unit, [&](int64_t c) { dst[c] = work[c]; });
    else
      add(work, dst, unit);
  }
}

// Copies the first of every K elements: reads each K as one wide element and truncates it.
template <int K, class T> void take_every_wide(const T* __restrict x, int64_t n, T* __restrict dst) {
  constexpr int N = wide<T> / K;
  using Wide = typename UnsignedOf<K* int(sizeof(T))>::type;
  for (int64_t o = 0; o < n; o += N)
    write(dst + o,
          converted<Vec<UnsignedLike<T>, N>>(read<Wide, N>(reinterpret_cast<const Wide*>(x + K * o))));
}

// Copies every `stride`-th position of a row, `unit` elements each. `dst` has room for a vector past its end.
template <class T>
void take_every(const T* __restrict x, int64_t n, int64_t stride, int64_t unit, T* __restrict dst) {
  constexpr int N = wide<T>;
  if (unit == 1) {
    int64_t o = 0;
    if constexpr (sizeof(T) < 4) {
      if (stride == 2) return take_every_wide<2>(x, n, dst);
      if (stride == 4 && vector_bytes == 64) return take_every_wide<4>(x, n, dst);
    } else if (stride == 2) {
      for (; o < n; o += N) write(dst + o, evens(read<T, N>(x + 2 * o), read<T, N>(x + 2 * o + N)));
    }
    if constexpr (has_compress<T>)
      if (stride > 2 && stride <= N) {
        // `stride` vectors of input hold one vector of outputs. For each of them: a mask of its
        // elements to keep, and the output index of the first.
        std::uint32_t bits[N] = {};
        int64_t first[N];
        for (int64_t k = N - 1; k >= 0; --k) {
          bits[k * stride / N] |= 1u << k * stride % N;
          first[k * stride / N] = k;
        }
        for (; o < n; o += N, x += N * stride)
          for (int64_t k = 0; k < stride && o + first[k] < n; ++k)
            write(dst + o + first[k], compressed(read<T, N>(x + k * N), bits[k]));
        return;
      }
    for (; o < n; ++o) __builtin_memcpy(dst + o, x + o * stride, sizeof(T));
    return;
  }
  // Positions of 4 bytes are copied as words; one shuffle of 16 bytes copies several positions that are
  // shorter.
  if constexpr (sizeof(T) < 4)
    if (unit * int64_t(sizeof(T)) == 4)
      return take_every(reinterpret_cast<const std::uint32_t*>(x), n, stride, 1,
                        reinterpret_cast<std::uint32_t*>(dst));
  if constexpr (sizeof(T) == 1 && has_byte_shuffle)
    if (const int64_t step = stride * unit, per_load = (16 - unit) / step + 1; unit < 16 && per_load > 1) {
      Sixteen bytes;
      for (int64_t j = 0; j < 16; ++j)
        bytes[j] = std::uint8_t(j < per_load * unit ? j / unit * step + j % unit : 0x80);
      for (int64_t o = 0; o < n; o += per_load)
        write(dst + o * unit,
              shuffled_bytes(read<std::uint8_t, 16>(reinterpret_cast<const std::uint8_t*>(x + o * step)),
                             bytes));
      return;
    }
  if constexpr (has_permute<T>)
    if (stride == 2 && unit <= N / 2) {  // one permutation of two vectors gives N / unit outputs
      const int64_t step = N / unit * unit;
      Vec<UnsignedLike<T>, N> index;
      for (int64_t j = 0; j < N; ++j) index[j] = UnsignedLike<T>(j / unit * 2 * unit + j % unit);
      for (int64_t j = 0; j < n * unit; j += step)
        write(dst + j, permuted(read<T, N>(x + 2 * j), read<T, N>(x + 2 * j + N), index));
      return;
    }
  const auto copy = [&](auto vector) {
    constexpr int L = decltype(vector)::value;
    for (int64_t o = 0; o < n; ++o)
      for (int64_t c = 0; c < unit; c += L) write(dst + o * unit + c, read<T, L>(x + o * stride * unit + c));
  };
  if (unit <= 16 / int64_t(sizeof(T)))
    copy(std::integral_constant<int, 16 / sizeof(T)>{});
  else if (vector_bytes >= 32 && unit <= 32 / int64_t(sizeof(T)))
    copy(std::integral_constant<int, min(vector_bytes, 32) / sizeof(T)>{});
  else
    copy(std::integral_constant<int, N>{});
}

// Brings every K-th element of K successive vectors into one vector: splits pairs into evens and odds, log2 K
// times.
template <class T, int K> __attribute__((always_inline)) inline void unzip(T (&x)[K]) {
  for (int m = 1; m < K; m *= 2) {
    T y[K];
    for (int k = 0; k < K / 2; ++k) {
      y[k] = evens(x[2 * k], x[2 * k + 1]);
      y[k + K / 2] = odds(x[2 * k], x[2 * k + 1]);
    }
    for (int k = 0; k < K; ++k) x[k] = y[k];
  }
}

// Whether the windows of an axis are 4 or 8 elements without gaps, whose elements `unzip` brings into vectors.
inline bool unzips(const Axis& a) {
  return a.regular() && a.stride == a.kernel && (a.kernel == 4 || a.kernel == 8);
}

// Splits a row of n times `stride` elements: part r, `length` elements long, has every `stride`-th element from r on, for
// r < parts. Reads and writes whole vectors.
template <class T> void split_row(const T* __restrict x, int64_t n, int64_t stride, int64_t parts,
                                  int64_t length, T* __restrict dst) {
  const auto unzipped = [&](auto by) {
    constexpr int K = decltype(by)::value, N = wide<T>;
    for (int64_t o = 0; o < n; o += N) {
      Vec<T, N> v[K];
      for (int k = 0; k < K; ++k) v[k] = read<T, N>(x + o * K + k * N);
      unzip(v);
      for (int r = 0; r < K; ++r) write(dst + r * length + o, v[r]);
    }
  };
  if (stride == parts && stride == 2) return unzipped(std::integral_constant<int, 2>{});
  if (stride == parts && stride == 4) return unzipped(std::integral_constant<int, 4>{});
  if (stride == parts && stride == 8) return unzipped(std::integral_constant<int, 8>{});
  for (int64_t r = 0; r < parts; ++r) take_every(x + r, n, stride, 1, dst + r * length);
}

// Reduces windows of stride 2 whose positions have `unit` elements: elements [from, end) of the results, to
// `dst`. Two contiguous vectors hold the same tap of N / unit windows. Reads two vectors at each tap and writes
// whole vectors.
template <class R, bool exact = true> void every_other_window(const typename R::V* x, int64_t from,
                                                              int64_t end, int64_t kernel, int64_t step,
                                                              int64_t unit, typename R::V* dst) {
  using V = typename R::V;
  constexpr int N = wide<V>;
  Vec<UnsignedLike<V>, N> index;
  for (int64_t j = 0; j < N; ++j) index[j] = UnsignedLike<V>(j / unit * 2 * unit + j % unit);
  for (int64_t j = from; j < end; j += N / unit * unit) {
    Vec<V, N> best{};
    for (int64_t t = 0; t < kernel; ++t) {
      const V* tap = x + 2 * j + t * step * unit;
      const Vec<V, N> v = permuted(read<V, N>(tap), read<V, N>(tap + N), index);
      best = t ? merged<R, exact>(v, best) : v;
    }
    write(dst + j - from, best);
  }
}

// Values with their offsets in the window.
template <class V> struct Indexed {
  V* value;
  Offset* offset;
};

// `merge_any_order` (reducers.h) for vectors.
template <class R, class Vx, class Cx>
__attribute__((always_inline)) inline void merge_vectors_any_order(Vx later, Cx offset, Vx& best, Cx& at) {
  const auto earlier = offset < at;
  auto take = R::beats(later, best) | ((later == best) & earlier);
  if constexpr (is_real<typename R::V>) take |= (later != later) & ((best == best) | ~earlier);
  best = take ? later : best;
  at = take ? offset : at;
}

// `reduce_everywhere` with offsets. The offset of a column tells its row: among equal values the earlier row
// wins, among NaNs the later one, so the result is that of a row-major scan.
template <class R> void reduce_everywhere_indexed(const Indexed<typename R::V>& x, int64_t n, int64_t kernel,
                                                  int64_t tap_stride, const Indexed<typename R::V>& dst) {
  using V = typename R::V;
  constexpr int N = wide<V>;
  using C = UnsignedLike<V>;  // as wide as a value, so that both use one mask
  for (int64_t j = 0; j < n; j += N) {
    Vec<V, N> best = read<V, N>(x.value + j);
    Vec<C, N> at = converted<Vec<C, N>>(read<Offset, N>(x.offset + j));
    for (int64_t t = 1; t < kernel; ++t) {
      const Vec<V, N> later = read<V, N>(x.value + j + t * tap_stride);
      const Vec<C, N> offset = converted<Vec<C, N>>(read<Offset, N>(x.offset + j + t * tap_stride)) + C(t);
      merge_vectors_any_order<R>(later, offset, best, at);
    }
    write(dst.value + j, best);
    write(dst.offset + j, converted<Vec<Offset, N>>(at));
  }
}

// `reduce_window` with offsets; `lead` is the number of the first tap. Reads whole vectors.
template <class R> void reduce_window_indexed(const Indexed<typename R::V>& x, int64_t taps,
                                              int64_t tap_stride, int64_t unit, Offset lead,
                                              const Indexed<typename R::V>& dst) {
  using V = typename R::V;
  using C = UnsignedLike<V>;
  constexpr int L = 8;
  using Cl = Vec<C, L>;
  const auto merge = [&](int64_t j, Cl shift, Vec<V, L>& best, Cl& at) __attribute__((always_inline)) {
    const Cl offset = converted<Cl>(read<Offset, L>(x.offset + j)) + shift;
    merge_vectors_any_order<R>(read<V, L>(x.value + j), offset, best, at);
  };
  if (unit == 1 && tap_stride == 1) {
    const Cl first = lane_numbers<V, L>() + C(lead);
    Vec<V, L> best = read<V, L>(x.value);
    Cl at = converted<Cl>(read<Offset, L>(x.offset)) + first;
    if (taps < L) {
      const auto inside = lane_mask<V, L>(taps);
      best = inside ? best : broadcast<Vec<V, L>>(R::init());
      at = inside ? at : ~Cl{};
    }
    for (int64_t t = L; t < taps; t += L) {
      const int64_t j = min(t, taps - L);  // the last vector may overlap
      merge(j, first + C(j), best, at);
    }
    merge_vectors_any_order<R>(shifted<4>(best, best), shifted<4>(at, at), best, at);
    merge_vectors_any_order<R>(shifted<2>(best, best), shifted<2>(at, at), best, at);
    merge_vectors_any_order<R>(shifted<1>(best, best), shifted<1>(at, at), best, at);
    *dst.value = best[0];
    *dst.offset = Offset(at[0]);
    return;
  }
  for (int64_t c = 0; c < unit; c += L) {
    Vec<V, L> best = read<V, L>(x.value + c);
    Cl at = converted<Cl>(read<Offset, L>(x.offset + c)) + C(lead);
    for (int64_t t = 1; t < taps; ++t) merge(c + t * tap_stride, Cl{} + C(lead + Offset(t)), best, at);
    const auto offsets = converted<Vec<Offset, L>>(at);
    if (c + L <= unit) {
      write(dst.value + c, best);
      write(dst.offset + c, offsets);
    } else {
      for (int64_t k = 0; c + k < unit; ++k) {
        dst.value[c + k] = best[k];
        dst.offset[c + k] = offsets[k];
      }
    }
  }
}

}  // namespace
}  // namespace ndpool

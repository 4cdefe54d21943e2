// The horizontal step: from one row, folded down already, to the windows of that row.
// A row is `unit` neighbours for each position (the channels of a channels-last array, or one element), padded so that
// every regular window is whole. Work is done on flat runs of neighbours, whatever the unit: partial results for every
// position first, then those of the outputs are picked out.
//   Max and min double their reach: 1, 2, 4, ... taps, and two overlapping halves make a window of any length.
//   Sums add tap after tap; from 32 taps on 16 interleaved sums, which are added by halves at the end; longer rows are
//   sums of blocks of 512 taps.
// So the order of additions depends on the number of taps alone.
#pragma once

#include "reducers.h"

namespace ndpool {
namespace {

constexpr int64_t long_sum = 32;  // taps from which on a row's sum is interleaved
constexpr int interleaved = 16;
constexpr int64_t sum_block = 512;  // taps of a row that are added up on their own

// The merge of two vectors. Exact: NaN wins. Speculative: there is none, and one instruction is enough.
template <class R, bool exact = true, class Vx>
__attribute__((always_inline)) inline Vx merged(Vx later, Vx best) {
  if constexpr (!R::picks) {
    if constexpr (is_real<typename R::V>) return best + later;
    using U = Vec<UnsignedLike<typename R::V>, length_of<Vx>>;  // wraps
    return reinterpret_cast<Vx>(reinterpret_cast<U>(best) + reinterpret_cast<U>(later));
  } else {
    const Vx value = R::beats(later, best) ? later : best;
    if constexpr (exact && is_real<typename R::V>)
      return later != later ? later : value;
    else
      return value;
  }
}

// Whether there may be a NaN among n elements, behind which a vector may read: their sum is none.
template <class V> bool may_hold_nan(const V* x, int64_t n) {
  constexpr int N = wide<V>;
  Vec<V, N> a{}, b{};
  for (int64_t j = 0; j < n; j += 2 * N) {
    a += read<V, N>(x + j);
    if (j + N < n) b += read<V, N>(x + j + N);
  }
  a += b;
  return any(a != a);
}

// dst[j] = f(j) for vectors from 0 on, the last of which may overlap its neighbour or, below one vector, reach past n:
// scratch rows have room for that.
template <class V, class F> __attribute__((always_inline)) inline void each_vector(int64_t n, V* dst, F&& f) {
  constexpr int N = wide<V>;
  for (int64_t j = 0; j < n; j += N) write(dst + j, f(j));
}

// Whole windows of `kernel` taps (sums: at most 512), `tap` elements apart, at every position of a row: dst[j] for
// j < n. `x` and `dst` are scratch rows that may be the same, with room for a vector past their ends.
template <class R, bool exact = true>
void windows_everywhere(const typename R::V* x, int64_t n, int64_t kernel, int64_t tap, typename R::V* dst) {
  using V = typename R::V;
  constexpr int N = wide<V>;
  if constexpr (exact && R::picks && is_real<V>)
    if (!may_hold_nan(x, n + (kernel - 1) * tap)) return windows_everywhere<R, false>(x, n, kernel, tap, dst);
  if constexpr (R::picks) {
    int64_t m = 1;
    for (; 4 * m <= kernel; m *= 2) {
      const int64_t shift = m * tap;
      each_vector(n + (kernel - 2 * m) * tap, dst,
                  [&](int64_t j) { return merged<R, exact>(read<V, N>(x + j + shift), read<V, N>(x + j)); });
      x = dst;
    }
    // The rest of 1, 2 or 3 parts of m taps, which may overlap.
    const int64_t parts = ceil_div(kernel, m), rest = (kernel - m) * tap, middle = m * tap;
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
      for (int64_t t = 1; t < kernel; ++t) sum = merged<R>(read<V, N>(x + j + t * tap), sum);
      return sum;
    });
  } else {  // one block
    each_vector(n, dst, [&](int64_t j) {
      Vec<V, N> sums[interleaved];
      for (int64_t t = 0; t < interleaved; ++t) sums[t] = read<V, N>(x + j + t * tap);
      for (int64_t t = interleaved; t < kernel; ++t) {
        Vec<V, N>& sum = sums[t % interleaved];
        sum = merged<R>(read<V, N>(x + j + t * tap), sum);
      }
      for (int m = interleaved / 2; m > 0; m /= 2)
        for (int k = 0; k < m; ++k) sums[k] = merged<R>(sums[k + m], sums[k]);
      return sums[0];
    });
  }
}

// The elements of a vector by halves: all of them together in the first.
template <class R, bool exact = true, class Vx>
__attribute__((always_inline)) inline typename R::V by_halves(Vx v) {
  constexpr int n = length_of<Vx>;
  if constexpr (n >= 64) v = merged<R, exact>(shifted<n >= 64 ? 32 : 0>(v, v), v);
  if constexpr (n >= 32) v = merged<R, exact>(shifted<n >= 32 ? 16 : 0>(v, v), v);
  if constexpr (n >= 16) v = merged<R, exact>(shifted<n >= 16 ? 8 : 0>(v, v), v);
  if constexpr (n >= 8) v = merged<R, exact>(shifted<n >= 8 ? 4 : 0>(v, v), v);
  if constexpr (n >= 4) v = merged<R, exact>(shifted<n >= 4 ? 2 : 0>(v, v), v);
  v = merged<R, exact>(shifted<1>(v, v), v);
  return v[0];
}

// One block of a window, of at least 16 taps: 16 interleaved results, then by halves. Vectors read behind it.
template <class R, bool exact> typename R::V block_alone(const typename R::V* x, int64_t taps) {
  using V = typename R::V;
  constexpr int N = least(interleaved, wide<V>), W = interleaved / N;
  using Vn = Vec<V, N>;
  Vn parts[W];
  for (int w = 0; w < W; ++w) parts[w] = read<V, N>(x + w * N);
  int64_t at = interleaved;
  for (; at + interleaved <= taps; at += interleaved)
    for (int w = 0; w < W; ++w) parts[w] = merged<R, exact>(read<V, N>(x + at + w * N), parts[w]);
  Vec<UnsignedLike<V>, N> lane;
  for (int k = 0; k < N; ++k) lane[k] = UnsignedLike<V>(k);
  for (int w = 0; w < W && at + w * N < taps; ++w) {
    const auto inside = lane < UnsignedLike<V>(least(N, taps - at - w * N));
    parts[w] = merged<R, exact>(inside ? read<V, N>(x + at + w * N) : all_of<Vn>(R::init()), parts[w]);
  }
  for (int m = W / 2; m > 0; m /= 2)
    for (int w = 0; w < m; ++w) parts[w] = merged<R, exact>(parts[w + m], parts[w]);
  return by_halves<R, exact>(parts[0]);
}

// Whole blocks in turn, so that no addition waits for the one before it.
template <class R, bool exact, int Blocks>
void blocks_alone(const typename R::V* x, typename R::V (&dst)[Blocks]) {
  using V = typename R::V;
  constexpr int N = least(interleaved, wide<V>), W = interleaved / N;
  Vec<V, N> parts[Blocks][W];
  for (int b = 0; b < Blocks; ++b)
    for (int w = 0; w < W; ++w) parts[b][w] = read<V, N>(x + b * sum_block + w * N);
  for (int64_t at = interleaved; at < sum_block; at += interleaved)
    for (int b = 0; b < Blocks; ++b)
      for (int w = 0; w < W; ++w) {
        fetch(x + (b + Blocks) * sum_block + at +
              w * N);  // processors follow one stream of a page, not several
        parts[b][w] = merged<R, exact>(read<V, N>(x + b * sum_block + at + w * N), parts[b][w]);
      }
  for (int b = 0; b < Blocks; ++b) {
    for (int m = W / 2; m > 0; m /= 2)
      for (int w = 0; w < m; ++w) parts[b][w] = merged<R, exact>(parts[b][w + m], parts[b][w]);
    dst[b] = by_halves<R, exact>(parts[b][0]);
  }
}

// The best of at least a vector of elements, in any order: four vectors in turn, the last of which may overlap.
template <class R, bool exact> typename R::V best_alone(const typename R::V* x, int64_t taps) {
  using V = typename R::V;
  constexpr int N = wide<V>, together = 4;
  using Vn = Vec<V, N>;
  Vn best[together], all[together] = {};
  for (Vn& b : best) b = read<V, N>(x);
  int64_t t = 0;
  const auto add = [&](int64_t at, int k) __attribute__((always_inline)) {
    const Vn v = read<V, N>(x + at);
    best[k] = merged<R, false>(v, best[k]);
    if constexpr (exact && is_real<V>) all[k] += v;
  };
  for (; t + together * N <= taps; t += together * N)
    for (int k = 0; k < together; ++k) add(t + k * N, k);
  for (; t + N <= taps; t += N) add(t, 0);
  if (t < taps) add(taps - N, 1);
  if constexpr (exact && is_real<V>) {
    const Vn sum = all[0] + all[1] + (all[2] + all[3]);
    if (any(sum != sum)) {  // a NaN, or opposite infinities
      V value = R::init();
      for (int64_t k = 0; k < taps; ++k) value = R::merge(x[k], value);
      return value;
    }
  }
  const Vn two = merged<R, false>(best[1], best[0]), more = merged<R, false>(best[3], best[2]);
  return by_halves<R, false>(merged<R, false>(more, two));
}

// One window of `taps` neighbouring elements, behind which a vector may read.
template <class R, bool exact = true> typename R::V window_alone(const typename R::V* x, int64_t taps) {
  using V = typename R::V;
  if constexpr (R::picks)
    if (taps >= wide<V>) return best_alone<R, exact>(x, taps);
  constexpr int together = interleaved / wide<V> >= 4 ? 1 : 4;  // of few registers none is left for more
  const auto part = [](const V* x, int64_t taps) {
    if (taps >= long_sum) return block_alone<R, exact>(x, taps);
    V best = x[0];
    for (int64_t t = 1; t < taps; ++t) best = R::merge(x[t], best);
    return best;
  };
  if (taps <= sum_block) return part(x, taps);
  V all = part(x, sum_block);
  int64_t at = sum_block;
  for (; at + together * sum_block <= taps; at += together * sum_block) {
    V blocks[together];
    blocks_alone<R, exact>(x + at, blocks);
    for (const V& block : blocks) all = R::merge(block, all);
  }
  for (; at < taps; at += sum_block) all = R::merge(part(x + at, least(sum_block, taps - at)), all);
  return all;
}

// One window of `taps` neighbouring positions of `unit` elements: `unit` results. `work` holds 16 units.
template <class R> void window_alone(const typename R::V* x, int64_t taps, int64_t unit, typename R::V* work,
                                     typename R::V* dst) {
  using V = typename R::V;
  constexpr int N = wide<V>;
  if (unit == 1) {
    *dst = window_alone<R>(x, taps);
    return;
  }
  const auto add = [&](const V* from, V* to, int64_t n) {
    int64_t j = 0;
    for (; j + N <= n; j += N) write(to + j, merged<R>(read<V, N>(from + j), read<V, N>(to + j)));
    for (; j < n; ++j) to[j] = R::merge(from[j], to[j]);
  };
  for (int64_t first = 0; first < taps; first += sum_block, x += sum_block * unit) {
    const int64_t here = least(sum_block, taps - first), all = here * unit;
    const int64_t block = (here < long_sum ? 1 : interleaved) * unit;
    in_vectors(block, [&](int64_t j) { work[j] = x[j]; });
    for (int64_t at = block; at < all; at += block) add(x + at, work, least(block, all - at));
    for (int64_t n = block / 2; n >= unit; n /= 2) add(work + n, work, n);
    if (first == 0)
      in_vectors(unit, [&](int64_t c) { dst[c] = work[c]; });
    else
      add(work, dst, unit);
  }
}

// The first of every K elements, which are read as a wide one.
template <int K, class T> void every_wide(const T* __restrict x, int64_t n, T* __restrict dst) {
  constexpr int N = wide<T> / K;
  using Wide = typename UnsignedOf<K* int(sizeof(T))>::type;
  for (int64_t o = 0; o < n; o += N)
    write(dst + o,
          converted<Vec<UnsignedLike<T>, N>>(read<Wide, N>(reinterpret_cast<const Wide*>(x + K * o))));
}

// Every `stride`-th position of a row, `unit` elements of each. `dst` has room for a vector past its end.
template <class T>
void every(const T* __restrict x, int64_t n, int64_t stride, int64_t unit, T* __restrict dst) {
  constexpr int N = wide<T>;
  if (unit == 1) {
    int64_t o = 0;
    if constexpr (sizeof(T) < 4) {
      if (stride == 2) return every_wide<2>(x, n, dst);
      if (stride == 4 && vector_bytes == 64) return every_wide<4>(x, n, dst);
    } else if (stride == 2) {
      for (; o < n; o += N) write(dst + o, evens(read<T, N>(x + 2 * o), read<T, N>(x + 2 * o + N)));
    }
    if constexpr (packs<T>)
      if (stride > 2 && stride <= N) {
        // As many vectors as the stride hold a vector of outputs: which elements of each, and the first one's number.
        std::uint32_t bits[N] = {};
        int64_t first[N];
        for (int64_t k = N - 1; k >= 0; --k) {
          bits[k * stride / N] |= 1u << k * stride % N;
          first[k * stride / N] = k;
        }
        for (; o < n; o += N, x += N * stride)
          for (int64_t k = 0; k < stride && o + first[k] < n; ++k)
            write(dst + o + first[k], packed(read<T, N>(x + k * N), bits[k]));
        return;
      }
    for (; o < n; ++o) __builtin_memcpy(dst + o, x + o * stride, sizeof(T));
    return;
  }
  // A position that is a word, or of which sixteen bytes hold several.
  if constexpr (sizeof(T) < 4)
    if (unit * int64_t(sizeof(T)) == 4)
      return every(reinterpret_cast<const std::uint32_t*>(x), n, stride, 1,
                   reinterpret_cast<std::uint32_t*>(dst));
  if constexpr (sizeof(T) == 1 && names_bytes)
    if (const int64_t step = stride * unit, together = (16 - unit) / step + 1; unit < 16 && together > 1) {
      Sixteen names;
      for (int64_t j = 0; j < 16; ++j)
        names[j] = std::uint8_t(j < together * unit ? j / unit * step + j % unit : 0x80);
      for (int64_t o = 0; o < n; o += together)
        write(dst + o * unit,
              named(read<std::uint8_t, 16>(reinterpret_cast<const std::uint8_t*>(x + o * step)), names));
      return;
    }
  if constexpr (permutes<T>)
    if (stride == 2 && unit <= N / 2) {  // two vectors hold so many outputs
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
    copy(std::integral_constant<int, least(vector_bytes, 32) / sizeof(T)>{});
  else
    copy(std::integral_constant<int, N>{});
}

// Windows of stride 2, where a position has `unit` elements: elements [from, end) of the results, to `dst`. The same tap of
// N / unit windows lies in two neighbouring vectors. Writes whole vectors, and reads two from each tap on.
template <class R, bool exact = true> void every_other_window(const typename R::V* x, int64_t from,
                                                              int64_t end, int64_t kernel, int64_t step,
                                                              int64_t unit, typename R::V* dst) {
  using V = typename R::V;
  constexpr int N = wide<V>;
  Vec<UnsignedLike<V>, N> index;
  for (int64_t j = 0; j < N; ++j) index[j] = UnsignedLike<V>(j / unit * 2 * unit + j % unit);
  for (int64_t j = from; j < end; j += N / unit * unit) {
    Vec<V, N> all{};
    for (int64_t t = 0; t < kernel; ++t) {
      const V* tap = x + 2 * j + t * step * unit;
      const Vec<V, N> v = permuted(read<V, N>(tap), read<V, N>(tap + N), index);
      all = t ? merged<R, exact>(v, all) : v;
    }
    write(dst + j - from, all);
  }
}

// Best values and the numbers of their taps: what a window of several rows is picked from.
template <class V> struct Coded {
  V* value;
  Code* code;
};

// `merge_column` for vectors.
template <class R, class Vx, class Cx>
__attribute__((always_inline)) inline void merge_columns(Vx later, Cx code, Vx& best, Cx& at) {
  const auto earlier = code < at;
  auto take = R::beats(later, best) | ((later == best) & earlier);
  if constexpr (is_real<typename R::V>) take |= (later != later) & ((best == best) | ~earlier);
  best = take ? later : best;
  at = take ? code : at;
}

// The same with codes, at every position. A column's code says which row it is from: equal columns are won by the
// earlier row, NaNs by the later one, so the answer is that of a row-major scan.
template <class R> void coded_windows_everywhere(const Coded<typename R::V>& x, int64_t n, int64_t kernel,
                                                 int64_t tap, const Coded<typename R::V>& dst) {
  using V = typename R::V;
  constexpr int N = wide<V>;
  using C = UnsignedLike<V>;  // as wide as a value, so that one mask serves both
  if constexpr (sizeof(V) >= 4) {
    for (int64_t j = 0; j < n; j += N) {
      Vec<V, N> best = read<V, N>(x.value + j);
      Vec<C, N> at = converted<Vec<C, N>>(read<Code, N>(x.code + j));
      for (int64_t t = 1; t < kernel; ++t) {
        const Vec<V, N> later = read<V, N>(x.value + j + t * tap);
        const Vec<C, N> code = converted<Vec<C, N>>(read<Code, N>(x.code + j + t * tap)) + C(t);
        merge_columns<R>(later, code, best, at);
      }
      write(dst.value + j, best);
      write(dst.code + j, converted<Vec<Code, N>>(at));
    }
    return;
  }
  for (int64_t first = 0; first < n; first += 64) {
    const int64_t block = least(64, n - first);
    const V* value = x.value + first;
    const Code* code = x.code + first;
    V* best = dst.value + first;
    Code* at = dst.code + first;
    in_vectors(block, [&](int64_t j) { best[j] = value[j]; });
    in_vectors(block, [&](int64_t j) { at[j] = code[j]; });
    for (int64_t t = 1; t < kernel; ++t) {
      value += tap;
      code += tap;
      in_vectors(block, [&](int64_t j) { merge_column<R>(value[j], code[j] + Code(t), best[j], at[j]); });
    }
  }
}

// One window with codes; `lead` is the number of its first tap.
template <class R> void coded_window_alone(const Coded<typename R::V>& x, int64_t taps, int64_t tap,
                                           int64_t unit, Code lead, const Coded<typename R::V>& dst) {
  using V = typename R::V;
  constexpr int L = 8;
  if constexpr (sizeof(V) >= 4) {
    if (unit >= L) {
      using C = UnsignedLike<V>;
      for (int64_t from = 0; from < unit; from += L) {
        const int64_t c = least(from, unit - L);  // the last ones may be done twice
        Vec<V, L> best = read<V, L>(x.value + c);
        Vec<C, L> at = converted<Vec<C, L>>(read<Code, L>(x.code + c)) + C(lead);
        for (int64_t t = 1; t < taps; ++t) {
          const Vec<C, L> code =
              converted<Vec<C, L>>(read<Code, L>(x.code + c + t * tap)) + C(lead + Code(t));
          merge_columns<R>(read<V, L>(x.value + c + t * tap), code, best, at);
        }
        write(dst.value + c, best);
        write(dst.code + c, converted<Vec<Code, L>>(at));
      }
      return;
    }
  }
  for (int64_t c = 0; c < unit; ++c) {
    auto best = x.value[c];
    Code at = x.code[c] + lead;
    for (int64_t t = 1; t < taps; ++t)
      merge_column<R>(x.value[c + t * tap], x.code[c + t * tap] + lead + Code(t), best, at);
    dst.value[c] = best;
    dst.code[c] = at;
  }
}

}  // namespace
}  // namespace ndpool

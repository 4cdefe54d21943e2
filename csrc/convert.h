// Loads and stores of rows: from any storage type and any strides to a packed row of the compute type, and back.
// Engines that work on compute types call these loops; specialised engines convert vectors themselves (simd.h).
#pragma once

#include <cmath>
#include <cstring>

#include "simd.h"

namespace ndpool {
namespace {

// A row of an array: n columns of `channels` elements each, with strides in bytes.
struct Row {
  char* data;
  int64_t stride, channel, n, channels;

  bool is_contiguous(int64_t item) const {
    return (channels == 1 || channel == item) && (n == 1 || stride == item * channels);
  }
};

// Calls f(data, length, first) for each contiguous run of a row: the whole row, or the channels of each column;
// `first` is the index of the run's first element in the row. Returns false if elements are not contiguous.
template <class T, class F> inline bool each_run(const Row& row, F&& f) {
  const bool packed = row.is_contiguous(sizeof(T));
  if (!packed && (row.channels == 1 || row.channel != int64_t(sizeof(T)))) return false;
  const int64_t all = row.n * row.channels, length = packed ? all : row.channels;
  char* data = row.data;
  for (int64_t first = 0; first < all; first += length, data += row.stride)
    f(reinterpret_cast<T*>(data), length, first);
  return true;
}

template <class T, class F> inline void each(const Row& row, F&& f) {
  const bool contiguous =
      each_run<T>(row, [&](T* data, int64_t n, int64_t first) __attribute__((always_inline)) {
        in_vectors(n, [&](int64_t j) { f(data[j], first + j); });
      });
  if (contiguous) return;
  const bool single = row.channels == 1;
  const int64_t outer = single ? 1 : row.n, n = single ? row.n : row.channels,
                step = single ? row.stride : row.channel;
  for (int64_t r = 0; r < outer; ++r)
    for (int64_t j = 0; j < n; ++j) f(*reinterpret_cast<T*>(row.data + r * row.stride + j * step), r * n + j);
}

// Calls f(from, to) for each vector of n elements. The last vector overlaps the one before it; fewer elements than
// one vector go through padded copies.
template <class V, class From, class To, class F>
__attribute__((always_inline)) inline void each_vector_of(int64_t n, const From* from, To* to, F&& f) {
  constexpr int N = wide<V>;
  if (n >= N) {
    int64_t j = 0;
    for (; j + N <= n; j += N) f(from + j, to + j);
    if (j < n) f(from + n - N, to + n - N);
  } else if (n > 0) {
    From padded_from[N];
    To padded_to[N];
    copy_exactly(from, padded_from, n);
    f(padded_from, padded_to);
    copy_exactly(padded_to, to, n);
  }
}

template <class S, class V> void load_row(const Row& row, V* __restrict dst) {
  if constexpr (is_half<S> && std::is_same_v<V, float>)
    if (each_run<S>(row, [dst](const S* from, int64_t n, int64_t first) {
          each_vector_of<V>(n, from, dst + first,
                            [](const S* from, V* to) { write(to, read_as<V, wide<V>>(from)); });
        }))
      return;
  each<S>(row, [dst](const S& s, int64_t j) { dst[j] = load_as<V>(s); });
}

template <class V, class O> void store_row(const V* __restrict src, const Row& row) {
  if constexpr (is_half<O> && std::is_same_v<V, float>)
    if (each_run<O>(row, [src](O* to, int64_t n, int64_t first) {
          each_vector_of<V>(n, src + first, to, [](const V* from, O* to) {
            write_as<wide<V>, false, O, V>(to, read<V, wide<V>>(from));
          });
        }))
      return;
  each<O>(row, [src](O& o, int64_t j) { o = store_as<O>(src[j]); });
}

template <class V> using Load = void (*)(const Row&, V*);
template <class V> using Store = void (*)(const V*, const Row&);

// Calls f with an element of the storage type, for the supported pairs of storage and compute type: equal types, real
// types with any real type, and, for sums (`widening`), integers with wider types.
template <class V, class F> auto by_storage(Dtype type, bool widening, F&& f) {
  if constexpr (is_real<V>) {
    if (type == Dtype::f16) return f(f16{});
    if (type == Dtype::bf16) return f(bf16{});
    if (type == Dtype::f32) return f(float{});
    if (type == Dtype::f64) return f(double{});
  }
  if constexpr (is_real<V> || sizeof(V) == 8)
    if (widening) switch (type) {
      case Dtype::b8:
      case Dtype::u8:
        return f(std::uint8_t{});
      case Dtype::i8:
        return f(std::int8_t{});
      case Dtype::u16:
        return f(std::uint16_t{});
      case Dtype::i16:
        return f(std::int16_t{});
      case Dtype::u32:
        return f(std::uint32_t{});
      case Dtype::i32:
        return f(std::int32_t{});
      case Dtype::u64:
        return f(std::uint64_t{});
      case Dtype::i64:
        return f(std::int64_t{});
      default:
        break;
      }
  return f(V{});
}

template <class V> Load<V> loader(Dtype type, bool widening) {
  return by_storage<V>(type, widening, [](auto stored) -> Load<V> { return load_row<decltype(stored), V>; });
}
template <class V> Store<V> storer(Dtype type, bool widening) {
  return by_storage<V>(type, widening,
                       [](auto stored) -> Store<V> { return store_row<V, decltype(stored)>; });
}

template <class T> constexpr Dtype dtype_of() {
  if constexpr (std::is_same_v<T, float>) return Dtype::f32;
  if constexpr (std::is_same_v<T, double>) return Dtype::f64;
  if constexpr (std::is_same_v<T, f16>) return Dtype::f16;
  if constexpr (std::is_same_v<T, bf16>) return Dtype::bf16;
  if constexpr (std::is_integral_v<T>) {
    constexpr int log2 = sizeof(T) == 1 ? 0 : sizeof(T) == 2 ? 1 : sizeof(T) == 4 ? 2 : 3;
    return Dtype(1 + 2 * log2 + std::is_unsigned_v<T>);
  }
}

template <class V> constexpr bool stored_as(Dtype type) {
  return type == dtype_of<V>() || (type == Dtype::b8 && dtype_of<V>() == Dtype::u8);
}

}  // namespace
}  // namespace ndpool

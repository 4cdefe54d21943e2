// Vectors: names for the vector types of the compiler and for the intrinsics that it does not generate by itself,
// so that engines have one source for every instruction set. What differs between compilers is here alone;
// engines that need the masks of AVX-512 are compiled where __AVX512VL__ says so. The vector width follows the flags of compilation; loads and stores take any alignment.
#pragma once

#include <utility>

// GCC 12 warns about undefined vectors in its own headers, and about sums initialised in a loop: it does not see
// that the loop runs at least once.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "numbers.h"
#include "plan.h"

namespace ndpool {
namespace {

#if defined(__AVX512F__)
constexpr int vector_bytes = 64;
#elif defined(__AVX2__)
constexpr int vector_bytes = 32;
#else
constexpr int vector_bytes = 16;
#endif

// x86 processors without AVX2 are rare: they get the general engines only, which compile fast.
#if defined(__x86_64__) && !defined(__AVX2__)
constexpr bool specialised = false;
#else
constexpr bool specialised = true;
#endif

// The shortest vector that the compiler accepts as the operand of an asm statement.
#if defined(__clang__)
constexpr int min_bytes = 16;
#else
constexpr int min_bytes = 1;
#endif

template <int Bytes> struct UnsignedOf;
template <> struct UnsignedOf<1> {
  using type = std::uint8_t;
};
template <> struct UnsignedOf<2> {
  using type = std::uint16_t;
};
template <> struct UnsignedOf<4> {
  using type = std::uint32_t;
};
template <> struct UnsignedOf<8> {
  using type = std::uint64_t;
};
template <class T> using UnsignedLike = typename UnsignedOf<int(sizeof(T))>::type;

template <class T, int N> struct VecOf {
  typedef T type __attribute__((vector_size(N * sizeof(T))));
};
template <class T, int N> using Vec = typename VecOf<T, N>::type;
template <class V> using Element = std::remove_cvref_t<decltype(std::declval<V>()[0])>;
template <class V> constexpr int length_of = sizeof(V) / sizeof(Element<V>);

// Lanes of the widest vector, and of a narrow vector for short rows of bytes.
template <class T> constexpr int wide = vector_bytes / int(sizeof(T));
template <class T> constexpr int narrow_lanes = (vector_bytes > 16 ? vector_bytes / 2 : 16) / int(sizeof(T));

// Calls f(0), ..., f(n - 1) in a loop that the compiler vectorizes: no call may depend on another. Other loops
// over elements stay scalar, because most of them are short.
template <class F> __attribute__((always_inline)) inline void in_vectors(int64_t n, F&& f) {
#pragma omp simd
  for (int64_t j = 0; j < n; ++j) f(j);
}

template <class T, int N> inline Vec<T, N> read(const T* p) {
  Vec<T, N> v;
  __builtin_memcpy(&v, p, sizeof v);
#if defined(__x86_64__)
  // Keep the value in a register: the compiler would load it again at each use, and unaligned loads are expensive.
  if constexpr (sizeof v >= min_bytes && sizeof v <= vector_bytes) asm("" : "+v"(v));
#endif
  return v;
}
template <class T, class V> inline void write(T* p, V v) { __builtin_memcpy(p, &v, sizeof v); }

template <int Bytes> inline void copy_few(const char* from, char* to, int64_t n) {
  if (n >= Bytes) {
    Vec<std::uint8_t, Bytes> first, last;
    __builtin_memcpy(&first, from, Bytes);
    __builtin_memcpy(&last, from + n - Bytes, Bytes);
    __builtin_memcpy(to, &first, Bytes);
    __builtin_memcpy(to + n - Bytes, &last, Bytes);
  } else if constexpr (Bytes > 1) {
    copy_few<Bytes / 2>(from, to, n);
  }
}
// Copies n elements and touches no other memory: the last vector overlaps the one before it, and less than one
// vector is copied by shorter vectors.
template <class T> inline void copy_exactly(const T* from, T* to, int64_t n) {
  const char* const source = reinterpret_cast<const char*>(from);
  char* const target = reinterpret_cast<char*>(to);
  const int64_t bytes = n * int64_t(sizeof(T));
  if (bytes < vector_bytes) return copy_few<vector_bytes / 2>(source, target, bytes);
  int64_t j = 0;
  for (; j + vector_bytes <= bytes; j += vector_bytes)
    write(target + j, read<char, vector_bytes>(source + j));
  if (j < bytes)
    write(target + bytes - vector_bytes, read<char, vector_bytes>(source + bytes - vector_bytes));
}

// The address may be invalid.
inline void prefetch(const void* p) { __builtin_prefetch(p); }

#if defined(__AVX2__)
template <class To> inline To first_of(__m128i v) {
  To low;
  __builtin_memcpy(&low, &v, sizeof low);
  return low;
}
#endif

// Converts each element to another type. Where the widths differ by more than a factor of two, the compiler
// converts single elements, although processors have an instruction for whole vectors.
template <class To, class V> __attribute__((always_inline)) inline To converted(V v) {
  static_assert(length_of<V> == length_of<To>);
#if defined(__AVX2__)
  using F = Element<V>;
  constexpr int n = length_of<V>, from = sizeof(F), to = sizeof(Element<To>);
  constexpr bool integers = std::is_integral_v<F> && std::is_integral_v<Element<To>>;
  constexpr int padded_bytes = sizeof v < 16 ? 16 : sizeof v;
  if constexpr (integers && from < to && n * to == vector_bytes && std::is_unsigned_v<F>) {
    Vec<std::uint8_t, padded_bytes> wide{};
    if constexpr (sizeof v == 8)  // through a register, not through memory
      wide = reinterpret_cast<Vec<std::uint8_t, padded_bytes>>(
          _mm_cvtsi64_si128(std::bit_cast<std::int64_t>(v)));
    else
      __builtin_memcpy(&wide, &v, sizeof v);
#if defined(__AVX512BW__)
    if constexpr (from == 1 && to == 2)
      return reinterpret_cast<To>(_mm512_cvtepu8_epi16(reinterpret_cast<__m256i>(wide)));
#endif
#if defined(__AVX512F__)
    if constexpr (from == 1 && to == 4)
      return reinterpret_cast<To>(_mm512_cvtepu8_epi32(reinterpret_cast<__m128i>(wide)));
    if constexpr (from == 1 && to == 8)
      return reinterpret_cast<To>(_mm512_cvtepu8_epi64(reinterpret_cast<__m128i>(wide)));
    if constexpr (from == 2 && to == 4)
      return reinterpret_cast<To>(_mm512_cvtepu16_epi32(reinterpret_cast<__m256i>(wide)));
    if constexpr (from == 4 && to == 8)
      return reinterpret_cast<To>(_mm512_cvtepu32_epi64(reinterpret_cast<__m256i>(wide)));
#else
    const __m128i m = reinterpret_cast<__m128i>(wide);
    if constexpr (from == 1 && to == 2) return reinterpret_cast<To>(_mm256_cvtepu8_epi16(m));
    if constexpr (from == 1 && to == 4) return reinterpret_cast<To>(_mm256_cvtepu8_epi32(m));
    if constexpr (from == 1 && to == 8) return reinterpret_cast<To>(_mm256_cvtepu8_epi64(m));
    if constexpr (from == 2 && to == 4) return reinterpret_cast<To>(_mm256_cvtepu16_epi32(m));
    if constexpr (from == 4 && to == 8) return reinterpret_cast<To>(_mm256_cvtepu32_epi64(m));
#endif
  }
#if defined(__AVX512BW__)
  if constexpr (integers && std::is_signed_v<F> && from == 2 && to == 4 && sizeof v == 32)
    return reinterpret_cast<To>(_mm512_cvtepi16_epi32(reinterpret_cast<__m256i>(v)));
  if constexpr (integers && std::is_signed_v<F> && from == 1 && to == 4 && sizeof v == 16)
    return reinterpret_cast<To>(_mm512_cvtepi8_epi32(reinterpret_cast<__m128i>(v)));
  if constexpr (integers && from == 2 * to && to <= 2 && sizeof v == 64) {
    // Force the result into a register: converting and storing in one instruction takes twice as long.
    __m256i half;
    if constexpr (to == 1)
      half = _mm512_cvtepi16_epi8(reinterpret_cast<__m512i>(v));
    else
      half = _mm512_cvtepi32_epi16(reinterpret_cast<__m512i>(v));
    asm("" : "+v"(half));
    return reinterpret_cast<To>(half);
  }
#endif
#if defined(__AVX512F__)
  if constexpr (integers && from == 8 && to == 2 && sizeof v == 64)
    return first_of<To>(_mm512_cvtepi64_epi16(reinterpret_cast<__m512i>(v)));
#endif
#if defined(__AVX512VL__)
  if constexpr (integers && to == 1 && from >= 4 && (sizeof v == 64 || sizeof v == 32)) {
    __m128i bytes;
    if constexpr (sizeof v == 64 && from == 4) bytes = _mm512_cvtepi32_epi8(reinterpret_cast<__m512i>(v));
    if constexpr (sizeof v == 64 && from == 8) bytes = _mm512_cvtepi64_epi8(reinterpret_cast<__m512i>(v));
    if constexpr (sizeof v == 32 && from == 4) bytes = _mm256_cvtepi32_epi8(reinterpret_cast<__m256i>(v));
    if constexpr (sizeof v == 32 && from == 8) bytes = _mm256_cvtepi64_epi8(reinterpret_cast<__m256i>(v));
    return first_of<To>(bytes);
  }
#else
  if constexpr (integers && to == 1 && from == 4 && sizeof v == 32) {
    const __m256i lowest = _mm256_set1_epi64x(std::int64_t(0x808080800c080400)),
                  halves = _mm256_shuffle_epi8(reinterpret_cast<__m256i>(v), lowest);
    return first_of<To>(
        _mm_unpacklo_epi32(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1)));
  }
#endif
#endif
  return __builtin_convertvector(v, To);
}

// The upper halves of the products with `by`.
template <class V> __attribute__((always_inline)) inline V multiplied_high(V v, Element<V> by) {
  using U = Element<V>;
  static_assert(std::is_unsigned_v<U> && sizeof(U) <= 4);
#if defined(__AVX512BW__)
  if constexpr (sizeof(V) == 64 && sizeof(U) == 2)
    return reinterpret_cast<V>(
        _mm512_mulhi_epu16(reinterpret_cast<__m512i>(v), _mm512_set1_epi16(std::int16_t(by))));
  if constexpr (sizeof(V) == 64 && sizeof(U) == 4) {
    const __m512i m = _mm512_set1_epi32(std::int32_t(by)), x = reinterpret_cast<__m512i>(v);
    const __m512i even = _mm512_srli_epi64(_mm512_mul_epu32(x, m), 32),
                  odd = _mm512_mul_epu32(_mm512_srli_epi64(x, 32), m);
    return reinterpret_cast<V>(_mm512_mask_blend_epi32(0xaaaa, even, odd));
  }
#endif
#if defined(__AVX2__)
  if constexpr (sizeof(V) == 32 && sizeof(U) == 2)
    return reinterpret_cast<V>(
        _mm256_mulhi_epu16(reinterpret_cast<__m256i>(v), _mm256_set1_epi16(std::int16_t(by))));
  if constexpr (sizeof(V) == 32 && sizeof(U) == 4) {
    const __m256i m = _mm256_set1_epi32(std::int32_t(by)), x = reinterpret_cast<__m256i>(v);
    const __m256i even = _mm256_srli_epi64(_mm256_mul_epu32(x, m), 32),
                  odd = _mm256_mul_epu32(_mm256_srli_epi64(x, 32), m);
    return reinterpret_cast<V>(_mm256_blend_epi32(even, odd, 0xaa));
  }
#endif
  using Twice = Vec<typename UnsignedOf<2 * sizeof(U)>::type, length_of<V>>;
  return __builtin_convertvector(__builtin_convertvector(v, Twice) * by >> int(8 * sizeof(U)), V);
}

// Loads N elements and converts them to the compute type.
template <class V, int N, class S> inline Vec<V, N> read_as(const S* p) {
  if constexpr (std::is_same_v<S, bf16>) {
    const auto bits = converted<Vec<std::uint32_t, N>>(read<std::uint16_t, N>(&p->bits)) << 16;
    return reinterpret_cast<Vec<float, N>>(bits);
  } else if constexpr (std::is_same_v<S, f16>) {
#if defined(__AVX512F__)
    if constexpr (N == 16)
      return reinterpret_cast<Vec<float, N>>(
          _mm512_cvtph_ps(reinterpret_cast<__m256i>(read<std::uint16_t, N>(&p->bits))));
#endif
#if defined(__F16C__)
    if constexpr (N == 8)
      return reinterpret_cast<Vec<float, N>>(
          _mm256_cvtph_ps(reinterpret_cast<__m128i>(read<std::uint16_t, N>(&p->bits))));
#endif
    const auto h = converted<Vec<std::uint32_t, N>>(read<std::uint16_t, N>(&p->bits));
    const auto magnitude = (h & 0x7fffu) << 13, exponent = magnitude & 0x0f800000u;
    const auto quiet =
        magnitude > 0x0f800000u ? 0x00400000u + Vec<std::uint32_t, N>{} : Vec<std::uint32_t, N>{};
    const auto normal = (magnitude + (exponent == 0x0f800000u ? 0x70000000u + Vec<std::uint32_t, N>{}
                                                              : 0x38000000u + Vec<std::uint32_t, N>{})) |
                        quiet;
    const auto tiny =
        reinterpret_cast<Vec<float, N>>(magnitude + 0x38800000u) - std::bit_cast<float>(0x38800000u);
    const auto bits = exponent == 0u ? reinterpret_cast<Vec<std::uint32_t, N>>(tiny) : normal;
    return reinterpret_cast<Vec<float, N>>(bits | (h & 0x8000u) << 16);
  } else if constexpr (!std::is_same_v<S, V>) {
    return converted<Vec<V, N>>(converted<Vec<std::int32_t, N>>(read<S, N>(p)));
  } else {
    return read<V, N>(p);
  }
}

// Converts N elements to the storage type and stores them: halves are rounded to nearest even, integers truncated;
// `exact`: the elements were loaded from that type, so that nothing is rounded.
template <int N, bool exact, class S, class V> inline void write_as(S* p, Vec<V, N> v) {
  if constexpr (is_half<S>) {
#if defined(__AVX512F__)
    if constexpr (std::is_same_v<S, f16> && N == 16)
      return write(&p->bits, _mm512_cvtps_ph(reinterpret_cast<__m512>(v), _MM_FROUND_TO_NEAREST_INT));
#endif
#if defined(__F16C__)
    if constexpr (std::is_same_v<S, f16> && N == 8)
      return write(&p->bits, _mm256_cvtps_ph(reinterpret_cast<__m256>(v), _MM_FROUND_TO_NEAREST_INT));
#endif
    using U = Vec<std::uint32_t, N>;
    const U u = reinterpret_cast<U>(v), magnitude = u & 0x7fffffffu;
    U bits;
    if constexpr (std::is_same_v<S, bf16> && exact) {
      bits = u >> 16;
    } else if constexpr (std::is_same_v<S, bf16>) {
      bits = magnitude > 0x7f800000u ? (u >> 16) | 0x40u : (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    } else {
      const U normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
      const U tiny = reinterpret_cast<U>(reinterpret_cast<Vec<float, N>>(magnitude) + 0.5f) -
                     std::bit_cast<std::uint32_t>(0.5f);
      bits = magnitude < 0x38800000u ? tiny : normal;
      bits = magnitude >= 0x477ff000u ? U{} + 0x7c00u : bits;
      bits = magnitude > 0x7f800000u ? 0x7e00u | (magnitude >> 13 & 0x1ffu) : bits;
      bits |= (u >> 16) & 0x8000u;
    }
    write(&p->bits, converted<Vec<std::uint16_t, N>>(bits));
  } else if constexpr (!std::is_same_v<S, V>) {
    write(p, converted<Vec<S, N>>(converted<Vec<std::int32_t, N>>(v)));
  } else {
    write(p, v);
  }
}

// later > best ? later : best, as one instruction, which drops a NaN. GCC 12 does not find it where the comparison has
// another use.
template <class V> inline V larger(V later, V best) {
#if defined(__AVX512BW__)
  if constexpr (sizeof(V) == 64) {
    using T = Element<V>;
    const __m512i a = reinterpret_cast<__m512i>(later), b = reinterpret_cast<__m512i>(best);
    if constexpr (std::is_same_v<T, float>)
      return reinterpret_cast<V>(_mm512_max_ps(__m512(later), __m512(best)));
    if constexpr (std::is_same_v<T, double>)
      return reinterpret_cast<V>(_mm512_max_pd(__m512d(later), __m512d(best)));
    if constexpr (std::is_same_v<T, std::uint8_t>) return reinterpret_cast<V>(_mm512_max_epu8(a, b));
    if constexpr (std::is_same_v<T, std::uint16_t>) return reinterpret_cast<V>(_mm512_max_epu16(a, b));
  }
#endif
#if defined(__AVX2__)
  if constexpr (std::is_same_v<V, Vec<float, 8>>)
    return reinterpret_cast<V>(_mm256_max_ps(__m256(later), __m256(best)));
  if constexpr (std::is_same_v<V, Vec<double, 4>>)
    return reinterpret_cast<V>(_mm256_max_pd(__m256d(later), __m256d(best)));
#endif
  return later > best ? later : best;
}

// The concatenation of two vectors.
template <class V, int... I> inline auto concatenated(V a, V b, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(a, b, I...);
}
template <class V> inline auto concatenated(V a, V b) {
  return concatenated(a, b, std::make_integer_sequence<int, 2 * length_of<V>>{});
}

template <class V, int... I> inline V evens(V a, V b, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(a, b, 2 * I...);
}
template <class V, int... I> inline V odds(V a, V b, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(a, b, 2 * I + 1 ...);
}
// The even and the odd elements of the concatenation of two vectors.
template <class V> inline V evens(V a, V b) {
  return evens(a, b, std::make_integer_sequence<int, length_of<V>>{});
}
template <class V> inline V odds(V a, V b) {
  return odds(a, b, std::make_integer_sequence<int, length_of<V>>{});
}

template <class V, int... I> inline V zip(V a, V b, std::integer_sequence<int, I...>, auto from) {
  constexpr int n = length_of<V>;
  return __builtin_shufflevector(a, b, (I / 2 + I % 2 * n + decltype(from)::value)...);
}
// The first and the second half of a0 b0 a1 b1 ...
template <class V> inline V zip_lo(V a, V b) {
  return zip(a, b, std::make_integer_sequence<int, length_of<V>>{}, std::integral_constant<int, 0>{});
}
template <class V> inline V zip_hi(V a, V b) {
  return zip(a, b, std::make_integer_sequence<int, length_of<V>>{},
             std::integral_constant<int, length_of<V> / 2>{});
}

template <int By, class V, int... I> inline V shifted(V a, V b, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(a, b, I + By...);
}
// One vector of the concatenation of a and b, from element By on.
template <int By, class V> inline V shifted(V a, V b) {
#if defined(__AVX512VL__)  // one instruction, without a vector of indices
  if constexpr (sizeof(Element<V>) == 4 && sizeof(V) == 64)
    return reinterpret_cast<V>(
        _mm512_alignr_epi32(reinterpret_cast<__m512i>(b), reinterpret_cast<__m512i>(a), By));
  if constexpr (sizeof(Element<V>) == 4 && sizeof(V) == 32)
    return reinterpret_cast<V>(
        _mm256_alignr_epi32(reinterpret_cast<__m256i>(b), reinterpret_cast<__m256i>(a), By));
#endif
  return shifted<By>(a, b, std::make_integer_sequence<int, length_of<V>>{});
}
// Broadcasts x. Subtracts zero, because adding it would turn -0 into 0.
template <class V> inline V broadcast(Element<V> x) { return x - V{}; }

// 0, 1, 2, ... N - 1, as wide as T.
template <class T, int N> inline Vec<UnsignedLike<T>, N> lane_numbers() {
  Vec<UnsignedLike<T>, N> lane;
  for (int j = 0; j < N; ++j) lane[j] = UnsignedLike<T>(j);
  return lane;
}

// A mask of the first n elements.
template <class T, int N> inline auto lane_mask(int64_t n) {
  return lane_numbers<T, N>() < UnsignedLike<T>(n);
}

// Whether any bit of the mask is set.
template <class V> inline bool any(V mask) {
#if defined(__AVX512F__)
  if constexpr (sizeof(V) == 64) {
    const __m512i m = reinterpret_cast<__m512i>(mask);
    return _mm512_test_epi64_mask(m, m) != 0;
  }
#endif
#if defined(__AVX2__)
  if constexpr (sizeof(V) == 32) {
    const __m256i m = reinterpret_cast<__m256i>(mask);
    return !_mm256_testz_si256(m, m);
  }
#endif
  using Words = Vec<std::uint64_t, int(sizeof(V) / 8)>;
  const Words words = reinterpret_cast<Words>(mask);
  std::uint64_t all = 0;
  for (int i = 0; i < int(sizeof(V) / 8); ++i) all |= words[i];
  return all != 0;
}

// Whether `compressed` is supported, as one instruction.
#if defined(__AVX512F__)
template <class T> constexpr bool has_compress = sizeof(T) >= 4;
#else
template <class T> constexpr bool has_compress = false;
#endif

// Whether `shuffled_bytes` is supported, as one instruction.
#if defined(__AVX2__)
constexpr bool has_byte_shuffle = true;
#else
constexpr bool has_byte_shuffle = false;
#endif
using Sixteen = Vec<std::uint8_t, 16>;
// The bytes whose indices `names` lists, in its order; index 0x80 gives zero.
inline Sixteen shuffled_bytes([[maybe_unused]] Sixteen bytes, [[maybe_unused]] Sixteen names) {
#if defined(__AVX2__)
  return reinterpret_cast<Sixteen>(
      _mm_shuffle_epi8(reinterpret_cast<__m128i>(bytes), reinterpret_cast<__m128i>(names)));
#else
  return bytes;
#endif
}

// Compresses a vector: the elements whose bits are set come first, in order; the rest is zero.
template <class V> inline V compressed([[maybe_unused]] V v, [[maybe_unused]] std::uint32_t bits) {
#if defined(__AVX512F__)
  if constexpr (sizeof(Element<V>) == 4)
    return reinterpret_cast<V>(_mm512_maskz_compress_epi32(__mmask16(bits), reinterpret_cast<__m512i>(v)));
  else
    return reinterpret_cast<V>(_mm512_maskz_compress_epi64(__mmask8(bits), reinterpret_cast<__m512i>(v)));
#else
  return v;
#endif
}

// Whether `permuted` is supported, as one instruction.
#if defined(__AVX512BW__)
template <class T> constexpr bool has_permute = sizeof(T) >= 2;
#else
template <class T> constexpr bool has_permute = false;
#endif

// Elements of the concatenation of a and b, by index.
template <class V, class I> inline V permuted(V a, [[maybe_unused]] V b, [[maybe_unused]] I index) {
  static_assert(!has_permute<Element<V>> || sizeof(Element<I>) == sizeof(Element<V>));
#if defined(__AVX512BW__)
  const __m512i x = reinterpret_cast<__m512i>(a), y = reinterpret_cast<__m512i>(b),
                i = reinterpret_cast<__m512i>(index);
  if constexpr (sizeof(Element<V>) == 2)
    return reinterpret_cast<V>(_mm512_permutex2var_epi16(x, i, y));
  else if constexpr (std::is_same_v<Element<V>, float>)
    return reinterpret_cast<V>(
        _mm512_permutex2var_ps(reinterpret_cast<__m512>(a), i, reinterpret_cast<__m512>(b)));
  else if constexpr (sizeof(Element<V>) == 4)
    return reinterpret_cast<V>(_mm512_permutex2var_epi32(x, i, y));
  else
    return reinterpret_cast<V>(_mm512_permutex2var_epi64(x, i, y));
#else
  return a;
#endif
}

// The index of the first element set in a mask, or the number of elements if none is.
template <class V> inline int first_set(V mask) {
#if defined(__AVX512F__)
  if constexpr (sizeof(V) == 64 && sizeof(Element<V>) == 4) {
    const __m512i m = reinterpret_cast<__m512i>(mask);
    return __builtin_ctz(0x10000u | _mm512_test_epi32_mask(m, m));
  }
#endif
#if defined(__AVX2__)
  if constexpr (sizeof(V) == 32 && sizeof(Element<V>) == 4)
    return __builtin_ctz(0x100u | unsigned(_mm256_movemask_ps(reinterpret_cast<__m256>(mask))));
#endif
  int k = 0;
  if (!any(mask)) return length_of<V>;
  while (k < length_of<V> && !mask[k]) ++k;
  return k;
}

#if defined(__AVX512VL__)
// A mask register for the widest vector: one bit per element.
template <class T> using MaskOf =
    std::conditional_t<sizeof(T) == 1, __mmask64, std::conditional_t<sizeof(T) == 2, __mmask32, __mmask16>>;

// Masked load and store: memory of elements whose bits are not set is neither read nor written.
template <class T, class V> inline V read_where(MaskOf<T> where, const T* p, V rest) {
  if constexpr (sizeof(T) == 1)
    return reinterpret_cast<V>(_mm512_mask_loadu_epi8(reinterpret_cast<__m512i>(rest), where, p));
  else if constexpr (sizeof(T) == 2)
    return reinterpret_cast<V>(_mm512_mask_loadu_epi16(reinterpret_cast<__m512i>(rest), where, p));
  else
    return _mm512_mask_loadu_ps(rest, where, p);
}
template <class T, class V> inline void write_where(MaskOf<T> where, T* p, V v) {
  if constexpr (sizeof(T) == 1)
    _mm512_mask_storeu_epi8(p, where, reinterpret_cast<__m512i>(v));
  else if constexpr (sizeof(T) == 2)
    _mm512_mask_storeu_epi16(p, where, reinterpret_cast<__m512i>(v));
  else
    _mm512_mask_storeu_ps(p, where, v);
}

using Floats = Vec<float, 16>;
using Ints = Vec<std::int32_t, 16>;

inline MaskOf<float> beats_where(Floats later, Floats best) {
  return _mm512_cmp_ps_mask(later, best, _CMP_GT_OQ);
}
inline MaskOf<float> equal_where(Floats a, Floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
inline MaskOf<float> equal_where(MaskOf<float> asked, Floats a, Floats b) {
  return _mm512_mask_cmp_ps_mask(asked, a, b, _CMP_EQ_OQ);
}
inline MaskOf<float> less_where(MaskOf<float> asked, Ints a, Ints b) {
  return _mm512_mask_cmplt_epi32_mask(asked, reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b));
}
// Blends two vectors: `from` where bits are set, otherwise `to`.
template <class V> inline V blended(V to, MaskOf<float> where, V from) {
  if constexpr (std::is_same_v<V, Floats>)
    return _mm512_mask_mov_ps(to, where, from);
  else
    return reinterpret_cast<V>(
        _mm512_mask_mov_epi32(reinterpret_cast<__m512i>(to), where, reinterpret_cast<__m512i>(from)));
}

// Gathers elements of an array by index.
inline Ints gathered(const std::int32_t* p, Ints from) {
  return reinterpret_cast<Ints>(_mm512_i32gather_epi32(reinterpret_cast<__m512i>(from), p, 4));
}

// sum + more as a fused multiply-add, which runs on the multiply units; the bits are the same.
inline Floats fma_sum(Floats sum, Floats more) {
  Floats one = Floats{} + 1.0f;
  asm("" : "+v"(one));  // otherwise the compiler emits an addition
  return _mm512_fmadd_ps(more, one, sum);
}

using Bytes = Vec<std::uint8_t, 64>;
using Words = Vec<std::uint16_t, 32>;

// One vector of the concatenation of a and b, from byte By on; By is at most 16.
template <int By> inline Bytes shifted_bytes(Bytes a, Bytes b) {
  const __m512i m = reinterpret_cast<__m512i>(a),
                lanes = _mm512_alignr_epi64(reinterpret_cast<__m512i>(b), m, 2);
  if constexpr (By == 16)
    return reinterpret_cast<Bytes>(lanes);
  else
    return reinterpret_cast<Bytes>(_mm512_alignr_epi8(lanes, m, By));
}
// Bytes of `a` and of `b`, by index within each group of sixteen, combined with OR; index 0x80 gives zero.
inline Bytes shuffled_bytes_of_two(Bytes a, Bytes from_a, Bytes b, Bytes from_b) {
  return reinterpret_cast<Bytes>(
      _mm512_shuffle_epi8(reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(from_a)) |
      _mm512_shuffle_epi8(reinterpret_cast<__m512i>(b), reinterpret_cast<__m512i>(from_b)));
}

// Masked load and store of floats [from, to) of N: the others are neither read nor written.
template <int N> struct MaskedFloats {
  __mmask16 mask;

  MaskedFloats() = default;
  MaskedFloats(int64_t from, int64_t to) {
    const auto below = [](int64_t n) { return (1u << (n < 0 ? 0 : n > N ? N : n)) - 1; };
    mask = __mmask16(below(to) & ~below(from));
  }
  Vec<float, N> read(const float* p, Vec<float, N> rest) const {
    if constexpr (N == 16)
      return _mm512_mask_loadu_ps(rest, mask, p);
    else
      return _mm256_mask_loadu_ps(rest, __mmask8(mask), p);
  }
  Vec<float, N> read(const float* p) const {
    if constexpr (N == 16)
      return _mm512_maskz_loadu_ps(mask, p);
    else
      return _mm256_maskz_loadu_ps(__mmask8(mask), p);
  }
  void write(float* p, Vec<float, N> v) const {
    if constexpr (N == 16)
      _mm512_mask_storeu_ps(p, mask, v);
    else
      _mm256_mask_storeu_ps(p, __mmask8(mask), v);
  }
};

#endif

// Records whether any vector passed to `add` contained a NaN.
template <int N> struct NanCheck {
#if defined(__AVX512VL__)
  __mmask16 mask = 0;

  void add(Vec<float, N> a, Vec<float, N> b) {
    if constexpr (N == 16)
      mask = _kor_mask16(mask, _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q));
    else
      mask = _kor_mask16(mask, _mm256_cmp_ps_mask(a, b, _CMP_UNORD_Q));
  }
  bool any() const { return mask != 0; }
#else
  Vec<std::int32_t, N> mask{};

  void add(Vec<float, N> a, Vec<float, N> b) { mask |= (a != a) | (b != b); }
  bool any() const { return ndpool::any(mask); }
#endif
};

}  // namespace
}  // namespace ndpool

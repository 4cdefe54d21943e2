// The 16-bit float types and the conversions of single elements between storage and compute types, used by every
// engine. They are branch-free, so that the compiler vectorizes the loops around them on every instruction set.
// Conversions of whole vectors are in simd.h.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace ndpool {
namespace {

struct f16 {
  std::uint16_t bits;
};
struct bf16 {
  std::uint16_t bits;
};

template <class T> constexpr bool is_half = std::is_same_v<T, f16> || std::is_same_v<T, bf16>;
template <class T> constexpr bool is_real = std::is_floating_point_v<T>;

inline float widen(bf16 h) { return std::bit_cast<float>(std::uint32_t(h.bits) << 16); }

inline float widen(f16 h) {
  // Rebias the exponent; infinities and NaN need a larger bias, and a subtraction normalises subnormals.
  const std::uint32_t magnitude = std::uint32_t(h.bits & 0x7fffu) << 13;
  const std::uint32_t exponent = magnitude & 0x0f800000u;
  // A signalling NaN becomes quiet, as in the conversion instruction of processors.
  const std::uint32_t quiet = magnitude > 0x0f800000u ? 0x00400000u : 0u;
  const std::uint32_t normal = (magnitude + (exponent == 0x0f800000u ? 0x70000000u : 0x38000000u)) | quiet;
  const float small = std::bit_cast<float>(magnitude + 0x38800000u) - std::bit_cast<float>(0x38800000u);
  const std::uint32_t bits = exponent == 0 ? std::bit_cast<std::uint32_t>(small) : normal;
  return std::bit_cast<float>(bits | std::uint32_t(h.bits & 0x8000u) << 16);
}

inline void narrow(float f, bf16& h) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(f);
  const std::uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  h.bits = std::uint16_t((u & 0x7fffffffu) > 0x7f800000u ? (u >> 16) | 0x40u : rounded);
}

inline void narrow(float f, f16& h) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(f);
  const std::uint32_t sign = (u >> 16) & 0x8000u, magnitude = u & 0x7fffffffu;
  // The carry out of the discarded bits rounds to nearest even; adding 0.5 aligns subnormals.
  const std::uint32_t normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  const std::uint32_t small = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) -
                              std::bit_cast<std::uint32_t>(0.5f);
  std::uint32_t bits = magnitude < 0x38800000u ? small : normal;
  bits = magnitude >= 0x477ff000u ? 0x7c00u : bits;
  bits = magnitude > 0x7f800000u ? 0x7e00u | (magnitude >> 13 & 0x1ffu) : bits;
  h.bits = std::uint16_t(bits | sign);
}

template <class V, class S> inline V load_as(S s) {
  if constexpr (is_half<S>)
    return V(widen(s));
  else
    return V(s);
}

template <class O, class V> inline O store_as(V v) {
  if constexpr (is_half<O>) {
    O o;
    narrow(float(v), o);
    return o;
  } else if constexpr (std::is_integral_v<O> && is_real<V>) {  // values out of range wrap, as integers do
    if (v == -std::numeric_limits<V>::infinity())
      return std::numeric_limits<O>::lowest();  // the maximum of an empty window
    return O(std::conditional_t < sizeof(V) == 4, std::int32_t, std::int64_t > (v));
  } else {
    return O(v);
  }
}

// Division by an integer. The sum of an empty window, zero, is divided by 1 instead of 0. For a power of two,
// multiplying by the inverse gives the same bits and is cheaper.
template <class V> struct Quotient {
  V by, inverse = V(1);
  bool multiplies;

  explicit Quotient(std::int64_t n)
      : by(V(n ? n : 1)), multiplies(is_real<V> && n > 0 && (n & (n - 1)) == 0) {
    if constexpr (is_real<V>) inverse = V(1) / by;
  }
  template <class T> T operator()(T v) const { return multiplies ? T(v * inverse) : T(v / by); }
};

}  // namespace
}  // namespace ndpool

// Powers and roots of rows, for Lp pooling. Whole exponents are products; square roots are instructions; other
// exponents of floats go through logarithms in double precision, whose error vanishes when results are rounded to
// float. Only additions, multiplications and divisions are used, so that all instruction sets give the same bits.
// Other exponents of doubles are left to the C library.
#pragma once

#include <cmath>

#include "simd.h"

namespace ndpool {
namespace {

constexpr int doubles = wide<double> < 4 ? 4 : wide<double>;  // so that as many floats fill a vector, too
using Doubles = Vec<double, doubles>;

// log2(a) of positive normal numbers, with an error of less than 1e-11: a = 2^e * m, and log2(m) = 2 atanh(f) / ln(2) with
// f = (m - 1) / (m + 1).
inline Doubles log2_of(Doubles a) {
  using U = Vec<std::uint64_t, doubles>;
  constexpr double magic = 0x1.8p52;
  const U bits = reinterpret_cast<U>(a), above = bits - std::bit_cast<std::uint64_t>(0x1.6a09e667f3bcdp-1);
  const U exponent = reinterpret_cast<U>(reinterpret_cast<Vec<std::int64_t, doubles>>(above) >> 52);
  const Doubles m = reinterpret_cast<Doubles>(bits - (exponent << 52)), f = (m - 1.0) / (m + 1.0), z = f * f;
  Doubles sum = Doubles{} + 1.0 / 15;
  for (const double c : {1.0 / 13, 1.0 / 11, 1.0 / 9, 1.0 / 7, 1.0 / 5, 1.0 / 3, 1.0}) sum = sum * z + c;
  const Doubles whole = reinterpret_cast<Doubles>(exponent + std::bit_cast<std::uint64_t>(magic)) - magic;
  return whole + f * sum * 0x1.71547652b82fep+1;  // 2 / ln(2)
}

// 2^t for |t| < 1000, with a relative error of less than 1e-11: the Taylor series of the fraction.
inline Doubles exp2_of(Doubles t) {
  using U = Vec<std::uint64_t, doubles>;
  constexpr double magic = 0x1.8p52;
  Doubles shifted = t + magic;
  const U exponent = reinterpret_cast<U>(shifted) << 52;
  shifted -= magic;
  const Doubles r = (t - shifted) * 0x1.62e42fefa39efp-1;  // ln(2)
  Doubles sum = Doubles{} + 1.0 / 3628800;
  for (const double c :
       {1.0 / 362880, 1.0 / 40320, 1.0 / 5040, 1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 0.5, 1.0, 1.0})
    sum = sum * r + c;
  return reinterpret_cast<Doubles>(reinterpret_cast<U>(sum) + exponent);
}

// x^p as std::pow defines it, for finite p other than 0.
inline Vec<float, doubles> power_of_floats(Vec<float, doubles> v, double p) {
  const Doubles x = converted<Doubles>(v), a = x < 0.0 ? -x : x;
  const Doubles infinity = Doubles{} + HUGE_VAL, zero{};
  Doubles t = log2_of(a) * p;
  t = t > 200.0 ? zero + 200.0 : t;  // infinity as a float
  t = t < -200.0 ? zero - 200.0 : t;
  Doubles y = exp2_of(t);
  y = a == 0.0 ? (p < 0 ? infinity : zero) : y;
  y = a == infinity ? (p < 0 ? zero : infinity) : y;
  const bool is_whole = p == std::floor(p), is_odd = is_whole && std::fmod(p, 2.0) != 0;
  if (is_odd) y = x < 0.0 ? -y : y;
  if (!is_whole) y = ((x < 0.0) & (a != infinity)) ? zero / zero : y;
  return converted<Vec<float, doubles>>(x != x ? x : y);
}

// The root of x for a whole norm: an estimate by logarithms, and a Newton step.
inline Doubles root_of_doubles(Doubles x, int norm) {
  const Doubles y = exp2_of(log2_of(x) / double(norm));
  Doubles power = y;
  for (int k = 1; k < norm; ++k) power *= y;
  return y + y * (x - power) / (power * double(norm));
}

// Calls f(row) with x[0, n) in pieces of L elements; the last piece is a padded copy.
template <int L, class V, class F> inline void in_pieces(V* x, int64_t n, F&& f) {
  int64_t j = 0;
  for (; j + L <= n; j += L) f(x + j);
  if (j == n) return;
  V rest[L];
  for (int k = 0; k < L; ++k) rest[k] = j + k < n ? x[j + k] : V(1);
  f(rest);
  for (int k = 0; j + k < n; ++k) x[j + k] = rest[k];
}

// Raises a row to a power.
template <class V> void powers(V* x, int64_t n, double p) {
  constexpr double largest_product = 8;  // exponent
  if (p == 1) return;
  if (p == 0.5) return in_vectors(n, [=](int64_t j) { x[j] = std::sqrt(x[j]); });
  if (p == 2) return in_vectors(n, [=](int64_t j) { x[j] *= x[j]; });
  if (p == 3) return in_vectors(n, [=](int64_t j) { x[j] = x[j] * x[j] * x[j]; });
  if (p == std::floor(p) && std::fabs(p) <= largest_product)
    return in_pieces<wide<V>>(x, n, [p](V* at) {
      Vec<V, wide<V>> v = read<V, wide<V>>(at), product = broadcast<Vec<V, wide<V>>>(V(1));
      for (int k = int(std::fabs(p)); k; k >>= 1, v *= v)
        if (k & 1) product *= v;
      write(at, p < 0 ? V(1) / product : product);
    });
  if constexpr (std::is_same_v<V, float>)
    if (std::fabs(p) <= 1024)
      return in_pieces<doubles>(x, n, [p = double(float(p))](float* at) {
        write(at, power_of_floats(read<float, doubles>(at), p));
      });
  for (int64_t j = 0; j < n; ++j) x[j] = std::pow(x[j], V(p));
}

// Takes the roots of sums of powers.
template <class V> void roots(V* x, int64_t n, double norm) {
  if constexpr (std::is_same_v<V, double>)
    if (norm == std::floor(norm) && norm >= 3 && norm <= 16)
      return in_pieces<doubles>(x, n, [norm](double* at) {
        const Doubles v = read<double, doubles>(at);
        const auto common = (v >= 0x1p-1000) & (v <= 0x1p1000);
        write(at, root_of_doubles(v, int(norm)));
        if (any(~common))  // zero, infinity, NaN, negative
          for (int k = 0; k < doubles; ++k)
            if (!common[k]) at[k] = std::pow(v[k], 1 / norm);
      });
  powers(x, n, 1 / norm);
}

}  // namespace
}  // namespace ndpool

// The backward of sums and averages whose single window covers the whole plane, called from backward/selection.h.
// It fills each plane with one value, or with one value per channel. Planes with gaps stay out.
//
// Without this engine the gradient of global average pooling of 7 x 7 bfloat16 (ResNet) takes 16 times as long.
#pragma once

#include "backward/bands.h"

namespace ndpool {
namespace {

// V: compute type.
template <class V> class Fill {
  static constexpr int64_t tile_bytes = 1 << 17, pattern_bytes = 1 << 9;

public:
  static constexpr const char* engine = "fill";

  static bool supports(const Problem& p) {
    if (p.op != Op::sum || p.extra != Extra::none || p.x_type != p.y_type) return false;
    for (int a = 0; a < p.n_axes; ++a) {
      const Axis& axis = p.axes[a];
      if (axis.out != 1 || axis.table_stride || window(axis, 0).taps != axis.size) return false;
    }
    return packed_planes(p);
  }

  // A unit is a part of a plane.
  static void prepare(Problem& p) {
    const int64_t group_bytes = p.channels * size_of(p.y_type);
    p.tile = max(1, min(plane_elements(p), ceil_div(tile_bytes, group_bytes)));
    p.tiles = ceil_div(plane_elements(p), p.tile);
    p.units = p.planes * p.tiles;
    p.scratch = Scratch::bytes<V>(p.channels) + Scratch::bytes<char>(repeats(p) * group_bytes);
  }

  static void run(const Problem& p, int64_t begin, int64_t end, char* memory) {
    if (p.y_type == Dtype::f16) return Fill(p, memory).template units<f16>(begin, end);
    if (p.y_type == Dtype::bf16) return Fill(p, memory).template units<bf16>(begin, end);
    Fill(p, memory).template units<V>(begin, end);
  }

private:
  // The number of times the pattern repeats the channels.
  static int64_t repeats(const Problem& p) {
    return min(p.tile, ceil_div(pattern_bytes, p.channels * size_of(p.y_type)));
  }

  static int64_t divisor(const Problem& p) {
    int64_t by = p.divide ? p.divisor : 1;
    if (by) return by;
    by = 1;
    for (int a = 0; a < p.n_axes; ++a) by *= share(p.axes[a], 0);
    return by;
  }

  Fill(const Problem& p, char* memory) : p_(p), quotient_(divisor(p)), load_(loader<V>(p.x_type, false)) {
    Scratch scratch(memory);
    values_ = scratch.take<V>(p.channels);
    pattern_ = scratch.take<char>(repeats(p) * p.channels * size_of(p.y_type));
  }

  template <class S> void units(int64_t begin, int64_t end) {
    const int64_t elements = plane_elements(p_);
    const bool equally_spaced = p_.tiles == 1 && p_.n_lead <= 1;  // planes have a common stride
    char *x = nullptr, *y = nullptr;
    for (int64_t unit = begin; unit < end && !p_.stopped(); ++unit) {
      if (equally_spaced && unit > begin) {
        x += p_.x.lead[0];
        y += p_.y.lead[0];
      } else {
        x = plane_of(p_, p_.x, unit / p_.tiles);
        y = plane_of(p_, p_.y, unit / p_.tiles);
      }
      const int64_t from = unit % p_.tiles * p_.tile, n = min(p_.tile, elements - from);
      S* to = reinterpret_cast<S*>(y) + from * p_.channels;
      if (p_.channels == 1)
        fill_plane(to, n, store_as<S>(quotient_(load_as<V>(*reinterpret_cast<const S*>(x)))));
      else
        fill_channels(x, to, n);
    }
  }

  // The last vector overlaps the one before it; fewer than N elements take shorter vectors.
  template <class S, int N = vector_bytes / sizeof(S)> static void fill_plane(S* to, int64_t n, S value) {
    if (n >= N) {
      UnsignedLike<S> bits;
      __builtin_memcpy(&bits, &value, sizeof bits);
      const auto v = Vec<UnsignedLike<S>, N>{} + bits;
      for (int64_t j = 0; j + N <= n; j += N) write(to + j, v);
      write(to + n - N, v);
    } else if constexpr (N > 1) {
      fill_plane<S, N / 2>(to, n, value);
    }
  }

  template <class S> void fill_channels(char* x, S* to, int64_t n) {
    load_({x, 0, p_.x.channel, 1, p_.channels}, values_);
    S* pattern = reinterpret_cast<S*>(pattern_);
    for (int64_t c = 0; c < p_.channels; ++c) pattern[c] = store_as<S>(quotient_(values_[c]));
    const int64_t step = min(n, repeats(p_));
    for (int64_t k = 1; k < step; ++k) copy_exactly(pattern, pattern + k * p_.channels, p_.channels);
    for (int64_t i = 0; i < n; i += step)
      copy_exactly(pattern, to + i * p_.channels, min(step, n - i) * p_.channels);
  }

  const Problem& p_;
  const Quotient<V> quotient_;
  const Load<V> load_;
  V* values_;
  char* pattern_;
};

}  // namespace
}  // namespace ndpool

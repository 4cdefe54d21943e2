// Small planes: rows of floats that fit into one or two vectors, windows of 2 or 3 with stride 2. Reads each input
// row once, reduces the rows of a window to one, and takes the windows' columns from that row by permutation.
// Additions have the same order as in every engine; with offsets, the earlier of equal elements wins. Called
// through float32.cpp. Planes with a NaN are left to the direct engine.
// Without this engine max pooling 3 x 3 with stride 2 takes 1.5 times as long on 13 x 13 and 1.3 times on 27 x 27 (AlexNet).
#pragma once

#include "forward/direct.h"

#if defined(__AVX512VL__)

namespace ndpool {
namespace {

template <class R, bool indexed> class SmallPlanes {
  using V = float;
  static constexpr int N = wide<V>;
  using Vn = Vec<V, N>;
  using Cn = Vec<std::int32_t, N>;
  using DirectEngine = DirectRows<R, V, indexed>;

public:
  static constexpr const char* engine = "small_planes";
  static bool supports(const Problem& p) {
    if (p.n_axes != 2 || !DirectEngine::supports(p) || p.axes[0].uncropped != p.axes[0].kernel) return false;
    for (int a = 0; a < 2; ++a)
      if (p.axes[a].kernel != p.axes[1].kernel || p.axes[a].stride != 2 ||
          (!R::is_max && p.axes[a].step != 1))
        return false;
    return reach(p) <= 2 * N &&
           !(p.axes[1].kernel == 2 && p.axes[1].step == 1 && DirectEngine::is_one_strip(p));
  }

  static void prepare(Problem& p) {
    DirectEngine::prepare(p);
    p.units = p.planes;
  }

  static void run(const Problem& p, int64_t begin, int64_t end, char* memory) {
    const SmallPlanes work(p, memory);
    if (p.axes[1].kernel == 2)
      reach(p) <= N ? work.planes<2, 1>(begin, end) : work.planes<2, 2>(begin, end);
    else
      reach(p) <= N ? work.planes<3, 1>(begin, end) : work.planes<3, 2>(begin, end);
  }

private:
  const Problem& p_;
  char* memory_;
  const Axis &rows_, &cols_;
  MaskedFloats<N> inside_[2], outputs_;
  Cn taps_[3];    // column of each window's tap t, relative to the first window's first tap
  Vn col_share_;  // the columns' factor of the divisors
  bool contiguous_;

  // The number of columns from the first window's first tap to the last window's last.
  static int64_t reach(const Problem& p) {
    const Axis& cols = p.axes[1];
    return (cols.out - 1) * 2 + (cols.kernel - 1) * cols.step + 1;
  }

  SmallPlanes(const Problem& p, char* memory) : p_(p), memory_(memory), rows_(p.axes[0]), cols_(p.axes[1]) {
    for (int w = 0; w < 2; ++w)
      inside_[w] = MaskedFloats<N>(-cols_.origin - w * N, cols_.size - cols_.origin - w * N);
    outputs_ = MaskedFloats<N>(0, cols_.out);
    for (int t = 0; t < 3; ++t)
      for (int j = 0; j < N; ++j) taps_[t][j] = std::int32_t(2 * j + t * cols_.step);
    for (int j = 0; j < N; ++j)
      col_share_[j] = V(p.divisor ? p.divisor : j < cols_.out && p.divide ? max(1, share(cols_, j)) : 1);
    contiguous_ = is_contiguous(p, p.y, sizeof(V), Over::outputs);
  }

  template <int K, int W> void planes(int64_t begin, int64_t end) const {
    for (int64_t q = begin; q < end; ++q) {
      // The tail that a whole vector writes past its row must belong to later rows of the same worker.
      const bool whole_vectors = contiguous_ && (end - 1 - q) * rows_.out * cols_.out >= N;
      if (whole_vectors ? plane<K, W, true>(q) : plane<K, W, false>(q)) continue;
      const int64_t to = min(end, q + Speculation::exact_pieces);
      DirectEngine::run(p_, q * p_.rows, to * p_.rows, memory_);
      q = to - 1;
    }
  }

  struct Best {
    Vn value;
    Cn offset;
  };

  static void replace(MaskOf<V> better, Vn value, Cn offset, Best& best) {
    best.value = blended(best.value, better, value);
    best.offset = blended(best.offset, better, offset);
  }

  // Merges a later row.
  static void down(Vn later, std::int32_t offset, Best& best) {
    if constexpr (indexed)
      replace(beats_where(later, best.value), later, Cn{} + offset, best);
    else if constexpr (R::is_max)
      best.value = merged<R, false>(later, best.value);
    else
      best.value += later;
  }

  // One tap of all windows, from a reduced row in two vectors.
  Best tap(const Best& a, const Best& b, int number, std::int32_t offset) const {
    Best result{permuted(a.value, b.value, taps_[number]), Cn{}};
    if constexpr (indexed) result.offset = offset + permuted(a.offset, b.offset, taps_[number]);
    return result;
  }

  // Merges another column of the reduced row; of equal values, the smaller offset wins.
  static void across(const Best& next, Best& best) {
    if constexpr (indexed) {
      const MaskOf<V> equal = equal_where(next.value, best.value),
                      earlier = less_where(equal, next.offset, best.offset);
      replace(MaskOf<V>(beats_where(next.value, best.value) | earlier), next.value, next.offset, best);
    } else {
      down(next.value, 0, best);
    }
  }

  // Returns false if the direct engine must recompute the plane.
  template <int K, int W, bool whole_vectors> bool plane(int64_t q) const {
    const V* x = reinterpret_cast<const V*>(plane_of(p_, p_.x, q)) + cols_.origin;
    V* y = reinterpret_cast<V*>(plane_of(p_, p_.y, q));
    char* extra = indexed ? plane_of(p_, p_.extra_array, q) : nullptr;
    const int64_t x_pitch = p_.x.pooled[0] / int64_t(sizeof(V)),
                  y_pitch = p_.y.pooled[0] / int64_t(sizeof(V));
    const bool indices = p_.extra == Extra::index64;
    const std::int32_t row_offset = std::int32_t(indices ? rows_.step * cols_.size : K),
                       col_offset = std::int32_t(indices ? cols_.step : 1);
    const Vn init = Vn{} + R::init();
    Vn nan_sum{};             // of all elements
    MaskOf<V> ambiguous = 0;  // windows whose best equals init(): the offset may be that of a tap outside
    struct RowVectors {
      Vn v[W];
    };
    const auto read_row = [&](int64_t i) __attribute__((always_inline)) {
      RowVectors result;
      const bool is_inside = within(i, rows_);
      for (int w = 0; w < W; ++w) {
        result.v[w] = is_inside ? inside_[w].read(x + i * x_pitch + w * N, init) : init;
        if constexpr (R::is_max) nan_sum += result.v[w];
      }
      return result;
    };
    const bool shares_row = K == 3 && rows_.step == 1;
    RowVectors third;
    if (shares_row) third = read_row(rows_.origin);
    for (int64_t o = 0, i = rows_.origin; o < rows_.out; ++o, i += 2, y += y_pitch) {
      const RowVectors first = shares_row ? third : read_row(i), second = read_row(i + rows_.step);
      if constexpr (K == 3) third = read_row(i + 2 * rows_.step);
      Best reduced[W];
      for (int w = 0; w < W; ++w) {
        reduced[w] = {first.v[w], Cn{}};
        down(second.v[w], row_offset, reduced[w]);
        if constexpr (K == 3) down(third.v[w], 2 * row_offset, reduced[w]);
      }
      Best best = tap(reduced[0], reduced[W - 1], 0, 0);
      for (int t = 1; t < K; ++t) across(tap(reduced[0], reduced[W - 1], t, t * col_offset), best);
      if constexpr (!R::is_max) {
        if (p_.divide) best.value /= col_share_ * V(p_.divisor ? 1 : max(1, share(rows_, o)));
      }
      if constexpr (whole_vectors)
        write(y, best.value);
      else
        outputs_.write(y, best.value);
      if constexpr (indexed) {
        ambiguous |= equal_where(outputs_.mask, best.value, init);
        store_offsets<whole_vectors>(best.offset, o, i, extra);
      }
    }
    return !ambiguous && !contains_nan(nan_sum);
  }

  template <bool whole_vectors> void store_offsets(Cn offset, int64_t o, int64_t i, char* extra) const {
    extra += o * p_.extra_array.pooled[0];
    const int64_t base = i * cols_.size + cols_.origin;
    if (p_.extra == Extra::index64) offset += taps_[0];
    if constexpr (whole_vectors) return write_offsets<N>(p_.extra, extra, 0, offset, base);
    const int64_t item = size_of(p_.extra), first = p_.extra == Extra::index64 ? base : 0;
    for (int64_t j = 0; j < cols_.out; ++j) write_offset(p_.extra, extra + j * item, first + offset[j]);
  }
};

}  // namespace
}  // namespace ndpool

#endif

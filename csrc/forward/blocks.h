// Blocks: windows that share little or nothing, such as whole planes, the windows of adaptive pooling, or windows with a
// stride of their own length. The rows of a window are folded into one, in registers; this row is then folded into its
// outputs. With codes, the best of each column is kept with the number of its row: the earliest row wins, and in it the
// earliest column. Without this engine adaptive max pooling with indices from 56 x 56 to 7 x 7 takes 7.8 times as long,
// global average pooling of 7 x 7 (ResNet) 5.4 times.
#pragma once

#include "forward/general.h"
#include "simd.h"

namespace ndpool {
namespace {

template <class R, class S, bool coded> struct Blocks {
  static constexpr const char* engine = "blocks";
  using V = typename R::V;
  static constexpr int N = wide<V>, broad = 4, few = 4;
  static constexpr int64_t most_copied = 64;  // rows at the end of the array
  static constexpr int64_t many_rows = 16;    // of a plane, whose sums wait for each other
  static constexpr bool can_be_nan = R::picks && is_real<V>;
  static constexpr bool columned = sizeof(V) >= 4 && !coded;  // few lanes: rows become columns in a few steps
  static_assert(!coded || is_real<V>, "the number of a row has as many bits as a value");
  using Vn = Vec<V, N>;
  using C = UnsignedLike<V>;
  using Cn = Vec<C, N>;
  static constexpr int64_t row_elements = 16 * 1024 / sizeof(V);

  static bool serves(const Problem& p) {
    if (p.lanes != 1 || p.op == Op::lp || p.n_axes > 3 || p.x_type != p.y_type) return false;
    const int last = p.n_axes - 1;
    if (p.x.pooled[last] != sizeof(S) || (p.axes[last].regular() && p.axes[last].step != 1)) return false;
    for (int a = 0; a < p.n_axes; ++a) {
      const Axis& axis = p.axes[a];
      if (axis.regular() ? axis.stride < axis.kernel && axis.out > 1 : axis.table_stride != 0) return false;
    }
    return !coded || !split_faster(p);
  }

  // Codes of small windows whose width does not divide a vector are found one by one: of a few rows the general engine,
  // which brings their columns side by side, is faster.
  static bool split_faster(const Problem& p) {
    const Axis& last = p.axes[p.n_axes - 1];
    return p.n_axes < 3 && last.regular() && last.out > 1 && last.stride <= 8 &&
           (last.kernel & (last.kernel - 1)) && (p.n_axes == 1 || p.axes[0].kernel * last.kernel <= 9);
  }

  static void prepare(Problem& p) {
    const Axis& last = p.axes[p.n_axes - 1];
    const int64_t per_output = most(1, last.regular() ? last.stride : last.size / most(1, last.out));
    p.tile = most(1, least(last.out, row_elements / per_output));
    p.tiles = ceil_div(last.out, p.tile);
    p.units = p.planes * p.tiles * p.rows;
    p.scratch = Scratch::bytes<V>(row_length(p)) + Scratch::bytes<S>(row_length(p)) +
                (coded ? Scratch::bytes<C>(row_length(p)) : 0);
  }

  static void run(const Problem& p, int64_t begin, int64_t end, char* memory) {
    while (begin < end) {
      Blocks work(p, begin, memory);
      const int64_t done = work.planes(end - begin);
      const int64_t next = done > 0 ? begin + done : done == 0 ? least(end, begin + few) : end;
      if (done <= 0) work.many(begin, next);
      begin = next;
    }
  }

private:
  // Where the rows of a unit's windows are, and what they mean.
  struct Rows {
    const S* x;
    int64_t slabs, rows, slab_pitch, row_pitch;
    int64_t slab_tap, row_tap;  // of the first row
    int64_t slab_at, row_at;    // its place in the plane
    int64_t share;              // of the divisor
    int64_t count() const { return slabs * rows; }
  };

  const Problem& p_;
  Walk<Over::outputs> walk_;
  V* folded_;
  S* edge_;               // a row at the end of the array
  C* numbers_ = nullptr;  // of the rows they are from
  Range full_;            // outputs with whole windows
  const Readable readable_;
  const int64_t ahead_;  // to elements to ask for, or 0
  bool even_;            // planes of one output each, at the same distance
  bool packed_codes_;    // codes lie side by side, and 32 bits hold every place in a slab

  // Of a folded row, and what vectors may read beyond it.
  static int64_t row_length(const Problem& p) {
    return ceil_div(widest(p.axes[p.n_axes - 1], p.tile), N) * N + 8 * N;
  }

  Blocks(const Problem& p, int64_t begin, char* memory)
      : p_(p), walk_(p, begin), readable_(p, p.x, sizeof(S), Over::inputs),
        ahead_(comes_from_far(p) ? fetched_ahead(windows_below(p), sizeof(S), 1) : 0) {
    Scratch scratch(memory);
    folded_ = scratch.take<V>(row_length(p));
    edge_ = scratch.take<S>(row_length(p));
    if constexpr (coded) numbers_ = scratch.take<C>(row_length(p));
    const Axis& last = p.axes[p.n_axes - 1];
    full_ = last.kernel == last.uncropped ? interior(last, 0, last.out) : Range{last.out, last.out};
    const int64_t item = p.extra == Extra::offset8 ? 1 : p.extra == Extra::offset32 ? 4 : 8;
    packed_codes_ = p.extra_array.pooled[p.n_axes - 1] == item &&
                    last.size * (p.n_axes > 1 ? p.axes[p.n_axes - 2].size : 1) < int64_t(UINT32_MAX);
    even_ = columned && last.out == 1 && p.rows == 1 && p.n_lead <= 1 && p.y.lead[0] == sizeof(S);
  }

  // Elements from the rows of a window to those of the one below.
  static int64_t windows_below(const Problem& p) {
    const int a = p.n_axes - 2;
    if (a < 0) return p.tile;
    const Axis& axis = p.axes[a];
    return (axis.regular() ? axis.stride : axis.size / most(1, axis.out)) * p.x.pooled[a] /
           int64_t(sizeof(S));
  }

  Rows rows() const {
    const int n = p_.n_axes - 1;
    Rows got{reinterpret_cast<const S*>(walk_.plane(p_.x)), 1, 1, 0, 0, 0, 0, 0, 0, 1};
    const auto add = [&](int a, int64_t& taps, int64_t& pitch, int64_t& tap, int64_t& at) {
      const Axis& axis = walk_.axis(a);
      const int64_t o = walk_.at(a), item = p_.x.pooled[a] / int64_t(sizeof(S));
      const Window w = window(axis, o);
      taps = w.taps;
      tap = w.lead;
      at = begin_of(axis, o) + w.lead * axis.step;
      pitch = axis.step * item;
      got.x += w.start * item;
      if (p_.divide && !p_.divisor) got.share *= ndpool::share(axis, o);
    };
    if (n >= 1) add(n - 1, got.rows, got.row_pitch, got.row_tap, got.row_at);
    if (n == 2) add(0, got.slabs, got.slab_pitch, got.slab_tap, got.slab_at);
    return got;
  }

  int64_t own_share(int64_t o) const {
    return o >= full_.lo && o < full_.hi ? p_.axes[p_.n_axes - 1].uncropped : share(walk_.last(), o);
  }

  template <class T> static T merge(T later, T best) {
    if constexpr (R::picks)
      return R::beats(later, best) ? later : best;
    else
      return best + later;
  }

  // Columns [0, n) of all rows, one row after the other, `x` being the first; true if a NaN was met, be it a little
  // beyond the last column. Vectors may read beyond a row, but not beyond the array: the last rows may have to be copied.
  bool fold(const Rows& all, const S* x, int64_t n, V* to) const {
    Vn seen[broad] = {};
    Rows rows = all;
    if (rows.slabs > 1 && rows.slab_pitch == rows.rows * rows.row_pitch) {
      rows.rows *= rows.slabs;
      rows.slabs = 1;
    }
    int64_t vectors = ceil_div(n, N), copied = 0;
    const S* last = x + (rows.slabs - 1) * rows.slab_pitch + (rows.rows - 1) * rows.row_pitch;
    if (rows.slabs == 1)
      while (copied < least(rows.rows, most_copied) &&
             !readable_.holds(last - copied * rows.row_pitch, vectors * N))
        ++copied;
    if (copied < rows.rows && !readable_.holds(last - copied * rows.row_pitch, vectors * N)) {
      vectors = n / N;
      copied = 0;
    }
    rows.rows -= copied;
    // Rows that share a page of memory are better read one by one.
    const bool one_by_one = vectors > broad && rows.row_pitch * int64_t(sizeof(S)) < 4096;
    int64_t k = one_by_one ? stream(rows, x, vectors, to, seen) : 0;
    if (rows.rows == 0) k = vectors;
    for (; k + broad <= vectors; k += broad)
      strip<broad>(rows, x + k * N, to + k * N, numbers_ + k * N, seen);
    if (vectors - k == 3)
      strip<3>(rows, x + k * N, to + k * N, numbers_ + k * N, seen);
    else if (vectors - k == 2)
      strip<2>(rows, x + k * N, to + k * N, numbers_ + k * N, seen);
    else if (vectors - k == 1)
      strip<1>(rows, x + k * N, to + k * N, numbers_ + k * N, seen);
    for (int64_t r = rows.rows; r < rows.rows + copied; ++r) {
      copy_exactly(x + r * rows.row_pitch, edge_, n);
      for (int64_t v = 0; v < vectors; ++v)
        fold_into(edge_ + v * N, r, to + v * N, numbers_ + v * N, seen[0]);
    }
    bool nan = false;
    for (int64_t j = vectors * N; j < n; ++j) nan |= column(rows, x + j, to[j], numbers_ + j);
    return nan || nan_in(seen);
  }

  // A vector of row `number` into what is folded so far.
  __attribute__((always_inline)) static inline void fold_into(const S* x, int64_t number, V* to, C* numbers,
                                                              Vn& seen) {
    const Vn v = read_as<V, N>(x);
    if constexpr (can_be_nan) seen += v;
    if (number == 0) {
      write(to, v);
      if constexpr (coded) write(numbers, Cn{});
      return;
    }
    const Vn acc = read<V, N>(to);
    write(to, merge(v, acc));
    if constexpr (coded) write(numbers, R::beats(v, acc) ? Cn{} + C(number) : read<C, N>(numbers));
  }

  // Sums of all elements: a NaN stays in them. Opposite infinities look like one, and are then looked at.
  template <class T> static bool nan_in(const T (&sums)[broad]) {
    if constexpr (!can_be_nan) return false;
    const T sum = sums[0] + sums[1] + (sums[2] + sums[3]);
    return any(sum != sum);
  }

  // The vectors of a row, then those of the next, four at a time; what is folded so far waits in L1.
  int64_t stream(const Rows& rows, const S* x, int64_t vectors, V* to, Vn (&seen)[broad]) const {
    const int64_t end = vectors / broad * broad;
    int64_t number = 0;
    for (int64_t s = 0; s < rows.slabs; ++s)
      for (int64_t r = 0; r < rows.rows; ++r, ++number) {
        const S* from = x + s * rows.slab_pitch + r * rows.row_pitch;
        for (int64_t k = 0; k < end; k += broad)
          for (int w = 0; w < broad; ++w)
            fold_into(from + (k + w) * N, number, to + (k + w) * N, numbers_ + (k + w) * N, seen[w]);
      }
    return end;
  }

  // W vectors of L elements; with codes also the numbers of the rows.
  template <int W, int L = N> __attribute__((always_inline)) inline void
  strip(const Rows& rows, const S* x, V* to, C* numbers, Vec<V, L> (&seen)[broad]) const {
    Vec<V, L> acc[W];
    Vec<C, L> from_row[W];
    for (int w = 0; w < W; ++w) {
      acc[w] = read_as<V, L>(x + w * L);
      if constexpr (can_be_nan) seen[w] += acc[w];
      from_row[w] = Vec<C, L>{};
    }
    int64_t first = 1;
    C number = 1;
    for (int64_t s = 0; s < rows.slabs; ++s, x += rows.slab_pitch, first = 0) {
      const S* from = x + first * rows.row_pitch;
      for (int64_t r = first; r < rows.rows; ++r, ++number, from += rows.row_pitch)
        for (int w = 0; w < W; ++w) {
          if (ahead_) fetch(from + ahead_ + w * L);
          const Vec<V, L> v = read_as<V, L>(from + w * L);
          if constexpr (can_be_nan) seen[w] += v;
          if constexpr (coded) from_row[w] = R::beats(v, acc[w]) ? Vec<C, L>{} + number : from_row[w];
          acc[w] = merge(v, acc[w]);
        }
    }
    for (int w = 0; w < W; ++w) {
      write(to + w * L, acc[w]);
      if constexpr (coded) write(numbers + w * L, from_row[w]);
    }
  }

  static bool column(const Rows& rows, const S* x, V& to, C* number) {
    bool nan = false;
    if constexpr (coded) *number = 0;
    for (int64_t s = 0; s < rows.slabs; ++s)
      for (int64_t r = 0; r < rows.rows; ++r) {
        const V v = load_as<V>(x[s * rows.slab_pitch + r * rows.row_pitch]);
        nan |= is_nan(v);
        if constexpr (coded)
          if (s + r && R::beats(v, to)) *number = C(s * rows.rows + r);
        to = s + r ? merge(v, to) : v;
      }
    return nan;
  }

  // Units of several outputs.
  void many(int64_t begin, int64_t end) {
    const int last = p_.n_axes - 1;
    const Axis& axis = p_.axes[last];
    const int64_t step = p_.y.pooled[last], extra_step = p_.extra_array.pooled[last];
    const bool whole = axis.regular() && axis.stride == axis.kernel && axis.kernel <= 16 && step == sizeof(S);
    for (int64_t unit = begin; unit < end; ++unit, walk_.next()) {
      const Rows rows = this->rows();
      const int64_t first = walk_.tile_begin(), n = walk_.tile_end() - first;
      const Span in = touched(walk_.last(), first, first + n);
      // A single row stays where it lies.
      const V* folded = folded_;
      bool nan = false;
      if constexpr (std::is_same_v<S, V>)
        if (rows.count() == 1 && !whole && readable_.holds(rows.x, in.to + N)) {
          folded = rows.x + in.from;
          if constexpr (can_be_nan) nan = may_hold_nan(folded, in.to - in.from);
        }
      if (rows.count() && folded == folded_) nan = fold(rows, rows.x + in.from, in.to - in.from, folded_);
      char* y = walk_.row(p_.y, first, first + n).data;
      char* extra = coded ? walk_.row(p_.extra_array, first, first + n).data : nullptr;
      const auto alone = [&](int64_t o) {
        const Window w = window(walk_.last(), first + o);
        const V* from = folded + (w.start - in.from);
        V best = R::init();
        if constexpr (coded)
          if (rows.count() && w.taps && !nan && folded == folded_) {
            const C* number = numbers_ + (w.start - in.from);
            C row = 0;
            int64_t column = 0;
            first_best(from, number, w.taps, row, column);
            const int64_t slab = rows.slabs > 1 ? int64_t(row) / rows.rows : 0;
            settle(rows, w, first + o, slab, int64_t(row) - slab * rows.rows, column,
                   *reinterpret_cast<S*>(y + o * step), extra + o * extra_step);
            return;
          }
        if (rows.count() && w.taps)
          best = nan ? window_alone<R>(from, w.taps) : window_alone<R, false>(from, w.taps);
        if constexpr (!R::picks) best = mean(best, divisor(rows, first + o));
        finish(rows, w, first + o, nan, best, *reinterpret_cast<S*>(y + o * step), extra + o * extra_step);
      };
      int64_t o = 0;
      for (const int64_t clipped = least(n, full_.lo - first); o < clipped; ++o) alone(o);
      if (!nan && rows.count() && whole && o < full_.hi - first) {
        const int64_t wholes = least(n, full_.hi - first) - o, skipped = begin_of(axis, first + o) - in.from;
        S* to = reinterpret_cast<S*>(y) + o;
        if constexpr (coded)
          o += regular_codes(rows, first + o, wholes, skipped, to, extra + o * extra_step);
        else
          o += regular(rows, wholes, folded_ + skipped, to);
      }
      for (; o < n; ++o) alone(o);
    }
  }

  // The best of a folded row: of equals the one of the earliest row, then of the earliest column.
  static void first_best(const V* from, const C* number, int64_t taps, C& row, int64_t& column) {
    Cn lane;
    for (int k = 0; k < N; ++k) lane[k] = C(k);
    Vn best = all_of<Vn>(R::init());
    Cn best_row = ~Cn{}, best_column = ~Cn{};
    for (int64_t t = 0; t < taps; t += N) {
      const auto inside = lane < C(least(taps - t, N));
      const Vn v = inside ? read<V, N>(from + t) : all_of<Vn>(R::init());
      const Cn here = inside ? read<C, N>(number + t) : ~Cn{};
      const auto better = R::beats(v, best) | ((v == best) & (here < best_row));
      best = better ? v : best;
      best_row = better ? here : best_row;
      best_column = better ? lane + C(t) : best_column;
    }
    const auto lowest = [](Cn v) { return reduce(v, [](Cn a, Cn b) { return a < b ? a : b; }); };
    const auto equal = best == reduce(best, [](Vn a, Vn b) { return merge(a, b); });
    best_row = equal ? best_row : ~Cn{};
    const Cn least_row = lowest(best_row);
    row = least_row[0];
    column = int64_t(lowest((equal & (best_row == least_row)) ? best_column : ~Cn{})[0]);
  }

  // All elements together, in every element.
  template <class T, class F> __attribute__((always_inline)) static inline T reduce(T v, F&& f) {
    if constexpr (N >= 16) v = f(shifted<N >= 16 ? 8 : 0>(v, v), v);
    if constexpr (N >= 8) v = f(shifted<N >= 8 ? 4 : 0>(v, v), v);
    if constexpr (N >= 4) v = f(shifted<N >= 4 ? 2 : 0>(v, v), v);
    return f(shifted<1>(v, v), v);
  }

  // What a sum becomes: divided or not.
  template <class T, class By> T mean(T sum, By by) const { return p_.divide ? T(sum / by) : sum; }

  V divisor(const Rows& rows, int64_t o) const {
    return V(p_.divisor ? p_.divisor : most(1, rows.share * own_share(o)));
  }

  // Whole windows that follow each other without a gap; returns how many were done.
  int64_t regular(const Rows& rows, int64_t n, const V* from, S* y) const {
    switch (p_.axes[p_.n_axes - 1].kernel) {
    case 2:
      return zipped<2>(rows, n, from, y);
    case 4:
      return zipped<4>(rows, n, from, y);
    case 8:
      return zipped<8>(rows, n, from, y);
    case 3:
      return counted<3>(rows, n, from, y);
    case 5:
      return counted<5>(rows, n, from, y);
    case 6:
      return counted<6>(rows, n, from, y);
    case 7:
      return counted<7>(rows, n, from, y);
    case 10:
      return counted<10>(rows, n, from, y);
    default:
      return 0;
    }
  }

  // A vector of outputs, and a few of them.
  template <int L> void put(Vec<V, L> best, V by, S* y) const {
    if constexpr (!R::picks) best = mean(best, by);
    write_as<L, R::picks, S, V>(y, best);
  }
  void put_some(const V* best, int64_t n, V by, S* y) const {
    in_vectors(n, [&](int64_t j) { y[j] = store_as<S>(R::picks ? best[j] : mean(best[j], by)); });
  }

  // Windows of K columns, for K that vectors can be halved by.
  template <int K> int64_t zipped(const Rows& rows, int64_t n, const V* from, S* y) const {
    const V by = divisor(rows, full_.lo);
    for (int64_t o = 0; o < n; o += N, from += K * N) {
      Vn x[K];
      for (int k = 0; k < K; ++k) x[k] = read<V, N>(from + k * N);
      unzip(x);
      for (int k = 1; k < K; ++k) x[0] = merge(x[k], x[0]);
      if (o + N <= n) {
        put<N>(x[0], by, y + o);
      } else {
        V some[N];
        write(some, x[0]);
        put_some(some, n - o, by, y + o);
      }
    }
    return n;
  }

  // The same with codes: of equals the one of the earliest row, then of the earliest column.
  int64_t regular_codes(const Rows& rows, int64_t first, int64_t n, int64_t skipped, S* y,
                        char* extra) const {
    constexpr int half = N >= 8 ? N / 2 : N;
    const int64_t kernel = p_.axes[p_.n_axes - 1].kernel;
    if (rows.slabs != 1 || !packed_codes_ || sizeof(V) < 4) return 0;
    const Folded from{folded_ + skipped, numbers_ + skipped};
    if (kernel == 4)
      return n > half ? zipped_codes<4, N>(rows, first, n, from, y, extra)
                      : zipped_codes<4, half>(rows, first, n, from, y, extra);
    if (kernel == 8)
      return n > half ? zipped_codes<8, N>(rows, first, n, from, y, extra)
                      : zipped_codes<8, half>(rows, first, n, from, y, extra);
    return kernel <= 16 ? counted_codes(rows, first, n, from, y, extra) : 0;
  }

  // A folded row and the numbers of the rows its elements are from.
  struct Folded {
    const V* value;
    const C* number;
  };

  // The first code of a row of outputs, and how much codes grow from one row of the window to the next and from one
  // output to the next.
  struct Counting {
    int64_t from;
    C per_row, per_output;
  };
  Counting counting(const Rows& rows, int64_t first) const {
    const Axis &last = p_.axes[p_.n_axes - 1], over = p_.n_axes > 1 ? p_.axes[p_.n_axes - 2] : single_axis(1);
    if (p_.extra == Extra::index64)
      return {(rows.slab_at * over.size + rows.row_at) * last.size + begin_of(last, first),
              C(over.step * last.size), C(last.kernel)};
    return {(rows.slab_tap * over.kernel + rows.row_tap) * last.kernel, C(last.kernel), 0};
  }

  int64_t counted_codes(const Rows& rows, int64_t first, int64_t n, Folded x, S* y, char* extra) const {
    const int64_t kernel = p_.axes[p_.n_axes - 1].kernel;
    const Counting count = counting(rows, first);
    for (int64_t o = 0; o < n; ++o, x.value += kernel, x.number += kernel) {
      V best = x.value[0];
      C row = x.number[0], column = 0;
      for (int64_t k = 1; k < kernel; ++k) {
        const V v = x.value[k];
        const C number = x.number[k];
        const bool better = R::beats(v, best) | ((v == best) & (number < row));
        best = better ? v : best;
        row = better ? number : row;
        column = better ? C(k) : column;
      }
      y[o] = store_as<S>(best);
      const int64_t code = count.from + int64_t(row * count.per_row + column + C(o) * count.per_output);
      if (p_.extra == Extra::offset8)
        reinterpret_cast<std::uint8_t*>(extra)[o] = std::uint8_t(code);
      else if (p_.extra == Extra::offset32)
        reinterpret_cast<std::int32_t*>(extra)[o] = std::int32_t(code);
      else
        reinterpret_cast<int64_t*>(extra)[o] = code;
    }
    return n;
  }

  template <int K, int L>
  int64_t zipped_codes(const Rows& rows, int64_t first, int64_t n, Folded folded, S* y, char* extra) const {
    const auto [from, per_row, per_output] = counting(rows, first);
    const bool positions = p_.extra == Extra::index64;
    Vec<C, L> output;
    for (int j = 0; j < L; ++j) output[j] = C(j) * per_output;
    for (int64_t o = 0; o < n; o += L, output += C(L) * per_output) {
      Vec<V, L> x[K];
      Vec<C, L> row[K];
      for (int k = 0; k < K; ++k) {
        x[k] = read<V, L>(folded.value + o * K + k * L);
        row[k] = read<C, L>(folded.number + o * K + k * L);
      }
      unzip(x);
      unzip(row);
      Vec<C, L> column{};
      for (int k = 1; k < K; ++k) {
        const auto better = R::beats(x[k], x[0]) | ((x[k] == x[0]) & (row[k] < row[0]));
        x[0] = better ? x[k] : x[0];
        row[0] = better ? row[k] : row[0];
        column = better ? Vec<C, L>{} + C(k) : column;
      }
      const Vec<C, L> code = row[0] * per_row + column + output + C(positions ? 0 : from);
      if (o + L <= n) {
        write_as<L, true, S, V>(y + o, x[0]);
        write_codes<L>(p_.extra, extra, o, code, from);
      } else {
        S values[L];
        char codes[8 * L];
        write_as<L, true, S, V>(values, x[0]);
        write_codes<L>(p_.extra, codes, 0, code, from);
        const int64_t item = p_.extra_array.pooled[p_.n_axes - 1];
        __builtin_memcpy(y + o, values, std::size_t(n - o) * sizeof(S));
        __builtin_memcpy(extra + o * item, codes, std::size_t((n - o) * item));
      }
    }
    return n;
  }

  template <int K> int64_t counted(const Rows& rows, int64_t n, const V* from, S* y) const {
    const V by = divisor(rows, full_.lo);
    V best[N];
    for (int64_t o = 0; o < n; o += N, from += N * K) {
      const int64_t here = least(N, n - o);
      in_vectors(here, [&](int64_t j) {
        V v = from[j * K];
        for (int k = 1; k < K; ++k) v = merge(from[j * K + k], v);
        best[j] = v;
      });
      if (here == N)
        put<N>(read<V, N>(best), by, y + o);
      else
        put_some(best, here, by, y + o);
    }
    return n;
  }

  // Evenly spaced planes of narrow windows; returns how many were done, -1 for those of another kind.
  int64_t planes(int64_t n) const {
    if constexpr (columned) {
      constexpr int half = N >= 8 ? N / 2 : N;
      const Window w = window(walk_.last(), 0);
      Rows rows = this->rows();
      if (rows.slabs > 1 && rows.slab_pitch == rows.rows * rows.row_pitch) {
        rows.rows *= rows.slabs;
        rows.slabs = 1;
      }
      if (!even_ || rows.slabs != 1 || !rows.rows || !w.taps) return -1;
      S* y = reinterpret_cast<S*>(walk_.row(p_.y, 0, 1).data);
      if (w.taps <= half) return planes<1, half>(rows, w, n, y);
      switch (ceil_div(w.taps, N)) {
      case 1:
        return planes<1, N>(rows, w, n, y);
      case 2:
        return planes<2, N>(rows, w, n, y);
      case 3:
        return planes<3, N>(rows, w, n, y);
      case 4:
        return planes<4, N>(rows, w, n, y);
      }
    }
    return -1;
  }

  // A few at a time: while their rows become columns, the next ones are read.
  template <int W, int L> int64_t planes(const Rows& rows, const Window& w, int64_t n, S* y) const {
    const V by = divisor(rows, 0);
    const int64_t gap = p_.x.lead[0] / int64_t(sizeof(S)), pitch = rows.row_pitch;
    const int64_t reach = (few - 1) * gap + (rows.rows - 1) * pitch + W * L;
    const S* x = rows.x + w.start;
    int64_t o = 0;
    for (; o + few <= n && readable_.holds(x, reach); o += few, x += few * gap) {
      V folded[few][W * L + interleaved];
      Vec<V, L> seen[broad] = {};
      if (W == 1 && rows.rows > many_rows) {  // by turns, so that none waits for itself
        Vec<V, L> acc[few];
        for (int k = 0; k < few; ++k) acc[k] = read_as<V, L>(x + k * gap);
        for (int k = 0; k < few && can_be_nan; ++k) seen[k] += acc[k];
        for (int64_t r = 1; r < rows.rows; ++r)
          for (int k = 0; k < few; ++k) {
            const Vec<V, L> next = read_as<V, L>(x + k * gap + r * pitch);
            if constexpr (can_be_nan) seen[k] += next;
            acc[k] = merge(next, acc[k]);
          }
        for (int k = 0; k < few; ++k) write(folded[k], acc[k]);
      } else {  // one after the other, as they lie in memory
        for (int k = 0; k < few; ++k) {
          Vec<V, L> acc[W];
          const S* from = x + k * gap;
          for (int v = 0; v < W; ++v) acc[v] = read_as<V, L>(from + v * L);
          for (int v = 0; v < W && can_be_nan; ++v) seen[v] += acc[v];
          for (int64_t r = 1; r < rows.rows; ++r) {
            from += pitch;
            for (int v = 0; v < W; ++v) {
              if (ahead_) fetch(from + ahead_ + v * L);
              const Vec<V, L> next = read_as<V, L>(from + v * L);
              if constexpr (can_be_nan) seen[v] += next;
              acc[v] = merge(next, acc[v]);
            }
          }
          for (int v = 0; v < W; ++v) write(folded[k] + v * L, acc[v]);
        }
      }
      if (nan_in(seen)) break;
      if (!R::picks && w.taps >= long_sum) {
        V sums[few];
        for (int k = 0; k < few; ++k) sums[k] = window_alone<R, false>(folded[k], w.taps);
        put<few>(read<V, few>(sums), by, y + o);
      } else {
        put<few>(across(folded, w.taps), by, y + o);
      }
    }
    return o;
  }

  // The first columns of a few folded rows, each row by itself.
  template <int P> static Vec<V, few> across(const V (&folded)[few][P], int64_t taps) {
    Vec<V, few> columns[few], best = {};
    for (int64_t j = 0; j < taps; j += few) {
      for (int k = 0; k < few; ++k) columns[k] = read<V, few>(folded[k] + j);
      unzip(columns);  // rows become columns
      best = j ? merge(columns[0], best) : columns[0];
      if (j + few <= taps)
        for (int t = 1; t < few; ++t) best = merge(columns[t], best);
      else
        for (int t = 1; j + t < taps; ++t) best = merge(columns[t], best);
    }
    return best;
  }

  // Every K-th element, for K vectors that follow each other: pairs to evens and odds, as often as it takes.
  template <class T, int K> __attribute__((always_inline)) static inline void unzip(T (&x)[K]) {
    for (int m = 1; m < K; m *= 2) {
      T y[K];
      for (int k = 0; k < K / 2; ++k) {
        y[k] = evens(x[2 * k], x[2 * k + 1]);
        y[k + K / 2] = odds(x[2 * k], x[2 * k + 1]);
      }
      for (int k = 0; k < K; ++k) x[k] = y[k];
    }
  }

  // A value to the results. Which of its equals it is, and where, is looked up if anyone can tell.
  __attribute__((always_inline)) void finish(const Rows& rows, const Window& w, int64_t o, bool nan, V best,
                                             S& to, char* extra) const {
    if constexpr (R::picks)
      if (coded || nan) return look(rows, w, o, nan, best, to, extra);
    to = store_as<S>(best);
  }

  __attribute__((noinline)) void look(const Rows& rows, const Window& w, int64_t o, bool nan, V best, S& to,
                                      char* extra) const {
    int64_t slab = 0, row = 0, column = 0;
    const bool any = rows.count() && w.taps;
    if (any && nan)
      scan(rows, w, best, slab, row, column);
    else if (any)
      search(rows, w, best, slab, row, column);
    if (any || coded) settle(rows, w, o, slab, row, column, to, extra);
    if (!any) to = store_as<S>(best);
  }

  // The element that won, and where it stands.
  void settle(const Rows& rows, const Window& w, int64_t o, int64_t slab, int64_t row, int64_t column, S& to,
              char* extra) const {
    if (rows.count() && w.taps) to = rows.x[slab * rows.slab_pitch + row * rows.row_pitch + w.start + column];
    if constexpr (coded) {
      const int n = p_.n_axes - 1;
      const Axis& last = walk_.last();
      if (p_.extra == Extra::index64) {
        const int64_t tall = n >= 1 ? p_.axes[n - 1].size : 1, row_step = n >= 1 ? p_.axes[n - 1].step : 1;
        const int64_t slab_step = n == 2 ? p_.axes[0].step : 1;
        *reinterpret_cast<int64_t*>(extra) =
            ((rows.slab_at + slab * slab_step) * tall + rows.row_at + row * row_step) * last.size +
            begin_of(last, o) + w.lead + column;
        return;
      }
      const int64_t deep = n >= 1 ? p_.axes[n - 1].kernel : 1;
      const int64_t code =
          ((rows.slab_tap + slab) * deep + rows.row_tap + row) * last.kernel + w.lead + column;
      if (p_.extra == Extra::offset8)
        *reinterpret_cast<std::uint8_t*>(extra) = std::uint8_t(code);
      else
        *reinterpret_cast<std::int32_t*>(extra) = std::int32_t(code);
    }
  }

  // The exact way.
  static void scan(const Rows& rows, const Window& w, V& best, int64_t& slab, int64_t& row, int64_t& column) {
    best = R::init();
    for (int64_t s = 0; s < rows.slabs; ++s)
      for (int64_t r = 0; r < rows.rows; ++r) {
        const S* x = rows.x + s * rows.slab_pitch + r * rows.row_pitch + w.start;
        for (int64_t c = 0; c < w.taps; ++c) {
          const V v = load_as<V>(x[c]);
          if (!R::better(v, best)) continue;
          best = v;
          slab = s, row = r, column = c;
        }
      }
  }

  // The first element that is equal to the best.
  void search(const Rows& rows, const Window& w, V best, int64_t& slab, int64_t& row, int64_t& column) const {
    for (int64_t s = 0; s < rows.slabs; ++s)
      for (int64_t r = 0; r < rows.rows; ++r) {
        const S* x = rows.x + s * rows.slab_pitch + r * rows.row_pitch + w.start;
        for (int64_t c = 0; c < w.taps; c += N) {
          int64_t k = c;
          if (readable_.holds(x + c, N))
            k += first_set(read_as<V, N>(x + c) == best);
          else
            while (k < w.taps && !(load_as<V>(x[k]) == best)) ++k;
          if (k < least(c + N, w.taps)) {
            slab = s, row = r, column = k;
            return;
          }
        }
      }
  }
};

}  // namespace
}  // namespace ndpool

// Blocks: disjoint windows, such as whole planes or windows with a stride of their own length, and those of
// adaptive pooling. The rows of a window are folded into one, in registers; this row is then reduced to its
// outputs. With offsets, the best of each column is stored with its row number: ties go to the earliest row, then
// to the earliest column.
// Called by selection.h. Interleaved channels, conversions between dtypes and Lp pooling stay out. Without this
// engine adaptive max pooling with indices from 56 x 56 to 7 x 7 takes 7.8 times as long, global average pooling
// of 7 x 7 (ResNet) 5.4 times.
#pragma once

#include "forward/general.h"
#include "simd.h"

namespace ndpool {
namespace {

template <class R, class S, bool indexed> struct Blocks {
  static constexpr const char* engine = "blocks";
  using V = typename R::V;
  static constexpr int N = wide<V>;
  static constexpr int strip_vectors = vector_bytes == 64 ? 8 : 4;  // of a column strip
  static constexpr int batch = 4;                                   // planes reduced together
  static constexpr int64_t long_column = 16;  // rows of a plane above which a batch takes turns
  static constexpr int64_t long_window = max(long_sum, 2 * wide<V>);  // which no vector reads past
  // With offsets, windows narrower than this pay on short rows of volumes only.
  static constexpr int64_t min_indexed = 12, short_row = 32;
  static constexpr int64_t max_step = 8;  // stride up to which windows are reduced at every element
  static constexpr bool can_be_nan = R::is_max && is_real<V>;
  // Vectors of few lanes are transposed in a few steps.
  static constexpr bool transposes = sizeof(V) >= 4 && !indexed;
  static_assert(!indexed || is_real<V>, "the number of a row has as many bits as a value");
  using Vn = Vec<V, N>;
  using C = UnsignedLike<V>;
  using Cn = Vec<C, N>;
  static constexpr int64_t row_elements = 16 * 1024 / sizeof(V);

  static bool supports(const Problem& p) {
    if (p.channels != 1 || p.op == Op::lp || p.n_axes > 3 || p.x_type != p.y_type) return false;
    const int last = p.n_axes - 1;
    if (p.x.pooled[last] != sizeof(S)) return false;
    if ((p.axes[last].regular() && p.axes[last].step != 1) || taps_of(p) == 1) return false;
    for (int a = 0; a < p.n_axes; ++a) {
      const Axis& axis = p.axes[a];
      if (axis.regular() ? axis.stride < axis.kernel && axis.out > 1 : axis.table_stride != 0) return false;
    }
    return !indexed || p.axes[last].kernel >= min_indexed || finds_in_vectors(p) ||
           (p.n_axes == 3 && p.axes[last].size <= short_row);
  }

  // Offsets of windows of 4 and 8 columns without gaps are found in vectors. Without this, adaptive max pooling with
  // indices from 56 x 56 to 7 x 7 (VGG) takes 1.8 times as long.
  static bool finds_in_vectors(const Problem& p) {
    const Axis& last = p.axes[p.n_axes - 1];
    const Range whole = interior(last, 0, last.out);
    return indexed && sizeof(V) >= 4 && p.n_axes == 2 && unzips(last) && last.out > 1 &&
           whole.hi - whole.lo == last.out && p.y.pooled[1] == sizeof(S) &&
           p.extra_array.pooled[1] == size_of(p.extra) && last.size * p.axes[0].size < int64_t(UINT32_MAX);
  }

  static void prepare(Problem& p) {
    const Axis& last = p.axes[p.n_axes - 1];
    const int64_t per_output = max(1, last.regular() ? last.stride : last.size / max(1, last.out));
    p.tile = max(1, min(last.out, row_elements / per_output));
    p.tiles = ceil_div(last.out, p.tile);
    p.units = p.planes * p.tiles * p.rows;
    p.scratch = Scratch::bytes<V>(row_length(p)) +
                (indexed ? Scratch::bytes<C>(row_length(p)) : Scratch::bytes<V>(p.tile + N));
  }

  static void run(const Problem& p, int64_t begin, int64_t end, char* memory) {
    if constexpr (indexed)
      if (finds_in_vectors(p)) return unzip_units(p, begin, end, memory);
    while (begin < end) {
      Blocks work(p, begin, memory);
      const int64_t done = work.planes(end - begin);
      const int64_t next = done > 0 ? begin + done : done == 0 ? min(end, begin + batch) : end;
      if (done <= 0) work.reduce_units(begin, next);
      begin = next;
    }
  }

private:
  // The rows of the windows of one unit.
  struct WindowRows {
    const S* x;
    int64_t slabs, rows, slab_pitch, row_pitch;
    int64_t slab_tap, row_tap;      // tap numbers of the first row
    int64_t slab_index, row_index;  // its indices in the plane
    int64_t share;                  // of the outer axes, in the divisor
    int64_t count() const { return slabs * rows; }
  };

  const Problem& p_;
  Walk<Over::outputs> walk_;
  V* folded_;
  C* row_numbers_ = nullptr;  // for each element of folded_
  V* results_ = nullptr;      // of a row, without offsets
  Range interior_;            // outputs whose windows are whole
  const Readable readable_;
  const int64_t prefetch_distance_;  // 0: no prefetch
  bool single_outputs_;              // planes of one output each, contiguous in memory

  // Elements of a folded row, and what vectors may read past its end.
  static int64_t row_length(const Problem& p) {
    return ceil_div(max_inputs(p.axes[p.n_axes - 1], p.tile), N) * N + 8 * N;
  }

  Blocks(const Problem& p, int64_t begin, char* memory)
      : p_(p), walk_(p, begin), readable_(p, p.x, sizeof(S), Over::inputs),
        prefetch_distance_(input_exceeds_cache(p) ? prefetch_distance(window_row_distance(p), sizeof(S), 1)
                                                  : 0) {
    Scratch scratch(memory);
    folded_ = scratch.take<V>(row_length(p));
    if constexpr (indexed)
      row_numbers_ = scratch.take<C>(row_length(p));
    else
      results_ = scratch.take<V>(p.tile + N);
    const Axis& last = p.axes[p.n_axes - 1];
    interior_ = last.kernel == last.uncropped ? interior(last, 0, last.out) : Range{last.out, last.out};
    single_outputs_ = transposes && last.out == 1 && p.rows == 1 && p.n_lead <= 1 && p.y.lead[0] == sizeof(S);
  }

  // Elements from the rows of one window to those of the window below.
  static int64_t window_row_distance(const Problem& p) {
    const int a = p.n_axes - 2;
    if (a < 0) return p.tile;
    const Axis& axis = p.axes[a];
    return (axis.regular() ? axis.stride : axis.size / max(1, axis.out)) * p.x.pooled[a] / int64_t(sizeof(S));
  }

  WindowRows rows() const {
    const int n = p_.n_axes - 1;
    WindowRows result{reinterpret_cast<const S*>(walk_.plane(p_.x)), 1, 1, 0, 0, 0, 0, 0, 0, 1};
    const auto add = [&](int a, int64_t& taps, int64_t& pitch, int64_t& tap, int64_t& at) {
      const Axis& axis = walk_.axis(a);
      const int64_t o = walk_.at(a), item = p_.x.pooled[a] / int64_t(sizeof(S));
      const Window w = window(axis, o);
      taps = w.taps;
      tap = w.lead;
      at = begin_of(axis, o) + w.lead * axis.step;
      pitch = axis.step * item;
      result.x += w.start * item;
      if (p_.divide && !p_.divisor) result.share *= ndpool::share(axis, o);
    };
    if (n >= 1) add(n - 1, result.rows, result.row_pitch, result.row_tap, result.row_index);
    if (n == 2) add(0, result.slabs, result.slab_pitch, result.slab_tap, result.slab_index);
    return result;
  }

  int64_t column_share(int64_t o) const {
    return o >= interior_.lo && o < interior_.hi ? p_.axes[p_.n_axes - 1].uncropped : share(walk_.last(), o);
  }

  template <class T> static T merge(T later, T best) {
    if constexpr (R::is_max)
      return R::beats(later, best) ? later : best;
    else
      return best + later;
  }

  // Folds columns [0, n) of all rows, of which `x` is the first. True if they contain a NaN, or a few elements past a row of
  // halves do. The last vector overlaps the one before it, so that nothing else is read past a row.
  bool fold(const WindowRows& all, const S* x, int64_t n, V* to) const {
    const WindowRows rows = joined(all);
    if constexpr (is_half<
                      S>) {  // few halves are converted slowly: a whole vector is read where memory allows it
      const S* const last = x + (rows.slabs - 1) * rows.slab_pitch + (rows.rows - 1) * rows.row_pitch;
      if (n < N && readable_.contains(last, N)) n = N;
    }
    if (n < N) return fold_narrow<max(2, N / 2)>(rows, x, n, to);
    const int64_t vectors = ceil_div(n, N);
    // Short rows, several of which share a page of memory, are faster read row by row.
    if (vectors > strip_vectors && rows.row_pitch * int64_t(sizeof(S)) < 4096)
      return fold_row_by_row(rows, x, n, to);
    int64_t k = 0;
    Vn nan_sum{};
    for (; (k + strip_vectors) * N <= n; k += strip_vectors)
      strip<strip_vectors, N, false>(rows, x, to, k * N, n, nan_sum);
    if (vectors - k > 4)
      tail_strip<strip_vectors>(rows, x, to, k * N, n, nan_sum);
    else if (vectors - k > 2)
      tail_strip<4>(rows, x, to, k * N, n, nan_sum);
    else if (vectors - k == 2)
      tail_strip<2>(rows, x, to, k * N, n, nan_sum);
    else if (vectors > k)
      tail_strip<1>(rows, x, to, k * N, n, nan_sum);
    return contains_a_nan(nan_sum);
  }

  // The same for fewer columns than a vector has lanes: two vectors of L lanes, which may overlap.
  template <int L> bool fold_narrow(const WindowRows& rows, const S* x, int64_t n, V* to) const {
    if (n >= L) {
      Vec<V, L> nan_sum{};
      tail_strip<2, L>(rows, x, to, 0, n, nan_sum);
      return contains_a_nan(nan_sum);
    }
    if constexpr (L > 2 && L * sizeof(V) > 16) return fold_narrow<L / 2>(rows, x, n, to);
    bool nan = false;
    for (int64_t j = 0; j < n; ++j) nan |= column(rows, x + j, to[j], row_numbers_ + j);
    return nan;
  }

  // Slabs whose rows continue those of the slab before are one slab.
  static WindowRows joined(WindowRows rows) {
    if (rows.slabs > 1 && rows.slab_pitch == rows.rows * rows.row_pitch) {
      rows.rows *= rows.slabs;
      rows.slabs = 1;
    }
    return rows;
  }

  // Folds a vector of row `number` into the result so far.
  __attribute__((always_inline)) static inline void fold_into(const S* x, int64_t number, V* to, C* numbers,
                                                              Vn& nan_sum) {
    const Vn v = read_as<V, N>(x);
    if constexpr (can_be_nan) nan_sum += v;
    if (number == 0) {
      write(to, v);
      if constexpr (indexed) write(numbers, Cn{});
      return;
    }
    Vn acc = read<V, N>(to);
    if constexpr (indexed) {
      Cn from_row = read<C, N>(numbers);
      merge_with_offset<R, false>(v, Cn{} + C(number), acc, from_row);
      write(numbers, from_row);
    } else {
      acc = merge(v, acc);
    }
    write(to, acc);
  }

  // Whether the sum of all elements is NaN: it is if an element is. Opposite infinities sum to NaN, too; the exact path
  // then settles it.
  template <class T> static bool contains_a_nan([[maybe_unused]] T sum) {
    if constexpr (can_be_nan)
      return contains_nan(sum);
    else
      return false;
  }

  // The same of several sums.
  template <class T, int W> static bool nan_in(const T (&sums)[W]) {
    T all = sums[0];
    for (int w = 1; w < W; ++w) all += sums[w];
    return contains_a_nan(all);
  }

  // Folds row by row; the result so far stays in L1. The last vector, which may overlap the one before it, has results of its
  // own until the end.
  bool fold_row_by_row(const WindowRows& rows, const S* x, int64_t n, V* to) const {
    constexpr int W = 4;
    constexpr int64_t read_ahead = 4096 / sizeof(S);
    const int64_t end = (n - 1) / N * N, last = n - N;
    Vn nan_sum[W] = {};
    V tail[N];
    C tail_numbers[N];
    C* const numbers = row_numbers_;  // a local copy: no store can alias it
    const auto fold_rows = [&](auto prefetches) __attribute__((always_inline)) {
      int64_t number = 0;
      for (int64_t s = 0; s < rows.slabs; ++s)
        for (int64_t r = 0; r < rows.rows; ++r, ++number) {
          const S* from = x + s * rows.slab_pitch + r * rows.row_pitch;
          const auto fold_vector = [&](int64_t k, Vn& sum) __attribute__((always_inline)) {
            if constexpr (prefetches) prefetch(from + k + read_ahead);
            fold_into(from + k, number, to + k, numbers + k, sum);
          };
          int64_t k = 0;
          for (; k + W * N <= end; k += W * N)
            for (int w = 0; w < W; ++w) fold_vector(k + w * N, nan_sum[w]);
          for (; k < end; k += N) fold_vector(k, nan_sum[0]);
          fold_into(from + last, number, tail, tail_numbers, nan_sum[1]);
        }
    };
    if (prefetch_distance_)
      fold_rows(std::true_type{});
    else
      fold_rows(std::false_type{});
    write(to + last, read<V, N>(tail));
    if constexpr (indexed) write(numbers + last, read<C, N>(tail_numbers));
    return nan_in(nan_sum);
  }

  // Folds the last vectors of L columns: W or fewer, but more than half of them.
  template <int W, int L = N> void tail_strip(const WindowRows& rows, const S* x, V* to, int64_t first,
                                              int64_t n, Vec<V, L>& nan_sum) const {
    strip<W, L, true>(rows, x, to, first, n, nan_sum);
  }

  // Folds W vectors of L columns from column `first` on; if `clips`, those that would end past column n end there. With
  // offsets, also stores the row numbers.
  template <int W, int L, bool clips>
  __attribute__((always_inline)) inline void strip(const WindowRows& rows, const S* x, V* results,
                                                   int64_t first, int64_t n,
                                                   Vec<V, L>& nan_sum_of_all) const {
    constexpr int inside = clips ? W / 2 : W;  // vectors that never end past column n
    const int64_t room = n - first - L;
    int64_t clipped[W];
    for (int w = inside; w < W; ++w) clipped[w] = min(w * L, room);
    const auto at = [&](int w) __attribute__((always_inline)) { return w < inside ? w * L : clipped[w]; };
    x += first;
    Vec<V, L> acc[W], nan_sum[W];
    Vec<C, L> from_row[W];
    for (int w = 0; w < W; ++w) {
      acc[w] = nan_sum[w] = read_as<V, L>(x + at(w));
      from_row[w] = Vec<C, L>{};
    }
    const auto fold_rows = [&](auto prefetches) __attribute__((always_inline)) {
      int64_t first_row = 1;
      C number = 1;
      for (int64_t s = 0; s < rows.slabs; ++s, x += rows.slab_pitch, first_row = 0) {
        const S* from = x + first_row * rows.row_pitch;
        for (int64_t r = first_row; r < rows.rows; ++r, ++number, from += rows.row_pitch)
          for (int w = 0; w < W; ++w) {
            if constexpr (prefetches) prefetch(from + prefetch_distance_ + at(w));
            const Vec<V, L> v = read_as<V, L>(from + at(w));
            if constexpr (can_be_nan) nan_sum[w] += v;
            if constexpr (indexed)
              merge_with_offset<R, false>(v, Vec<C, L>{} + number, acc[w], from_row[w]);
            else
              acc[w] = merge(v, acc[w]);
          }
      }
    };
    if (prefetch_distance_)
      fold_rows(std::true_type{});
    else
      fold_rows(std::false_type{});
    V* const to = results + first;
    for (int w = 0; w < W; ++w) {
      write(to + at(w), acc[w]);
      if constexpr (indexed) write(row_numbers_ + first + at(w), from_row[w]);
    }
    for (int w = 0; w < W && can_be_nan; ++w) nan_sum_of_all += nan_sum[w];
  }

  static bool column(const WindowRows& rows, const S* x, V& to, C* number) {
    bool nan = false;
    if constexpr (indexed) *number = 0;
    for (int64_t s = 0; s < rows.slabs; ++s)
      for (int64_t r = 0; r < rows.rows; ++r) {
        const V v = load_as<V>(x[s * rows.slab_pitch + r * rows.row_pitch]);
        nan |= is_nan(v);
        if constexpr (indexed)
          if (s + r && R::beats(v, to)) *number = C(s * rows.rows + r);
        to = s + r ? merge(v, to) : v;
      }
    return nan;
  }

  // Reduces units of several outputs.
  void reduce_units(int64_t begin, int64_t end) {
    const int last = p_.n_axes - 1;
    const Axis& axis = p_.axes[last];
    const int64_t step = p_.y.pooled[last], extra_step = p_.extra_array.pooled[last];
    for (int64_t unit = begin; unit < end; ++unit, walk_.next()) {
      const WindowRows rows = this->rows();
      const int64_t first = walk_.tile_begin(), n = walk_.tile_end() - first;
      const Span in = inputs_touched(walk_.last(), first, first + n);
      // A single row is reduced in place, if it is one long window or up to 8 vectors can be read past its end.
      const V* folded = folded_;
      bool nan = false, reads_past = true;
      if constexpr (std::is_same_v<S, V>)
        if ((!indexed || axis.kernel >= long_sum) && rows.count() == 1 &&
            ((reads_past = readable_.contains(rows.x, in.to + 8 * N)) ||
             (axis.out == 1 && in.to - in.from >= long_window))) {
          folded = rows.x + in.from;
          if constexpr (can_be_nan) nan = may_contain_nan(folded, in.to - in.from);
        }
      if (rows.count() && folded == folded_) nan = fold(rows, rows.x + in.from, in.to - in.from, folded_);
      char* y = walk_.row(p_.y, first, first + n).data;
      char* extra = indexed ? walk_.row(p_.extra_array, first, first + n).data : nullptr;
      const auto reduce_output = [&](int64_t o) {
        const Window w = window(walk_.last(), first + o);
        const V* from = folded + (w.start - in.from);
        V best = R::init();
        if constexpr (indexed)
          if (rows.count() && w.taps && !nan && folded == folded_) {
            const C* number = row_numbers_ + (w.start - in.from);
            C row = 0;
            int64_t column = 0;
            first_best(from, number, w.taps, row, column);
            const int64_t slab = rows.slabs > 1 ? int64_t(row) / rows.rows : 0;
            write_result(rows, w, first + o, slab, int64_t(row) - slab * rows.rows, column,
                         *reinterpret_cast<S*>(y + o * step), extra + o * extra_step);
            return;
          }
        if (rows.count() && w.taps)
          best = nan ? reduce_window<R>(from, w.taps, reads_past)
                     : reduce_window<R, false>(from, w.taps, reads_past);
        if constexpr (!R::is_max) best = mean(best, divisor(rows, first + o));
        finish(rows, w, first + o, nan, best, *reinterpret_cast<S*>(y + o * step), extra + o * extra_step);
      };
      int64_t o = 0;
      for (const int64_t clipped = min(n, interior_.lo - first); o < clipped; ++o) reduce_output(o);
      const int64_t end = max(o, min(n, interior_.hi - first));
      for (int64_t clipped = end; clipped < n; ++clipped) reduce_output(clipped);
      if constexpr (!indexed)  // may overwrite the folded row
        if (!nan && rows.count() && axis.regular() && step == sizeof(S) && o < end)
          o += regular(rows, end - o, folded + begin_of(axis, first + o) - in.from,
                       reinterpret_cast<S*>(y) + o);
      for (; o < end; ++o) reduce_output(o);
    }
  }

  // The same with offsets, for windows of 4 and 8 columns; an object of its own leaves that of `run` in registers.
  __attribute__((noinline)) static void unzip_units(const Problem& p, int64_t begin, int64_t end,
                                                    char* memory) {
    Blocks work(p, begin, memory);
    for (int64_t unit = begin; unit < end; ++unit)
      if (!work.unzip_unit()) work.reduce_units(unit, unit + 1);
  }

  // False if windows are clipped or there is a NaN.
  bool unzip_unit() {
    const WindowRows rows = this->rows();
    const int64_t first = walk_.tile_begin(), n = walk_.tile_end() - first;
    const Span in = inputs_touched(walk_.last(), first, first + n);
    if (interior_.lo > first || interior_.hi < first + n || !rows.count() ||
        fold(rows, rows.x + in.from, in.to - in.from, folded_))
      return false;
    S* const y = reinterpret_cast<S*>(walk_.row(p_.y, first, first + n).data);
    char* const extra = walk_.row(p_.extra_array, first, first + n).data;
    p_.axes[1].kernel == 4 ? unzip_indexed<4>(rows, first, n, y, extra)
                           : unzip_indexed<8>(rows, first, n, y, extra);
    walk_.next();
    return true;
  }

  // The best of a folded row: ties go to the earliest row, then to the earliest column.
  static void first_best(const V* from, const C* number, int64_t taps, C& row, int64_t& column) {
    Cn lane;
    for (int k = 0; k < N; ++k) lane[k] = C(k);
    Vn best = broadcast<Vn>(R::init());
    Cn best_row = ~Cn{}, best_column = ~Cn{};
    for (int64_t t = 0; t < taps; t += N) {
      const auto inside = lane < C(min(taps - t, N));
      const Vn v = inside ? read<V, N>(from + t) : broadcast<Vn>(R::init());
      const Cn row_number = inside ? read<C, N>(number + t) : ~Cn{};
      const auto better = R::beats(v, best) | ((v == best) & (row_number < best_row));
      best = better ? v : best;
      best_row = better ? row_number : best_row;
      best_column = better ? lane + C(t) : best_column;
    }
    const auto lowest = [](Cn v) { return reduce(v, [](Cn a, Cn b) { return a < b ? a : b; }); };
    const auto equal = best == reduce(best, [](Vn a, Vn b) { return merge(a, b); });
    best_row = equal ? best_row : ~Cn{};
    const Cn min_row = lowest(best_row);
    row = min_row[0];
    column = int64_t(lowest((equal & (best_row == min_row)) ? best_column : ~Cn{})[0]);
  }

  // Reduces a vector, to the same value in every lane.
  template <class T, class F> __attribute__((always_inline)) static inline T reduce(T v, F&& f) {
    if constexpr (N >= 16) v = f(shifted<N >= 16 ? 8 : 0>(v, v), v);
    if constexpr (N >= 8) v = f(shifted<N >= 8 ? 4 : 0>(v, v), v);
    if constexpr (N >= 4) v = f(shifted<N >= 4 ? 2 : 0>(v, v), v);
    return f(shifted<1>(v, v), v);
  }

  template <class T, class By> T mean(T sum, By by) const { return p_.divide ? T(sum / by) : sum; }

  V divisor(const WindowRows& rows, int64_t o) const {
    return V(p_.divisor ? p_.divisor : max(1, rows.share * column_share(o)));
  }

  // Reduces n whole windows whose sizes have a fast path; otherwise returns 0.
  int64_t regular(const WindowRows& rows, int64_t n, const V* from, S* y) const {
    const Axis& axis = p_.axes[p_.n_axes - 1];
    if (axis.stride == axis.kernel) switch (axis.kernel) {
      case 2:
        return reduce_unzipped<2>(rows, n, from, y);
      case 4:
        return reduce_unzipped<4>(rows, n, from, y);
      case 8:
        return reduce_unzipped<8>(rows, n, from, y);
      case 3:
        return reduce_strided<3>(rows, n, from, y);
      case 5:
        return reduce_strided<5>(rows, n, from, y);
      case 6:
        return reduce_strided<6>(rows, n, from, y);
      case 7:
        return reduce_strided<7>(rows, n, from, y);
      case 10:
        return reduce_strided<10>(rows, n, from, y);
      }
    return axis.kernel <= axis.stride && axis.stride <= max_step ? everywhere(rows, n, from, y) : 0;
  }

  // Whole windows of any width: reduces the row at every element and keeps one result for each window.
  int64_t everywhere(const WindowRows& rows, int64_t n, const V* from, S* y) const {
    const Axis& axis = p_.axes[p_.n_axes - 1];
    reduce_everywhere<R, false>(from, (n - 1) * axis.stride + 1, axis.kernel, 1, folded_);
    if (axis.stride > 1) take_every(folded_, n, axis.stride, 1, results_);
    store_some(axis.stride > 1 ? results_ : folded_, n, divisor(rows, interior_.lo), y);
    return n;
  }

  // Store a whole vector of outputs, or n of them.
  template <int L> void store(Vec<V, L> best, V by, S* y) const {
    if constexpr (!R::is_max) best = mean(best, by);
    write_as<L, R::is_max, S, V>(y, best);
  }
  void store_some(const V* best, int64_t n, V by, S* y) const {
    in_vectors(n, [&](int64_t j) { y[j] = store_as<S>(R::is_max ? best[j] : mean(best[j], by)); });
  }

  // Windows of K columns, where K is a power of two: unzipping brings equal taps into one vector.
  template <int K> int64_t reduce_unzipped(const WindowRows& rows, int64_t n, const V* from, S* y) const {
    const V by = divisor(rows, interior_.lo);
    for (int64_t o = 0; o < n; o += N, from += K * N) {
      Vn x[K];
      for (int k = 0; k < K; ++k) x[k] = read<V, N>(from + k * N);
      unzip(x);
      for (int k = 1; k < K; ++k) x[0] = merge(x[k], x[0]);
      if (o + N <= n) {
        store<N>(x[0], by, y + o);
      } else {
        V some[N];
        write(some, x[0]);
        store_some(some, n - o, by, y + o);
      }
    }
    return n;
  }

  // Reduces the folded row to n outputs with offsets: ties go to the earliest row, then to the earliest
  // column.
  template <int K>
  void unzip_indexed(const WindowRows& rows, int64_t first, int64_t n, S* y, char* extra) const {
    constexpr int L = min(N, 8);
    const Axis &last = p_.axes[1], &over = p_.axes[0];
    const bool indices = p_.extra == Extra::index64;
    const int64_t from = indices ? rows.row_index * last.size + begin_of(last, first) : rows.row_tap * K;
    const C per_row = C(indices ? over.step * last.size : K), per_output = C(indices ? K : 0);
    Vec<C, L> output;
    for (int j = 0; j < L; ++j) output[j] = C(j) * per_output;
    for (int64_t o = 0; o < n; o += L, output += C(L) * per_output) {
      Vec<V, L> x[K];
      Vec<C, L> row[K];
      for (int k = 0; k < K; ++k) {
        x[k] = read<V, L>(folded_ + o * K + k * L);
        row[k] = read<C, L>(row_numbers_ + o * K + k * L);
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
      const Vec<C, L> offset = row[0] * per_row + column + output + C(indices ? 0 : from);
      if (o + L <= n) {
        write_as<L, true, S, V>(y + o, x[0]);
        write_offsets<L>(p_.extra, extra, o, offset, from);
      } else {
        S values[L];
        char offsets[8 * L];
        write_as<L, true, S, V>(values, x[0]);
        write_offsets<L>(p_.extra, offsets, 0, offset, from);
        const int64_t item = size_of(p_.extra);
        __builtin_memcpy(y + o, values, std::size_t(n - o) * sizeof(S));
        __builtin_memcpy(extra + o * item, offsets, std::size_t((n - o) * item));
      }
    }
  }

  template <int K> int64_t reduce_strided(const WindowRows& rows, int64_t n, const V* from, S* y) const {
    const V by = divisor(rows, interior_.lo);
    V best[N];
    for (int64_t o = 0; o < n; o += N, from += N * K) {
      const int64_t outputs = min(N, n - o);
      in_vectors(outputs, [&](int64_t j) {
        V v = from[j * K];
        for (int k = 1; k < K; ++k) v = merge(from[j * K + k], v);
        best[j] = v;
      });
      if (outputs == N)
        store<N>(read<V, N>(best), by, y + o);
      else
        store_some(best, outputs, by, y + o);
    }
    return n;
  }

  // Reduces planes of one output each, whose windows are narrow; returns how many, or -1 for other problems.
  // Stops at a NaN.
  int64_t planes(int64_t n) const {
    if constexpr (transposes) {
      constexpr int half = N >= 8 ? N / 2 : N;
      const Window w = window(walk_.last(), 0);
      const WindowRows rows = joined(this->rows());
      if (!single_outputs_ || rows.slabs != 1 || !rows.rows || !w.taps) return -1;
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
      if (rows.rows == 1 && w.taps >= long_sum) return long_rows(rows, w, n, y);
    }
    return -1;
  }

  // Planes of a single long row, a batch at a time.
  int64_t long_rows(const WindowRows& rows, const Window& w, int64_t n, S* y) const {
    const V by = divisor(rows, 0);
    const int64_t gap = p_.x.lead[0] / int64_t(sizeof(S));
    const int64_t reach = (batch - 1) * gap + ceil_div(w.taps, interleaved) * interleaved;
    const S* x = rows.x + w.start;
    int64_t o = 0;
    for (; o + batch <= n && readable_.contains(x, reach); o += batch, x += batch * gap) {
      V results[batch];
      if (!reduce_windows<R>(x, gap, w.taps, results)) break;
      store<batch>(read<V, batch>(results), by, y + o);
    }
    return o;
  }

  // A batch at a time: while the rows of one are transposed, those of the next are read.
  template <int W, int L> int64_t planes(const WindowRows& rows, const Window& w, int64_t n, S* y) const {
    const V by = divisor(rows, 0);
    const int64_t gap = p_.x.lead[0] / int64_t(sizeof(S)), pitch = rows.row_pitch;
    const int64_t reach = (batch - 1) * gap + (rows.rows - 1) * pitch + W * L;
    const S* x = rows.x + w.start;
    int64_t o = 0;
    for (; o + batch <= n && readable_.contains(x, reach); o += batch, x += batch * gap) {
      V folded[batch][W * L + interleaved];
      Vec<V, L> nan_sum[batch] = {};
      if (W == 1 && rows.rows > long_column) {  // in turns, so that no addition waits for the one before it
        Vec<V, L> acc[batch];
        for (int k = 0; k < batch; ++k) acc[k] = read_as<V, L>(x + k * gap);
        for (int k = 0; k < batch && can_be_nan; ++k) nan_sum[k] += acc[k];
        for (int64_t r = 1; r < rows.rows; ++r)
          for (int k = 0; k < batch; ++k) {
            const Vec<V, L> next = read_as<V, L>(x + k * gap + r * pitch);
            if constexpr (can_be_nan) nan_sum[k] += next;
            acc[k] = merge(next, acc[k]);
          }
        for (int k = 0; k < batch; ++k) write(folded[k], acc[k]);
      } else {  // plane by plane, in memory order
        for (int k = 0; k < batch; ++k) {
          Vec<V, L> acc[W];
          const S* from = x + k * gap;
          for (int v = 0; v < W; ++v) acc[v] = read_as<V, L>(from + v * L);
          for (int v = 0; v < W && can_be_nan; ++v) nan_sum[v] += acc[v];
          for (int64_t r = 1; r < rows.rows; ++r) {
            from += pitch;
            for (int v = 0; v < W; ++v) {
              const Vec<V, L> next = read_as<V, L>(from + v * L);
              if constexpr (can_be_nan) nan_sum[v] += next;
              acc[v] = merge(next, acc[v]);
            }
          }
          for (int v = 0; v < W; ++v) write(folded[k] + v * L, acc[v]);
        }
      }
      if (nan_in(nan_sum)) break;
      if (!R::is_max && w.taps >= long_sum) {
        V sums[batch];
        for (int k = 0; k < batch; ++k) sums[k] = reduce_window<R, false>(folded[k], w.taps);
        store<batch>(read<V, batch>(sums), by, y + o);
      } else {
        store<batch>(across(folded, w.taps), by, y + o);
      }
    }
    return o;
  }

  // Reduces the first columns of each folded row of a batch.
  template <int P> static Vec<V, batch> across(const V (&folded)[batch][P], int64_t taps) {
    Vec<V, batch> columns[batch], best = {};
    for (int64_t j = 0; j < taps; j += batch) {
      for (int k = 0; k < batch; ++k) columns[k] = read<V, batch>(folded[k] + j);
      unzip(columns);  // a transposition
      best = j ? merge(columns[0], best) : columns[0];
      if (j + batch <= taps)
        for (int t = 1; t < batch; ++t) best = merge(columns[t], best);
      else
        for (int t = 1; j + t < taps; ++t) best = merge(columns[t], best);
    }
    return best;
  }

  // Writes a result. The winning element is looked up only where it matters: for offsets, or after a NaN.
  __attribute__((always_inline)) void finish(const WindowRows& rows, const Window& w, int64_t o, bool nan,
                                             V best, S& to, char* extra) const {
    if constexpr (R::is_max)
      if (indexed || nan) return locate(rows, w, o, nan, best, to, extra);
    to = store_as<S>(best);
  }

  __attribute__((noinline)) void locate(const WindowRows& rows, const Window& w, int64_t o, bool nan, V best,
                                        S& to, char* extra) const {
    int64_t slab = 0, row = 0, column = 0;
    const bool any = rows.count() && w.taps;
    if (any && nan)
      find_exact(rows, w, best, slab, row, column);
    else if (any)
      find_equal(rows, w, best, slab, row, column);
    if (any || indexed) write_result(rows, w, o, slab, row, column, to, extra);
    if (!any) to = store_as<S>(best);
  }

  // Writes the winning element and its offset.
  void write_result(const WindowRows& rows, const Window& w, int64_t o, int64_t slab, int64_t row,
                    int64_t column, S& to, char* extra) const {
    if (rows.count() && w.taps) to = rows.x[slab * rows.slab_pitch + row * rows.row_pitch + w.start + column];
    if constexpr (indexed) {
      const int n = p_.n_axes - 1;
      const Axis& last = walk_.last();
      if (p_.extra == Extra::index64) {
        const int64_t height = n >= 1 ? p_.axes[n - 1].size : 1, row_step = n >= 1 ? p_.axes[n - 1].step : 1;
        const int64_t slab_step = n == 2 ? p_.axes[0].step : 1;
        return write_offset(
            p_.extra, extra,
            ((rows.slab_index + slab * slab_step) * height + rows.row_index + row * row_step) * last.size +
                begin_of(last, o) + w.lead + column);
      }
      const int64_t kernel_rows = n >= 1 ? p_.axes[n - 1].kernel : 1;
      write_offset(p_.extra, extra,
                   ((rows.slab_tap + slab) * kernel_rows + rows.row_tap + row) * last.kernel + w.lead +
                       column);
    }
  }

  // The exact scan: NaN wins.
  static void find_exact(const WindowRows& rows, const Window& w, V& best, int64_t& slab, int64_t& row,
                         int64_t& column) {
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

  // The first element equal to the best.
  void find_equal(const WindowRows& rows, const Window& w, V best, int64_t& slab, int64_t& row,
                  int64_t& column) const {
    for (int64_t s = 0; s < rows.slabs; ++s)
      for (int64_t r = 0; r < rows.rows; ++r) {
        const S* x = rows.x + s * rows.slab_pitch + r * rows.row_pitch + w.start;
        for (int64_t c = 0; c < w.taps; c += N) {
          int64_t k = c;
          if (readable_.contains(x + c, N))
            k += first_set(read_as<V, N>(x + c) == best);
          else
            while (k < w.taps && !(load_as<V>(x[k]) == best)) ++k;
          if (k < min(c + N, w.taps)) {
            slab = s, row = r, column = k;
            return;
          }
        }
      }
  }
};

}  // namespace
}  // namespace ndpool

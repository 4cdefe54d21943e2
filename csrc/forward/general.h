// The general forward engine (rows): the bare composition of source, vertical step, horizontal step and sink.
// selection.h picks it for every window, layout and type that no specialised engine supports. Window arithmetic stays
// in plan.h.
#pragma once

#include "forward/horizontal.h"
#include "forward/sink.h"
#include "forward/source.h"
#include "forward/vertical.h"

namespace ndpool {
namespace {

constexpr int64_t tile_bytes = 192 * 1024;  // working set of a worker: well inside L2
constexpr int64_t min_tile = 64;
constexpr int group = 4;  // rows folded at a time

inline void set_tiles(Problem& p, int64_t bytes_per_output, int64_t extent) {
  p.tile = max(1, min(extent, max(ceil_div(min_tile, p.channels), tile_bytes / max(1, bytes_per_output))));
  p.tiles = ceil_div(extent, p.tile);
  p.units = p.planes * p.tiles * p.rows;
}

// The same problem with the channels as its last axis, whose windows are single: every reduction is vertical.
inline Problem channels_as_row(const Problem& p) {
  Problem q = p;
  const int n = q.n_axes++;
  q.rows *= p.axes[n - 1].out;
  q.axes[n] = single_axis(p.channels);
  for (Array* array : {&q.x, &q.y, &q.extra_array, &q.aux}) array->pooled[n] = array->channel;
  q.channels = 1;
  return q;
}

// Joins planes that lie one after another in memory along the last axis, whose windows are single.
inline void join_planes(Problem& p) {
  const int last = p.n_axes - 1;
  Axis& axis = p.axes[last];
  for (; p.n_lead > 0; --p.n_lead) {
    const int a = p.n_lead - 1;
    if (p.x.lead[a] != p.x.pooled[last] * axis.size || p.y.lead[a] != p.y.pooled[last] * axis.size) return;
    axis = single_axis(axis.size * p.lead_shape[a]);
    p.planes /= p.lead_shape[a];
  }
}

// The general engine, for any window, layout and type: folds the rows of a window into one, in the order of the
// plane, then reduces that row to its outputs. A row and its results stay in L1 and L2. `Source` may replace the
// plain input (by one that leaves out masked elements, or NaN), and the reducer may collect its window.
template <class R, bool indexed, class Source = Input<typename R::V>> struct Rows {
  static constexpr const char* engine = "rows";
  using V = typename R::V;
  static constexpr int N = wide<V>;

  static void prepare(Problem& p) {
    if (folds_channels(p)) {
      p = channels_as_row(p);
      if constexpr (std::is_same_v<Source, Input<V>>) join_planes(p);  // others may read more arrays
    }
    const Axis& last = p.axes[p.n_axes - 1];
    set_tiles(p, (last.stride * 3 + 2 + collected(p)) * p.channels * int64_t(sizeof(V)), last.out);
    p.scratch = OffsetStore::bytes(p) + Scratch::bytes<V>(p.tile * p.channels * collected(p)) +
                RowSet::bytes(p) + group * Scratch::bytes<V>(input_length(p)) +
                2 * Scratch::bytes<V>(row_length(p)) + Scratch::bytes<V>(interleaved * p.channels + N) +
                (indexed ? Scratch::bytes<V>(row_length(p)) + 2 * Scratch::bytes<Offset>(row_length(p)) +
                               Scratch::bytes<V>(split_length(p)) + Scratch::bytes<Offset>(split_length(p))
                         : 0);
  }

  static void run(const Problem& p, int64_t begin, int64_t end, char* memory) {
    Scratch scratch(memory);
    Rows work(p, scratch);
    Walk<Over::outputs> walk(p, begin);
    RowSet rows(p, scratch);
    for (int64_t unit = begin; unit < end; ++unit, walk.next())
      if (!work.row(walk, rows)) return;
  }

private:
  // Whether the channels along a single axis, and the planes that continue them, are folded as long rows: for maxima,
  // whose order does not matter, if windows overlap little.
  static bool folds_channels(const Problem& p) {
    const Axis& last = p.axes[p.n_axes - 1];
    if (!R::is_max || indexed || Collects<R> || p.channels == 1 || p.n_axes > 1 || last.table_stride ||
        (last.regular() && last.kernel > 2 * last.stride))
      return false;
    const bool continued = p.n_lead > 0 && p.x.lead[p.n_lead - 1] == p.x.channel * p.channels;
    return p.channels * (continued ? p.lead_shape[p.n_lead - 1] : 1) >= 4 * N;
  }

  const Problem& p_;
  const Source input_;
  const Store<V> store_;
  OffsetStore offsets_;
  V* buffers_[group];
  // The folded row, the windows at every index, and those of the outputs.
  Indexed<V> row_{}, everywhere_{}, results_{};
  V *partial_, *windows_ = nullptr;
  const Readable readable_;
  bool may_have_nan_ = true;               // whether the folded row may contain a NaN
  const Offset* shared_offset_ = nullptr;  // of all elements of the folded row, if it is one offset

  // The elements of a window if the reducer collects them, otherwise 0.
  static int64_t collected(const Problem& p) {
    int64_t taps = Collects<R>;
    for (int a = 0; a < p.n_axes; ++a) taps *= p.axes[a].kernel;
    return taps;
  }

  // Rows of a single channel are split by strides up to these, which is faster than window by window; rows of one offset
  // are split faster than others.
  static constexpr int64_t max_split_stride = 8, max_split_rows = 6;
  static constexpr int64_t split_slack = max(N, wide<Offset>);

  // Elements past the end of a row of which `take_every` reads single elements.
  static constexpr int64_t taken_slack = 2 * N + 64 / int64_t(sizeof(V));

  // Elements of the inputs of a tile, and of the same with padding; vectors may access both past the end.
  static int64_t input_length(const Problem& p) {
    return max_inputs(p.axes[p.n_axes - 1], p.tile) * p.channels + 2 * N;
  }
  static int64_t row_length(const Problem& p) {
    const Axis& last = p.axes[p.n_axes - 1];
    const int64_t inputs =
        last.regular() ? (p.tile - 1) * last.stride + (last.kernel - 1) * last.step + 1 : last.size;
    return max(inputs, p.tile) * p.channels + (1 + max_split_stride) * max(N, 64 / int64_t(sizeof(V)));
  }

  bool splits(const Axis& a) const {
    const bool unzips = a.stride == max_split_stride && a.kernel == a.stride;
    return p_.channels == 1 && a.stride <= (shared_offset_ || unzips ? max_split_stride : max_split_rows);
  }
  // Elements of a row that is split.
  static int64_t split_length(const Problem& p) { return row_length(p) + max_split_stride * 3 * split_slack; }

  Rows(const Problem& p, Scratch& scratch)
      : p_(p), input_(p, is_real<V> || !R::is_max), store_(storer<V>(p.y_type, is_real<V> || !R::is_max)),
        offsets_(p, scratch), readable_(p, p.x, sizeof(V), Over::inputs) {
    for (V*& buffer : buffers_) buffer = scratch.take<V>(input_length(p));
    row_.value = scratch.take<V>(row_length(p));
    results_.value = scratch.take<V>(row_length(p));
    partial_ = scratch.take<V>(interleaved * p.channels + N);
    if constexpr (Collects<R>) windows_ = scratch.take<V>(p.tile * p.channels * collected(p));
    if constexpr (indexed) {
      row_.offset = scratch.take<Offset>(row_length(p));
      everywhere_ = {scratch.take<V>(split_length(p)), scratch.take<Offset>(split_length(p))};
      results_.offset = scratch.take<Offset>(row_length(p));
    }
  }

  // Computes a row of outputs; false if the call must stop.
  bool row(const Walk<Over::outputs>& walk, RowSet& rows) {
    const Axis& last = walk.last();
    const int64_t o0 = walk.tile_begin(), o1 = walk.tile_end(), n = (o1 - o0) * p_.channels;
    const Row y = walk.row(p_.y, o0, o1);
    rows.windows(walk);
    if constexpr (Collects<R>) {
      if (!collect(walk, rows, o0, o1)) return false;
    } else if (rows.count() == 0) {
      in_vectors(n, [results = results_.value](int64_t j) { results[j] = R::init(); });
    } else {
      const Span in = inputs_touched(last, o0, o1);
      const int64_t first = last.regular() ? begin_of(last, o0) : in.from;
      const int64_t span = (o1 - o0 - 1) * last.stride + (last.kernel - 1) * last.step + 1;
      const V* x = fold_rows(walk, rows, in, first, last.regular() ? first + span : in.to);
      if (!x) return false;
      if (last.regular() && !indexed && x == row_.value) pad(first, in.from, in.to, first + span);
      if constexpr (indexed) {
        if (overlap_little(last)) {
          reduce_each_indexed(last, o0, o1, o0, first);
        } else {
          regular(x, last, o1 - o0);
          const Range whole = interior(last, o0, o1);
          reduce_each_indexed(last, o0, whole.lo, o0, first);
          reduce_each_indexed(last, whole.hi, o1, o0, first);
        }
      } else if (!last.regular()) {
        reduce_irregular(x, last, o0, o1, first);
      } else if (!R::is_max && last.kernel >= long_sum) {
        long_sums(x, last, o0, o1, first);
      } else if (can_reduce_to_output(x, last, y)) {
        return reduce_to_output(walk, x, last, y);
      } else {
        regular(x, last, o1 - o0);
      }
    }
    if constexpr (indexed) {
      empty_offsets(walk, rows.count() == 0, o0, o1);
      offsets_.store(results_.offset, walk, walk.row(p_.extra_array, o0, o1));
    }
    if constexpr (!R::is_max) finish(p_, walk, o0, o1, results_.value);
    reorder(p_, results_.value, results_.value, n);
    store_(results_.value, y);
    return true;
  }

  // Collects the elements of each window, in the order of the plane, and applies the reducer.
  bool collect(const Walk<Over::outputs>& walk, RowSet& rows, int64_t o0, int64_t o1) {
    const Axis& last = walk.last();
    const Span in = inputs_touched(last, o0, o1);
    const int64_t unit = p_.channels, max_taps = collected(p_);
    int64_t row = 0;
    for (; row < rows.count(); ++row, rows.next()) {
      if (p_.stopped()) return false;
      const V* x = input_.row(walk, rows.index(), in, buffers_[0]);
      for (int64_t o = o0, j = 0; o < o1; ++o) {
        const Window w = window(last, o);
        for (int64_t c = 0; c < unit; ++c, ++j)
          for (int64_t t = 0; t < w.taps; ++t)
            windows_[j * max_taps + row * w.taps + t] = x[(w.start - in.from + t * last.step) * unit + c];
      }
    }
    for (int64_t o = o0, j = 0; o < o1; ++o)
      for (int64_t c = 0; c < unit; ++c, ++j)
        results_.value[j] = R::of(windows_ + j * max_taps, row * window(last, o).taps);
    return true;
  }

  // Short windows of stride 1 are reduced straight to the output; so are those of stride 2 where one permutation
  // of two vectors gives a vector of outputs.
  static constexpr int64_t max_direct_kernel = 3;
  bool can_reduce_to_output(const V* x, const Axis& a, const Row& y) const {
    if (indexed || a.kernel > max_direct_kernel || !writes_directly<V>(p_, y)) return false;
    return a.stride == 1 ||
           (has_permute<V> && a.stride == 2 && p_.channels > 1 && p_.channels <= N / 2 && x == row_.value);
  }

  // Writes vectors to the output as long as they end inside the row. With stride 2 the last elements of a vector
  // may be unused; the next vector overwrites them. The tail goes through scratch.
  bool reduce_to_output(const Walk<Over::outputs>& walk, const V* x, const Axis& a, const Row& y) {
    const int64_t n = y.n * y.channels;
    V* to = reinterpret_cast<V*>(y.data);
    const int64_t step = a.stride == 1 ? N : N / p_.channels * p_.channels;
    const int64_t whole = n < N ? 0 : ((n - N) / step + 1) * step;
    const auto windows = [&](int64_t from, int64_t end, V* dst) {
      if (a.stride == 2)
        may_have_nan_ ? every_other_window<R>(x, from, end, a.kernel, a.step, p_.channels, dst)
                      : every_other_window<R, false>(x, from, end, a.kernel, a.step, p_.channels, dst);
      else
        may_have_nan_
            ? reduce_everywhere<R>(x + from, end - from, a.kernel, a.step * p_.channels, dst)
            : reduce_everywhere<R, false>(x + from, end - from, a.kernel, a.step * p_.channels, dst);
    };
    windows(0, whole, to);
    if (whole < n) {
      windows(whole, n, results_.value);
      __builtin_memcpy(to + whole, results_.value, std::size_t(n - whole) * sizeof(V));
    }
    if constexpr (!R::is_max) finish(p_, walk, walk.tile_begin(), walk.tile_end(), to);
    return true;
  }

  // Folds the rows of the windows into one that begins at index `first`. A single row that needs no padding is
  // used in place if vectors may read past its end.
  const V* fold_rows(const Walk<Over::outputs>& walk, RowSet& rows, const Span& in, int64_t first,
                     int64_t last) {
    may_have_nan_ = true;
    if (!indexed && rows.count() == 1 && in.from == first && in.to == last) {
      const V* x = input_.row(walk, rows.index(), in, row_.value);
      if (x == row_.value || readable_.contains(x, (in.to - in.from) * p_.channels + taken_slack)) return x;
    }
    const int64_t width = (in.to - in.from) * p_.channels, at = (in.from - first) * p_.channels;
    may_have_nan_ = false;
    Vec<V, N> nan_sum{};  // of all elements: NaN if one of them is
    if (!fold_down(walk, rows, in, at, width, nan_sum)) return nullptr;
    if constexpr (indexed) shared_offset_ = rows.count() == 1 ? row_.offset + at : nullptr;
    if constexpr (speculates)
      if (contains_nan(nan_sum)) {
        may_have_nan_ = true;
        rows.reset();
        if (!fold_down(walk, rows, in, at, width, nan_sum)) return nullptr;
      }
    return row_.value;
  }

  // Max without offsets folds speculatively first, assuming that there is no NaN.
  static constexpr bool speculates = R::is_max && is_real<V> && !indexed;

  bool fold_down(const Walk<Over::outputs>& walk, RowSet& rows, const Span& in, int64_t at, int64_t width,
                 [[maybe_unused]] Vec<V, N>& nan_sum) {
    V* const to = row_.value + at;
    const V* values[group];
    Offset base[group];
    int n_rows = 0;
    const int64_t vectors = ceil_div(width, N) * N;
    bool reads_past_end = true;  // whether vectors may read past these rows
    for (int64_t r = 0; r < rows.count(); ++r, rows.next()) {
      if (p_.stopped()) return false;
      values[n_rows] = input_.row(walk, rows.index(), in, buffers_[n_rows]);
      reads_past_end &= values[n_rows] == buffers_[n_rows] || readable_.contains(values[n_rows], vectors);
      base[n_rows++] = indexed ? rows.offset(p_.axes) : 0;
      if (n_rows < group && r + 1 < rows.count()) continue;
      const int64_t length = reads_past_end ? vectors : width;
      if constexpr (speculates)
        if (!may_have_nan_) {
          fold_speculatively<R>(values, n_rows, to, width, reads_past_end, r >= group, nan_sum);
          n_rows = 0;
          continue;
        }
      if constexpr (indexed)
        fold_indexed<R>(values, base, n_rows, to, row_.offset + at, length, r >= group);
      else
        fold<R>(values, n_rows, to, length, r >= group);
      n_rows = 0;
    }
    return true;
  }

  // Pads the folded row with the initial value where windows reach past the input.
  void pad(int64_t first, int64_t from, int64_t to, int64_t end) const {
    const auto fill = [&](int64_t lo, int64_t hi) {
      V* const pads = row_.value + (lo - first) * p_.channels;
      in_vectors((hi - lo) * p_.channels, [pads](int64_t j) { pads[j] = R::init(); });
    };
    fill(first, min(from, end));
    fill(max(to, first), end);
  }

  void regular(const V* x, const Axis& a, int64_t n) {
    const int64_t unit = p_.channels, tap_stride = a.step * unit, length = ((n - 1) * a.stride + 1) * unit;
    if constexpr (indexed) {
      if (splits(a) && a.stride > 1) return reduce_split(a, n);
      reduce_everywhere_indexed<R>(row_, length, a.kernel, tap_stride,
                                   a.stride == 1 ? results_ : everywhere_);
      if (a.stride == 1) return;
      take_every(everywhere_.value, n, a.stride, unit, results_.value);
      return take_every(everywhere_.offset, n, a.stride, unit, results_.offset);
    }
    // Long windows that overlap little are reduced one by one.
    if (a.step == 1 && a.kernel >= long_sum && a.stride * 8 > a.kernel) {
      for (int64_t o = 0; o < n; ++o)
        reduce_window<R>(x + o * a.stride * unit, a.kernel, unit, partial_, results_.value + o * unit);
      return;
    }
    if (a.kernel == 1 && a.stride > 1) return take_every(x, n, a.stride, unit, results_.value);
    V* to = a.stride == 1 ? results_.value : row_.value;
    if (may_have_nan_)
      reduce_everywhere<R>(x, length, a.kernel, tap_stride, to);
    else
      reduce_everywhere<R, false>(x, length, a.kernel, tap_stride, to);
    if (a.stride > 1) take_every(row_.value, n, a.stride, unit, results_.value);
  }

  // Whether windows with offsets are reduced faster one by one than at every element.
  bool overlap_little(const Axis& a) const {
    if (!a.regular()) return true;
    if (p_.channels == 1) return a.step == 1 && !splits(a);
    return a.stride * p_.channels > 2 * ceil_div(p_.channels, 8) * 8;
  }

  // Windows of any stride with offsets: gathers the elements under the same tap of successive windows into
  // vectors. The row is split by its stride: part r has every `stride`-th element from r on.
  void reduce_split(const Axis& a, int64_t n) {
    const int64_t span = (a.kernel - 1) * a.step, length = n + span / a.stride + split_slack;
    const int64_t parts = min(a.stride, span + 1), count = n + span / a.stride;
    split_row(row_.value, count, a.stride, parts, length, everywhere_.value);
    if (!shared_offset_) split_row(row_.offset, count, a.stride, parts, length, everywhere_.offset);
    using C = UnsignedLike<V>;
    for (int64_t j = 0; j < n; j += N) {
      Vec<V, N> best = read<V, N>(everywhere_.value + j);
      Vec<C, N> at = shared_offset_ ? Vec<C, N>{} + C(*shared_offset_)
                                    : converted<Vec<C, N>>(read<Offset, N>(everywhere_.offset + j));
      const C base = shared_offset_ ? C(*shared_offset_) : C(0);
      for (int64_t t = 1; t < a.kernel; ++t) {
        const int64_t from = t * a.step % a.stride * length + t * a.step / a.stride + j;
        const Vec<V, N> later = read<V, N>(everywhere_.value + from);
        if (shared_offset_) {
          merge_with_offset<R>(later, Vec<C, N>{} + C(base + C(t)), best, at);
        } else {
          const Vec<C, N> offset = converted<Vec<C, N>>(read<Offset, N>(everywhere_.offset + from)) + C(t);
          merge_vectors_any_order<R>(later, offset, best, at);
        }
      }
      write(results_.value + j, best);
      write(results_.offset + j, converted<Vec<Offset, N>>(at));
    }
  }

  // Sums of long windows. Only taps inside the input are added, and their number determines the order of
  // additions.
  void long_sums(const V* x, const Axis& a, int64_t o0, int64_t o1, int64_t first) {
    const int64_t unit = p_.channels;
    for (int64_t o = o0; o < o1; ++o) {
      const Window w = window(a, o);
      const V* from = x + (w.start - first) * unit;
      V* to = results_.value + (o - o0) * unit;
      if (a.step > 1) {  // gather the taps
        for (int64_t t = 0; t < w.taps; ++t)
          for (int64_t c = 0; c < unit; ++c) buffers_[0][t * unit + c] = from[t * a.step * unit + c];
        from = buffers_[0];
      }
      if (w.taps)
        reduce_window<R>(from, w.taps, unit, partial_, to);
      else
        for (int64_t c = 0; c < unit; ++c) to[c] = V(0);
    }
  }

  // Windows [from, to), with offsets, one by one: a tap in the padding never wins.
  void reduce_each_indexed(const Axis& a, int64_t from, int64_t to, int64_t o0, int64_t first) {
    const int64_t unit = p_.channels, step = a.regular() ? a.step : 1;
    for (int64_t o = from; o < to; ++o) {
      const Window w = window(a, o);
      const int64_t at = (w.start - first) * unit, y = (o - o0) * unit;
      if (w.taps)
        reduce_window_indexed<R>({row_.value + at, row_.offset + at}, w.taps, step * unit, unit,
                                 Offset(w.lead), {results_.value + y, results_.offset + y});
      else
        for (int64_t c = 0; c < unit; ++c) results_.value[y + c] = R::init();
    }
  }

  void reduce_irregular(const V* x, const Axis& a, int64_t o0, int64_t o1, int64_t first) {
    const int64_t unit = p_.channels;
    for (int64_t o = o0; o < o1; ++o) {
      const int64_t at = (a.starts[o] - first) * unit, to = (o - o0) * unit;
      if (a.counts[o] == 0) {
        for (int64_t c = 0; c < unit; ++c) results_.value[to + c] = R::init();
        continue;
      }
      reduce_window<R>(x + at, a.counts[o], unit, partial_, results_.value + to);
    }
  }

  // Stores the offsets of windows without an element: that of the tap nearest to the input.
  void empty_offsets(const Walk<Over::outputs>& walk, bool all, int64_t o0, int64_t o1) {
    const Offset outer = lead_offset(walk, p_.n_axes);
    const Range whole = all ? Range{o1, o1} : interior(walk.last(), o0, o1);
    for (int64_t o = o0; o < o1; ++o) {
      if (o == whole.lo) o = whole.hi;
      if (o == o1) return;
      const Window w = window(walk.last(), o);
      if (!all && w.taps) continue;
      for (int64_t j = (o - o0) * p_.channels; j < (o - o0 + 1) * p_.channels; ++j)
        results_.offset[j] = outer + Offset(w.lead);
    }
  }

  static void finish(const Problem& p, const Walk<Over::outputs>& walk, int64_t o0, int64_t o1, V* dst) {
    int64_t outer = 1;
    for (int a = 0; p.divide && a < walk.outer(); ++a) outer *= share(walk.axis(a), walk.at(a));
    divide_row(p, walk.last(), outer, o0, o1, dst);
  }
};

}  // namespace
}  // namespace ndpool

// The backward of max and min for any window, by scattering; called from backward/selection.h. Each output adds
// its gradient to the input at its offset, so that the cost is one addition per output, whatever the window.
// Outputs come in rising order, so that each input adds up in PyTorch's order to the bit.
//
// The engine computes the input gradient box by box. A box is a contiguous range of a plane, or of several planes:
// a single comparison decides whether an output adds to it, and no write can leave it. The engine adds in place,
// or in scratch where the sums must be rounded or the result has gaps. Where windows are disjoint, it copies
// gradients.
#pragma once

#include "backward/bands.h"

namespace ndpool {
namespace {

// V: type of the sums.
template <class V> class Scatter {
  using Index = std::int32_t;
  static constexpr int L = wide<Index>;
  using Indices = Vec<Index, L>;
  static constexpr Index nowhere = 1 << 30;
  static constexpr int64_t far_nowhere = int64_t(1) << 60;
  // Bytes of a box: within L2; the smallest that is worth a thread.
  static constexpr int64_t box_bytes = 256 * 1024, min_box_bytes = 8 * 1024, max_box_bytes = 4 * 1024 * 1024;
  static constexpr double max_visits = 1.6;  // of an output
  static constexpr int64_t min_units = 8, max_columns = 1 << 11, max_rows = 1 << 12;
  static constexpr int64_t largest_table = 1 << 12;  // taps
  static constexpr int64_t sparse = 16;              // elements per output

public:
  static constexpr const char* engine = "max_backward_scatter";

  static void prepare(Problem& p) {
    fold_planes(p);
    const Boxes b(p);
    p.tile = b.tile;
    p.tiles = b.count;
    p.units = p.planes * b.count;
    char begin;  // never used as memory: only the size counts
    Scratch scratch(&begin);
    Scatter(p, scratch);
    p.scratch = scratch.take<char>(0) - &begin;
  }

  // A unit is a box of a plane. Planes vary fastest.
  static void run(const Problem& p, int64_t begin, int64_t end, char* memory) {
    Scratch scratch(memory);
    Scatter worker(p, scratch);
    worker.fill_table();
    for (int64_t unit = begin; unit < end && !p.stopped(); ++unit) {
      worker.enter(unit / p.planes, unit % p.planes);
      worker.box(unit % p.planes);
    }
  }

private:
  // Turns planes into a leading axis with windows of one tap, so that a box may contain many small planes.
  static void fold_planes(Problem& p) {
    if (p.n_lead == 0 || p.n_axes == max_axes) return;
    for (int a = 0; a < p.n_axes; ++a)
      if (p.axes[a].table_stride) return;
    const int64_t n = p.lead_shape[--p.n_lead];
    p.planes /= n;
    for (int a = p.n_axes; a > 0; --a) p.axes[a] = p.axes[a - 1];
    p.axes[0] = single_axis(n);
    for (Array* array : {&p.x, &p.y, &p.extra_array}) {
      for (int a = p.n_axes; a > 0; --a) array->pooled[a] = array->pooled[a - 1];
      array->pooled[0] = array->lead[p.n_lead];
    }
    ++p.n_axes;
  }

  // The inputs of a box: one index of each axis before `split`, `tile` indices along `split`, all of the axes
  // after it.
  struct Boxes {
    int split;
    int64_t tile, count, elements;
    bool shared = false;  // windows overlap
    bool packed, direct;  // results have no gaps; sums are computed in place

    explicit Boxes(const Problem& p) : packed(packed_planes(p)) {
      for (int a = 0; a < p.n_axes; ++a) shared |= max_covers(p.axes[a], p.planes) > 1;
      direct = packed && (stored_as<V>(p.y_type) || !shared);
      const int64_t item = direct ? size_of(p.y_type) : int64_t(sizeof(V));
      // Where small boxes would visit outputs several times, as in channels-last volumes, larger ones are faster: only the
      // inputs of a few rows of outputs have to stay in the cache.
      for (int64_t bytes = box_bytes; cut(p, bytes / item) > max_visits && bytes < max_box_bytes;) bytes *= 2;
      const Axis& axis = p.axes[split];
      int64_t inner = p.channels, outer = p.planes;
      for (int a = split + 1; a < p.n_axes; ++a) inner *= p.axes[a].size;
      for (int a = 0; a < split; ++a) outer *= p.axes[a].size;
      const int64_t units = p.threads > 1 ? min_units : 1;
      while (tile > 2 * span(axis) && tile * inner * item > min_box_bytes &&
             outer * ceil_div(axis.size, tile) < units)
        tile = (tile + 1) / 2;
      count = outer / p.planes * ceil_div(axis.size, tile);
      elements = tile * inner;
    }

  private:
    static int64_t span(const Axis& axis) { return axis.regular() ? span_of(axis) : axis.kernel; }

    // Cuts planes into boxes of about `limit` elements; returns how often an output is visited, about.
    double cut(const Problem& p, int64_t limit) {
      split = p.n_axes - 1;
      int64_t inner = p.channels, outputs = p.channels;
      while (split > 0 && inner * p.axes[split].size <= limit) {
        outputs *= p.axes[split].out;
        inner *= p.axes[split--].size;
      }
      const Axis& axis = p.axes[split];
      // Not much shorter than a window, so that few outputs reach several boxes; whole planes have all outputs in
      // one row.
      tile = max(limit / inner, min(4 * span(axis), 4 * limit / inner));
      if (axis.kernel == 1 && outputs <= max_columns) tile = min(tile, max_columns / max(1, outputs));
      tile = max(1, min(axis.size, tile));
      double visits = tile < axis.size ? double(tile + span(axis) - 1) / double(tile) : 1;
      for (int a = 0; a < split; ++a) visits *= double(min(span(p.axes[a]), p.axes[a].size));
      return visits;
    }
  };

  // A row of outputs: where it begins in both arrays, in bytes, and the index of its first tap relative to the
  // box, which may lie outside.
  struct OutputRow {
    int64_t grad, offset, at;
  };

  Scatter(const Problem& p, Scratch& scratch)
      : p_(p), boxes_(p), last_(p.n_axes - 1), load_(loader<V>(p.x_type, false)),
        store_(storer<V>(p.y_type, false)), item_(size_of(p.x_type)) {
    double taps = 1, outputs = double(p.planes) * double(p.channels);
    int64_t rows = 1, columns = 1, row = 1, pitch = p.channels, reach = 0;
    for (int a = last_; a >= 0; --a) {
      axes_[a] = p.axes[a];
      tables_ |= axes_[a].table_stride != 0;
      taps *= double(axes_[a].kernel);
      outputs *= double(axes_[a].out);
      if (a < last_) rows = min(max_rows, rows * max(1, axes_[a].out));
      columns = min(max_columns, columns * max(1, axes_[a].out));
      if (a == last_) row = max_outputs(axes_[a], boxes_.split == a ? boxes_.tile : axes_[a].size);
      pitch_[a] = pitch;
      pitch *= axes_[a].size;
      reach += (axes_[a].kernel - 1) * axes_[a].step * pitch_[a];
    }
    row_capacity_ = rows;
    capacity_ = max(row, min(max_columns / p.channels, columns)) * p.channels;
    // A table of all taps, unless there are so many that divisions are faster.
    if (taps <= double(largest_table) && taps <= 256 + outputs && reach < nowhere / 2)
      table_taps_ = int64_t(taps);
    rows_ = scratch.take<OutputRow>(row_capacity_);
    columns_ = scratch.take<Index>(table_taps_ ? capacity_ : 0);
    wide_columns_ = scratch.take<int64_t>(table_taps_ ? 0 : capacity_);
    table_ = scratch.take<Index>(max(table_taps_ + 1, 2 * L));
    indices_ = scratch.take<Index>(capacity_ + L);
    grads_ = scratch.take<V>(capacity_);
    offsets_ = scratch.take<std::uint32_t>(capacity_);
    sums_ = scratch.take<V>(boxes_.direct ? 0 : boxes_.elements);
  }

  // The distance of each tap of a window from the first one.
  void fill_table() {
    if (table_taps_ == 0) return;
    int64_t tap[max_axes] = {}, at = 0;
    for (int64_t t = table_taps_; t < max(table_taps_ + 1, 2 * L); ++t) table_[t] = nowhere;
    for (int64_t t = 0; t < table_taps_; ++t) {
      table_[t] = Index(at);
      for (int a = last_; a >= 0; --a) {
        at += axes_[a].step * pitch_[a];
        if (++tap[a] < axes_[a].kernel) break;
        at -= tap[a] * axes_[a].step * pitch_[a];
        tap[a] = 0;
      }
    }
  }

  // Moves to another box, or to a plane that has its own windows.
  void enter(int64_t box, int64_t plane) {
    if (box == box_ && !tables_) return;
    box_ = box;
    const int64_t tiles = ceil_div(axes_[boxes_.split].size, p_.tile);
    int64_t rest = box / tiles;
    begin_ = 0;
    Range before[max_axes];
    for (int a = last_; a >= 0; --a) {
      before[a] = outputs_[a];
      Axis& axis = axes_[a];
      inputs_[a] = {0, axis.size};
      if (a == boxes_.split) {
        inputs_[a].lo = box % tiles * p_.tile;
        inputs_[a].hi = min(axis.size, inputs_[a].lo + p_.tile);
      } else if (a < boxes_.split) {
        inputs_[a] = {rest % axis.size, rest % axis.size + 1};
        rest /= axis.size;
      }
      if (axis.table_stride) {
        axis.starts = p_.axes[a].starts + plane * axis.table_stride;
        axis.counts = p_.axes[a].counts + plane * axis.table_stride;
      }
      begin_ += inputs_[a].lo * pitch_[a];
      outputs_[a] = {Cover(axis, inputs_[a].lo).lo, Cover(axis, inputs_[a].hi - 1).hi};
    }
    elements_ = (inputs_[boxes_.split].hi - inputs_[boxes_.split].lo) * pitch_[boxes_.split];
    first_row_ = -1;
    const int merged = merged_;
    merge_axes();
    // The columns of the previous box remain valid if only its rows or planes differ.
    bool unchanged = merged == merged_ && !tables_;
    for (int a = merged_; a <= last_; ++a) {
      const int64_t n = outputs_[a].hi - outputs_[a].lo, n_before = before[a].hi - before[a].lo;
      unchanged &= axis_of_planes(axes_[a]) ? n <= n_before : outputs_[a].lo == before[a].lo && n == n_before;
    }
    columns_filled_ &= unchanged;
  }

  // Whether each element of the axis is a window of its own.
  static bool axis_of_planes(const Axis& a) {
    return a.regular() && a.kernel == 1 && a.stride == 1 && a.origin == 0 && a.size == a.out;
  }

  // Merges the last axes into one row of outputs if they are contiguous in memory and not too long.
  void merge_axes() {
    merged_ = last_;
    n_columns_ = max(0, outputs_[last_].hi - outputs_[last_].lo);
    const auto contiguous = [&](const Array& array) {
      return array.pooled[merged_ - 1] == array.pooled[last_] * n_columns_;
    };
    while (merged_ > 0 && outputs_[merged_].hi - outputs_[merged_].lo == axes_[merged_].out &&
           contiguous(p_.x) && contiguous(p_.extra_array)) {
      const int64_t more = max(0, outputs_[merged_ - 1].hi - outputs_[merged_ - 1].lo);
      if (n_columns_ * more * p_.channels > capacity_) break;
      n_columns_ *= more;
      --merged_;
    }
    n_rows_ = 1;
    for (int a = 0; a < merged_; ++a) n_rows_ *= max(0, outputs_[a].hi - outputs_[a].lo);
  }

  // Lists the rows of outputs from `first` on, without those whose windows are empty.
  void fill_rows(int64_t first) {
    if (first == first_row_) return;
    first_row_ = first;
    nonempty_rows_ = 0;
    OutputRow begin{0, 0, -begin_};
    for (int a = merged_; a <= last_; ++a) {
      begin.grad += outputs_[a].lo * p_.x.pooled[a];
      begin.offset += outputs_[a].lo * p_.extra_array.pooled[a];
    }
    for (int64_t r = first, end = min(n_rows_, first + row_capacity_); r < end; ++r) {
      OutputRow row = begin;
      bool empty = false;
      int64_t rest = r;
      for (int a = merged_ - 1; a >= 0; --a) {
        const int64_t n = outputs_[a].hi - outputs_[a].lo, o = outputs_[a].lo + rest % n;
        rest /= n;
        row.grad += o * p_.x.pooled[a];
        row.offset += o * p_.extra_array.pooled[a];
        row.at += begin_of(axes_[a], o) * pitch_[a];
        empty |= is_empty(axes_[a], o);
      }
      if (!empty) rows_[nonempty_rows_++] = row;
    }
  }

  // Fills in the index of the first tap of every column, relative to that of the first column; `nowhere` for empty
  // windows. Returns the index of the first column.
  int64_t fill_columns() {
    int64_t o[max_axes], begin = 0;
    for (int a = merged_; a <= last_; ++a) {
      o[a] = outputs_[a].lo;
      begin += begin_of(axes_[a], o[a]) * pitch_[a];
    }
    if (columns_filled_) return begin;
    columns_filled_ = true;
    const int64_t length = outputs_[last_].hi - outputs_[last_].lo;
    for (int64_t n = 0; n < n_columns_; n += length) {
      int64_t at = -begin;
      bool empty = false;
      for (int a = merged_; a < last_; ++a) {
        at += begin_of(axes_[a], o[a]) * pitch_[a];
        empty |= is_empty(axes_[a], o[a]);
      }
      fill_columns(o[last_], length, at, empty, n * p_.channels);
      for (int a = last_ - 1; a >= merged_; --a) {
        if (++o[a] < outputs_[a].hi) break;
        o[a] = outputs_[a].lo;
      }
    }
    return begin;
  }

  // Without a table, windows may exceed the range of Index.
  void fill_columns(int64_t o, int64_t count, int64_t at, bool empty, int64_t first) const {
    table_taps_ ? fill_columns(o, count, at, empty, columns_ + first)
                : fill_columns(o, count, at, empty, wide_columns_ + first);
  }

  template <class T> void fill_columns(int64_t o, int64_t count, int64_t at, bool empty, T* to) const {
    const Axis& axis = axes_[last_];
    for (int64_t end = o + count; o < end; ++o, to += p_.channels) {
      const bool empty_window = empty || is_empty(axis, o);
      const int64_t index = !empty_window    ? at + begin_of(axis, o) * p_.channels
                            : sizeof(T) == 8 ? far_nowhere
                                             : int64_t(nowhere);
      if (p_.channels == 1)
        *to = T(index);
      else
        in_vectors(p_.channels, [&](int64_t c) { to[c] = T(empty_window ? index : index + c); });
    }
  }

  // How gradients reach the result: added to sums, copied, or added and rounded at once.
  enum class Use { add, write, round };

  void box(int64_t plane) {
    char* y = plane_of(p_, p_.y, plane);
    for (int a = 0; a <= last_; ++a) y += inputs_[a].lo * p_.y.pooled[a];
    if (boxes_.direct) {
      std::memset(y, 0, size_t(elements_ * item_));
      return stored_as<V>(p_.y_type) ? each_row<Use::add>(plane, reinterpret_cast<V*>(y), y)
                                     : each_row<Use::write>(plane, nullptr, y);
    }
    // Where few elements of a box receive a gradient, rounds only their sums.
    if (boxes_.packed && item_ == 2 && n_rows_ * n_columns_ * p_.channels * sparse <= elements_) {
      std::memset(y, 0, size_t(elements_ * item_));
      return each_row<Use::round>(plane, sums_, y);
    }
    std::memset(sums_, 0, size_t(elements_) * sizeof(V));
    each_row<Use::add>(plane, sums_, y);
    const V* from = sums_;
    boxes_.packed ? store_(from, {y, item_, 1, elements_, 1}) : store(0, from, y);
  }

  template <Use use> void each_row(int64_t plane, V* sums, char* y) {
    p_.extra == Extra::offset8 ? each_row<use, std::uint8_t>(plane, sums, y)
                               : each_row<use, std::uint32_t>(plane, sums, y);
  }

  template <Use use, class Offset> void each_row(int64_t plane, V* sums, char* y) {
    char *const grads = plane_of(p_, p_.x, plane), *const offsets = plane_of(p_, p_.extra_array, plane);
    for (int64_t r = 0; r < n_rows_ && n_columns_ > 0; r += row_capacity_) {
      fill_rows(r);
      const int64_t at = fill_columns();
      for (int64_t k = 0; k < nonempty_rows_; ++k) {
        locate(without_gaps(offsets + rows_[k].offset, p_.extra_array, n_columns_,
                            reinterpret_cast<Offset*>(offsets_)),
               n_columns_ * p_.channels, rows_[k].at + at);
        scatter<use>(grads + rows_[k].grad, n_columns_, sums, y);
      }
    }
  }

  // The elements of a row without gaps: in place, or a copy.
  template <class T> const T* without_gaps(char* from, const Array& array, int64_t count, T* copy) const {
    const Row row{from, array.pooled[last_], array.channel, count, p_.channels};
    if (row.is_contiguous(sizeof(T))) return reinterpret_cast<const T*>(from);
    each<T>(row, [copy](T& x, int64_t j) { copy[j] = x; });
    return copy;
  }

  // Computes the indices in the box to which n outputs add, given the index of the row's first tap; -1 outside the
  // box.
  template <class Offset> void locate(const Offset* offsets, int64_t n, int64_t base) const {
    const std::uint64_t elements = std::uint64_t(elements_), end = std::uint64_t(table_taps_);
    const Index *const columns = columns_, *const table = table_;
    Index* const indices = indices_;
    const auto inside = [=](int64_t index) {
      return std::uint64_t(index) < elements ? Index(index) : Index(-1);
    };
    int64_t j = 0;
    if (!table_taps_) {
      for (; j < n; ++j) indices[j] = inside(base + wide_columns_[j] + tap_distance(offsets[j]));
      return;
    }
    const Index from = Index(max(-nowhere, min(base, nowhere)));
#if defined(__AVX512VL__)
    using Offsets = Vec<std::uint32_t, L>;
    const bool small_table = table_taps_ < 2 * L;  // two vectors hold it, with an entry for no tap
    const Indices low = read<Index, L>(table), high = read<Index, L>(table + L);
    for (; j + L <= n; j += L) {
      Offsets offset = widened<std::uint32_t, L>(offsets + j);
      offset = offset < std::uint32_t(end) ? offset : Offsets{} + std::uint32_t(end);
      const Indices tap = reinterpret_cast<Indices>(offset),
                    index = (small_table ? permuted(low, high, tap) : gathered(table, tap)) +
                            read<Index, L>(columns + j) + from;
      const auto outside = reinterpret_cast<Offsets>(index) >= std::uint32_t(elements);
      write(indices + j, index | reinterpret_cast<Indices>(outside));
    }
#endif
    for (; j < n; ++j) {
      const std::uint64_t offset = offsets[j];
      indices[j] = inside(int64_t(from) + columns[j] + table[offset < end ? offset : end]);
    }
  }

  // The distance of a tap from the window's first one; far_nowhere for offsets outside the window.
  int64_t tap_distance(std::uint32_t offset) const {
    int64_t at = 0;
    for (int a = last_; a > 0; --a) {
      const std::uint32_t kernel = std::uint32_t(axes_[a].kernel), rest = offset / kernel;
      at += int64_t(offset - rest * kernel) * axes_[a].step * pitch_[a];
      offset = rest;
    }
    return offset < std::uint64_t(axes_[0].kernel) ? at + offset * axes_[0].step * pitch_[0] : far_nowhere;
  }

  // Adds (or copies) a row of gradients to the located indices.
  template <Use use> void scatter(char* from, int64_t count, V* sums, char* y) const {
    const Index* const indices = indices_;
    const auto each_index = [n = count * p_.channels, indices](auto&& f) __attribute__((always_inline)) {
      for (int64_t j = 0; j < n; ++j)
        if (indices[j] >= 0) f(indices[j], j);
    };
    if constexpr (use == Use::write) {  // as bits; zeros become +0, as a sum would be
      using Bits = std::uint16_t;
      const Bits* const grads = without_gaps(from, p_.x, count, reinterpret_cast<Bits*>(grads_));
      Bits* const to = reinterpret_cast<Bits*>(y);
      each_index([=](Index at, int64_t j) { to[at] = Bits(grads[j] << 1) ? grads[j] : Bits(0); });
    } else {
      const V* grads = grads_;
      if (stored_as<V>(p_.x_type))
        grads = without_gaps(from, p_.x, count, grads_);
      else
        load_({from, p_.x.pooled[last_], p_.x.channel, count, p_.channels}, grads_);
      if constexpr (use == Use::add)
        each_index([=](Index at, int64_t j) { sums[at] += grads[j]; });
      else if (p_.y_type == Dtype::f16)
        each_index(
            [=](Index at, int64_t j) { add_rounded(grads[j], sums[at], reinterpret_cast<f16*>(y)[at]); });
      else
        each_index(
            [=](Index at, int64_t j) { add_rounded(grads[j], sums[at], reinterpret_cast<bf16*>(y)[at]); });
    }
  }

  // A sum starts where the result is still zero. A sum that has returned to zero may start again: sums of halves
  // are multiples of the smallest half, so that only zero rounds to zero.
  template <class S> static void add_rounded(V grad, V& sum, S& to) {
    std::uint16_t bits;
    static_assert(sizeof to == sizeof bits);
    __builtin_memcpy(&bits, &to, sizeof bits);
    sum = (bits ? sum : V(0)) + grad;
    to = store_as<S>(sum);
  }

  // Stores the sums of a box in a result with gaps.
  void store(int a, const V*& sums, char* y) const {
    const int64_t n = inputs_[a].hi - inputs_[a].lo;
    if (a < last_) {
      for (int64_t i = 0; i < n; ++i) store(a + 1, sums, y + i * p_.y.pooled[a]);
    } else {
      store_(sums, {y, p_.y.pooled[a], p_.y.channel, n, p_.channels});
      sums += n * p_.channels;
    }
  }

  const Problem& p_;
  const Boxes boxes_;
  const int last_;
  const Load<V> load_;
  const Store<V> store_;
  const int64_t item_;                           // bytes of a gradient, input or output
  bool columns_filled_ = false;                  // columns_ belongs to this box
  bool tables_ = false;                          // planes have their own windows
  int64_t table_taps_ = 0;                       // taps in the table; 0: no table
  int64_t row_capacity_, capacity_;              // rows, and elements of a row, per pass
  int64_t box_ = -1, elements_ = 0, begin_ = 0;  // the index at which the box begins in its plane
  int merged_ = 0;                               // the first axis that is merged into a row
  int64_t n_rows_ = 0, n_columns_ = 0, nonempty_rows_ = 0, first_row_ = -1;
  Axis axes_[max_axes];
  int64_t pitch_[max_axes];                     // in elements of a plane without gaps
  Range inputs_[max_axes], outputs_[max_axes];  // inputs of the box, outputs that reach it
  OutputRow* rows_;
  Index *columns_, *table_, *indices_;
  int64_t* wide_columns_;
  V *grads_, *sums_;
  std::uint32_t* offsets_;  // a copy
};

}  // namespace
}  // namespace ndpool

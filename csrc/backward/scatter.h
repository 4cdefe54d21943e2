// The backward of max and min for any window, by scattering: each output adds its gradient to the input that its offset
// stands for, so that the cost is one addition per output, whatever the window. Outputs come in rising order, so each input
// adds up in PyTorch's order to the bit.
// The input's gradient is made box by box. A box is a range of a plane, or of several planes, without gaps: one comparison
// tells whether an output adds there, and nothing is ever added outside. Sums are made in place, or in scratch where they
// are rounded or have gaps. Where windows share no input, gradients are written as they are.
#pragma once

#include "backward/bands.h"

namespace ndpool {
namespace {

// Gradients add up in V.
template <class V> class Scatter {
  using Place = std::int32_t;
  static constexpr int L = wide<Place>;
  using Places = Vec<Place, L>;
  static constexpr Place nowhere = 1 << 30;
  static constexpr int64_t far_away = int64_t(1) << 60;
  // Bytes of a box: what L2 holds, and the least that is worth a thread.
  static constexpr int64_t far = 256 * 1024, least_box = 8 * 1024;
  static constexpr int64_t few_units = 8, most_columns = 1 << 11, most_rows = 1 << 12;
  static constexpr int64_t largest_table = 1 << 12;  // taps
  static constexpr int64_t sparse = 16;              // elements for each output

public:
  static constexpr const char* engine = "max_backward_scatter";

  static void prepare(Problem& p) {
    fold_planes(p);
    const Boxes b(p);
    p.tile = b.tile;
    p.tiles = b.count;
    p.units = p.planes * b.count;
    char begin;  // only what is taken is of interest
    Scratch scratch(&begin);
    Scatter(p, scratch);
    p.scratch = scratch.take<char>(0) - &begin;
  }

  // A unit is a box of a plane; planes follow each other, then boxes.
  static void run(const Problem& p, int64_t begin, int64_t end, char* memory) {
    Scratch scratch(memory);
    Scatter work(p, scratch);
    work.fill_table();
    for (int64_t unit = begin; unit < end && !p.stopped(); ++unit) {
      work.enter(unit / p.planes, unit % p.planes);
      work.box(unit % p.planes);
    }
  }

private:
  // Planes as windows of one tap along an axis in front, so that a box may contain many small ones.
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

  // Inputs of a box: one index of the axes before `split`, `tile` of them along it, all behind it.
  struct Boxes {
    int split;
    int64_t tile, count, elements;
    bool shared = false;  // some inputs belong to several windows
    bool packed, direct;  // results have no gaps; sums are made in place

    explicit Boxes(const Problem& p) : split(p.n_axes - 1), packed(packed_planes(p)) {
      for (int a = 0; a < p.n_axes; ++a) shared |= most_covers(p.axes[a], p.planes) > 1;
      direct = packed && (stored_as<V>(p.y_type) || !shared);
      const int64_t item = direct ? size_of(p.y_type) : int64_t(sizeof(V)), limit = far / item;
      int64_t inner = p.lanes, outer = p.planes, outputs = p.lanes;
      while (split > 0 && inner * p.axes[split].size <= limit) {
        outputs *= p.axes[split].out;
        inner *= p.axes[split--].size;
      }
      for (int a = 0; a < split; ++a) outer *= p.axes[a].size;
      const Axis& axis = p.axes[split];
      const int64_t span = axis.regular() ? span_of(axis) : axis.kernel;
      // Not much less than a window, so that few outputs reach several boxes; of whole planes, all outputs at once.
      tile = most(limit / inner, least(4 * span, 4 * limit / inner));
      if (axis.kernel == 1 && outputs <= most_columns) tile = least(tile, most_columns / most(1, outputs));
      tile = most(1, least(axis.size, tile));
      while (tile > 2 * span && tile * inner * item > least_box &&
             outer * ceil_div(axis.size, tile) < few_units)
        tile = (tile + 1) / 2;
      count = outer / p.planes * ceil_div(axis.size, tile);
      elements = tile * inner;
    }
  };

  // A row of outputs: where it begins in both arrays, in bytes, and where its first taps begin in the box; they may lie
  // outside.
  struct OutputRow {
    int64_t grad, offset, at;
  };

  Scatter(const Problem& p, Scratch& scratch)
      : p_(p), boxes_(p), last_(p.n_axes - 1), load_(loader<V>(p.x_type, false)),
        store_(storer<V>(p.y_type, false)), item_(size_of(p.x_type)) {
    double taps = 1, outputs = double(p.planes) * double(p.lanes);
    int64_t rows = 1, columns = 1, row = 1, pitch = p.lanes, reach = 0;
    for (int a = last_; a >= 0; --a) {
      axes_[a] = p.axes[a];
      tables_ |= axes_[a].table_stride != 0;
      taps *= double(axes_[a].kernel);
      outputs *= double(axes_[a].out);
      if (a < last_) rows = least(most_rows, rows * most(1, axes_[a].out));
      columns = least(most_columns, columns * most(1, axes_[a].out));
      if (a == last_) row = most_outputs(axes_[a], boxes_.split == a ? boxes_.tile : axes_[a].size);
      pitch_[a] = pitch;
      pitch *= axes_[a].size;
      reach += (axes_[a].kernel - 1) * axes_[a].step * pitch_[a];
    }
    rows_room_ = rows;
    room_ = most(row, least(most_columns / p.lanes, columns)) * p.lanes;
    // A table of all taps, if they are so few that it is faster than divisions.
    if (taps <= double(largest_table) && taps <= 256 + outputs && reach < nowhere / 2) codes_ = int64_t(taps);
    rows_ = scratch.take<OutputRow>(rows_room_);
    columns_ = scratch.take<Place>(codes_ ? room_ : 0);
    far_columns_ = scratch.take<int64_t>(codes_ ? 0 : room_);
    table_ = scratch.take<Place>(most(codes_ + 1, 2 * L));
    places_ = scratch.take<Place>(room_ + L);
    grads_ = scratch.take<V>(room_);
    offsets_ = scratch.take<std::uint32_t>(room_);
    sums_ = scratch.take<V>(boxes_.direct ? 0 : boxes_.elements);
  }

  // How far each tap of a window stands from its first one.
  void fill_table() {
    if (codes_ == 0) return;
    int64_t tap[max_axes] = {}, at = 0;
    for (int64_t code = codes_; code < most(codes_ + 1, 2 * L); ++code) table_[code] = nowhere;
    for (int64_t code = 0; code < codes_; ++code) {
      table_[code] = Place(at);
      for (int a = last_; a >= 0; --a) {
        at += axes_[a].step * pitch_[a];
        if (++tap[a] < axes_[a].kernel) break;
        at -= tap[a] * axes_[a].step * pitch_[a];
        tap[a] = 0;
      }
    }
  }

  // To another box, or to a plane that has windows of its own.
  void enter(int64_t box, int64_t plane) {
    if (box == box_ && !tables_) return;
    box_ = box;
    const int64_t tiles = ceil_div(axes_[boxes_.split].size, p_.tile);
    int64_t rest = box / tiles;
    begin_ = 0;
    Range before[max_axes];
    for (int a = last_; a >= 0; --a) {
      before[a] = outs_[a];
      Axis& axis = axes_[a];
      own_[a] = {0, axis.size};
      if (a == boxes_.split) {
        own_[a].lo = box % tiles * p_.tile;
        own_[a].hi = least(axis.size, own_[a].lo + p_.tile);
      } else if (a < boxes_.split) {
        own_[a] = {rest % axis.size, rest % axis.size + 1};
        rest /= axis.size;
      }
      if (axis.table_stride) {
        axis.starts = p_.axes[a].starts + plane * axis.table_stride;
        axis.counts = p_.axes[a].counts + plane * axis.table_stride;
      }
      begin_ += own_[a].lo * pitch_[a];
      outs_[a] = {Cover(axis, own_[a].lo).lo, Cover(axis, own_[a].hi - 1).hi};
    }
    elements_ = (own_[boxes_.split].hi - own_[boxes_.split].lo) * pitch_[boxes_.split];
    first_row_ = -1;
    const int merged = merged_;
    merge_axes();
    // The columns of the box before still hold if only its rows or its planes were others.
    bool same = merged == merged_ && !tables_;
    for (int a = merged_; a <= last_; ++a) {
      const int64_t n = outs_[a].hi - outs_[a].lo, n_before = before[a].hi - before[a].lo;
      same &= axis_of_planes(axes_[a]) ? n <= n_before : outs_[a].lo == before[a].lo && n == n_before;
    }
    filled_ &= same;
  }

  // Each of its elements has a window of its own.
  static bool axis_of_planes(const Axis& a) {
    return a.regular() && a.kernel == 1 && a.stride == 1 && a.origin == 0 && a.size == a.out;
  }

  // The last axes whose outputs follow each other in memory, if they are not too many, count as one row.
  void merge_axes() {
    merged_ = last_;
    n_columns_ = most(0, outs_[last_].hi - outs_[last_].lo);
    const auto follows = [&](const Array& array) {
      return array.pooled[merged_ - 1] == array.pooled[last_] * n_columns_;
    };
    while (merged_ > 0 && outs_[merged_].hi - outs_[merged_].lo == axes_[merged_].out && follows(p_.x) &&
           follows(p_.extra_array)) {
      const int64_t more = most(0, outs_[merged_ - 1].hi - outs_[merged_ - 1].lo);
      if (n_columns_ * more * p_.lanes > room_) break;
      n_columns_ *= more;
      --merged_;
    }
    n_rows_ = 1;
    for (int a = 0; a < merged_; ++a) n_rows_ *= most(0, outs_[a].hi - outs_[a].lo);
  }

  // Rows of outputs from `first` on; those whose windows are empty are left out.
  void fill_rows(int64_t first) {
    if (first == first_row_) return;
    first_row_ = first;
    kept_rows_ = 0;
    OutputRow begin{0, 0, -begin_};
    for (int a = merged_; a <= last_; ++a) {
      begin.grad += outs_[a].lo * p_.x.pooled[a];
      begin.offset += outs_[a].lo * p_.extra_array.pooled[a];
    }
    for (int64_t r = first, end = least(n_rows_, first + rows_room_); r < end; ++r) {
      OutputRow row = begin;
      bool none = false;
      int64_t rest = r;
      for (int a = merged_ - 1; a >= 0; --a) {
        const int64_t n = outs_[a].hi - outs_[a].lo, o = outs_[a].lo + rest % n;
        rest /= n;
        row.grad += o * p_.x.pooled[a];
        row.offset += o * p_.extra_array.pooled[a];
        row.at += begin_of(axes_[a], o) * pitch_[a];
        none |= is_empty(axes_[a], o);
      }
      if (!none) rows_[kept_rows_++] = row;
    }
  }

  // Fills in where the first tap of every column stands in its row, counted from that of the first column, or nowhere if a
  // window is empty. Returns where the first column's stands.
  int64_t fill_columns() {
    int64_t o[max_axes], begin = 0;
    for (int a = merged_; a <= last_; ++a) {
      o[a] = outs_[a].lo;
      begin += begin_of(axes_[a], o[a]) * pitch_[a];
    }
    if (filled_) return begin;
    filled_ = true;
    const int64_t length = outs_[last_].hi - outs_[last_].lo;
    for (int64_t n = 0; n < n_columns_; n += length) {
      int64_t at = -begin;
      bool none = false;
      for (int a = merged_; a < last_; ++a) {
        at += begin_of(axes_[a], o[a]) * pitch_[a];
        none |= is_empty(axes_[a], o[a]);
      }
      fill_columns(o[last_], length, at, none, n * p_.lanes);
      for (int a = last_ - 1; a >= merged_; --a) {
        if (++o[a] < outs_[a].hi) break;
        o[a] = outs_[a].lo;
      }
    }
    return begin;
  }

  // Without a table, windows may be longer than a place can say.
  void fill_columns(int64_t o, int64_t count, int64_t at, bool none, int64_t first) const {
    codes_ ? fill_columns(o, count, at, none, columns_ + first)
           : fill_columns(o, count, at, none, far_columns_ + first);
  }

  template <class T> void fill_columns(int64_t o, int64_t count, int64_t at, bool none, T* to) const {
    const Axis& axis = axes_[last_];
    for (int64_t end = o + count; o < end; ++o, to += p_.lanes) {
      const bool nothing = none || is_empty(axis, o);
      const int64_t here = !nothing         ? at + begin_of(axis, o) * p_.lanes
                           : sizeof(T) == 8 ? far_away
                                            : int64_t(nowhere);
      if (p_.lanes == 1)
        *to = T(here);
      else
        in_vectors(p_.lanes, [&](int64_t c) { to[c] = T(nothing ? here : here + c); });
    }
  }

  // What becomes of the gradients of a row: they are added to sums, written as they are, or added and rounded at once.
  enum class Use { add, write, round };

  void box(int64_t plane) {
    char* y = plane_of(p_, p_.y, plane);
    for (int a = 0; a <= last_; ++a) y += own_[a].lo * p_.y.pooled[a];
    if (boxes_.direct) {
      std::memset(y, 0, size_t(elements_ * item_));
      return stored_as<V>(p_.y_type) ? each_row<Use::add>(plane, reinterpret_cast<V*>(y), y)
                                     : each_row<Use::write>(plane, nullptr, y);
    }
    // Where few elements of a box get a gradient, only their sums are made and rounded.
    if (boxes_.packed && item_ == 2 && n_rows_ * n_columns_ * p_.lanes * sparse <= elements_) {
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
    for (int64_t r = 0; r < n_rows_ && n_columns_ > 0; r += rows_room_) {
      fill_rows(r);
      const int64_t at = fill_columns();
      for (int64_t k = 0; k < kept_rows_; ++k) {
        find(without_gaps(offsets + rows_[k].offset, p_.extra_array, n_columns_,
                          reinterpret_cast<Offset*>(offsets_)),
             n_columns_ * p_.lanes, rows_[k].at + at);
        put<use>(grads + rows_[k].grad, n_columns_, sums, y);
      }
    }
  }

  // Elements of a row without gaps: in place, or a copy.
  template <class T> const T* without_gaps(char* from, const Array& array, int64_t count, T* copy) const {
    const Row row{from, array.pooled[last_], array.lane, count, p_.lanes};
    if (row.packed(sizeof(T))) return reinterpret_cast<const T*>(from);
    each<T>(row, [copy](T& x, int64_t j) { copy[j] = x; });
    return copy;
  }

  // Where n outputs add; their first taps stand at `base` and beyond. What lies outside the box becomes -1.
  template <class Offset> void find(const Offset* codes, int64_t n, int64_t base) const {
    const std::uint64_t elements = std::uint64_t(elements_), end = std::uint64_t(codes_);
    const Place *const columns = columns_, *const table = table_;
    Place* const places = places_;
    const auto inside = [=](int64_t place) {
      return std::uint64_t(place) < elements ? Place(place) : Place(-1);
    };
    int64_t j = 0;
    if (!codes_) {
      for (; j < n; ++j) places[j] = inside(base + far_columns_[j] + distance(codes[j]));
      return;
    }
    const Place from = Place(most(-nowhere, least(base, nowhere)));
#if defined(__AVX512VL__)
    using Codes = Vec<std::uint32_t, L>;
    const bool two = codes_ < 2 * L;  // vectors hold the table, and what stands for no tap
    const Places low = read<Place, L>(table), high = read<Place, L>(table + L);
    for (; j + L <= n; j += L) {
      Codes code = widened<std::uint32_t, L>(codes + j);
      code = code < std::uint32_t(end) ? code : Codes{} + std::uint32_t(end);
      const Places number = reinterpret_cast<Places>(code),
                   place = (two ? taken(low, high, number) : gathered(table, number)) +
                           read<Place, L>(columns + j) + from;
      const auto outside = reinterpret_cast<Codes>(place) >= std::uint32_t(elements);
      write(places + j, place | reinterpret_cast<Places>(outside));
    }
#endif
    for (; j < n; ++j) {
      const std::uint64_t code = codes[j];
      places[j] = inside(int64_t(from) + columns[j] + table[code < end ? code : end]);
    }
  }

  // How far a tap stands from the window's first one; far away where there is none.
  int64_t distance(std::uint32_t code) const {
    int64_t at = 0;
    for (int a = last_; a > 0; --a) {
      const std::uint32_t kernel = std::uint32_t(axes_[a].kernel), rest = code / kernel;
      at += int64_t(code - rest * kernel) * axes_[a].step * pitch_[a];
      code = rest;
    }
    return code < std::uint64_t(axes_[0].kernel) ? at + code * axes_[0].step * pitch_[0] : far_away;
  }

  // A row of gradients to the places that were found.
  template <Use use> void put(char* from, int64_t count, V* sums, char* y) const {
    const Place* const places = places_;
    const auto each_place = [n = count * p_.lanes, places](auto&& f) __attribute__((always_inline)) {
      for (int64_t j = 0; j < n; ++j)
        if (places[j] >= 0) f(places[j], j);
    };
    if constexpr (use == Use::write) {  // by their bits; of zeros the positive one, as a sum would be
      using Bits = std::uint16_t;
      const Bits* const grads = without_gaps(from, p_.x, count, reinterpret_cast<Bits*>(grads_));
      Bits* const to = reinterpret_cast<Bits*>(y);
      each_place([=](Place at, int64_t j) { to[at] = Bits(grads[j] << 1) ? grads[j] : Bits(0); });
    } else {
      const V* grads = grads_;
      if (stored_as<V>(p_.x_type))
        grads = without_gaps(from, p_.x, count, grads_);
      else
        load_({from, p_.x.pooled[last_], p_.x.lane, count, p_.lanes}, grads_);
      if constexpr (use == Use::add)
        each_place([=](Place at, int64_t j) { sums[at] += grads[j]; });
      else if (p_.y_type == Dtype::f16)
        each_place(
            [=](Place at, int64_t j) { add_rounded(grads[j], sums[at], reinterpret_cast<f16*>(y)[at]); });
      else
        each_place(
            [=](Place at, int64_t j) { add_rounded(grads[j], sums[at], reinterpret_cast<bf16*>(y)[at]); });
    }
  }

  // A sum begins where the result is still zero. One that has come to zero again may begin anew: sums of halves are multiples
  // of the smallest half, so that none but zero is rounded to zero.
  template <class S> static void add_rounded(V grad, V& sum, S& to) {
    std::uint16_t bits;
    static_assert(sizeof to == sizeof bits);
    __builtin_memcpy(&bits, &to, sizeof bits);
    sum = (bits ? sum : V(0)) + grad;
    to = store_as<S>(sum);
  }

  // The sums of a box to where they belong.
  void store(int a, const V*& sums, char* y) const {
    const int64_t n = own_[a].hi - own_[a].lo;
    if (a < last_) {
      for (int64_t i = 0; i < n; ++i) store(a + 1, sums, y + i * p_.y.pooled[a]);
    } else {
      store_(sums, {y, p_.y.pooled[a], p_.y.lane, n, p_.lanes});
      sums += n * p_.lanes;
    }
  }

  const Problem& p_;
  const Boxes boxes_;
  const int last_;
  const Load<V> load_;
  const Store<V> store_;
  const int64_t item_;                           // bytes of a gradient, on either side
  bool filled_ = false;                          // columns
  bool tables_ = false;                          // planes have windows of their own
  int64_t codes_ = 0;                            // taps in the table; 0: there is none
  int64_t rows_room_, room_;                     // rows, and elements of a row, at a time
  int64_t box_ = -1, elements_ = 0, begin_ = 0;  // where in its plane the box begins
  int merged_ = 0;                               // the first of the axes that count as one row
  int64_t n_rows_ = 0, n_columns_ = 0, kept_rows_ = 0, first_row_ = -1;
  Axis axes_[max_axes];
  int64_t pitch_[max_axes];               // elements, in a plane without gaps
  Range own_[max_axes], outs_[max_axes];  // inputs of the box, outputs that reach it
  OutputRow* rows_;
  Place *columns_, *table_, *places_;
  int64_t* far_columns_;
  V *grads_, *sums_;
  std::uint32_t* offsets_;  // a copy
};

}  // namespace
}  // namespace ndpool

// The backward of max and min for any window, by scattering: each output adds its gradient to the input that its offset
// stands for, so that the cost is one addition per output, whatever the window. The input's gradient is made box by box,
// small enough for the nearest caches; where the outputs that reach a box add is found a vector of offsets at a time.
// Outputs come in rising order, so each input adds up in PyTorch's order to the bit. An offset that stands for no tap
// inside the input adds nothing. Where windows share no input, gradients are written as they are.
#pragma once

#include "backward/bands.h"

namespace ndpool {
namespace {

// Gradients add up in V.
template <class V> class Scatter {
  using Place = std::uint32_t;
  static constexpr int L = wide<Place>;
  using Places = Vec<Place, L>;
  static constexpr Place nowhere = ~Place(0);
  static constexpr int64_t most_outputs = 1 << 14;  // whose places are found at a time
  static constexpr int64_t box_size = 1 << 14, largest_box = 1 << 17, least_box = 1 << 11;  // elements
  static constexpr int64_t least_units = 8;
  static constexpr int64_t least_row = 16, long_row = 128;  // outputs of a row that is scattered for itself

public:
  static constexpr const char* engine = "max_backward_scatter";

  static void prepare(Problem& p) {
    fold_planes(p);
    p.tile = boxes(p).tile;
    p.tiles = boxes(p).count;
    p.units = p.planes * p.tiles;
    char begin;  // only what is taken is of interest
    Scratch scratch(&begin);
    Scatter(p, scratch);
    p.scratch = scratch.take<char>(0) - &begin;
  }

  // A unit is a box of a plane; planes follow each other, then boxes.
  static void run(const Problem& p, int64_t begin, int64_t end, char* memory) {
    Scratch scratch(memory);
    Scatter work(p, scratch);
    for (int64_t unit = begin; unit < end && !p.stopped(); ++unit) {
      work.enter(unit / p.planes, unit % p.planes);
      work.box(unit % p.planes);
    }
  }

private:
  // Inputs of a box: one index of the axes before `split`, `tile` of them along it, all behind it.
  struct Boxes {
    int split;
    int64_t tile, count;
  };

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

  // Whether an input may belong to several windows.
  static bool shared(const Problem& p) {
    bool found = false;
    for (int a = 0; a < p.n_axes; ++a) found |= most_covers(p.axes[a], p.planes) > 1;
    return found;
  }

  // Whether sums may be made where they belong: nothing is rounded in between, and the box has no gaps.
  static bool direct(const Problem& p) { return (stored_as<V>(p.y_type) || !shared(p)) && packed_planes(p); }

  // Each of its elements has a window of its own.
  static bool axis_of_planes(const Axis& a) {
    return a.regular() && a.kernel == 1 && a.stride == 1 && a.origin == 0 && a.size == a.out;
  }

  static Boxes boxes(const Problem& p) {
    int64_t inner = p.lanes, outer = p.planes, outputs = p.lanes;
    int split = p.n_axes - 1;
    while (split > 0 && inner * p.axes[split].size <= box_size) {
      outputs *= p.axes[split].out;
      inner *= p.axes[split--].size;
    }
    for (int a = 0; a < split; ++a) outer *= p.axes[a].size;
    const Axis& axis = p.axes[split];
    // Not much less than a window, so that few outputs reach several boxes; of whole planes, all outputs at once.
    int64_t tile = most(box_size / inner, least(4 * axis.kernel * axis.step, largest_box / inner));
    if (axis.kernel == 1) tile = least(tile, most_outputs / most(1, outputs));
    tile = most(1, least(axis.size, tile));
    while (tile > 2 * axis.kernel * axis.step && tile * inner > least_box &&
           outer * ceil_div(axis.size, tile) < least_units)
      tile = (tile + 1) / 2;
    return {split, tile, outer / p.planes * ceil_div(axis.size, tile)};
  }

  Scatter(const Problem& p, Scratch& scratch)
      : p_(p), last_(p.n_axes - 1), split_(boxes(p).split), direct_(direct(p)), adds_(!direct_ || shared(p)),
        packed_(packed_planes(p)), folded_(axis_of_planes(p.axes[0])), load_(loader<V>(p.x_type, false)),
        store_(storer<V>(p.y_type, false)), item_(size_of(p.x_type)),
        offset_item_(p.extra == Extra::offset8 ? 1 : 4),
        readable_(p, p.extra_array, offset_item_, Over::outputs) {
    int64_t outputs = p.lanes, elements = p.lanes * p.tile;
    for (int a = 0; a < p.n_axes; ++a) {
      axes_[a] = p.axes[a];
      tables_ |= axes_[a].table_stride != 0;
      outputs = least(most_outputs, outputs * most(1, axes_[a].out));
      codes_ *= std::uint64_t(axes_[a].kernel);
      if (a > split_) elements *= axes_[a].size;
    }
    for (int a = 0; a < p.n_axes; ++a) {
      const auto kernel = std::uint64_t(axes_[a].kernel);
      // A product with the inverse is the quotient of all codes if they are small enough.
      inverse_[a] = kernel > 1 && codes_ * kernel < 1ull << 32 ? Place((1ull << 32) / kernel + 1) : 0;
    }
    room_ = most(p.lanes, outputs);
    at_ = scratch.take<Place>(room_ + L);
    column_at_ = scratch.take<Place>(room_ + L);
    column_lead_ = scratch.take<Place>(room_ + L);
    column_taps_ = scratch.take<Place>(room_ + L);
    for (int a = 0; a < p.n_axes; ++a) {
      if (a < last_ && axes_[a].kernel == 1) continue;
      lead_[a] = scratch.take<Place>(room_ + L);
      taps_[a] = scratch.take<Place>(room_ + L);
    }
    places_ = scratch.take<Place>(room_ + L);
    offsets_ = scratch.take<Place>(room_ + L);
    grads_ = scratch.take<V>(room_);
    if (!direct_) sums_ = scratch.take<V>(elements);
  }

  // To another box, or to a plane that has windows of its own.
  void enter(int64_t box, int64_t plane) {
    if (box == box_ && !tables_) return;
    box_ = box;
    // Other planes of the same number have the same windows.
    const int64_t planes = to_[0] - from_[0];
    const int64_t tiles = ceil_div(axes_[split_].size, p_.tile);
    int64_t rest = box / tiles, pitch = p_.lanes;
    rows_ = 1;
    for (int a = last_; a >= 0; --a) {
      Axis& axis = axes_[a];
      from_[a] = 0;
      to_[a] = axis.size;
      if (a == split_) {
        from_[a] = box % tiles * p_.tile;
        to_[a] = least(axis.size, from_[a] + p_.tile);
      } else if (a < split_) {
        from_[a] = rest % axis.size;
        to_[a] = from_[a] + 1;
        rest /= axis.size;
      }
      if (axis.table_stride) {
        axis.starts = p_.axes[a].starts + plane * axis.table_stride;
        axis.counts = p_.axes[a].counts + plane * axis.table_stride;
      }
      pitch_[a] = pitch;
      pitch *= to_[a] - from_[a];
      outs_[a] = {Cover(axis, from_[a]).lo, Cover(axis, to_[a] - 1).hi};
      if (a < last_) rows_ *= most(0, outs_[a].hi - outs_[a].lo);
    }
    elements_ = pitch;
    laid_out_ &= folded_ && split_ == 0 && to_[0] - from_[0] <= planes;
    columns_ = most(0, outs_[last_].hi - outs_[last_].lo);
    plane_rows_ = last_ ? rows_ / most(1, outs_[0].hi - outs_[0].lo) : 1;
  }

  void box(int64_t plane) {
    char* y = plane_of(p_, p_.y, plane);
    for (int a = 0; a <= last_; ++a) y += from_[a] * p_.y.pooled[a];
    if (direct_ || sparse()) {
      std::memset(y, 0, size_t(elements_ * item_));
      direct_ ? add(plane, y) : add(plane, sums_, y);
    } else {
      std::memset(sums_, 0, size_t(elements_) * sizeof(V));
      add(plane, sums_);
      const V* sums = sums_;
      packed_ ? store_(sums, {y, item_, 1, elements_, 1}) : store(0, sums, y);
    }
  }

  // Whether hardly any element of a box gets a gradient, so that only their sums are made elsewhere and rounded: those of
  // halves, and of outputs that are found all at once.
  bool sparse() const {
    const int64_t outputs = rows_ * columns_ * p_.lanes;
    return packed_ && item_ == 2 && outputs <= room_ && outputs * 48 <= elements_;
  }

  // The gradients of all outputs that reach the box to `sums`, elements of V or, where the results are made directly, of
  // their type. Where there are results as well, the sums that were touched go there.
  void add(int64_t plane, void* sums, char* results = nullptr) {
    if (rows_ == 0 || columns_ == 0) return;
    const int64_t columns = least(columns_, most(1, room_ / p_.lanes)), row = columns_ * p_.lanes;
    // Places that are found at once can be found again for other planes.
    if (!results && row >= (folded_ && split_ == 0 ? long_row : least_row))
      return add_rows(plane, columns, sums);
    int64_t rows = columns < columns_ ? 1 : most(1, room_ / (columns_ * p_.lanes));
    if (rows > plane_rows_) rows -= rows % plane_rows_;
    for (int64_t r = 0; r < rows_; r += rows)
      for (int64_t c = 0; c < columns_; c += columns) {
        const Part part{r, least(rows_, r + rows), c, least(columns_, c + columns)};
        if (!laid_out_) lay_out(part);
        laid_out_ = rows >= rows_ && columns == columns_;
        add(part, plane, sums, results);
      }
  }

  // Some of the outputs that reach the box: rows and columns of them.
  struct Part {
    int64_t row, row_end, column, column_end;
  };

  // Row r of the outputs that reach the box, along the outer axes.
  void find_row(int64_t r, int64_t* o) const {
    for (int a = last_ - 1; a >= 0; --a) {
      const int64_t n = outs_[a].hi - outs_[a].lo;
      o[a] = outs_[a].lo + r % n;
      r /= n;
    }
  }

  // Where the first nominal taps of some outputs of a row stand in the box, and which of their taps stand in it.
  void lay_out_columns(int64_t column, int64_t end) {
    const Axis& axis = axes_[last_];
    const int64_t from = from_[last_], size = to_[last_] - from, first = outs_[last_].lo + column;
    if (axis.regular() && axis.step == 1 && p_.lanes == 1 && axis.kernel < 1 << 29 && axis.stride < 1 << 14) {
      const auto begin = std::int32_t(begin_of(axis, first) - from), stride = std::int32_t(axis.stride),
                 kernel = std::int32_t(axis.kernel), after = std::int32_t(size);
      in_vectors(end - column, [&, at = column_at_, lead = column_lead_, taps = column_taps_](int64_t j) {
        const std::int32_t x = begin + std::int32_t(j) * stride, start = x > 0 ? x : 0;
        const std::int32_t stop = x + kernel < after ? x + kernel : after;
        at[j] = Place(x);
        lead[j] = Place(start - x < kernel ? start - x : kernel - 1);
        taps[j] = Place(stop > start ? stop - start : 0);
      });
      return;
    }
    for (int64_t c = column, n = 0; c < end; ++c) {
      const int64_t o = outs_[last_].lo + c;
      const Window w = window(axis, o, from, to_[last_]);
      const int64_t at = (begin_of(axis, o) - from) * p_.lanes;
      in_vectors(p_.lanes, [&, to = column_at_ + n](int64_t lane) { to[lane] = Place(at + lane); });
      fill(column_lead_ + n, p_.lanes, Place(w.lead));
      fill(column_taps_ + n, p_.lanes, Place(w.taps));
      n += p_.lanes;
    }
  }

  // Row by row: each stands at one place of the outer axes, and all have the same columns.
  void add_rows(int64_t plane, int64_t columns, void* sums) {
    const char *grad = plane_of(p_, p_.x, plane) + outs_[last_].lo * p_.x.pooled[last_],
               *offset = plane_of(p_, p_.extra_array, plane) + outs_[last_].lo * p_.extra_array.pooled[last_];
    for (int a = 0; a < last_; ++a) {
      grad += outs_[a].lo * p_.x.pooled[a];
      offset += outs_[a].lo * p_.extra_array.pooled[a];
    }
    int64_t index[max_axes] = {};
    for (int a = 0; a >= 0;) {
      RowPlace row;
      bool reaches = true;
      for (int b = 0; b < last_; ++b) {
        const int64_t o = outs_[b].lo + index[b];
        const Window w = window(axes_[b], o, from_[b], to_[b]);
        row.at += Place((begin_of(axes_[b], o) - from_[b]) * pitch_[b]);
        row.lead[b] = Place(w.lead);
        row.taps[b] = Place(w.taps);
        reaches &= w.taps > 0;
      }
      for (int64_t c = 0; reaches && c < columns_; c += columns) {
        const int64_t end = least(columns_, c + columns);
        if (!laid_out_) lay_out_columns(c, end);
        laid_out_ = columns == columns_;
        const char *grads = grad + c * p_.x.pooled[last_],
                   *offsets = offset + c * p_.extra_array.pooled[last_];
        offset_item_ == 1 ? add_row<std::uint8_t>(row, grads, offsets, end - c, sums)
                          : add_row<std::int32_t>(row, grads, offsets, end - c, sums);
      }
      for (a = last_ - 1; a >= 0; --a) {
        grad += p_.x.pooled[a];
        offset += p_.extra_array.pooled[a];
        if (++index[a] < outs_[a].hi - outs_[a].lo) break;
        grad -= index[a] * p_.x.pooled[a];
        offset -= index[a] * p_.extra_array.pooled[a];
        index[a] = 0;
      }
    }
  }

  struct RowPlace {
    Place at = 0, lead[max_axes], taps[max_axes];  // in the box, and along the outer axes
  };

  template <class Offset>
  void add_row(const RowPlace& row, const char* grad, const char* offset, int64_t columns, void* sums) {
    const int64_t n = columns * p_.lanes;
    const Row grads{const_cast<char*>(grad), p_.x.pooled[last_], p_.x.lane, columns, p_.lanes},
        extra{const_cast<char*>(offset), p_.extra_array.pooled[last_], p_.extra_array.lane, columns,
              p_.lanes};
    const Offset* offsets = reinterpret_cast<const Offset*>(offset);
    if (!extra.packed(sizeof(Offset)) || !readable_.holds(offsets, whole_vectors<Place>(n))) {
      Offset* const copy = reinterpret_cast<Offset*>(offsets_);
      each<Offset>(extra, [copy](Offset& o, int64_t j) { copy[j] = o; });
      offsets = copy;
    }
    find(offsets, n, column_at_, row.at, [&](int a, int64_t j, Places tap) __attribute__((always_inline)) {
      if (a < last_) return tap - row.lead[a] < Places{} + row.taps[a];
      return tap - read<Place, L>(column_lead_ + j) < read<Place, L>(column_taps_ + j);
    });
    if (!adds_)
      return item_ == 2 ? place_row<std::uint16_t>(grads, sums) : place_row<UnsignedLike<V>>(grads, sums);
    const V* from = reinterpret_cast<const V*>(grad);
    if (!stored_as<V>(p_.x_type) || !grads.packed(sizeof(V))) {
      load_(grads, grads_);
      from = grads_;
    }
    V* const to = static_cast<V*>(sums);
    for (int64_t j = 0; j < n; ++j)
      if (places_[j] != nowhere) to[places_[j]] += from[j];
  }

  // Gradients as they are to where they belong, by their bits; of zeros the positive one, as a sum would be.
  template <class Bits> void place_row(const Row& grads, void* results) const {
    each<const Bits>(grads, [&, to = static_cast<Bits*>(results)](const Bits& grad, int64_t j) {
      if (places_[j] != nowhere) to[places_[j]] = Bits(grad << 1) ? grad : Bits(0);
    });
  }

  // For each output: where its first nominal tap stands in the box, and which taps of each axis stand in it.
  void lay_out(const Part& part) {
    const int64_t n = (part.column_end - part.column) * p_.lanes;
    lay_out_columns(part.column, part.column_end);
    int64_t o[max_axes];
    for (int64_t r = part.row, j = 0; r < part.row_end; ++r, j += n) {
      find_row(r, o);
      int64_t at = 0;
      bool reaches = true;
      for (int a = 0; a < last_; ++a) {
        const Window w = window(axes_[a], o[a], from_[a], to_[a]);
        at += (begin_of(axes_[a], o[a]) - from_[a]) * pitch_[a];
        reaches &= w.taps > 0;
        if (axes_[a].kernel == 1) continue;
        fill(lead_[a] + j, n, Place(w.lead));
        fill(taps_[a] + j, n, Place(w.taps));
      }
      Place* __restrict to = at_ + j;
      in_vectors(n, [&](int64_t k) { to[k] = column_at_[k] + Place(at); });
      std::memcpy(lead_[last_] + j, column_lead_, size_t(n) * sizeof(Place));
      if (reaches)
        std::memcpy(taps_[last_] + j, column_taps_, size_t(n) * sizeof(Place));
      else
        fill(taps_[last_] + j, n, 0);
    }
  }

  static void fill(Place* to, int64_t n, Place value) {
    in_vectors(n, [&](int64_t j) { to[j] = value; });
  }

  void add(const Part& part, int64_t plane, void* sums, char* results) {
    const int64_t rows = part.row_end - part.row, n = rows * (part.column_end - part.column) * p_.lanes;
    if (offset_item_ == 1)
      find_by<std::uint8_t>(part, plane, n);
    else
      find_by<std::int32_t>(part, plane, n);
    const char* first = first_of(part, p_.x, plane);
    const bool in_order = in_a_row(part, p_.x, item_);
    if (!adds_) {
      if (item_ == 2) return place_all<std::uint16_t>(part, n, plane, in_order ? first : nullptr, sums);
      return place_all<UnsignedLike<V>>(part, n, plane, in_order ? first : nullptr, sums);
    }
    const V* grads = grads_;
    if (!in_order)
      each_row(part, p_.x, plane, [&, to = grads_](const Row& row) mutable {
        load_(row, to);
        to += row.n * row.lanes;
      });
    else if (stored_as<V>(p_.x_type))
      grads = reinterpret_cast<const V*>(first);
    else
      load_({const_cast<char*>(first), item_, 1, n, 1}, grads_);
    V* const to = static_cast<V*>(sums);
    if (results)
      for (int64_t j = 0; j < n; ++j)
        if (places_[j] != nowhere) to[places_[j]] = V(0);
    add_all(part, n, grads, to);
    if constexpr (std::is_same_v<V, float>)
      if (results) p_.y_type == Dtype::f16 ? round_all<f16>(n, to, results) : round_all<bf16>(n, to, results);
  }

  template <class S> void round_all(int64_t n, const V* sums, char* results) const {
    for (int64_t j = 0; j < n; ++j)
      if (places_[j] != nowhere) reinterpret_cast<S*>(results)[places_[j]] = store_as<S>(sums[places_[j]]);
  }

  // Gradients as they are to where they belong, by their bits; of zeros the positive one, as a sum would be. Null where
  // they have gaps.
  template <class Bits>
  void place_all(const Part& part, int64_t n, int64_t plane, const char* grads, void* results) const {
    if (!grads) {
      each_row(part, p_.x, plane, [&, to = reinterpret_cast<Bits*>(grads_)](const Row& row) mutable {
        each<Bits>(row, [to](Bits& grad, int64_t j) { to[j] = grad; });
        to += row.n * row.lanes;
      });
      grads = reinterpret_cast<const char*>(grads_);
    }
    const Bits* const from = reinterpret_cast<const Bits*>(grads);
    Bits* const to = static_cast<Bits*>(results);
    for (int64_t j = 0; j < n; ++j)
      if (places_[j] != nowhere) to[places_[j]] = Bits(from[j] << 1) ? from[j] : Bits(0);
  }

  // Finds where the outputs of a part add.
  template <class Offset> void find_by(const Part& part, int64_t plane, int64_t n) const {
    const char* extra = first_of(part, p_.extra_array, plane);
    if (!in_a_row(part, p_.extra_array, offset_item_) || !readable_.holds(extra, (n + L) * offset_item_)) {
      Offset* copy = reinterpret_cast<Offset*>(offsets_);
      each_row(part, p_.extra_array, plane, [&, to = copy](const Row& row) mutable {
        each<Offset>(row, [to](Offset& offset, int64_t j) { to[j] = offset; });
        to += row.n * row.lanes;
      });
      extra = reinterpret_cast<const char*>(copy);
    }
    find(reinterpret_cast<const Offset*>(extra), n, at_, 0,
         [this](int a, int64_t j, Places tap) __attribute__((always_inline)) {
           return tap - read<Place, L>(lead_[a] + j) < read<Place, L>(taps_[a] + j);
         });
  }

  // Additions to one element wait for each other, as neighbouring windows have them: four groups of planes take turns.
  void add_all(const Part& part, int64_t n, const V* grads, V* sums) const {
    const Place* const places = places_;
    const auto one = [=](int64_t j) __attribute__((always_inline)) {
      if (places[j] != nowhere) sums[places[j]] += grads[j];
    };
    int64_t j = 0;
    if (folded_ && last_ > 0) {
      const int64_t planes = (part.row_end - part.row) / plane_rows_;
      const int64_t group = planes / 4 * plane_rows_ * (part.column_end - part.column) * p_.lanes;
      for (; j < group; ++j) one(j), one(j + group), one(j + 2 * group), one(j + 3 * group);
      j = 4 * group;
    }
    for (; j < n; ++j) one(j);
  }

  // Where n outputs add: `at` is where their first nominal taps stand, counted from `base`; `stands` says which taps of an
  // axis stand in the box.
  template <class Offset, class F> __attribute__((always_inline)) inline void
  find(const Offset* offsets, int64_t n, const Place* at, Place base, F stands) const {
    const Place codes = Place(codes_ - 1);
    for (int64_t j = 0; j < n; j += L) {
      Places rest = widened<Place, L>(offsets + j), place = read<Place, L>(at + j) + base;
      auto inside = rest <= codes;
      for (int a = last_; a >= 0; --a) {
        const Place kernel = Place(axes_[a].kernel);
        if (kernel == 1 && a < last_) continue;
        const Places quotient = a == 0 ? Places{} : over(rest, kernel, inverse_[a]),
                     tap = rest - quotient * kernel;
        inside &= stands(a, j, tap);
        place += tap * Place(axes_[a].step * pitch_[a]);
        rest = quotient;
      }
      write(places_ + j, inside ? place : Places{} + nowhere);
    }
  }

  static Places over(Places code, Place kernel, Place inverse) {
    return kernel == 1 ? code : inverse ? multiplied_high(code, inverse) : code / kernel;
  }

  const char* first_of(const Part& part, const Array& array, int64_t plane) const {
    int64_t o[max_axes];
    find_row(part.row, o);
    const char* data = plane_of(p_, array, plane) + (outs_[last_].lo + part.column) * array.pooled[last_];
    for (int a = 0; a < last_; ++a) data += o[a] * array.pooled[a];
    return data;
  }

  // Whether the outputs of a part have no gaps in memory.
  bool in_a_row(const Part& part, const Array& array, int64_t item) const {
    int64_t pitch = item;
    if (p_.lanes > 1 && array.lane != pitch) return false;
    pitch *= p_.lanes;
    if (part.column_end - part.column > 1 && array.pooled[last_] != pitch) return false;
    pitch *= columns_;
    for (int a = last_ - 1; a >= 0 && part.row_end - part.row > 1; --a) {
      const int64_t n = outs_[a].hi - outs_[a].lo;
      if (n > 1 && array.pooled[a] != pitch) return false;
      pitch *= n;
    }
    return true;
  }

  template <class F> void each_row(const Part& part, const Array& array, int64_t plane, F&& f) const {
    for (int64_t r = part.row; r < part.row_end; ++r) {
      const Part row{r, r + 1, part.column, part.column_end};
      f(Row{const_cast<char*>(first_of(row, array, plane)), array.pooled[last_], array.lane,
            part.column_end - part.column, p_.lanes});
    }
  }

  // The sums of a box to where they belong.
  void store(int a, const V*& sums, char* y) const {
    const int64_t n = to_[a] - from_[a];
    if (a < last_) {
      for (int64_t i = 0; i < n; ++i) store(a + 1, sums, y + i * p_.y.pooled[a]);
    } else {
      store_(sums, {y, p_.y.pooled[a], p_.y.lane, n, p_.lanes});
      sums += n * p_.lanes;
    }
  }

  const Problem& p_;
  const int last_, split_;
  const bool direct_, adds_, packed_, folded_;
  const Load<V> load_;
  const Store<V> store_;
  const int64_t item_, offset_item_;  // bytes of a gradient, on either side, and of an offset
  const Readable readable_;           // of the offsets
  bool tables_ = false, laid_out_ = false;
  std::uint64_t codes_ = 1;
  Place inverse_[max_axes];
  int64_t room_, box_ = -1, rows_ = 0, columns_ = 0, plane_rows_ = 1, elements_ = 0;
  Axis axes_[max_axes];
  int64_t from_[max_axes] = {}, to_[max_axes] = {}, pitch_[max_axes];  // of the box
  Range outs_[max_axes];                                               // that reach it
  Place *at_, *column_at_, *column_lead_, *column_taps_, *lead_[max_axes], *taps_[max_axes], *places_;
  Place* offsets_;  // a copy
  V *grads_, *sums_ = nullptr;
};

}  // namespace
}  // namespace ndpool

// The general forward engine, and what it shares with the others: rows of the input in the compute type, and how codes
// are stored.
#pragma once

#include "forward/horizontal.h"
#include "walk.h"

namespace ndpool {
namespace {

constexpr int64_t tile_bytes = 192 * 1024;  // what a worker keeps at hand: well inside L2
constexpr int64_t least_tile = 64;
constexpr int group = 4;  // rows folded at a time when there is nothing to keep

// The kernel of square windows of float32 with stride 1 in two dimensions and this dilation; 0 for all others.
static inline int64_t square_kernel(const Problem& p, int64_t step = 1) {
  if (p.n_axes != 2 || p.op == Op::lp || p.extra != Extra::none) return 0;
  if (p.x_type != Dtype::f32 || p.y_type != Dtype::f32) return 0;
  for (int a = 0; a < 2; ++a) {
    const Axis& axis = p.axes[a];
    if (!axis.regular() || axis.stride != 1 || axis.step != step || axis.kernel != p.axes[0].kernel) return 0;
  }
  return p.axes[0].kernel;
}

// Whether the rows of both arrays have no gaps, nor their lanes.
static inline bool packed_rows(const Problem& p, int64_t item) {
  for (const Array* array : {&p.x, &p.y})
    if (array->pooled[p.n_axes - 1] != p.lanes * item || (p.lanes > 1 && array->lane != item)) return false;
  return true;
}

// The columns of packed rows: interleaved channels are one row, whose taps are as far apart as there are channels.
static inline Axis columns(const Problem& p) {
  Axis axis = p.axes[p.n_axes - 1];
  for (int64_t* n : {&axis.size, &axis.out, &axis.origin, &axis.step}) *n *= p.lanes;
  return axis;
}

static inline bool within(int64_t i, const Axis& a) { return std::uint64_t(i) < std::uint64_t(a.size); }

// Codes to what is stored: bytes, ints, or positions in the plane. With q the quotient of a code by the taps of the axes
// behind an axis, a position is that of the window's first nominal tap plus q steps for each axis; a step of an axis takes
// back all steps of the one behind it.
class Codes {
public:
  Codes(const Problem& p, Scratch& scratch) : p_(p), columns_(scratch.take<int64_t>(length(p))) {
    int64_t pitch = 1, before = 0;
    std::uint64_t taps = 1;
    for (int a = p.n_axes - 1; a >= 0; --a) {
      const int64_t step = p.axes[a].step * pitch;
      pitch_[a] = pitch;
      taps_[a] = Code(taps);
      steps_[a] = step - before;
      pitch *= p.axes[a].size;
      taps *= std::uint64_t(p.axes[a].kernel);
      before = step * p.axes[a].kernel;
    }
    // A product with the inverse is the quotient of all codes if they are small enough.
    for (int a = 0; a < p.n_axes; ++a)
      inverse_[a] = taps * taps_[a] < 1ull << 32 ? (1ull << 32) / taps_[a] + 1 : 0;
  }
  static int64_t bytes(const Problem& p) { return Scratch::bytes<int64_t>(length(p)); }

  void store(const Code* codes, const Walk<Over::outputs>& walk, const Row& row) {
    if (p_.extra == Extra::offset8)
      each<std::uint8_t>(row, [codes](std::uint8_t& o, int64_t j) { o = std::uint8_t(codes[j]); });
    else if (p_.extra == Extra::offset32)
      each<std::int32_t>(row, [codes](std::int32_t& o, int64_t j) { o = std::int32_t(codes[j]); });
    else
      store_positions(codes, walk, row);
  }

private:
  static int64_t length(const Problem& p) { return p.extra == Extra::index64 ? p.tile * p.lanes : 0; }

  void store_positions(const Code* codes, const Walk<Over::outputs>& walk, const Row& row) {
    const int outer = p_.n_axes - 1;
    const Axis& last = walk.last();
    if (tile_ != walk.tile_begin() || last.table_stride) {
      tile_ = walk.tile_begin();
      for (int64_t j = 0, k = 0; j < row.n; ++j)
        for (int64_t c = 0; c < row.lanes; ++c) columns_[k++] = begin_of(last, tile_ + j);
    }
    int64_t base = 0;
    bool quick = true;
    for (int a = 0; a < outer; ++a) {
      base += begin_of(walk.axis(a), walk.at(a)) * pitch_[a];
      quick &= inverse_[a] != 0;
    }
    const auto all = [&](auto quotients) __attribute__((always_inline)) {
      each<int64_t>(row, [=, columns = columns_, step = steps_[outer]](int64_t& to, int64_t j) {
        to = base + columns[j] + codes[j] * step + quotients(codes[j]);
      });
    };
    const auto part = [this](int a) {
      return [by = inverse_[a], step = steps_[a]](Code code) { return int64_t(code * by >> 32) * step; };
    };
    if (outer == 0) return all([](Code) { return int64_t(0); });
    if (outer == 1 && quick) return all(part(0));
    if (outer == 2 && quick)
      return all([first = part(0), second = part(1)](Code code) { return first(code) + second(code); });
    all([this, outer](Code code) {
      int64_t sum = 0;
      for (int a = 0; a < outer; ++a) sum += int64_t(code / taps_[a]) * steps_[a];
      return sum;
    });
  }

  const Problem& p_;
  int64_t* columns_;  // where the windows of a tile begin
  int64_t tile_ = -1, pitch_[max_axes], steps_[max_axes];
  Code taps_[max_axes];  // of the axes behind
  std::uint64_t inverse_[max_axes];
};

// The nearest tap of a window that may lie outside the input altogether: what an empty window's code says.
inline Code lead_code(const Walk<Over::outputs>& walk, int n_axes) {
  int64_t code = 0;
  for (int a = 0; a + 1 < n_axes; ++a)
    code = code * walk.axis(a).kernel + window(walk.axis(a), walk.at(a)).lead;
  return Code(code * walk.last().kernel);
}

struct Span {
  int64_t from, to;
};

// The source of the forward engines: a packed row of inputs [from, to) in the compute type, the array's own memory where
// it has that form already. The pointer returned stands for position 0 of the row, or for `from` where a walk says which
// row it is.
template <class V> class Input {
public:
  Input(const Problem& p, bool widening)
      : p_(p), load_(loader<V>(p.x_type, widening)), direct_(stored_as<V>(p.x_type)) {}

  const V* row(const Row& row, int64_t from, V* buffer) const {
    if (direct_ && p_.op != Op::lp && !reordered(p_) && row.packed(sizeof(V)))
      return reinterpret_cast<const V*>(row.data) - from * p_.lanes;
    load_(row, buffer);
    reorder(p_, buffer, row.n * row.lanes);
    if constexpr (is_real<V>) {
      if (p_.op == Op::lp) powers(buffer, row.n * row.lanes, V(p_.norm));
    }
    return buffer - from * p_.lanes;
  }

  const V* row(const Walk<Over::outputs>& walk, const int64_t* outer, const Span& in, V* buffer) const {
    return row(walk.row(p_.x, outer, in.from, in.to), 0, buffer);
  }

private:
  const Problem& p_;
  Load<V> load_;
  bool direct_;
};

// The inputs that the windows of outputs [o0, o1) of an axis touch.
inline Span touched(const Axis& a, int64_t o0, int64_t o1) {
  int64_t from = a.size, to = 0;
  if (a.regular()) {
    from = most(0, least(a.size, a.origin + o0 * a.stride));
    to = most(from, least(a.size, a.origin + (o1 - 1) * a.stride + (a.kernel - 1) * a.step + 1));
  } else if (o0 < o1) {
    from = a.starts[o0];
    to = a.starts[o1 - 1] + a.counts[o1 - 1];
  }
  return {least(from, to), to};
}

// The most inputs any tile of `tile` outputs touches.
inline int64_t widest(const Axis& a, int64_t tile) {
  if (!a.regular()) return a.size;
  return most(1, least(a.size, (tile - 1) * a.stride + (a.kernel - 1) * a.step + 1));
}

// Whether results need neither conversion nor reordering.
template <class V> bool writes_directly(const Problem& p, const Row& y) {
  return !reordered(p) && stored_as<V>(p.y_type) && y.packed(sizeof(V));
}

inline void set_tiles(Problem& p, int64_t bytes_per_output, int64_t extent) {
  p.tile =
      most(1, least(extent, most(ceil_div(least_tile, p.lanes), tile_bytes / most(1, bytes_per_output))));
  p.tiles = ceil_div(extent, p.tile);
  p.units = p.planes * p.tiles * p.rows;
}

// Channels as a row of their own: all windows are vertical then.
inline Problem channels_as_row(const Problem& p) {
  Problem q = p;
  const int n = q.n_axes++;
  q.rows *= p.axes[n - 1].out;
  q.axes[n] = single_axis(p.lanes);
  q.x.pooled[n] = p.x.lane;
  q.y.pooled[n] = p.y.lane;
  q.lanes = 1;
  return q;
}

// The general engine, for any window, layout and type: the rows of a window are folded down into one, in the order of
// the plane, then that row is folded into its outputs. A row and what is made of it stay in L1 and L2.
// The source may be another than the plain input (one that leaves out masked elements, or NaN), and the reducer one that
// collects.
template <class R, bool coded, class Source = Input<typename R::V>> struct Rows {
  static constexpr const char* engine = "rows";
  using V = typename R::V;
  static constexpr int N = wide<V>;

  static void prepare(Problem& p) {
    const Axis& last = p.axes[p.n_axes - 1];
    set_tiles(p, (last.stride * 3 + 2 + collected(p)) * p.lanes * int64_t(sizeof(V)), last.out);
    p.scratch = Codes::bytes(p) + Scratch::bytes<V>(p.tile * p.lanes * collected(p)) + RowSet::bytes(p) +
                group * Scratch::bytes<V>(input_length(p)) + 2 * Scratch::bytes<V>(row_length(p)) +
                Scratch::bytes<V>(interleaved * p.lanes + N) +
                (coded ? Scratch::bytes<V>(row_length(p)) + 2 * Scratch::bytes<Code>(row_length(p)) +
                             Scratch::bytes<V>(split_length(p)) + Scratch::bytes<Code>(split_length(p))
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
  const Problem& p_;
  const Source input_;
  const Store<V> store_;
  Codes codes_;
  V* buffers_[group];
  Coded<V> row_{}, everywhere_{},
      found_{};  // the folded row, windows at every position, those of the outputs
  V *parts_, *windows_ = nullptr;
  const Readable readable_;
  const bool searches_;
  bool nan_ = true;                     // whether there may be one in the folded row
  UnsignedLike<V>* missing_ = nullptr;  // all bits of a value whose place is still to be found
  const Code* single_ = nullptr;        // the code that all elements of the folded row have

  // Of large windows that share little, the values come first and then their places: two passes without codes are
  // faster than one with them.
  static constexpr int64_t least_searched = 24, most_visits = 4;
  static bool searched(const Problem& p) {
    int64_t taps = 1, visits = 1;
    for (int a = 0; a < p.n_axes; ++a) {
      const Axis& axis = p.axes[a];
      taps *= axis.kernel;
      visits *=
          axis.regular() ? ceil_div(axis.kernel, axis.stride) : ceil_div(axis.out * axis.kernel, axis.size);
    }
    return coded && p.axes[p.n_axes - 1].step == 1 && taps >= least_searched && visits <= most_visits;
  }
  bool keeps_codes() const { return coded && !searches_; }

  // The elements of a window, where they are collected.
  static int64_t collected(const Problem& p) {
    int64_t taps = Collects<R>;
    for (int a = 0; a < p.n_axes; ++a) taps *= p.axes[a].kernel;
    return taps;
  }

  // Of a tile's inputs, and with padding around them; vectors reach past both.
  static int64_t input_length(const Problem& p) {
    return widest(p.axes[p.n_axes - 1], p.tile) * p.lanes + 2 * N;
  }
  static int64_t row_length(const Problem& p) {
    const Axis& last = p.axes[p.n_axes - 1];
    const int64_t positions =
        last.regular() ? (p.tile - 1) * last.stride + (last.kernel - 1) * last.step + 1 : last.size;
    return most(positions, p.tile) * p.lanes + 4 * most(N, 64 / int64_t(sizeof(V)));
  }

  // Of such a row in as many parts as the stride has.
  static constexpr int64_t most_split = 8;
  static int64_t split_length(const Problem& p) { return row_length(p) + most_split * 3 * N; }

  Rows(const Problem& p, Scratch& scratch)
      : p_(p), input_(p, !R::picks), store_(storer<V>(p.y_type, !R::picks)), codes_(p, scratch),
        readable_(p, p.x, sizeof(V), Over::inputs), searches_(searched(p)) {
    for (V*& buffer : buffers_) buffer = scratch.take<V>(input_length(p));
    row_.value = scratch.take<V>(row_length(p));
    found_.value = scratch.take<V>(row_length(p));
    parts_ = scratch.take<V>(interleaved * p.lanes + N);
    if constexpr (Collects<R>) windows_ = scratch.take<V>(p.tile * p.lanes * collected(p));
    if constexpr (coded) {
      row_.code = scratch.take<Code>(row_length(p));
      everywhere_ = {scratch.take<V>(split_length(p)), scratch.take<Code>(split_length(p))};
      found_.code = scratch.take<Code>(row_length(p));
      missing_ = scratch.take<UnsignedLike<V>>(row_length(p));
    }
  }

  // A row of outputs; false if the call is to end.
  bool row(const Walk<Over::outputs>& walk, RowSet& rows) {
    const Axis& last = walk.last();
    const int64_t o0 = walk.tile_begin(), o1 = walk.tile_end(), n = (o1 - o0) * p_.lanes;
    const Row y = walk.row(p_.y, o0, o1);
    rows.windows(walk);
    if constexpr (Collects<R>) {
      if (!collect(walk, rows, o0, o1)) return false;
    } else if (rows.count() == 0) {
      in_vectors(n, [found = found_.value](int64_t j) { found[j] = R::init(); });
    } else {
      const Span in = touched(last, o0, o1);
      const int64_t first = last.regular() ? begin_of(last, o0) : in.from;
      const int64_t span = (o1 - o0 - 1) * last.stride + (last.kernel - 1) * last.step + 1;
      const V* x = down(walk, rows, in, first, last.regular() ? first + span : in.to);
      if (!x) return false;
      if (last.regular()) {
        if (!keeps_codes() && x == row_.value) pad(first, in.from, in.to, first + span);
        if (!R::picks && last.kernel >= long_sum)
          long_sums(x, last, o0, o1, first);
        else if (in_one_step(x, last, y))
          return straight(walk, x, last, y);
        else
          regular(x, last, o1 - o0);
        if constexpr (coded)
          if (!searches_) {
            const Range whole = interior(last, o0, o1);
            clipped(last, o0, whole.lo, o0, first);
            clipped(last, whole.hi, o1, o0, first);
          }
      } else {
        irregular(x, last, o0, o1, first);
      }
      if constexpr (coded)
        if (searches_) search(walk, rows, in, o0, o1);
    }
    if constexpr (coded) {
      empty_codes(walk, rows.count() == 0, o0, o1);
      codes_.store(found_.code, walk, walk.row(p_.extra_array, o0, o1));
    }
    if constexpr (!R::picks) finish(p_, walk, o0, o1, found_.value);
    reorder(p_, found_.value, n);
    store_(found_.value, y);
    return true;
  }

  // The elements of each window side by side, in the order of the plane, and what the reducer makes of them.
  bool collect(const Walk<Over::outputs>& walk, RowSet& rows, int64_t o0, int64_t o1) {
    const Axis& last = walk.last();
    const Span in = touched(last, o0, o1);
    const int64_t unit = p_.lanes, most_taps = collected(p_);
    int64_t before = 0;  // rows
    for (; before < rows.count(); ++before, rows.next()) {
      if (p_.stopped()) return false;
      const V* x = input_.row(walk, rows.index(), in, buffers_[0]);
      for (int64_t o = o0, j = 0; o < o1; ++o) {
        const Window w = window(last, o);
        for (int64_t c = 0; c < unit; ++c, ++j)
          for (int64_t t = 0; t < w.taps; ++t)
            windows_[j * most_taps + before * w.taps + t] = x[(w.start - in.from + t * last.step) * unit + c];
      }
    }
    for (int64_t o = o0, j = 0; o < o1; ++o)
      for (int64_t c = 0; c < unit; ++c, ++j)
        found_.value[j] = R::of(windows_ + j * most_taps, before * window(last, o).taps);
    return true;
  }

  // Short windows of stride 1, and of stride 2 where two vectors hold a vector of outputs, go to the results in one step.
  static constexpr int64_t longest_step = 3;
  bool in_one_step(const V* x, const Axis& a, const Row& y) const {
    if (coded || a.kernel > longest_step || !writes_directly<V>(p_, y)) return false;
    return a.stride == 1 ||
           (permutes<V> && a.stride == 2 && p_.lanes > 1 && p_.lanes <= N / 2 && x == row_.value);
  }

  // Vectors go to the results as long as they end inside: with stride 2 the last elements of one may be none, and are
  // replaced by the next. What is left goes by way of scratch.
  bool straight(const Walk<Over::outputs>& walk, const V* x, const Axis& a, const Row& y) {
    const int64_t n = y.n * y.lanes;
    V* to = reinterpret_cast<V*>(y.data);
    const int64_t step = a.stride == 1 ? N : N / p_.lanes * p_.lanes;
    const int64_t whole = n < N ? 0 : ((n - N) / step + 1) * step;
    const auto windows = [&](int64_t from, int64_t end, V* dst) {
      if (a.stride == 2)
        nan_ ? every_other_window<R>(x, from, end, a.kernel, a.step, p_.lanes, dst)
             : every_other_window<R, false>(x, from, end, a.kernel, a.step, p_.lanes, dst);
      else
        nan_ ? windows_everywhere<R>(x + from, end - from, a.kernel, a.step * p_.lanes, dst)
             : windows_everywhere<R, false>(x + from, end - from, a.kernel, a.step * p_.lanes, dst);
    };
    windows(0, whole, to);
    if (whole < n) {
      windows(whole, n, found_.value);
      __builtin_memcpy(to + whole, found_.value, std::size_t(n - whole) * sizeof(V));
    }
    if constexpr (!R::picks) finish(p_, walk, walk.tile_begin(), walk.tile_end(), to);
    return true;
  }

  // Folds the rows of the windows; position `first` is the first of the result. A single row that needs no padding is
  // taken as it is, where vectors may read past its end.
  const V* down(const Walk<Over::outputs>& walk, RowSet& rows, const Span& in, int64_t first, int64_t last) {
    nan_ = true;
    if (!keeps_codes() && rows.count() == 1 && in.from == first && in.to == last) {
      const V* x = input_.row(walk, rows.index(), in, row_.value);
      if (x == row_.value || readable_.holds(x, (in.to - in.from) * p_.lanes + N)) return x;
    }
    const int64_t width = (in.to - in.from) * p_.lanes, at = (in.from - first) * p_.lanes;
    nan_ = false;
    Vec<V, N> all{};  // the sum of the elements: a NaN stays in it
    if (!fold_down(walk, rows, in, at, width, all)) return nullptr;
    if constexpr (coded) single_ = rows.count() == 1 ? row_.code + at : nullptr;
    if constexpr (speculates)
      if (any(all != all)) {
        nan_ = true;
        rows.reset();
        if (!fold_down(walk, rows, in, at, width, all)) return nullptr;
      }
    return row_.value;
  }

  // Maxima without codes are folded the speculative way first, which assumes that there is no NaN.
  static constexpr bool speculates = R::picks && is_real<V> && !coded;

  bool fold_down(const Walk<Over::outputs>& walk, RowSet& rows, const Span& in, int64_t at, int64_t width,
                 [[maybe_unused]] Vec<V, N>& all) {
    V* const to = row_.value + at;
    const V* values[group];
    Code base[group];
    int held = 0;
    const int64_t vectors = ceil_div(width, N) * N;
    bool past = true;  // whether vectors may read past the ends of these rows
    for (int64_t r = 0; r < rows.count(); ++r, rows.next()) {
      if (p_.stopped()) return false;
      values[held] = input_.row(walk, rows.index(), in, buffers_[held]);
      past &= values[held] == buffers_[held] || readable_.holds(values[held], vectors);
      base[held++] = keeps_codes() ? rows.code(p_.axes) : 0;
      if (held < group && r + 1 < rows.count()) continue;
      const int64_t length = past ? vectors : width;
      if constexpr (coded) {
        if (!searches_) fold_coded<R>(values, base, held, to, row_.code + at, length, r >= group);
      }
      if constexpr (speculates)
        if (!nan_) {
          fold_speculatively(values, held, to, width, past, r >= group, all);
          held = 0;
          continue;
        }
      if (!keeps_codes()) fold<R>(values, held, to, length, r >= group);
      held = 0;
    }
    return true;
  }

  // `all` gets every element, and nothing that vectors read past the ends of the rows.
  static void fold_speculatively(const V* const* rows, int n, V* to, int64_t width, bool past, bool go_on,
                                 Vec<V, N>& all) {
    const V *a = rows[0], *b = rows[n > 1], *c = rows[n > 2 ? 2 : 0], *d = rows[n > 3 ? 3 : 0];
    Vec<V, N> sum = all;
    const auto best_of = [&](auto count) {
      const V* const from[] = {a, b, c, d};
      const auto vector = [&](int64_t j, auto inside) __attribute__((always_inline)) {
        Vec<V, N> best = read<V, N>(a + j), elements = best;
        for (int k = 1; k < count; ++k) {
          const Vec<V, N> v = read<V, N>(from[k] + j);
          elements += v;  // apart from the sum, which has to wait for each addition
          best = merged<R, false>(v, best);
        }
        sum += inside(elements);
        write(to + j, go_on ? merged<R, false>(best, read<V, N>(to + j)) : best);
      };
      int64_t j = 0;
      for (; j + N <= width; j += N) vector(j, [](Vec<V, N> v) { return v; });
      if (past && j < width) {
        const auto kept = first_lanes<V, N>(width - j);
        return vector(j, [kept](Vec<V, N> v) { return kept ? v : Vec<V, N>{}; });
      }
      for (; j < width; ++j)
        for (int k = 0; k < count; ++k) {
          sum[0] += from[k][j];
          to[j] = k || go_on ? R::merge(from[k][j], to[j]) : from[k][j];
        }
    };
    if (n == 1) best_of(std::integral_constant<int, 1>{});
    if (n == 2) best_of(std::integral_constant<int, 2>{});
    if (n == 3) best_of(std::integral_constant<int, 3>{});
    if (n == 4) best_of(std::integral_constant<int, 4>{});
    all = sum;
  }

  // What never wins, where windows reach over the ends of the input.
  void pad(int64_t first, int64_t from, int64_t to, int64_t end) const {
    const auto fill = [&](int64_t lo, int64_t hi) {
      V* const pads = row_.value + (lo - first) * p_.lanes;
      in_vectors((hi - lo) * p_.lanes, [pads](int64_t j) { pads[j] = R::init(); });
    };
    fill(first, least(from, end));
    fill(most(to, first), end);
  }

  void regular(const V* x, const Axis& a, int64_t n) {
    const int64_t unit = p_.lanes, tap = a.step * unit, positions = ((n - 1) * a.stride + 1) * unit;
    if constexpr (coded)
      if (!searches_) {
        if constexpr (sizeof(V) >= 4)
          if (unit == 1 && a.stride > 1 && a.stride <= most_split) return split_windows(a, n);
        coded_windows_everywhere<R>(row_, positions, a.kernel, tap, a.stride == 1 ? found_ : everywhere_);
        if (a.stride == 1) return;
        every(everywhere_.value, n, a.stride, unit, found_.value);
        return every(everywhere_.code, n, a.stride, unit, found_.code);
      }
    // Long windows that share little are folded one by one.
    if (a.step == 1 && a.kernel >= long_sum && a.stride * 8 > a.kernel) {
      for (int64_t o = 0; o < n; ++o)
        window_alone<R>(x + o * a.stride * unit, a.kernel, unit, parts_, found_.value + o * unit);
      return;
    }
    V* to = a.stride == 1 ? found_.value : row_.value;
    if (nan_ || coded)
      windows_everywhere<R>(x, positions, a.kernel, tap, to);
    else
      windows_everywhere<R, false>(x, positions, a.kernel, tap, to);
    if (a.stride > 1) every(row_.value, n, a.stride, unit, found_.value);
  }

  // Windows of any stride with codes: the elements under one tap of neighbouring windows are brought side by side, every
  // `stride`-th of the row from each of the first ones on.
  void split_windows(const Axis& a, int64_t n) {
    const int64_t span = (a.kernel - 1) * a.step, length = n + span / a.stride + N;
    for (int64_t r = 0; r < least(a.stride, span + 1); ++r) {
      const int64_t count = ceil_div((n - 1) * a.stride + span + 1 - r, a.stride);
      every(row_.value + r, count, a.stride, 1, everywhere_.value + r * length);
      if (!single_) every(row_.code + r, count, a.stride, 1, everywhere_.code + r * length);
    }
    using C = UnsignedLike<V>;
    for (int64_t j = 0; j < n; j += N) {
      Vec<V, N> best = read<V, N>(everywhere_.value + j);
      Vec<C, N> at =
          single_ ? Vec<C, N>{} + C(*single_) : converted<Vec<C, N>>(read<Code, N>(everywhere_.code + j));
      const C base = single_ ? C(*single_) : C(0);
      for (int64_t t = 1; t < a.kernel; ++t) {
        const int64_t from = t * a.step % a.stride * length + t * a.step / a.stride + j;
        const Vec<V, N> later = read<V, N>(everywhere_.value + from);
        if (single_) {
          auto take = R::beats(later, best);
          if constexpr (is_real<V>) take |= later != later;
          best = take ? later : best;
          at = take ? Vec<C, N>{} + C(base + C(t)) : at;
        } else {
          const Vec<C, N> code = converted<Vec<C, N>>(read<Code, N>(everywhere_.code + from)) + C(t);
          merge_columns<R>(later, code, best, at);
        }
      }
      write(found_.value + j, best);
      write(found_.code + j, converted<Vec<Code, N>>(at));
    }
  }

  // Sums of long windows: of their taps inside the input alone, whose number decides on the order.
  void long_sums(const V* x, const Axis& a, int64_t o0, int64_t o1, int64_t first) {
    const int64_t unit = p_.lanes;
    for (int64_t o = o0; o < o1; ++o) {
      const Window w = window(a, o);
      const V* from = x + (w.start - first) * unit;
      V* to = found_.value + (o - o0) * unit;
      if (a.step > 1) {  // side by side
        for (int64_t t = 0; t < w.taps; ++t)
          for (int64_t c = 0; c < unit; ++c) buffers_[0][t * unit + c] = from[t * a.step * unit + c];
        from = buffers_[0];
      }
      if (w.taps)
        window_alone<R>(from, w.taps, unit, parts_, to);
      else
        for (int64_t c = 0; c < unit; ++c) to[c] = V(0);
    }
  }

  // Windows [from, to) that reach over an end of the input, with codes: a tap in the padding wins nothing.
  void clipped(const Axis& a, int64_t from, int64_t to, int64_t o0, int64_t first) {
    const int64_t unit = p_.lanes;
    for (int64_t o = from; o < to; ++o) {
      const Window w = window(a, o);
      const int64_t at = (w.start - first) * unit, y = (o - o0) * unit;
      if (w.taps)
        coded_window_alone<R>({row_.value + at, row_.code + at}, w.taps, a.step * unit, unit, Code(w.lead),
                              {found_.value + y, found_.code + y});
      else
        for (int64_t c = 0; c < unit; ++c) found_.value[y + c] = R::init();
    }
  }

  void irregular(const V* x, const Axis& a, int64_t o0, int64_t o1, int64_t first) {
    const int64_t unit = p_.lanes;
    for (int64_t o = o0; o < o1; ++o) {
      const int64_t at = (a.starts[o] - first) * unit, to = (o - o0) * unit;
      if (a.counts[o] == 0) {
        for (int64_t c = 0; c < unit; ++c) found_.value[to + c] = R::init();
        continue;
      }
      if constexpr (coded)
        if (!searches_) {
          coded_window_alone<R>({row_.value + at, row_.code + at}, a.counts[o], unit, unit, 0,
                                {found_.value + to, found_.code + to});
          continue;
        }
      window_alone<R>(x + at, a.counts[o], unit, parts_, found_.value + to);
    }
  }

  // The places of the values found: the first that is equal, or the last NaN. Rows are visited in order until every
  // value has its place.
  void search(const Walk<Over::outputs>& walk, RowSet& rows, const Span& in, int64_t o0, int64_t o1) {
    const int64_t unit = p_.lanes;
    int64_t left = 0;
    bool has_nan = false;
    for (int64_t o = o0, j = 0; o < o1; ++o) {
      const bool empty = window(walk.last(), o).taps == 0;
      for (int64_t c = 0; c < unit; ++c, ++j) {
        const bool nan = is_nan(found_.value[j]);
        has_nan |= nan;
        left += !nan && !empty;
        missing_[j] = nan || empty ? 0 : ~UnsignedLike<V>(0);
      }
    }
    rows.reset();
    for (int64_t r = 0; r < rows.count() && (left || has_nan) && !p_.stopped(); ++r, rows.next()) {
      const V* x = input_.row(walk, rows.index(), in, buffers_[0]);
      const Code base = rows.code(p_.axes);
      for (int64_t o = o0; o < o1; ++o) {
        const Window w = window(walk.last(), o);
        const V* from = x + (w.start - in.from) * unit;
        left -= first_equal(from, w.taps, unit, base + Code(w.lead), (o - o0) * unit);
        if (has_nan) last_nan(from, w.taps, unit, base + Code(w.lead), (o - o0) * unit);
      }
    }
  }

  // The value is the one that stands there: of equal zeros it may have been another.
  void place(int64_t j, V value, Code code) {
    found_.value[j] = value;
    found_.code[j] = code;
    missing_[j] = 0;
  }

  // Places of the missing values of one window among the taps of one row; how many were found.
  int64_t first_equal(const V* x, int64_t taps, int64_t unit, Code code, int64_t j) {
    int64_t found = 0;
    if (unit == 1) {
      if (!missing_[j]) return 0;
      const int64_t t = place_of(x, taps, found_.value[j]);
      if (t == taps) return 0;
      place(j, x[t], code + Code(t));
      return 1;
    }
    constexpr int few = least(N, 8);
    if (unit >= N) return first_equal_of<N>(x, taps, unit, code, j);
    if (unit >= few) return first_equal_of<few>(x, taps, unit, code, j);
    for (int64_t c = 0; c < unit; ++c) {
      if (!missing_[j + c]) continue;
      int64_t t = 0;
      while (t < taps && x[t * unit + c] != found_.value[j + c]) ++t;
      if (t == taps) continue;
      place(j + c, x[t * unit + c], code + Code(t));
      ++found;
    }
    return found;
  }

  // The same for L neighbours at a time; of the last ones some are looked at twice.
  template <int L> int64_t first_equal_of(const V* x, int64_t taps, int64_t unit, Code code, int64_t j) {
    using U = Vec<UnsignedLike<V>, L>;
    int64_t found = 0;
    for (int64_t from = 0; from < unit; from += L) {
      const int64_t c = least(from, unit - L);
      U missing = read<UnsignedLike<V>, L>(missing_ + j + c);
      if (!any(missing)) continue;
      const Vec<V, L> best = read<V, L>(found_.value + j + c);
      for (int64_t t = 0; t < taps; ++t) {
        const U hit = reinterpret_cast<U>(read<V, L>(x + t * unit + c) == best) & missing;
        if (!any(hit)) continue;
        for (int k = 0; k < L; ++k)
          if (hit[k]) place(j + c + k, x[t * unit + c + k], code + Code(t)), ++found;
        missing &= ~hit;
        if (!any(missing)) break;
      }
      write(missing_ + j + c, missing);
    }
    return found;
  }

  // The first of n elements that is equal to a value, or n.
  static int64_t place_of(const V* x, int64_t n, V value) {
    using Vn = Vec<V, N>;
    const Vn wanted = all_of<Vn>(value);
    for (int64_t t = 0; n >= N && t < n; t += N) {
      const int64_t at = least(t, n - N);  // the last ones may be compared twice
      const auto equal = read<V, N>(x + at) == wanted;
      if (any(equal)) return at + first_set(equal);
    }
    if (n >= N) return n;
    int64_t t = 0;
    while (t < n && x[t] != value) ++t;
    return t;
  }

  void last_nan(const V* x, int64_t taps, int64_t unit, Code code, int64_t j) {
    for (int64_t c = 0; c < unit; ++c)
      for (int64_t t = taps - 1; t >= 0 && is_nan(found_.value[j + c]); --t)
        if (is_nan(x[t * unit + c])) {
          place(j + c, x[t * unit + c], code + Code(t));
          break;
        }
  }

  // Windows without an input: the nearest tap of theirs.
  void empty_codes(const Walk<Over::outputs>& walk, bool all, int64_t o0, int64_t o1) {
    const Code outer = lead_code(walk, p_.n_axes);
    const Range whole = all ? Range{o1, o1} : interior(walk.last(), o0, o1);
    for (int64_t o = o0; o < o1; ++o) {
      if (o == whole.lo) o = whole.hi;
      if (o == o1) return;
      const Window w = window(walk.last(), o);
      if (!all && w.taps) continue;
      for (int64_t j = (o - o0) * p_.lanes; j < (o - o0 + 1) * p_.lanes; ++j)
        found_.code[j] = outer + Code(w.lead);
    }
  }

  // From sums to means or norms.
  static void finish(const Problem& p, const Walk<Over::outputs>& walk, int64_t o0, int64_t o1, V* dst) {
    if (!p.divide) return;
    int64_t outer = 1, taps = 1;
    for (int a = 0; a < walk.outer(); ++a) outer *= share(walk.axis(a), walk.at(a));
    for (int a = 0; a < p.n_axes; ++a) taps *= p.axes[a].uncropped;
    const auto divide = [&](V* from, int64_t n, int64_t by) {
      if constexpr (is_real<V>) {
        if (p.op == Op::lp) {
          if (by != taps) in_vectors(n, [&](int64_t j) { from[j] = from[j] / V(by) * V(taps); });
          return powers(from, n, V(1 / p.norm));
        }
      }
      const Quotient<V> quotient(by);
      if (by == -1)  // the one quotient that can overflow
        in_vectors(n, [&](int64_t j) { from[j] = Sum<V>::negated(from[j]); });
      else if (quotient.multiplies)
        in_vectors(n, [&](int64_t j) { from[j] *= quotient.inverse; });
      else
        in_vectors(n, [&](int64_t j) { from[j] = V(from[j] / quotient.by); });
    };
    if (p.divisor) return divide(dst, (o1 - o0) * p.lanes, p.divisor);
    const Axis& last = walk.last();
    const Range in = last.kernel == last.uncropped ? interior(last, o0, o1) : Range{o1, o1};
    for (int64_t o = o0; o < in.lo; ++o) divide(dst + (o - o0) * p.lanes, p.lanes, outer * share(last, o));
    if (in.lo < in.hi)
      divide(dst + (in.lo - o0) * p.lanes, (in.hi - in.lo) * p.lanes, outer * last.uncropped);
    for (int64_t o = in.hi; o < o1; ++o) divide(dst + (o - o0) * p.lanes, p.lanes, outer * share(last, o));
  }
};

}  // namespace
}  // namespace ndpool

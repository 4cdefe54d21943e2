// The general forward engines, for whatever no other engine serves. Both read every input row once and keep what they need in L1 and L2:
//   RowsFirst     horizontal step per row, a ring of short result rows, vertical fold. Order of a row-major scan.
//   ColumnsFirst  vertical fold of whole rows, then one horizontal step. Sums, and windows without a regular row.
#pragma once

#include "rows.h"
#include "walk.h"

namespace ndpool {
namespace {

constexpr int64_t tile_bytes = 96 * 1024;  // what a worker keeps at hand: well inside L2
constexpr int64_t least_tile = 64;
constexpr int group = 4;  // rows folded at a time when there is nothing to keep

// The beginning of plane q of an array.
static inline char* plane_of(const Problem& p, const Array& array, int64_t q) {
  char* data = array.data;
  for (int a = p.n_lead - 1; a >= 0; --a) {
    data += q % p.lead_shape[a] * array.lead[a];
    q /= p.lead_shape[a];
  }
  return data;
}

// The kernel of square windows of float32 that move by one in two dimensions, their taps `step` apart; 0 for all
// others.
static inline int64_t square_kernel(const Problem& p, int64_t step = 1) {
  if (p.n_axes != 2 || p.op == Op::lp || p.extra != Extra::none) return 0;
  if (p.x_type != Dtype::f32 || p.y_type != Dtype::f32) return 0;
  for (int a = 0; a < 2; ++a) {
    const Axis& axis = p.axes[a];
    if (!axis.regular() || axis.stride != 1 || axis.step != step || axis.kernel != p.axes[0].kernel) return 0;
  }
  return p.axes[0].kernel;
}

static inline bool within(int64_t i, const Axis& a) { return std::uint64_t(i) < std::uint64_t(a.size); }

// Codes to what is stored: bytes, ints, or positions in the plane.
class Codes {
public:
  Codes(const Problem& p) : p_(p) {
    int64_t pitch = 1, taps = 1;
    for (int a = p.n_axes - 1; a >= 0; --a) {
      pitch_[a] = pitch;
      pitch *= p.axes[a].size;
      taps_[a] = taps;
      taps *= p.axes[a].kernel;
    }
  }

  void store(const Code* codes, const Walk<Over::outputs>& walk, const Row& row) const {
    if (p_.extra == Extra::offset8)
      each<std::uint8_t>(row, [codes](std::uint8_t& o, int64_t j) { o = std::uint8_t(codes[j]); });
    else if (p_.extra == Extra::offset32)
      each<std::int32_t>(row, [codes](std::int32_t& o, int64_t j) { o = std::int32_t(codes[j]); });
    else
      store_positions(codes, walk, row);
  }

private:
  void store_positions(const Code* codes, const Walk<Over::outputs>& walk, const Row& row) const {
    const int outer = p_.n_axes - 1;
    const Axis& last = walk.last();
    int64_t base = 0;
    for (int a = 0; a < outer; ++a) base += begin_of(walk.axis(a), walk.at(a)) * pitch_[a];
    for (int64_t j = 0, o = walk.tile_begin(); j < row.n; ++j, ++o) {
      const int64_t here = base + begin_of(last, o);
      for (int64_t c = 0; c < row.lanes; ++c) {
        Code code = codes[j * row.lanes + c];
        int64_t position = here;
        for (int a = 0; a < outer; ++a) {
          const Code tap = code / Code(taps_[a]);
          code -= tap * Code(taps_[a]);
          position += tap * p_.axes[a].step * pitch_[a];
        }
        position += code * last.step;
        *reinterpret_cast<int64_t*>(row.data + j * row.stride + c * row.lane) = position;
      }
    }
  }

  const Problem& p_;
  int64_t pitch_[max_axes], taps_[max_axes];
};

// The nearest tap of a window that may lie outside the input altogether: what an empty window's code says.
inline Code lead_code(const Walk<Over::outputs>& walk, int n_axes) {
  int64_t code = 0;
  for (int a = 0; a + 1 < n_axes; ++a)
    code = code * walk.axis(a).kernel + window(walk.axis(a), walk.at(a)).lead;
  return Code(code * walk.last().kernel);
}

// A packed row of inputs [from, to) in the compute type: the array's own memory where it has that form already.
// The pointer returned stands for position 0 of the row.
template <class V> class Input {
public:
  Input(const Problem& p, bool widening)
      : p_(p), load_(loader<V>(p.x_type, widening)), direct_(stored_as<V>(p.x_type)) {}

  const V* row(const Row& row, int64_t from, V* buffer) const {
    if (direct_ && p_.op != Op::lp && row.packed(sizeof(V)))
      return reinterpret_cast<const V*>(row.data) - from * p_.lanes;
    load_(row, buffer);
    if constexpr (is_real<V>) {
      if (p_.op == Op::lp)
        for (int64_t j = 0; j < row.n * row.lanes; ++j) buffer[j] = power(buffer[j], V(p_.norm));
    }
    return buffer - from * p_.lanes;
  }

private:
  const Problem& p_;
  Load<V> load_;
  bool direct_;
};

struct Span {
  int64_t from, to;
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

template <class V> bool writes_directly(const Problem& p, const Row& y) {
  return stored_as<V>(p.y_type) && y.packed(sizeof(V));
}

inline void set_tiles(Problem& p, int64_t bytes_per_output, int64_t extent) {
  p.tile = most(1, least(extent, most(least_tile, tile_bytes / most(1, bytes_per_output))));
  p.tiles = ceil_div(extent, p.tile);
  p.units = p.planes * p.tiles * p.rows;
}

// How many rows along the axis before the last are kept: those of one window, when the next window shares some.
inline int64_t ring_rows(const Problem& p) {
  if (p.n_axes < 2) return 0;
  const Axis& a = p.axes[p.n_axes - 2];
  const int64_t span = (a.kernel - 1) * a.step + 1;
  return a.regular() && a.stride < span && a.out > 1 ? least(span, a.size) : 0;
}

inline int64_t slabs(const Problem& p) {
  int64_t n = 1;
  for (int a = 0; a + 2 < p.n_axes; ++a) n *= least(p.axes[a].kernel, p.axes[a].size);
  return n;
}

template <class R, bool coded> struct RowsFirst {
  static constexpr const char* engine = "rows_first";
  using V = typename R::V;
  static constexpr int64_t cell = sizeof(V) + (coded ? sizeof(Code) : 0);

  static int64_t slots(const Problem& p) {
    const int64_t kept = ring_rows(p) * slabs(p);
    // A ring that outgrows the caches is worse than doing rows again.
    return kept && kept * least(p.axes[p.n_axes - 1].out, least_tile) * p.lanes * cell <= 4 * tile_bytes
               ? kept
               : 0;
  }

  static void prepare(Problem& p) {
    const Axis& last = p.axes[p.n_axes - 1];
    set_tiles(p, (most(slots(p), group) + 2) * p.lanes * cell + last.stride * p.lanes * int64_t(sizeof(V)),
              last.out);
    const int64_t length = p.tile * p.lanes, kept = most(slots(p), group);
    const int64_t columns = widest(last, p.tile) * p.lanes;
    p.scratch = RowSet::bytes(p) + Scratch::bytes<V>(columns) +
                Scratch::bytes<V>(p.tile + (last.kernel - 1) * last.step) + Scratch::bytes<V>(length) +
                Scratch::bytes<Code>(length) + Scratch::bytes<int64_t>(kept) +
                Scratch::bytes<char>(kept * Scratch::bytes<V>(length)) +
                Scratch::bytes<char>(kept * Scratch::bytes<Code>(length));
  }

  static void run(const Problem& p, int64_t begin, int64_t end, char* memory) {
    Scratch scratch(memory);
    Walk<Over::outputs> walk(p, begin);
    RowSet rows(p, scratch);
    const Axis& last = p.axes[p.n_axes - 1];
    const int64_t ring = ring_rows(p), kept = slots(p), n_slots = most(kept, group),
                  length = p.tile * p.lanes;
    V* buffer = scratch.take<V>(widest(last, p.tile) * p.lanes);
    V* work = scratch.take<V>(p.tile + (last.kernel - 1) * last.step);
    V* acc = scratch.take<V>(length);
    Code* acc_codes = scratch.take<Code>(length);
    const int64_t row_pitch = Scratch::bytes<V>(length), code_pitch = Scratch::bytes<Code>(length);
    char* value_slots = scratch.take<char>(n_slots * row_pitch);
    char* code_slots = scratch.take<char>(n_slots * code_pitch);
    int64_t* tags = scratch.take<int64_t>(n_slots);
    const Input<V> input(p, false);
    const Store<V> store = storer<V>(p.y_type, false);
    const Codes codes(p);

    for (int64_t s = 0; s < n_slots; ++s) tags[s] = -1;
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t o0 = walk.tile_begin(), o1 = walk.tile_end(), n = (o1 - o0) * p.lanes;
      const Span in = touched(walk.last(), o0, o1);
      const Row y = walk.row(p.y, o0, o1);
      V* dst = writes_directly<V>(p, y) ? reinterpret_cast<V*>(y.data) : acc;
      rows.windows(walk);
      if (rows.count() == 0) {
        for (int64_t j = 0; j < n; ++j) dst[j] = R::init();
        const Code lead = lead_code(walk, p.n_axes);
        for (int64_t j = 0; j < n; ++j)
          acc_codes[j] = lead + Code(window(walk.last(), o0 + j / p.lanes).lead);
      }
      const V* values[group];
      const Code* value_codes[group];
      Code base[group];
      int held = 0;
      for (int64_t r = 0; r < rows.count(); ++r, rows.next()) {
        if (p.stopped()) return;
        int64_t slot = held, tag = -2;
        if (kept) {
          tag = 0;
          for (int a = 0; a < walk.outer(); ++a) tag = tag * p.axes[a].size + rows.index()[a];
          slot = (r / window_rows(walk)) * ring + rows.index()[walk.outer() - 1] % ring;
        }
        V* values_here = reinterpret_cast<V*>(value_slots + slot * row_pitch);
        Code* codes_here = reinterpret_cast<Code*>(code_slots + slot * code_pitch);
        if (tags[slot] != tag || !kept) {
          tags[slot] = tag;
          const V* x = input.row(walk.row(p.x, rows.index(), in.from, in.to), in.from, buffer);
          step(x, walk.last(), o0, o1, p.lanes, rows.count() == 1 ? dst : values_here,
               rows.count() == 1 ? acc_codes : codes_here, work);
          if (rows.count() == 1) {
            tags[slot] = -1;
            if constexpr (coded) {
              const Code first = rows.code(p.axes);
              for (int64_t j = 0; j < n; ++j) acc_codes[j] += first;
            }
            break;
          }
        } else if (rows.count() == 1) {
          for (int64_t j = 0; j < n; ++j) dst[j] = values_here[j];
          if constexpr (coded) {
            const Code first = rows.code(p.axes);
            for (int64_t j = 0; j < n; ++j) acc_codes[j] = codes_here[j] + first;
          }
          break;
        }
        values[held] = values_here;
        value_codes[held] = codes_here;
        base[held++] = coded ? rows.code(p.axes) : 0;
        if (held == group || r + 1 == rows.count()) {
          const bool go_on = r >= group;
          if constexpr (coded)
            fold_coded<R>(values, value_codes, base, held, dst, acc_codes, n, go_on);
          else
            fold<R>(values, held, dst, n, go_on);
          held = 0;
        }
      }
      if (dst == acc) store(acc, y);
      if constexpr (coded) codes.store(acc_codes, walk, walk.row(p.extra_array, o0, o1));
      if (unit + 1 < end && walk.next())
        for (int64_t s = 0; s < n_slots; ++s) tags[s] = -1;
    }
  }

private:
  static int64_t window_rows(const Walk<Over::outputs>& walk) {
    const int h = int(walk.outer()) - 1;
    return window(walk.axis(h), walk.at(h)).taps;
  }

  static void step(const V* x, const Axis& a, int64_t o0, int64_t o1, int64_t lanes, V* dst, Code* at,
                   V* work) {
    if constexpr (coded) {
      if (lanes == 1)
        row_windows_coded<R>(x, a, o0, o1, dst, at);
      else
        lane_windows_coded<R>(x, a, o0, o1, lanes, dst, at);
    } else {
      if (lanes == 1)
        row_windows<R>(x, a, o0, o1, dst, work);
      else
        lane_windows<R>(x, a, o0, o1, lanes, dst);
    }
  }
};

template <class R> struct ColumnsFirst {
  static constexpr const char* engine = "columns_first";
  using V = typename R::V;

  static void prepare(Problem& p) {
    const Axis& last = p.axes[p.n_axes - 1];
    set_tiles(p, (last.stride * 3 + 2) * p.lanes * int64_t(sizeof(V)), last.out);
    const int64_t length = p.tile * p.lanes, columns = widest(last, p.tile) * p.lanes;
    p.scratch = RowSet::bytes(p) + (1 + group) * Scratch::bytes<V>(columns) + Scratch::bytes<Code>(columns) +
                Scratch::bytes<V>(length) + Scratch::bytes<Code>(length);
  }

  static void run(const Problem& p, int64_t begin, int64_t end, char* memory) {
    Scratch scratch(memory);
    Walk<Over::outputs> walk(p, begin);
    RowSet rows(p, scratch);
    const int64_t columns = widest(p.axes[p.n_axes - 1], p.tile) * p.lanes, length = p.tile * p.lanes;
    V* buffers[group];
    for (V*& buffer : buffers) buffer = scratch.take<V>(columns);
    V* folded = scratch.take<V>(columns);
    Code* row_codes = scratch.take<Code>(columns);
    V* acc = scratch.take<V>(length);
    Code* acc_codes = scratch.take<Code>(length);
    const Input<V> input(p, !R::picks);
    const Store<V> store = storer<V>(p.y_type, !R::picks);
    const Codes codes(p);

    for (int64_t unit = begin; unit < end; ++unit, walk.next()) {
      const int64_t o0 = walk.tile_begin(), o1 = walk.tile_end(), n = (o1 - o0) * p.lanes;
      const Span in = touched(walk.last(), o0, o1);
      const int64_t shift = in.from * p.lanes, width = (in.to - in.from) * p.lanes;
      const Row y = walk.row(p.y, o0, o1);
      V* dst = writes_directly<V>(p, y) ? reinterpret_cast<V*>(y.data) : acc;
      rows.windows(walk);
      const V* x = folded - shift;  // stands for position 0, like every row
      const V* values[group];
      const Code* none[group] = {};
      Code base[group];
      int held = 0;
      for (int64_t r = 0; r < rows.count(); ++r, rows.next()) {
        if (p.stopped()) return;
        const V* row = input.row(walk.row(p.x, rows.index(), in.from, in.to), in.from, buffers[held]);
        if (rows.count() == 1 && !R::picks) {
          x = row;
          break;
        }
        values[held] = row + shift;
        base[held++] = R::picks ? rows.code(p.axes) : 0;
        if (held == group || r + 1 == rows.count()) {
          if constexpr (R::picks)
            fold_coded<R>(values, none, base, held, folded, row_codes, width, r >= group);
          else
            fold<R>(values, held, folded, width, r >= group);
          held = 0;
        }
      }
      if constexpr (R::picks) {
        const Code nowhere = lead_code(walk, p.n_axes);
        if (rows.count() == 0)
          for (int64_t j = 0; j < width; ++j) folded[j] = R::init(), row_codes[j] = nowhere;
        across_columns<R>(x, row_codes - shift, nowhere, walk.last(), o0, o1, p.lanes, dst, acc_codes);
        if (p.extra != Extra::none) codes.store(acc_codes, walk, walk.row(p.extra_array, o0, o1));
      } else {
        if (rows.count() == 0)
          for (int64_t j = 0; j < n; ++j) dst[j] = V(0);
        else if (p.lanes == 1)
          row_windows<R>(x, walk.last(), o0, o1, dst, nullptr);
        else
          lane_windows<R>(x, walk.last(), o0, o1, p.lanes, dst);
        finish(p, walk, o0, o1, dst);
      }
      if (dst == acc) store(acc, y);
    }
  }

private:
  // From sums to means or norms.
  static void finish(const Problem& p, const Walk<Over::outputs>& walk, int64_t o0, int64_t o1, V* dst) {
    if (!p.divide) {
      for (int64_t j = 0; j < (o1 - o0) * p.lanes; ++j) dst[j] = from_zero(dst[j]);
      return;
    }
    int64_t outer = 1, taps = 1;
    for (int a = 0; a < walk.outer(); ++a) outer *= share(walk.axis(a), walk.at(a));
    for (int a = 0; a < p.n_axes; ++a) taps *= p.axes[a].uncropped;
    const auto divide = [&](V* from, int64_t n, int64_t by) {
      if constexpr (is_real<V>) {
        if (p.op == Op::lp) {
          for (int64_t j = 0; j < n; ++j) {
            const V mean = from[j] / V(by);
            from[j] = power(V(mean * V(taps)), V(1 / p.norm));
          }
          return;
        }
      }
      if (by == 0) by = 1;  // an empty window's sum is zero whatever it is divided by
      if (by == -1)         // the one quotient that can overflow
        for (int64_t j = 0; j < n; ++j) from[j] = Sum<V>::negated(from[j]);
      else
        for (int64_t j = 0; j < n; ++j) from[j] = V(from_zero(from[j]) / V(by));
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

// One rule for both: rows first wherever rows are regular and their windows short or shared.
template <class V> bool columns_first(const Problem& p) {
  const Axis& last = p.axes[p.n_axes - 1];
  return p.n_axes > 1 && (!last.regular() || (last.kernel >= 4 && last.stride >= last.kernel));
}

}  // namespace
}  // namespace ndpool

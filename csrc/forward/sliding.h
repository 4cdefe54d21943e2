// Sliding: any window of stride 1. A tile of the input is laid out in scratch with padding between its rows, so that one
// loop of whole vectors processes all rows. Along a row, windows are built from shorter ones. Down the columns, maxima
// follow van Herk (the end of one block of rows and the beginning of the next) and sums are doubled. Each element
// contributes only to the windows that contain it, so NaN and infinity never leak, and the order of additions depends on
// the window alone. Without this engine indices of 13 x 13 windows take 9.3 times as long, those of 7 x 7 5.5 times.
#pragma once

#include "forward/general.h"
#include "simd.h"

namespace ndpool {
namespace {

template <class R, bool coded> struct Sliding {
  static constexpr const char* engine = "sliding";
  using V = typename R::V;
  using C = UnsignedLike<V>;
  static constexpr int N = wide<V>;
  static constexpr bool can_be_nan = R::picks && is_real<V>;
  using Vn = Vec<V, N>;
  using Cn = Vec<C, N>;
  static constexpr int64_t cell = sizeof(V) + (coded ? sizeof(C) : 0);
  static constexpr int64_t row_elements = 32 * 1024 / sizeof(V), tile_elements = 256 * 1024 / sizeof(V),
                           group_elements = 16 * 1024 / sizeof(V);
  static constexpr int broad = 4;  // vectors of a column strip

  static int64_t span(const Axis& a) { return (a.kernel - 1) * a.step; }

  static bool serves(const Problem& p) {
    if (p.n_axes > 2 || p.op == Op::lp) return false;
    for (int a = 0; a < p.n_axes; ++a)
      if (!p.axes[a].regular() || p.axes[a].stride != 1) return false;
    if constexpr (coded) {
      const Axis& last = p.axes[p.n_axes - 1];
      return sizeof(V) >= 4 &&
             double(p.axes[0].kernel * p.axes[0].step) * double(last.size + span(last)) < 4e9;
    }
    return true;
  }

  struct Cut {  // how the work is cut into tiles
    Axis rows, cols;
    int64_t lanes, chunks;        // lanes of one tile, tiles over all lanes
    int64_t width, tiles;         // output columns
    int64_t height, tall;         // output rows
    int64_t group, plane_rows;    // small planes are stacked: planes of a tile, rows from one to the next
    int64_t pitch_most, in_rows;  // elements of a laid out row, rows

    explicit Cut(const Problem& p)
        : rows(p.n_axes == 2 ? p.axes[0] : single_axis(1)), cols(p.axes[p.n_axes - 1]) {
      const int64_t whole = cols.out + span(cols);
      lanes = p.lanes;
      if (lanes > N && whole * lanes > row_elements)
        lanes = most(N, least(lanes, row_elements / whole) / N * N);
      chunks = ceil_div(p.lanes, lanes);
      // Tall windows have narrow tiles, so that what one tile shares with the next is not most of it.
      const int64_t wide_row =
          span(cols) ? row_elements : least(row_elements, most(64 * N, tile_elements / (4 * span(rows) + 1)));
      width = whole * lanes <= wide_row
                  ? cols.out
                  : least(cols.out, most(wide_row / lanes, 2 * span(cols)) - span(cols));
      width = most(1, width);
      tiles = ceil_div(cols.out, width);
      pitch_most = (width + span(cols)) * lanes;
      height = least(rows.out, most(most(8, span(rows) + 1), tile_elements / pitch_most - span(rows)));
      tall = ceil_div(rows.out, height);
      const int64_t above = most(0, -rows.origin),
                    below = most(0, rows.out + rows.origin + span(rows) - rows.size);
      plane_rows = rows.out + span(rows) - least(above, below);
      group = chunks * tiles * tall > 1 || rows.step > 1
                  ? 1
                  : most(1, least(p.planes, group_elements / (plane_rows * pitch_most)));
      in_rows = height + span(rows) + (group - 1) * plane_rows;
    }
  };

  static constexpr int64_t slack = 2 * broad * N;

  // Channels that fill a vector, along the rows of a window that are many: they lie as the rows of a plane do.
  static bool arranges(const Problem& p) {
    return !coded && p.n_axes == 1 && p.lanes >= 4 * N &&
           (p.axes[0].out + span(p.axes[0])) * p.lanes > row_elements;
  }

  static void prepare(Problem& p) {
    const Cut cut(arranges(p) ? channels_as_row(p) : p);
    p.tile = cut.width;
    p.units = ceil_div(p.planes, cut.group) * cut.chunks * cut.tiles * cut.tall;
    const int64_t tile = cut.in_rows * most(N, cut.pitch_most) + cut.pitch_most + slack;
    p.scratch = (R::picks ? 1 : 3) * Scratch::bytes<V>(tile) + (coded ? Scratch::bytes<C>(tile) : 0) +
                Scratch::bytes<V>((cut.in_rows + 1) * broad * N) +
                Scratch::bytes<C>((cut.in_rows + 1) * broad * N) +
                Scratch::bytes<V>(cut.in_rows * most(N, cut.width * cut.lanes) + slack) +
                Scratch::bytes<C>(cut.in_rows * most(N, cut.width * cut.lanes) + slack) +
                Scratch::bytes<V>(cut.width * cut.lanes + slack) + Scratch::bytes<V>(cut.height);
  }

  // A tile: which outputs, and how its rows lie in scratch.
  struct Tile {
    int64_t plane, planes, lane0, lanes, c0, c1, r0, r1;
    int64_t from, to, before, gap,
        pitch;  // input columns inside, elements in front of the first, between two rows
    int64_t n;  // elements of an output row
  };

  static void run(const Problem& p, int64_t begin, int64_t end, char* memory) {
    if (!arranges(p)) return tiles(p, begin, end, memory);
    const Problem q = channels_as_row(p);
    tiles(q, begin, end, memory);
  }

private:
  static void tiles(const Problem& p, int64_t begin, int64_t end, char* memory) {
    Sliding work(p, memory);
    for (int64_t unit = begin; unit < end; ++unit) work.tile(unit);
  }

  const Problem& p_;
  const Cut cut_;
  const Input<V> input_;
  const Store<V> store_;
  V *in_, *sums_ = nullptr, *more_ = nullptr, *strip_, *out_, *by_, *outer_;
  C *in_codes_ = nullptr, *strip_codes_, *out_codes_;
  const Readable readable_;
  int64_t ahead_;        // to elements that are asked for: the next rows of a tile
  int64_t loaded_ = -1;  // the unit whose rows lie in scratch
  bool nan_ = false;     // in the rows loaded for it
  C row_unit_, col_unit_;
  bool small_;        // 3 x 3
  bool even_ = true;  // all columns share the divisor
  bool exact_;        // whole numbers that floats can hold
  bool follow_;       // rows of results follow each other in memory, tile by tile

  Sliding(const Problem& p, char* memory)
      : p_(p), cut_(p), input_(p, true), store_(storer<V>(p.y_type, true)),
        readable_(p, p.x, sizeof(V), Over::inputs) {
    Scratch scratch(memory);
    const int64_t tile = cut_.in_rows * most(N, cut_.pitch_most) + cut_.pitch_most + slack;
    in_ = scratch.take<V>(tile);
    if constexpr (!R::picks) {
      sums_ = scratch.take<V>(tile);
      more_ = scratch.take<V>(tile);
    }
    if constexpr (coded) in_codes_ = scratch.take<C>(tile);
    strip_ = scratch.take<V>((cut_.in_rows + 1) * broad * N);
    strip_codes_ = scratch.take<C>((cut_.in_rows + 1) * broad * N);
    out_ = scratch.take<V>(cut_.in_rows * most(N, cut_.width * cut_.lanes) + slack);
    out_codes_ = scratch.take<C>(cut_.in_rows * most(N, cut_.width * cut_.lanes) + slack);
    by_ = scratch.take<V>(cut_.width * cut_.lanes + slack);
    outer_ = scratch.take<V>(cut_.height);
    small_ = cut_.rows.kernel == 3 && cut_.cols.kernel == 3 && (R::picks || cut_.cols.step * p.lanes == 1);
    exact_ = p.x_type < Dtype::f16 && p.y_type < Dtype::f16;
    ahead_ = p.n_axes < 2 || cut_.tiles == 1 ? fetched_ahead(1, sizeof(V), 2)
                                             : 2 * p.x.pooled[0] / int64_t(sizeof(V));
    follow_ = cut_.tiles == 1 && cut_.chunks == 1 && follows(p, p.y, sizeof(V), Over::outputs);
    const bool positions = p.extra == Extra::index64;
    row_unit_ = C(positions ? cut_.rows.step * cut_.cols.size : cut_.cols.kernel);
    col_unit_ = C(positions ? cut_.cols.step : 1);
  }

  Tile at(int64_t unit) const {
    Tile t;
    const int64_t tall = unit % cut_.tall, across = unit / cut_.tall % cut_.tiles;
    const int64_t chunk = unit / cut_.tall / cut_.tiles % cut_.chunks;
    t.plane = unit / cut_.tall / cut_.tiles / cut_.chunks * cut_.group;
    t.planes = least(cut_.group, p_.planes - t.plane);
    t.lane0 = chunk * cut_.lanes;
    t.lanes = least(cut_.lanes, p_.lanes - t.lane0);
    t.c0 = across * cut_.width;
    t.c1 = least(cut_.cols.out, t.c0 + cut_.width);
    t.r0 = tall * cut_.height;
    t.r1 = least(cut_.rows.out, t.r0 + cut_.height);
    const int64_t first = t.c0 + cut_.cols.origin, last = t.c1 - 1 + cut_.cols.origin + span(cut_.cols) + 1;
    t.from = most(0, least(first, cut_.cols.size));
    t.to = most(t.from, least(last, cut_.cols.size));
    const int64_t left = least(t.from - first, last - first), right = most(0, last - most(first, t.to));
    t.before = most(0, left) * t.lanes;
    t.gap = most(most(0, left), right) * t.lanes;
    t.pitch = (t.to - t.from) * t.lanes + t.gap;
    t.n = (t.c1 - t.c0) * t.lanes;
    return t;
  }

  char* base(const Array& array, const Tile& t, int64_t q = 0) const {
    char* data = array.data + t.lane0 * array.lane;
    if (p_.n_lead == 1) return data + (t.plane + q) * array.lead[0];
    for (int64_t rest = t.plane + q, a = p_.n_lead - 1; a >= 0; --a) {
      data += rest % p_.lead_shape[a] * array.lead[a];
      rest /= p_.lead_shape[a];
    }
    return data;
  }

  // Row r of an array's plane, columns [from, to).
  Row row(const Array& array, char* base, const Tile& t, int64_t r, int64_t from, int64_t to) const {
    const int last = p_.n_axes - 1;
    return {base + (last ? r * array.pooled[0] : 0) + from * array.pooled[last], array.pooled[last],
            array.lane, to - from, t.lanes};
  }

  void tile(int64_t unit) {
    const Tile t = at(unit);
    const int64_t height = t.r1 - t.r0 + (t.planes - 1) * cut_.plane_rows, rows = height + span(cut_.rows);
    int64_t kept = 0;
    if (loaded_ >= 0 && loaded_ + 1 == unit && t.r0 > 0) {  // what the tile above shares with this one
      kept = span(cut_.rows);
      copy(in_ + cut_.height * t.pitch, in_, kept * t.pitch + t.gap);
      if constexpr (coded) copy(in_codes_ + cut_.height * t.pitch, in_codes_, kept * t.pitch + t.gap);
    }
    bool nan = kept && nan_;
    nan_ = false;
    load(t, kept, rows);
    loaded_ = unit;
    nan |= nan_;
    if (nan)
      finish<false>(t);
    else
      finish<true>(t);
  }

  template <class T> static void copy(const T* from, T* to, int64_t n) {
    for (int64_t j = 0; j < n; j += wide<T>) write(to + j, read<T, wide<T>>(from + j));
  }
  template <class T> static void fill(T* to, int64_t n, T value) {
    for (int64_t j = 0; j < n; j += wide<T>) write(to + j, Vec<T, wide<T>>{} + value);
  }

  // Rows [first, rows) of the tile into scratch; for maxima their horizontal windows as well, while they are in L1.
  void load(const Tile& t, int64_t first, int64_t rows) {
    const int64_t inside = (t.to - t.from) * t.lanes;
    const int64_t top = t.r0 + cut_.rows.origin, block = most(1, row_elements / most(1, t.pitch));
    int64_t q = 0, i = first + top;  // the row of plane q that comes next; it may be one of padding
    char* plane = base(p_.x, t);
    const V* first_row = reinterpret_cast<const V*>(plane) + t.from * t.lanes;
    const int64_t pitch = p_.n_axes == 2 ? p_.x.pooled[0] / int64_t(sizeof(V)) : 0;
    const bool plain = !reordered(p_) && stored_as<V>(p_.x_type) &&
                       (t.lanes == 1 || (p_.x.lane == sizeof(V) && t.lanes == p_.lanes)) &&
                       p_.x.pooled[p_.n_axes - 1] == int64_t(sizeof(V)) * t.lanes;
    for (int64_t r = first; r < rows; r += block) {
      const int64_t end = least(rows, r + block);
      fill(in_ + r * t.pitch, t.before, R::init());  // what went before wrote whole vectors
      V* to = in_ + r * t.pitch + t.before;
      auto seen = Vn{} != Vn{};  // where a NaN was met
      for (int64_t n = end - r; n > 0; --n, ++i, to += t.pitch) {
        if (i - top == cut_.plane_rows && q + 1 < t.planes) {
          i = top;
          plane = base(p_.x, t, ++q);
          first_row = reinterpret_cast<const V*>(plane) + t.from * t.lanes;
        }
        if (i < 0 || i >= cut_.rows.size || inside == 0) {
          fill(to, t.pitch, R::init());
          continue;
        }
        put(plain ? first_row + i * pitch : input_.row(row(p_.x, plane, t, i, t.from, t.to), 0, to), to,
            inside, seen);
        fill(to + inside, t.gap, R::init());
      }
      if constexpr (R::picks) {
        bool nan = false;
        if constexpr (can_be_nan) nan = any(seen);
        nan_ |= nan;
        if (small_) continue;
        const int64_t at = r * t.pitch, n = (end - r) * t.pitch + t.before;
        if (nan)
          across<false>(t, at, n);
        else
          across<true>(t, at, n);
      }
    }
  }

  template <class Mask> void put(const V* from, V* to, int64_t n, Mask& seen) const {
    const auto look = [&](Vn v) __attribute__((always_inline)) {
      if constexpr (can_be_nan) seen |= v != v;
      return v;
    };
    if (from != to && readable_.holds(from, n + N)) {  // reads beyond the row, but not beyond the array
      for (int64_t j = 0; j < n; j += N) {
        fetch(from + j + ahead_);
        write(to + j, look(read<V, N>(from + j)));
      }
      return;
    }
    if (from != to) copy_exactly(from, to, n);
    for (int64_t j = 0; j < n; j += N) look(read<V, N>(to + j));  // what lies behind the row does no harm
  }

  template <bool speculative> static Vn merge(Vn later, Vn best) {
    if constexpr (!R::picks) return best + later;
    auto better = R::beats(later, best);
    if constexpr (!speculative && can_be_nan) better |= later != later;
    return better ? later : best;
  }
  template <bool speculative> static void merge(Vn later, Cn later_code, Vn& best, Cn& code) {
    auto better = R::beats(later, best);
    if constexpr (!speculative && can_be_nan) better |= later != later;
    best = better ? later : best;
    code = better ? later_code : code;
  }

  // Maxima: windows of up to four times the length from those before, the last of them overlapping as they must.
  template <bool speculative> void across(const Tile& t, int64_t at, int64_t n) {
    const int64_t unit = cut_.cols.step * t.lanes, kernel = cut_.cols.kernel;
    V* x = in_ + at;
    if constexpr (coded) fill(in_codes_ + at, n, C(0));
    for (int64_t m = 1; m < kernel;) {
      int parts = 0;
      int64_t taps[3];
      for (int64_t to = m; parts < 3 && to < kernel;) {
        taps[parts] = least(to, kernel - m);
        to = taps[parts++] + m;
      }
      m += taps[parts - 1];
      if (parts == 3)
        widen<3, speculative>(x, in_codes_ + at, n, taps, unit);
      else if (parts == 2)
        widen<2, speculative>(x, in_codes_ + at, n, taps, unit);
      else
        widen<1, speculative>(x, in_codes_ + at, n, taps, unit);
    }
  }

  // x[j] = x[j] . x[j + taps[0]] . ..., in place: what is read lies ahead of what is written.
  template <int parts, bool speculative>
  void widen(V* x, C* codes, int64_t n, const int64_t* taps, int64_t unit) const {
    for (int64_t j = 0; j < n; j += N) {
      Vn best = read<V, N>(x + j);
      Cn code{};
      if constexpr (coded) code = read<C, N>(codes + j);
      for (int k = 0; k < parts; ++k) {
        const Vn later = read<V, N>(x + j + taps[k] * unit);
        if constexpr (coded)
          merge<speculative>(later, read<C, N>(codes + j + taps[k] * unit) + C(taps[k]) * col_unit_, best,
                             code);
        else
          best = merge<speculative>(later, best);
      }
      write(x + j, best);
      if constexpr (coded) write(codes + j, code);
    }
  }

  template <bool speculative> void finish(const Tile& t) {
    const int64_t rows = t.r1 - t.r0;
    const Row first = row(p_.y, base(p_.y, t), t, t.r0, t.c0, t.c1);
    const bool native =
        writes_directly<V>(p_, first) && (p_.n_axes == 1 || p_.y.pooled[0] % int64_t(sizeof(V)) == 0);
    const int64_t y_pitch = p_.n_axes == 2 ? p_.y.pooled[0] / int64_t(sizeof(V)) : t.n;
    if constexpr (!R::picks) even_ = shares(t);
    for (int64_t q = 0; q < t.planes; ++q) {
      char* plane = q ? base(p_.y, t, q)
                      : first.data - t.c0 * first.stride - (p_.n_axes == 2 ? t.r0 * p_.y.pooled[0] : 0);
      V* y = reinterpret_cast<V*>(row(p_.y, plane, t, t.r0, t.c0, t.c1).data);
      const int64_t at = q * cut_.plane_rows;
      // Elements from y on that belong to this tile and are written in rising order: what spills is written again.
      const int64_t room = follow_ ? (t.planes - q) * rows * t.n : 0;
      if (R::picks || small_) {
        // A row shorter than a vector spills into the next, which must be written later.
        const bool direct = native && (t.n >= N || (room >= rows * t.n + N && cut_.rows.step == 1));
        V* to = direct ? y : out_;
        const int64_t pitch = direct ? y_pitch : out_pitch(t);
        down_all<speculative>(t, rows, at, to, pitch, t.n);
        if constexpr (coded) store_codes(t, q, to, pitch);
        if (!direct)
          for (int64_t r = 0; r < rows; ++r) {
            if (!native) {
              reorder(p_, out_ + r * pitch, t.n);
              store_(out_ + r * pitch, row(p_.y, plane, t, t.r0 + r, t.c0, t.c1));
            } else
              emit([from = out_ + r * pitch](int64_t j) { return read<V, N>(from + j); }, y + r * y_pitch,
                   t.n, room - r * t.n);
          }
      } else if constexpr (!R::picks) {
        // Not when rows are skipped: then every row has a vector of its own.
        const int64_t pitch = cut_.rows.step > 1 ? most(t.pitch, N) : t.pitch;
        down_all<true>(t, rows, at, sums_, pitch, t.pitch);
        fill(sums_ + (rows - 1) * pitch + t.pitch, t.gap, V(0));
        sum_across(t, rows, pitch, [&](int64_t r, auto&& f) __attribute__((always_inline)) {
          if (native) return emit(f, y + r * y_pitch, t.n, room - r * t.n);
          emit(f, out_, t.n, t.n + N);
          store_(out_, row(p_.y, plane, t, t.r0 + r, t.c0, t.c1));
        });
      }
    }
  }

  // A row of results; `room` elements from its beginning on may be written.
  template <class F>
  __attribute__((always_inline)) static inline void emit(F&& f, V* to, int64_t n, int64_t room) {
    int64_t j = 0;
    for (; j + N <= n || (j < n && j + N <= room); j += N) write(to + j, f(j));
    if (j >= n) return;
    if (n >= N) return write(to + n - N, f(n - N));
    const Vn v = f(j);
    for (int64_t c = 0; j + c < n; ++c) to[j + c] = v[c];
  }

  static int64_t out_pitch(const Tile& t) { return most(t.n, N); }

  // Column strips of the plane whose rows begin at row `at`: broad ones, then narrow ones, the last of which takes
  // some columns once more.
  template <bool speculative>
  void down_all(const Tile& t, int64_t rows, int64_t at, V* y, int64_t y_pitch, int64_t n) {
    int64_t j = 0;
    for (; j + broad * N <= n; j += broad * N) down<broad, speculative>(t, rows, at, y, y_pitch, j);
    for (; j < n; j += N) down<1, speculative>(t, rows, at, y, y_pitch, n < N ? 0 : least(j, n - N));
  }

  template <int W, bool speculative>
  void down(const Tile& t, int64_t height, int64_t at, V* y, int64_t y_pitch, int64_t column) {
    const int64_t step = cut_.rows.step, pitch = t.pitch;
    for (int64_t q = 0; q < least(step, height); ++q) {  // rows of one remainder are windows without gaps
      const int64_t rows = ceil_div(height - q, step), from = (at + q) * pitch + column;
      V* to = y + q * y_pitch + column;
      if constexpr (!R::picks) {
        if (small_)
          small_sums<W>(rows, in_ + from, pitch * step, to, y_pitch * step, column, outer_ + q, step);
        else
          sum_down<W>(rows, in_ + from, pitch * step, to, y_pitch * step);
      } else {
        C *codes = coded ? in_codes_ + from : nullptr, *y_codes = out_codes_ + q * out_pitch(t) + column;
        if (small_)
          small_down<W, speculative>(rows, in_ + from, pitch * step, cut_.cols.step * t.lanes, to,
                                     y_pitch * step, y_codes, out_pitch(t) * step);
        else
          best_down<W, speculative>(rows, in_ + from, codes, pitch * step, to, y_pitch * step, y_codes,
                                    out_pitch(t) * step);
      }
    }
  }

  // Sums of 3 x 3: three rows in registers, columns first.
  template <int W> void small_sums(int64_t rows, const V* x, int64_t pitch, V* y, int64_t y_pitch,
                                   int64_t column, const V* outer, int64_t outer_step) const {
    Vn above[W + 1], middle[W + 1];
    for (int w = 0; w <= W; ++w) {
      above[w] = read<V, N>(x + w * N);
      middle[w] = read<V, N>(x + pitch + w * N);
    }
    x += 2 * pitch;
    for (int64_t r = 0; r < rows; ++r, x += pitch, y += y_pitch, outer += outer_step) {
      Vn down[W + 1];
      for (int w = 0; w <= W; ++w) {
        const Vn below = read<V, N>(x + w * N);
        down[w] = above[w] + middle[w] + below;
        above[w] = middle[w];
        middle[w] = below;
      }
      const auto sum = [&](int w) __attribute__((always_inline)) {
        return down[w] + shifted<1>(down[w], down[w + 1]) + shifted<2>(down[w], down[w + 1]);
      };
      if (!p_.divide) {
        for (int w = 0; w < W; ++w) write(y + w * N, sum(w));
      } else if (even_) {
        const V by = by_[0] * *outer;
        for (int w = 0; w < W; ++w) write(y + w * N, sum(w) / (by == 0 ? V(1) : by));
      } else {
        for (int w = 0; w < W; ++w) {
          const Vn by = read<V, N>(by_ + column + w * N) * *outer;
          write(y + w * N, sum(w) / (by == V(0) ? Vn{} + V(1) : by));
        }
      }
    }
  }

  // Windows of 3 x 3: the horizontal ones of three rows in registers.
  template <int W, bool speculative> void small_down(int64_t rows, const V* x, int64_t pitch, int64_t unit,
                                                     V* y, int64_t y_pitch, C* y_codes,
                                                     int64_t codes_pitch) const {
    Vn above[W], middle[W];
    Cn above_code[W], middle_code[W];
    const auto across = [&](const V* from, Cn& code, C shift) __attribute__((always_inline)) {
      Vn best = read<V, N>(from);
      if constexpr (coded) {
        code = Cn{} + shift;
        merge<speculative>(read<V, N>(from + unit), Cn{} + (shift + col_unit_), best, code);
        merge<speculative>(read<V, N>(from + 2 * unit), Cn{} + (shift + 2 * col_unit_), best, code);
      } else {
        best = merge<speculative>(read<V, N>(from + unit), best);
        best = merge<speculative>(read<V, N>(from + 2 * unit), best);
      }
      return best;
    };
    for (int w = 0; w < W; ++w) {
      above[w] = across(x + w * N, above_code[w], C(0));
      middle[w] = across(x + pitch + w * N, middle_code[w], C(row_unit_));
    }
    x += 2 * pitch;
    for (int64_t r = 0; r < rows; ++r, x += pitch, y += y_pitch, y_codes += codes_pitch)
      for (int w = 0; w < W; ++w) {
        Cn code{};
        const Vn below = across(x + w * N, code, C(2 * row_unit_));
        Vn best = above[w];
        if constexpr (coded) {
          Cn at = above_code[w];
          merge<speculative>(middle[w], middle_code[w], best, at);
          merge<speculative>(below, code, best, at);
          write(y_codes + w * N, at);
          above_code[w] = middle_code[w] - row_unit_;
          middle_code[w] = code - row_unit_;
        } else {
          best = merge<speculative>(below, merge<speculative>(middle[w], best));
        }
        write(y + w * N, best);
        above[w] = middle[w];
        middle[w] = below;
      }
  }

  // The end of a block of rows and the beginning of the next: together, a window.
  template <int W, bool speculative> void best_down(int64_t rows, const V* x, const C* codes, int64_t pitch,
                                                    V* y, int64_t y_pitch, C* y_codes,
                                                    int64_t codes_pitch) const {
    const int64_t kernel = cut_.rows.kernel;
    const C unit = row_unit_;
    Vn best[W];
    Cn code[W];
    const auto get = [&](int64_t r, int w, C shift, Cn& c) __attribute__((always_inline)) {
      if constexpr (coded) c = read<C, N>(codes + r * pitch + w * N) + shift;
      return read<V, N>(x + r * pitch + w * N);
    };
    const auto set = [&](int64_t r, int w, Vn value, Cn c, C shift) __attribute__((always_inline)) {
      write(y + r * y_pitch + w * N, value);
      if constexpr (coded) write(y_codes + r * codes_pitch + w * N, c - shift);
    };
    const auto later_wins = [&](Vn later, Cn later_code, Vn& value, Cn& c) __attribute__((always_inline)) {
      if constexpr (coded)
        merge<speculative>(later, later_code, value, c);
      else
        value = merge<speculative>(later, value);
    };
    if (kernel <= 3) {
      for (int64_t r = 0; r < rows; ++r)
        for (int w = 0; w < W; ++w) {
          Cn c{}, later{};
          Vn value = get(r, w, C(0), c);
          for (int64_t k = 1; k < kernel; ++k) {
            const Vn v = get(r + k, w, C(k) * unit, later);
            later_wins(v, later, value, c);
          }
          set(r, w, value, c, C(0));
        }
      return;
    }
    for (int64_t s = 0; s < rows; s += kernel) {
      for (int64_t i = kernel - 1; i >= 0; --i)
        for (int w = 0; w < W; ++w) {
          Cn c{};
          Vn value = get(s + i, w, C(i) * unit, c);
          if (i < kernel - 1) later_wins(best[w], code[w], value, c);
          best[w] = value;
          code[w] = c;
          write(strip_ + (i * W + w) * N, value);
          if constexpr (coded) write(strip_codes_ + (i * W + w) * N, c);
        }
      for (int w = 0; w < W; ++w) set(s, w, best[w], code[w], C(0));
      const int64_t n = least(kernel, rows - s);
      for (int64_t i = 1; i < n; ++i)
        for (int w = 0; w < W; ++w) {
          Cn c{}, later{};
          Vn v = get(s + kernel + i - 1, w, C(kernel + i - 1) * unit, later);
          if (i > 1) {
            later_wins(v, later, best[w], code[w]);
          } else {
            best[w] = v;
            code[w] = later;
          }
          Vn value = read<V, N>(strip_ + (i * W + w) * N);
          if constexpr (coded) c = read<C, N>(strip_codes_ + (i * W + w) * N);
          later_wins(best[w], code[w], value, c);
          set(s + i, w, value, c, C(i) * unit);
        }
    }
  }

  // Sums of n, 2 n or 2 n + 1 rows, from those of n: the bits of the kernel from the top. Where sums are exact, a row
  // that comes and one that goes are all it takes.
  template <int W> void sum_down(int64_t rows, const V* x, int64_t pitch, V* y, int64_t y_pitch) const {
    const int64_t kernel = cut_.rows.kernel;
    if (exact_) {
      Vn sum[W] = {};
      for (int64_t r = 1 - kernel; r < rows; ++r, x += pitch)
        for (int w = 0; w < W; ++w) {
          sum[w] += read<V, N>(x + w * N);
          if (r > 0) sum[w] -= read<V, N>(x - kernel * pitch + w * N);
          if (r >= 0) write(y + r * y_pitch + w * N, sum[w]);
        }
      return;
    }
    const V* from = x;
    int64_t from_pitch = pitch, n = 1;
    for (int bit = top_bit(kernel) - 1; bit >= 0; --bit) {
      const bool odd = kernel >> bit & 1;
      V* to = bit ? strip_ : y;
      const int64_t to_pitch = bit ? W * N : y_pitch, count = rows + kernel - (kernel >> bit);
      for (int64_t r = 0; r < count; ++r)
        for (int w = 0; w < W; ++w) {
          Vn sum =
              read<V, N>(from + r * from_pitch + w * N) + read<V, N>(from + (r + n) * from_pitch + w * N);
          if (odd) sum += read<V, N>(x + (r + 2 * n) * pitch + w * N);
          write(to + r * to_pitch + w * N, sum);
        }
      from = strip_;
      from_pitch = W * N;
      n = 2 * n + odd;
    }
    if (kernel == 1)
      for (int64_t r = 0; r < rows; ++r)
        for (int w = 0; w < W; ++w) write(y + r * y_pitch + w * N, read<V, N>(x + r * pitch + w * N));
  }

  static int top_bit(int64_t n) { return 63 - __builtin_clzll(std::uint64_t(n)); }

  // Sums along the rows; the last step hands every finished row to `out`, as a function from an element to a vector.
  template <class F> void sum_across(const Tile& t, int64_t height, int64_t pitch, F&& out) {
    const int64_t unit = cut_.cols.step * t.lanes, kernel = cut_.cols.kernel;
    const int64_t block = most(1, row_elements / most(1, pitch));
    for (int64_t r = 0; r < height; r += block) {
      const int64_t rows = least(block, height - r), length = rows * pitch + t.before;
      const V *x = sums_ + r * pitch, *from = x;
      int64_t n = 1;
      for (int bit = top_bit(kernel) - 1; bit > 0; --bit) {
        const bool odd = kernel >> bit & 1;
        const int64_t shift = n * unit;
        if (odd)
          for (int64_t j = 0; j < length; j += N)
            write(more_ + j,
                  read<V, N>(from + j) + read<V, N>(from + j + shift) + read<V, N>(x + j + 2 * shift));
        else
          for (int64_t j = 0; j < length; j += N)
            write(more_ + j, read<V, N>(from + j) + read<V, N>(from + j + shift));
        from = more_;
        n = 2 * n + odd;
      }
      const bool odd = kernel & 1, alone = kernel == 1;
      const int64_t shift = n * unit;
      for (int64_t i = 0; i < rows; ++i) {
        const V *a = from + i * pitch, *b = x + i * pitch;
        const auto sum = [=](int64_t j) __attribute__((always_inline)) {
          if (alone) return read<V, N>(a + j);
          const Vn two = read<V, N>(a + j) + read<V, N>(a + j + shift);
          return odd ? two + read<V, N>(b + j + 2 * shift) : two;
        };
        divide(outer_[r + i], sum, [&](auto&& f) __attribute__((always_inline)) { out(r + i, f); });
      }
    }
  }

  // What rows and columns contribute to the divisors; true if all columns do the same.
  bool shares(const Tile& t) const {
    if (!p_.divide) return true;
    for (int64_t r = t.r0; r < t.r1; ++r) outer_[r - t.r0] = p_.divisor ? V(1) : V(share(cut_.rows, r));
    const Axis& cols = cut_.cols;
    const auto set = [&](int64_t from, int64_t to, int64_t n) {
      fill(by_ + (from - t.c0) * t.lanes, (to - from) * t.lanes, V(n));
    };
    // Windows that lie inside share a divisor; the others are looked at one by one.
    const Range whole = cols.kernel == cols.uncropped ? interior(cols, t.c0, t.c1) : Range{t.c1, t.c1};
    if (p_.divisor || (whole.lo == t.c0 && whole.hi == t.c1)) {
      by_[0] = V(p_.divisor ? p_.divisor : cols.uncropped);
      return true;
    }
    bool even = true;
    int64_t before = -1;
    for (int64_t o = t.c0, end; o < t.c1; o = end) {
      end = o == whole.lo ? whole.hi : o + 1;
      const int64_t n = share(cols, o);
      set(o, end, n);
      even &= before < 0 || n == before;
      before = n;
    }
    return even;
  }

  template <class F, class Out> void divide(V outer, F&& sum, Out&& out) const {
    if (!p_.divide) return out(sum);
    const V by = by_[0] * outer, inverse = V(1) / by;
    if (even_ && inverse_exact(by)) return out([&](int64_t j) { return sum(j) * inverse; });
    if (even_) return out([&](int64_t j) { return sum(j) / (by == 0 ? V(1) : by); });
    out([&](int64_t j) {
      const Vn d = read<V, N>(by_ + j) * outer;
      return sum(j) / (d == V(0) ? Vn{} + V(1) : d);
    });
  }

  static bool inverse_exact(V by) {  // a power of two
    const auto bits = std::bit_cast<C>(by) << 1;
    constexpr C mantissa = (C(1) << (std::numeric_limits<V>::digits)) - 2;
    return by > V(0) && (bits & mantissa) == 0;
  }

  // A window of nothing but the least value (or of nothing) is won by its first element inside.
  void store_codes(const Tile& t, int64_t q, const V* y, int64_t y_pitch) {
    char* plane = base(p_.extra_array, t, q);
    for (int64_t r = 0; r < t.r1 - t.r0; ++r)
      codes_row(t, plane, t.r0 + r, y + r * y_pitch, out_codes_ + r * out_pitch(t));
  }

  void codes_row(const Tile& t, char* plane, int64_t o, const V* values, C* codes) const {
    const int64_t lead = window(cut_.rows, o).lead;
    const Row to = row(p_.extra_array, plane, t, o, t.c0, t.c1);
    for (int64_t c = t.c0; c < t.c1; ++c) {
      const int64_t inner = window(cut_.cols, c).lead;
      if (lead == 0 && inner == 0) {
        if (cut_.cols.origin + c >= 0) break;
        continue;
      }
      for (int64_t l = (c - t.c0) * t.lanes; l < (c - t.c0 + 1) * t.lanes; ++l)
        if (values[l] == R::init()) codes[l] = C(lead) * row_unit_ + C(inner) * col_unit_;
    }
    if (p_.extra == Extra::offset8) {
      each<std::uint8_t>(to, [codes](std::uint8_t& e, int64_t j) { e = std::uint8_t(codes[j]); });
    } else if (p_.extra == Extra::offset32) {
      each<std::int32_t>(to, [codes](std::int32_t& e, int64_t j) { e = std::int32_t(codes[j]); });
    } else {
      const int64_t first = (cut_.rows.origin + o) * cut_.cols.size + cut_.cols.origin + t.c0;
      if (t.lanes == 1)
        each<int64_t>(to, [=](int64_t& e, int64_t j) { e = first + j + int64_t(codes[j]); });
      else
        each<int64_t>(
            to, [=, lanes = t.lanes](int64_t& e, int64_t j) { e = first + j / lanes + int64_t(codes[j]); });
    }
  }
};

}  // namespace
}  // namespace ndpool

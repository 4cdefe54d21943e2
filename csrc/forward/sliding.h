// Sliding: any window of stride 1 in one or two dimensions. A tile of the input is copied to scratch with padding
// between its rows, so that one loop of whole vectors processes all rows. Along a row, doubling builds windows
// from shorter ones. Down the columns, max uses van Herk (the end of one block of rows and the beginning of the
// next) and sums use doubling. Each element contributes only to the windows that contain it, so NaN and infinity
// never leak, and the order of additions depends on the window alone.
// Called by selection.h. Lp pooling and three pooled axes stay out. Without this engine indices of 13 x 13
// windows take 5.9 times as long, running averages of a month over a climate cube 4.4 times.
#pragma once

#include "forward/general.h"
#include "simd.h"

namespace ndpool {
namespace {

template <class R, bool indexed> struct Sliding {
  static constexpr const char* engine = "sliding";
  using V = typename R::V;
  using C = UnsignedLike<V>;
  static constexpr int N = wide<V>;
  static constexpr bool can_be_nan = R::is_max && is_real<V>;
  using Vn = Vec<V, N>;
  using Cn = Vec<C, N>;
  static constexpr int64_t row_elements = 32 * 1024 / sizeof(V), tile_elements = 256 * 1024 / sizeof(V),
                           group_elements = 16 * 1024 / sizeof(V);
  static constexpr int strip_vectors = 4;  // vectors of a column strip

  static int64_t span(const Axis& a) { return (a.kernel - 1) * a.step; }

  static bool supports(const Problem& p) {
    if (p.n_axes > 2 || p.op == Op::lp) return false;
    for (int a = 0; a < p.n_axes; ++a)
      if (!p.axes[a].regular() || p.axes[a].stride != 1) return false;
    if constexpr (indexed) {
      const Axis& last = p.axes[p.n_axes - 1];
      return sizeof(V) >= 4 &&
             double(p.axes[0].kernel * p.axes[0].step) * double(last.size + span(last)) < 4e9;
    }
    return true;
  }

  // How the work is cut into tiles.
  struct Cut {
    Axis rows, cols;
    int64_t channels, channel_tiles;  // channels of a tile, tiles over the channels
    int64_t width, tiles;             // output columns of a tile, tiles across
    int64_t height, tiles_down;       // output rows of a tile, tiles down
    int64_t group, plane_rows;        // small planes are stacked: planes of a tile, rows from one to the next
    int64_t max_pitch, in_rows;       // of a tile in scratch: elements of a row, rows

    explicit Cut(const Problem& p)
        : rows(p.n_axes == 2 ? p.axes[0] : single_axis(1)), cols(p.axes[p.n_axes - 1]) {
      const int64_t whole = cols.out + span(cols);
      channels = p.channels;
      if (channels > N && whole * channels > row_elements)
        channels = max(N, min(channels, row_elements / whole) / N * N);
      channel_tiles = ceil_div(p.channels, channels);
      // Tall windows get narrow tiles, which have more rows, so that the halo is not most of a tile.
      const int64_t wide_row =
          span(cols) ? row_elements : min(row_elements, max(64 * N, tile_elements / (4 * span(rows) + 1)));
      width = whole * channels <= wide_row
                  ? cols.out
                  : min(cols.out, max(wide_row / channels, 2 * span(cols)) - span(cols));
      width = max(1, width);
      tiles = ceil_div(cols.out, width);
      max_pitch = (width + span(cols)) * channels;
      height = min(rows.out, max(max(8, span(rows) + 1), tile_elements / max_pitch - span(rows)));
      tiles_down = ceil_div(rows.out, height);
      const int64_t above = max(0, -rows.origin),
                    below = max(0, rows.out + rows.origin + span(rows) - rows.size);
      plane_rows = rows.out + span(rows) - min(above, below);
      group = channel_tiles * tiles * tiles_down > 1 || rows.step > 1
                  ? 1
                  : max(1, min(p.planes, group_elements / (plane_rows * max_pitch)));
      in_rows = height + span(rows) + (group - 1) * plane_rows;
    }
  };

  static constexpr int64_t slack = 2 * strip_vectors * N;

  // Whether the channels, which fill vectors, become the columns of a plane: for a single long axis.
  static bool uses_channel_axis(const Problem& p) {
    return !indexed && p.n_axes == 1 && p.channels >= 4 * N &&
           (p.axes[0].out + span(p.axes[0])) * p.channels > row_elements;
  }

  static void prepare(Problem& p) {
    const Cut cut(uses_channel_axis(p) ? channels_as_row(p) : p);
    p.tile = cut.width;
    p.units = ceil_div(p.planes, cut.group) * cut.channel_tiles * cut.tiles * cut.tiles_down;
    const int64_t tile = cut.in_rows * max(N, cut.max_pitch) + cut.max_pitch + slack;
    p.scratch = (R::is_max ? 1 : 3) * Scratch::bytes<V>(tile) + (indexed ? Scratch::bytes<C>(tile) : 0) +
                Scratch::bytes<V>((cut.in_rows + 1) * strip_vectors * N) +
                Scratch::bytes<C>((cut.in_rows + 1) * strip_vectors * N) +
                Scratch::bytes<V>(cut.in_rows * max(N, cut.width * cut.channels) + slack) +
                Scratch::bytes<C>(cut.in_rows * max(N, cut.width * cut.channels) + slack) +
                Scratch::bytes<V>(cut.width * cut.channels + slack) + Scratch::bytes<V>(cut.height);
  }

  // One tile: its outputs, and the layout of its input in scratch.
  struct Tile {
    int64_t plane, planes, channel0, channels, c0, c1, r0, r1;
    int64_t from, to;            // input columns
    int64_t before, gap, pitch;  // elements before the first row, between rows, from one row to the next
    int64_t n;                   // elements of an output row
  };

  static void run(const Problem& p, int64_t begin, int64_t end, char* memory) {
    if (!uses_channel_axis(p)) return tiles(p, begin, end, memory);
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
  V *in_, *sums_ = nullptr, *partial_ = nullptr, *strip_, *out_, *column_shares_, *row_shares_;
  C *in_offsets_ = nullptr, *strip_offsets_, *out_offsets_;
  const Readable readable_;
  int64_t prefetch_distance_;  // to the next rows of a tile
  int64_t loaded_ = -1;        // the unit whose rows are in scratch
  bool nan_ = false;           // whether they contain a NaN
  C row_unit_, col_unit_;
  bool is_3x3_;
  bool uniform_ = true;  // all columns share the divisor
  bool exact_sums_;      // the values are integers, which floats hold exactly
  bool contiguous_;      // the output rows of successive tiles are contiguous

  Sliding(const Problem& p, char* memory)
      : p_(p), cut_(p), input_(p, true), store_(storer<V>(p.y_type, true)),
        readable_(p, p.x, sizeof(V), Over::inputs) {
    Scratch scratch(memory);
    const int64_t tile = cut_.in_rows * max(N, cut_.max_pitch) + cut_.max_pitch + slack;
    in_ = scratch.take<V>(tile);
    if constexpr (!R::is_max) {
      sums_ = scratch.take<V>(tile);
      partial_ = scratch.take<V>(tile);
    }
    if constexpr (indexed) in_offsets_ = scratch.take<C>(tile);
    strip_ = scratch.take<V>((cut_.in_rows + 1) * strip_vectors * N);
    strip_offsets_ = scratch.take<C>((cut_.in_rows + 1) * strip_vectors * N);
    out_ = scratch.take<V>(cut_.in_rows * max(N, cut_.width * cut_.channels) + slack);
    out_offsets_ = scratch.take<C>(cut_.in_rows * max(N, cut_.width * cut_.channels) + slack);
    column_shares_ = scratch.take<V>(cut_.width * cut_.channels + slack);
    row_shares_ = scratch.take<V>(cut_.height);
    is_3x3_ =
        cut_.rows.kernel == 3 && cut_.cols.kernel == 3 && (R::is_max || cut_.cols.step * p.channels == 1);
    exact_sums_ = is_integer(p.x_type) && is_integer(p.y_type);
    prefetch_distance_ = p.n_axes < 2 || cut_.tiles == 1 ? prefetch_distance(1, sizeof(V), 2)
                                                         : 2 * p.x.pooled[0] / int64_t(sizeof(V));
    contiguous_ =
        cut_.tiles == 1 && cut_.channel_tiles == 1 && is_contiguous(p, p.y, sizeof(V), Over::outputs);
    const bool indices = p.extra == Extra::index64;
    row_unit_ = C(indices ? cut_.rows.step * cut_.cols.size : cut_.cols.kernel);
    col_unit_ = C(indices ? cut_.cols.step : 1);
  }

  Tile tile_at(int64_t unit) const {
    Tile t;
    const int64_t down = unit % cut_.tiles_down, across = unit / cut_.tiles_down % cut_.tiles;
    const int64_t chunk = unit / cut_.tiles_down / cut_.tiles % cut_.channel_tiles;
    t.plane = unit / cut_.tiles_down / cut_.tiles / cut_.channel_tiles * cut_.group;
    t.planes = min(cut_.group, p_.planes - t.plane);
    t.channel0 = chunk * cut_.channels;
    t.channels = min(cut_.channels, p_.channels - t.channel0);
    t.c0 = across * cut_.width;
    t.c1 = min(cut_.cols.out, t.c0 + cut_.width);
    t.r0 = down * cut_.height;
    t.r1 = min(cut_.rows.out, t.r0 + cut_.height);
    const int64_t first = t.c0 + cut_.cols.origin, last = t.c1 - 1 + cut_.cols.origin + span(cut_.cols) + 1;
    t.from = max(0, min(first, cut_.cols.size));
    t.to = max(t.from, min(last, cut_.cols.size));
    const int64_t left = min(t.from - first, last - first), right = max(0, last - max(first, t.to));
    t.before = max(0, left) * t.channels;
    t.gap = max(max(0, left), right) * t.channels;
    t.pitch = (t.to - t.from) * t.channels + t.gap;
    t.n = (t.c1 - t.c0) * t.channels;
    return t;
  }

  char* base(const Array& array, const Tile& t, int64_t q = 0) const {
    char* data = array.data + t.channel0 * array.channel;
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
            array.channel, to - from, t.channels};
  }

  void tile(int64_t unit) {
    const Tile t = tile_at(unit);
    const int64_t height = t.r1 - t.r0 + (t.planes - 1) * cut_.plane_rows, rows = height + span(cut_.rows);
    int64_t shared = 0;
    if (loaded_ >= 0 && loaded_ + 1 == unit && t.r0 > 0) {  // rows of the tile above
      shared = span(cut_.rows);
      copy(in_ + cut_.height * t.pitch, in_, shared * t.pitch + t.gap);
      if constexpr (indexed) copy(in_offsets_ + cut_.height * t.pitch, in_offsets_, shared * t.pitch + t.gap);
    }
    bool nan = shared && nan_;
    nan_ = false;
    load(t, shared, rows);
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

  // Loads rows [first, rows) of the tile into scratch. For max, also reduces them horizontally while they are in
  // L1.
  void load(const Tile& t, int64_t first, int64_t rows) {
    const int64_t inside = (t.to - t.from) * t.channels;
    const int64_t top = t.r0 + cut_.rows.origin, block = max(1, row_elements / max(1, t.pitch));
    int64_t q = 0, i = first + top;  // the next row of plane q; may be padding
    char* plane = base(p_.x, t);
    const V* first_row = reinterpret_cast<const V*>(plane) + t.from * t.channels;
    const int64_t pitch = p_.n_axes == 2 ? p_.x.pooled[0] / int64_t(sizeof(V)) : 0;
    const bool plain = !reordered(p_) && stored_as<V>(p_.x_type) &&
                       (t.channels == 1 || (p_.x.channel == sizeof(V) && t.channels == p_.channels)) &&
                       p_.x.pooled[p_.n_axes - 1] == int64_t(sizeof(V)) * t.channels;
    for (int64_t r = first; r < rows; r += block) {
      const int64_t end = min(rows, r + block);
      fill(in_ + r * t.pitch, t.before, R::init());  // the previous block wrote whole vectors
      V* to = in_ + r * t.pitch + t.before;
      auto nan_mask = Vn{} != Vn{};
      for (int64_t n = end - r; n > 0; --n, ++i, to += t.pitch) {
        if (i - top == cut_.plane_rows && q + 1 < t.planes) {
          i = top;
          plane = base(p_.x, t, ++q);
          first_row = reinterpret_cast<const V*>(plane) + t.from * t.channels;
        }
        if (i < 0 || i >= cut_.rows.size || inside == 0) {
          fill(to, t.pitch, R::init());
          continue;
        }
        copy_row(plain ? first_row + i * pitch : input_.row(row(p_.x, plane, t, i, t.from, t.to), 0, to), to,
                 inside, nan_mask);
        fill(to + inside, t.gap, R::init());
      }
      if constexpr (R::is_max) {
        bool nan = false;
        if constexpr (can_be_nan) nan = any(nan_mask);
        nan_ |= nan;
        if (is_3x3_) continue;
        const int64_t at = r * t.pitch, n = (end - r) * t.pitch + t.before;
        if (nan)
          max_across<false>(t, at, n);
        else
          max_across<true>(t, at, n);
      }
    }
  }

  template <class Mask> void copy_row(const V* from, V* to, int64_t n, Mask& nan_mask) const {
    const auto check = [&](Vn v) __attribute__((always_inline)) {
      if constexpr (can_be_nan) nan_mask |= v != v;
      return v;
    };
    if (from != to && readable_.contains(from, n + N)) {  // reads past the row, but not past the array
      for (int64_t j = 0; j < n; j += N) {
        prefetch(from + j + prefetch_distance_);
        write(to + j, check(read<V, N>(from + j)));
      }
      return;
    }
    if (from != to) copy_exactly(from, to, n);
    for (int64_t j = 0; j < n; j += N) check(read<V, N>(to + j));  // a NaN past the row only costs time
  }

  // Max along the rows: each step joins up to four windows of m taps; the last one may overlap.
  template <bool speculative> void max_across(const Tile& t, int64_t at, int64_t n) {
    const int64_t unit = cut_.cols.step * t.channels, kernel = cut_.cols.kernel;
    V* x = in_ + at;
    if constexpr (indexed) fill(in_offsets_ + at, n, C(0));
    for (int64_t m = 1; m < kernel;) {
      int parts = 0;
      int64_t taps[3];
      for (int64_t to = m; parts < 3 && to < kernel;) {
        taps[parts] = min(to, kernel - m);
        to = taps[parts++] + m;
      }
      m += taps[parts - 1];
      if (parts == 3)
        extend_windows<3, speculative>(x, in_offsets_ + at, n, taps, unit);
      else if (parts == 2)
        extend_windows<2, speculative>(x, in_offsets_ + at, n, taps, unit);
      else
        extend_windows<1, speculative>(x, in_offsets_ + at, n, taps, unit);
    }
  }

  // x[j] = max(x[j], x[j + taps[0]], ...), in place: each vector is read before it is overwritten.
  template <int parts, bool speculative>
  void extend_windows(V* x, C* offsets, int64_t n, const int64_t* taps, int64_t unit) const {
    for (int64_t j = 0; j < n; j += N) {
      Vn best = read<V, N>(x + j);
      Cn offset{};
      if constexpr (indexed) offset = read<C, N>(offsets + j);
      for (int k = 0; k < parts; ++k) {
        const Vn later = read<V, N>(x + j + taps[k] * unit);
        if constexpr (indexed)
          merge_with_offset<R, !speculative>(
              later, read<C, N>(offsets + j + taps[k] * unit) + C(taps[k]) * col_unit_, best, offset);
        else
          best = merged<R, !speculative>(later, best);
      }
      write(x + j, best);
      if constexpr (indexed) write(offsets + j, offset);
    }
  }

  template <bool speculative> void finish(const Tile& t) {
    const int64_t rows = t.r1 - t.r0;
    const Row first = row(p_.y, base(p_.y, t), t, t.r0, t.c0, t.c1);
    const bool native =
        writes_directly<V>(p_, first) && (p_.n_axes == 1 || p_.y.pooled[0] % int64_t(sizeof(V)) == 0);
    const int64_t y_pitch = p_.n_axes == 2 ? p_.y.pooled[0] / int64_t(sizeof(V)) : t.n;
    if constexpr (!R::is_max) uniform_ = fill_shares(t);
    for (int64_t q = 0; q < t.planes; ++q) {
      char* plane = q ? base(p_.y, t, q)
                      : first.data - t.c0 * first.stride - (p_.n_axes == 2 ? t.r0 * p_.y.pooled[0] : 0);
      V* y = reinterpret_cast<V*>(row(p_.y, plane, t, t.r0, t.c0, t.c1).data);
      const int64_t at = q * cut_.plane_rows;
      // Elements from y on that this tile writes in rising order: a vector may write past a row, because later
      // rows overwrite the excess.
      const int64_t writable = contiguous_ ? (t.planes - q) * rows * t.n : 0;
      if (R::is_max || is_3x3_) {
        // A vector writes past a shorter row into the next one, which must be written later.
        const bool direct = native && (t.n >= N || (writable >= rows * t.n + N && cut_.rows.step == 1));
        V* to = direct ? y : out_;
        const int64_t pitch = direct ? y_pitch : out_pitch(t);
        reduce_all_columns<speculative>(t, rows, at, to, pitch, t.n);
        if constexpr (indexed) store_offsets(t, q, to, pitch);
        if (!direct)
          for (int64_t r = 0; r < rows; ++r) {
            if (!native) {
              reorder(p_, out_ + r * pitch, out_ + r * pitch, t.n);
              store_(out_ + r * pitch, row(p_.y, plane, t, t.r0 + r, t.c0, t.c1));
            } else
              write_row([from = out_ + r * pitch](int64_t j) { return read<V, N>(from + j); },
                        y + r * y_pitch, t.n, writable - r * t.n);
          }
      } else if constexpr (!R::is_max) {
        // Vectors may write past a short row, because the next row overwrites the excess. Dilated rows are not
        // written in order: each gets at least a vector.
        const int64_t pitch = cut_.rows.step > 1 ? max(t.pitch, N) : t.pitch;
        reduce_all_columns<true>(t, rows, at, sums_, pitch, t.pitch);
        fill(sums_ + (rows - 1) * pitch + t.pitch, t.gap, V(0));
        sum_across(t, rows, pitch, [&](int64_t r, auto&& f) __attribute__((always_inline)) {
          if (native) return write_row(f, y + r * y_pitch, t.n, writable - r * t.n);
          write_row(f, out_, t.n, t.n + N);
          store_(out_, row(p_.y, plane, t, t.r0 + r, t.c0, t.c1));
        });
      }
    }
  }

  // Writes a row of results; `writable` elements from its beginning on may be written.
  template <class F>
  __attribute__((always_inline)) static inline void write_row(F&& f, V* to, int64_t n, int64_t writable) {
    int64_t j = 0;
    for (; j + N <= n || (j < n && j + N <= writable); j += N) write(to + j, f(j));
    if (j >= n) return;
    if (n >= N) return write(to + n - N, f(n - N));
    const Vn v = f(j);
    for (int64_t c = 0; j + c < n; ++c) to[j + c] = v[c];
  }

  static int64_t out_pitch(const Tile& t) { return max(t.n, N); }

  // Reduces the columns of the plane that begins at row `at`, in strips: wide ones, then single vectors, the last
  // of which overlaps.
  template <bool speculative>
  void reduce_all_columns(const Tile& t, int64_t rows, int64_t at, V* y, int64_t y_pitch, int64_t n) {
    int64_t j = 0;
    for (; j + strip_vectors * N <= n; j += strip_vectors * N)
      reduce_columns<strip_vectors, speculative>(t, rows, at, y, y_pitch, j);
    for (; j < n; j += N) reduce_columns<1, speculative>(t, rows, at, y, y_pitch, n < N ? 0 : min(j, n - N));
  }

  template <int W, bool speculative>
  void reduce_columns(const Tile& t, int64_t height, int64_t at, V* y, int64_t y_pitch, int64_t column) {
    const int64_t step = cut_.rows.step, pitch = t.pitch;
    for (int64_t q = 0; q < min(step, height); ++q) {  // every step-th row: windows without gaps
      const int64_t rows = ceil_div(height - q, step), from = (at + q) * pitch + column;
      V* to = y + q * y_pitch + column;
      if constexpr (!R::is_max) {
        if (is_3x3_)
          sums_3x3<W>(rows, in_ + from, pitch * step, to, y_pitch * step, column, row_shares_ + q, step);
        else
          sum_down<W>(rows, in_ + from, pitch * step, to, y_pitch * step);
      } else {
        C *offsets = indexed ? in_offsets_ + from : nullptr,
          *y_offsets = out_offsets_ + q * out_pitch(t) + column;
        if (is_3x3_)
          max_3x3<W, speculative>(rows, in_ + from, pitch * step, cut_.cols.step * t.channels, to,
                                  y_pitch * step, y_offsets, out_pitch(t) * step);
        else
          max_down<W, speculative>(rows, in_ + from, offsets, pitch * step, to, y_pitch * step, y_offsets,
                                   out_pitch(t) * step);
      }
    }
  }

  // Sums of 3 x 3: three rows in registers, columns first.
  template <int W> void sums_3x3(int64_t rows, const V* x, int64_t pitch, V* y, int64_t y_pitch,
                                 int64_t column, const V* outer, int64_t outer_step) const {
    Vn above[W + 1], middle[W + 1];
    for (int w = 0; w <= W; ++w) {
      above[w] = read<V, N>(x + w * N);
      middle[w] = read<V, N>(x + pitch + w * N);
    }
    x += 2 * pitch;
    for (int64_t r = 0; r < rows; ++r, x += pitch, y += y_pitch, outer += outer_step) {
      Vn columns[W + 1];
      for (int w = 0; w <= W; ++w) {
        const Vn below = read<V, N>(x + w * N);
        columns[w] = above[w] + middle[w] + below;
        above[w] = middle[w];
        middle[w] = below;
      }
      const auto sum = [&](int w) __attribute__((always_inline)) {
        return columns[w] + shifted<1>(columns[w], columns[w + 1]) + shifted<2>(columns[w], columns[w + 1]);
      };
      if (!p_.divide) {
        for (int w = 0; w < W; ++w) write(y + w * N, sum(w));
      } else if (uniform_) {
        const V by = column_shares_[0] * *outer;
        for (int w = 0; w < W; ++w) write(y + w * N, sum(w) / (by == 0 ? V(1) : by));
      } else {
        for (int w = 0; w < W; ++w) {
          const Vn by = read<V, N>(column_shares_ + column + w * N) * *outer;
          write(y + w * N, sum(w) / (by == V(0) ? Vn{} + V(1) : by));
        }
      }
    }
  }

  // Max of 3 x 3: the horizontal windows of three rows in registers.
  template <int W, bool speculative> void max_3x3(int64_t rows, const V* x, int64_t pitch, int64_t unit, V* y,
                                                  int64_t y_pitch, C* y_offsets,
                                                  int64_t offsets_pitch) const {
    Vn above[W], middle[W];
    Cn above_offset[W], middle_offset[W];
    const auto across = [&](const V* from, Cn& offset, C shift) __attribute__((always_inline)) {
      Vn best = read<V, N>(from);
      if constexpr (indexed) {
        offset = Cn{} + shift;
        merge_with_offset<R, !speculative>(read<V, N>(from + unit), Cn{} + (shift + col_unit_), best, offset);
        merge_with_offset<R, !speculative>(read<V, N>(from + 2 * unit), Cn{} + (shift + 2 * col_unit_), best,
                                           offset);
      } else {
        best = merged<R, !speculative>(read<V, N>(from + unit), best);
        best = merged<R, !speculative>(read<V, N>(from + 2 * unit), best);
      }
      return best;
    };
    for (int w = 0; w < W; ++w) {
      above[w] = across(x + w * N, above_offset[w], C(0));
      middle[w] = across(x + pitch + w * N, middle_offset[w], C(row_unit_));
    }
    x += 2 * pitch;
    for (int64_t r = 0; r < rows; ++r, x += pitch, y += y_pitch, y_offsets += offsets_pitch)
      for (int w = 0; w < W; ++w) {
        Cn offset{};
        const Vn below = across(x + w * N, offset, C(2 * row_unit_));
        Vn best = above[w];
        if constexpr (indexed) {
          Cn at = above_offset[w];
          merge_with_offset<R, !speculative>(middle[w], middle_offset[w], best, at);
          merge_with_offset<R, !speculative>(below, offset, best, at);
          write(y_offsets + w * N, at);
          above_offset[w] = middle_offset[w] - row_unit_;
          middle_offset[w] = offset - row_unit_;
        } else {
          best = merged<R, !speculative>(below, merged<R, !speculative>(middle[w], best));
        }
        write(y + w * N, best);
        above[w] = middle[w];
        middle[w] = below;
      }
  }

  // Max by van Herk: a window is the end of one block of rows and the beginning of the next.
  template <int W, bool speculative> void max_down(int64_t rows, const V* x, const C* offsets, int64_t pitch,
                                                   V* y, int64_t y_pitch, C* y_offsets,
                                                   int64_t offsets_pitch) const {
    const int64_t kernel = cut_.rows.kernel;
    const C unit = row_unit_;
    Vn best[W];
    Cn offset[W];
    const auto get = [&](int64_t r, int w, C shift, Cn& c) __attribute__((always_inline)) {
      if constexpr (indexed) c = read<C, N>(offsets + r * pitch + w * N) + shift;
      return read<V, N>(x + r * pitch + w * N);
    };
    const auto set = [&](int64_t r, int w, Vn value, Cn c, C shift) __attribute__((always_inline)) {
      write(y + r * y_pitch + w * N, value);
      if constexpr (indexed) write(y_offsets + r * offsets_pitch + w * N, c - shift);
    };
    const auto merge_later = [&](Vn later, Cn later_offset, Vn& value, Cn& c) __attribute__((always_inline)) {
      if constexpr (indexed)
        merge_with_offset<R, !speculative>(later, later_offset, value, c);
      else
        value = merged<R, !speculative>(later, value);
    };
    if (kernel <= 3) {
      for (int64_t r = 0; r < rows; ++r)
        for (int w = 0; w < W; ++w) {
          Cn c{}, later{};
          Vn value = get(r, w, C(0), c);
          for (int64_t k = 1; k < kernel; ++k) {
            const Vn v = get(r + k, w, C(k) * unit, later);
            merge_later(v, later, value, c);
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
          if (i < kernel - 1) merge_later(best[w], offset[w], value, c);
          best[w] = value;
          offset[w] = c;
          write(strip_ + (i * W + w) * N, value);
          if constexpr (indexed) write(strip_offsets_ + (i * W + w) * N, c);
        }
      for (int w = 0; w < W; ++w) set(s, w, best[w], offset[w], C(0));
      const int64_t n = min(kernel, rows - s);
      for (int64_t i = 1; i < n; ++i)
        for (int w = 0; w < W; ++w) {
          Cn c{}, later{};
          Vn v = get(s + kernel + i - 1, w, C(kernel + i - 1) * unit, later);
          if (i > 1) {
            merge_later(v, later, best[w], offset[w]);
          } else {
            best[w] = v;
            offset[w] = later;
          }
          Vn value = read<V, N>(strip_ + (i * W + w) * N);
          if constexpr (indexed) c = read<C, N>(strip_offsets_ + (i * W + w) * N);
          merge_later(best[w], offset[w], value, c);
          set(s + i, w, value, c, C(i) * unit);
        }
    }
  }

  // Sums by doubling: from sums of n rows to those of 2 n or 2 n + 1, following the bits of the kernel from the
  // top. Exact sums slide instead: each step adds the row that enters and subtracts the one that leaves.
  template <int W> void sum_down(int64_t rows, const V* x, int64_t pitch, V* y, int64_t y_pitch) const {
    const int64_t kernel = cut_.rows.kernel;
    if (exact_sums_) {
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

  // Sums along the rows, by doubling. The last step passes every finished row to `out`, as a function from an
  // element to a vector.
  template <class F> void sum_across(const Tile& t, int64_t height, int64_t pitch, F&& out) {
    const int64_t unit = cut_.cols.step * t.channels, kernel = cut_.cols.kernel;
    const int64_t block = max(1, row_elements / max(1, pitch));
    for (int64_t r = 0; r < height; r += block) {
      const int64_t rows = min(block, height - r), length = rows * pitch + t.before;
      const V *x = sums_ + r * pitch, *from = x;
      int64_t n = 1;
      for (int bit = top_bit(kernel) - 1; bit > 0; --bit) {
        const bool odd = kernel >> bit & 1;
        const int64_t shift = n * unit;
        if (odd)
          for (int64_t j = 0; j < length; j += N)
            write(partial_ + j,
                  read<V, N>(from + j) + read<V, N>(from + j + shift) + read<V, N>(x + j + 2 * shift));
        else
          for (int64_t j = 0; j < length; j += N)
            write(partial_ + j, read<V, N>(from + j) + read<V, N>(from + j + shift));
        from = partial_;
        n = 2 * n + odd;
      }
      const bool odd = kernel & 1, single_tap = kernel == 1;
      const int64_t shift = n * unit;
      for (int64_t i = 0; i < rows; ++i) {
        const V *a = from + i * pitch, *b = x + i * pitch;
        const auto sum = [=](int64_t j) __attribute__((always_inline)) {
          if (single_tap) return read<V, N>(a + j);
          const Vn two = read<V, N>(a + j) + read<V, N>(a + j + shift);
          return odd ? two + read<V, N>(b + j + 2 * shift) : two;
        };
        divide(row_shares_[r + i], sum, [&](auto&& f) __attribute__((always_inline)) { out(r + i, f); });
      }
    }
  }

  // Stores the shares of the divisor that rows and columns contribute; true if all columns contribute the same.
  bool fill_shares(const Tile& t) const {
    if (!p_.divide) return true;
    for (int64_t r = t.r0; r < t.r1; ++r) row_shares_[r - t.r0] = p_.divisor ? V(1) : V(share(cut_.rows, r));
    const Axis& cols = cut_.cols;
    const auto set = [&](int64_t from, int64_t to, int64_t n) {
      fill(column_shares_ + (from - t.c0) * t.channels, (to - from) * t.channels, V(n));
    };
    // Windows inside the input have the same share; the others are computed individually.
    const Range whole = cols.kernel == cols.uncropped ? interior(cols, t.c0, t.c1) : Range{t.c1, t.c1};
    if (p_.divisor || (whole.lo == t.c0 && whole.hi == t.c1)) {
      column_shares_[0] = V(p_.divisor ? p_.divisor : cols.uncropped);
      return true;
    }
    bool uniform = true;
    int64_t before = -1;
    for (int64_t o = t.c0, end; o < t.c1; o = end) {
      end = o == whole.lo ? whole.hi : o + 1;
      const int64_t n = share(cols, o);
      set(o, end, n);
      uniform &= before < 0 || n == before;
      before = n;
    }
    return uniform;
  }

  template <class F, class Out> void divide(V outer, F&& sum, Out&& out) const {
    if (!p_.divide) return out(sum);
    const V by = column_shares_[0] * outer, inverse = V(1) / by;
    if (uniform_ && inverse_exact(by)) return out([&](int64_t j) { return sum(j) * inverse; });
    if (uniform_) return out([&](int64_t j) { return sum(j) / (by == 0 ? V(1) : by); });
    out([&](int64_t j) {
      const Vn d = read<V, N>(column_shares_ + j) * outer;
      return sum(j) / (d == V(0) ? Vn{} + V(1) : d);
    });
  }

  static bool inverse_exact(V by) {  // a power of two
    const auto bits = std::bit_cast<C>(by) << 1;
    constexpr C mantissa = (C(1) << (std::numeric_limits<V>::digits)) - 2;
    return by > V(0) && (bits & mantissa) == 0;
  }

  // The first element inside wins a window whose elements all equal the initial value, or a window without
  // elements.
  void store_offsets(const Tile& t, int64_t q, const V* y, int64_t y_pitch) {
    char* plane = base(p_.extra_array, t, q);
    for (int64_t r = 0; r < t.r1 - t.r0; ++r)
      offsets_row(t, plane, t.r0 + r, y + r * y_pitch, out_offsets_ + r * out_pitch(t));
  }

  void offsets_row(const Tile& t, char* plane, int64_t o, const V* values, C* offsets) const {
    const int64_t lead = window(cut_.rows, o).lead;
    const Row to = row(p_.extra_array, plane, t, o, t.c0, t.c1);
    for (int64_t c = t.c0; c < t.c1; ++c) {
      const int64_t inner = window(cut_.cols, c).lead;
      if (lead == 0 && inner == 0) {
        if (cut_.cols.origin + c >= 0) break;
        continue;
      }
      for (int64_t l = (c - t.c0) * t.channels; l < (c - t.c0 + 1) * t.channels; ++l)
        if (values[l] == R::init()) offsets[l] = C(lead) * row_unit_ + C(inner) * col_unit_;
    }
    const int64_t first = (cut_.rows.origin + o) * cut_.cols.size + cut_.cols.origin + t.c0;
    if (t.channels == 1)
      ndpool::store_offsets(p_.extra, to, offsets,
                            [=](int64_t j) { return first + j + int64_t(offsets[j]); });
    else
      ndpool::store_offsets(p_.extra, to, offsets, [=, channels = t.channels](int64_t j) {
        return first + j / channels + int64_t(offsets[j]);
      });
  }
};

}  // namespace
}  // namespace ndpool

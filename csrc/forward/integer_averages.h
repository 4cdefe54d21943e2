// The forward engine for averages of 8- and 16-bit integers, for any window, layout and number of channels; called
// from forward/bytes.cpp and forward/integers.cpp. Sums of 2^31 and more stay out.
//
// Sums are exact in 16 or 32 bits, so their order is free. Down the columns, a sliding window adds the rows that
// enter and subtracts those that leave; along a row, neighbours are added in pairs where the stride is even, and
// long windows are computed by doubling. Division is a multiplication by a constant (Divider).
//
// Compared with sums in float32, 3 x 3 with stride 1 of an image of 719 x 1283 x 3 uint16 takes a fifth of the
// time, 2 x 2 with stride 2 of 512 x 512 x 4 uint8 a quarter.
#pragma once

#include "forward/general.h"
#include "kernels.h"
#include "simd.h"

namespace ndpool {
namespace {

// Truncated quotients n / d of integers 0 <= n <= largest, from the upper half of a product. With b bits, d > 1
// not a power of two, 2^k < d < 2^(k+1), p = b + k and m = ceil(2^p / d) < 2^b,
//   n m / 2^p = n / d + n e / (d 2^p),   0 <= e = m d - 2^p < d.
// The fraction of n / d is at most (d - 1) / d, so the quotient is exact if n e / (d 2^p) < 1 / d, or n e < 2^p.
template <class U> struct Divider {
  static constexpr int bits = 8 * sizeof(U);
  U multiplier = 0;
  int shift = 0;
  bool shifts = false;  // d is a power of two
  bool exact = true;    // for every n

  Divider(std::uint64_t d, std::uint64_t largest) {
    if (d > largest) return;  // all quotients are zero
    shift = 63 - __builtin_clzll(d);
    shifts = (d & (d - 1)) == 0;
    if (shifts) return;
    const std::uint64_t power = std::uint64_t(1) << (bits + shift), m = power / d + 1;
    multiplier = U(m);
    exact = largest * (m * d - power) < power;
  }

  template <class V> __attribute__((always_inline)) inline V operator()(V n) const {
    return shifts ? n >> U(shift) : multiplied_high(n, multiplier) >> U(shift);
  }
};

// Sums of neighbouring groups of `unit` elements (the channels of two inputs): two vectors give `step` sums.
template <class A> class Pairs {
public:
  static constexpr int N = wide<A>;
  using An = Vec<A, N>;
  using Index = Vec<UnsignedLike<A>, N>;
  int64_t step;  // 0: not available

  explicit Pairs(int64_t unit) : step(0) {
    if constexpr (has_permute<A>) {
      if (unit > N) return;
      step = N / unit * unit;
      for (int64_t j = 0; j < N; ++j) index_[j] = UnsignedLike<A>(j / unit * 2 * unit + j % unit);
      unit_ = UnsignedLike<A>(unit);
    } else {
      bytes_ = unit * int64_t(sizeof(A));
      step = bytes_ == 2 || bytes_ == 4 || bytes_ == 8 ? N : 0;
    }
  }

  __attribute__((always_inline)) inline An operator()(An a, An b) const {
    if constexpr (has_permute<A>) {
      return permuted(a, b, index_) + permuted(a, b, index_ + unit_);
    } else {
      if (bytes_ == 8) return words<std::uint64_t>(a, b);
      return bytes_ == 4 ? words<std::uint32_t>(a, b) : evens(a, b) + odds(a, b);
    }
  }

private:
  Index index_{};
  UnsignedLike<A> unit_ = 0;
  int64_t bytes_ = 0;

  // Groups of one word each.
  template <class W> static An words(An a, An b) {
    using Words = Vec<W, wide<W>>;
    const Words x = reinterpret_cast<Words>(a), y = reinterpret_cast<Words>(b);
    return reinterpret_cast<An>(evens(x, y)) + reinterpret_cast<An>(odds(x, y));
  }
};

// S: storage type of the elements; A: type of the sums.
template <class S, class A> struct IntegerAverages {
  static constexpr const char* engine = "integers";
  using U = UnsignedLike<A>;
  static constexpr int N = wide<A>;
  using An = Vec<A, N>;
  static constexpr bool is_signed = std::is_signed_v<A>;
  static constexpr int64_t row_elements = 32 * 1024 / sizeof(A);
  static constexpr int64_t slack = 4 * vector_bytes;  // elements for the tail of a row

  static std::uint64_t largest_sum(const Problem& p) {
    std::uint64_t sum =
        is_signed ? std::uint64_t(1) << (8 * sizeof(S) - 1) : (std::uint64_t(1) << 8 * sizeof(S)) - 1;
    for (int a = 0; a < p.n_axes; ++a) {
      const std::uint64_t taps = std::uint64_t(p.axes[a].kernel);
      if (taps > (std::uint64_t(1) << 32)) return ~std::uint64_t(0);
      sum = min_unsigned(sum * taps, std::uint64_t(1) << 32);
    }
    return sum;
  }

  static bool supports(const Problem& p) {
    if (p.op != Op::sum || !p.divide || p.x_type != p.y_type) return false;
    const std::uint64_t largest = largest_sum(p);
    if (largest > (sizeof(A) == 2 ? 0xffffu : 0x7fffffffu)) return false;
    if (sizeof(A) == 4) return true;
    std::uint64_t by = p.divisor > 0 ? std::uint64_t(p.divisor) : 0u - std::uint64_t(p.divisor);
    if (p.divisor == 0) {
      by = 1;
      for (int a = 0; a < p.n_axes; ++a) by *= std::uint64_t(p.axes[a].uncropped);
    }
    return Divider<U>(max(1, int64_t(by)), largest).exact;
  }

  static void prepare(Problem& p) {
    const Problem q = rearranged(p);
    p.tile = q.tile;
    p.tiles = q.tiles;
    p.units = q.units;
    p.scratch = q.scratch;
  }

  static void run(const Problem& p, int64_t begin, int64_t end, char* memory) {
    const Problem q = rearranged(p);
    IntegerAverages worker(q, memory);
    Walk<Over::outputs> walk(q, begin);
    bool new_tile = true;
    for (int64_t unit = begin; unit < end && !q.stopped(); ++unit, new_tile = walk.next())
      worker.row(walk, new_tile);
  }

private:
  const Problem& p_;
  const Input<S> input_;
  const Readable readable_;
  const std::uint64_t largest_;
  S *buffers_[group], *out_;
  A *columns_, *pairs_, *partial_, *window_sums_;
  int64_t* shares_;  // of the outputs of a tile
  const Pairs<A> pair_;
  const bool small_, halving_;

  Divider<U> divider_{1, 1};  // by by_
  int64_t by_ = 1;

  // Common to the rows of a tile:
  Span inputs_{};                             // inputs that the windows touch
  int64_t first_ = 0, o0_ = 0, o1_ = 0;       // index of the first tap; outputs
  int64_t lead_ = 0, padded_width_ = 0;       // elements of padding in front; of the row with its padding
  Range uniform_{};                           // outputs with the same divisor
  int64_t last_row_ = 0, from_ = 0, to_ = 0;  // the last row of outputs, and the input rows in its sum

  static std::uint64_t min_unsigned(std::uint64_t a, std::uint64_t b) { return a < b ? a : b; }

  static constexpr int64_t many_channels = 2 * vector_bytes;  // from here on, channels are the row

  static Problem rearranged(const Problem& p) {
    Problem q = p.channels >= many_channels && p.n_axes < max_axes ? channels_as_row(p) : p;
    const Axis& last = q.axes[q.n_axes - 1];
    const int64_t per_output =
        max(1, last.regular() ? last.stride : last.size / max(1, last.out)) * q.channels;
    q.tile = max(1, min(last.out, row_elements / per_output));
    q.tiles = ceil_div(last.out, q.tile);
    q.units = q.planes * q.tiles * q.rows;
    q.scratch = group * Scratch::bytes<S>(row_length(q)) + Scratch::bytes<S>(q.tile * q.channels + slack) +
                3 * Scratch::bytes<A>(row_length(q)) + Scratch::bytes<A>(q.tile * q.channels + slack) +
                Scratch::bytes<int64_t>(q.tile);
    return q;
  }

  static int64_t row_length(const Problem& q) {
    const Axis& last = q.axes[q.n_axes - 1];
    const int64_t positions =
        last.regular() ? (q.tile - 1) * last.stride + (last.kernel - 1) * last.step + 1 : last.size;
    return positions * q.channels + slack;
  }

  IntegerAverages(const Problem& q, char* memory)
      : p_(q), input_(q, false), readable_(q, q.x, sizeof(S), Over::inputs), largest_(largest_sum(q)),
        pair_(q.channels), small_(is_small(q)), halving_(is_halving(q)) {
    Scratch scratch(memory);
    for (S*& buffer : buffers_) buffer = scratch.take<S>(row_length(q));
    out_ = scratch.take<S>(q.tile * q.channels + slack);
    columns_ = scratch.take<A>(row_length(q));
    pairs_ = scratch.take<A>(row_length(q));
    partial_ = scratch.take<A>(row_length(q));
    window_sums_ = scratch.take<A>(q.tile * q.channels + slack);
    shares_ = scratch.take<int64_t>(q.tile);
  }

  void row(const Walk<Over::outputs>& walk, bool new_tile) {
    if (new_tile) enter_tile(walk);
    int64_t outer = 1;
    if (!p_.divisor)
      for (int a = 0; a < walk.outer(); ++a) outer *= share(walk.axis(a), walk.at(a));
    const Row y = walk.row(p_.y, o0_, o1_);
    const bool direct = y.is_contiguous(sizeof(S));
    S* to = direct ? reinterpret_cast<S*>(y.data) : out_;
    if (small_) {
      small(walk, new_tile, outer, to);
    } else if (halving_ && window(walk.axis(0), walk.at(0)).taps == 2) {
      halve(walk, outer, to);
    } else {
      down(walk, new_tile);
      if (walk.last().regular())
        across(walk.last(), outer, to);
      else
        irregular(walk.last(), outer, to);
    }
    if (!direct) store_row<S, S>(out_, y);
  }

  void enter_tile(const Walk<Over::outputs>& walk) {
    const Axis& last = walk.last();
    o0_ = walk.tile_begin();
    o1_ = walk.tile_end();
    inputs_ = inputs_touched(last, o0_, o1_);
    first_ = last.regular() ? begin_of(last, o0_) : inputs_.from;
    uniform_ = p_.divisor                      ? Range{o0_, o1_}
               : last.kernel == last.uncropped ? interior(last, o0_, o1_)
                                               : Range{o1_, o1_};
    for (int64_t o = o0_; o < o1_; ++o) {
      if (o == uniform_.lo) o = uniform_.hi;
      if (o < o1_) shares_[o - o0_] = p_.divisor ? p_.divisor : share(last, o);
    }
    padded_width_ = last.regular()
                        ? ((o1_ - o0_ - 1) * last.stride + (last.kernel - 1) * last.step + 1) * p_.channels
                        : 0;
    lead_ = max(0, inputs_.from - first_) * p_.channels;
    fill(columns_, lead_);
  }

  static void fill(A* to, int64_t n) {
    for (int64_t j = 0; j < n; j += N) write(to + j, An{});
  }

  // Sums of the columns of this row of windows.
  void down(const Walk<Over::outputs>& walk, bool new_tile) {
    const int v = int(walk.outer()) - 1;
    const int64_t width = (inputs_.to - inputs_.from) * p_.channels;
    A* to = columns_ + lead_;
    const Window w = v < 0 ? Window{0, 1, 0} : window(walk.axis(v), walk.at(v));
    const int64_t step = v < 0 ? 1 : walk.axis(v).step, end = w.start + w.taps;
    const int64_t changes = w.start - from_ + end - to_;
    if (!new_tile && v >= 0 && step == 1 && walk.at(v) == last_row_ + 1 && w.start >= from_ &&
        w.start < to_ && end >= to_ && changes + 1 < w.taps) {
      slide(walk, v, w.start, end, to, width);
    } else {
      bool begin = true;
      each_slab(walk, v, [&](int64_t* index) {
        for (int64_t t = 0; t < w.taps; t += group) {
          const int n = int(min(group, w.taps - t));
          const S* rows[group];
          for (int k = 0; k < n; ++k) {
            if (v >= 0) index[v] = w.start + (t + k) * step;
            rows[k] = read_row(walk, index, k);
          }
          for (int k = n; k < group; ++k) rows[k] = rows[0];
          if (begin)
            add<true>(rows, n, to, width);
          else
            add<false>(rows, n, to, width);
          begin = false;
        }
      });
      if (begin) fill(to, width);
    }
    if (v >= 0) last_row_ = walk.at(v);
    from_ = w.start;
    to_ = end;
    fill(to + width, padded_width_ - lead_ - width);  // padding at the end
  }

  // Calls f with the indices of each tap of the axes before v.
  template <class F> void each_slab(const Walk<Over::outputs>& walk, int v, F&& f) const {
    int64_t index[max_axes] = {}, tap[max_axes] = {};
    Window windows[max_axes];
    for (int a = 0; a < v; ++a) {
      windows[a] = window(walk.axis(a), walk.at(a));
      if (windows[a].taps == 0) return;
      index[a] = windows[a].start;
    }
    for (;;) {
      f(index);
      int a = v - 1;
      for (; a >= 0; --a) {
        if (++tap[a] < windows[a].taps) {
          index[a] += walk.axis(a).step;
          break;
        }
        tap[a] = 0;
        index[a] = windows[a].start;
      }
      if (a < 0) return;
    }
  }

  const S* read_row(const Walk<Over::outputs>& walk, const int64_t* index, int k) const {
    return input_.row(walk.row(p_.x, index, inputs_.from, inputs_.to), 0, buffers_[k]);
  }

  // Adds rows [to_, end) and subtracts rows [from_, start).
  void slide(const Walk<Over::outputs>& walk, int v, int64_t start, int64_t end, A* to, int64_t width) {
    each_slab(walk, v, [&](int64_t* index) {
      int64_t entering = to_, leaving = from_;
      for (; entering < end && leaving < start; ++entering, ++leaving) {
        index[v] = entering;
        const S* a = read_row(walk, index, 0);
        index[v] = leaving;
        const S* b = read_row(walk, index, 1);
        each(a, b, to, width, [](auto sum, auto a, auto b) { return decltype(sum)(sum + a - b); });
      }
      for (; entering < end; ++entering) {
        index[v] = entering;
        const S* a = read_row(walk, index, 0);
        each(a, a, to, width, [](auto sum, auto a, auto) { return decltype(sum)(sum + a); });
      }
      for (; leaving < start; ++leaving) {
        index[v] = leaving;
        const S* a = read_row(walk, index, 0);
        each(a, a, to, width, [](auto sum, auto a, auto) { return decltype(sum)(sum - a); });
      }
    });
  }

  __attribute__((always_inline)) static inline An load(const S* x) { return converted<An>(read<S, N>(x)); }

  // Elements of a row that vectors may read: whole vectors if its tail is readable.
  int64_t readable(const S* x, int64_t width) const {
    const int64_t whole = ceil_div(width, N) * N;
    bool buffered = false;
    for (const S* buffer : buffers_) buffered |= x == buffer;
    return buffered || readable_.contains(x, whole) ? whole : width / N * N;
  }

  template <class F> void each(const S* a, const S* b, A* sum, int64_t width, F&& f) const {
    const int64_t whole = min(readable(a, width), readable(b, width));
    for (int64_t j = 0; j < whole; j += N) write(sum + j, f(read<A, N>(sum + j), load(a + j), load(b + j)));
    for (int64_t j = whole; j < width; ++j) sum[j] = f(sum[j], A(a[j]), A(b[j]));
  }

  // Adds up to four rows per pass.
  template <bool begin> void add(const S* const* rows, int n, A* sum, int64_t width) const {
    int64_t whole = readable(rows[0], width);
    for (int k = 1; k < n; ++k) whole = min(whole, readable(rows[k], width));
    const auto all = [&](auto count) {
      for (int64_t j = 0; j < whole; j += N) {
        An s = load(rows[0] + j);
        for (int k = 1; k < count; ++k) s += load(rows[k] + j);
        write(sum + j, begin ? s : s + read<A, N>(sum + j));
      }
    };
    if (n == 1) all(std::integral_constant<int, 1>{});
    if (n == 2) all(std::integral_constant<int, 2>{});
    if (n == 3) all(std::integral_constant<int, 3>{});
    if (n == 4) all(std::integral_constant<int, 4>{});
    for (int64_t j = whole; j < width; ++j) {
      A s = begin ? A(0) : sum[j];
      for (int k = 0; k < n; ++k) s = A(s + A(rows[k][j]));
      sum[j] = s;
    }
  }

  // Windows of 2 x 2 and 3 x 3 with stride 1: one loop sums along the row, then down the columns.
  static bool is_small(const Problem& q) {
    if (q.n_axes != 2) return false;
    for (int a = 0; a < 2; ++a) {
      const Axis& axis = q.axes[a];
      if (!axis.regular() || axis.stride != 1 || axis.kernel != q.axes[0].kernel) return false;
    }
    return q.axes[0].step == 1 && (q.axes[0].kernel == 2 || q.axes[0].kernel == 3);
  }

  // A ring of the last three rows of sums along the row: ring(r) is that of row r.
  A* ring(int64_t r) const { return r % 3 == 0 ? columns_ : r % 3 == 1 ? pairs_ : partial_; }

  void small(const Walk<Over::outputs>& walk, bool new_tile, int64_t outer, S* y) {
    const Window w = window(walk.axis(0), walk.at(0));
    const int64_t end = w.start + w.taps, kernel = walk.last().kernel, tap = walk.last().step * p_.channels;
    if (new_tile || w.start < from_ || w.start > to_) to_ = w.start;
    const auto three = [tap](const S* x, int64_t j) __attribute__((always_inline)) {
      return load(x + j) + load(x + j + tap) + load(x + j + 2 * tap);
    };
    const auto two = [tap](const S* x, int64_t j)
                         __attribute__((always_inline)) { return load(x + j) + load(x + j + tap); };
    for (from_ = w.start; to_ < end; ++to_) {
      const S* x = padded_row(walk, to_, 0);
      A *to = ring(to_), *above = ring(to_ + 2), *top = ring(to_ + 1);
      if (w.taps == kernel && to_ + 1 == end) {
        ++to_;
        const auto at = [](const A* x, int64_t j)
                            __attribute__((always_inline)) { return read<A, N>(x + j); };
        if (kernel == 3)
          return results(
              [=](int64_t j) __attribute__((always_inline)) {
                const An sum = three(x, j);
                write(to + j, sum);
                return at(top, j) + at(above, j) + sum;
              },
              outer, y);
        return results(
            [=](int64_t j) __attribute__((always_inline)) {
              const An sum = two(x, j);
              write(to + j, sum);
              return at(above, j) + sum;
            },
            outer, y);
      }
      for (int64_t j = 0; j < (o1_ - o0_) * p_.channels; j += N)
        write(to + j, kernel == 3 ? three(x, j) : two(x, j));
    }
    results(
        [&](int64_t j) __attribute__((always_inline)) {
          An sum{};
          for (int64_t r = w.start; r < end; ++r) sum += read<A, N>(ring(r) + j);
          return sum;
        },
        outer, y);
  }

  // Windows of 2 x 2 with stride 2; halve() computes the rows whose windows have both taps inside.
  static bool is_halving(const Problem& q) {
    if (q.n_axes != 2) return false;
    const Axis &rows = q.axes[0], &last = q.axes[1];
    return rows.regular() && last.regular() && rows.kernel == 2 && last.kernel == 2 && last.stride == 2 &&
           last.step == 1 && Pairs<A>(q.channels).step;
  }

  void halve(const Walk<Over::outputs>& walk, int64_t outer, S* y) {
    const Window w = window(walk.axis(0), walk.at(0));
    const S *a = padded_row(walk, w.start, 0), *b = padded_row(walk, w.start + walk.axis(0).step, 1);
    if constexpr (2 * sizeof(S) == sizeof(A))
      if (p_.channels == 1) {  // two neighbours are one word
        const auto pairs = [](const S* x) __attribute__((always_inline)) {
          constexpr int bits = 8 * sizeof(S);
          const An words = read<A, N>(reinterpret_cast<const A*>(x));
          if constexpr (is_signed)
            return An((words << bits >> bits) + (words >> bits));
          else
            return An((words & A(std::numeric_limits<S>::max())) + (words >> bits));
        };
        return results([=](int64_t j) { return pairs(a + 2 * j) + pairs(b + 2 * j); }, outer, y);
      }
    results(
        [=, this](int64_t j) __attribute__((always_inline)) {
          return pair_(load(a + 2 * j) + load(b + 2 * j), load(a + 2 * j + N) + load(b + 2 * j + N));
        },
        outer, y, pair_.step);
  }

  // Row i of a plane with its padding; two vectors past its end are readable.
  const S* padded_row(const Walk<Over::outputs>& walk, int64_t i, int k) const {
    const Row row = walk.row(p_.x, &i, inputs_.from, inputs_.to);
    const int64_t width = row.n * row.channels;
    const S* x = reinterpret_cast<const S*>(row.data);
    const bool packed = row.is_contiguous(sizeof(S));
    if (packed && lead_ == 0 && width >= padded_width_ && readable_.contains(x, padded_width_ + 2 * N))
      return x;
    S* to = buffers_[k];
    __builtin_memset(to, 0, std::size_t(lead_) * sizeof(S));
    if (packed)
      __builtin_memcpy(to + lead_, x, std::size_t(width) * sizeof(S));
    else
      load_row<S, S>(row, to + lead_);
    __builtin_memset(to + lead_ + width, 0, std::size_t(max(0, padded_width_ - lead_ - width)) * sizeof(S));
    return to;
  }

  // Sums of the columns to sums of the windows, and on to the results.
  void across(const Axis& a, int64_t outer, S* y) {
    const int64_t channels = p_.channels, n = o1_ - o0_;
    int64_t kernel = a.kernel, stride = a.stride;
    const A* x = columns_;
    while (a.step == 1 && n > 1 && stride % 2 == 0 && kernel % 2 == 0 &&
           add_pairs(x, ((n - 1) * stride + kernel) * channels)) {
      x = pairs_;
      kernel /= 2;
      stride /= 2;
    }
    const int64_t tap = a.step * channels, length = ((n - 1) * stride + 1) * channels;
    if (channels == 1 && tap == 1 && kernel >= N && 4 * stride >= kernel) {
      for (int64_t o = 0; o < n; ++o) window_sums_[o] = sum_of(x + o * stride, kernel);
      return results([&](int64_t j) { return read<A, N>(window_sums_ + j); }, outer, y);
    }
    // Fuses the last step of a sum with the division, or with the selection of every stride-th sum.
    const auto finish = [&](auto&& f) __attribute__((always_inline)) {
      if (stride == 1) return results(f, outer, y);
      for (int64_t j = 0; j < length; j += N) write(partial_ + j, f(j));
      take_every(partial_, n, stride, channels, window_sums_);
      results([&](int64_t j) { return read<A, N>(window_sums_ + j); }, outer, y);
    };
    const auto at = [](const A* x, int64_t j) __attribute__((always_inline)) { return read<A, N>(x + j); };
    if (kernel == 1) return finish([=](int64_t j) { return at(x, j); });
    if (kernel == 2) return finish([=](int64_t j) { return at(x, j) + at(x, j + tap); });
    if (kernel == 3) return finish([=](int64_t j) { return at(x, j) + at(x, j + tap) + at(x, j + 2 * tap); });
    // Doubling: sums of m taps become sums of 2 m or 2 m + 1 taps, by the bits of the kernel from the highest one.
    const A* from = x;
    int64_t m = 1;
    int bit = 63 - __builtin_clzll(std::uint64_t(kernel));
    while (--bit > 0) {
      const bool odd = kernel >> bit & 1;
      const int64_t shift = m * tap, rest = length + (kernel - (kernel >> bit)) * tap;
      if (odd)
        for (int64_t j = 0; j < rest; j += N)
          write(partial_ + j, at(from, j) + at(from, j + shift) + at(x, j + 2 * shift));
      else
        for (int64_t j = 0; j < rest; j += N) write(partial_ + j, at(from, j) + at(from, j + shift));
      from = partial_;
      m = 2 * m + odd;
    }
    const int64_t shift = m * tap;
    if (kernel & 1)
      return finish([=](int64_t j) { return at(from, j) + at(from, j + shift) + at(x, j + 2 * shift); });
    finish([=](int64_t j) { return at(from, j) + at(from, j + shift); });
  }

  bool add_pairs(const A* x, int64_t n) {
    if (pair_.step == 0) return false;
    for (int64_t j = 0; 2 * j < n; j += pair_.step)
      write(pairs_ + j, pair_(read<A, N>(x + 2 * j), read<A, N>(x + 2 * j + N)));
    return true;
  }

  // The sum of one window; reads whole vectors.
  static A sum_of(const A* x, int64_t taps) {
    An sum{};
    int64_t t = 0;
    for (; t + N <= taps; t += N) sum += read<A, N>(x + t);
    if (t < taps) sum += lane_mask<A, N>(taps - t) ? read<A, N>(x + t) : An{};
    return reduce_vector<Sum<A>>(sum);
  }

  // The sums of several channels are written as whole vectors: what follows in the row is written later.
  void irregular(const Axis& a, int64_t outer, S* y) {
    const int64_t channels = p_.channels;
    for (int64_t o = o0_; o < o1_; ++o) {
      A* to = window_sums_ + (o - o0_) * channels;
      const A* from = columns_ + (a.starts[o] - first_) * channels;
      if (channels == 1) {
        *to = sum_of(from, a.counts[o]);
        continue;
      }
      for (int64_t c = 0; c < channels; c += N) {
        An sum{};
        for (int64_t t = 0; t < a.counts[o]; ++t) sum += read<A, N>(from + t * channels + c);
        write(to + c, sum);
      }
    }
    results([&](int64_t j) { return read<A, N>(window_sums_ + j); }, outer, y);
  }

  // Divides the sums f(j), a vector of outputs at a time, and writes them to y: one run of outputs per divisor.
  template <class F>
  __attribute__((always_inline)) inline void results(F&& f, int64_t outer, S* y, int64_t step = N) {
    for (int64_t o = o0_, end; o < o1_; o = end) {
      int64_t by = p_.divisor;
      if (o == uniform_.lo) {
        end = uniform_.hi;
        if (!by) by = outer * p_.axes[p_.n_axes - 1].uncropped;
      } else {
        const int64_t stop = o < uniform_.lo ? uniform_.lo : o1_, part = shares_[o - o0_];
        for (end = o + 1; end < stop && shares_[end - o0_] == part; ++end) {
        }
        if (!by) by = outer * part;
      }
      quotients(f, by, (o - o0_) * p_.channels, (end - o0_) * p_.channels, y, step);
    }
  }

  template <class F> __attribute__((always_inline)) inline void quotients(F&& f, int64_t by, int64_t from,
                                                                          int64_t to, S* y, int64_t step) {
    if (by == 0) by = 1;  // the sum of an empty window is zero
    if (by != by_) {
      divider_ = Divider<U>(by > 0 ? std::uint64_t(by) : 0 - std::uint64_t(by), largest_);
      by_ = by;
    }
    const Divider<U> divider = divider_;
    if (!divider.exact) return divide_scalar(f, by, from, to, y, step);
    using Un = Vec<U, N>;
    [[maybe_unused]] const bool negative = by < 0;
    const auto all = [&](auto shifts) __attribute__((always_inline)) {
      Divider<U> fixed = divider;
      fixed.shifts = decltype(shifts)::value;
      const auto quotient = [&](int64_t j) __attribute__((always_inline)) {
        const An sum = f(j);
        if constexpr (is_signed) {
          An sign = sum >> 31;
          const Un magnitude = reinterpret_cast<Un>((sum ^ sign) - sign);
          if (negative) sign = ~sign;
          return An((reinterpret_cast<An>(fixed(magnitude)) ^ sign) - sign);
        } else {
          return fixed(sum);  // divisors of unsigned sums are positive
        }
      };
      int64_t j = from;
      for (; j + N <= to; j += step) write(y + j, converted<Vec<S, N>>(quotient(j)));
      for (; j < to; j += step) {
        S tail[N];
        write(tail, converted<Vec<S, N>>(quotient(j)));
        __builtin_memcpy(y + j, tail, std::size_t(min(step, to - j)) * sizeof(S));
      }
    };
    if (divider.shifts)
      all(std::true_type{});
    else
      all(std::false_type{});
  }

  template <class F> __attribute__((noinline)) void divide_scalar(F&& f, int64_t by, int64_t from, int64_t to,
                                                                  S* y, int64_t step) const {
    for (int64_t j = from; j < to; j += step) {
      A tail[N];
      write(tail, f(j));
      for (int64_t k = 0; k < min(step, to - j); ++k) y[j + k] = S(int64_t(tail[k]) / by);
    }
  }
};

// The engine with the narrowest type that holds the sums; an empty kernel if there is none.
template <class S> Kernel integer_averages(const Problem& p) {
  if constexpr (specialised) {
    using Wide = std::conditional_t<std::is_signed_v<S>, std::int32_t, std::uint32_t>;
    if constexpr (std::is_same_v<S, std::uint8_t>)
      return first_supporting<IntegerAverages<S, std::uint16_t>, IntegerAverages<S, Wide>>(p);
    else
      return first_supporting<IntegerAverages<S, Wide>>(p);
  }
  return {};
}

}  // namespace
}  // namespace ndpool

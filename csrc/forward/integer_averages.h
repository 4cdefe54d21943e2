// The engine for averages of 8- and 16-bit integers, for any window, layout and number of channels. Sums are exact in
// 16 or 32 bits, so their order is free: down the columns, rows that enter and leave the window are all it takes; along
// a row, neighbours are paired where the stride is even, and long windows are built by doubling. Quotients are products
// with a constant (Divider). Compared with sums in float32, 3 x 3 with stride 1 of an image of 719 x 1283 x 3 uint16
// takes a fifth of the time, 2 x 2 with stride 2 of 512 x 512 x 4 uint8 a quarter.
#pragma once

#include "forward/general.h"
#include "kernels.h"
#include "simd.h"

namespace ndpool {
namespace {

// Quotients n / d of whole numbers 0 <= n <= largest, cut off, by the upper half of a product: with b bits, d > 1 no
// power of two, 2^k < d < 2^(k+1), p = b + k and m = ceil(2^p / d) < 2^b,
//   n m / 2^p = n / d + n e / (d 2^p),   0 <= e = m d - 2^p < d.
// The fraction of n / d is at most (d - 1) / d, so the whole part is right if n e / (d 2^p) < 1 / d, that is n e < 2^p.
template <class U> struct Divider {
  static constexpr int bits = 8 * sizeof(U);
  U multiplier = 0;
  int shift = 0;
  bool shifts = false;  // by a power of two
  bool right = true;    // for every n

  Divider(std::uint64_t d, std::uint64_t largest) {
    if (d > largest) return;  // nothing but zeros
    shift = 63 - __builtin_clzll(d);
    shifts = (d & (d - 1)) == 0;
    if (shifts) return;
    const std::uint64_t power = std::uint64_t(1) << (bits + shift), m = power / d + 1;
    multiplier = U(m);
    right = largest * (m * d - power) < power;
  }

  template <class V> __attribute__((always_inline)) inline V operator()(V n) const {
    return shifts ? n >> U(shift) : multiplied_high(n, multiplier) >> U(shift);
  }
};

// Sums of two neighbouring positions of `unit` elements each: two vectors make `step` sums.
template <class A> class Pairs {
public:
  static constexpr int N = wide<A>;
  using An = Vec<A, N>;
  using Index = Vec<UnsignedLike<A>, N>;
  int64_t step;  // 0: there are none

  explicit Pairs(int64_t unit) : step(0) {
    if constexpr (permutes<A>) {
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
    if constexpr (permutes<A>) {
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

  // Positions that are one word each.
  template <class W> static An words(An a, An b) {
    using Words = Vec<W, wide<W>>;
    const Words x = reinterpret_cast<Words>(a), y = reinterpret_cast<Words>(b);
    return reinterpret_cast<An>(evens(x, y)) + reinterpret_cast<An>(odds(x, y));
  }
};

// Elements are stored as S and added up in A.
template <class S, class A> struct IntegerAverages {
  static constexpr const char* engine = "integers";
  using U = UnsignedLike<A>;
  static constexpr int N = wide<A>;
  using An = Vec<A, N>;
  static constexpr bool is_signed = std::is_signed_v<A>;
  static constexpr int64_t row_elements = 32 * 1024 / sizeof(A);
  static constexpr int64_t slack = 4 * vector_bytes;  // elements that vectors may reach past a row

  static std::uint64_t largest_sum(const Problem& p) {
    std::uint64_t sum =
        is_signed ? std::uint64_t(1) << (8 * sizeof(S) - 1) : (std::uint64_t(1) << 8 * sizeof(S)) - 1;
    for (int a = 0; a < p.n_axes; ++a) {
      const std::uint64_t taps = std::uint64_t(p.axes[a].kernel);
      if (taps > (std::uint64_t(1) << 32)) return ~std::uint64_t(0);
      sum = least_unsigned(sum * taps, std::uint64_t(1) << 32);
    }
    return sum;
  }

  static bool serves(const Problem& p) {
    if (p.op != Op::sum || !p.divide || p.x_type != p.y_type) return false;
    const std::uint64_t largest = largest_sum(p);
    if (largest > (sizeof(A) == 2 ? 0xffffu : 0x7fffffffu)) return false;
    if (sizeof(A) == 4) return true;
    std::uint64_t by = p.divisor > 0 ? std::uint64_t(p.divisor) : 0u - std::uint64_t(p.divisor);
    if (p.divisor == 0) {
      by = 1;
      for (int a = 0; a < p.n_axes; ++a) by *= std::uint64_t(p.axes[a].uncropped);
    }
    return Divider<U>(most(1, int64_t(by)), largest).right;
  }

  static void prepare(Problem& p) {
    const Problem q = arranged(p);
    p.tile = q.tile;
    p.tiles = q.tiles;
    p.units = q.units;
    p.scratch = q.scratch;
  }

  static void run(const Problem& p, int64_t begin, int64_t end, char* memory) {
    const Problem q = arranged(p);
    IntegerAverages work(q, memory);
    Walk<Over::outputs> walk(q, begin);
    bool anew = true;
    for (int64_t unit = begin; unit < end && !q.stopped(); ++unit, anew = walk.next()) work.row(walk, anew);
  }

private:
  const Problem& p_;
  const Input<S> input_;
  const Readable readable_;
  const std::uint64_t largest_;
  S *buffers_[group], *out_;
  A *down_, *pairs_, *sums_, *found_;
  int64_t* shares_;  // of the outputs of a tile
  const Pairs<A> pair_;
  const bool small_, halving_;

  Divider<U> divider_{1, 1};  // by this:
  int64_t by_ = 1;

  // What the rows of a tile have in common.
  Span in_{};                            // inputs touched
  int64_t first_ = 0, o0_ = 0, o1_ = 0;  // the first position, and the outputs
  int64_t lead_ = 0, whole_ = 0;         // elements in front of the inputs, and all that windows see
  Range even_{};                         // outputs that share their divisor
  int64_t at_ = 0, from_ = 0, to_ = 0;   // the last row done, and the input rows that are in its sum

  static std::uint64_t least_unsigned(std::uint64_t a, std::uint64_t b) { return a < b ? a : b; }

  static constexpr int64_t many_channels = 2 * vector_bytes;  // which are a row of their own

  static Problem arranged(const Problem& p) {
    Problem q = p.lanes >= many_channels && p.n_axes < max_axes ? channels_as_row(p) : p;
    const Axis& last = q.axes[q.n_axes - 1];
    const int64_t per_output =
        most(1, last.regular() ? last.stride : last.size / most(1, last.out)) * q.lanes;
    q.tile = most(1, least(last.out, row_elements / per_output));
    q.tiles = ceil_div(last.out, q.tile);
    q.units = q.planes * q.tiles * q.rows;
    q.scratch = group * Scratch::bytes<S>(row_length(q)) + Scratch::bytes<S>(q.tile * q.lanes + slack) +
                3 * Scratch::bytes<A>(row_length(q)) + Scratch::bytes<A>(q.tile * q.lanes + slack) +
                Scratch::bytes<int64_t>(q.tile);
    return q;
  }

  static int64_t row_length(const Problem& q) {
    const Axis& last = q.axes[q.n_axes - 1];
    const int64_t positions =
        last.regular() ? (q.tile - 1) * last.stride + (last.kernel - 1) * last.step + 1 : last.size;
    return positions * q.lanes + slack;
  }

  IntegerAverages(const Problem& q, char* memory)
      : p_(q), input_(q, false), readable_(q, q.x, sizeof(S), Over::inputs), largest_(largest_sum(q)),
        pair_(q.lanes), small_(is_small(q)), halving_(is_halving(q)) {
    Scratch scratch(memory);
    for (S*& buffer : buffers_) buffer = scratch.take<S>(row_length(q));
    out_ = scratch.take<S>(q.tile * q.lanes + slack);
    down_ = scratch.take<A>(row_length(q));
    pairs_ = scratch.take<A>(row_length(q));
    sums_ = scratch.take<A>(row_length(q));
    found_ = scratch.take<A>(q.tile * q.lanes + slack);
    shares_ = scratch.take<int64_t>(q.tile);
  }

  void row(const Walk<Over::outputs>& walk, bool anew) {
    if (anew) enter_tile(walk);
    int64_t outer = 1;
    if (!p_.divisor)
      for (int a = 0; a < walk.outer(); ++a) outer *= share(walk.axis(a), walk.at(a));
    const Row y = walk.row(p_.y, o0_, o1_);
    const bool direct = y.packed(sizeof(S));
    S* to = direct ? reinterpret_cast<S*>(y.data) : out_;
    if (small_) {
      small(walk, anew, outer, to);
    } else if (halving_ && window(walk.axis(0), walk.at(0)).taps == 2) {
      halve(walk, outer, to);
    } else {
      down(walk, anew);
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
    in_ = touched(last, o0_, o1_);
    first_ = last.regular() ? begin_of(last, o0_) : in_.from;
    even_ = p_.divisor                      ? Range{o0_, o1_}
            : last.kernel == last.uncropped ? interior(last, o0_, o1_)
                                            : Range{o1_, o1_};
    for (int64_t o = o0_; o < o1_; ++o) {
      if (o == even_.lo) o = even_.hi;
      if (o < o1_) shares_[o - o0_] = p_.divisor ? p_.divisor : share(last, o);
    }
    whole_ =
        last.regular() ? ((o1_ - o0_ - 1) * last.stride + (last.kernel - 1) * last.step + 1) * p_.lanes : 0;
    lead_ = most(0, in_.from - first_) * p_.lanes;
    fill(down_, lead_);
  }

  static void fill(A* to, int64_t n) {
    for (int64_t j = 0; j < n; j += N) write(to + j, An{});
  }

  // The sums of the columns of this row's windows.
  void down(const Walk<Over::outputs>& walk, bool anew) {
    const int v = int(walk.outer()) - 1;
    const int64_t width = (in_.to - in_.from) * p_.lanes;
    A* to = down_ + lead_;
    const Window w = v < 0 ? Window{0, 1, 0} : window(walk.axis(v), walk.at(v));
    const int64_t step = v < 0 ? 1 : walk.axis(v).step, end = w.start + w.taps;
    const int64_t changes = w.start - from_ + end - to_;
    if (!anew && v >= 0 && step == 1 && walk.at(v) == at_ + 1 && w.start >= from_ && w.start < to_ &&
        end >= to_ && changes + 1 < w.taps) {
      exchange(walk, v, w.start, end, to, width);
    } else {
      bool begin = true;
      slabs(walk, v, [&](int64_t* index) {
        for (int64_t t = 0; t < w.taps; t += group) {
          const int n = int(least(group, w.taps - t));
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
    if (v >= 0) at_ = walk.at(v);
    from_ = w.start;
    to_ = end;
    fill(to + width, whole_ - lead_ - width);  // what windows see beyond the end of the input
  }

  // All taps of the axes before v: calls f with their indices.
  template <class F> void slabs(const Walk<Over::outputs>& walk, int v, F&& f) const {
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
    return input_.row(walk.row(p_.x, index, in_.from, in_.to), 0, buffers_[k]);
  }

  // Rows [to_, end) come, rows [from_, start) go.
  void exchange(const Walk<Over::outputs>& walk, int v, int64_t start, int64_t end, A* to, int64_t width) {
    slabs(walk, v, [&](int64_t* index) {
      int64_t come = to_, go = from_;
      for (; come < end && go < start; ++come, ++go) {
        index[v] = come;
        const S* a = read_row(walk, index, 0);
        index[v] = go;
        const S* b = read_row(walk, index, 1);
        each(a, b, to, width, [](auto sum, auto a, auto b) { return decltype(sum)(sum + a - b); });
      }
      for (; come < end; ++come) {
        index[v] = come;
        const S* a = read_row(walk, index, 0);
        each(a, a, to, width, [](auto sum, auto a, auto) { return decltype(sum)(sum + a); });
      }
      for (; go < start; ++go) {
        index[v] = go;
        const S* a = read_row(walk, index, 0);
        each(a, a, to, width, [](auto sum, auto a, auto) { return decltype(sum)(sum - a); });
      }
    });
  }

  __attribute__((always_inline)) static inline An load(const S* x) { return converted<An>(read<S, N>(x)); }

  // Elements of a row that vectors may read: those past its end, too, if they are in memory.
  int64_t readable(const S* x, int64_t width) const {
    const int64_t whole = ceil_div(width, N) * N;
    bool own = false;
    for (const S* buffer : buffers_) own |= x == buffer;
    return own || readable_.holds(x, whole) ? whole : width / N * N;
  }

  template <class F> void each(const S* a, const S* b, A* sum, int64_t width, F&& f) const {
    const int64_t whole = least(readable(a, width), readable(b, width));
    for (int64_t j = 0; j < whole; j += N) write(sum + j, f(read<A, N>(sum + j), load(a + j), load(b + j)));
    for (int64_t j = whole; j < width; ++j) sum[j] = f(sum[j], A(a[j]), A(b[j]));
  }

  // Up to four rows together.
  template <bool begin> void add(const S* const* rows, int n, A* sum, int64_t width) const {
    int64_t whole = readable(rows[0], width);
    for (int k = 1; k < n; ++k) whole = least(whole, readable(rows[k], width));
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

  // Windows of 2 x 2 and 3 x 3 with stride 1: along the row first, and then down in the same loop.
  static bool is_small(const Problem& q) {
    if (q.n_axes != 2) return false;
    for (int a = 0; a < 2; ++a) {
      const Axis& axis = q.axes[a];
      if (!axis.regular() || axis.stride != 1 || axis.kernel != q.axes[0].kernel) return false;
    }
    return q.axes[0].step == 1 && (q.axes[0].kernel == 2 || q.axes[0].kernel == 3);
  }

  // Sums along the rows of a window wait in scratch: row r is ring(r).
  A* ring(int64_t r) const { return r % 3 == 0 ? down_ : r % 3 == 1 ? pairs_ : sums_; }

  void small(const Walk<Over::outputs>& walk, bool anew, int64_t outer, S* y) {
    const Window w = window(walk.axis(0), walk.at(0));
    const int64_t end = w.start + w.taps, kernel = walk.last().kernel, tap = walk.last().step * p_.lanes;
    if (anew || w.start < from_ || w.start > to_) to_ = w.start;
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
      for (int64_t j = 0; j < (o1_ - o0_) * p_.lanes; j += N)
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

  // Windows of 2 x 2 with stride 2 that lie inside vertically.
  static bool is_halving(const Problem& q) {
    if (q.n_axes != 2) return false;
    const Axis &rows = q.axes[0], &last = q.axes[1];
    return rows.regular() && last.regular() && rows.kernel == 2 && last.kernel == 2 && last.stride == 2 &&
           last.step == 1 && Pairs<A>(q.lanes).step;
  }

  void halve(const Walk<Over::outputs>& walk, int64_t outer, S* y) {
    const Window w = window(walk.axis(0), walk.at(0));
    const S *a = padded_row(walk, w.start, 0), *b = padded_row(walk, w.start + walk.axis(0).step, 1);
    if constexpr (2 * sizeof(S) == sizeof(A))
      if (p_.lanes == 1) {  // two neighbours are the halves of a word
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

  // Row i of a plane with its padding, and two vectors behind it.
  const S* padded_row(const Walk<Over::outputs>& walk, int64_t i, int k) const {
    const Row row = walk.row(p_.x, &i, in_.from, in_.to);
    const int64_t width = row.n * row.lanes;
    const S* x = reinterpret_cast<const S*>(row.data);
    const bool packed = row.packed(sizeof(S));
    if (packed && lead_ == 0 && width >= whole_ && readable_.holds(x, whole_ + 2 * N)) return x;
    S* to = buffers_[k];
    __builtin_memset(to, 0, std::size_t(lead_) * sizeof(S));
    if (packed)
      __builtin_memcpy(to + lead_, x, std::size_t(width) * sizeof(S));
    else
      load_row<S, S>(row, to + lead_);
    __builtin_memset(to + lead_ + width, 0, std::size_t(most(0, whole_ - lead_ - width)) * sizeof(S));
    return to;
  }

  // From the sums of the columns to those of the windows, and to the results.
  void across(const Axis& a, int64_t outer, S* y) {
    const int64_t unit = p_.lanes, n = o1_ - o0_;
    int64_t kernel = a.kernel, stride = a.stride;
    const A* x = down_;
    while (a.step == 1 && n > 1 && stride % 2 == 0 && kernel % 2 == 0 &&
           add_pairs(x, ((n - 1) * stride + kernel) * unit)) {
      x = pairs_;
      kernel /= 2;
      stride /= 2;
    }
    const int64_t tap = a.step * unit, positions = ((n - 1) * stride + 1) * unit;
    if (unit == 1 && tap == 1 && kernel >= N && 4 * stride >= kernel) {
      for (int64_t o = 0; o < n; ++o) found_[o] = sum_of(x + o * stride, kernel);
      return results([&](int64_t j) { return read<A, N>(found_ + j); }, outer, y);
    }
    // The last step of a sum is done where it is divided, or where the outputs are picked out.
    const auto finish = [&](auto&& f) __attribute__((always_inline)) {
      if (stride == 1) return results(f, outer, y);
      for (int64_t j = 0; j < positions; j += N) write(sums_ + j, f(j));
      every(sums_, n, stride, unit, found_);
      results([&](int64_t j) { return read<A, N>(found_ + j); }, outer, y);
    };
    const auto at = [](const A* x, int64_t j) __attribute__((always_inline)) { return read<A, N>(x + j); };
    if (kernel == 1) return finish([=](int64_t j) { return at(x, j); });
    if (kernel == 2) return finish([=](int64_t j) { return at(x, j) + at(x, j + tap); });
    if (kernel == 3) return finish([=](int64_t j) { return at(x, j) + at(x, j + tap) + at(x, j + 2 * tap); });
    // Sums of m taps become those of 2 m or 2 m + 1: the bits of the kernel from the top.
    const A* from = x;
    int64_t m = 1;
    int bit = 63 - __builtin_clzll(std::uint64_t(kernel));
    while (--bit > 0) {
      const bool odd = kernel >> bit & 1;
      const int64_t shift = m * tap, rest = positions + (kernel - (kernel >> bit)) * tap;
      if (odd)
        for (int64_t j = 0; j < rest; j += N)
          write(sums_ + j, at(from, j) + at(from, j + shift) + at(x, j + 2 * shift));
      else
        for (int64_t j = 0; j < rest; j += N) write(sums_ + j, at(from, j) + at(from, j + shift));
      from = sums_;
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

  // One long window.
  static A sum_of(const A* x, int64_t taps) {
    An sum = read<A, N>(x);
    int64_t t = N;
    for (; t + N <= taps; t += N) sum += read<A, N>(x + t);
    An last = {};
    if (t < taps) {
      A some[N] = {};
      for (int64_t j = t; j < taps; ++j) some[j - t] = x[j];
      last = read<A, N>(some);
    }
    return by_halves<Sum<A>>(An(sum + last));
  }

  void irregular(const Axis& a, int64_t outer, S* y) {
    const int64_t unit = p_.lanes;
    for (int64_t o = o0_; o < o1_; ++o) {
      A* to = found_ + (o - o0_) * unit;
      for (int64_t c = 0; c < unit; ++c) to[c] = 0;
      const A* from = down_ + (a.starts[o] - first_) * unit;
      for (int64_t t = 0; t < a.counts[o]; ++t, from += unit)
        in_vectors(unit, [&](int64_t c) { to[c] = A(to[c] + from[c]); });
    }
    results([&](int64_t j) { return read<A, N>(found_ + j); }, outer, y);
  }

  // Sums f(j) of vectors of outputs, divided, to y: runs of outputs that share a divisor.
  template <class F>
  __attribute__((always_inline)) inline void results(F&& f, int64_t outer, S* y, int64_t step = N) {
    for (int64_t o = o0_, end; o < o1_; o = end) {
      int64_t by = p_.divisor;
      if (o == even_.lo) {
        end = even_.hi;
        if (!by) by = outer * p_.axes[p_.n_axes - 1].uncropped;
      } else {
        const int64_t stop = o < even_.lo ? even_.lo : o1_, part = shares_[o - o0_];
        for (end = o + 1; end < stop && shares_[end - o0_] == part; ++end) {
        }
        if (!by) by = outer * part;
      }
      quotients(f, by, (o - o0_) * p_.lanes, (end - o0_) * p_.lanes, y, step);
    }
  }

  template <class F> __attribute__((always_inline)) inline void quotients(F&& f, int64_t by, int64_t from,
                                                                          int64_t to, S* y, int64_t step) {
    if (by == 0) by = 1;  // an empty window's sum is zero whatever it is divided by
    if (by != by_) {
      divider_ = Divider<U>(by > 0 ? std::uint64_t(by) : 0 - std::uint64_t(by), largest_);
      by_ = by;
    }
    const Divider<U> divide = divider_;
    if (!divide.right) return one_by_one(f, by, from, to, y, step);
    using Un = Vec<U, N>;
    [[maybe_unused]] const bool negative = by < 0;
    const auto all = [&](auto shifts) __attribute__((always_inline)) {
      Divider<U> exactly = divide;
      exactly.shifts = decltype(shifts)::value;
      const auto quotient = [&](int64_t j) __attribute__((always_inline)) {
        const An sum = f(j);
        if constexpr (is_signed) {
          An sign = sum >> 31;
          const Un magnitude = reinterpret_cast<Un>((sum ^ sign) - sign);
          if (negative) sign = ~sign;
          return An((reinterpret_cast<An>(exactly(magnitude)) ^ sign) - sign);
        } else {
          return exactly(sum);  // its divisors are positive
        }
      };
      int64_t j = from;
      for (; j + N <= to; j += step) write(y + j, converted<Vec<S, N>>(quotient(j)));
      for (; j < to; j += step) {
        S some[N];
        write(some, converted<Vec<S, N>>(quotient(j)));
        __builtin_memcpy(y + j, some, std::size_t(least(step, to - j)) * sizeof(S));
      }
    };
    if (divide.shifts)
      all(std::true_type{});
    else
      all(std::false_type{});
  }

  template <class F> __attribute__((noinline)) void one_by_one(F&& f, int64_t by, int64_t from, int64_t to,
                                                               S* y, int64_t step) const {
    for (int64_t j = from; j < to; j += step) {
      A some[N];
      write(some, f(j));
      for (int64_t k = 0; k < least(step, to - j); ++k) y[j + k] = S(int64_t(some[k]) / by);
    }
  }
};

// The engine that adds up S in the narrowest type that holds its sums; an empty kernel if none does.
template <class S> Kernel integer_averages(const Problem& p) {
  if constexpr (specialised) {
    using Wide = std::conditional_t<std::is_signed_v<S>, std::int32_t, std::uint32_t>;
    if constexpr (std::is_same_v<S, std::uint8_t>)
      return first_serving<IntegerAverages<S, std::uint16_t>, IntegerAverages<S, Wide>>(p);
    else
      return first_serving<IntegerAverages<S, Wide>>(p);
  }
  return {};
}

}  // namespace
}  // namespace ndpool

// Direct: small windows on packed rows, with every tap in registers. What windows share with those of the next output row
// is carried over to it. Maxima are taken the speculative way, which assumes that there is no NaN, while the elements are
// also added up: if that sum is NaN (a NaN, or opposite infinities), the row is done again the exact way.
// Work comes in strips: output rows whose windows step evenly through memory, so that a row costs little more than its
// elements. Short rows are written in whole vectors; what they write past the end, the next row overwrites. Windows that
// an end of the row cuts off are computed by its first and last vector, with masks. Without this engine max pooling
// 3 x 3 with stride 2 takes 8.0 times as long on 55 x 55 (AlexNet), 2 x 2 with offsets 10.5 times on 56 x 56 (VGG).
#pragma once

#include "forward/general.h"
#include "simd.h"

namespace ndpool {
namespace {

constexpr int most_rows = 27;  // of one window
// Rows of a window as a template sees them: their number, or 0 for any; below zero where the taps of a row are not
// neighbours, -1 for any number of such rows.
constexpr int spread = -1;
constexpr int known(int rows) { return rows > 0 ? rows : rows < spread ? -rows : 0; }
constexpr int64_t calm_rows =
    32;  // done the exact way after a NaN, before the speculative way is tried again

// A run of output rows: where the rows of the first one's windows are, and how far apart those of the next.
template <class S> struct Strip {
  const S* rows[most_rows];
  Code codes[most_rows];  // of each row's first tap
  int n_rows;
  int64_t ahead;  // to rows to ask for, where the processor does not see by itself which come next; or 0
  bool by_rows;   // rows that share a page of memory, but not a few lines, are better read one by one
  int64_t count, step;  // output rows; elements from one's input rows to the next's
  S* y;
  int64_t y_step, by;       // by: what the outer axes contribute to the divisor
  char* extra;              // codes or positions of the first row, as dense as y
  int64_t base, base_step;  // position of the first row's first window, and how much later the next row's is
  int64_t tap;              // elements from one tap of a row to the next
  Code tap_code;
};

// One vector of outputs: which of its elements lie inside, the first of them, and its divisors.
template <class V, int N> struct Mask {
  decltype(Vec<V, N>{} == Vec<V, N>{}) inside[3];
  bool whole[3];  // all of them
  Vec<UnsignedLike<V>, N> lead;
  Vec<V, N> by;
};

template <class R, class S, bool coded> struct Direct {
  using V = typename R::V;
  template <int N> using Vn = Vec<V, N>;
  using C = UnsignedLike<V>;
  template <int N> using Cn = Vec<C, N>;
  static constexpr bool can_be_nan = R::picks && is_real<V>;
  static constexpr bool bytes = R::picks && sizeof(V) == 1;

  struct Row {
    int64_t out, origin;
    Range whole;  // outputs with whole windows
    bool edged() const { return whole.lo > 0 || whole.hi < out; }
  };

  template <int N> struct Best {
    Vn<N> value;
    Cn<N> code;
  };

  template <bool speculative, int N>
  __attribute__((always_inline)) static inline void merge(const Best<N>& later, Best<N>& best) {
    if constexpr (!R::picks) {
      best.value += later.value;
    } else {
      auto better = R::beats(later.value, best.value);
      if constexpr (coded) {
        if constexpr (!speculative && can_be_nan) better |= later.value != later.value;
        best.value = better ? later.value : best.value;
        best.code = better ? later.code : best.code;
      } else {
        best.value = better ? later.value : best.value;  // one instruction; a NaN would be lost
        if constexpr (!speculative && can_be_nan)
          best.value = later.value != later.value ? later.value : best.value;
      }
    }
  }

  // Every other element, N of them.
  template <int N> __attribute__((always_inline)) static inline Vn<N> read_evens(const S* x) {
    if constexpr (std::is_same_v<S, bf16>)
      return reinterpret_cast<Vn<N>>(read<std::uint32_t, N>(reinterpret_cast<const std::uint32_t*>(x)) << 16);
    else if constexpr (sizeof(V) == 1)
      return reinterpret_cast<Vn<N>>(
          converted<Vec<std::uint8_t, N>>(read<std::uint16_t, N>(reinterpret_cast<const std::uint16_t*>(x))));
    else
      return evens(read_as<V, N>(x), read_as<V, N>(x + N));
  }

  // Into a sum that only tells whether there was a NaN; integers have none, and might overflow.
  template <class T> __attribute__((always_inline)) static inline void see(T v, T& all) {
    if constexpr (can_be_nan) all += v;
  }

  // The elements under the taps of N neighbouring windows of a row; `all` has every one of them in it, but for the
  // last window's last tap. Nothing beyond that is read.
  template <int K, int Stride, int N>
  __attribute__((always_inline)) static inline void read_taps(const S* x, Vn<N> (&taps)[K], Vn<N>& all) {
    if constexpr (Stride == 1) {
      for (int t = 0; t < K; ++t) taps[t] = read_as<V, N>(x + t);
      all = taps[0];
      for (int t = 1; t < K; ++t) see(taps[t], all);
      return;
    }
    if constexpr (std::is_same_v<S, bf16>) {  // two neighbours are the halves of a word
      const auto words = read<std::uint32_t, N>(reinterpret_cast<const std::uint32_t*>(x));
      taps[0] = reinterpret_cast<Vn<N>>(words << 16);
      taps[1] = reinterpret_cast<Vn<N>>(words & 0xffff0000u);
      all = taps[0] + taps[1];
    } else if constexpr (std::is_integral_v<S> && sizeof(S) < 4 && !std::is_same_v<S, V>) {
      using Pair = std::conditional_t<sizeof(S) == 1, std::uint16_t, std::uint32_t>;
      constexpr int bits = 8 * sizeof(S), unused = 32 - 2 * bits;
      const auto words = converted<Vec<std::uint32_t, N>>(read<Pair, N>(reinterpret_cast<const Pair*>(x)));
      using Whole = Vec<std::conditional_t<std::is_signed_v<S>, std::int32_t, std::uint32_t>, N>;
      const auto part = [](auto word) {  // its upper bits
        return converted<Vn<N>>(
            reinterpret_cast<Vec<std::int32_t, N>>(reinterpret_cast<Whole>(word) >> (32 - bits)));
      };
      taps[0] = part(words << (32 - bits));
      taps[1] = part(words << unused);
    } else if constexpr (sizeof(S) == 1) {  // of a word, too
      const auto words = read<std::uint16_t, N>(reinterpret_cast<const std::uint16_t*>(x));
      taps[0] = reinterpret_cast<Vn<N>>(converted<Vec<std::uint8_t, N>>(words));
      taps[1] = reinterpret_cast<Vn<N>>(converted<Vec<std::uint8_t, N>>(words >> 8));
    } else {
      const Vn<N> a = read_as<V, N>(x), b = read_as<V, N>(x + N);
      taps[0] = evens(a, b);
      taps[1] = odds(a, b);
      all = a;
      see(b, all);
    }
    if constexpr (K == 3) taps[2] = shifted<1>(taps[0], all_of<Vn<N>>(load_as<V>(x[2 * N])));
  }

  // N windows: rows first for picks (the order of a row-major scan), columns first for sums. `carry`: the last row's
  // part is left there, where the next windows down, whose first row it is, find it (`carried`).
  template <int K, int Stride, int Rows, int N, bool speculative, bool masked, bool carried>
  __attribute__((always_inline)) static inline Best<N> windows(const Strip<S>& strip, const S* const* rows,
                                                               int64_t shift, const Mask<V, N>* mask,
                                                               Vn<N>& poison, Best<N>* carry) {
    const int n = known(Rows) ? known(Rows) : strip.n_rows;
    const C unit = Rows < 0 ? C(strip.tap_code) : C(1);
    const auto read_row = [&](int r, Vn<N>(&taps)[K]) __attribute__((always_inline)) {
      Vn<N> all{};
      if constexpr (Rows < 0) {
        for (int t = 0; t < K; ++t) {
          taps[t] = read_evens<N>(rows[r] + shift + t * strip.tap);
          see(taps[t], all);
        }
      } else {
        read_taps<K, Stride, N>(rows[r] + shift, taps, all);
      }
      if (Stride == 2 && strip.ahead)
        for (int line = 0; line < int(sizeof(S)) * Stride * N; line += 64)
          fetch(reinterpret_cast<const char*>(rows[r] + shift + strip.ahead) + line);
      if constexpr (masked)
        for (int t = 0; t < K; ++t)
          if (!mask->whole[t]) taps[t] = mask->inside[t] ? taps[t] : Vn<N>{} + R::init();
      return all;
    };
    Best<N> best;
    if constexpr (bytes && !coded && K == 2 && Rows >= 0 && !masked) {
      // Nobody can tell which of equal bytes it is: rows first, before any are spread.
      constexpr int L = least(2 * N, vector_bytes);
      const auto half = [&](int64_t at) __attribute__((always_inline)) {
        auto pairs = read<V, L>(rows[0] + at);
        for (int r = 1; r < n; ++r) {
          const auto later = read<V, L>(rows[r] + at);
          pairs = R::beats(later, pairs) ? later : pairs;
        }
        const auto seconds =
            reinterpret_cast<Vec<V, L>>(reinterpret_cast<Vec<std::uint16_t, L / 2>>(pairs) >> 8);
        pairs = R::beats(seconds, pairs) ? seconds : pairs;
        return reinterpret_cast<Vec<V, L / 2>>(
            converted<Vec<std::uint8_t, L / 2>>(reinterpret_cast<Vec<std::uint16_t, L / 2>>(pairs)));
      };
      if constexpr (L == 2 * N)
        best.value = half(shift);
      else
        best.value = joined(half(shift), half(shift + N));
    } else if constexpr (R::picks) {
      if constexpr (carried) best = *carry;
      for (int r = carried; r < n; ++r) {
        Vn<N> taps[K];
        const Vn<N> all = read_row(r, taps);
        if constexpr (speculative && can_be_nan) poison += all;
        Best<N> across;
        across.value = taps[0];
        if constexpr (coded) across.code = Cn<N>{} + C(strip.codes[r]);
        if constexpr (masked) {  // the first tap inside, even if it is no better than nothing
          if constexpr (coded) across.code = mask->lead * unit + C(strip.codes[r]);
        }
        for (int t = 1; t < K; ++t) {
          Best<N> later;
          later.value = taps[t];
          if constexpr (coded) later.code = Cn<N>{} + (C(strip.codes[r]) + C(t) * unit);
          merge<speculative>(later, across);
        }
        if (r)
          merge<speculative>(across, best);
        else
          best = across;
        if (carry && r == n - 1) *carry = across;
      }
    } else {
      Vn<N> down[K];
      for (int r = 0; r < n; ++r) {
        Vn<N> taps[K];
        read_row(r, taps);
        for (int t = 0; t < K; ++t) down[t] = r ? down[t] + taps[t] : taps[t];
      }
      best.value = down[0];
      for (int t = 1; t < K; ++t) best.value += down[t];
    }
    return best;
  }

  template <int N> __attribute__((always_inline)) static inline void store(const Strip<S>& strip,
                                                                           const Best<N>& best,
                                                                           int64_t element, int64_t position,
                                                                           int64_t stride, Extra extra) {
    write_as<N, R::picks, S, V>(strip.y + element, best.value);
    if constexpr (coded) {
      if (extra == Extra::offset8)
        write(reinterpret_cast<std::uint8_t*>(strip.extra) + element,
              converted<Vec<std::uint8_t, N>>(best.code));
      else
        write(reinterpret_cast<int64_t*>(strip.extra) + element,
              converted<Vec<int64_t, N>>(best.code) + (position + stride * iota<N>()));
    }
  }

  template <int N> static Vec<int64_t, N> iota() {
    Vec<int64_t, N> v;
    for (int j = 0; j < N; ++j) v[j] = j;
    return v;
  }

  // The part of the windows that the next output row begins with, for a row of outputs; two of them, since one is
  // read while the other is written.
  struct Carry {
    V* values[2];
    C* codes[2];

    Carry(char* memory, int64_t out) {
      Scratch scratch(memory);
      for (int k = 0; k < 2; ++k) {
        values[k] = scratch.take<V>(out + wide<V>);
        codes[k] = scratch.take<C>(out + wide<V>);
      }
    }
    static int64_t bytes(int64_t out) {
      return 2 * (Scratch::bytes<V>(out + wide<V>) + Scratch::bytes<C>(out + wide<V>));
    }
    template <int N> Best<N> get(int64_t row, int64_t o, C less) const {
      Best<N> best;
      best.value = read<V, N>(values[row & 1] + o);
      if constexpr (coded) best.code = read<C, N>(codes[row & 1] + o) - less;
      return best;
    }
    template <int N> void put(int64_t row, int64_t o, const Best<N>& best) const {
      write(values[row & 1] + o, best.value);
      if constexpr (coded) write(codes[row & 1] + o, best.code);
    }
  };

  // Sums to means: by a whole window's share.
  struct Divide {
    bool none;
    Quotient<V> quotient;

    Divide(const Problem& p, int64_t share)
        : none(R::picks || !p.divide), quotient(p.divisor ? p.divisor : share) {}
    template <class Vx> void operator()(Vx& v) const {
      if constexpr (!R::picks)
        if (!none) v = quotient(v);
    }
  };

  // The first or the last vector of a row, where windows are cut off.
  template <int K, int Stride, int Rows, int N, bool speculative, bool carried>
  __attribute__((always_inline)) static inline void
  edge(const Problem& p, const Strip<S>& strip, const S* const* rows, int64_t o, const Mask<V, N>& mask,
       int64_t row, const Carry& carry, Vn<N>& poison) {
    Best<N> shared;
    if constexpr (carried) shared = carry.template get<N>(row, o, C(strip.codes[2] - strip.codes[0]));
    auto best = windows<K, Stride, Rows, N, speculative, true, carried>(
        strip, rows, o * Stride, &mask, poison, Rows == 3 ? &shared : nullptr);
    if constexpr (Rows == 3) carry.template put<N>(row + 1, o, shared);
    if constexpr (!R::picks)
      if (p.divide) best.value /= p.divisor ? Vn<N>{} + V(p.divisor) : mask.by * V(strip.by);
    store<N>(strip, best, row * strip.y_step + o, strip.base + row * strip.base_step + o * Stride, Stride,
             p.extra);
  }

  // All outputs of a strip's rows. Returns how many rows were done before one with a NaN was met. Three rows are
  // those of windows that share one with the next: its part is carried over.
  template <int K, int Stride, int Rows, int N, bool speculative, bool by_rows>
  static int64_t sweep(const Problem& p, const Strip<S>& strip, const Row& row, const Mask<V, N>* masks,
                       const Carry& carry) {
    const S* rows[known(Rows) ? known(Rows) : most_rows];
    const int n_rows = known(Rows) ? known(Rows) : strip.n_rows;
    for (int r = 0; r < n_rows; ++r) rows[r] = strip.rows[r] + row.origin;
    const Divide divide(p, strip.by * K);
    for (int64_t i = 0; i < strip.count; ++i) {
      Vn<N> poison = {};
      const auto go = [&](auto carried) __attribute__((always_inline)) {
        if constexpr (by_rows)
          line_by_rows<K, Stride, Rows, N, speculative, carried>(p, strip, row, masks, carry, rows, divide, i,
                                                                 poison);
        else
          line<K, Stride, Rows, N, speculative, carried>(p, strip, row, masks, carry, rows, divide, i,
                                                         poison);
      };
      if (Rows == 3 && i)
        go(std::true_type{});
      else
        go(std::false_type{});
      if constexpr (speculative && can_be_nan)
        if (any(poison != poison)) return i;
      for (int r = 0; r < n_rows; ++r) rows[r] += strip.step;
    }
    return strip.count;
  }

  template <int K, int Stride, int Rows, int N, bool speculative, bool carried>
  __attribute__((always_inline)) static inline void
  line(const Problem& p, const Strip<S>& strip, const Row& row, const Mask<V, N>* masks, const Carry& carry,
       const S* const* rows, const Divide& divide, int64_t i, Vn<N>& poison) {
    const int64_t element = i * strip.y_step, base = strip.base + i * strip.base_step;
    const C less = C(strip.codes[2] - strip.codes[0]);
    const Extra extra = p.extra;
    const auto plain = [&](int64_t o) __attribute__((always_inline)) {
      Best<N> shared;
      if constexpr (carried) shared = carry.template get<N>(i, o, less);
      auto best = windows<K, Stride, Rows, N, speculative, false, carried>(
          strip, rows, o * Stride, nullptr, poison, Rows == 3 ? &shared : nullptr);
      if constexpr (Rows == 3) carry.template put<N>(i + 1, o, shared);
      divide(best.value);
      store<N>(strip, best, element + o, base + o * Stride, Stride, extra);
    };
    const auto cut = [&](int64_t o, int which) __attribute__((always_inline)) {
      edge<K, Stride, Rows, N, speculative, carried>(p, strip, rows, o, masks[which], i, carry, poison);
    };
    const int64_t o = across_row<N>(row, plain, cut);
    // The one tap of each row that no sum holds; a window that is cut off has none there.
    if constexpr (speculative && can_be_nan && K == 3 && Stride == 2 && Rows >= 0)
      if (o < row.out || row.whole.hi >= row.out)
        for (int r = carried; r < (Rows ? Rows : strip.n_rows); ++r) poison += load_as<V>(rows[r][2 * o]);
  }

  // The same, one input row after the other: what there is of the windows so far waits in L1.
  template <int K, int Stride, int Rows, int N, bool speculative, bool carried>
  __attribute__((always_inline)) static inline void
  line_by_rows(const Problem& p, const Strip<S>& strip, const Row& row, const Mask<V, N>* masks,
               const Carry& carry, const S* const* rows, const Divide& divide, int64_t i, Vn<N>& poison) {
    const C less = C(strip.codes[2] - strip.codes[0]);
    const Extra extra = p.extra;
    int64_t end = 0;
    for (int r = carried; r < Rows; ++r) {
      const auto part = [&](int64_t o, const Mask<V, N>* mask) __attribute__((always_inline)) {
        Vn<N> taps[K], all;
        read_taps<K, Stride, N>(rows[r] + o * Stride, taps, all);
        if (mask)
          for (int t = 0; t < K; ++t)
            if (!mask->whole[t]) taps[t] = mask->inside[t] ? taps[t] : Vn<N>{} + R::init();
        Best<N> best;
        if constexpr (R::picks) {
          if constexpr (speculative && can_be_nan) poison += all;
          Best<N> across;
          across.value = taps[0];
          if constexpr (coded) across.code = (mask ? mask->lead : Cn<N>{}) + C(strip.codes[r]);
          for (int t = 1; t < K; ++t) {
            Best<N> later;
            later.value = taps[t];
            if constexpr (coded) later.code = Cn<N>{} + C(strip.codes[r] + t);
            merge<speculative>(later, across);
          }
          best = across;
          if (r) {
            best = carry.template get<N>(i, o, 0);
            merge<speculative>(across, best);
          }
          if constexpr (Rows == 3)
            if (r == 2) {
              if constexpr (coded) across.code -= less;  // it is the next windows' first row
              carry.template put<N>(i + 1, o, across);
            }
          if (r < Rows - 1) return carry.template put<N>(i, o, best);
        } else {
          if (r == 0) {
            for (int t = 0; t < K; ++t) carry.template put<N>(t, o, Best<N>{taps[t], {}});
            return;
          }
          best.value = carry.template get<N>(0, o, 0).value + taps[0];
          for (int t = 1; t < K; ++t) best.value += carry.template get<N>(t, o, 0).value + taps[t];
          if (!mask)
            divide(best.value);
          else if (p.divide)
            best.value /= p.divisor ? Vn<N>{} + V(p.divisor) : mask->by * V(strip.by);
        }
        store<N>(strip, best, i * strip.y_step + o, strip.base + i * strip.base_step + o * Stride, Stride,
                 extra);
      };
      const auto plain = [&](int64_t o) __attribute__((always_inline)) { part(o, nullptr); };
      const auto cut = [&](int64_t o, int which) __attribute__((always_inline)) { part(o, masks + which); };
      end = across_row<N>(row, plain, cut);
    }
    if constexpr (speculative && can_be_nan && K == 3)
      if (end < row.out || row.whole.hi >= row.out)
        for (int r = carried; r < Rows; ++r) poison += load_as<V>(rows[r][2 * end]);
  }

  // Calls `plain` for every vector of a row's outputs, `cut` for the first and the last if windows are cut off there.
  // Returns where the whole windows end. Each of the two is called in as few places as it can be: what they inline to is
  // long.
  template <int N, class Plain, class Cut>
  __attribute__((always_inline)) static inline int64_t across_row(const Row& row, Plain plain, Cut cut) {
    const int64_t out = row.out;
    const bool left = row.whole.lo > 0, right = row.whole.hi < out, one = out <= N;
    if (one && !left && !right) {
      plain(0);
      return out;
    }
    int64_t o = left ? N : 0, end = right ? out - N : out;
    const int64_t last = right ? row.whole.hi : out;
    const bool few = one || row.whole.hi - row.whole.lo < N;  // one or two vectors cover all, see `covered`
    if (few) o = end = out;
    for (; o < end && o + N <= last; o += N) plain(o);
    if (o < end) {  // those that are left, with some once more
      plain(last - N);
      o = last;
    }
    for (int which = left || few ? 0 : 1; which < (one || !(right || few) ? 1 : 2); ++which)
      cut(which ? out - N : 0, which);
    return o;
  }

  // Whether the first and the last N windows of a longer row are all that may be cut off, and no window is left out.
  template <int N> static bool covered(const Row& row) {
    if (row.out <= N) return true;
    if (row.whole.hi - row.whole.lo < N) return row.out <= 2 * N;
    return row.whole.lo <= N && row.out - row.whole.hi <= N;
  }

  template <int N> static Mask<V, N> mask_of(const Axis& a, int64_t o) {
    Mask<V, N> mask{};
    for (bool& whole : mask.whole) whole = true;
    for (int j = 0; j < N; ++j) {
      const bool real = o + j < a.out;  // not what spills over
      const Window w = real ? window(a, o + j) : Window{0, 0, 0};
      for (int t = 0; t < 3; ++t) mask.inside[t][j] = t >= w.lead && t < w.lead + w.taps ? -1 : 0;
      for (int t = 0; t < 3 && real; ++t) mask.whole[t] &= t >= w.lead && t < w.lead + w.taps;
      mask.lead[j] = C(w.lead);
      mask.by[j] = V(real ? most(1, share(a, o + j)) : 1);
    }
    return mask;
  }

  // Rows of windows without an input.
  static void empty(const Problem& p, const Axis& a, const Strip<S>& strip) {
    for (int64_t i = 0; i < strip.count; ++i)
      for (int64_t o = 0; o < a.out; ++o) {
        const Code code = strip.codes[0] + Code(window(a, o).lead) * strip.tap_code;
        const int64_t element = i * strip.y_step + o;
        strip.y[element] = store_as<S>(R::init());
        if constexpr (coded) {
          if (p.extra == Extra::offset8)
            reinterpret_cast<std::uint8_t*>(strip.extra)[element] = std::uint8_t(code);
          else
            reinterpret_cast<int64_t*>(strip.extra)[element] =
                strip.base + i * strip.base_step + o * a.stride + code;
        }
      }
  }
};

// The engine around it: finds the strips.
template <class R, class S, bool coded> struct DirectRows {
  static constexpr const char* engine = "direct";
  using V = typename R::V;
  using D = Direct<R, S, coded>;

  // What is rare is left to other engines where it would only make more code.
  static constexpr bool common = std::is_same_v<S, float>;

  static bool serves(const Problem& p) {
    const Axis& last = p.axes[p.n_axes - 1];
    int64_t rows = 1;
    if (!common && last.stride == 1) return false;
    for (int a = 0; a + 1 < p.n_axes; ++a) {
      if (!p.axes[a].regular()) return false;
      rows *= p.axes[a].kernel;
    }
    if (p.n_axes > 3 || p.lanes != 1 || !last.regular() || rows > most_rows ||
        last.kernel != last.uncropped || (last.step != 1 && (!R::picks || last.stride != 2)) ||
        last.stride > 2 || last.kernel < 2 || last.kernel > 3 || p.x_type != p.y_type ||
        p.x.pooled[p.n_axes - 1] != sizeof(S) || p.y.pooled[p.n_axes - 1] != sizeof(S))
      return false;
    for (int k = 0; k < Problem::n_arrays; ++k)  // reading a little beyond a row stays inside the array
      for (int a = 0; a < max_lead; ++a)
        if (p.arrays()[k].lead[a] < 0 || (a < p.n_axes && p.arrays()[k].pooled[a] < 0)) return false;
    const Range whole = interior(last, 0, last.out);
    if (whole.lo > 4 || last.out - whole.hi > 4) return false;
    if (!D::template covered<wide<V>>({last.out, last.origin, whole})) return false;
    if constexpr (coded) {
      if (p.extra == Extra::offset32 || !follows_y(p)) return false;
      if (p.extra == Extra::index64 && (sizeof(V) < 4 || plane_elements(p) > int64_t(UINT32_MAX)))
        return false;
    }
    return true;
  }

  static void prepare(Problem& p) {
    p.tile = p.axes[p.n_axes - 1].out;
    p.units = p.planes * p.rows;
    p.scratch = D::Carry::bytes(p.tile) + Edge::bytes(p);
  }

  static void run(const Problem& p, int64_t begin, int64_t end, char* memory) {
    const int64_t out = p.axes[p.n_axes - 1].out;
    const typename D::Carry carry(memory, out);
    const Edge edge(p, memory + D::Carry::bytes(p.tile));
    if constexpr (D::bytes)
      if (out <= narrow_lanes<V>) return strips<narrow_lanes<V>>(p, begin, end, carry, edge);
    strips<wide<V>>(p, begin, end, carry, edge);
  }

  // Whether the rows step evenly from plane to plane as well: all of them are one strip.
  static bool endless(const Problem& p) {
    if (p.n_axes > 2 || p.n_lead != 1) return false;
    if (p.n_axes == 1) return true;
    const Axis& rows = p.axes[0];
    const Range whole = interior(rows, 0, rows.out);
    return p.extra != Extra::index64 && whole.lo == 0 && whole.hi == rows.out &&
           p.x.lead[0] == rows.out * rows.stride * p.x.pooled[0];
  }

private:
  // Room for the rows of one window and a vector of results.
  struct Edge {
    int64_t ahead, pitch;
    S *rows, *values;
    char* extra;

    Edge(const Problem& p, char* memory) : ahead(before(p)), pitch(length(p)) {
      Scratch scratch(memory);
      rows = scratch.take<S>(pitch * window_rows(p));
      values = scratch.take<S>(wide<V>);
      extra = scratch.take<char>(8 * wide<V>);
    }
    static int64_t bytes(const Problem& p) {
      return Scratch::bytes<S>(length(p) * window_rows(p)) + Scratch::bytes<S>(wide<V>) +
             Scratch::bytes<char>(8 * wide<V>);
    }

  private:
    static int64_t before(const Problem& p) { return most(0, -p.axes[p.n_axes - 1].origin); }
    static int64_t length(const Problem& p) {
      const Axis& last = p.axes[p.n_axes - 1];
      return before(p) + most(last.size, reach(last, wide<V>)) + wide<V>;
    }
    static int64_t window_rows(const Problem& p) {
      int64_t n = 1;
      for (int a = 0; a + 1 < p.n_axes; ++a) n *= p.axes[a].kernel;
      return n;
    }
  };

  // Elements from the beginning of a row to behind the last that vectors of `lanes` outputs read.
  static int64_t reach(const Axis& last, int64_t lanes) {
    return last.origin + (most(last.out, lanes) - 1) * last.stride + (last.kernel - 1) * last.step +
           last.stride;
  }

  template <int N> static void strips(const Problem& p, int64_t begin, int64_t end,
                                      const typename D::Carry& carry, const Edge& edge) {
    const Axis& last = p.axes[p.n_axes - 1];
    const typename D::Row row{last.out, last.origin, interior(last, 0, last.out)};
    Mask<V, N> masks[2];
    if (row.edged()) {
      masks[0] = D::template mask_of<N>(last, 0);
      masks[1] = D::template mask_of<N>(last, most(0, last.out - N));
    }
    const Line<N> line{p, last, row, masks, carry, edge};
    const bool ordered = follows(p, p.y, sizeof(S), Over::outputs);
    Walk<Over::outputs> walk(p, begin);
    for (int64_t unit = begin; unit < end;) {
      if (unit % p.rows == 0)
        if (const int64_t done = planes(line, walk, unit / p.rows, end / p.rows, ordered)) {
          unit += done * p.rows;
          if (unit < end) walk.seek(unit);
          continue;
        }
      const Strip<S> strip = strip_at(p, walk, end - unit, ordered);
      do_strip<N>(line, strip, ordered ? (end - unit - strip.count) * last.out : -1);
      unit += strip.count;
      if (unit < end) walk.seek(unit);
    }
  }

  // What stays the same for all rows.
  template <int N> struct Line {
    const Problem& p;
    const Axis& last;
    const typename D::Row& row;
    const Mask<V, N>* masks;
    const typename D::Carry& carry;
    const Edge& edge;
  };

  // Small planes that follow each other evenly, but for those at the ends of the array: the strips of the first are
  // those of all. Returns how many planes were done.
  template <int N> static int64_t planes(const Line<N>& line, Walk<Over::outputs>& walk, int64_t first,
                                         int64_t end, bool ordered) {
    const Problem& p = line.p;
    constexpr int most_strips = 8;
    // What a vector writes past the end of a plane must belong to later planes.
    const int64_t spilled = ceil_div(N, p.rows * line.last.out);
    const int64_t from = most(first, 1), to = least(end, p.planes) - 1 - spilled;
    const int64_t x_step = p.x.lead[0] / int64_t(sizeof(S)), y_step = p.y.lead[0] / int64_t(sizeof(S));
    if (p.n_axes != 2 || p.n_lead != 1 || !ordered || endless(p) || first == 0 || to - from < 2 ||
        p.rows > 64 || x_step < 4 * (N + line.last.out + line.last.step) + 4)
      return 0;
    Strip<S> strips[most_strips];
    int n = 0;
    for (int64_t h = 0; h < p.rows; h += strips[n++].count) {
      walk.seek(from * p.rows + h);
      if (n < most_strips) strips[n] = strip_at(p, walk, p.rows - h, false);
      if (n == most_strips || strips[n].n_rows == 0) {  // too many, or windows that hold nothing
        walk.seek(first * p.rows);                      // where it was
        return 0;
      }
    }
    for (int64_t plane = from; plane < to; ++plane)
      for (int k = 0; k < n; ++k) {
        Strip<S>& strip = strips[k];
        vectors<N>(line, strip, Range{0, strip.count});
        for (int r = 0; r < strip.n_rows; ++r) strip.rows[r] += x_step;
        strip.y += y_step;
        strip.extra += y_step * (p.extra == Extra::index64 ? 8 : 1);
      }
    return to - from;
  }

  // The output rows from here on whose windows step evenly through memory, `room` at most.
  static Strip<S> strip_at(const Problem& p, const Walk<Over::outputs>& walk, int64_t room, bool ordered) {
    constexpr int64_t item = sizeof(S);
    const Axis& last = p.axes[p.n_axes - 1];
    const int outer = p.n_axes - 1;
    Strip<S> strip;
    const Axis rows = outer ? walk.axis(outer - 1) : single_axis(1);
    const int64_t h = outer ? walk.at(outer - 1) : 0, pitch = outer ? p.x.pooled[outer - 1] / item : 0;
    const Range whole = interior(rows, 0, rows.out);
    strip.step = rows.stride * pitch;
    const bool far = outer && (last.size * item > 512 || comes_from_far(p));
    strip.ahead = far ? fetched_ahead(strip.step, item, outer > 1 ? p.axes[0].kernel : 1) : 0;
    strip.by_rows = last.size * item > 512 && last.size * item < 4096;
    strip.y_step = outer ? p.y.pooled[outer - 1] / item : last.out;
    strip.count = h >= whole.lo && h < whole.hi ? least(room, whole.hi - h) : 1;
    strip.base_step = rows.stride * last.size;
    strip.tap = last.step;
    strip.tap_code = p.extra == Extra::index64 ? Code(last.step) : 1;
    if (ordered && endless(p)) {
      strip.count = room;
      if (outer == 0) {  // the planes are rows themselves
        strip.step = p.x.lead[0] / item;
        strip.base_step = 0;
      }
    }
    add_rows(p, walk, rows, h, pitch, strip);
    strip.y = reinterpret_cast<S*>(walk.row(p.y, 0, 0).data);
    strip.extra = coded ? walk.row(p.extra_array, 0, 0).data : nullptr;
    return strip;
  }

  // Codes and positions lie as the values do.
  static bool follows_y(const Problem& p) {
    const int64_t item = p.extra == Extra::offset8 ? 1 : 8;
    for (int a = 0; a < p.n_axes; ++a)
      if (p.extra_array.pooled[a] * int64_t(sizeof(S)) != p.y.pooled[a] * item) return false;
    for (int a = 0; a < p.n_lead; ++a)
      if (p.extra_array.lead[a] * int64_t(sizeof(S)) != p.y.lead[a] * item) return false;
    return true;
  }

  // The rows of the strip's first windows with their codes, and what the outer axes contribute to divisors.
  static void add_rows(const Problem& p, const Walk<Over::outputs>& walk, const Axis& a, int64_t h,
                       int64_t pitch, Strip<S>& strip) {
    const S* plane = reinterpret_cast<const S*>(walk.plane(p.x));
    const Axis& last = walk.last();
    const bool deep = p.n_axes == 3, positions = p.extra == Extra::index64;
    const Axis depth = deep ? walk.axis(0) : single_axis(1);
    const Window rows = window(a, h), slabs = window(depth, deep ? walk.at(0) : 0);
    const int64_t slab = deep ? p.x.pooled[0] / int64_t(sizeof(S)) : 0;
    strip.by = share(a, h) * share(depth, deep ? walk.at(0) : 0);
    // Positions are counted from the nominal beginning of the window, which may lie in the padding.
    const int64_t first_slab = depth.origin + (deep ? walk.at(0) : 0) * depth.stride,
                  first_row = a.origin + h * a.stride;
    strip.base = (first_slab * a.size + first_row) * last.size + last.origin;
    strip.n_rows = 0;
    strip.codes[0] = code(a, last, depth, positions, slabs.lead, rows.lead);
    for (int64_t d = 0; d < slabs.taps; ++d)
      for (int64_t t = 0; t < rows.taps; ++t) {
        strip.codes[strip.n_rows] = code(a, last, depth, positions, slabs.lead + d, rows.lead + t);
        strip.rows[strip.n_rows++] =
            plane + (slabs.start + d * depth.step) * slab + (rows.start + t * a.step) * pitch;
      }
  }

  static Code code(const Axis& a, const Axis& last, const Axis& depth, bool positions, int64_t slab,
                   int64_t row) {
    return Code(positions ? (slab * depth.step * a.size + row * a.step) * last.size
                          : (slab * a.kernel + row) * last.kernel);
  }

  // Rows [from, to) of a strip.
  static Strip<S> part(const Problem& p, const Strip<S>& strip, int64_t from, int64_t to) {
    Strip<S> cut = strip;
    for (int r = 0; r < cut.n_rows; ++r) cut.rows[r] += from * cut.step;
    cut.y += from * cut.y_step;
    cut.extra += from * cut.y_step * (p.extra == Extra::index64 ? 8 : 1);
    cut.base += from * cut.base_step;
    cut.count = to - from;
    return cut;
  }

  template <int N> static void do_strip(const Line<N>& line, const Strip<S>& strip, int64_t spill) {
    const Problem& p = line.p;
    if (strip.n_rows == 0) return D::empty(p, line.last, strip);
    Range safe = vector_rows(p, line.last, line.row, strip, N, spill);
    if (safe.lo >= safe.hi) safe = {strip.count, strip.count};
    for (int64_t i = 0; i < safe.lo; ++i) at_edge<N>(line, part(p, strip, i, i + 1));
    vectors<N>(line, strip, safe);
    for (int64_t i = safe.hi; i < strip.count; ++i) at_edge<N>(line, part(p, strip, i, i + 1));
  }

  // A row whose vectors would reach beyond the arrays: it is read from copies with room around them and, where it is
  // shorter than a vector, written by way of one.
  template <int N> static void at_edge(const Line<N>& line, Strip<S> strip) {
    const Problem& p = line.p;
    const int64_t out = line.last.out, item = p.extra == Extra::offset8 ? 1 : 8;
    for (int r = 0; r < strip.n_rows; ++r) {
      S* copy = line.edge.rows + r * line.edge.pitch + line.edge.ahead;
      const int64_t ahead = line.edge.ahead, size = line.last.size;
      for (int64_t j = -ahead; j < 0; ++j) copy[j] = S{};
      std::memcpy(copy, strip.rows[r], size_t(size) * sizeof(S));
      for (int64_t j = size; j < line.edge.pitch - ahead; ++j) copy[j] = S{};
      strip.rows[r] = copy;
    }
    if (out >= N) return vectors<N>(line, strip, {0, 1});
    S* y = strip.y;
    char* extra = strip.extra;
    strip.y = line.edge.values;
    strip.extra = line.edge.extra;
    vectors<N>(line, strip, {0, 1});
    std::memcpy(y, strip.y, size_t(out) * sizeof(S));
    if (coded) std::memcpy(extra, strip.extra, size_t(out * item));
  }

  // The rows of a strip that may be read and written `lanes` outputs at a time.
  static Range vector_rows(const Problem& p, const Axis& last, const typename D::Row& row,
                           const Strip<S>& strip, int lanes, int64_t spill) {
    int64_t lo = 0, hi = strip.count;
    if (row.out < lanes) {
      if (spill < 0 || strip.y_step != row.out) return {0, 0};
      hi = least(hi, hi + floor_div(spill - (lanes - row.out), row.out));
    }
    // What a vector reads: from the first tap of the first window to beyond the last of the last.
    const int64_t ahead = most(0, -row.origin);
    const int64_t reads = reach(last, lanes);
    const Readable readable(p, p.x, sizeof(S), Over::inputs);
    for (int r = 0; r < strip.n_rows; ++r) {
      const Range rows = readable.rows(strip.rows[r], ahead, reads, strip.step, strip.count);
      lo = most(lo, rows.lo);
      hi = least(hi, rows.hi);
    }
    return {lo, hi};
  }

  template <int N> static void vectors(const Line<N>& line, const Strip<S>& strip, Range rows) {
    using One = std::integral_constant<int, 1>;
    using Two = std::integral_constant<int, 2>;
    using Three = std::integral_constant<int, 3>;
    const Axis& last = line.last;
    const auto sweep = [&](auto speculative, const Strip<S>& cut) {
      const auto go = [&](auto kernel, auto stride, auto n_rows) {
        const auto walk = [&](auto by_rows) {
          return D::template sweep<decltype(kernel)::value, decltype(stride)::value, decltype(n_rows)::value,
                                   N, speculative, by_rows>(line.p, cut, line.row, line.masks, line.carry);
        };
        if constexpr (common && speculative && decltype(n_rows)::value == decltype(kernel)::value)
          if (cut.by_rows) return walk(std::true_type{});
        return walk(std::false_type{});
      };
      using Any = std::integral_constant<int, 0>;
      if constexpr (common)
        if (last.stride == 1) return last.kernel == 2 ? go(Two{}, One{}, Any{}) : go(Three{}, One{}, Any{});
      if constexpr (R::picks)
        if (last.step != 1) {
          using Spread = std::integral_constant<int, spread>;
          if constexpr (speculative && common && !coded) {
            if (last.kernel == 2 && cut.n_rows == 2)
              return go(Two{}, Two{}, std::integral_constant<int, -2>{});
            if (last.kernel == 3 && cut.n_rows == 3)
              return go(Three{}, Two{}, std::integral_constant<int, -3>{});
          }
          return last.kernel == 2 ? go(Two{}, Two{}, Spread{}) : go(Three{}, Two{}, Spread{});
        }
      if (last.kernel == 2) {
        if constexpr (speculative && common)
          if (cut.n_rows == 2) return go(Two{}, Two{}, Two{});
        return go(Two{}, Two{}, Any{});
      }
      if constexpr (R::picks)
        if (cut.n_rows == 3 && cut.rows[2] == cut.rows[0] + cut.step) return go(Three{}, Two{}, Three{});
      return go(Three{}, Two{}, Any{});
    };
    if constexpr (coded && !common)
      sweep(std::false_type{}, part(line.p, strip, rows.lo, rows.hi));
    else
      for (int64_t i = rows.lo; i < rows.hi;) {
        i += sweep(std::true_type{}, i || rows.hi < strip.count ? part(line.p, strip, i, rows.hi) : strip);
        if constexpr (D::can_be_nan)
          if (i < rows.hi)
            i += sweep(std::false_type{}, part(line.p, strip, i, least(rows.hi, i + calm_rows)));
      }
  }
};

}  // namespace
}  // namespace ndpool

// Direct: windows of 2 or 3 taps with stride 1 or 2 on packed rows; all taps of a window are in registers. Output
// rows that share an input row carry its partial result over from one to the next. Called through selection.h and
// by small_planes.h. Longer windows, disjoint windows and channels-last arrays have engines of their own.
// Max pooling runs speculatively: it assumes that there is no NaN and also sums the elements. If the sum is NaN
// (a NaN, or infinities of both signs), the row is recomputed by the exact path.
// Work is divided into strips: output rows whose windows advance through memory by a constant step, so that the
// overhead per row is small. Short rows are written as whole vectors; the next row overwrites the tail. Windows
// cropped at an end of the row are computed by the row's first and last vector, with masks.
// Without this engine max pooling 3 x 3 with stride 2 takes 2.8 times as long on 112 x 112 (ResNet), 2 x 2 with indices 7.8
// times on 224 x 224 (SegNet).
#pragma once

#include "forward/general.h"
#include "simd.h"

namespace ndpool {
namespace {

constexpr int max_rows = 27;  // of one window
// The number of rows of a window as a template argument: n, or 0 for a run-time number. With dilation along the
// row it is negative: -n, or -1 for a run-time number.
constexpr int dilated_rows = -1;
constexpr int fixed_rows(int rows) { return rows > 0 ? rows : rows < dilated_rows ? -rows : 0; }

// Output rows whose windows advance by a constant step: the input rows of the first one, and the steps to the
// next.
template <class S> struct Strip {
  const S* rows[max_rows];
  Offset offsets[max_rows];  // of each row's first tap
  int n_rows;
  int64_t prefetch_distance;  // in elements; 0 if the hardware prefetcher follows the rows by itself
  bool by_rows;  // read one input row at a time: faster if the rows share a page but span many cache lines
  int64_t count, step;  // output rows; elements from one's input rows to the next's
  S* y;
  int64_t y_step;
  int64_t outer_share;      // the outer axes' factor of the divisor
  char* extra;              // offsets or indices of the first row, with the strides of y in elements
  int64_t base, base_step;  // index of the first row's first window, and the step to the next row's
  int64_t tap;              // elements from one tap of a row to the next
  Offset tap_offset;
};

// One vector of windows that may be cropped: which taps are inside the input, the first of them, and the divisors.
template <class V, int N> struct Mask {
  decltype(Vec<V, N>{} == Vec<V, N>{}) inside[3];
  bool whole[3];  // tap t is inside for every window
  Vec<UnsignedLike<V>, N> lead;
  Vec<V, N> share;  // the last axis' factor of the divisor
};

template <class R, class S, bool indexed> struct Direct {
  using V = typename R::V;
  template <int N> using Vn = Vec<V, N>;
  using C = UnsignedLike<V>;
  template <int N> using Cn = Vec<C, N>;
  static constexpr bool can_be_nan = R::is_max && is_real<V>;
  static constexpr bool is_byte = R::is_max && sizeof(V) == 1;

  struct Row {
    int64_t out, origin;
    Range whole;  // outputs with whole windows
    bool edged() const { return whole.lo > 0 || whole.hi < out; }
  };

  template <int N> struct Best {
    Vn<N> value;
    Cn<N> offset;
  };

  template <bool speculative, int N>
  __attribute__((always_inline)) static inline void merge(const Best<N>& later, Best<N>& best) {
    if constexpr (indexed)
      merge_with_offset<R, !speculative>(later.value, later.offset, best.value, best.offset);
    else
      best.value = merged<R, !speculative>(later.value, best.value);
  }

  // N elements, every other one.
  template <int N> __attribute__((always_inline)) static inline Vn<N> read_evens(const S* x) {
    if constexpr (std::is_same_v<S, bf16>)
      return reinterpret_cast<Vn<N>>(read<std::uint32_t, N>(reinterpret_cast<const std::uint32_t*>(x)) << 16);
    else if constexpr (sizeof(V) == 1)
      return reinterpret_cast<Vn<N>>(
          converted<Vec<std::uint8_t, N>>(read<std::uint16_t, N>(reinterpret_cast<const std::uint16_t*>(x))));
    else
      return evens(read_as<V, N>(x), read_as<V, N>(x + N));
  }

  // Adds to a sum that serves only to detect NaN; not for integers, which have none and might overflow.
  template <class T> __attribute__((always_inline)) static inline void add_for_nan_check(T v, T& sum) {
    if constexpr (can_be_nan) sum += v;
  }

  // Tap t of N neighbouring windows of a row, for each t. `sum` adds up all elements but the last window's last
  // tap. Reads nothing beyond that tap.
  template <int K, int Stride, int N>
  __attribute__((always_inline)) static inline void read_taps(const S* x, Vn<N> (&taps)[K], Vn<N>& sum) {
    if constexpr (Stride == 1) {
      for (int t = 0; t < K; ++t) taps[t] = read_as<V, N>(x + t);
      sum = taps[0];
      for (int t = 1; t < K; ++t) add_for_nan_check(taps[t], sum);
      return;
    }
    if constexpr (std::is_same_v<S, bf16>) {  // two neighbours are the halves of a 32-bit word
      const auto words = read<std::uint32_t, N>(reinterpret_cast<const std::uint32_t*>(x));
      taps[0] = reinterpret_cast<Vn<N>>(words << 16);
      taps[1] = reinterpret_cast<Vn<N>>(words & 0xffff0000u);
      sum = taps[0] + taps[1];
    } else if constexpr (std::is_integral_v<S> && sizeof(S) < 4 && !std::is_same_v<S, V>) {
      using Pair = std::conditional_t<sizeof(S) == 1, std::uint16_t, std::uint32_t>;
      constexpr int bits = 8 * sizeof(S), unused = 32 - 2 * bits;
      const auto words = converted<Vec<std::uint32_t, N>>(read<Pair, N>(reinterpret_cast<const Pair*>(x)));
      using Whole = Vec<std::conditional_t<std::is_signed_v<S>, std::int32_t, std::uint32_t>, N>;
      const auto upper = [](auto word) {  // the upper element
        return converted<Vn<N>>(
            reinterpret_cast<Vec<std::int32_t, N>>(reinterpret_cast<Whole>(word) >> (32 - bits)));
      };
      taps[0] = upper(words << (32 - bits));
      taps[1] = upper(words << unused);
    } else if constexpr (sizeof(S) == 1) {  // the halves of a 16-bit word
      const auto words = read<std::uint16_t, N>(reinterpret_cast<const std::uint16_t*>(x));
      taps[0] = reinterpret_cast<Vn<N>>(converted<Vec<std::uint8_t, N>>(words));
      taps[1] = reinterpret_cast<Vn<N>>(converted<Vec<std::uint8_t, N>>(words >> 8));
    } else {
      const Vn<N> a = read_as<V, N>(x), b = read_as<V, N>(x + N);
      taps[0] = evens(a, b);
      taps[1] = odds(a, b);
      sum = a;
      add_for_nan_check(b, sum);
    }
    if constexpr (K == 3) taps[2] = shifted<1>(taps[0], broadcast<Vn<N>>(load_as<V>(x[2 * N])));
  }

  // N windows: max reduces along the rows first (row-major order, for ties), sums down the columns first. If
  // `carry` is given, it receives the result of the last row, which is the first row of the windows below;
  // `carried` says that it holds the first row's result on entry.
  template <int K, int Stride, int Rows, int N, bool speculative, bool masked, bool carried>
  __attribute__((always_inline)) static inline Best<N> windows(const Strip<S>& strip, const S* const* rows,
                                                               int64_t shift, const Mask<V, N>* mask,
                                                               Vn<N>& nan_sum, Best<N>* carry) {
    const int n = fixed_rows(Rows) ? fixed_rows(Rows) : strip.n_rows;
    const C tap_offset = Rows < 0 ? C(strip.tap_offset) : C(1);
    const auto read_row = [&](int r, Vn<N>(&taps)[K]) __attribute__((always_inline)) {
      Vn<N> sum{};
      if constexpr (Rows < 0) {
        for (int t = 0; t < K; ++t) {
          taps[t] = read_evens<N>(rows[r] + shift + t * strip.tap);
          add_for_nan_check(taps[t], sum);
        }
      } else {
        read_taps<K, Stride, N>(rows[r] + shift, taps, sum);
      }
      if (Stride == 2 && strip.prefetch_distance)
        for (int line = 0; line < int(sizeof(S)) * Stride * N; line += 64)
          prefetch(reinterpret_cast<const char*>(rows[r] + shift + strip.prefetch_distance) + line);
      if constexpr (masked)
        for (int t = 0; t < K; ++t)
          if (!mask->whole[t]) taps[t] = mask->inside[t] ? taps[t] : Vn<N>{} + R::init();
      return sum;
    };
    Best<N> best;
    if constexpr (is_byte && !indexed && K == 2 && Rows >= 0 && !masked) {
      // Equal bytes are indistinguishable, so the order is free: reduce the rows before bytes are separated into
      // taps.
      constexpr int L = min(2 * N, vector_bytes);
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
        best.value = concatenated(half(shift), half(shift + N));
    } else if constexpr (R::is_max) {
      if constexpr (carried) best = *carry;
      for (int r = carried; r < n; ++r) {
        Vn<N> taps[K];
        const Vn<N> sum = read_row(r, taps);
        if constexpr (speculative && can_be_nan) nan_sum += sum;
        Best<N> across;
        across.value = taps[0];
        if constexpr (indexed) across.offset = Cn<N>{} + C(strip.offsets[r]);
        if constexpr (masked) {  // the first tap inside, even if its value equals init()
          if constexpr (indexed) across.offset = mask->lead * tap_offset + C(strip.offsets[r]);
        }
        for (int t = 1; t < K; ++t) {
          Best<N> later;
          later.value = taps[t];
          if constexpr (indexed) later.offset = Cn<N>{} + (C(strip.offsets[r]) + C(t) * tap_offset);
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
                                                                           int64_t element, int64_t index,
                                                                           int64_t stride, Extra extra) {
    write_as<N, R::is_max, S, V>(strip.y + element, best.value);
    if constexpr (indexed) {
      write_offsets<N>(extra, strip.extra, element, best.offset, index + stride * iota<N>());
    }
  }

  template <int N> static Vec<int64_t, N> iota() {
    Vec<int64_t, N> v;
    for (int j = 0; j < N; ++j) v[j] = j;
    return v;
  }

  // The results that one output row carries over to the next, for all outputs of a row: two buffers, since one is
  // read while the other is written.
  struct Carry {
    V* values[2];
    C* offsets[2];

    Carry(char* memory, int64_t out) {
      Scratch scratch(memory);
      for (int k = 0; k < 2; ++k) {
        values[k] = scratch.take<V>(out + wide<V>);
        offsets[k] = scratch.take<C>(out + wide<V>);
      }
    }
    static int64_t bytes(int64_t out) {
      return 2 * (Scratch::bytes<V>(out + wide<V>) + Scratch::bytes<C>(out + wide<V>));
    }
    template <int N> Best<N> get(int64_t row, int64_t o, C rebase) const {
      Best<N> best;
      best.value = read<V, N>(values[row & 1] + o);
      if constexpr (indexed) best.offset = read<C, N>(offsets[row & 1] + o) - rebase;
      return best;
    }
    template <int N> void put(int64_t row, int64_t o, const Best<N>& best) const {
      write(values[row & 1] + o, best.value);
      if constexpr (indexed) write(offsets[row & 1] + o, best.offset);
    }
  };

  // Divides sums of whole windows.
  struct Divide {
    bool none;
    Quotient<V> quotient;

    Divide(const Problem& p, int64_t share)
        : none(R::is_max || !p.divide), quotient(p.divisor ? p.divisor : share) {}
    template <class Vx> void operator()(Vx& v) const {
      if constexpr (!R::is_max)
        if (!none) v = quotient(v);
    }
  };

  // The first or the last vector of a row, where windows are cropped.
  template <int K, int Stride, int Rows, int N, bool speculative, bool carried>
  __attribute__((always_inline)) static inline void
  edge(const Problem& p, const Strip<S>& strip, const S* const* rows, int64_t o, const Mask<V, N>& mask,
       int64_t row, const Carry& carry, Vn<N>& nan_sum) {
    Best<N> shared;
    if constexpr (carried) shared = carry.template get<N>(row, o, C(strip.offsets[2] - strip.offsets[0]));
    auto best = windows<K, Stride, Rows, N, speculative, true, carried>(
        strip, rows, o * Stride, &mask, nan_sum, Rows == 3 ? &shared : nullptr);
    if constexpr (Rows == 3) carry.template put<N>(row + 1, o, shared);
    if constexpr (!R::is_max)
      if (p.divide) best.value /= p.divisor ? Vn<N>{} + V(p.divisor) : mask.share * V(strip.outer_share);
    store<N>(strip, best, row * strip.y_step + o, strip.base + row * strip.base_step + o * Stride, Stride,
             p.extra);
  }

  // All rows of a strip. Returns how many were computed before one with a NaN. Rows == 3 means that windows share
  // their last row with the windows below, and its result is carried over.
  template <int K, int Stride, int Rows, int N, bool speculative, bool by_rows>
  static int64_t sweep(const Problem& p, const Strip<S>& strip, const Row& row, const Mask<V, N>* masks,
                       const Carry& carry) {
    const S* rows[fixed_rows(Rows) ? fixed_rows(Rows) : max_rows];
    const int n_rows = fixed_rows(Rows) ? fixed_rows(Rows) : strip.n_rows;
    for (int r = 0; r < n_rows; ++r) rows[r] = strip.rows[r] + row.origin;
    const Divide divide(p, strip.outer_share * K);
    for (int64_t i = 0; i < strip.count; ++i) {
      Vn<N> nan_sum = {};
      const auto run = [&](auto carried) __attribute__((always_inline)) {
        if constexpr (by_rows)
          do_row_by_rows<K, Stride, Rows, N, speculative, carried>(p, strip, row, masks, carry, rows, divide,
                                                                   i, nan_sum);
        else
          do_row<K, Stride, Rows, N, speculative, carried>(p, strip, row, masks, carry, rows, divide, i,
                                                           nan_sum);
      };
      if (Rows == 3 && i)
        run(std::true_type{});
      else
        run(std::false_type{});
      if constexpr (speculative && can_be_nan)
        if (contains_nan(nan_sum)) return i;
      for (int r = 0; r < n_rows; ++r) rows[r] += strip.step;
    }
    return strip.count;
  }

  template <int K, int Stride, int Rows, int N, bool speculative, bool carried>
  __attribute__((always_inline)) static inline void
  do_row(const Problem& p, const Strip<S>& strip, const Row& row, const Mask<V, N>* masks, const Carry& carry,
         const S* const* rows, const Divide& divide, int64_t i, Vn<N>& nan_sum) {
    const int64_t element = i * strip.y_step, base = strip.base + i * strip.base_step;
    const C rebase = Rows == 3 ? C(strip.offsets[2] - strip.offsets[0]) : C(0);
    const Extra extra = p.extra;
    const auto plain = [&](int64_t o) __attribute__((always_inline)) {
      Best<N> shared;
      if constexpr (carried) shared = carry.template get<N>(i, o, rebase);
      auto best = windows<K, Stride, Rows, N, speculative, false, carried>(
          strip, rows, o * Stride, nullptr, nan_sum, Rows == 3 ? &shared : nullptr);
      if constexpr (Rows == 3) carry.template put<N>(i + 1, o, shared);
      divide(best.value);
      store<N>(strip, best, element + o, base + o * Stride, Stride, extra);
    };
    const auto cropped = [&](int64_t o, int which) __attribute__((always_inline)) {
      edge<K, Stride, Rows, N, speculative, carried>(p, strip, rows, o, masks[which], i, carry, nan_sum);
    };
    const int64_t o = across_row<N>(row, plain, cropped);
    // The one tap of each row that no sum includes. It is the last tap of the last whole window; a cropped window
    // has no such tap.
    if constexpr (speculative && can_be_nan && K == 3 && Stride == 2 && Rows >= 0)
      if (o < row.out || row.whole.hi >= row.out)
        for (int r = carried; r < (Rows ? Rows : strip.n_rows); ++r) nan_sum += load_as<V>(rows[r][2 * o]);
  }

  // The same one input row at a time, with the partial results in L1.
  template <int K, int Stride, int Rows, int N, bool speculative, bool carried>
  __attribute__((always_inline)) static inline void
  do_row_by_rows(const Problem& p, const Strip<S>& strip, const Row& row, const Mask<V, N>* masks,
                 const Carry& carry, const S* const* rows, const Divide& divide, int64_t i, Vn<N>& nan_sum) {
    const C rebase = Rows == 3 ? C(strip.offsets[2] - strip.offsets[0]) : C(0);
    const Extra extra = p.extra;
    int64_t end = 0;
    for (int r = carried; r < Rows; ++r) {
      const auto vector = [&](int64_t o, const Mask<V, N>* mask) __attribute__((always_inline)) {
        Vn<N> taps[K], sum;
        read_taps<K, Stride, N>(rows[r] + o * Stride, taps, sum);
        if (mask)
          for (int t = 0; t < K; ++t)
            if (!mask->whole[t]) taps[t] = mask->inside[t] ? taps[t] : Vn<N>{} + R::init();
        Best<N> best;
        if constexpr (R::is_max) {
          if constexpr (speculative && can_be_nan) nan_sum += sum;
          Best<N> across;
          across.value = taps[0];
          if constexpr (indexed) across.offset = (mask ? mask->lead : Cn<N>{}) + C(strip.offsets[r]);
          for (int t = 1; t < K; ++t) {
            Best<N> later;
            later.value = taps[t];
            if constexpr (indexed) later.offset = Cn<N>{} + C(strip.offsets[r] + t);
            merge<speculative>(later, across);
          }
          best = across;
          if (r) {
            best = carry.template get<N>(i, o, 0);
            merge<speculative>(across, best);
          }
          if constexpr (Rows == 3)
            if (r == 2) {
              if constexpr (indexed) across.offset -= rebase;  // now the first row of the next windows
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
            best.value /= p.divisor ? Vn<N>{} + V(p.divisor) : mask->share * V(strip.outer_share);
        }
        store<N>(strip, best, i * strip.y_step + o, strip.base + i * strip.base_step + o * Stride, Stride,
                 extra);
      };
      const auto plain = [&](int64_t o) __attribute__((always_inline)) { vector(o, nullptr); };
      const auto cropped = [&](int64_t o, int which)
                               __attribute__((always_inline)) { vector(o, masks + which); };
      end = across_row<N>(row, plain, cropped);
    }
    if constexpr (speculative && can_be_nan && K == 3)
      if (end < row.out || row.whole.hi >= row.out)
        for (int r = carried; r < Rows; ++r) nan_sum += load_as<V>(rows[r][2 * end]);
  }

  // Calls `plain` for every vector of a row's outputs, and `cropped` for the first and the last one if they have
  // cropped windows. Returns where the whole windows end. Both are called from as few places as possible, because
  // they are inlined and long.
  template <int N, class Plain, class Cropped> __attribute__((always_inline)) static inline int64_t
  across_row(const Row& row, Plain plain, Cropped cropped) {
    const int64_t out = row.out;
    const bool left = row.whole.lo > 0, right = row.whole.hi < out, single = out <= N;
    if (single && !left && !right) {
      plain(0);
      return out;
    }
    int64_t o = left ? N : 0, end = right ? out - N : out;
    const int64_t last = right ? row.whole.hi : out;
    const bool only_cropped = single || row.whole.hi - row.whole.lo < N;  // see `covered`
    if (only_cropped) o = end = out;
    for (; o < end && o + N <= last; o += N) plain(o);
    if (o < end) {  // the tail, in a vector that overlaps the one before
      plain(last - N);
      o = last;
    }
    for (int which = left || only_cropped ? 0 : 1; which < (single || !(right || only_cropped) ? 1 : 2);
         ++which)
      cropped(which ? out - N : 0, which);
    return o;
  }

  // Whether `across_row` covers the row: only its first and its last N windows are cropped, and every output is in
  // a vector.
  template <int N> static bool covered(const Row& row) {
    if (row.out <= N) return true;
    if (row.whole.hi - row.whole.lo < N) return row.out <= 2 * N;
    return row.whole.lo <= N && row.out - row.whole.hi <= N;
  }

  template <int N> static Mask<V, N> mask_of(const Axis& a, int64_t o) {
    Mask<V, N> mask{};
    for (bool& whole : mask.whole) whole = true;
    for (int j = 0; j < N; ++j) {
      const bool exists = o + j < a.out;  // otherwise in the tail
      const Window w = exists ? window(a, o + j) : Window{0, 0, 0};
      for (int t = 0; t < 3; ++t) mask.inside[t][j] = t >= w.lead && t < w.lead + w.taps ? -1 : 0;
      for (int t = 0; t < 3 && exists; ++t) mask.whole[t] &= t >= w.lead && t < w.lead + w.taps;
      mask.lead[j] = C(w.lead);
      mask.share[j] = V(exists ? max(1, share(a, o + j)) : 1);
    }
    return mask;
  }

  // Rows of windows that are all empty.
  static void empty(const Problem& p, const Axis& a, const Strip<S>& strip) {
    for (int64_t i = 0; i < strip.count; ++i)
      for (int64_t o = 0; o < a.out; ++o) {
        const Offset offset = strip.offsets[0] + Offset(window(a, o).lead) * strip.tap_offset;
        const int64_t element = i * strip.y_step + o;
        strip.y[element] = store_as<S>(R::init());
        if constexpr (indexed) {
          const bool indices = p.extra == Extra::index64;
          const int64_t first = indices ? strip.base + i * strip.base_step + o * a.stride : 0;
          write_offset(p.extra, strip.extra + element * size_of(p.extra), first + offset);
        }
      }
  }
};

// The engine: divides planes into strips and calls Direct for each.
template <class R, class S, bool indexed> struct DirectRows {
  static constexpr const char* engine = "direct";
  using V = typename R::V;
  using D = Direct<R, S, indexed>;

  // Rare cases are left to other engines for all types but float, to limit the code size.
  static constexpr bool common = std::is_same_v<S, float>;

  static bool supports(const Problem& p) {
    const Axis& last = p.axes[p.n_axes - 1];
    int64_t rows = 1;
    if (!common && last.stride == 1) return false;
    for (int a = 0; a + 1 < p.n_axes; ++a) {
      if (!p.axes[a].regular()) return false;
      rows *= p.axes[a].kernel;
    }
    if (p.n_axes > 3 || p.channels != 1 || !last.regular() || rows > max_rows ||
        last.kernel != last.uncropped || (last.step != 1 && (!R::is_max || last.stride != 2)) ||
        last.stride > 2 || last.kernel < 2 || last.kernel > 3 || p.x_type != p.y_type ||
        p.x.pooled[p.n_axes - 1] != sizeof(S) || p.y.pooled[p.n_axes - 1] != sizeof(S))
      return false;
    for (int k = 0; k < Problem::n_arrays; ++k)  // so that reads past a row's end stay inside the array
      for (int a = 0; a < max_lead; ++a)
        if (p.arrays()[k].lead[a] < 0 || (a < p.n_axes && p.arrays()[k].pooled[a] < 0)) return false;
    const Range whole = interior(last, 0, last.out);
    if (whole.lo > 4 || last.out - whole.hi > 4) return false;
    if (!D::template covered<wide<V>>({last.out, last.origin, whole})) return false;
    if constexpr (indexed) {
      if (p.extra == Extra::offset32 || !follows_y(p)) return false;
      if (p.extra == Extra::index64 && (sizeof(V) < 4 || plane_elements(p) > int64_t(UINT32_MAX)))
        return false;
    }
    return true;
  }

  static void prepare(Problem& p) {
    p.tile = p.axes[p.n_axes - 1].out;
    p.units = p.planes * p.rows;
    p.scratch = D::Carry::bytes(p.tile) + Buffers::bytes(p);
  }

  static void run(const Problem& p, int64_t begin, int64_t end, char* memory) {
    const int64_t out = p.axes[p.n_axes - 1].out;
    const typename D::Carry carry(memory, out);
    const Buffers buffers(p, memory + D::Carry::bytes(p.tile));
    if constexpr (D::is_byte)
      if (out <= narrow_lanes<V>) return strips<narrow_lanes<V>>(p, begin, end, carry, buffers);
    strips<wide<V>>(p, begin, end, carry, buffers);
  }

  // Whether all rows of all planes are one strip: the step is also the same from plane to plane.
  static bool is_one_strip(const Problem& p) {
    if (p.n_axes > 2 || p.n_lead != 1) return false;
    if (p.n_axes == 1) return true;
    const Axis& rows = p.axes[0];
    const Range whole = interior(rows, 0, rows.out);
    return p.extra != Extra::index64 && whole.lo == 0 && whole.hi == rows.out &&
           p.x.lead[0] == rows.out * rows.stride * p.x.pooled[0];
  }

private:
  // Padded copies of the rows of one window, and a vector of results.
  struct Buffers {
    int64_t margin, pitch;  // margin: elements in front of a row
    S *rows, *values;
    char* extra;

    Buffers(const Problem& p, char* memory) : margin(before(p)), pitch(length(p)) {
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
    static int64_t before(const Problem& p) { return max(0, -p.axes[p.n_axes - 1].origin); }
    static int64_t length(const Problem& p) {
      const Axis& last = p.axes[p.n_axes - 1];
      return before(p) + max(last.size, reach(last, wide<V>)) + wide<V>;
    }
    static int64_t window_rows(const Problem& p) {
      int64_t n = 1;
      for (int a = 0; a + 1 < p.n_axes; ++a) n *= p.axes[a].kernel;
      return n;
    }
  };

  // How many elements of a row vectors of `lanes` outputs read, counted from its beginning.
  static int64_t reach(const Axis& last, int64_t lanes) {
    return last.origin + (max(last.out, lanes) - 1) * last.stride + (last.kernel - 1) * last.step +
           last.stride;
  }

  template <int N> static void strips(const Problem& p, int64_t begin, int64_t end,
                                      const typename D::Carry& carry, const Buffers& buffers) {
    const Axis& last = p.axes[p.n_axes - 1];
    const typename D::Row row{last.out, last.origin, interior(last, 0, last.out)};
    Mask<V, N> masks[2];
    if (row.edged()) {
      masks[0] = D::template mask_of<N>(last, 0);
      masks[1] = D::template mask_of<N>(last, max(0, last.out - N));
    }
    const Context<N> context{p, last, row, masks, carry, buffers};
    const bool contiguous = is_contiguous(p, p.y, sizeof(S), Over::outputs);
    Walk<Over::outputs> walk(p, begin);
    for (int64_t unit = begin; unit < end;) {
      if (unit % p.rows == 0)
        if (const int64_t done = planes(context, walk, unit / p.rows, end / p.rows, contiguous)) {
          unit += done * p.rows;
          if (unit < end) walk.seek(unit);
          continue;
        }
      const Strip<S> strip = strip_at(p, walk, end - unit, contiguous);
      do_strip<N>(context, strip, contiguous ? (end - unit - strip.count) * last.out : -1);
      unit += strip.count;
      if (unit < end) walk.seek(unit);
    }
  }

  // What all strips share.
  template <int N> struct Context {
    const Problem& p;
    const Axis& last;
    const typename D::Row& row;
    const Mask<V, N>* masks;
    const typename D::Carry& carry;
    const Buffers& buffers;
  };

  // Small planes at a constant distance, except those at the ends of the array: the strips of the first serve all,
  // moved from plane to plane. Returns how many planes were computed.
  template <int N> static int64_t planes(const Context<N>& context, Walk<Over::outputs>& walk, int64_t first,
                                         int64_t end, bool contiguous) {
    const Problem& p = context.p;
    constexpr int max_strips = 8;
    // A tail written past the end of a plane must belong to later planes of this worker.
    const int64_t tail_planes = ceil_div(N, p.rows * context.last.out);
    const int64_t from = max(first, 1), to = min(end, p.planes) - 1 - tail_planes;
    const int64_t x_step = p.x.lead[0] / int64_t(sizeof(S)), y_step = p.y.lead[0] / int64_t(sizeof(S));
    if (p.n_axes != 2 || p.n_lead != 1 || !contiguous || is_one_strip(p) || first == 0 || to - from < 2 ||
        p.rows > 64 || x_step < 4 * (N + context.last.out + context.last.step) + 4)
      return 0;
    Strip<S> strips[max_strips];
    int n = 0;
    for (int64_t h = 0; h < p.rows; h += strips[n++].count) {
      walk.seek(from * p.rows + h);
      if (n < max_strips) strips[n] = strip_at(p, walk, p.rows - h, false);
      if (n == max_strips || strips[n].n_rows == 0) {  // too many strips, or empty windows
        walk.seek(first * p.rows);
        return 0;
      }
    }
    for (int64_t plane = from; plane < to; ++plane)
      for (int k = 0; k < n; ++k) {
        Strip<S>& strip = strips[k];
        vectors<N>(context, strip, Range{0, strip.count});
        for (int r = 0; r < strip.n_rows; ++r) strip.rows[r] += x_step;
        strip.y += y_step;
        if constexpr (indexed) strip.extra += y_step * size_of(p.extra);
      }
    return to - from;
  }

  // The strip that begins at the walk's row, of at most `limit` rows.
  static Strip<S> strip_at(const Problem& p, const Walk<Over::outputs>& walk, int64_t limit,
                           bool contiguous) {
    constexpr int64_t item = sizeof(S);
    const Axis& last = p.axes[p.n_axes - 1];
    const int outer = p.n_axes - 1;
    Strip<S> strip;
    const Axis rows = outer ? walk.axis(outer - 1) : single_axis(1);
    const int64_t h = outer ? walk.at(outer - 1) : 0, pitch = outer ? p.x.pooled[outer - 1] / item : 0;
    const Range whole = interior(rows, 0, rows.out);
    strip.step = rows.stride * pitch;
    const bool prefetches = outer && (last.size * item > 512 || input_exceeds_cache(p));
    strip.prefetch_distance =
        prefetches ? prefetch_distance(strip.step, item, outer > 1 ? p.axes[0].kernel : 1) : 0;
    strip.by_rows = last.size * item > 512 && last.size * item < 4096;
    strip.y_step = outer ? p.y.pooled[outer - 1] / item : last.out;
    strip.count = h >= whole.lo && h < whole.hi ? min(limit, whole.hi - h) : 1;
    strip.base_step = rows.stride * last.size;
    strip.tap = last.step;
    strip.tap_offset = p.extra == Extra::index64 ? Offset(last.step) : 1;
    if (contiguous && is_one_strip(p)) {
      strip.count = limit;
      if (outer == 0) {  // each plane is one row
        strip.step = p.x.lead[0] / item;
        strip.base_step = 0;
      }
    }
    add_rows(p, walk, rows, h, pitch, strip);
    strip.y = reinterpret_cast<S*>(walk.row(p.y, 0, 0).data);
    strip.extra = indexed ? walk.row(p.extra_array, 0, 0).data : nullptr;
    return strip;
  }

  // Whether offsets or indices have the same strides as the values, in elements.
  static bool follows_y(const Problem& p) {
    const int64_t item = size_of(p.extra);
    for (int a = 0; a < p.n_axes; ++a)
      if (p.extra_array.pooled[a] * int64_t(sizeof(S)) != p.y.pooled[a] * item) return false;
    for (int a = 0; a < p.n_lead; ++a)
      if (p.extra_array.lead[a] * int64_t(sizeof(S)) != p.y.lead[a] * item) return false;
    return true;
  }

  // Sets the input rows of the strip's first windows, their offsets, and the outer axes' factor of the divisor.
  static void add_rows(const Problem& p, const Walk<Over::outputs>& walk, const Axis& a, int64_t h,
                       int64_t pitch, Strip<S>& strip) {
    const S* plane = reinterpret_cast<const S*>(walk.plane(p.x));
    const Axis& last = walk.last();
    const bool has_depth = p.n_axes == 3, indices = p.extra == Extra::index64;
    const Axis depth = has_depth ? walk.axis(0) : single_axis(1);
    const Window rows = window(a, h), slabs = window(depth, has_depth ? walk.at(0) : 0);
    const int64_t slab = has_depth ? p.x.pooled[0] / int64_t(sizeof(S)) : 0;
    strip.outer_share = share(a, h) * share(depth, has_depth ? walk.at(0) : 0);
    // Indices are relative to the nominal beginning of the window, which may be in the padding.
    const int64_t first_slab = depth.origin + (has_depth ? walk.at(0) : 0) * depth.stride,
                  first_row = a.origin + h * a.stride;
    strip.base = (first_slab * a.size + first_row) * last.size + last.origin;
    strip.n_rows = 0;
    strip.offsets[0] = offset(a, last, depth, indices, slabs.lead, rows.lead);
    for (int64_t d = 0; d < slabs.taps; ++d)
      for (int64_t t = 0; t < rows.taps; ++t) {
        strip.offsets[strip.n_rows] = offset(a, last, depth, indices, slabs.lead + d, rows.lead + t);
        strip.rows[strip.n_rows++] =
            plane + (slabs.start + d * depth.step) * slab + (rows.start + t * a.step) * pitch;
      }
  }

  static Offset offset(const Axis& a, const Axis& last, const Axis& depth, bool indices, int64_t slab,
                       int64_t row) {
    return Offset(indices ? (slab * depth.step * a.size + row * a.step) * last.size
                          : (slab * a.kernel + row) * last.kernel);
  }

  // Rows [from, to) of a strip.
  static Strip<S> slice_of(const Problem& p, const Strip<S>& strip, int64_t from, int64_t to) {
    Strip<S> slice = strip;
    for (int r = 0; r < slice.n_rows; ++r) slice.rows[r] += from * slice.step;
    slice.y += from * slice.y_step;
    if constexpr (indexed) slice.extra += from * slice.y_step * size_of(p.extra);
    slice.base += from * slice.base_step;
    slice.count = to - from;
    return slice;
  }

  template <int N>
  static void do_strip(const Context<N>& context, const Strip<S>& strip, int64_t results_after) {
    const Problem& p = context.p;
    if (strip.n_rows == 0) return D::empty(p, context.last, strip);
    Range safe = vector_rows(p, context.last, context.row, strip, N, results_after);
    if (safe.lo >= safe.hi) safe = {strip.count, strip.count};
    for (int64_t i = 0; i < safe.lo; ++i) buffered_row<N>(context, slice_of(p, strip, i, i + 1));
    vectors<N>(context, strip, safe);
    for (int64_t i = safe.hi; i < strip.count; ++i) buffered_row<N>(context, slice_of(p, strip, i, i + 1));
  }

  // A row whose vectors would read or write outside the arrays: reads padded copies of its input rows and, if it
  // is shorter than a vector, writes through a buffer.
  template <int N> static void buffered_row(const Context<N>& context, Strip<S> strip) {
    const Problem& p = context.p;
    const int64_t out = context.last.out, item = size_of(p.extra);
    for (int r = 0; r < strip.n_rows; ++r) {
      S* copy = context.buffers.rows + r * context.buffers.pitch + context.buffers.margin;
      const int64_t margin = context.buffers.margin, size = context.last.size;
      std::memset(copy - margin, 0, size_t(context.buffers.pitch) * sizeof(S));
      std::memcpy(copy, strip.rows[r], size_t(size) * sizeof(S));
      strip.rows[r] = copy;
    }
    if (out >= N) return vectors<N>(context, strip, {0, 1});
    S* y = strip.y;
    char* extra = strip.extra;
    strip.y = context.buffers.values;
    strip.extra = context.buffers.extra;
    vectors<N>(context, strip, {0, 1});
    std::memcpy(y, strip.y, size_t(out) * sizeof(S));
    if (indexed) std::memcpy(extra, strip.extra, size_t(out * item));
  }

  // The rows of a strip that vectors of `lanes` outputs may read and write in place. `results_after`: the number
  // of outputs that this worker writes after the strip and that follow it in memory; -1 if outputs are not
  // contiguous.
  static Range vector_rows(const Problem& p, const Axis& last, const typename D::Row& row,
                           const Strip<S>& strip, int lanes, int64_t results_after) {
    int64_t lo = 0, hi = strip.count;
    if (row.out < lanes) {
      if (results_after < 0 || strip.y_step != row.out) return {0, 0};
      hi = min(hi, hi + floor_div(results_after - (lanes - row.out), row.out));
    }
    const int64_t margin = max(0, -row.origin);
    const int64_t reads = reach(last, lanes);
    const Readable readable(p, p.x, sizeof(S), Over::inputs);
    for (int r = 0; r < strip.n_rows; ++r) {
      const Range rows = readable.rows(strip.rows[r], margin, reads, strip.step, strip.count);
      lo = max(lo, rows.lo);
      hi = min(hi, rows.hi);
    }
    return {lo, hi};
  }

  template <int N> static void vectors(const Context<N>& context, const Strip<S>& strip, Range rows) {
    using One = std::integral_constant<int, 1>;
    using Two = std::integral_constant<int, 2>;
    using Three = std::integral_constant<int, 3>;
    const Axis& last = context.last;
    const auto sweep = [&](auto speculative, const Strip<S>& piece) {
      const auto dispatch = [&](auto kernel, auto stride, auto n_rows) {
        const auto run_sweep = [&](auto by_rows) {
          return D::template sweep<decltype(kernel)::value, decltype(stride)::value, decltype(n_rows)::value,
                                   N, speculative, by_rows>(context.p, piece, context.row, context.masks,
                                                            context.carry);
        };
        if constexpr (common && speculative && decltype(n_rows)::value == decltype(kernel)::value)
          if (piece.by_rows) return run_sweep(std::true_type{});
        return run_sweep(std::false_type{});
      };
      using Any = std::integral_constant<int, 0>;
      if constexpr (common)
        if (last.stride == 1)
          return last.kernel == 2 ? dispatch(Two{}, One{}, Any{}) : dispatch(Three{}, One{}, Any{});
      if constexpr (R::is_max)
        if (last.step != 1) {
          using Dilated = std::integral_constant<int, dilated_rows>;
          if constexpr (speculative && common && !indexed) {
            if (last.kernel == 2 && piece.n_rows == 2)
              return dispatch(Two{}, Two{}, std::integral_constant<int, -2>{});
            if (last.kernel == 3 && piece.n_rows == 3)
              return dispatch(Three{}, Two{}, std::integral_constant<int, -3>{});
          }
          return last.kernel == 2 ? dispatch(Two{}, Two{}, Dilated{}) : dispatch(Three{}, Two{}, Dilated{});
        }
      if (last.kernel == 2) {
        if constexpr (speculative && common)
          if (piece.n_rows == 2) return dispatch(Two{}, Two{}, Two{});
        return dispatch(Two{}, Two{}, Any{});
      }
      if constexpr (R::is_max)
        if (piece.n_rows == 3 && piece.rows[2] == piece.rows[0] + piece.step)
          return dispatch(Three{}, Two{}, Three{});
      return dispatch(Three{}, Two{}, Any{});
    };
    if constexpr (indexed && !common)
      sweep(std::false_type{}, slice_of(context.p, strip, rows.lo, rows.hi));
    else
      for (int64_t i = rows.lo; i < rows.hi;) {
        i += sweep(std::true_type{},
                   i || rows.hi < strip.count ? slice_of(context.p, strip, i, rows.hi) : strip);
        if constexpr (D::can_be_nan)
          if (i < rows.hi)
            i += sweep(std::false_type{},
                       slice_of(context.p, strip, i, min(rows.hi, i + Speculation::exact_pieces)));
      }
  }
};

}  // namespace
}  // namespace ndpool

// The direct engine: small windows on packed rows, every tap in registers, nothing kept between output rows.
// Values are picked the quick way, which assumes that there is no NaN, while the elements are also added up: a sum
// that is NaN (a NaN, or opposite infinities) sends the row through the exact way.
// Work comes in strips: output rows whose windows step evenly through memory, so that a row costs little more than
// its elements. Short rows are written a whole vector at a time; what spills into the next row is overwritten by it.
// Windows that are cut off at an end of the row are done by the first and the last vector of it, with masks.
#pragma once

#include "forward.h"
#include "simd.h"

namespace ndpool {
namespace {

constexpr int most_rows = 27;  // of one window
constexpr int64_t calm_rows =
    32;  // done the exact way after a NaN was met, before the quick way is tried again

// A run of output rows: where the rows of the first one's windows are, and how far apart those of the next.
template <class S> struct Strip {
  const S* rows[most_rows];
  Code codes[most_rows];  // of each row's first tap
  int n_rows;
  int64_t count, step;  // output rows; elements from one's input rows to the next's
  S* y;
  int64_t y_step, by;       // by: what the outer axes contribute to the divisor
  char* extra;              // codes or positions of the first row, as dense as y
  int64_t base, base_step;  // position of the first row's first window, and how much later the next row's is
};

// One vector of outputs: which of its elements lie inside, the first of them, and its divisors.
template <class V, int N> struct Mask {
  decltype(Vec<V, N>{} == Vec<V, N>{}) inside[3];
  Vec<UnsignedLike<V>, N> lead;
  Vec<V, N> by;
};

template <class R, class S, bool coded> struct Direct {
  using V = typename R::V;
  template <int N> using Vn = Vec<V, N>;
  using C = UnsignedLike<V>;
  template <int N> using Cn = Vec<C, N>;
  static constexpr bool can_be_nan = R::picks && is_real<V>;

  struct Row {
    int64_t out, origin;
    Range whole;  // outputs with whole windows
    bool edged() const { return whole.lo > 0 || whole.hi < out; }
  };

  template <int N> struct Best {
    Vn<N> value;
    Cn<N> code;
  };

  template <bool quick, int N>
  __attribute__((always_inline)) static inline void merge(const Best<N>& later, Best<N>& best) {
    if constexpr (!R::picks) {
      best.value += later.value;
    } else {
      auto better = R::beats(later.value, best.value);
      if constexpr (!quick && can_be_nan) better |= later.value != later.value;
      best.value = better ? later.value : best.value;
      if constexpr (coded) best.code = better ? later.code : best.code;
    }
  }

  // The elements under tap t of N neighbouring windows. Nothing beyond the last window's last tap is read.
  template <int K, int Stride, int N>
  __attribute__((always_inline)) static inline Vn<N> under(const S* x, int t) {
    if constexpr (Stride == 1) return read_as<V, N>(x + t);
    const bool last_even = t % 2 == 0 && t == K - 1;
    const S* from = last_even ? x + t - 1 : x + t - t % 2;
    if constexpr (std::is_same_v<S, bf16>) {  // two neighbours are the halves of a word
      const auto words = read<std::uint32_t, N>(reinterpret_cast<const std::uint32_t*>(from));
      return reinterpret_cast<Vn<N>>(last_even || t % 2 ? words & 0xffff0000u : words << 16);
    }
    const Vn<N> a = read_as<V, N>(from), b = read_as<V, N>(from + N);
    return last_even || t % 2 ? odds(a, b) : evens(a, b);
  }

  // N windows: rows first for picks (the order of a row-major scan), columns first for sums.
  template <int K, int Stride, int Rows, int N, bool quick, bool masked>
  __attribute__((always_inline)) static inline Best<N>
  windows(const Strip<S>& strip, const S* const* rows, int64_t shift, const Mask<V, N>* mask, Vn<N>& poison) {
    const int n = Rows ? Rows : strip.n_rows;
    const auto tap = [&](int r, int t) __attribute__((always_inline)) {
      const Vn<N> v = under<K, Stride, N>(rows[r] + shift, t);
      return masked ? (mask->inside[t] ? v : Vn<N>{} + R::init()) : v;
    };
    Best<N> best;
    if constexpr (R::picks) {
      Vn<N> seen;
      for (int r = 0; r < n; ++r) {
        Best<N> across;
        if constexpr (masked) {
          across.value = Vn<N>{} + R::init();
          if constexpr (coded) across.code = mask->lead + C(strip.codes[r]);
        }
        Vn<N> sum;
        for (int t = 0; t < K; ++t) {
          Best<N> later;
          later.value = tap(r, t);
          if constexpr (coded) later.code = Cn<N>{} + C(strip.codes[r] + t);
          if constexpr (quick && can_be_nan) sum = t ? sum + later.value : later.value;
          if (t || masked)
            merge<quick>(later, across);
          else
            across = later;
        }
        if constexpr (quick && can_be_nan) seen = r ? seen + sum : sum;
        if (r)
          merge<quick>(across, best);
        else
          best = across;
      }
      if constexpr (quick && can_be_nan) poison += seen;
    } else {
      for (int t = 0; t < K; ++t) {
        Vn<N> down = tap(0, t);
        for (int r = 1; r < n; ++r) down += tap(r, t);
        best.value = t ? best.value + down : down;
      }
    }
    return best;
  }

  template <int N> __attribute__((always_inline)) static inline void store(const Strip<S>& strip,
                                                                           const Best<N>& best,
                                                                           int64_t element, int64_t position,
                                                                           int64_t stride, Extra extra) {
    write_as<N, R::picks, S, V>(strip.y + element, best.value);
    if constexpr (coded) {
      if (extra == Extra::offset8) {
        write(reinterpret_cast<std::uint8_t*>(strip.extra) + element,
              __builtin_convertvector(best.code, Vec<std::uint8_t, N>));
      } else {
        using I = Vec<int64_t, N>;
        const I at = __builtin_convertvector(best.code, I) + (position + stride * iota<N>());
        write(reinterpret_cast<int64_t*>(strip.extra) + element, at);
      }
    }
  }

  template <int N> static Vec<int64_t, N> iota() {
    Vec<int64_t, N> v;
    for (int j = 0; j < N; ++j) v[j] = j;
    return v;
  }

  // The first and the last vector of a row, always the exact way. Apart, so that the loop between them keeps its
  // registers.
  template <int K, int Stride, int N>
  __attribute__((noinline)) static void edge(const Problem& p, const Strip<S>& strip, const S* const* rows,
                                             int64_t o, const Mask<V, N>& mask, int64_t row) {
    Vn<N> unused = {};
    auto best = windows<K, Stride, 0, N, false, true>(strip, rows, o * Stride, &mask, unused);
    if constexpr (!R::picks)
      if (p.divide) best.value /= p.divisor ? Vn<N>{} + V(p.divisor) : mask.by * V(strip.by);
    store<N>(strip, best, row * strip.y_step + o, strip.base + row * strip.base_step + o * Stride, Stride,
             p.extra);
  }

  // All outputs of a strip's rows. Returns how many rows were done before one with a NaN was met.
  template <int K, int Stride, int Rows, int N, bool quick>
  static int64_t sweep(const Problem& p, const Strip<S>& strip, const Row& row, const Mask<V, N>* masks) {
    constexpr int most_here = Rows ? Rows : most_rows;
    const S* rows[most_here];
    const int n_rows = Rows ? Rows : strip.n_rows;
    for (int r = 0; r < n_rows; ++r) rows[r] = strip.rows[r] + row.origin;
    const Divide divide(p, strip.by * K);
    const bool edged = row.edged();
    const int64_t out = row.out,
                  last = edged ? least(row.whole.hi, out - 1) : out;  // where whole vectors end
    const Extra extra = p.extra;
    for (int64_t i = 0; i < strip.count; ++i) {
      Vn<N> poison = {};
      const int64_t element = i * strip.y_step, base = strip.base + i * strip.base_step;
      const auto plain = [&](int64_t o) __attribute__((always_inline)) {
        auto best = windows<K, Stride, Rows, N, quick, false>(strip, rows, o * Stride, nullptr, poison);
        divide(best.value);
        store<N>(strip, best, element + o, base + o * Stride, Stride, extra);
      };
      int64_t o = 0;
      if (edged) {
        const S* here[most_here];  // a copy: the pointers above stay in registers
        for (int r = 0; r < n_rows; ++r) here[r] = rows[r];
        edge<K, Stride, N>(p, strip, here, 0, masks[0], i);
        if (N < out) edge<K, Stride, N>(p, strip, here, out - N, masks[1], i);
        o = N;
      } else if (out < N) {
        plain(0);
        o = N;
      }
      for (; o + N <= last; o += N) plain(o);
      if (o < out - (edged ? N : 0)) plain(last - N);  // those that are left, with some once more
      if constexpr (quick && can_be_nan)
        if (any(poison != poison)) return i;
      for (int r = 0; r < n_rows; ++r) rows[r] += strip.step;
    }
    return strip.count;
  }

  // Sums to means: by a whole window's share.
  struct Divide {
    V by = V(1), inverse = V(1);
    bool none, exact_inverse;  // a power of two: multiplying is the same to the bit, and cheaper

    Divide(const Problem& p, int64_t share) : none(R::picks || !p.divide) {
      const int64_t n = p.divisor ? p.divisor : share;
      by = V(n ? n : 1);
      exact_inverse = n > 0 && (n & (n - 1)) == 0;
      if constexpr (is_real<V>) inverse = V(1) / by;
    }
    template <class Vx> void operator()(Vx& v) const {
      if constexpr (!R::picks)
        if (!none) v = exact_inverse ? v * inverse : v / by;
    }
  };

  template <int N> static Mask<V, N> mask_of(const Axis& a, int64_t o) {
    Mask<V, N> mask{};
    for (int j = 0; j < N; ++j) {
      const bool real = o + j < a.out;  // not what spills over
      const Window w = real ? window(a, o + j) : Window{0, 0, 0};
      for (int t = 0; t < 3; ++t) mask.inside[t][j] = t >= w.lead && t < w.lead + w.taps ? -1 : 0;
      mask.lead[j] = C(w.lead);
      mask.by[j] = V(real ? most(1, share(a, o + j)) : 1);
    }
    return mask;
  }

  // Row by row without vectors: for the few rows where a vector would reach beyond the arrays.
  static void scalar(const Problem& p, const Axis& a, const Strip<S>& strip) {
    for (int64_t i = 0; i < strip.count; ++i)
      for (int64_t o = 0; o < a.out; ++o) {
        const Window w = window(a, o);
        const int64_t shift = i * strip.step + w.start, element = i * strip.y_step + o;
        V best = R::init();
        Code code = strip.codes[0] + Code(w.lead);
        if constexpr (R::picks) {
          for (int r = 0; r < strip.n_rows; ++r)
            for (int64_t t = 0; t < w.taps; ++t)
              merge_coded<R>(load_as<V>(strip.rows[r][shift + t]), strip.codes[r] + Code(w.lead + t), best,
                             code);
        } else {
          for (int64_t t = 0; t < w.taps; ++t) {
            V down = load_as<V>(strip.rows[0][shift + t]);
            for (int r = 1; r < strip.n_rows; ++r) down += load_as<V>(strip.rows[r][shift + t]);
            best = t ? best + down : down;
          }
          if (p.divide) best /= V(p.divisor ? p.divisor : most(1, strip.by * share(a, o)));
        }
        strip.y[element] = store_as<S>(best);
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
  using V = typename R::V;
  using D = Direct<R, S, coded>;

  static bool serves(const Problem& p) {
    const Axis& last = p.axes[p.n_axes - 1];
    int64_t rows = 1;
    for (int a = 0; a + 1 < p.n_axes; ++a) {
      if (!p.axes[a].regular()) return false;
      rows *= p.axes[a].kernel;
    }
    if (p.n_axes > 3 || p.lanes != 1 || !last.regular() || rows > most_rows ||
        last.kernel != last.uncropped || last.step != 1 || last.stride > 2 || last.kernel < 2 ||
        last.kernel > 3 || p.x_type != p.y_type || p.x.pooled[p.n_axes - 1] != sizeof(S) ||
        p.y.pooled[p.n_axes - 1] != sizeof(S))
      return false;
    for (int k = 0; k < Problem::n_arrays; ++k)  // reading a little beyond a row stays inside the array
      for (int a = 0; a < max_lead; ++a)
        if (p.arrays()[k].lead[a] < 0 || (a < p.n_axes && p.arrays()[k].pooled[a] < 0)) return false;
    const Range whole = interior(last, 0, last.out);
    if (whole.lo > 4 || last.out - whole.hi > 4) return false;
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
    p.scratch = 0;
  }

  static void run(const Problem& p, int64_t begin, int64_t end, char*) {
    const int64_t out = p.axes[p.n_axes - 1].out;
    if (out > narrow_lanes<V>)
      strips<wide<V>>(p, begin, end);
    else
      strips<narrow_lanes<V>>(p, begin, end);
  }

private:
  template <int N> static void strips(const Problem& p, int64_t begin, int64_t end) {
    const Axis& last = p.axes[p.n_axes - 1];
    const typename D::Row row{last.out, last.origin, interior(last, 0, last.out)};
    Mask<V, N> masks[2];
    if (row.edged()) {
      masks[0] = D::template mask_of<N>(last, 0);
      masks[1] = D::template mask_of<N>(last, most(0, last.out - N));
    }
    const int outer = p.n_axes - 1;
    const bool ordered = in_order(p);
    constexpr int64_t item = sizeof(S);
    Walk<Over::outputs> walk(p, begin);
    for (int64_t unit = begin; unit < end;) {
      Strip<S> strip;
      Axis rows{};
      rows.size = rows.out = rows.kernel = rows.stride = rows.step = rows.uncropped = rows.hi = 1;
      if (outer) rows = walk.axis(outer - 1);
      const int64_t h = outer ? walk.at(outer - 1) : 0, pitch = outer ? p.x.pooled[outer - 1] / item : 0;
      const Range whole = interior(rows, 0, rows.out);
      const bool planes_follow = ordered && p.n_lead == 1 && whole.lo == 0 && whole.hi == rows.out;
      strip.step = rows.stride * pitch;
      strip.y_step = outer ? p.y.pooled[outer - 1] / item : last.out;
      strip.count = h >= whole.lo && h < whole.hi ? least(end - unit, whole.hi - h) : 1;
      strip.base_step = rows.stride * last.size;
      if (outer == 0 && planes_follow) {  // rows of one dimension: the planes are a strip themselves
        strip.count = end - unit;
        strip.step = p.x.lead[0] / item;
        strip.base_step = 0;
      } else if (outer == 1 && planes_follow && !coded &&
                 p.x.lead[0] == rows.out * rows.stride * p.x.pooled[0]) {
        strip.count = end - unit;
      }
      add_rows(p, walk, rows, h, pitch, strip);
      strip.y = reinterpret_cast<S*>(walk.row(p.y, 0, 0).data);
      strip.extra = coded ? walk.row(p.extra_array, 0, 0).data : nullptr;
      do_strip<N>(p, last, row, strip, ordered ? (end - unit - strip.count) * last.out : -1, masks);
      unit += strip.count;
      if (unit < end) walk.seek(unit);
    }
  }

  static int64_t plane_elements(const Problem& p) {
    int64_t n = 1;
    for (int a = 0; a < p.n_axes; ++a) n *= p.axes[a].size;
    return n;
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

  // Whether the rows of the results follow each other in memory without gaps, in the order they are worked on.
  static bool in_order(const Problem& p) {
    int64_t pitch = sizeof(S);
    for (int a = p.n_axes - 1; a >= 0; --a) {
      if (p.axes[a].out != 1 && p.y.pooled[a] != pitch) return false;
      pitch *= p.axes[a].out;
    }
    for (int a = p.n_lead - 1; a >= 0; --a) {
      if (p.y.lead[a] != pitch) return false;
      pitch *= p.lead_shape[a];
    }
    return true;
  }

  // The rows of the strip's first windows with their codes, and what the outer axes contribute to divisors.
  static void add_rows(const Problem& p, const Walk<Over::outputs>& walk, const Axis& a, int64_t h,
                       int64_t pitch, Strip<S>& strip) {
    const S* plane = reinterpret_cast<const S*>(walk.plane(p.x));
    const Axis& last = walk.last();
    const bool deep = p.n_axes == 3, positions = p.extra == Extra::index64;
    Axis depth{};
    depth.size = depth.out = depth.kernel = depth.step = depth.stride = depth.uncropped = depth.hi = 1;
    if (deep) depth = walk.axis(0);
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

  template <int N> static void do_strip(const Problem& p, const Axis& last, const typename D::Row& row,
                                        const Strip<S>& strip, int64_t spill, const Mask<V, N>* masks) {
    const Range safe = strip.n_rows ? vector_rows(p, last, row, strip, N, spill) : Range{0, 0};
    const auto part = [&](int64_t from, int64_t to) {
      Strip<S> cut = strip;
      for (int r = 0; r < cut.n_rows; ++r) cut.rows[r] += from * cut.step;
      cut.y += from * cut.y_step;
      cut.extra += from * cut.y_step * (p.extra == Extra::index64 ? 8 : 1);
      cut.base += from * cut.base_step;
      cut.count = to - from;
      return cut;
    };
    if (safe.lo >= safe.hi) return D::scalar(p, last, strip);
    D::scalar(p, last, part(0, safe.lo));
    vectors<N>(p, last, row, part, safe, masks);
    D::scalar(p, last, part(safe.hi, strip.count));
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
    const int64_t reads =
        row.origin + (most(row.out, lanes) - 1) * last.stride + last.kernel + (last.stride == 2);
    int64_t extent = sizeof(S);
    for (int a = 0; a < p.n_axes; ++a) extent += (p.axes[a].size - 1) * p.x.pooled[a];
    for (int a = 0; a < p.n_lead; ++a) extent += (p.lead_shape[a] - 1) * p.x.lead[a];
    const S *first = reinterpret_cast<const S*>(p.x.data), *end = first + extent / int64_t(sizeof(S));
    for (int r = 0; r < strip.n_rows; ++r) {
      if (strip.rows[r] - ahead < first)
        lo = most(lo, strip.step ? ceil_div(first - (strip.rows[r] - ahead), strip.step) : hi);
      const int64_t room = end - strip.rows[r] - reads;
      hi = room < 0 ? 0 : strip.step ? least(hi, room / strip.step + 1) : hi;
    }
    return {lo, hi};
  }

  template <int N, class F> static void vectors(const Problem& p, const Axis& last,
                                                const typename D::Row& row, F&& part, Range rows,
                                                const Mask<V, N>* masks) {
    const auto go = [&](auto quick, auto kernel, auto stride, const Strip<S>& strip) {
      constexpr int K = decltype(kernel)::value, T = decltype(stride)::value;
      constexpr bool q = decltype(quick)::value;
      if constexpr (q && std::is_same_v<S, float>) {
        if (strip.n_rows == 2) return D::template sweep<K, T, 2, N, q>(p, strip, row, masks);
        if (strip.n_rows == 3) return D::template sweep<K, T, 3, N, q>(p, strip, row, masks);
      }
      return D::template sweep<K, T, 0, N, q>(p, strip, row, masks);
    };
    const auto sweep = [&](auto quick, const Strip<S>& strip) {
      using One = std::integral_constant<int, 1>;
      using Two = std::integral_constant<int, 2>;
      using Three = std::integral_constant<int, 3>;
      if (last.kernel == 2)
        return last.stride == 1 ? go(quick, Two{}, One{}, strip) : go(quick, Two{}, Two{}, strip);
      return last.stride == 1 ? go(quick, Three{}, One{}, strip) : go(quick, Three{}, Two{}, strip);
    };
    if constexpr (coded) {
      sweep(std::false_type{}, part(rows.lo, rows.hi));
    } else {
      for (int64_t i = rows.lo; i < rows.hi;) {
        i += sweep(std::true_type{}, part(i, rows.hi));
        if constexpr (D::can_be_nan)
          if (i < rows.hi) i += sweep(std::false_type{}, part(i, least(rows.hi, i + calm_rows)));
      }
    }
  }
};

}  // namespace
}  // namespace ndpool

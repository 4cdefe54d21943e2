// The direct engine: small windows on packed rows, every tap in registers, nothing kept between output rows.
// Values are picked the quick way, which assumes that there is no NaN, while the elements are also added up: a sum
// that is NaN (a NaN, or opposite infinities) sends the row through the exact way.
#pragma once

#include "forward.h"
#include "simd.h"

namespace ndpool {
namespace {

constexpr int most_rows = 27;  // of one window

// N elements to storage, rounded to nearest even where it is narrower.
template <int N, class S, class V> inline void write_as(S* p, Vec<V, N> v) {
  if constexpr (is_half<S>) {
    using U = Vec<std::uint32_t, N>;
    const U u = reinterpret_cast<U>(v), magnitude = u & 0x7fffffffu;
    U bits;
    if constexpr (std::is_same_v<S, bf16>) {
      bits = magnitude > 0x7f800000u ? (u >> 16) | 0x40u : (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    } else {
      const U normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
      const U tiny = reinterpret_cast<U>(reinterpret_cast<Vec<float, N>>(magnitude) + 0.5f) -
                     std::bit_cast<std::uint32_t>(0.5f);
      bits = magnitude < 0x38800000u ? tiny : normal;
      bits = magnitude >= 0x477ff000u ? U{} + 0x7c00u : bits;
      bits = magnitude > 0x7f800000u ? U{} + 0x7e00u : bits;
      bits |= (u >> 16) & 0x8000u;
    }
    write(&p->bits, __builtin_convertvector(bits, Vec<std::uint16_t, N>));
  } else {
    write(p, v);
  }
}

template <class R, class S, bool quick> struct Direct {
  using V = typename R::V;
  static constexpr bool watches = quick && R::picks && is_real<V>;
  template <int N> using Vn = Vec<V, N>;

  template <int N> struct Watch {
    Vn<N> poison = {};
    void see(Vn<N> v) {
      if constexpr (watches) poison += v;
    }
    bool alarmed() const {
      if constexpr (watches)
        return any(poison != poison);
      else
        return false;
    }
  };

  template <class Vx> static Vx merge(Vx later, Vx best) {
    if constexpr (!R::picks)
      return best + later;
    else if constexpr (quick || !is_real<V>)
      return R::beats(later, best) ? later : best;
    else
      return (R::beats(later, best) | (later != later)) ? later : best;
  }

  // The elements under tap t of N neighbouring windows. Nothing beyond the last window's last tap is read.
  template <int K, int Stride, int N> static Vn<N> under(const S* x, int t) {
    if constexpr (Stride == 1) return read_as<V, N>(x + t);
    const bool last_even = t % 2 == 0 && t == K - 1;
    const S* from = last_even ? x + t - 1 : x + t - t % 2;
    const Vn<N> a = read_as<V, N>(from), b = read_as<V, N>(from + N);
    return last_even || t % 2 ? odds(a, b) : evens(a, b);
  }

  // N windows: rows first for picks (the order of a row-major scan), columns first for sums.
  template <int K, int Stride, int Rows, int N>
  static Vn<N> windows(const S* const* rows, int n_rows, int64_t shift, Watch<N>& watch) {
    const int n = Rows ? Rows : n_rows;
    Vn<N> acc;
    if constexpr (R::picks) {
      for (int r = 0; r < n; ++r) {
        const S* x = rows[r] + shift;
        Vn<N> across = under<K, Stride, N>(x, 0);
        watch.see(across);
        for (int t = 1; t < K; ++t) {
          const Vn<N> later = under<K, Stride, N>(x, t);
          watch.see(later);
          across = merge(later, across);
        }
        acc = r ? merge(across, acc) : across;
      }
    } else if constexpr (K == 2 && Stride == 2) {
      Vn<N> a = read_as<V, N>(rows[0] + shift), b = read_as<V, N>(rows[0] + shift + N);
      for (int r = 1; r < n; ++r) {
        a += read_as<V, N>(rows[r] + shift);
        b += read_as<V, N>(rows[r] + shift + N);
      }
      acc = evens(a, b) + odds(a, b);
    } else {
      for (int t = 0; t < K; ++t) {
        Vn<N> down = under<K, Stride, N>(rows[0] + shift, t);
        for (int r = 1; r < n; ++r) down += under<K, Stride, N>(rows[r] + shift, t);
        acc = t ? acc + down : down;
      }
    }
    return acc;
  }

  // `scale` turns sums into means; true when the row has to be done again the exact way.
  template <int K, int Stride, int Rows, int N, class Scale>
  static bool sweep(const S* const* rows, int n_rows, int64_t n, S* dst, const Scale& scale) {
    Watch<N> watch;
    int64_t o = 0;
    for (; o + N <= n; o += N)
      write_as<N, S, V>(dst + o, scale(windows<K, Stride, Rows, N>(rows, n_rows, o * Stride, watch)));
    if (o < n) {  // the last ones once more, with those that are left
      o = n - N;
      write_as<N, S, V>(dst + o, scale(windows<K, Stride, Rows, N>(rows, n_rows, o * Stride, watch)));
    }
    return watch.alarmed();
  }
};

// One output row at a time: scalar windows at the edges, vectors between them.
template <class R, class S> struct DirectRows {
  using V = typename R::V;

  static bool serves(const Problem& p) {
    const Axis& last = p.axes[p.n_axes - 1];
    int64_t rows = 1;
    for (int a = 0; a + 1 < p.n_axes; ++a) {
      if (!p.axes[a].regular()) return false;
      rows *= p.axes[a].kernel;
    }
    return p.lanes == 1 && p.x.pooled[p.n_axes - 1] == sizeof(S) && p.y.pooled[p.n_axes - 1] == sizeof(S) &&
           p.x_type == p.y_type && last.regular() && last.step == 1 && last.stride <= 2 && last.kernel >= 2 &&
           last.kernel <= 3 && rows <= most_rows;
  }

  static void prepare(Problem& p) {
    p.tile = p.axes[p.n_axes - 1].out;
    p.units = p.planes;
    p.scratch = RowSet::bytes(p);
  }

  static void run(const Problem& p, int64_t begin, int64_t end, char* memory) {
    Scratch scratch(memory);
    Walk<Over::outputs> walk(p, begin);
    RowSet rows(p, scratch);
    const Axis& last = p.axes[p.n_axes - 1];
    const Range in = interior(last, 0, last.out);
    bool exact = false;  // a NaN was met in this plane
    for (int64_t unit = begin; unit < end; ++unit, exact = !walk.next() && exact) {
      rows.windows(walk);
      const S* taps[most_rows];
      const int n = int(rows.count());
      for (int r = 0; r < n; ++r, rows.next())
        taps[r] = reinterpret_cast<const S*>(walk.row(p.x, rows.index(), 0, 0).data);
      S* y = reinterpret_cast<S*>(walk.row(p.y, 0, 0).data);
      int64_t outer = 1;
      if (p.divide && !p.divisor)
        for (int a = 0; a < walk.outer(); ++a) outer *= share(walk.axis(a), walk.at(a));
      const bool vectors = n > 0 && in.hi - in.lo >= narrow_lanes<V>;
      for (int64_t o = 0; o < (vectors ? in.lo : last.out); ++o) y[o] = one(p, last, taps, n, o, outer);
      if (!vectors) continue;
      for (int64_t o = in.hi; o < last.out; ++o) y[o] = one(p, last, taps, n, o, outer);
      for (int r = 0; r < n; ++r) taps[r] += last.origin + in.lo * last.stride;
      const int64_t by = !p.divide ? 1 : p.divisor ? p.divisor : outer * last.kernel;
      if (exact || between<true>(last, taps, n, in.hi - in.lo, y + in.lo, by)) {
        if constexpr (R::picks && is_real<V>) {
          exact = true;
          between<false>(last, taps, n, in.hi - in.lo, y + in.lo, by);
        }
      }
    }
  }

private:
  // A single window, for the edges.
  static S one(const Problem& p, const Axis& last, const S* const* rows, int n, int64_t o, int64_t outer) {
    const Window w = window(last, o);
    V acc = R::init();
    if constexpr (R::picks) {
      for (int r = 0; r < n; ++r)
        for (int64_t t = 0; t < w.taps; ++t) acc = R::merge(load_as<V>(rows[r][w.start + t]), acc);
    } else {
      for (int64_t t = 0; t < w.taps; ++t) {
        V down = V(0);
        for (int r = 0; r < n; ++r)
          down = r ? down + load_as<V>(rows[r][w.start + t]) : load_as<V>(rows[r][w.start + t]);
        acc = t ? acc + down : down;
      }
      if (p.divide) acc /= V(p.divisor ? p.divisor : most(1, outer * share(last, o)));
    }
    return store_as<S>(acc);
  }

  template <bool quick>
  static bool between(const Axis& a, const S* const* rows, int n_rows, int64_t n, S* y, int64_t by) {
    const auto go = [&](auto kernel, auto stride) {
      constexpr int K = decltype(kernel)::value, T = decltype(stride)::value;
      if (n >= wide<V>) return counted<quick, K, T, wide<V>>(rows, n_rows, n, y, by);
      return counted<quick, K, T, narrow_lanes<V>>(rows, n_rows, n, y, by);
    };
    const auto with_stride = [&](auto kernel) {
      return a.stride == 1 ? go(kernel, std::integral_constant<int, 1>{})
                           : go(kernel, std::integral_constant<int, 2>{});
    };
    return a.kernel == 2 ? with_stride(std::integral_constant<int, 2>{})
                         : with_stride(std::integral_constant<int, 3>{});
  }

  template <bool quick, int K, int Stride, int N>
  static bool counted(const S* const* rows, int n_rows, int64_t n, S* y, int64_t by) {
    using D = Direct<R, S, quick>;
    const auto sweep = [&](const auto& scale) {
      if constexpr (quick) {
        if (n_rows == 2) return D::template sweep<K, Stride, 2, N>(rows, 2, n, y, scale);
        if (n_rows == 3) return D::template sweep<K, Stride, 3, N>(rows, 3, n, y, scale);
      }
      return D::template sweep<K, Stride, 0, N>(rows, n_rows, n, y, scale);
    };
    if constexpr (!R::picks) {
      if (by != 1) {
        // Multiplying by the inverse of a power of two is the same to the bit, and cheaper.
        if (by > 0 && (by & (by - 1)) == 0) return sweep([m = V(1) / V(by)](auto v) { return v * m; });
        return sweep([d = V(by)](auto v) { return v / d; });
      }
    }
    return sweep([](auto v) { return v; });
  }
};

}  // namespace
}  // namespace ndpool

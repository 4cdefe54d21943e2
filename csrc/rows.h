// The horizontal step: from one row of the input to the windows of that row.
// A row is (positions x lanes) neighbours in memory; lanes > 1 is the channels-last case. `x` points at
// position 0, `dst` at output o0. Windows are read left to right, so ties and sums have one order everywhere.
#pragma once

#include "reducers.h"

namespace ndpool {
namespace {

constexpr int64_t doubling_kernel = 5;  // from this width on, stride-1 maxima are built by doubling

// Full windows of any kind: a block of outputs at a time, tap by tap.
template <class R, int S> void tapped_windows(const typename R::V* __restrict x, int64_t n,
                                              typename R::V* __restrict dst, const Axis& a) {
  const int64_t stride = S ? S : a.stride;
  for (int64_t o = 0; o < n; o += 64) {
    const int64_t block = least(64, n - o);
    const auto* src = x + o * stride;
    for (int64_t j = 0; j < block; ++j) dst[o + j] = src[j * stride];
    for (int64_t t = 1; t < a.kernel; ++t)
      for (int64_t j = 0; j < block; ++j) dst[o + j] = R::merge(src[j * stride + t * a.step], dst[o + j]);
  }
}

// Stride-1 maxima of any width in log2(kernel) passes over a row that lies in L1. Overlaps are harmless: a
// maximum may meet the same element twice. `work` holds the row with the windows' padding filled in.
template <class R> void doubled_windows(const typename R::V* x, int64_t size, int64_t first, int64_t n,
                                        typename R::V* dst, const Axis& a, typename R::V* work) {
  const int64_t length = n + (a.kernel - 1) * a.step;
  const int64_t lo = least(length, most(0, -first)), hi = most(lo, least(length, size - first));
  for (int64_t j = 0; j < lo; ++j) work[j] = R::init();
  for (int64_t j = lo; j < hi; ++j) work[j] = x[first + j];
  for (int64_t j = hi; j < length; ++j) work[j] = R::init();
  int64_t m = 1;
  for (; 2 * m <= a.kernel; m *= 2) {
    const int64_t shift = m * a.step, end = length - (2 * m - 1) * a.step;
    for (int64_t j = 0; j < end; ++j) work[j] = R::merge(work[j + shift], work[j]);
  }
  const int64_t shift = (a.kernel - m) * a.step;
  for (int64_t j = 0; j < n; ++j) dst[j] = R::merge(work[j + shift], work[j]);
}

template <class R> void row_windows(const typename R::V* x, const Axis& a, int64_t o0, int64_t o1,
                                    typename R::V* dst, typename R::V* work) {
  using V = typename R::V;
  if constexpr (R::picks) {
    if (a.regular() && a.stride == 1 && a.kernel >= doubling_kernel)
      return doubled_windows<R>(x, a.size, a.origin + o0, o1 - o0, dst, a, work);
  }
  const Range in = interior(a, o0, o1);
  const auto one_by_one = [&](int64_t from, int64_t to) {
    for (int64_t o = from; o < to; ++o) {
      const Window w = window(a, o);
      V acc = w.taps ? x[w.start] : R::init();
      for (int64_t t = 1; t < w.taps; ++t) acc = R::merge(x[w.start + t * a.step], acc);
      dst[o - o0] = acc;
    }
  };
  one_by_one(o0, in.lo);
  if (in.lo < in.hi) {
    const V* src = x + a.origin + in.lo * a.stride;
    V* to = dst + (in.lo - o0);
    const int64_t n = in.hi - in.lo;
    if (a.stride == 1)
      tapped_windows<R, 1>(src, n, to, a);
    else if (a.stride == 2)
      tapped_windows<R, 2>(src, n, to, a);
    else
      tapped_windows<R, 0>(src, n, to, a);
  }
  one_by_one(in.hi, o1);
}

// Lanes: every output position is a vector of its own.
template <class R> void lane_windows(const typename R::V* x, const Axis& a, int64_t o0, int64_t o1,
                                     int64_t lanes, typename R::V* dst) {
  using V = typename R::V;
  for (int64_t o = o0; o < o1; ++o, dst += lanes) {
    const Window w = window(a, o);
    const V* rows[3];
    const int64_t pitch = a.step * lanes;
    const V* src = x + w.start * lanes;
    if (w.taps == 0)
      for (int64_t c = 0; c < lanes; ++c) dst[c] = R::init();
    for (int64_t t = 0; t < w.taps;) {
      const int n = int(least(t ? 2 : 3, w.taps - t));
      for (int k = 0; k < n; ++k) rows[k] = src + (t + k) * pitch;
      fold<R>(rows, n, dst, lanes, t > 0);
      t += n;
    }
  }
}

template <class R, int S> void coded_block(const typename R::V* __restrict x, int64_t n,
                                           typename R::V* __restrict dst, Code* __restrict at,
                                           const Axis& a) {
  const int64_t stride = S ? S : a.stride;
  for (int64_t o = 0; o < n; o += 64) {
    const int64_t block = least(64, n - o);
    const auto* src = x + o * stride;
    for (int64_t j = 0; j < block; ++j) dst[o + j] = src[j * stride];
    for (int64_t j = 0; j < block; ++j) at[o + j] = 0;
    for (int64_t t = 1; t < a.kernel; ++t)
      for (int64_t j = 0; j < block; ++j)
        merge_coded<R>(src[j * stride + t * a.step], Code(t), dst[o + j], at[o + j]);
  }
}

// The best of each window and the number of the tap that holds it, for one row.
template <class R> void row_windows_coded(const typename R::V* x, const Axis& a, int64_t o0, int64_t o1,
                                          typename R::V* dst, Code* at) {
  const Range in = interior(a, o0, o1);
  const auto one_by_one = [&](int64_t from, int64_t to) {
    for (int64_t o = from; o < to; ++o) {
      const Window w = window(a, o);
      auto best = R::init();
      Code code = Code(w.lead);
      for (int64_t t = 0; t < w.taps; ++t)
        merge_coded<R>(x[w.start + t * a.step], Code(w.lead + t), best, code);
      dst[o - o0] = best;
      at[o - o0] = code;
    }
  };
  one_by_one(o0, in.lo);
  if (in.lo < in.hi) {
    const auto* src = x + a.origin + in.lo * a.stride;
    const int64_t n = in.hi - in.lo, to = in.lo - o0;
    if (a.stride == 1)
      coded_block<R, 1>(src, n, dst + to, at + to, a);
    else if (a.stride == 2)
      coded_block<R, 2>(src, n, dst + to, at + to, a);
    else
      coded_block<R, 0>(src, n, dst + to, at + to, a);
  }
  one_by_one(in.hi, o1);
}

template <class R> void lane_windows_coded(const typename R::V* x, const Axis& a, int64_t o0, int64_t o1,
                                           int64_t lanes, typename R::V* dst, Code* at) {
  for (int64_t o = o0; o < o1; ++o, dst += lanes, at += lanes) {
    const Window w = window(a, o);
    const auto* src = x + w.start * lanes;
    for (int64_t c = 0; c < lanes; ++c) dst[c] = w.taps ? src[c] : R::init();
    for (int64_t c = 0; c < lanes; ++c) at[c] = Code(w.lead);
    for (int64_t t = 1; t < w.taps; ++t) {
      const auto* tap = src + t * a.step * lanes;
      for (int64_t c = 0; c < lanes; ++c) merge_coded<R>(tap[c], Code(w.lead + t), dst[c], at[c]);
    }
  }
}

// The second half of a columns-first pick: `x` holds the best of each column and `rows` the code of its row.
// Equal columns are won by the earlier row, NaNs by the later one, so the answer is that of a row-major scan.
template <class R> void across_columns(const typename R::V* x, const Code* rows, Code nowhere, const Axis& a,
                                       int64_t o0, int64_t o1, int64_t lanes, typename R::V* dst, Code* at) {
  using V = typename R::V;
  for (int64_t o = o0; o < o1; ++o, dst += lanes, at += lanes) {
    const Window w = window(a, o);
    const V* src = x + w.start * lanes;
    const Code* row = rows + w.start * lanes;
    for (int64_t c = 0; c < lanes; ++c) dst[c] = w.taps ? src[c] : R::init();
    for (int64_t c = 0; c < lanes; ++c) at[c] = (w.taps ? row[c] : nowhere) + Code(w.lead);
    for (int64_t t = 1; t < w.taps; ++t) {
      const int64_t shift = t * a.step * lanes;
      const Code tap = Code(w.lead + t);
      for (int64_t c = 0; c < lanes; ++c) {
        const V later = src[shift + c], best = dst[c];
        const Code code = row[shift + c] + tap;
        const bool earlier = code < at[c];
        const bool take =
            is_nan(later) ? !is_nan(best) | !earlier : R::better(later, best) | ((later == best) & earlier);
        dst[c] = take ? later : best;
        at[c] = take ? code : at[c];
      }
    }
  }
}

}  // namespace
}  // namespace ndpool

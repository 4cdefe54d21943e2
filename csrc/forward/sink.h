// The sink of the forward engines: sums become averages or norms; offsets within the window, or indices into the plane, are
// stored as the array beside the values has them. Engines compute offsets in their own loops; the width and the form in
// memory are decided here alone.
#pragma once

#include "powers.h"
#include "walk.h"

namespace ndpool {
namespace {

// Stores N offsets from element `at` on: as uint8, as int32, or, after adding `base` (a number or a vector), as int64
// indices.
template <int N, class C, class Base>
inline void write_offsets(Extra extra, char* to, int64_t at, C offset, Base base) {
  if (extra == Extra::offset8)
    write(reinterpret_cast<std::uint8_t*>(to) + at, converted<Vec<std::uint8_t, N>>(offset));
  else if (extra == Extra::offset32)
    write(reinterpret_cast<std::int32_t*>(to) + at, converted<Vec<std::int32_t, N>>(offset));
  else
    write(reinterpret_cast<int64_t*>(to) + at, converted<Vec<int64_t, N>>(offset) + base);
}

// Stores one offset, or the index already computed from it.
inline void write_offset(Extra extra, char* to, int64_t offset) {
  if (extra == Extra::offset8)
    *reinterpret_cast<std::uint8_t*>(to) = std::uint8_t(offset);
  else if (extra == Extra::offset32)
    *reinterpret_cast<std::int32_t*>(to) = std::int32_t(offset);
  else
    *reinterpret_cast<int64_t*>(to) = offset;
}

// Stores a row of offsets; index_of(j) is what turns the offset of element j into an index.
template <class C, class F>
inline void store_offsets(Extra extra, const Row& row, const C* offsets, F&& index_of) {
  if (extra == Extra::offset8)
    each<std::uint8_t>(row, [=](std::uint8_t& to, int64_t j) { to = std::uint8_t(offsets[j]); });
  else if (extra == Extra::offset32)
    each<std::int32_t>(row, [=](std::int32_t& to, int64_t j) { to = std::int32_t(offsets[j]); });
  else
    each<int64_t>(row, [=](int64_t& to, int64_t j) { to = index_of(j); });
}

// Stores offsets as bytes, ints, or indices into the plane. Let q be the quotient of an offset by the number of
// taps of the axes behind an axis. An index is that of the first nominal tap of the window, plus q steps for each
// axis, where a step of an axis takes back all steps of the axis behind it.
class OffsetStore {
public:
  OffsetStore(const Problem& p, Scratch& scratch) : p_(p), columns_(scratch.take<int64_t>(length(p))) {
    int64_t pitch = 1, before = 0;
    std::uint64_t taps = 1;
    for (int a = p.n_axes - 1; a >= 0; --a) {
      const int64_t step = p.axes[a].step * pitch;
      pitch_[a] = pitch;
      taps_[a] = Offset(taps);
      steps_[a] = step - before;
      pitch *= p.axes[a].size;
      taps *= std::uint64_t(p.axes[a].kernel);
      before = step * p.axes[a].kernel;
    }
    // The product with the inverse gives the exact quotient if all offsets are small enough; 0 if they are not.
    for (int a = 0; a < p.n_axes; ++a)
      inverse_[a] = taps * taps_[a] < 1ull << 32 ? (1ull << 32) / taps_[a] + 1 : 0;
  }
  static int64_t bytes(const Problem& p) { return Scratch::bytes<int64_t>(length(p)); }

  void store(const Offset* offsets, const Walk<Over::outputs>& walk, const Row& row) {
    if (p_.extra == Extra::index64) return store_indices(offsets, walk, row);
    store_offsets(p_.extra, row, offsets, [](int64_t) { return int64_t(0); });
  }

private:
  static int64_t length(const Problem& p) { return p.extra == Extra::index64 ? p.tile * p.channels : 0; }

  void store_indices(const Offset* offsets, const Walk<Over::outputs>& walk, const Row& row) {
    const int outer = p_.n_axes - 1;
    const Axis& last = walk.last();
    if (tile_ != walk.tile_begin() || last.table_stride) {
      tile_ = walk.tile_begin();
      if (row.channels == 1 && last.regular())
        in_vectors(row.n, [to = columns_, first = begin_of(last, tile_), step = last.stride](int64_t j) {
          to[j] = first + j * step;
        });
      else
        for (int64_t j = 0, k = 0; j < row.n; ++j)
          for (int64_t c = 0; c < row.channels; ++c) columns_[k++] = begin_of(last, tile_ + j);
    }
    int64_t base = 0;
    bool has_inverses = true;
    for (int a = 0; a < outer; ++a) {
      base += begin_of(walk.axis(a), walk.at(a)) * pitch_[a];
      has_inverses &= inverse_[a] != 0;
    }
    const auto store_with = [&](auto outer_steps) __attribute__((always_inline)) {
      each<int64_t>(row, [=, columns = columns_, step = steps_[outer]](int64_t& to, int64_t j) {
        to = base + columns[j] + offsets[j] * step + outer_steps(offsets[j]);
      });
    };
    const auto quotient_of = [this](int a) {
      return
          [by = inverse_[a], step = steps_[a]](Offset offset) { return int64_t(offset * by >> 32) * step; };
    };
    if (outer == 0) return store_with([](Offset) { return int64_t(0); });
    if (outer == 1 && has_inverses) return store_with(quotient_of(0));
    if (outer == 2 && has_inverses)
      return store_with([first = quotient_of(0), second = quotient_of(1)](Offset offset) {
        return first(offset) + second(offset);
      });
    store_with([this, outer](Offset offset) {
      int64_t sum = 0;
      for (int a = 0; a < outer; ++a) sum += int64_t(offset / taps_[a]) * steps_[a];
      return sum;
    });
  }

  const Problem& p_;
  int64_t* columns_;  // first index of each window of a tile, along the row
  int64_t tile_ = -1, pitch_[max_axes], steps_[max_axes];
  Offset taps_[max_axes];  // taps of the axes behind
  std::uint64_t inverse_[max_axes];
};

// The offset of the tap nearest to the input, along the outer axes: what an empty window stores.
inline Offset lead_offset(const Walk<Over::outputs>& walk, int n_axes) {
  int64_t offset = 0;
  for (int a = 0; a + 1 < n_axes; ++a)
    offset = offset * walk.axis(a).kernel + window(walk.axis(a), walk.at(a)).lead;
  return Offset(offset * walk.last().kernel);
}

// Converts the sums of outputs [o0, o1) along the last axis, in `dst`, to averages or norms; `outer`: the share of the
// other axes in the divisor.
template <class V>
void divide_row(const Problem& p, const Axis& last, int64_t outer, int64_t o0, int64_t o1, V* dst) {
  if (!p.divide) return;
  int64_t taps = 1;
  for (int a = 0; a < p.n_axes; ++a) taps *= p.axes[a].uncropped;
  const auto divide = [&](V* from, int64_t n, int64_t by) {
    if constexpr (is_real<V>) {
      if (p.op == Op::lp) {
        if (by != taps) in_vectors(n, [&](int64_t j) { from[j] = from[j] / V(by) * V(taps); });
        return roots(from, n, p.norm);
      }
    }
    const Quotient<V> quotient(by);
    if (by == -1)  // the one quotient that can overflow
      in_vectors(n, [&](int64_t j) { from[j] = Sum<V>::negated(from[j]); });
    else if (quotient.multiplies)
      in_vectors(n, [&](int64_t j) { from[j] *= quotient.inverse; });
    else
      in_vectors(n, [&](int64_t j) { from[j] = V(from[j] / quotient.by); });
  };
  if (p.divisor) return divide(dst, (o1 - o0) * p.channels, p.divisor);
  const Range in = last.kernel == last.uncropped ? interior(last, o0, o1) : Range{o1, o1};
  for (int64_t o = o0; o < in.lo; ++o)
    divide(dst + (o - o0) * p.channels, p.channels, outer * share(last, o));
  if (in.lo < in.hi)
    divide(dst + (in.lo - o0) * p.channels, (in.hi - in.lo) * p.channels, outer * last.uncropped);
  for (int64_t o = in.hi; o < o1; ++o)
    divide(dst + (o - o0) * p.channels, p.channels, outer * share(last, o));
}

// Whether results are stored without conversion or reordering.
template <class V> bool writes_directly(const Problem& p, const Row& y) {
  return !reordered(p) && stored_as<V>(p.y_type) && y.is_contiguous(sizeof(V));
}

}  // namespace
}  // namespace ndpool

// What a kernel is told: finished windows (Axis), the memory of the arrays (Array) and the shape of the work
// (Problem). Plain data and small decoders, shared by the bindings and by every instruction set's kernels.
// No window rule lives here: geometry.py made the plan, these functions only read it.
#pragma once

#include <cstdint>

namespace ndpool {

using std::int64_t;

constexpr int max_axes = 6;
constexpr int max_lead = 58;

enum class Dtype : int { b8, i8, u8, i16, u16, i32, u32, i64, u64, f16, bf16, f32, f64 };
static constexpr int64_t size_of(Dtype type) {
  constexpr int64_t sizes[] = {1, 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8};
  return sizes[int(type)];
}
enum class Op : int { max, min, sum, lp };
// What is stored beside the values: nothing, offsets inside the window, or positions in the plane.
enum class Extra : int { none, offset8, offset32, index64 };

struct Window {
  int64_t start, taps, lead;  // first index inside the input, taps inside, number of the first of them
};

struct Axis {
  int64_t size, out, kernel, stride, step, origin;
  int64_t lo, hi;  // taps at positions in [lo, hi) count towards the divisor
  int64_t uncropped,
      cropped;  // taps before any that never meets the input was cut off, and those cut in front
  const int64_t *starts = nullptr, *counts = nullptr;  // irregular axis
  int64_t table_stride = 0;  // distance between the tables of two planes (0: one table for all)

  bool regular() const { return starts == nullptr; }
};

static inline int64_t floor_div(int64_t a, int64_t b) { return a >= 0 ? a / b : -((b - 1 - a) / b); }
static inline int64_t ceil_div(int64_t a, int64_t b) { return a > 0 ? (a + b - 1) / b : -(-a / b); }
static constexpr int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static constexpr int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

// One window of one tap for each of `size` elements: what stands in for an axis that is not there.
static inline Axis single_axis(int64_t size) {
  Axis a{};
  a.size = a.out = a.hi = size;
  a.kernel = a.stride = a.step = a.uncropped = 1;
  return a;
}

// Where window o begins; it may be in the padding.
static inline int64_t begin_of(const Axis& a, int64_t o) {
  return a.regular() ? a.origin + o * a.stride : a.starts[o];
}

// The taps of a window that begins at `first` that stand in [lo, hi).
static inline Window taps_within(int64_t first, int64_t kernel, int64_t step, int64_t lo, int64_t hi) {
  if (step == 1) {  // the common case, without divisions
    const int64_t start = most(first, lo);
    return {start, most(0, least(first + kernel, hi) - start), least(start - first, kernel - 1)};
  }
  const int64_t lead = most(0, ceil_div(lo - first, step));
  const int64_t start = first + lead * step;
  const int64_t taps = start >= hi ? 0 : least(kernel - lead, ceil_div(hi - start, step));
  return {start, most(0, taps), least(lead, kernel - 1)};
}

static inline Window taps_within(const Axis& a, int64_t o, int64_t lo, int64_t hi) {
  return taps_within(a.origin + o * a.stride, a.kernel, a.step, lo, hi);
}

static inline Window window(const Axis& a, int64_t o) {
  if (!a.regular()) return {a.starts[o], a.counts[o], 0};
  return taps_within(a, o, 0, a.size);
}

// The taps of a window that stand in [lo, hi), a part of the input.
static inline Window window(const Axis& a, int64_t o, int64_t lo, int64_t hi) {
  if (a.regular()) return taps_within(a, o, lo, hi);
  const int64_t lead = most(0, lo - a.starts[o]);
  return {a.starts[o] + lead, most(0, least(a.counts[o], hi - a.starts[o]) - lead), lead};
}

// What a window contributes to its divisor: taps that were cut off because they never meet the input count, too.
static inline int64_t share(const Axis& a, int64_t o) {
  if (!a.regular()) return a.counts[o];
  return taps_within(a.origin - a.cropped * a.step + o * a.stride, a.uncropped, a.step, a.lo, a.hi).taps;
}

// The outputs [lo, hi) within [o0, o1) whose windows lie wholly inside the input: the regular interior.
struct Range {
  int64_t lo, hi;
};

static inline Range interior(const Axis& a, int64_t o0, int64_t o1) {
  if (!a.regular()) return {o1, o1};
  const int64_t span = (a.kernel - 1) * a.step + 1;
  const int64_t lo = most(o0, ceil_div(-a.origin, a.stride));
  const int64_t hi = least(o1, floor_div(a.size - span - a.origin, a.stride) + 1);
  return lo < hi ? Range{lo, hi} : Range{o1, o1};
}

// From a window's first nominal tap to its last, both included.
static inline int64_t span_of(const Axis& a) { return (a.kernel - 1) * a.step + 1; }

// Of a regular axis, the inputs under the windows of n outputs from o on, and the outputs that reach over n inputs from i on;
// either may lie outside the axis.
static inline Range inputs_under(const Axis& a, int64_t o, int64_t n) {
  const int64_t first = a.origin + o * a.stride;
  return {first, first + (n - 1) * a.stride + span_of(a)};
}
static inline Range outputs_over(const Axis& a, int64_t i, int64_t n) {
  return {ceil_div(i - a.origin - span_of(a) + 1, a.stride), floor_div(i + n - 1 - a.origin, a.stride) + 1};
}

// Whether a window has no tap inside the input.
static inline bool is_empty(const Axis& a, int64_t o) {
  if (!a.regular()) return a.counts[o] == 0;
  if (a.step > 1) return window(a, o).taps == 0;
  return begin_of(a, o) >= a.size || begin_of(a, o) + a.kernel <= 0;
}

// The outputs of a regular axis whose tap t stands in [lo, hi).
static inline Range outputs_with_tap(const Axis& a, int64_t t, int64_t lo, int64_t hi) {
  const int64_t shift = a.origin + t * a.step;
  return {most(0, ceil_div(lo - shift, a.stride)), least(a.out, ceil_div(hi - shift, a.stride))};
}

struct Array {
  char* data = nullptr;
  int64_t lead[max_lead] = {}, pooled[max_axes] = {}, lane = 1;  // strides in bytes
};

struct Problem {
  Op op = Op::max;
  Extra extra = Extra::none;
  Dtype x_type{}, y_type{};
  int n_axes = 0, n_lead = 0;
  Axis axes[max_axes];
  int64_t lead_shape[max_lead] = {};
  int64_t planes = 1;
  int64_t lanes = 1;  // extent of a leading axis whose elements are neighbours; rows carry it inside
  int64_t tile = 0;   // outputs (backward: inputs) of the last axis worked on at a time
  int64_t tiles = 1;
  int64_t rows = 1;                // of the outer axes: outputs (backward: inputs)
  int64_t units = 0;               // pieces of work; an engine says what one is
  int threads = 1;                 // that may share them
  int64_t divisor = 0;             // > 0 or < 0: divide by this; 0: divide by the windows' shares
  bool divide = false;             // sum: false, avg: true
  double norm = 0;                 // Lp
  int64_t scratch = 0;             // bytes of scratch a worker needs
  bool (*stops)(void*) = nullptr;  // whether a long call is to end before it is done, asked with `watch`
  void* watch = nullptr;
  Array x, y, extra_array, aux;  // in this order: arrays() is all of them

  // Called by engines whose units may take seconds, between the rows of one.
  bool stopped() const { return stops && stops(watch); }

  static constexpr int n_arrays = 4;
  const Array* arrays() const { return &x; }
};

// The share of all windows of an axis, or 0 where they differ.
static inline int64_t common_share(const Axis& a) {
  if (a.table_stride || a.out == 0) return 0;
  const int64_t n = share(a, 0);
  if (a.regular()) return n == a.uncropped && share(a, a.out - 1) == n ? n : 0;
  for (int64_t o = 1; o < a.out; ++o)
    if (a.counts[o] != n) return 0;
  return n;
}

// What all windows are divided by, or 0 where they differ.
static inline int64_t common_divisor(const Problem& p) {
  if (p.divisor) return p.divisor;
  int64_t by = 1;
  for (int a = 0; a < p.n_axes; ++a) by *= common_share(p.axes[a]);
  return by;
}

// The elements of a window, at most.
static inline int64_t taps_of(const Problem& p) {
  int64_t n = 1;
  for (int a = 0; a < p.n_axes; ++a) n *= p.axes[a].kernel;
  return n;
}

}  // namespace ndpool

// The input of a kernel: the windows along each axis (Axis), the memory of the arrays (Array) and the work to do
// (Problem). Plain data and small accessors, shared by the bindings and the kernels of every instruction set.
// The window rules stay in geometry.py, which makes the plan; this file only reads it.
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
static constexpr bool is_integer(Dtype type) { return type < Dtype::f16; }
static constexpr bool is_half_type(Dtype type) { return type == Dtype::f16 || type == Dtype::bf16; }
enum class Op : int { max, min, sum, lp };
// Stored beside the values: nothing, offsets in the window (uint8 or int32), or int64 indices into the plane.
enum class Extra : int { none, offset8, offset32, index64 };
static constexpr Dtype type_of(Extra extra) {
  return extra == Extra::offset8 ? Dtype::u8 : extra == Extra::offset32 ? Dtype::i32 : Dtype::i64;
}
static constexpr int64_t size_of(Extra extra) { return size_of(type_of(extra)); }

// The part of a window inside the input: index of the first tap, number of taps, and taps of the window before it.
struct Window {
  int64_t start, taps, lead;
};

// `step` is the dilation; `origin` is the index of the first tap of window 0, negative where it lies in the padding.
struct Axis {
  int64_t size, out, kernel, stride, step, origin;
  int64_t lo, hi;  // taps at indices in [lo, hi) count towards the divisor
  // The plan crops taps that never reach the input: the kernel before cropping, and the taps cropped at its front.
  int64_t uncropped, cropped;
  const int64_t *starts = nullptr, *counts = nullptr;  // tables of an irregular axis
  int64_t table_stride = 0;  // distance between the tables of two planes; 0: one table for all

  bool regular() const { return starts == nullptr; }
};

static inline int64_t floor_div(int64_t a, int64_t b) { return a >= 0 ? a / b : -((b - 1 - a) / b); }
static inline int64_t ceil_div(int64_t a, int64_t b) { return a > 0 ? (a + b - 1) / b : -(-a / b); }
static constexpr int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }
static constexpr int64_t max(int64_t a, int64_t b) { return a > b ? a : b; }

// Whether the indices of an axis are so small that no product of one with the size of an element or the length of another
// axis overflows before memory runs out. What only counts for divisors may be larger: windows of 2**31 taps that are 2**31
// elements apart are legal, if only few taps meet the input.
static inline bool in_range(const Axis& a) {
  constexpr int64_t limit = int64_t(1) << 44, padded = (int64_t(1) << 61) + limit;
  const auto fits = [](int64_t n, int64_t times, int64_t most) {
    int64_t product;
    return !__builtin_mul_overflow(n, times, &product) && product <= most;
  };
  const auto near = [](int64_t i, int64_t most) { return i >= -most && i <= most; };
  return fits(max(0, a.out - 1), a.stride, limit) && fits(a.kernel, a.step, limit) && near(a.size, limit) &&
         near(a.origin, limit) && fits(a.uncropped, a.step, 2 * padded) && fits(a.cropped, a.step, padded) &&
         near(a.lo, padded) && near(a.hi, padded);
}

// Stand-in for a missing axis: `size` windows of one tap each.
static inline Axis single_axis(int64_t size) {
  Axis a{};
  a.size = a.out = a.hi = size;
  a.kernel = a.stride = a.step = a.uncropped = 1;
  return a;
}

// The start of window o, which may lie in the padding.
static inline int64_t begin_of(const Axis& a, int64_t o) {
  return a.regular() ? a.origin + o * a.stride : a.starts[o];
}

// The taps in [lo, hi) of the window that starts at `first`.
static inline Window taps_within(int64_t first, int64_t kernel, int64_t step, int64_t lo, int64_t hi) {
  if (step == 1) {  // the common case, without divisions
    const int64_t start = max(first, lo);
    return {start, max(0, min(first + kernel, hi) - start), min(start - first, kernel - 1)};
  }
  const int64_t lead = max(0, ceil_div(lo - first, step));
  const int64_t start = first + lead * step;
  const int64_t taps = start >= hi ? 0 : min(kernel - lead, ceil_div(hi - start, step));
  return {start, max(0, taps), min(lead, kernel - 1)};
}

static inline Window taps_within(const Axis& a, int64_t o, int64_t lo, int64_t hi) {
  return taps_within(a.origin + o * a.stride, a.kernel, a.step, lo, hi);
}

static inline Window window(const Axis& a, int64_t o) {
  if (!a.regular()) return {a.starts[o], a.counts[o], 0};
  return taps_within(a, o, 0, a.size);
}

// The taps of window o in [lo, hi), a part of the input.
static inline Window window(const Axis& a, int64_t o, int64_t lo, int64_t hi) {
  if (a.regular()) return taps_within(a, o, lo, hi);
  const int64_t lead = max(0, lo - a.starts[o]);
  return {a.starts[o] + lead, max(0, min(a.counts[o], hi - a.starts[o]) - lead), lead};
}

// The taps of window o that count towards its divisor, cropped taps included.
static inline int64_t share(const Axis& a, int64_t o) {
  if (!a.regular()) return a.counts[o];
  return taps_within(a.origin - a.cropped * a.step + o * a.stride, a.uncropped, a.step, a.lo, a.hi).taps;
}

struct Range {
  int64_t lo, hi;
};

// The interior: the outputs in [o0, o1) of a regular axis whose windows lie entirely inside the input.
static inline Range interior(const Axis& a, int64_t o0, int64_t o1) {
  if (!a.regular()) return {o1, o1};
  const int64_t span = (a.kernel - 1) * a.step + 1;
  const int64_t lo = max(o0, ceil_div(-a.origin, a.stride));
  const int64_t hi = min(o1, floor_div(a.size - span - a.origin, a.stride) + 1);
  return lo < hi ? Range{lo, hi} : Range{o1, o1};
}

// Distance from the first nominal tap of a window to the end of its last.
static inline int64_t span_of(const Axis& a) { return (a.kernel - 1) * a.step + 1; }

// For a regular axis: the inputs covered by the windows of outputs [o, o + n), and the outputs whose windows cover
// any of the inputs [i, i + n). Both ranges may extend beyond the axis.
static inline Range inputs_under(const Axis& a, int64_t o, int64_t n) {
  const int64_t first = a.origin + o * a.stride;
  return {first, first + (n - 1) * a.stride + span_of(a)};
}
static inline Range outputs_over(const Axis& a, int64_t i, int64_t n) {
  return {ceil_div(i - a.origin - span_of(a) + 1, a.stride), floor_div(i + n - 1 - a.origin, a.stride) + 1};
}

// A part of a regular axis: some inputs, and some outputs.
struct Part {
  Range inputs, outputs;
};

// The outputs, with the inputs that their windows span, or the inputs, with the outputs whose windows span them: at least one of
// each, so that windows in the padding have a part, too.
static inline Range overlapping(Range r, int64_t size) {
  const int64_t lo = min(max(0, r.lo), size - 1);
  return {lo, max(lo + 1, min(size, r.hi))};
}
static inline Part part_of_outputs(const Axis& a, Range outputs) {
  return {overlapping(inputs_under(a, outputs.lo, outputs.hi - outputs.lo), a.size), outputs};
}
static inline Part part_of_inputs(const Axis& a, Range inputs) {
  return {inputs, overlapping(outputs_over(a, inputs.lo, inputs.hi - inputs.lo), a.out)};
}

// The axis of a part.
static inline Axis cropped(const Axis& a, const Part& part) {
  Axis crop = a;
  crop.size = part.inputs.hi - part.inputs.lo;
  crop.out = part.outputs.hi - part.outputs.lo;
  crop.origin += part.outputs.lo * a.stride - part.inputs.lo;
  crop.lo -= part.inputs.lo;
  crop.hi -= part.inputs.lo;
  return crop;
}

// Whether an input index lies inside.
static inline bool within(int64_t i, const Axis& a) { return std::uint64_t(i) < std::uint64_t(a.size); }

// Whether a window has no tap inside the input.
static inline bool is_empty(const Axis& a, int64_t o) {
  if (!a.regular()) return a.counts[o] == 0;
  if (a.step > 1) return window(a, o).taps == 0;
  return begin_of(a, o) >= a.size || begin_of(a, o) + a.kernel <= 0;
}

// An array: its first element, and the strides in bytes of its leading axes, pooled axes and channels.
struct Array {
  char* data = nullptr;
  int64_t lead[max_lead] = {}, pooled[max_axes] = {}, channel = 1;
};

struct Problem {
  Op op = Op::max;
  Extra extra = Extra::none;
  Dtype x_type{}, y_type{};
  int n_axes = 0, n_lead = 0;
  Axis axes[max_axes];
  int64_t lead_shape[max_lead] = {};
  int64_t planes = 1;
  int64_t channels = 1;  // extent of the leading axis that is innermost in memory (channels-last); 1: none
  int64_t tile = 0;      // outputs (backward: inputs) of the last axis processed at a time
  int64_t tiles = 1;
  int64_t rows = 1;                // product of the outer axes: outputs (backward: inputs)
  int64_t units = 0;               // pieces of work; each engine defines its unit
  int threads = 1;                 // threads that may share the units
  int64_t divisor = 0;             // 0: divide by the share of each window; otherwise by this
  bool divide = false;             // sum: false, avg: true
  double norm = 0;                 // Lp
  int64_t scratch = 0;             // bytes of scratch per worker
  bool (*stops)(void*) = nullptr;  // called with `watch`: whether to abandon a long call
  void* watch = nullptr;
  // Forward: the input, the results, what `extra` says. Backward: the gradient of the results, that of the input, the
  // offsets; of norms, extra_array is the input and aux the results. In this order: arrays() points to the first of them.
  Array x, y, extra_array, aux;

  // For engines whose units may take seconds, which call it between the rows of a unit.
  bool stopped() const { return stops && stops(watch); }

  static constexpr int n_arrays = 4;
  const Array* arrays() const { return &x; }
};

// The share of every window of an axis, or 0 if the windows differ.
static inline int64_t common_share(const Axis& a) {
  if (a.table_stride || a.out == 0) return 0;
  const int64_t n = share(a, 0);
  if (a.regular()) return n == a.uncropped && share(a, a.out - 1) == n ? n : 0;
  for (int64_t o = 1; o < a.out; ++o)
    if (a.counts[o] != n) return 0;
  return n;
}

// The divisor of every window, or 0 if the windows differ.
static inline int64_t common_divisor(const Problem& p) {
  if (p.divisor) return p.divisor;
  int64_t product = 1;
  for (int a = 0; a < p.n_axes; ++a) product *= common_share(p.axes[a]);
  return product;
}

// The taps of a whole window.
static inline int64_t taps_of(const Problem& p) {
  int64_t n = 1;
  for (int a = 0; a < p.n_axes; ++a) n *= p.axes[a].kernel;
  return n;
}

// An upper bound on the absolute sum of the integers in a window.
static inline double largest_sum(const Problem& p) {
  constexpr double max_of[] = {1, 0x1p7, 0x1p8, 0x1p15, 0x1p16, 0x1p31, 0x1p32, 0x1p63, 0x1p64};
  double sum = max_of[int(p.x_type)];
  for (int a = 0; a < p.n_axes; ++a) sum *= double(p.axes[a].uncropped);
  return sum;
}

// Whether the order of additions does not matter: integers, whose sums wrap or are held exactly.
static inline bool exact_sums(const Problem& p) {
  return is_integer(p.x_type) && (is_integer(p.y_type) || largest_sum(p) <= 0x1p53);
}

}  // namespace ndpool

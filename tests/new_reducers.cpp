// Reductions that the package does not have yet, out of the core's own parts and its general engine: a maximum and a mean
// that leave out NaN and masked elements, and a median. tests/test_new_reducers.py compiles and calls this.
#include <algorithm>
#include <string_view>
#include <vector>

#include "forward/general.h"

using namespace ndpool;

namespace {

// A source that leaves out NaN and what the mask (the problem's fourth array, bytes) does not name: such elements become
// `Reducer::init()`. To count instead of adding up, all others become 1.
template <class R, bool counts = false> class Masked {
  using V = typename R::V;

public:
  Masked(const Problem& p, bool widening) : p_(p), input_(p, widening) {}

  const V* row(const Walk<Over::outputs>& walk, const int64_t* outer, const Span& in, V* buffer) const {
    const V* x = input_.row(walk, outer, in, buffer);
    each<std::uint8_t>(walk.row(p_.aux, outer, in.from, in.to), [=](std::uint8_t there, int64_t j) {
      buffer[j] = !there || is_nan(x[j]) ? R::init() : counts ? V(1) : x[j];
    });
    return buffer;
  }

private:
  const Problem& p_;
  Input<V> input_;
};

// A reducer that collects its window. What the source leaves out is NaN, and sorts behind the rest.
template <class T> struct Median : Sum<T> {
  static T init() { return std::numeric_limits<T>::quiet_NaN(); }
  static T of(T* x, int64_t n) {
    T* const end = std::partition(x, x + n, [](T v) { return v == v; });
    if (end == x) return init();
    T* const middle = x + (end - x) / 2;
    std::nth_element(x, middle, end);
    return (end - x) % 2 ? *middle : (*middle + *std::max_element(x, middle)) / 2;
  }
};

template <class Engine> void run(Problem p) {
  Engine::prepare(p);
  std::vector<char> scratch(std::size_t(p.scratch) + 64);
  char* const aligned = scratch.data() + (64 - reinterpret_cast<std::uintptr_t>(scratch.data()) % 64) % 64;
  Engine::run(p, 0, p.units, aligned);
}

}  // namespace

// Arrays of (planes, height, width, channels); out and count of (planes, rows, columns, channels).
extern "C" void pool(const char* reduction, const double* x, const std::uint8_t* mask, double* out,
                     double* count, const std::int64_t* shape, const std::int64_t* window) {
  const std::int64_t planes = shape[0], channels = shape[3];
  Problem p;
  p.x_type = p.y_type = Dtype::f64;
  p.n_axes = 2;
  p.n_lead = 1;
  p.lead_shape[0] = p.planes = planes;
  p.channels = channels;
  for (int a = 0; a < 2; ++a) {
    Axis& axis = p.axes[a] = single_axis(shape[a + 1]);
    axis.kernel = axis.uncropped = window[0];
    axis.stride = window[1];
    axis.origin = -window[2];
    axis.step = window[3];
    axis.out = (axis.size + 2 * window[2] - (window[0] - 1) * window[3] - 1) / window[1] + 1;
  }
  p.rows = p.axes[0].out;
  const auto packed = [&](const void* data, std::int64_t item, Over over) {
    Array array;
    array.data = static_cast<char*>(const_cast<void*>(data));
    array.channel = item;
    array.pooled[1] = item * channels;
    array.pooled[0] = array.pooled[1] * extent(p.axes[1], over);
    array.lead[0] = array.pooled[0] * extent(p.axes[0], over);
    return array;
  };
  p.x = packed(x, sizeof(double), Over::inputs);
  p.y = packed(out, sizeof(double), Over::outputs);
  p.aux = packed(mask, 1, Over::inputs);
  if (reduction == std::string_view("max")) {
    run<Rows<Max<double>, false, Masked<Max<double>>>>(p);
  } else if (reduction == std::string_view("sum")) {
    p.op = Op::sum;
    run<Rows<Sum<double>, false, Masked<Sum<double>>>>(p);
    p.y.data = reinterpret_cast<char*>(count);
    run<Rows<Sum<double>, false, Masked<Sum<double>, true>>>(p);
  } else {
    p.op = Op::sum;
    run<Rows<Median<double>, false, Masked<Median<double>>>>(p);
  }
}

// Python's door to the core: buffers in, a Problem out, the GIL released around the work. No Python object goes
// below this file. Arguments were checked by geometry.py; what is checked again here is only what memory safety
// needs, and a failure there is a fault of the package, not of its caller.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <stdexcept>

#include <unistd.h>
#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "kernels.h"
#include "python/call_cache.h"
#include "python/jax_ffi.h"
#include "runtime/cost.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace ndpool;

namespace {

constexpr double held_bytes = 1 << 14;     // below this the work is done before another thread has the GIL
constexpr int64_t huge_bytes = 1 << 25;    // from here on memory is asked for in large pages
constexpr int64_t kept_scratch = 1 << 24;  // bytes of scratch that a thread keeps between calls, at most
constexpr double long_visits = 1 << 26;    // elements visited by a call that may be interrupted, at least
constexpr double first_bytes = 1 << 26;    // cost of the first piece of such a call, at most

[[noreturn]] void fault(const char* what) { throw std::runtime_error(std::string("ndpool core: ") + what); }

// The memory of an array: from an object with a buffer, or from a tuple (address, shape, strides in elements) where
// the caller answers for it, as for PyTorch's tensors.
class Buffer {
public:
  Buffer(nb::handle object, Dtype type, bool writable) : item_(size_of(type)) {
    if (PyTuple_Check(object.ptr()))
      from_tuple(nb::borrow<nb::tuple>(object));
    else
      from_buffer(object, writable);
    aligned_ = reinterpret_cast<std::uintptr_t>(data_) % item_ == 0;
    for (int a = 0; a < ndim_; ++a) aligned_ &= shape_[a] < 2 || stride_[a] % item_ == 0;
  }
  Buffer(const Buffer&) = delete;
  ~Buffer() {
    if (held_) PyBuffer_Release(&view_);
  }

  int ndim() const { return ndim_; }
  int64_t shape(int a) const { return shape_[a]; }
  int64_t stride(int a) const { return stride_[a]; }
  int64_t item() const { return item_; }
  char* data() const { return data_; }
  bool aligned() const { return aligned_; }

private:
  static constexpr int max_ndim = max_lead + max_axes;

  void from_buffer(nb::handle object, bool writable) {
    if (PyObject_GetBuffer(object.ptr(), &view_, (writable ? PyBUF_WRITABLE : 0) | PyBUF_STRIDES))
      throw nb::python_error();
    held_ = true;
    ndim_ = view_.ndim;
    if (view_.itemsize != item_ || ndim_ > max_ndim) {
      PyBuffer_Release(&view_);
      fault("a buffer does not have the layout it was announced with");
    }
    for (int a = 0; a < ndim_; ++a) shape_[a] = view_.shape[a], stride_[a] = view_.strides[a];
    data_ = static_cast<char*>(view_.buf);
  }

  void from_tuple(const nb::tuple& parts) {
    if (parts.size() != 3 || !PyTuple_Check(parts[1].ptr()) || !PyTuple_Check(parts[2].ptr()))
      fault("not an array");
    data_ = reinterpret_cast<char*>(nb::cast<std::uintptr_t>(parts[0]));
    ndim_ = int(PyTuple_GET_SIZE(parts[1].ptr()));
    if (ndim_ > max_ndim || PyTuple_GET_SIZE(parts[2].ptr()) != ndim_) fault("too many axes");
    for (int a = 0; a < ndim_; ++a) {
      shape_[a] = PyLong_AsLongLong(PyTuple_GET_ITEM(parts[1].ptr(), a));
      stride_[a] = PyLong_AsLongLong(PyTuple_GET_ITEM(parts[2].ptr(), a)) * item_;
    }
    if (PyErr_Occurred()) throw nb::python_error();
  }

  Py_buffer view_;
  bool held_ = false, aligned_;
  int ndim_;
  int64_t item_, shape_[max_ndim], stride_[max_ndim];
  char* data_;
};

using AxisArgs = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t,
                            nb::object, nb::object, int64_t, int64_t>;

class Plan {
public:
  explicit Plan(const std::vector<AxisArgs>& axes) {
    if (axes.empty() || axes.size() > max_axes) fault("a plan has 1 to 6 axes");
    for (const AxisArgs& args : axes) {
      Axis a{};
      nb::object starts, counts;
      std::tie(a.size, a.out, a.kernel, a.stride, a.step, a.origin, a.lo, a.hi, starts, counts, a.uncropped,
               a.cropped) = args;
      if (a.size < 1 || a.kernel < 1 || a.stride < 1 || a.step < 1 || a.out < 0) fault("bad axis");
      if (!starts.is_none()) {
        a.starts = table(starts);
        a.counts = table(counts);
        const int64_t n = int64_t(tables_.back().size()), planes = a.out ? n / a.out : 1;
        if (n != planes * a.out || n != int64_t(tables_[tables_.size() - 2].size())) fault("bad table");
        for (int64_t o = 0; o < n; ++o)
          if (a.starts[o] < 0 || a.counts[o] < 0 || a.counts[o] > a.kernel ||
              a.starts[o] + a.counts[o] > a.size)
            fault("a window leaves the input");
        a.table_stride = planes > 1 ? a.out : 0;
        planes_ = std::max(planes_, planes);
      }
      axes_.push_back(a);
    }
  }

  const std::vector<Axis>& axes() const { return axes_; }
  int64_t planes() const { return planes_; }
  int64_t taps() const {
    int64_t n = 1;
    for (const Axis& a : axes_)
      if (__builtin_mul_overflow(n, a.kernel, &n)) return INT64_MAX;
    return n;
  }

  // Elements of a whole window, padding and all; -1 when they cannot be counted.
  int64_t window() const {
    int64_t n = 1;
    for (const Axis& a : axes_)
      if (__builtin_mul_overflow(n, a.uncropped, &n)) return -1;
    return n;
  }

private:
  const int64_t* table(const nb::object& source) {
    const Buffer b(source, Dtype::i64, false);
    int64_t n = 1, packed = 8;
    for (int a = b.ndim() - 1; a >= 0; --a) {
      if (b.shape(a) != 1 && b.stride(a) != packed) fault("a table is not packed");
      packed *= b.shape(a);
      n *= b.shape(a);
    }
    const int64_t* data = reinterpret_cast<const int64_t*>(b.data());
    tables_.emplace_back(data, data + n);
    return tables_.back().data();
  }

  std::vector<Axis> axes_;
  std::deque<std::vector<int64_t>> tables_;
  int64_t planes_ = 1;
};

std::atomic<const Kernels*> kernels{nullptr};

std::vector<std::string> isa_names() {
  int n;
  const Kernels* const* sets = available_kernels(n);
  std::vector<std::string> names;
  for (int i = 0; i < n; ++i) names.emplace_back(sets[i]->name);
  return names;
}

bool set_isa(const std::string& name) {
  int n;
  const Kernels* const* sets = available_kernels(n);
  for (int i = 0; i < n; ++i)
    if (name == sets[i]->name) {
      kernels.store(sets[i]);
      return true;
    }
  return false;
}

// The kernel of the chosen set, or of the next one that has it.
Kernel kernel_for(const Problem& p, Kernel (*Kernels::*direction)(const Problem&)) {
  int n;
  const Kernels* const* sets = available_kernels(n);
  const Kernels* chosen = kernels.load();
  Kernel found;
  for (int i = int(std::find(sets, sets + n, chosen) - sets); i < n && !found.run; ++i) {
    found = (sets[i]->*direction)(p);
    found.isa = sets[i]->name;
  }
  if (!found.run) fault("no kernel for this problem");
  return found;
}

// What the calls of this thread did while they were recorded, for `ndpool.explain`.
struct Step {
  const char *direction, *engine, *isa;
  int threads;
};
thread_local std::vector<Step> steps;
thread_local bool recording = false;

void set_recording(bool on) {
  recording = on;
  steps.clear();
}

std::vector<std::tuple<std::string, std::string, std::string, int>> recorded() {
  std::vector<std::tuple<std::string, std::string, std::string, int>> result;
  for (const Step& s : steps) result.emplace_back(s.direction, s.engine, s.isa, s.threads);
  return result;
}

// Scratch of the calling thread, kept between calls while it is small.
char* own_scratch(int64_t bytes) {
  struct Kept {
    std::unique_ptr<char[]> memory;
    int64_t bytes = 0;
  };
  thread_local Kept kept;
  if (bytes > kept.bytes) {
    kept.bytes = 0;
    kept.memory.reset(new char[size_t(bytes) + 64]);
    kept.bytes = bytes;
  }
  const auto at = reinterpret_cast<std::uintptr_t>(kept.memory.get());
  return reinterpret_cast<char*>((at + 63) / 64 * 64);
}

// The arrays of a problem share their leading axes; `small` marks those with the plan's outputs, others its inputs.
struct Member {
  Array* array;
  const Buffer* buffer;
  bool outputs;
};

constexpr int64_t many_lanes = 8192;  // no more are joined

// Joins leading axes to the lanes that they continue in memory, or as many of their elements as divide them.
void join_lanes(Problem& p, std::initializer_list<Member> members) {
  for (int a = p.n_lead - 1; a >= 0 && p.lanes > 1; --a) {
    bool follows = true;
    for (const Member& m : members) follows &= m.array->lead[a] == m.array->lane * p.lanes;
    if (!follows) continue;
    int64_t joined = std::min(p.lead_shape[a], many_lanes / p.lanes);
    while (joined > 1 && p.lead_shape[a] % joined) --joined;
    if (joined < 2) return;
    p.lanes *= joined;
    p.planes /= joined;
    p.lead_shape[a] /= joined;
    for (const Member& m : members) m.array->lead[a] *= joined;
    if (p.lead_shape[a] > 1) return;
    for (int b = a; b + 1 < p.n_lead; ++b) {
      p.lead_shape[b] = p.lead_shape[b + 1];
      for (const Member& m : members) m.array->lead[b] = m.array->lead[b + 1];
    }
    --p.n_lead;
  }
}

void lay_out(Problem& p, const Plan& plan, const std::vector<int>& pooled,
             std::initializer_list<Member> members, const Array& lane_of, int64_t lane_item,
             int64_t least_lanes) {
  const Buffer& first = *members.begin()->buffer;
  const int ndim = first.ndim();
  p.n_axes = int(plan.axes().size());
  if (int(pooled.size()) != p.n_axes || ndim < p.n_axes) fault("wrong number of axes");
  bool is_pooled[max_lead + max_axes] = {};
  for (int a = 0; a < p.n_axes; ++a) {
    if (pooled[a] < 0 || pooled[a] >= ndim) fault("axis out of range");
    is_pooled[pooled[a]] = true;
    p.axes[a] = plan.axes()[a];
    for (const Member& m : members) {
      if (m.buffer->ndim() != ndim ||
          m.buffer->shape(pooled[a]) != (m.outputs ? p.axes[a].out : p.axes[a].size))
        fault("an array does not fit the plan");
      m.array->pooled[a] = m.buffer->stride(pooled[a]);
    }
  }
  for (const Member& m : members) m.array->data = m.buffer->data();
  const bool rows_packed = lane_of.pooled[p.n_axes - 1] == lane_item;
  bool has_lane = false;
  for (int a = 0; a < ndim; ++a) {
    if (is_pooled[a]) continue;
    const int64_t extent = first.shape(a);
    for (const Member& m : members)
      if (m.buffer->shape(a) != extent) fault("leading axes differ");
    if (extent == 1) continue;
    int64_t strides[8];
    int k = 0;
    bool is_lane = false;
    for (const Member& m : members) {
      strides[k++] = m.buffer->stride(a);
      is_lane |= m.array == &lane_of && m.buffer->stride(a) == lane_item;
    }
    if (is_lane && !rows_packed && !has_lane && extent >= least_lanes && plan.planes() == 1) {
      has_lane = true;
      p.lanes = extent;
      k = 0;
      for (const Member& m : members) m.array->lane = strides[k++];
      continue;
    }
    p.planes *= extent;
    bool joins = p.n_lead > 0;
    k = 0;
    for (const Member& m : members) joins = joins && m.array->lead[p.n_lead - 1] == extent * strides[k++];
    const int at = joins ? p.n_lead - 1 : p.n_lead++;
    p.lead_shape[at] = joins ? p.lead_shape[at] * extent : extent;
    k = 0;
    for (const Member& m : members) m.array->lead[at] = strides[k++];
  }
  if (plan.planes() > 1 && plan.planes() != p.planes) fault("one table per plane is needed");
  join_lanes(p, members);
  // The stride of an axis with one element is arbitrary: it becomes what it is in memory without gaps, so that engines
  // may look at it.
  for (const Member& m : members) {
    int64_t pitch = p.lanes > 1 ? m.array->lane * p.lanes : m.buffer->item();
    for (int a = p.n_axes - 1; a >= 0; --a) {
      const int64_t extent = m.outputs ? p.axes[a].out : p.axes[a].size;
      if (extent == 1) m.array->pooled[a] = pitch;
      pitch = m.array->pooled[a] * extent;
    }
  }
}

// The GIL, released until the end of the scope.
class Released {
public:
  Released() : state_(PyEval_SaveThread()) {}
  Released(const Released&) = delete;
  ~Released() { take(); }

  // Runs the handlers of signals that have come; whether one of them raised. The error stays set in this thread.
  bool interrupted() {
    take();
    const bool raised = PyErr_CheckSignals() != 0;
    state_ = PyEval_SaveThread();
    return raised;
  }

private:
  // While the interpreter ends, taking the GIL ends a thread (before Python 3.14), and the stack is unwound through
  // functions that allow no exception, which would abort the process: the thread waits for its end instead.
  void take() {
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {
      for (;;) pause();
    }
  }

  PyThreadState* state_;
};

// Python runs signal handlers in the main thread only.
bool hears_signals() {
#if defined(__linux__)
  return getpid() == gettid();
#else
  return true;
#endif
}

void execute(Problem& p, const Kernel& kernel, const Cost& cost) {
  std::optional<Released> released;
  if (cost.bytes >= held_bytes) released.emplace();
  kernel.prepare(p);
  const int64_t scratch = (p.scratch + 127) / 64 * 64;
  const int workers = cost.workers(p.units);
  if (recording && !steps.empty()) steps.back().threads = workers;
  std::optional<Watch> watch;
  if (released && cost.visits >= long_visits && hears_signals()) {
    const double share = std::min(4 * long_visits / cost.visits, first_bytes / cost.bytes);
    watch.emplace([&] { return released->interrupted(); },
                  std::max<int64_t>(1, int64_t(share * double(p.units))));
    p.stops = [](void* watch) { return static_cast<Watch*>(watch)->stops(); };
    p.watch = &*watch;
  }
  // A signal handler may pool during a call that is watched: then this thread's own scratch is not free.
  std::unique_ptr<char[]> memory;
  char* at;
  if (!watch && scratch * workers <= kept_scratch) {
    at = own_scratch(scratch * workers);
  } else {
    memory.reset(new char[size_t(scratch) * size_t(workers) + 64]);
    at = reinterpret_cast<char*>((reinterpret_cast<std::uintptr_t>(memory.get()) + 63) / 64 * 64);
  }
  if (workers <= 1 && !watch) {
    const Subnormals kept;
    return kernel.run(p, 0, p.units, at);
  }
  parallel_for(
      p.units, workers,
      [&](int worker, int64_t begin, int64_t end) { kernel.run(p, begin, end, at + worker * scratch); },
      watch ? &*watch : nullptr);
  if (watch && watch->stopped()) {
    released.reset();
    throw nb::python_error();
  }
}

// Fresh memory costs a visit to the kernel for every page that is written first: large pages are few. NumPy asks for
// them by itself, PyTorch does not. It is a hint, and memory that has its pages already is none the worse for it. Less
// than this comes from a heap that is given back and taken again between calls: there large pages cost more.
void expect(const Array& array, int64_t bytes) {
#if defined(MADV_HUGEPAGE)
  if (bytes < huge_bytes) return;
  for (const int64_t step : array.lead)
    if (step < 0) return;  // then it does not lie behind its address
  for (const int64_t step : array.pooled)
    if (step < 0) return;
  static const std::uintptr_t page = std::uintptr_t(sysconf(_SC_PAGESIZE));
  const std::uintptr_t at = reinterpret_cast<std::uintptr_t>(array.data),
                       from = (at + page - 1) / page * page;
  madvise(reinterpret_cast<void*>(from), (at + std::uintptr_t(bytes) - from) / page * page, MADV_HUGEPAGE);
#endif
}

constexpr Dtype extra_types[] = {Dtype::u8, Dtype::u8, Dtype::i32, Dtype::i64};

// A problem that only waits for its memory.
struct Work {
  Problem p;
  Kernel (*Kernels::*direction)(const Problem&) = &Kernels::forward;
  int64_t results = 0;
  Cost cost;

  Kernel kernel() const { return results ? kernel_for(p, direction) : Kernel{}; }
  void run(const Kernel& kernel) {
    if (!results) return;
    expect(p.y, results * size_of(p.y_type));
    if (direction == &Kernels::forward && p.extra != Extra::none)
      expect(p.extra_array, results * size_of(extra_types[int(p.extra)]));
    if (recording)
      steps.push_back(
          {direction == &Kernels::forward ? "forward" : "backward", kernel.engine, kernel.isa, 1});
    execute(p, kernel, cost);
  }
};

int64_t fewest_lanes(const Plan& plan, Extra extra, const Buffer& array, const std::vector<int>& axes) {
  int64_t planes = 1;
  for (int a = 0; a < array.ndim(); ++a)
    if (std::find(axes.begin(), axes.end(), a) == axes.end()) planes *= array.shape(a);
  return ndpool::fewest_lanes(false, extra, planes, plan.axes().data(), int(plan.axes().size()));
}

Work forward_work(const Plan& plan, int op, const Buffer& x, Dtype x_type, const std::vector<int>& axes,
                  const Buffer& y, Dtype y_type, const Buffer* extra, Extra extra_kind, bool divide,
                  int64_t divisor, double norm) {
  Work work;
  Problem& p = work.p;
  p.op = Op(op);
  p.x_type = x_type;
  p.y_type = y_type;
  p.extra = extra_kind;
  p.divide = divide;
  p.divisor = divisor;
  p.norm = norm;
  if (extra && plan.taps() > int64_t(UINT32_MAX))
    throw nb::value_error("a window of more than 2**32 - 1 elements has no indices");
  if (p.extra == Extra::offset8 && plan.taps() > 256) fault("the window needs wider offsets");
  if (divide && !divisor && plan.window() < 0)
    throw nb::value_error("a window of 2**63 elements or more has no average");
  const int64_t item = size_of(p.x_type);
  const int64_t fewest = fewest_lanes(plan, p.extra, x, axes);
  if (extra)
    lay_out(p, plan, axes, {{&p.x, &x, false}, {&p.y, &y, true}, {&p.extra_array, extra, true}}, p.x, item,
            fewest);
  else
    lay_out(p, plan, axes, {{&p.x, &x, false}, {&p.y, &y, true}}, p.x, item, fewest);
  for (int a = 0; a + 1 < p.n_axes; ++a) p.rows *= p.axes[a].out;
  work.results = p.planes * p.lanes * p.rows * p.axes[p.n_axes - 1].out;
  work.cost = Cost(p);
  return work;
}

bool forward(const Plan& plan, int op, nb::handle x, int x_type, const std::vector<int>& axes, nb::handle y,
             int y_type, nb::handle extra, int extra_kind, bool divide, int64_t divisor, double norm) {
  const Buffer xb(x, Dtype(x_type), false), yb(y, Dtype(y_type), true);
  std::optional<Buffer> eb;
  if (Extra(extra_kind) != Extra::none) eb.emplace(extra, extra_types[extra_kind], true);
  if (!xb.aligned() || !yb.aligned() || (eb && !eb->aligned())) return false;
  Work work = forward_work(plan, op, xb, Dtype(x_type), axes, yb, Dtype(y_type), eb ? &*eb : nullptr,
                           Extra(extra_kind), divide, divisor, norm);
  work.run(work.kernel());
  return true;
}

// The gradient of the inputs. Lp: `aux` holds the outputs, and `extra_array` the inputs.
Work backward_work(const Plan& plan, int op, const Buffer& grad, Dtype type, const std::vector<int>& axes,
                   const Buffer& grad_input, const Buffer* other, Extra offset_kind, bool divide,
                   int64_t divisor, double norm, const Buffer* inputs = nullptr) {
  Work work;
  Problem& p = work.p;
  work.direction = &Kernels::backward;
  p.op = Op(op);
  p.x_type = p.y_type = type;
  p.extra = offset_kind;
  p.divide = divide;
  p.divisor = divisor;
  p.norm = norm;
  const int64_t item = size_of(type);
  if (inputs)
    lay_out(p, plan, axes,
            {{&p.x, &grad, true},
             {&p.y, &grad_input, false},
             {&p.aux, other, true},
             {&p.extra_array, inputs, false}},
            p.y, item, 2);
  else if (other)
    lay_out(p, plan, axes, {{&p.x, &grad, true}, {&p.y, &grad_input, false}, {&p.extra_array, other, true}},
            p.y, item, 2);
  else
    lay_out(p, plan, axes, {{&p.x, &grad, true}, {&p.y, &grad_input, false}}, p.y, item, 2);
  for (int a = 0; a + 1 < p.n_axes; ++a) p.rows *= p.axes[a].size;
  work.results = p.planes * p.lanes * p.rows * p.axes[p.n_axes - 1].size;
  work.cost = Cost(p);
  return work;
}

bool backward(const Plan& plan, int op, nb::handle grad, int type, const std::vector<int>& axes,
              nb::handle grad_input, nb::handle offsets, int offset_kind, nb::handle outputs, bool divide,
              int64_t divisor, double norm, nb::handle inputs) {
  const Extra kind = Extra(offset_kind);
  const Buffer gb(grad, Dtype(type), false), ib(grad_input, Dtype(type), true);
  std::optional<Buffer> other, powers;
  if (kind != Extra::none) {
    other.emplace(offsets, kind == Extra::offset8 ? Dtype::u8 : Dtype::i32, false);
  } else if (Op(op) == Op::lp) {
    other.emplace(outputs, Dtype(type), false);
    powers.emplace(inputs, Dtype(type), false);
  }
  if (!gb.aligned() || !ib.aligned() || (other && !other->aligned()) || (powers && !powers->aligned()))
    return false;
  Work work = backward_work(plan, op, gb, Dtype(type), axes, ib, other ? &*other : nullptr, kind, divide,
                            divisor, norm, powers ? &*powers : nullptr);
  work.run(work.kernel());
  return true;
}

// Shape and strides that an array must have, as another thread may have changed them since they were looked up.
class Layout {
public:
  Layout() = default;
  Layout(const Buffer& buffer, int64_t item) : item_(item), ndim_(buffer.ndim()) {
    for (int a = 0; a < ndim_; ++a) shape_[a] = buffer.shape(a), stride_[a] = buffer.stride(a);
  }

  // `unit`: bytes that a stride counts.
  template <class N> bool fits(int64_t item, int ndim, const N* shape, const N* stride, int64_t unit) const {
    if (item != item_ || ndim != ndim_ || (ndim && !stride)) return false;
    for (int a = 0; a < ndim; ++a)
      if (shape[a] != shape_[a] || (shape[a] > 1 && stride[a] * unit != stride_[a])) return false;
    return true;
  }

private:
  int64_t item_ = 0;
  int ndim_ = 0;
  int64_t shape_[max_lead + max_axes], stride_[max_lead + max_axes];
};

// The memory of an array whose layout is known: an object with a buffer, a tensor, or none. An array of another layout
// has none.
class Memory {
public:
  Memory(nb::handle object, int64_t bytes, bool writable, const Layout* layout) {
    if (object.is_none()) return;
    if (PyObject_CheckBuffer(object.ptr())) {
      if (PyObject_GetBuffer(object.ptr(), &view_, (writable ? PyBUF_WRITABLE : 0) | PyBUF_STRIDES))
        throw nb::python_error();
      held_ = true;
      if (!layout && view_.len != bytes) {
        PyBuffer_Release(&view_);
        fault("a buffer does not have the size it was announced with");
      }
      if (!layout || layout->fits(view_.itemsize, view_.ndim, view_.shape, view_.strides, 1))
        data_ = static_cast<char*>(view_.buf);
      return;
    }
    if (exchange.reads(object.ptr())) {
      Tensor tensor;
      if (exchange.read(object.ptr(), &tensor)) throw nb::python_error();
      const int64_t item = tensor.bits / 8;
      if (!layout || layout->fits(item, tensor.ndim, tensor.shape, tensor.strides, item))
        data_ = static_cast<char*>(tensor.data) + tensor.byte_offset;
    } else {
      data_ = reinterpret_cast<char*>(nb::cast<std::uintptr_t>(object.attr("data_ptr")()));
    }
  }
  Memory(const Memory&) = delete;
  ~Memory() {
    if (held_) PyBuffer_Release(&view_);
  }
  char* data() const { return data_; }

private:
  Py_buffer view_;
  bool held_ = false;
  char* data_ = nullptr;
};

// A call that comes again and again: layouts and types are fixed, memory comes with each. Offsets lie as the pooled
// values do, or as their gradient.
class Call {
public:
  Call(nb::object plan, int op, const nb::tuple& x, const nb::tuple& y, int type,
       const std::vector<int>& axes, int extra_kind, bool divide, bool backward, int64_t divisor, double norm)
      : plan_(std::move(plan)) {
    const Dtype dtype = Dtype(type);
    const Extra kind = Extra(extra_kind);
    if (backward && Op(op) == Op::lp) fault("the gradient of a norm needs more arrays");
    const Buffer xb(x, dtype, false), yb(y, dtype, true);
    std::optional<Buffer> eb;
    if (kind != Extra::none) eb.emplace(backward ? x : y, extra_types[extra_kind], true);
    const Plan& windows = nb::cast<const Plan&>(plan_);
    const Buffer* extra = eb ? &*eb : nullptr;
    work_ = backward
                ? backward_work(windows, op, xb, dtype, axes, yb, extra, kind, divide, divisor, norm)
                : forward_work(windows, op, xb, dtype, axes, yb, dtype, extra, kind, divide, divisor, norm);
    const Buffer* buffers[] = {&xb, &yb, extra};
    items_[0] = items_[1] = size_of(dtype);
    items_[2] = size_of(extra_types[extra_kind]);
    layouts_[0] = Layout(xb, items_[0]);
    layouts_[1] = Layout(yb, items_[1]);
    for (int i = 0; i < 3 && buffers[i]; ++i) {
      bytes_[i] = items_[i];
      for (int a = 0; a < xb.ndim(); ++a) bytes_[i] *= buffers[i]->shape(a);
    }
  }

  // Whether it was done: memory that is missing, misaligned or laid out in another way is left to others. Offsets are
  // packed, whatever their shape.
  bool run(nb::handle x, nb::handle y, nb::handle extra) {
    const Memory xm(x, bytes_[0], false, &layouts_[0]), ym(y, bytes_[1], true, &layouts_[1]),
        em(extra, bytes_[2], true, nullptr);
    const char* data[] = {xm.data(), ym.data(), em.data()};
    for (int i = 0; i < (work_.p.extra == Extra::none ? 2 : 3); ++i)
      if (!data[i] || reinterpret_cast<std::uintptr_t>(data[i]) % items_[i]) return false;
    Work work = work_;
    work.p.x.data = xm.data();
    work.p.y.data = ym.data();
    work.p.extra_array.data = em.data();
    if (kernels.load() != set_) {
      set_ = kernels.load();
      kernel_ = work.kernel();
    }
    const Kernel kernel = kernel_;  // another thread may change it as soon as the GIL is released
    work.run(kernel);
    return true;
  }

private:
  nb::object plan_;  // its tables are read by the work
  Work work_;
  const Kernels* set_ =
      nullptr;  // the instruction set of the kernel; layouts alone decide which kernel it is
  Kernel kernel_;
  int64_t items_[3], bytes_[3] = {};
  Layout layouts_[2];
};

// A stack of flat planes: leading axes, and pooled axes that step through memory evenly.
struct Planes {
  char* data;
  int64_t count = 1, size = 1, step = 0;
  int n_lead = 0;
  int64_t shape[max_lead]{}, stride[max_lead]{};

  static std::optional<Planes> of(const Buffer& b, int n_axes) {
    Planes planes{b.data()};
    const int n_lead = b.ndim() - n_axes;
    if (n_lead < 0 || n_lead > max_lead || !b.aligned()) return std::nullopt;
    for (int a = b.ndim() - 1; a >= n_lead; --a) {
      if (b.shape(a) > 1) {
        if (planes.size == 1)
          planes.step = b.stride(a);
        else if (b.stride(a) != planes.step * planes.size)
          return std::nullopt;
      }
      planes.size *= b.shape(a);
    }
    planes.n_lead = n_lead;
    for (int a = 0; a < n_lead; ++a) {
      planes.shape[a] = b.shape(a);
      planes.stride[a] = b.stride(a);
      planes.count *= b.shape(a);
    }
    return planes;
  }
  char* plane(int64_t i) const {
    char* at = data;
    for (int a = n_lead - 1; a >= 0; --a) {
      at += i % shape[a] * stride[a];
      i /= shape[a];
    }
    return at;
  }
};

constexpr int64_t moved_at_once = 1 << 20;  // items moved by index between two looks for signals

// The first index outside its plane, in the order of the planes, whichever thread meets it. Planes behind it need no
// work; those before it are finished.
class BadIndex {
public:
  bool before(int64_t plane) const { return plane_.load(std::memory_order_relaxed) < plane; }
  void report(int64_t plane, int64_t index) {
    std::lock_guard lock(mutex_);
    if (plane >= plane_.load(std::memory_order_relaxed)) return;
    plane_.store(plane, std::memory_order_relaxed);
    index_ = index;
  }
  std::optional<int64_t> index() const { return index_; }

private:
  std::mutex mutex_;
  std::atomic<int64_t> plane_{INT64_MAX};
  std::optional<int64_t> index_;
};

// Moves items [begin, end) of a plane; an index that leaves the plane ends it and is returned. Each index is read
// once: another thread may be writing them.
template <class T, bool scatter> std::optional<int64_t> move_plane(const Planes& wide, const Planes& narrow,
                                                                   const Planes& indices, int64_t plane,
                                                                   int64_t begin, int64_t end) {
  char *w = wide.plane(plane), *v = narrow.plane(plane);
  const char* at = indices.plane(plane);
  for (int64_t j = begin; j < end; ++j) {
    const int64_t i =
        __atomic_load_n(reinterpret_cast<const int64_t*>(at + j * indices.step), __ATOMIC_RELAXED);
    if (std::uint64_t(i) >= std::uint64_t(wide.size)) return i;
    T* there = reinterpret_cast<T*>(w + i * wide.step);
    T* here = reinterpret_cast<T*>(v + j * narrow.step);
    if (scatter)
      *there = *here;
    else
      *here = *there;
  }
  return std::nullopt;
}

template <class T, bool scatter> void move_items(const Planes& wide, const Planes& narrow,
                                                 const Planes& indices, BadIndex& bad, Watch* watch) {
  const bool small = narrow.count * narrow.size * int64_t(sizeof(T) + 8) < serial_bytes.load();
  const int workers = small ? 1 : int(std::min<int64_t>(num_threads(), narrow.count));
  if (recording)
    steps.push_back(
        {scatter ? "unpool" : "unpool backward", scatter ? "scatter" : "gather", "baseline", workers});
  parallel_for(
      narrow.count, workers,
      [&](int, int64_t begin, int64_t end) {
        for (int64_t plane = begin; plane < end && !bad.before(plane); ++plane)
          for (int64_t j = 0; j < narrow.size; j += moved_at_once) {
            if (watch && watch->stops()) return;
            const auto index = move_plane<T, scatter>(wide, narrow, indices, plane, j,
                                                      std::min(narrow.size, j + moved_at_once));
            if (!index) continue;
            bad.report(plane, *index);
            break;
          }
      },
      watch);
}

template <class T> void move_items(const Planes& wide, const Planes& narrow, const Planes& indices,
                                   bool scatter, BadIndex& bad, Watch* watch) {
  scatter ? move_items<T, true>(wide, narrow, indices, bad, watch)
          : move_items<T, false>(wide, narrow, indices, bad, watch);
}

// Unpooling (scatter) and its adjoint (gather). Repeated indices: the last in row-major order stays.
// Returns (understood, index): not understood asks for packed copies; an index is the first that is out of range, and
// then only some items were moved.
std::tuple<bool, std::optional<int64_t>> unpool(nb::handle wide, nb::handle narrow, nb::handle indices,
                                                int type, int n_axes, bool scatter) {
  const Dtype dtype = Dtype(type);
  const Buffer wb(wide, dtype, scatter), nb_(narrow, dtype, !scatter), ib(indices, Dtype::i64, false);
  const auto w = Planes::of(wb, n_axes), n = Planes::of(nb_, n_axes), i = Planes::of(ib, n_axes);
  if (!w || !n || !i) return {false, std::nullopt};
  if (w->count != n->count || n->count != i->count || n->size != i->size) fault("planes differ");
  if (n->count == 0 || n->size == 0) return {true, std::nullopt};
  BadIndex bad;
  bool stopped = false;
  {
    Released released;
    Watch watch([&] { return released.interrupted(); }, std::max<int64_t>(1, moved_at_once / n->size));
    Watch* const watched = n->count * n->size >= 4 * moved_at_once && hears_signals() ? &watch : nullptr;
    switch (size_of(dtype)) {
    case 1:
      move_items<std::uint8_t>(*w, *n, *i, scatter, bad, watched);
      break;
    case 2:
      move_items<std::uint16_t>(*w, *n, *i, scatter, bad, watched);
      break;
    case 4:
      move_items<std::uint32_t>(*w, *n, *i, scatter, bad, watched);
      break;
    default:
      move_items<std::uint64_t>(*w, *n, *i, scatter, bad, watched);
    }
    stopped = watch.stopped();
  }
  if (stopped) throw nb::python_error();
  return {true, bad.index()};
}

// Memory without gaps set to zero, on the threads that kernels use: PyTorch's own would wait for ever in a forked child.
void zero(std::uintptr_t address, int64_t bytes) {
  constexpr int64_t piece = 1 << 16;
  char* const data = reinterpret_cast<char*>(address);
  const Released released;
  parallel_for((bytes + piece - 1) / piece, bytes < serial_bytes.load() ? 1 : num_threads(),
               [&](int, int64_t begin, int64_t end) {
                 std::memset(data + begin * piece, 0, size_t(std::min(bytes, end * piece) - begin * piece));
               });
}

}  // namespace

NB_MODULE(_core, m) {
  nb::set_leak_warnings(false);  // plans stay in their cache until the interpreter is gone
  int n;
  kernels.store(available_kernels(n)[0]);
  nb::class_<Plan>(m, "Plan")
      .def(nb::init<const std::vector<AxisArgs>&>(), "axes"_a)
      .def_prop_ro("taps", &Plan::taps);
  nb::class_<Call>(m, "Call")
      .def(nb::init<nb::object, int, const nb::tuple&, const nb::tuple&, int, const std::vector<int>&, int,
                    bool, bool, int64_t, double>(),
           "plan"_a, "op"_a, "x"_a, "y"_a, "type"_a, "axes"_a, "extra_kind"_a, "divide"_a, "backward"_a,
           "divisor"_a = 0, "norm"_a = 0.0)
      .def("run", &Call::run, "x"_a, "y"_a, "extra"_a.none());
  nb::class_<CallCache>(m, "CallCache")
      .def(nb::init<>())
      .def("get", &CallCache::get, "function"_a, "x"_a, "arguments"_a, "indices"_a)
      .def("put", &CallCache::put, "function"_a, "x"_a, "arguments"_a, "indices"_a, "value"_a)
      .def("clear", &CallCache::clear)
      .def("__len__", &CallCache::size);
  m.def("set_recording", &set_recording, "on"_a);
  m.def("recorded", &recorded);
  m.def("set_serial_bytes", [](int64_t n) { return serial_bytes.exchange(n); }, "n"_a);
  m.def("set_exchange", &set_exchange, "type"_a, "capsule"_a);
  m.def("forward", &forward, "plan"_a, "op"_a, "x"_a, "x_type"_a, "axes"_a, "y"_a, "y_type"_a,
        "extra"_a.none(), "extra_kind"_a, "divide"_a, "divisor"_a, "norm"_a);
  m.def("backward", &backward, "plan"_a, "op"_a, "grad"_a, "type"_a, "axes"_a, "grad_input"_a,
        "offsets"_a.none(), "offset_kind"_a, "outputs"_a.none(), "divide"_a, "divisor"_a, "norm"_a,
        "inputs"_a.none() = nb::none());
  m.def("unpool", &unpool, "wide"_a, "narrow"_a, "indices"_a, "type"_a, "n_axes"_a, "scatter"_a);
  m.def("zero", &zero, "address"_a, "bytes"_a);
  m.def("isa", [] { return std::string(kernels.load()->name); });
  m.def("jax_handler", [] { return nb::steal(PyCapsule_New(jax_handler(kernels), nullptr, nullptr)); });
  m.def("isa_names", &isa_names);
  m.def("set_isa", &set_isa, "name"_a);
  m.def("num_threads", &num_threads);
  m.def("set_num_threads", &set_num_threads, "n"_a);
  m.def("set_default_threads", &set_default_threads, "n"_a);
  m.def("borrow_threads", &borrow_threads);
}

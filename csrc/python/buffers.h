// Arrays and plans received from Python: memory with shape and strides, and windows. Everything that memory safety
// depends on is checked again here; a failure is a bug of the package, not an error of its user.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <stdexcept>
#include <string>
#include <vector>

#include "runtime/layout.h"

namespace ndpool {
namespace {

namespace nb = nanobind;

[[noreturn]] void fault(const char* what) { throw std::runtime_error(std::string("ndpool core: ") + what); }

// The memory of an array: an object with the buffer protocol, or a tuple (address, shape, strides in elements),
// whose memory the caller keeps alive, as for PyTorch's tensors.
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
    if (acquired_) PyBuffer_Release(&view_);
  }

  int ndim() const { return ndim_; }
  int64_t shape(int a) const { return shape_[a]; }
  int64_t stride(int a) const { return stride_[a]; }
  int64_t item() const { return item_; }
  char* data() const { return data_; }
  bool aligned() const { return aligned_; }
  View view() const { return {data_, ndim_, item_, shape_, stride_}; }

private:
  static constexpr int max_ndim = max_lead + max_axes;

  void from_buffer(nb::handle object, bool writable) {
    if (PyObject_GetBuffer(object.ptr(), &view_, (writable ? PyBUF_WRITABLE : 0) | PyBUF_STRIDES))
      throw nb::python_error();
    acquired_ = true;
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
  bool acquired_ = false, aligned_;
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
      if (a.size < 1 || a.kernel < 1 || a.stride < 1 || a.step < 1 || a.out < 0 || !in_range(a))
        fault("bad axis");
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

  // Elements of a whole window including padding; -1 if the number overflows.
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

}  // namespace
}  // namespace ndpool

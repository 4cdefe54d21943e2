// Prepared calls: repeated calls for which everything but the memory is known in advance.
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "python/tensors.h"
#include "python/work.h"

namespace ndpool {
namespace {

namespace nb = nanobind;

// The shape and strides that an array must have. They are checked at each call, because another thread may have
// changed them since the call was looked up.
class Layout {
public:
  Layout() = default;
  Layout(const Buffer& buffer, int64_t item) : item_(item), ndim_(buffer.ndim()) {
    for (int a = 0; a < ndim_; ++a) shape_[a] = buffer.shape(a), stride_[a] = buffer.stride(a);
  }

  // `unit`: the unit of `stride`, in bytes.
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

// The memory of an array whose layout is known: an object with the buffer protocol, a tensor, or none; null for an
// array of another layout. `bytes`: the size of a packed buffer of any shape; 0: the layout must match, too.
class Memory {
public:
  Memory(nb::handle object, int64_t bytes, bool writable, const Layout& layout) {
    if (object.is_none()) return;
    if (PyObject_CheckBuffer(object.ptr())) {
      if (PyObject_GetBuffer(object.ptr(), &view_, (writable ? PyBUF_WRITABLE : 0) | PyBUF_STRIDES))
        throw nb::python_error();
      acquired_ = true;
      if (bytes && view_.len != bytes) {
        PyBuffer_Release(&view_);
        fault("a buffer does not have the size it was announced with");
      }
      if (bytes || layout.fits(view_.itemsize, view_.ndim, view_.shape, view_.strides, 1))
        data_ = static_cast<char*>(view_.buf);
      return;
    }
    if (tensors.has(object.ptr())) {
      Tensor tensor;
      if (!tensors.read(object.ptr(), tensor)) throw nb::python_error();
      constexpr std::int32_t cpu = 1;
      const int64_t item = tensor.bits / 8;
      if (tensor.device == cpu && layout.fits(item, tensor.ndim, tensor.shape, tensor.strides, item))
        data_ = static_cast<char*>(tensor.data) + tensor.byte_offset;
    } else {
      data_ = reinterpret_cast<char*>(nb::cast<std::uintptr_t>(object.attr("data_ptr")()));
    }
  }
  Memory(const Memory&) = delete;
  ~Memory() {
    if (acquired_) PyBuffer_Release(&view_);
  }
  char* data() const { return data_; }

private:
  Py_buffer view_;
  bool acquired_ = false;
  char* data_ = nullptr;
};

// A prepared call: layouts and types are fixed, each run brings its memory. Offsets have the layout of the pooled
// values or of their gradient. The gradient of a norm needs the inputs and the norms, which have the layout of
// their gradient.
class Call {
public:
  Call(nb::object plan, int op, const nb::tuple& x, const nb::tuple& y, int type,
       const std::vector<int>& axes, int extra_kind, bool divide, bool backward, int64_t divisor, double norm,
       nb::handle inputs)
      : plan_(std::move(plan)), of_norms_(backward && Op(op) == Op::lp) {
    const Dtype dtype = Dtype(type);
    const Extra kind = Extra(extra_kind);
    if (of_norms_ && kind != Extra::none) fault("a norm has no offsets");
    const Buffer xb(x, dtype, false), yb(y, dtype, true);
    std::optional<Buffer> eb, ib;
    if (kind != Extra::none) eb.emplace(backward ? x : y, type_of(Extra(extra_kind)), true);
    if (of_norms_) {
      eb.emplace(x, dtype, false);
      ib.emplace(inputs, dtype, false);
    }
    const Plan& windows = nb::cast<const Plan&>(plan_);
    const Buffer *extra = eb ? &*eb : nullptr, *powers = ib ? &*ib : nullptr;
    work_ = backward
                ? backward_work(windows, op, xb, dtype, axes, yb, extra, kind, divide, divisor, norm, powers)
                : forward_work(windows, op, xb, dtype, axes, yb, dtype, extra, kind, divide, divisor, norm);
    arrays_ = of_norms_ ? 4 : extra ? 3 : 2;
    const Buffer* const buffers[] = {&xb, &yb, extra, powers};
    for (int i = 0; i < arrays_; ++i) {
      items_[i] = buffers[i]->item();
      layouts_[i] = Layout(*buffers[i], items_[i]);
    }
    if (kind == Extra::none) return;
    extra_bytes_ = items_[2];
    for (int a = 0; a < extra->ndim(); ++a) extra_bytes_ *= extra->shape(a);
  }

  // Returns false without running if memory is missing, misaligned or of another layout. Offsets are packed.
  bool run(nb::handle x, nb::handle y, nb::handle extra, nb::handle inputs) {
    const Memory xm(x, 0, false, layouts_[0]), ym(y, 0, true, layouts_[1]),
        em(extra, extra_bytes_, !of_norms_, layouts_[2]), im(inputs, 0, false, layouts_[3]);
    const char* data[] = {xm.data(), ym.data(), em.data(), im.data()};
    for (int i = 0; i < arrays_; ++i)
      if (!data[i] || reinterpret_cast<std::uintptr_t>(data[i]) % items_[i]) return false;
    const Addresses at = of_norms_ ? Addresses{xm.data(), ym.data(), im.data(), em.data()}
                                   : Addresses{xm.data(), ym.data(), em.data(), nullptr};
    const Kernels* const set = kernels.load();
    const int threads = work_.cost.threads();
    if (!prepared_ || set != set_ || threads != prepared_->threads()) {
      prepared_ = std::make_shared<const Prepared>(work_, threads, at);
      set_ = set;
    }
    const auto prepared = prepared_;  // another thread may replace it as soon as the GIL is released
    prepared->run(at);
    return true;
  }

private:
  nb::object plan_;  // its tables are read by the work
  Work work_;
  const Kernels* set_ = nullptr;  // the instruction set of `prepared_`
  std::shared_ptr<const Prepared> prepared_;
  bool of_norms_;
  int arrays_;
  int64_t items_[4], extra_bytes_ = 0;
  Layout layouts_[4];
};

}  // namespace
}  // namespace ndpool

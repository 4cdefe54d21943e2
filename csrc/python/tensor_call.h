// Prepared calls of tensors: PyTorch allocates, the core runs, and no Python code runs in between, which would
// take as long as a small kernel, and several times as long in PyTorch's backward pass. Tensors that are not
// plain, and all failures, take the usual path of `frameworks/torch/prepared.py`.
#pragma once

#include <exception>
#include <utility>

#include "python/call.h"
#include "python/call_cache.h"

namespace ndpool {
namespace {

// Allocates a tensor by calling a function of PyTorch with fixed arguments; empty without arguments.
class NewTensor {
public:
  NewTensor(nb::object allocate, nb::object arguments)
      : allocate_(std::move(allocate)), arguments_(std::move(arguments)) {}

  explicit operator bool() const { return !arguments_.is_none(); }
  nb::object operator()() const {
    return Tensors::taken(PyObject_CallObject(allocate_.ptr(), arguments_.ptr()));
  }

private:
  nb::object allocate_, arguments_;
};

// The result of `f`; None if it fails, except for exceptions that end the process, such as KeyboardInterrupt, and those
// of signal handlers.
template <class F> nb::object or_none(F&& f) {
  try {
    return f();
  } catch (const Interrupted&) {
    throw;
  } catch (const nb::python_error& error) {
    if (!error.matches(PyExc_Exception)) throw;
  } catch (const std::exception&) {
  }
  return nb::none();
}

class TensorCall {
public:
  // `result` and `extra`: arguments of `allocate`; None: no extra. `bytes`: from the first element to the last.
  TensorCall(nb::object call, nb::object usual, nb::object allocate, nb::object result, nb::object extra,
             int64_t bytes, int64_t item)
      : call_object_(std::move(call)), usual_(std::move(usual)), result_(allocate, std::move(result)),
        extra_(allocate, std::move(extra)), call_(nb::cast<Call*>(call_object_)), bytes_(bytes), item_(item) {
  }

  nb::object usual(nb::handle x, nb::handle out) const { return usual_(x, out); }

  // The result for a plain tensor, or None.
  nb::object run_plain(nb::handle x) const {
    if (tensors.differentiated(x.ptr())) return usual_(x, nb::none());
    return or_none([&]() -> nb::object {
      if (!tensors.has_storage(x.ptr(), bytes_, item_)) return nb::none();
      const nb::object y = result_();
      if (!extra_) return call_->run(x, y, nb::none(), nb::none()) ? y : nb::none();
      const nb::object extra = extra_();
      if (!call_->run(x, y, extra, nb::none())) return nb::none();
      return nb::make_tuple(y, extra);
    });
  }

private:
  nb::object call_object_, usual_;
  NewTensor result_, extra_;
  Call* call_;
  int64_t bytes_, item_;
};

// The forward and the backward pass of a `torch.autograd.Function`.
class TensorTraining {
public:
  // `offsets`: arguments of `allocate`; None: no offsets, or so few that a bytearray of `packed` bytes replaces
  // the tensor.
  TensorTraining(nb::object forward, nb::object backward, nb::object usual_forward, nb::object usual_backward,
                 nb::object allocate, nb::object result, nb::object offsets, nb::object grad, int64_t packed,
                 int64_t bytes, int64_t results, int64_t item, int64_t offset_item, bool keeps_input,
                 bool of_norms)
      : forward_object_(std::move(forward)), backward_object_(std::move(backward)),
        usual_forward_(std::move(usual_forward)), usual_backward_(std::move(usual_backward)),
        result_(allocate, std::move(result)), offsets_(allocate, std::move(offsets)),
        grad_(allocate, std::move(grad)), forward_(nb::cast<Call*>(forward_object_)),
        backward_(backward_object_.is_none() ? nullptr : nb::cast<Call*>(backward_object_)), packed_(packed),
        bytes_(bytes), result_bytes_(results * item), item_(item), offset_bytes_(results * offset_item),
        offset_item_(offset_item), keeps_input_(keeps_input), of_norms_(of_norms) {}

  nb::object forward(nb::handle context, nb::handle x) const {
    const nb::object y = or_none([&]() -> nb::object {
      if (!tensors.has_storage(x.ptr(), bytes_, item_)) return nb::none();
      const nb::object made = result_();
      nb::object offsets = nb::none();
      if (packed_)
        offsets = Tensors::taken(PyByteArray_FromStringAndSize(nullptr, packed_));
      else if (offsets_)
        offsets = offsets_();
      if (!forward_->run(x, made, offsets, nb::none())) return nb::none();
      if (of_norms_) {
        tensors.save(context.ptr(), x.ptr(), made.ptr());
        return made;
      }
      // The graph keeps leaves alive anyway.
      const bool keeps = keeps_input_ && !tensors.is_leaf(x.ptr());
      if (offsets_)
        keeps ? tensors.save(context.ptr(), offsets.ptr(), x.ptr())
              : tensors.save(context.ptr(), offsets.ptr());
      else if (keeps)
        tensors.save(context.ptr(), x.ptr());
      tensors.set_packed(context.ptr(), packed_ ? offsets.ptr() : Py_None);
      return made;
    });
    return y.is_none() ? usual_forward_(context, x) : y;
  }

  // Saved tensors are unpacked only once, because a hook may allow no more; its errors propagate to the caller.
  nb::object backward(nb::handle context, nb::handle grad) const {
    const bool packed = !of_norms_ && !tensors.packed(context.ptr()).is_none();
    const nb::object saved = of_norms_ || (offsets_ && !packed) ? tensors.saved(context.ptr()) : nb::none();
    const nb::object result = or_none([&]() -> nb::object {
      if (!backward_ || !tensors.undifferentiated(grad.ptr())) return nb::none();
      if (of_norms_) return gradient_of_norms(saved, grad);
      nb::object offsets = tensors.packed(context.ptr());
      if (offsets_ && !packed) {
        offsets = saved[0];
        // A hook may have changed them.
        if (!tensors.has_offsets(offsets.ptr(), offset_item_)) return nb::none();
        if (!tensors.has_storage(offsets.ptr(), offset_bytes_, offset_item_)) return nb::none();
      }
      if (!tensors.has_storage(grad.ptr(), result_bytes_, item_)) return nb::none();
      const nb::object made = grad_();
      return backward_->run(grad, made, offsets, nb::none()) ? made : nb::none();
    });
    return result.is_none() ? usual_backward_(context, grad, saved) : result;
  }

private:
  // Input and output were saved; a hook may have changed them.
  nb::object gradient_of_norms(const nb::object& saved, nb::handle grad) const {
    const nb::object x = saved[0], y = saved[1];
    for (const nb::object& one : {x, y})
      if (!tensors.is_plain_like(one.ptr(), grad.ptr())) return nb::none();
    if (!tensors.has_storage(x.ptr(), bytes_, item_) || !tensors.has_storage(y.ptr(), result_bytes_, item_) ||
        !tensors.has_storage(grad.ptr(), result_bytes_, item_))
      return nb::none();
    const nb::object made = grad_();
    return backward_->run(grad, made, y, x) ? made : nb::none();
  }

  nb::object forward_object_, backward_object_, usual_forward_, usual_backward_;
  NewTensor result_, offsets_, grad_;
  Call *forward_, *backward_;
  int64_t packed_, bytes_, result_bytes_, item_, offset_bytes_, offset_item_;
  bool keeps_input_, of_norms_;
};

// Looks a call up and runs it; None if there is none, or if the array is not plain memory.
nb::object run_prepared(const CallCache& cache, nb::handle function, nb::handle x, nb::handle arguments,
                        nb::handle indices) {
  const nb::object prepared = cache.get(function, x, arguments, indices);
  if (prepared.is_none() || prepared.ptr() == Py_False) return nb::none();
  if (!tensors.has(x.ptr())) return prepared(x, nb::none());
  if (!tensors.plain(x.ptr())) return nb::none();
  const TensorCall* call;
  return nb::try_cast(prepared, call) ? call->run_plain(x) : prepared(x, nb::none());
}

}  // namespace
}  // namespace ndpool

// PyTorch's tensors without PyTorch's headers: their memory comes from DLPack's C exchange, and their state
// (modes, transforms, gradients) from functions that `frameworks/torch` provides.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <iterator>

namespace ndpool {
namespace {

namespace nb = nanobind;
using std::int64_t;

// A tensor as DLPack's C exchange (version 1) describes it.
struct Tensor {
  void* data;
  std::int32_t device, device_id, ndim;
  std::uint8_t code, bits;
  std::uint16_t lanes;
  int64_t *shape, *strides;
  std::uint64_t byte_offset;
};

// Names of attributes, created once during import.
struct Names {
  static PyObject* of(const char* name) { return PyUnicode_InternFromString(name); }
  PyObject *requires_grad = of("requires_grad"), *is_neg = of("is_neg"), *storage = of("untyped_storage"),
           *nbytes = of("nbytes"), *offset = of("storage_offset"), *level = of("_current_level"),
           *is_leaf = of("is_leaf"), *save = of("save_for_backward"), *saved = of("saved_tensors"),
           *packed = of("packed");
};

// Set once, when the framework is loaded, and valid until the end of the process.
class Tensors {
public:
  bool has(PyObject* object) const { return read_ && PyObject_TypeCheck(object, type_); }
  // False with a Python error set.
  bool read(PyObject* object, Tensor& tensor) const { return read_(object, &tensor) == 0; }

  // `types`: the types that are plain memory, the base class first. `watchers`: functions that return true while a
  // mode, a tracer or a transform intercepts every operation. `level`: a module whose _current_level is negative
  // outside forward mode. `legacy_batch`: a function that tells whether a tensor is batched by
  // `torch.autograd.grad`.
  bool set(const nb::tuple& types, nb::handle capsule, const nb::tuple& watchers, nb::handle level,
           nb::handle grad_enabled, nb::handle legacy_batch) {
    struct Table {
      std::uint32_t major, minor;
      void* previous;
      void *allocate, *from_object, *to_object;
      int (*read)(void*, Tensor*);
    };
    if (!PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api")) return false;
    const auto* table = static_cast<const Table*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
    if (table->major != 1 || !table->read || types.size() != std::size(types_) ||
        watchers.size() != std::size(watchers_))
      return false;
    for (nb::handle kept :
         {nb::handle(types), capsule, nb::handle(watchers), level, grad_enabled, legacy_batch})
      kept.inc_ref();
    for (size_t i = 0; i < types.size(); ++i) types_[i] = reinterpret_cast<PyTypeObject*>(types[i].ptr());
    for (size_t i = 0; i < watchers.size(); ++i) watchers_[i] = watchers[i].ptr();
    level_ = PyModule_GetDict(level.ptr());
    grad_enabled_ = grad_enabled.ptr();
    legacy_batch_ = legacy_batch.ptr();
    type_ = types_[0];
    read_ = table->read;
    return true;
  }

  // Whether a tensor is plain memory, apart from reverse-mode differentiation.
  bool plain(PyObject* x) const {
    if (!known(x) || watched()) return false;
    return in_reverse_mode() && !is_true(PyObject_CallMethodNoArgs(x, names_.is_neg));
  }

  // Whether a gradient is plain memory, and no derivative of it can be requested.
  bool undifferentiated(PyObject* grad) const {
    if (is_true(PyObject_CallNoArgs(grad_enabled_)) || watched()) return false;
    return in_reverse_mode() && Py_TYPE(grad) == type_ && is_memory(grad);
  }

  // Whether a reverse-mode derivative may be requested.
  bool differentiated(PyObject* x) const {
    return is_true(PyObject_GetAttr(x, names_.requires_grad)) && is_true(PyObject_CallNoArgs(grad_enabled_));
  }

  // Whether the storage covers `bytes` bytes from the first element on: a caller may have freed or shrunk it.
  bool has_storage(PyObject* x, int64_t bytes, int64_t item) const {
    const nb::object storage = taken(PyObject_CallMethodNoArgs(x, names_.storage));
    return integer(PyObject_CallMethodNoArgs(storage.ptr(), names_.nbytes)) >=
           bytes + integer(PyObject_CallMethodNoArgs(x, names_.offset)) * item;
  }

  // Whether a tensor is plain memory and of the same dtype as another.
  bool is_plain_like(PyObject* x, PyObject* other) const {
    Tensor a, b;
    if (!known(x) || !is_memory(x)) return false;
    if (!read(x, a) || !read(other, b)) throw nb::python_error();
    return a.bits == b.bits && a.code == b.code;
  }

  // Whether a tensor has a dtype of offsets: uint8 or int32.
  bool has_offsets(PyObject* x, int64_t item) const {
    constexpr std::uint8_t signed_code = 0, unsigned_code = 1;  // DLPack's
    Tensor tensor;
    if (!has(x)) return false;
    if (!read(x, tensor)) throw nb::python_error();
    return tensor.bits == 8 * item && tensor.code == (item == 1 ? unsigned_code : signed_code);
  }

  bool is_leaf(PyObject* x) const { return is_true(PyObject_GetAttr(x, names_.is_leaf)); }

  // The context of a `torch.autograd.Function` saves tensors, and packed offsets, which are not a tensor.
  template <class... T> void save(PyObject* context, T*... tensors) const {
    taken(PyObject_CallMethodObjArgs(context, names_.save, tensors..., nullptr));
  }
  nb::object saved(PyObject* context) const { return taken(PyObject_GetAttr(context, names_.saved)); }
  void set_packed(PyObject* context, PyObject* packed) const {
    if (PyObject_SetAttr(context, names_.packed, packed)) throw nb::python_error();
  }
  nb::object packed(PyObject* context) const { return taken(PyObject_GetAttr(context, names_.packed)); }

  static nb::object taken(PyObject* made) {
    if (!made) throw nb::python_error();
    return nb::steal(made);
  }

private:
  bool watched() const {
    for (PyObject* watcher : watchers_)
      if (is_true(PyObject_CallNoArgs(watcher))) return true;
    return false;
  }
  bool known(PyObject* x) const {
    for (const PyTypeObject* type : types_)
      if (Py_TYPE(x) == type) return true;
    return false;
  }
  bool is_memory(PyObject* x) const {
    return !is_true(PyObject_CallMethodNoArgs(x, names_.is_neg)) &&
           !is_true(PyObject_CallOneArg(legacy_batch_, x));
  }
  bool in_reverse_mode() const {
    PyObject* const level = PyDict_GetItemWithError(level_, names_.level);
    return level && PyLong_AsLong(level) < 0;
  }
  static bool is_true(PyObject* made) { return PyObject_IsTrue(taken(made).ptr()) != 0; }
  static int64_t integer(PyObject* made) { return PyLong_AsLongLong(taken(made).ptr()); }

  int (*read_)(void*, Tensor*) = nullptr;
  PyTypeObject *type_ = nullptr, *types_[2] = {};
  PyObject *watchers_[3] = {}, *level_ = nullptr, *grad_enabled_ = nullptr, *legacy_batch_ = nullptr;
  Names names_;
};

Tensors tensors;

}  // namespace
}  // namespace ndpool

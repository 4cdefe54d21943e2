// What the bindings remember of calls that come again: a table from a call's function, array and arguments to what the
// frameworks made of them. Looking up a tensor costs no Python object where its framework has DLPack's exchange.
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstdint>
#include <unordered_map>

namespace ndpool {
namespace {

namespace nb = nanobind;
using std::int64_t;

// What DLPack's exchange of tensors (version 1) tells of one, without a Python object made.
struct Tensor {
  void* data;
  std::int32_t device, device_id, ndim;
  std::uint8_t code, bits;
  std::uint16_t lanes;
  int64_t *shape, *strides;
  std::uint64_t byte_offset;
};

// The one framework that has been met with such an exchange, and the types it may be asked about.
struct Exchange {
  int (*read)(void*, Tensor*) = nullptr;
  PyTypeObject* type = nullptr;

  bool reads(PyObject* object) const { return read && PyObject_TypeCheck(object, type); }
};
Exchange exchange;

bool set_exchange(nb::handle type, nb::handle capsule) {
  struct Table {
    std::uint32_t major, minor;
    void* previous;
    void *allocate, *from_object, *to_object;
    int (*read)(void*, Tensor*);
  };
  if (!PyType_Check(type.ptr()) || !PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api")) return false;
  const auto* table = static_cast<const Table*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  if (table->major != 1 || !table->read) return false;
  type.inc_ref();
  capsule.inc_ref();
  exchange = {table->read, reinterpret_cast<PyTypeObject*>(type.ptr())};
  return true;
}

// Values by the function, dtype, layout and arguments of a call. Arguments are told apart by type and value: 2, 2.0
// and True are three, (2, 2) and [2, 2] one.
class Memo {
public:
  // The value; None where there is none yet, False where the call cannot be remembered.
  nb::object get(nb::handle fn, nb::handle x, nb::handle window) const {
    const Key key(fn, x, window);
    if (!key.valid()) return nb::bool_(false);
    const auto at = values_.find(key);
    return at == values_.end() ? nb::none() : at->second.value;
  }

  void put(nb::object fn, nb::handle x, nb::handle window, nb::object value) {
    const Key key(fn, x, window);
    if (!key.valid()) return;
    Values old;  // gone only when the table is whole again: its objects may run code
    if (values_.size() >= limit) old.swap(values_);
    values_.insert_or_assign(key, Entry{std::move(fn), x.attr("dtype"), std::move(value)});
  }

private:
  static constexpr size_t limit = 1024;

  // Functions and dtypes are what they are: their addresses, which the entry keeps from being used again.
  class Key {
  public:
    Key(nb::handle fn, nb::handle x, nb::handle window) {
      add(reinterpret_cast<std::uintptr_t>(fn.ptr()));
      if (exchange.reads(x.ptr()))
        tensor(x.ptr());
      else
        array(x);
      sequence(window.ptr());
    }
    bool valid() const { return n_ <= most; }
    bool operator==(const Key& other) const {
      return n_ == other.n_ && std::equal(words_, words_ + n_, other.words_);
    }
    size_t hash() const {
      std::uint64_t h = std::uint64_t(n_);
      for (int i = 0; i < n_; ++i) h = (h ^ words_[i]) * 0x9e3779b97f4a7c15u, h ^= h >> 29;
      return size_t(h);
    }

  private:
    static constexpr int most = 48;

    void add(std::uint64_t word) {
      if (n_ < most)
        words_[n_++] = word;
      else
        n_ = most + 1;
    }
    void refuse() { n_ = most + 1; }
    void tensor(PyObject* x) {
      constexpr std::int32_t cpu = 1;
      Tensor t;
      if (exchange.read(x, &t)) return PyErr_Clear(), refuse();  // sparse and the like
      if (t.device != cpu || (t.ndim && !t.strides)) return refuse();
      add(std::uint64_t(t.code) << 32 | std::uint64_t(t.bits) << 16 | t.lanes);
      add(std::uint64_t(t.ndim));
      for (int a = 0; a < t.ndim; ++a) add(std::uint64_t(t.shape[a])), add(std::uint64_t(t.strides[a]));
    }
    void array(nb::handle x) {
      const auto get = [&](PyObject* name) { return nb::steal(PyObject_GetAttr(x.ptr(), name)); };
      static PyObject* const dtype = PyUnicode_InternFromString("dtype");
      static PyObject* const shape = PyUnicode_InternFromString("shape");
      static PyObject* const strides = PyUnicode_InternFromString("strides");
      const nb::object type = get(dtype), sizes = get(shape);
      nb::object steps = type && sizes ? get(strides) : nb::object();
      if (type && sizes && !steps) {  // PyTorch's is a method
        PyErr_Clear();
        steps = nb::steal(PyObject_CallMethod(x.ptr(), "stride", nullptr));
      }
      if (!steps) return PyErr_Clear(), refuse();
      add(reinterpret_cast<std::uintptr_t>(type.ptr()));
      sequence(sizes.ptr());
      sequence(steps.ptr());
    }
    void sequence(PyObject* items) {
      if (!PyTuple_Check(items) && !PyList_CheckExact(items)) return refuse();
      const Py_ssize_t n = PySequence_Fast_GET_SIZE(items);
      add(std::uint64_t(n) << 2 | 3);
      for (Py_ssize_t i = 0; i < n && valid(); ++i) item(PySequence_Fast_GET_ITEM(items, i));
    }
    void item(PyObject* item) {
      int overflow = 0;
      if (PyLong_CheckExact(item)) {
        const std::int64_t value = PyLong_AsLongLongAndOverflow(item, &overflow);
        if (overflow || value > INT64_MAX >> 2 || value < INT64_MIN >> 2) return refuse();
        add(std::uint64_t(value) << 2 | 1);
      } else if (item == Py_None || item == Py_True || item == Py_False) {
        add(item == Py_None ? 0 : item == Py_True ? 2 : 6);
      } else if (PyTuple_CheckExact(item) || PyList_CheckExact(item)) {
        sequence(item);
      } else {
        refuse();
      }
    }

    int n_ = 0;
    std::uint64_t words_[most];
  };
  struct Hash {
    size_t operator()(const Key& key) const { return key.hash(); }
  };
  struct Entry {
    nb::object fn, dtype, value;
  };
  using Values = std::unordered_map<Key, Entry, Hash>;
  Values values_;
};

}  // namespace
}  // namespace ndpool

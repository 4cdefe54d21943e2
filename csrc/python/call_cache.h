// The cache of prepared calls: maps a function, the type and layout of its array, and its arguments to the call
// that a framework prepared for them. Looking up a tensor creates no Python object if its framework supports
// DLPack's C exchange.
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <unordered_map>
#include <utility>

#include "python/tensors.h"

namespace ndpool {
namespace {

// Arguments are compared by type and value: 2, 2.0 and True are three keys; (2, 2) and [2, 2] are one. The GIL
// protects the cache.
class CallCache {
public:
  // The value; None if there is none yet, False if the call cannot be cached.
  nb::object get(nb::handle function, nb::handle x, nb::handle arguments, nb::handle indices) const {
    const Key key(function, x, arguments, indices);
    if (!key.valid()) return nb::bool_(false);
    const auto at = values_.find(key);
    return at == values_.end() ? nb::none() : at->second.value;
  }

  void put(nb::object function, nb::handle x, nb::handle arguments, nb::handle indices, nb::object value) {
    const Key key(function, x, arguments, indices);
    if (!key.valid()) return;
    Values old;  // destroyed when the table is consistent again, because destructors may run Python code
    if (values_.size() >= limit) old.swap(values_);
    nb::object type = nb::borrow(x.type());
    values_.insert_or_assign(key,
                             Entry{std::move(function), std::move(type), x.attr("dtype"), std::move(value)});
  }

  size_t size() const { return values_.size(); }
  void clear() { Values().swap(values_); }

  static constexpr size_t limit = 1024;

private:
  // Functions, types and dtypes are compared by address; the entry keeps them alive so that no address is reused.
  class Key {
  public:
    Key(nb::handle function, nb::handle x, nb::handle arguments, nb::handle indices) {
      add(reinterpret_cast<std::uintptr_t>(function.ptr()));
      add(reinterpret_cast<std::uintptr_t>(Py_TYPE(x.ptr())));
      if (tensors.has(x.ptr()))
        tensor(x.ptr());
      else
        array(x);
      sequence(arguments.ptr());
      item(indices.ptr());
    }
    bool valid() const { return n_ <= max_words; }
    bool operator==(const Key& other) const {
      return n_ == other.n_ && std::equal(words_, words_ + n_, other.words_);
    }
    size_t hash() const {
      std::uint64_t h = std::uint64_t(n_);
      for (int i = 0; i < n_; ++i) h = (h ^ words_[i]) * 0x9e3779b97f4a7c15u, h ^= h >> 29;
      return size_t(h);
    }

  private:
    static constexpr int max_words = 64;

    void add(std::uint64_t word) {
      if (n_ < max_words)
        words_[n_++] = word;
      else
        n_ = max_words + 1;
    }
    void refuse() { n_ = max_words + 1; }
    void tensor(PyObject* x) {
      Tensor t;
      if (!tensors.read(x, t)) return PyErr_Clear(), refuse();  // for example a sparse tensor
      if (t.ndim && !t.strides) return refuse();
      add(std::uint64_t(std::uint32_t(t.device)) << 32 | std::uint32_t(t.device_id));
      add(std::uint64_t(t.code) << 32 | std::uint64_t(t.bits) << 16 | t.lanes);
      add(std::uint64_t(t.ndim));
      for (int a = 0; a < t.ndim; ++a) add(std::uint64_t(t.shape[a])), add(std::uint64_t(t.strides[a]));
    }
    void array(nb::handle x) {
      const auto get = [&](PyObject* name) { return nb::steal(PyObject_GetAttr(x.ptr(), name)); };
      static PyObject* const dtype = PyUnicode_InternFromString("dtype");
      static PyObject* const shape = PyUnicode_InternFromString("shape");
      static PyObject* const strides = PyUnicode_InternFromString("strides");
      static PyObject* const device = PyUnicode_InternFromString("device");
      const nb::object type = get(dtype), sizes = get(shape);
      nb::object steps = type && sizes ? get(strides) : nb::object();
      if (type && sizes && !steps) {  // a tensor, in a PyTorch without the exchange
        PyErr_Clear();
        steps = nb::steal(PyObject_CallMethod(x.ptr(), "stride", nullptr));
        const nb::object place = steps ? get(device) : nb::object();
        const Py_hash_t hash = place ? PyObject_Hash(place.ptr()) : -1;
        if (hash == -1) return PyErr_Clear(), refuse();
        add(std::uint64_t(hash));
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
      } else if (PyFloat_CheckExact(item)) {
        add(10);
        add(std::bit_cast<std::uint64_t>(PyFloat_AS_DOUBLE(item)));
      } else if (PyTuple_CheckExact(item) || PyList_CheckExact(item)) {
        sequence(item);
      } else {
        refuse();
      }
    }

    int n_ = 0;
    std::uint64_t words_[max_words];
  };
  struct Hash {
    size_t operator()(const Key& key) const { return key.hash(); }
  };
  struct Entry {
    nb::object function, type, dtype, value;
  };
  using Values = std::unordered_map<Key, Entry, Hash>;
  Values values_;
};

}  // namespace
}  // namespace ndpool

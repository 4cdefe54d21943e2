// The Python module: its functions and classes. Python objects stay in this folder; geometry.py checks arguments.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "python/jax_ffi.h"
#include "python/tensor_call.h"
#include "python/unpool.h"
#include "python/work.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace ndpool;

NB_MODULE(_core, m) {
  nb::set_leak_warnings(false);  // cached plans outlive the interpreter
  int n;
  kernels.store(available_kernels(n)[0]);
  nb::class_<Plan>(m, "Plan")
      .def(nb::init<const std::vector<AxisArgs>&>(), "axes"_a)
      .def_prop_ro("taps", &Plan::taps);
  nb::class_<Call>(m, "Call")
      .def(nb::init<nb::object, int, const nb::tuple&, const nb::tuple&, int, const std::vector<int>&, int,
                    bool, bool, int64_t, double, nb::handle>(),
           "plan"_a, "op"_a, "x"_a, "y"_a, "type"_a, "axes"_a, "extra_kind"_a, "divide"_a, "backward"_a,
           "divisor"_a = 0, "norm"_a = 0.0, "inputs"_a = nb::none())
      .def("run", &Call::run, "x"_a, "y"_a, "extra"_a.none(), "inputs"_a = nb::none());
  nb::class_<TensorCall>(m, "TensorCall")
      .def(nb::init<nb::object, nb::object, nb::object, nb::object, nb::object, int64_t, int64_t>(), "call"_a,
           "usual"_a, "allocate"_a, "result"_a, "extra"_a.none(), "bytes"_a, "item"_a)
      .def("__call__", &TensorCall::usual, "x"_a, "out"_a.none());
  nb::class_<TensorTraining>(m, "TensorTraining")
      .def(nb::init<nb::object, nb::object, nb::object, nb::object, nb::object, nb::object, nb::object,
                    nb::object, int64_t, int64_t, int64_t, int64_t, int64_t, bool, bool>(),
           "forward"_a, "backward"_a.none(), "usual_forward"_a, "usual_backward"_a, "allocate"_a, "result"_a,
           "offsets"_a.none(), "grad"_a, "packed"_a, "bytes"_a, "results"_a, "item"_a, "offset_item"_a,
           "keeps_input"_a, "of_norms"_a)
      .def("forward", &TensorTraining::forward)
      .def("backward", &TensorTraining::backward);
  nb::class_<CallCache>(m, "CallCache")
      .def(nb::init<>())
      .def("get", &CallCache::get, "function"_a, "x"_a, "arguments"_a, "indices"_a)
      .def("put", &CallCache::put, "function"_a, "x"_a, "arguments"_a, "indices"_a, "value"_a)
      .def("run", &run_prepared, "function"_a, "x"_a, "arguments"_a, "indices"_a)
      .def("clear", &CallCache::clear)
      .def("__len__", &CallCache::size);
  m.def("set_recording", &set_recording, "on"_a);
  m.def("recorded", &recorded);
  m.def("set_serial_bytes", [](int64_t n) { return serial_bytes.exchange(n); }, "n"_a);
  m.def(
      "set_tensors",
      [](const nb::tuple& types, nb::handle capsule, const nb::tuple& watchers, nb::handle level,
         nb::handle grad_enabled, nb::handle legacy_batch) {
        return tensors.set(types, capsule, watchers, level, grad_enabled, legacy_batch);
      },
      "types"_a, "capsule"_a, "watchers"_a, "level"_a, "grad_enabled"_a, "legacy_batch"_a);
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

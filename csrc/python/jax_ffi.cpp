// The handler for XLA's typed foreign function interface. A call is an array of integers, the attribute `call`,
// which frameworks/jax/native.py writes; arrays are dense, row-major memory of XLA. XLA runs the handler on its
// own threads without the GIL: nothing here touches a Python object. The few structs of XLA's stable C interface
// are declared below, so that the build needs no JAX; sizes and versions are checked at run time, and a mismatch
// becomes an XLA error.
#include "python/jax_ffi.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "runtime/layout.h"

namespace ndpool {
namespace {

// XLA's C interface, version 0.x. Every struct starts with its size and may grow at the end.
namespace xla {

struct Error;  // owned by XLA

struct Extension {
  size_t bytes;
  int type;
  Extension* next;
};
constexpr int metadata_extension = 1;

struct Version {
  size_t bytes;
  Extension* extensions;
  int major, minor;
};

struct Metadata {
  size_t bytes;
  Version version;
  std::uint32_t traits;
};

struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};

struct ErrorArguments {
  size_t bytes;
  Extension* extensions;
  const char* message;
  int code;
};

struct Api {
  size_t bytes;
  Extension* extensions;
  Version version;
  const void* internal;
  Error* (*create_error)(ErrorArguments*);
};

struct Buffer {
  size_t bytes;
  Extension* extensions;
  int type;
  void* data;
  int64_t rank;
  int64_t* dims;
};

struct List {  // arguments or results
  size_t bytes;
  Extension* extensions;
  int64_t size;
  int* types;
  void** items;
};

struct Span {
  const char* data;
  size_t size;
};

struct Attributes {
  size_t bytes;
  Extension* extensions;
  int64_t size;
  int* types;
  Span** names;
  void** items;
};

struct Array {
  int type;
  size_t size;
  void* data;
};

struct Frame {
  size_t bytes;
  Extension* extensions;
  const Api* api;
  void* context;
  int stage;
  List arguments, results;
  Attributes attributes;
};

constexpr int version_major = 0, version_minor = 1, stage_execute = 3;
constexpr int is_buffer = 1, is_array = 1;
constexpr int invalid_argument = 3, resource_exhausted = 8, internal = 13;
constexpr int int64 = 5;
// XLA's dtype numbers, in the order of `Dtype`.
constexpr int types[] = {1, 2, 6, 3, 7, 4, 8, 5, 9, 10, 16, 11, 12};

}  // namespace xla

constexpr int64_t layout_version = 1;  // of the attribute `call`

const std::atomic<const Kernels*>* chosen_kernels = nullptr;

[[noreturn]] void refuse(const char* what) { throw std::invalid_argument(what); }

// Reads the numbers of the attribute in order, and never past its end.
class Words {
public:
  Words(const int64_t* data, size_t size) : at_(data), end_(data + size) {}

  int64_t next() { return *take(1); }
  int64_t within(int64_t lo, int64_t hi) {
    const int64_t word = next();
    if (word < lo || word > hi) refuse("a number of the call is out of range");
    return word;
  }
  const int64_t* take(int64_t n) {
    if (n < 0 || n > end_ - at_) refuse("the call is too short");
    const int64_t* const from = at_;
    at_ += n;
    return from;
  }
  void finish() const {
    if (at_ != end_) refuse("the call is too long");
  }

private:
  const int64_t *at_, *end_;
};

// An array of XLA, with strides in bytes.
struct Dense {
  Dense(const xla::List& list, int64_t i, Dtype type) {
    if (i >= list.size || list.types[i] != xla::is_buffer) refuse("a buffer is missing");
    const auto* buffer = static_cast<const xla::Buffer*>(list.items[i]);
    if (buffer->bytes < sizeof(xla::Buffer)) refuse("buffers are smaller than expected");
    if (buffer->type != xla::types[int(type)]) refuse("a buffer has another dtype");
    if (buffer->rank < 1 || buffer->rank > max_lead + max_axes) refuse("a buffer has too many axes");
    item = size_of(Dtype(type));
    data = static_cast<char*>(buffer->data);
    if (reinterpret_cast<std::uintptr_t>(data) % std::uintptr_t(item)) refuse("a buffer is misaligned");
    ndim = int(buffer->rank);
    int64_t pitch = item;
    for (int a = ndim - 1; a >= 0; --a) {
      shape[a] = buffer->dims[a];
      stride[a] = pitch;
      pitch *= shape[a];
    }
  }

  View view() const { return {data, ndim, item, shape, stride}; }

  char* data;
  int ndim;
  int64_t item, shape[max_lead + max_axes], stride[max_lead + max_axes];
};

struct Work {
  Problem p;
  int pooled[max_axes];  // axes counted from the end: -1 is the last
  bool backward = false;
  int64_t results = 0;
};

void read_tables(Axis& axis, Words& words, int64_t n) {
  if (n == 0) return;
  if (n != axis.out) refuse("a table does not fit its axis");
  axis.starts = words.take(n);
  axis.counts = words.take(n);
  for (int64_t o = 0; o < n; ++o)
    if (axis.starts[o] < 0 || axis.counts[o] < 0 || axis.counts[o] > axis.kernel ||
        axis.starts[o] > axis.size - axis.counts[o])
      refuse("a window leaves the input");
}

void read_call(Work& work, Words words) {
  Problem& p = work.p;
  if (words.next() != layout_version) refuse("the call is of another version of ndpool");
  work.backward = words.within(0, 1);
  p.op = Op(words.within(0, int(Op::lp)));
  if (work.backward && p.op == Op::lp) refuse("the gradient of a norm needs more arrays");
  p.extra = Extra(words.within(0, int(Extra::index64)));
  const bool has_offsets = p.op == Op::max || p.op == Op::min;
  if (p.extra != Extra::none ? !has_offsets : has_offsets && work.backward)
    refuse("the operation and its offsets do not agree");
  p.x_type = Dtype(words.within(0, int(Dtype::f64)));
  p.y_type = Dtype(words.within(0, int(Dtype::f64)));
  p.divide = words.within(0, 1);
  p.divisor = words.next();
  p.norm = std::bit_cast<double>(words.next());
  p.n_axes = int(words.within(1, max_axes));
  int64_t taps = 1;
  for (int a = 0; a < p.n_axes; ++a) {
    Axis& axis = p.axes[a];
    work.pooled[a] = int(words.within(-(max_lead + max_axes), -1));
    axis.size = words.within(1, INT64_MAX);
    axis.out = words.within(0, INT64_MAX);
    axis.kernel = words.within(1, INT64_MAX);
    axis.stride = words.within(1, INT64_MAX);
    axis.step = words.within(1, INT64_MAX);
    axis.origin = words.next();
    axis.lo = words.next();
    axis.hi = words.next();
    axis.uncropped = words.within(1, INT64_MAX);
    axis.cropped = words.within(0, INT64_MAX);
    if (!in_range(axis)) refuse("an axis is too large");
    read_tables(axis, words, words.next());
    if (__builtin_mul_overflow(taps, axis.kernel, &taps)) taps = INT64_MAX;
  }
  words.finish();
  if (p.extra != Extra::none && taps > int64_t(UINT32_MAX)) refuse("the window is too large for indices");
  if (p.extra == Extra::offset8 && taps > 256) refuse("the window needs wider offsets");
}

Kernel find_kernel(const Work& work) {
  int n;
  const Kernels* const* sets = available_kernels(n);
  Kernel kernel;
  for (int i = int(std::find(sets, sets + n, chosen_kernels->load()) - sets); i < n && !kernel.run; ++i)
    kernel = work.backward ? sets[i]->backward(work.p) : sets[i]->forward(work.p);
  if (!kernel.run) throw std::runtime_error("no kernel for this problem");
  return kernel;
}

void run(Work& work) {
  Problem& p = work.p;
  if (!work.results) return;
  const Kernel kernel = find_kernel(work);
  const Cost cost(p);
  p.threads = cost.threads();
  kernel.prepare(p);
  const int64_t scratch = (p.scratch + 127) / 64 * 64;
  const int workers = int(std::max<int64_t>(1, std::min<int64_t>(p.threads, p.units)));
  std::unique_ptr<char[]> memory(new char[size_t(scratch) * size_t(workers) + 64]);
  char* const at = reinterpret_cast<char*>((reinterpret_cast<std::uintptr_t>(memory.get()) + 63) / 64 * 64);
  if (workers == 1) return kernel.run(p, 0, p.units, at);
  parallel_for(p.units, workers, [&](int worker, int64_t begin, int64_t end) {
    kernel.run(p, begin, end, at + worker * scratch);
  });
}

Words find_call(const xla::Attributes& attributes) {
  for (int64_t i = 0; i < attributes.size; ++i) {
    const xla::Span& name = *attributes.names[i];
    if (name.size != 4 || std::memcmp(name.data, "call", 4) != 0) continue;
    const auto* array = static_cast<const xla::Array*>(attributes.items[i]);
    if (attributes.types[i] != xla::is_array || array->type != xla::int64) break;
    return Words(static_cast<const int64_t*>(array->data), array->size);
  }
  refuse("the call is missing");
}

void pool(const xla::Frame& frame) {
  Work work;
  Problem& p = work.p;
  read_call(work, find_call(frame.attributes));
  const bool extra = p.extra != Extra::none;
  const Dense x(frame.arguments, 0, p.x_type), y(frame.results, 0, p.y_type);
  Members members{{&p.x, x.view(), work.backward}, {&p.y, y.view(), !work.backward}};
  std::unique_ptr<Dense> third;
  if (extra) {
    third = std::make_unique<Dense>(work.backward ? frame.arguments : frame.results, 1, type_of(p.extra));
    members.push_back({&p.extra_array, third->view(), true});
  }
  int at[max_axes];
  for (int a = 0; a < p.n_axes; ++a) at[a] = x.ndim + work.pooled[a];
  work.results = Arrangement(p, at, members, 1).results();
  const Subnormals subnormals;  // XLA's threads flush subnormals to zero
  run(work);
}

xla::Error* error(const xla::Frame* frame, int code, const char* what) {
  const std::string message = std::string("ndpool: ") + what;
  xla::ErrorArguments arguments{sizeof(arguments), nullptr, message.c_str(), code};
  return frame->api->create_error(&arguments);
}

// XLA asks for the version of the interface once, when the handler is registered.
bool answer_version(const xla::Frame* frame) {
  for (xla::Extension* e = frame->extensions; e; e = e->next) {
    if (e->type != xla::metadata_extension) continue;
    xla::Metadata* metadata = reinterpret_cast<xla::MetadataExtension*>(e)->metadata;
    metadata->version.major = frame->api ? frame->api->version.major : xla::version_major;
    metadata->version.minor = frame->api ? frame->api->version.minor : xla::version_minor;
    metadata->traits = 0;
    return true;
  }
  return false;
}

xla::Error* handle(xla::Frame* frame) {
  if (answer_version(frame)) return nullptr;
  if (frame->bytes < offsetof(xla::Frame, attributes) + sizeof(xla::Attributes) ||
      frame->api->version.major != xla::version_major)
    return error(frame, xla::internal, "this version of XLA's foreign function interface is not supported");
  if (frame->stage != xla::stage_execute) return nullptr;
  try {
    pool(*frame);
  } catch (const std::bad_alloc&) {
    return error(frame, xla::resource_exhausted, "no memory for a kernel's scratch");
  } catch (const std::invalid_argument& fault) {
    return error(frame, xla::invalid_argument, fault.what());
  } catch (const std::exception& fault) {
    return error(frame, xla::internal, fault.what());
  }
  return nullptr;
}

}  // namespace

void* jax_handler(const std::atomic<const Kernels*>& chosen) {
  chosen_kernels = &chosen;
  return reinterpret_cast<void*>(&handle);
}

}  // namespace ndpool

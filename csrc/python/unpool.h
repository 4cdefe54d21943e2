// Unpooling and its adjoint: a scatter or gather of items by index, plane by plane.
#pragma once

#include <nanobind/stl/optional.h>

#include <mutex>

#include "python/execute.h"

namespace ndpool {
namespace {

namespace nb = nanobind;

// An array as a stack of planes whose pooled axes merge into one axis with one stride.
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

constexpr int64_t items_per_check = 1 << 20;  // items moved between two checks for signals

// The first index out of range, in the order of planes, whichever thread finds it. Later planes are skipped,
// earlier ones completed.
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

// Moves items [begin, end) of a plane. Stops at an index out of range and returns it. Each index is read only
// once, because another thread may be writing to it.
template <class T, bool scatter> std::optional<int64_t> move_plane(const Planes& wide, const Planes& narrow,
                                                                   const Planes& indices, int64_t plane,
                                                                   int64_t begin, int64_t end) {
  char *w = wide.plane(plane), *v = narrow.plane(plane);
  const char* at = indices.plane(plane);
  for (int64_t j = begin; j < end; ++j) {
    const int64_t i =
        __atomic_load_n(reinterpret_cast<const int64_t*>(at + j * indices.step), __ATOMIC_RELAXED);
    if (std::uint64_t(i) >= std::uint64_t(wide.size)) return i;
    T* wide_item = reinterpret_cast<T*>(w + i * wide.step);
    T* narrow_item = reinterpret_cast<T*>(v + j * narrow.step);
    if (scatter)
      *wide_item = *narrow_item;
    else
      *narrow_item = *wide_item;
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
          for (int64_t j = 0; j < narrow.size; j += items_per_check) {
            if (watch && watch->stops()) return;
            const auto index = move_plane<T, scatter>(wide, narrow, indices, plane, j,
                                                      std::min(narrow.size, j + items_per_check));
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

// Unpooling (scatter) and its adjoint (gather). Among repeated indices, the last in row-major order wins. Returns
// (supported, index): if not supported, the caller must pass contiguous copies; `index` is the first one out of
// range, in which case only some items were moved.
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
    GilRelease released;
    Watch watch([&] { return released.interrupted(); }, std::max<int64_t>(1, items_per_check / n->size));
    Watch* const watched = n->count * n->size >= 4 * items_per_check && receives_signals() ? &watch : nullptr;
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

// Zeroes contiguous memory on the threads of the kernels: PyTorch's own threads would deadlock in a forked child.
void zero(std::uintptr_t address, int64_t bytes) {
  constexpr int64_t piece = 1 << 16;
  char* const data = reinterpret_cast<char*>(address);
  const GilRelease released;
  parallel_for((bytes + piece - 1) / piece, bytes < serial_bytes.load() ? 1 : num_threads(),
               [&](int, int64_t begin, int64_t end) {
                 std::memset(data + begin * piece, 0, size_t(std::min(bytes, end * piece) - begin * piece));
               });
}

}  // namespace
}  // namespace ndpool

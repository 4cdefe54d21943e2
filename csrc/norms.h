// Lp pooling and its backward, built on the engines for sums; called from kernels.cpp. Forward, this engine writes
// the powers of a box of inputs to scratch, sums the windows there and takes the roots of the sums as it stores
// them. Backward, it divides the gradients by powers of the norms, runs the backward of sums and multiplies by
// x^(p - 1). Very large windows stay out.
//
// A box is a part of a plane, of a few planes or of some channels whose results and sources fit in L2. All boxes
// have the same shape: where several boxes split an axis, zeros pad them beyond its ends.
//
// Without this engine L2 pooling 3 x 3 with stride 2 of (8, 31, 94, 45) takes 4.3 times as long, the gradient of
// 3 x 3 with stride 1 of (8, 256, 20, 24) 2.4 times.
#pragma once

#include "forward/general.h"
#include "kernels.h"
#include "powers.h"

namespace ndpool {
namespace {

template <class V, Over work> class Norms {
  static constexpr bool forward = work == Over::outputs;
  static constexpr Over other = forward ? Over::inputs : Over::outputs;
  // Bytes of a box, all within L2: of several planes, of one plane, and of one plane with large windows.
  static constexpr int64_t group_bytes = 64 * 1024, box_bytes = 256 * 1024, max_box_bytes = 1024 * 1024;
  static constexpr int64_t largest_window = 4096 * 1024;

  // What a box reads along one axis (forward: inputs, backward: outputs): `count` sources from index `first` on.
  struct Sources {
    int64_t first, count;
  };
  static Sources sources(const Axis& a, int64_t at, int64_t results) {
    if (results == extent(a, work)) return {0, extent(a, other)};
    const Range range = forward ? inputs_under(a, at, results) : outputs_over(a, at, results);
    return {range.lo, range.hi - range.lo};
  }

  // The fewest results of a box along an axis: as many as a window is long, so that no source is read much more
  // than twice. An axis that two such boxes would cover stays whole.
  static int64_t min_box(const Axis& a) {
    const int64_t all = extent(a, work), windows = ceil_div(span_of(a), a.stride);
    const int64_t smallest = forward ? windows : windows * a.stride;
    return a.regular() && 2 * smallest < all ? smallest : all;
  }

  struct Sizes {
    int64_t box[max_axes], boxes[max_axes], all_boxes = 1;  // results of a box; number of boxes
    int64_t planes = 1, channels;
    int64_t sources = 1, results = 1;  // elements of one plane of a box

    explicit Sizes(const Problem& p) : channels(p.channels) {
      int64_t window = 1, elements = 1;  // sources of the smallest box; elements along the axes sized so far
      for (int a = 0; a < p.n_axes; ++a) window *= Norms::sources(p.axes[a], 0, min_box(p.axes[a])).count;
      const int64_t channels_limit = max(16, box_bytes / int64_t(sizeof(V)) / window);
      // Large windows get boxes several times the smallest size, so that fewer sources are read twice.
      const int64_t limit = max(box_bytes, min(max_box_bytes, 8 * window * int64_t(sizeof(V))));
      while (channels > channels_limit && channels % 2 == 0) channels /= 2;
      while (channels > channels_limit || p.channels % channels) --channels;
      elements = channels;
      for (int a = p.n_axes - 1; a >= 0; --a) {
        const Axis& axis = p.axes[a];
        const int64_t all = extent(axis, work), unit = forward ? 1 : axis.stride;
        window /= Norms::sources(axis, 0, min_box(axis)).count;
        const auto bytes = [&](int64_t n) {
          return (Norms::sources(axis, 0, n).count + n) * elements * window * int64_t(sizeof(V));
        };
        int64_t n = all;
        if (min_box(axis) < all && bytes(n) > limit) {
          // The largest box that fits, or the smallest box.
          int64_t lo = min_box(axis) / unit, hi = ceil_div(all, unit);
          while (lo < hi) {
            const int64_t mid = (lo + hi + 1) / 2;
            if (bytes(mid * unit) <= limit)
              lo = mid;
            else
              hi = mid - 1;
          }
          const int64_t equal = ceil_div(all, ceil_div(all, lo * unit));  // boxes of equal size
          n = min(all, ceil_div(equal, unit) * unit);
        }
        box[a] = n;
        boxes[a] = ceil_div(all, n);
        all_boxes *= boxes[a];
        elements *= max(n, Norms::sources(axis, 0, n).count);
        sources *= Norms::sources(axis, 0, n).count;
        results *= n;
      }
      sources *= channels;
      results *= channels;
      if (all_boxes == 1 && p.n_lead == 1 && channels == p.channels)
        planes = max(1, min(p.planes, group_bytes / ((sources + results) * int64_t(sizeof(V)))));
      planes = ceil_div(p.planes, ceil_div(p.planes, planes));
    }
    int64_t groups(const Problem& p) const { return ceil_div(p.planes, planes); }
    int64_t parts(const Problem& p) const { return p.channels / channels; }
  };

public:
  static constexpr const char* engine = "norms";

  // Excludes windows that are too large (the general engine folds their rows), and long windows that an end of the
  // input clips where several boxes split the axis: their order of additions depends on the taps inside.
  static bool supports(const Problem& p) {
    int64_t bytes = sizeof(V);
    for (int a = 0; a < p.n_axes; ++a) {
      if (p.axes[a].table_stride) return false;
      bytes = min(largest_window + 1, bytes * sources(p.axes[a], 0, 1).count);
    }
    if (bytes > largest_window) return false;
    const Axis& last = p.axes[p.n_axes - 1];
    const Range whole = interior(last, 0, last.out);
    if (!last.regular() || last.stride == 1 || last.kernel < long_sum || whole.hi - whole.lo == last.out)
      return true;
    return Sizes(p).boxes[p.n_axes - 1] == 1;
  }

  static void prepare(Problem& p) {
    const Sizes s(p);
    p.units = s.groups(p) * s.parts(p) * s.all_boxes;
    Problem inner = inner_problem(p, s);
    inner_kernel(inner).prepare(inner);
    p.scratch = inner.scratch + 64 + Scratch::bytes<V>(s.planes * s.sources) +
                Scratch::bytes<V>(s.planes * s.results) + Scratch::bytes<V>(operand_elements(s));
  }

  static void run(const Problem& p, int64_t begin, int64_t end, char* memory) {
    Norms worker(p, memory);
    for (int64_t unit = begin; unit < end && !p.stopped(); ++unit) worker.box(unit);
  }

  static Kernel inner_kernel(const Problem& inner);

private:
  // Elements of the second operand of the backward pass: the norms, then the inputs.
  static int64_t operand_elements(const Sizes& s) {
    return forward ? 0 : s.planes * max(s.sources, s.results);
  }

  // The sum pooling of one box, in scratch.
  static Problem inner_problem(const Problem& p, const Sizes& s) {
    Problem inner;
    inner.op = Op::sum;
    inner.x_type = inner.y_type = dtype_of<V>();
    inner.n_axes = p.n_axes;
    inner.channels = s.channels;
    inner.n_lead = 1;
    inner.planes = inner.lead_shape[0] = s.planes;
    inner.stops = p.stops;
    inner.watch = p.watch;
    inner.x.channel = inner.y.channel = sizeof(V);
    int64_t x_pitch = s.channels * int64_t(sizeof(V)), y_pitch = x_pitch;
    for (int a = p.n_axes - 1; a >= 0; --a) {
      Axis& axis = inner.axes[a] = p.axes[a];
      const Sources from = sources(axis, 0, s.box[a]);
      if (s.boxes[a] > 1) {
        axis.size = axis.hi = forward ? from.count : s.box[a];
        axis.out = forward ? s.box[a] : from.count;
        axis.origin = forward ? 0 : axis.origin + from.first * axis.stride;
        axis.lo = axis.cropped = 0;
        axis.uncropped = axis.kernel;
      }
      inner.x.pooled[a] = x_pitch;
      inner.y.pooled[a] = y_pitch;
      x_pitch *= from.count;
      y_pitch *= s.box[a];
      if (a + 1 < p.n_axes) inner.rows *= extent(axis, work);
    }
    inner.x.lead[0] = x_pitch;
    inner.y.lead[0] = y_pitch;
    return inner;
  }

  Norms(const Problem& p, char* memory)
      : p_(p), sizes_(p), inner_(inner_problem(p, sizes_)), kernel_(inner_kernel(inner_)),
        load_(loader<V>(p.x_type, true)), store_(storer<V>(p.y_type, false)) {
    Scratch scratch(memory);
    sources_ = scratch.take<V>(sizes_.planes * sizes_.sources);
    results_ = scratch.take<V>(sizes_.planes * sizes_.results);
    operand_ = scratch.take<V>(operand_elements(sizes_));
    inner_.x.data = reinterpret_cast<char*>(sources_);
    inner_.y.data = reinterpret_cast<char*>(results_);
    kernel_.prepare(inner_);
    inner_scratch_ = scratch.take<char>(inner_.scratch);
    const int64_t by = common_divisor(p);
    uniform_ = by != 0;
    for (int a = 0; a < p.n_axes; ++a) taps_ *= p.axes[a].uncropped;
    whole_ = !p.divide || by == taps_;
    by_ = V(by);
    same_strides_ = !forward && p.y.channel == p.extra_array.channel;
    for (int a = 0; a < p.n_axes; ++a) same_strides_ &= p.y.pooled[a] == p.extra_array.pooled[a];
    for (int a = 0; a < p.n_lead; ++a) same_strides_ &= p.y.lead[a] == p.extra_array.lead[a];
  }

  void box(int64_t unit) {
    for (int a = p_.n_axes - 1; a >= 0; --a) {
      at_[a] = unit % sizes_.boxes[a] * sizes_.box[a];
      unit /= sizes_.boxes[a];
    }
    channel_ = unit % sizes_.parts(p_) * sizes_.channels;
    plane_ = unit / sizes_.parts(p_) * sizes_.planes;
    planes_ = min(sizes_.planes, p_.planes - plane_);
    const int64_t filled = crosses_edge() ? 0 : planes_;  // the unused planes of the last box are pooled, too
    std::memset(sources_ + filled * sizes_.sources, 0,
                size_t((sizes_.planes - filled) * sizes_.sources) * sizeof(V));
    each_source(p_.x, [&](const Row& row, int64_t at) {
      if (!forward) return load_(row, sources_ + at);
      if (p_.norm == 2)
        with_each(row, at, [to = sources_ + at](V x, int64_t j) { to[j] = x * x; });
      else {
        load_(row, sources_ + at);
        powers(sources_ + at, row.n * row.channels, p_.norm);
      }
    });
    if (!forward) {
      each_source(p_.aux, [&](const Row& row, int64_t at) { divide(row, at); });
      if (!whole_) scale(sources_);
    }
    kernel_.run(inner_, 0, inner_.units, inner_scratch_);
    if (p_.stopped()) return;
    if (forward && !whole_) scale(results_);
    if (!forward && !same_strides_)
      each_result(p_.extra_array, [&](const Row& row, int64_t at) { multiply(row, at, results_ + at); });
    each_result(p_.y, [&](const Row& row, int64_t at) {
      V* const to = stored_as<V>(p_.y_type) && row.is_contiguous(sizeof(V)) ? reinterpret_cast<V*>(row.data)
                                                                            : results_ + at;
      if (forward)
        take_roots(at, row.n * row.channels, to);
      else if (same_strides_)
        multiply({p_.extra_array.data + (row.data - p_.y.data), row.stride, row.channel, row.n, row.channels},
                 at, to);
      else
        return store_(results_ + at, row);
      if (to == results_ + at) store_(to, row);
    });
  }

  Sources box_sources(int a) const {
    const Sources from = sources(p_.axes[a], at_[a], sizes_.box[a]);
    return {from.first, sources(p_.axes[a], 0, sizes_.box[a]).count};
  }

  // Whether the sources of the box extend past an end of the array.
  bool crosses_edge() const {
    for (int a = 0; a < p_.n_axes; ++a) {
      const Sources from = box_sources(a);
      if (from.first < 0 || from.first + from.count > extent(p_.axes[a], other)) return true;
    }
    return false;
  }

  template <class F> void each_source(const Array& array, F&& f) const {
    Range inside[max_axes];
    int64_t first[max_axes], count[max_axes];
    for (int a = 0; a < p_.n_axes; ++a) {
      const Sources from = box_sources(a);
      inside[a] = {max(0, from.first), min(from.first + from.count, extent(p_.axes[a], other))};
      first[a] = from.first;
      count[a] = from.count;
    }
    each_row(array, inside, first, count, f);
  }

  template <class F> void each_result(const Array& array, F&& f) const {
    Range inside[max_axes];
    for (int a = 0; a < p_.n_axes; ++a)
      inside[a] = {at_[a], min(at_[a] + sizes_.box[a], extent(p_.axes[a], work))};
    each_row(array, inside, at_, sizes_.box, f);
  }

  // Calls f with each row of an array within `inside`, and the index of its first element in a box of `count`
  // elements from `first` on. Rows that are contiguous in both are merged into one.
  template <class F> void each_row(const Array& array, const Range* inside, const int64_t* first,
                                   const int64_t* count, F&& f) const {
    int64_t pitch[max_axes], begin = 0, offset = channel_ * array.channel, size = sizes_.channels;
    for (int a = p_.n_axes - 1; a >= 0; --a) {
      if (inside[a].lo >= inside[a].hi) return;
      pitch[a] = size;
      size *= count[a];
      begin += (inside[a].lo - first[a]) * pitch[a];
      offset += inside[a].lo * array.pooled[a];
    }
    int last = p_.n_axes - 1;
    const int64_t stride = array.pooled[last];
    int64_t n = inside[last].hi - inside[last].lo;
    bool whole = n == count[last];
    while (whole && last > 0 && array.pooled[last - 1] == stride * n) {
      --last;
      const int64_t more = inside[last].hi - inside[last].lo;
      whole = more == count[last];
      n *= more;
    }
    const bool contiguous = whole && last == 0 && (planes_ == 1 || array.lead[0] == stride * n);
    if (contiguous) n *= planes_;
    for (int64_t q = 0; q < (contiguous ? 1 : planes_); ++q) {
      char* data = plane_of(p_, array, plane_ + q) + offset;
      int64_t at = begin + q * size, index[max_axes] = {};
      for (int a = 0; a >= 0;) {
        f(Row{data, stride, array.channel, n, sizes_.channels}, at);
        for (a = last - 1; a >= 0; --a) {
          data += array.pooled[a];
          at += pitch[a];
          if (++index[a] < inside[a].hi - inside[a].lo) break;
          data -= index[a] * array.pooled[a];
          at -= index[a] * pitch[a];
          index[a] = 0;
        }
      }
    }
  }

  // Calls f with each element of a row and its index, converting the row to V if it has another type or gaps.
  template <class F> void with_each(const Row& row, int64_t at, F&& f) const {
    const int64_t n = row.n * row.channels;
    const V* from = reinterpret_cast<const V*>(row.data);
    if (!stored_as<V>(p_.x_type) || !row.is_contiguous(sizeof(V))) {
      V* const buffer = forward ? sources_ + at : operand_;
      load_(row, buffer);
      from = buffer;
    }
    in_vectors(n, [&](int64_t j) { f(from[j], j); });
  }

  // Gradients of the norms to gradients of the sums of powers: times y^(1 - p), zero where y is zero.
  void divide(const Row& row, int64_t at) const {
    V* const grad = sources_ + at;
    if (p_.norm == 2)
      return with_each(row, at, [=](V y, int64_t j) { grad[j] = y == 0 ? V(0) : grad[j] / y; });
    if (p_.norm == 1) return with_each(row, at, [=](V y, int64_t j) { grad[j] = y == 0 ? V(0) : grad[j]; });
    load_(row, operand_);
    constexpr int64_t piece = 256;
    V factor[piece];
    for (int64_t first = 0, n = row.n * row.channels; first < n; first += piece) {
      const int64_t count = min(piece, n - first);
      const V* const y = operand_ + first;
      V* const to = grad + first;
      std::memcpy(factor, y, size_t(count) * sizeof(V));
      powers(factor, count, 1 - p_.norm);
      in_vectors(count, [&](int64_t j) { to[j] = y[j] == 0 ? V(0) : to[j] * factor[j]; });
    }
  }

  // Gradients of the powers to gradients of the inputs: times x^(p - 1).
  void multiply(const Row& row, int64_t at, V* to) const {
    const V* const grad = results_ + at;
    if (p_.norm == 2) return with_each(row, at, [=](V x, int64_t j) { to[j] = grad[j] * x; });
    if (p_.norm == 1) return to == grad ? void() : copy_exactly(grad, to, row.n * row.channels);
    load_(row, operand_);
    powers(operand_, row.n * row.channels, p_.norm - 1);
    in_vectors(row.n * row.channels, [&](int64_t j) { to[j] = grad[j] == 0 ? V(0) : grad[j] * operand_[j]; });
  }

  // Sums of powers to norms.
  void take_roots(int64_t at, int64_t n, V* to) const {
    const V* const sums = results_ + at;
    if (p_.norm == 2) return in_vectors(n, [=](int64_t j) { to[j] = std::sqrt(sums[j]); });
    if (to != sums) std::memcpy(to, sums, size_t(n) * sizeof(V));
    roots(to, n, p_.norm);
  }

  // Scales sums (backward: gradients) of windows that an end of the input clips by the taps of a whole window over
  // their divisor.
  void scale(V* to) const {
    const V taps = V(taps_);
    const int64_t n = planes_ * (forward ? sizes_.results : sizes_.sources);
    if (uniform_) return in_vectors(n, [&](int64_t j) { to[j] = to[j] / by_ * taps; });
    const int last = p_.n_axes - 1;
    int64_t first[max_axes], count[max_axes], index[max_axes] = {};
    for (int a = 0; a <= last; ++a) {
      const Sources from = box_sources(a);
      first[a] = forward ? at_[a] : from.first;
      count[a] = forward ? sizes_.box[a] : from.count;
    }
    const auto share_of = [&](int a, int64_t o) {
      return o >= 0 && o < p_.axes[a].out ? max(1, share(p_.axes[a], o)) : 1;
    };
    const Axis& columns = p_.axes[last];
    const Range whole = columns.kernel == columns.uncropped ? interior(columns, 0, columns.out) : Range{0, 0};
    for (const V* const end = to + n; to < end; to += count[last] * sizes_.channels) {
      int64_t outer = 1;
      for (int a = 0; a < last; ++a) outer *= share_of(a, first[a] + index[a]);
      const auto divide = [&](int64_t o, int64_t outputs) {
        const int64_t by = outer * share_of(last, o);
        V* const at = to + (o - first[last]) * sizes_.channels;
        if (by != taps_)
          in_vectors(outputs * sizes_.channels, [&](int64_t j) { at[j] = at[j] / V(by) * taps; });
      };
      for (int64_t o = first[last], after = o + count[last]; o < after;) {
        const bool inside = o >= whole.lo && o < whole.hi;
        const int64_t outputs = inside ? min(after, whole.hi) - o : 1;
        divide(o, outputs);
        o += outputs;
      }
      for (int a = last - 1; a >= 0 && ++index[a] == count[a]; --a) index[a] = 0;
    }
  }

  const Problem& p_;
  const Sizes sizes_;
  Problem inner_;
  const Kernel kernel_;
  const Load<V> load_;
  const Store<V> store_;
  V *sources_, *results_, *operand_;
  char* inner_scratch_;
  bool uniform_, whole_;  // all windows have the same divisor; it is that of whole windows
  bool same_strides_;     // the inputs and their gradients have the same strides
  V by_;
  int64_t taps_ = 1;
  int64_t at_[max_axes], channel_ = 0, plane_ = 0, planes_ = 0;  // where the box begins; its planes
};

}  // namespace
}  // namespace ndpool

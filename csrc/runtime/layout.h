// Lays out the arrays of a problem: which axes are pooled, which one becomes the channels, and how the others join to
// planes. Shared by the bindings of Python and XLA.
#pragma once

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "runtime/cost.h"

namespace ndpool {

// The memory of an array; strides in bytes.
struct View {
  char* data;
  int ndim;
  int64_t item;
  const int64_t *shape, *stride;
};

// An array of a problem; `outputs`: it has the extents of the plan's outputs, not inputs.
struct Member {
  Array* array;
  View view;
  bool outputs;
};
using Members = std::vector<Member>;

// Whether the windows of an axis are its single elements, all inside, so that pooling treats it like a leading axis.
// Backward, every element must have a window.
inline bool is_pointwise(const Axis& a, bool backward) {
  return a.regular() && a.kernel == 1 && a.uncropped == 1 && a.origin == 0 &&
         (a.out - 1) * a.stride < a.size && a.out > 0 && (!backward || (a.stride == 1 && a.size == a.out));
}

class Arrangement {
public:
  // The axes of the problem are those of its plan; axis k of them is axis at[k] of the arrays. `tables`: the planes that
  // have tables of their own, or 1.
  Arrangement(Problem& p, const int* at, const Members& members, int64_t tables)
      : p_(p), members_(members), backward_(members[0].outputs), ndim_(members[0].view.ndim) {
    const auto gets_channels = [](const Member& m) { return !m.outputs; };
    channels_of_ = &*std::find_if(members.begin(), members.end(), gets_channels);
    if (copies()) copy_bits();
    pooled_axes(at, tables);
    leading_axes(tables);
    if (tables > 1 && tables != p.planes) refuse("one table per plane is needed");
    join_channels();
    join_pointwise();
    set_single_strides();
    for (int a = 0; a + 1 < p.n_axes; ++a) p.rows *= extent(p.axes[a]);
  }

  // The number of results of the problem.
  int64_t results() const { return p_.planes * p_.channels * p_.rows * extent(p_.axes[p_.n_axes - 1]); }

private:
  static constexpr int64_t max_joined_channels = 8192;

  [[noreturn]] static void refuse(const char* what) {
    throw std::runtime_error(std::string("ndpool core: ") + what);
  }

  int64_t extent(const Axis& axis) const { return backward_ ? axis.size : axis.out; }

  // Whether the results are copies of elements: windows are single elements, whose values stay as they are.
  bool copies() const {
    if (backward_ || p_.extra != Extra::none || p_.op == Op::lp || p_.x_type != p_.y_type) return false;
    if (p_.op == Op::sum && p_.divide && p_.divisor != 0 && p_.divisor != 1) return false;
    return std::all_of(p_.axes, p_.axes + p_.n_axes, [](const Axis& a) { return is_pointwise(a, false); });
  }

  // Maxima of signed integers as wide as the elements, whose bits they copy.
  void copy_bits() {
    p_.op = Op::max;
    p_.divide = false;
    if (size_of(p_.x_type) == 1) return;
    p_.x_type = p_.y_type = size_of(p_.x_type) == 2   ? Dtype::i16
                            : size_of(p_.x_type) == 4 ? Dtype::i32
                                                      : Dtype::i64;
  }

  void pooled_axes(const int* at, int64_t tables) {
    Axis axes[max_axes];
    bool pointwise[max_axes] = {};
    const int n = p_.n_axes;
    std::copy_n(p_.axes, n, axes);
    if (tables == 1 && p_.extra != Extra::index64) mark_pointwise(pointwise);
    std::fill_n(is_pooled_, ndim_, false);
    p_.n_axes = 0;
    for (int a = 0; a < n; ++a) {
      if (at[a] < 0 || at[a] >= ndim_ || is_pooled_[at[a]] || windows_[at[a]].out)
        refuse("axis out of range");
      for (const Member& m : members_)
        if (m.view.ndim != ndim_ || m.view.shape[at[a]] != (m.outputs ? axes[a].out : axes[a].size))
          refuse("an array does not fit the plan");
      if (pointwise[a]) {
        windows_[at[a]] = {axes[a].out, axes[a].stride};
        continue;
      }
      is_pooled_[at[a]] = true;
      p_.axes[p_.n_axes] = axes[a];
      for (const Member& m : members_) m.array->pooled[p_.n_axes] = m.view.stride[at[a]];
      ++p_.n_axes;
    }
    for (const Member& m : members_) m.array->data = m.view.data;
  }

  // Marks the pooled axes that become leading axes, which leaves all results as they are: those of one element, the first
  // ones, and the last one if the elements along it can be channels. Sums of floats would have another order there.
  void mark_pointwise(bool (&marks)[max_axes]) const {
    const int last = p_.n_axes - 1;
    const auto pointwise = [&](int a) {
      return is_pointwise(p_.axes[a], backward_) && p_.axes[a].stride == 1;
    };
    const bool any_order = p_.op == Op::max || p_.op == Op::min || (p_.op == Op::sum && exact_sums(p_));
    bool first = true;  // no axis before stays
    for (int a = 0; a < last; ++a) {
      marks[a] = pointwise(a) && (first || (any_order && p_.axes[a].size == 1));
      first &= marks[a];
    }
    marks[last] = !backward_ && !first && any_order && pointwise(last);
  }

  // Elements and stride of axis a of a member that is no pooled axis.
  int64_t leading_extent(int a) const {
    return windows_[a].out ? windows_[a].out : members_[0].view.shape[a];
  }

  void leading_axes(int64_t tables) {
    int64_t planes = 1;
    for (int a = 0; a < ndim_; ++a) planes *= is_pooled_[a] ? 1 : leading_extent(a);
    const int64_t fewest = min_channels(backward_, p_.extra, planes, p_.axes, p_.n_axes);
    const bool packed_rows = channels_of_->array->pooled[p_.n_axes - 1] == channels_of_->view.item;
    bool can_have_channels = !packed_rows && tables == 1;
    for (int a = 0; a < ndim_; ++a) {
      if (is_pooled_[a]) continue;
      const int64_t n = leading_extent(a);
      for (const Member& m : members_)
        if (!windows_[a].out && m.view.shape[a] != n) refuse("leading axes differ");
      if (n == 1) continue;
      if (can_have_channels && channels_of_->view.stride[a] == channels_of_->view.item &&
          contiguous_run(a, fewest) >= fewest) {
        can_have_channels = false;
        p_.channels = n;
        for (const Member& m : members_) m.array->channel = m.view.stride[a];
        continue;
      }
      p_.planes *= n;
      bool joins = p_.n_lead > 0;
      for (const Member& m : members_) joins = joins && m.array->lead[p_.n_lead - 1] == n * m.view.stride[a];
      const int to = joins ? p_.n_lead - 1 : p_.n_lead++;
      p_.lead_shape[to] = joins ? p_.lead_shape[to] * n : n;
      for (const Member& m : members_) m.array->lead[to] = m.view.stride[a];
    }
  }

  // The elements of axis a and of the leading axes before it that continue it in memory, counted up to `enough`.
  int64_t contiguous_run(int a, int64_t enough) const {
    int64_t run = leading_extent(a);
    for (int b = a - 1; b >= 0 && !is_pooled_[b] && run < enough; --b) {
      if (leading_extent(b) == 1) continue;
      for (const Member& m : members_)
        if (m.view.stride[b] != m.view.stride[a] * run) return run;
      run *= leading_extent(b);
    }
    return run;
  }

  // Adds to the channels the leading axes that continue them in memory, or the largest divisor that fits.
  void join_channels() {
    for (int a = p_.n_lead - 1; a >= 0 && p_.channels > 1; --a) {
      bool contiguous = true;
      for (const Member& m : members_) contiguous &= m.array->lead[a] == m.array->channel * p_.channels;
      if (!contiguous) continue;
      int64_t joined = std::min(p_.lead_shape[a], max_joined_channels / p_.channels);
      while (joined > 1 && p_.lead_shape[a] % joined) --joined;
      if (joined < 2) return;
      p_.channels *= joined;
      p_.planes /= joined;
      p_.lead_shape[a] /= joined;
      for (const Member& m : members_) m.array->lead[a] *= joined;
      if (p_.lead_shape[a] > 1) return;
      for (int b = a; b + 1 < p_.n_lead; ++b) {
        p_.lead_shape[b] = p_.lead_shape[b + 1];
        for (const Member& m : members_) m.array->lead[b] = m.array->lead[b + 1];
      }
      --p_.n_lead;
    }
  }

  // Joins the channels and planes of a single axis whose windows are its elements, where they follow in memory.
  void join_pointwise() {
    if (p_.n_axes != 1 || p_.extra != Extra::none || !is_pointwise(p_.axes[0], true)) return;
    bool packed = p_.channels > 1;
    for (const Member& m : members_) packed &= m.array->pooled[0] == m.array->channel * p_.channels;
    if (packed) {
      p_.axes[0] = single_axis(p_.axes[0].size * p_.channels);
      for (const Member& m : members_) m.array->pooled[0] = m.array->channel;
      p_.channels = 1;
    }
    bool follow = p_.n_lead == 1 && p_.channels == 1;
    for (const Member& m : members_) follow &= m.array->lead[0] == m.array->pooled[0] * p_.axes[0].size;
    if (!follow) return;
    p_.axes[0] = single_axis(p_.axes[0].size * p_.planes);
    p_.planes = 1;
    p_.n_lead = 0;
  }

  // The stride of an axis with one element is arbitrary. Engines read it: it is set to that of a contiguous array.
  void set_single_strides() {
    for (const Member& m : members_) {
      int64_t pitch = p_.channels > 1 ? m.array->channel * p_.channels : m.view.item;
      for (int a = p_.n_axes - 1; a >= 0; --a) {
        const int64_t n = m.outputs ? p_.axes[a].out : p_.axes[a].size;
        if (n == 1) m.array->pooled[a] = pitch;
        pitch = m.array->pooled[a] * n;
      }
    }
  }

  // The windows of a pointwise axis: their number, or 0, and the distance between them.
  struct Windows {
    int64_t out = 0, stride = 1;
  };

  Problem& p_;
  const Members& members_;
  const bool backward_;
  const int ndim_;
  const Member* channels_of_;  // the array whose layout decides about channels
  bool is_pooled_[max_lead + max_axes];
  Windows windows_[max_lead + max_axes] = {};
};

}  // namespace ndpool

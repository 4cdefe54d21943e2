// Axis by axis: maxima and sums of windows along several axes that overlap much. Each slab, one index of the first
// axis, is pooled along the other axes once, into scratch; windows along the first axis then reduce slabs. Both steps are
// pooled by other engines, so that the cost hardly depends on the window. Called from kernels.cpp. Offsets and adaptive
// windows stay out; so do planes with stride 1, for which sliding.h is faster, and sums along two axes that are not exact.
//
// A box is what one worker pools at a time: some outputs along the first axes, with all slabs that their windows touch, so
// that scratch stays in L2. Whether sums are taken this way depends on the window alone, as does their order.
//
// Without this engine max pooling 3 x 3 x 3 with stride 1 takes 2.3 times as long on a volume of 96 x 96 x 96 floats and 5.9
// times on bytes, 5 x 5 x 5 10 times on (8, 32, 64, 64) floats.
#pragma once

#include "forward/sink.h"
#include "kernels.h"

namespace ndpool {
namespace {

class AxisByAxis {
  // Bytes of a slab of a box, of all its slabs, and of the largest box.
  static constexpr int64_t slab_bytes = 32 * 1024, box_bytes = 512 * 1024, max_bytes = 64 * 1024 * 1024;
  static constexpr int64_t group_bytes = 128 * 1024;  // of a box of several small planes
  static constexpr int64_t max_channels = 8192;
  // Of windows at an element; below, the rows of a window are reduced faster together.
  static constexpr int64_t min_overlap = 6, min_overlap_of_planes = 8, min_overlap_of_sums = 8;
  static constexpr int max_cut = 3;  // axes that are cut

public:
  static constexpr const char* engine = "axis_by_axis";

  static bool supports(const Problem& p) {
    const bool maxima = p.op == Op::max || p.op == Op::min;
    const bool any_order = maxima || (p.op == Op::sum && exact_sums(p));
    if (p.extra != Extra::none || p.n_axes < (any_order ? 2 : 3) || p.op == Op::lp) return false;
    if (maxima && p.x_type != p.y_type) return false;
    bool slides = p.n_axes == 2;
    for (int a = 0; a < p.n_axes; ++a) {
      if (!p.axes[a].regular() || p.axes[a].out == 0) return false;
      slides &= p.axes[a].stride == 1;
    }
    if (slides || (divides_each(p) && is_integer(slab_type(p)))) return false;
    if (!any_order) return overlap(p) >= min_overlap_of_sums;
    return min(overlap(p), actual_overlap(p)) >= (p.n_axes == 2 ? min_overlap_of_planes : min_overlap);
  }

  // The windows that overlap at an element along the axes before the last, at most two of them: of any number of windows.
  static int64_t overlap(const Problem& p) {
    int64_t n = 1;
    for (int a = 0; a < min(2, p.n_axes - 1); ++a) n *= ceil_div(p.axes[a].uncropped, p.axes[a].stride);
    return n;
  }

  // The same of the windows that there are, on average.
  static int64_t actual_overlap(const Problem& p) {
    double n = 1;
    for (int a = 0; a < min(2, p.n_axes - 1); ++a)
      n *= double(p.axes[a].out) * double(p.axes[a].kernel) / double(p.axes[a].size);
    return int64_t(n);
  }

  // A unit is a box.
  static void prepare(Problem& p) {
    const Boxes boxes(p);
    const int cut = boxes.cut;
    p.units = ceil_div(p.planes, boxes.planes);
    for (int a = 0; a < cut; ++a) p.units *= boxes.count[a];
    p.scratch = 0;
    int64_t at[max_cut] = {};
    const auto visit = [&](auto&& self, int a) -> void {
      if (a == cut) {
        p.scratch = max(p.scratch, Box(p, boxes, at, boxes.planes).scratch_bytes());
        return;
      }
      for (at[a] = 0; at[a] < boxes.count[a]; ++at[a])
        if (!boxes.repeats(p, a, at[a])) self(self, a + 1);
    };
    visit(visit, 0);
  }

  static void run(const Problem& p, int64_t begin, int64_t end, char* memory) {
    const Boxes boxes(p);
    for (int64_t unit = begin; unit < end && !p.stopped(); ++unit) {
      int64_t at[max_cut], rest = unit;
      for (int a = boxes.cut - 1; a >= 0; --a) {
        at[a] = rest % boxes.count[a];
        rest /= boxes.count[a];
      }
      const int64_t plane = rest * boxes.planes;
      Box(p, boxes, at, min(boxes.planes, p.planes - plane)).pool(plane, memory);
    }
  }

  static Kernel inner_kernel(const Problem& inner);

private:
  // The type of pooled slabs: halves are added up as floats, integers in a type that holds their sums.
  static Dtype slab_type(const Problem& p) {
    if (p.op != Op::sum) return p.y_type;
    if (!is_integer(p.x_type))
      return p.x_type == Dtype::f64 || p.y_type == Dtype::f64 ? Dtype::f64 : Dtype::f32;
    if (!is_integer(p.y_type)) return Dtype::f64;
    const double largest = largest_sum(p);
    return largest <= 0x1p23        ? Dtype::f32
           : largest <= 0x1p52      ? Dtype::f64
           : p.x_type == Dtype::u64 ? Dtype::u64
                                    : Dtype::i64;
  }

  // Whether the results are divided, by divisors that differ.
  static bool divides_each(const Problem& p) { return p.divide && common_divisor(p) == 0; }

  // The outputs of a box along the axes that are cut, and the number of boxes.
  struct Boxes {
    int cut;
    int64_t outputs[max_cut], count[max_cut], planes = 1;

    explicit Boxes(const Problem& p) : cut(min(max_cut, p.n_axes)) {
      const Axis &first = p.axes[0], &last_cut = p.axes[cut - 1];
      int64_t row = p.channels * size_of(slab_type(p)), slab = row;
      for (int a = cut; a < p.n_axes; ++a) row *= p.axes[a].out;
      slab = row;
      // So small that the fewest slabs fit.
      const int64_t slabs = (outputs_within(first, 1) - 1) * first.stride + span_of(first);
      const int64_t limit = max(4096, min(slab_bytes, box_bytes / slabs));
      for (int a = cut - 1; a > 0; --a) {
        outputs[a] = cut == 3 && a == 2 ? last_cut.out : outputs_within(p.axes[a], limit / slab);
        slab *= outputs[a];
      }
      outputs[0] = outputs_within(first, (box_bytes / slab - span_of(first)) / first.stride + 1);
      if (p.threads > p.planes)  // a box for each thread
        outputs[0] =
            min(outputs[0], outputs_within(first, ceil_div(first.out, ceil_div(p.threads, p.planes))));
      const auto bytes = [&] {
        double n = double(row) *
                   double(min(first.size, (outputs[0] - 1) * first.stride + span_of(first)) + outputs[0]);
        for (int a = 1; a < cut; ++a) n *= double(outputs[a]);
        return n;
      };
      bool cuts = false;
      for (int a = cut - 1; a >= 0; --a) {
        while (outputs[a] > 1 && bytes() > max_bytes) outputs[a] = ceil_div(outputs[a], 2);
        count[a] = ceil_div(p.axes[a].out, outputs[a]);
        cuts |= count[a] > 1;
      }
      if (!cuts && p.n_lead == 1 && !divides_each(p)) {
        planes = max(1, min(ceil_div(p.planes, p.threads), int64_t(double(group_bytes) / bytes())));
        planes = ceil_div(p.planes, ceil_div(p.planes, planes));
      }
    }

    // The inputs and outputs of box k along axis a.
    Part part(const Problem& p, int a, int64_t k) const {
      return part_of_outputs(p.axes[a], {k * outputs[a], min(p.axes[a].out, (k + 1) * outputs[a])});
    }

    // Whether box k has the same windows and inputs along axis a as the one before it.
    bool repeats(const Problem& p, int a, int64_t k) const {
      if (k == 0) return false;
      const Axis here = cropped(p.axes[a], part(p, a, k)), before = cropped(p.axes[a], part(p, a, k - 1));
      return here.size == before.size && here.out == before.out && here.origin == before.origin;
    }

    // At most n outputs, but so many that no input is read much more than one and a half times; of equal boxes.
    static int64_t outputs_within(const Axis& a, int64_t n) {
      const int64_t fewest = ceil_div(2 * max(0, span_of(a) - a.stride), a.stride);
      const int64_t most = min(a.out, max(1, max(fewest, n)));
      return ceil_div(a.out, ceil_div(a.out, most));
    }
  };

  class Box {
  public:
    Box(const Problem& p, const Boxes& boxes, const int64_t* at, int64_t planes)
        : p_(p), planes_(planes), item_(size_of(slab_type(p))), slab_bytes_(p.channels * item_) {
      for (int a = 0; a < p.n_axes; ++a) {
        axes_[a] = p.axes[a];
        if (a < boxes.cut) {
          const Part part = boxes.part(p, a, at[a]);
          axes_[a] = cropped(p.axes[a], part);
          x_ += part.inputs.lo * p.x.pooled[a];
          y_ += part.outputs.lo * p.y.pooled[a];
        }
        if (a > 0) slab_bytes_ *= axes_[a].out;
      }
    }

    int64_t scratch_bytes() const {
      Problem within = within_slabs(), along = along_slabs();
      inner_kernel(within).prepare(within);
      inner_kernel(along).prepare(along);
      return Scratch::bytes<char>(planes_ * axes_[0].size * slab_bytes_) +
             Scratch::bytes<char>(result_bytes()) + max(within.scratch, along.scratch) + 64;
    }

    void pool(int64_t plane, char* memory) const {
      Scratch scratch(memory);
      char* const slabs = scratch.take<char>(planes_ * axes_[0].size * slab_bytes_);
      char* const results = scratch.take<char>(result_bytes());
      char* const y = plane_of(p_, p_.y, plane) + y_;
      Problem within = within_slabs(), along = along_slabs();
      within.x.data = plane_of(p_, p_.x, plane) + x_;
      within.y.data = along.x.data = slabs;
      along.y.data = divides_each(p_) ? results : y;
      char* const rest = scratch.take<char>(0);
      for (Problem* step : {&within, &along}) {
        const Kernel kernel = inner_kernel(*step);
        kernel.prepare(*step);
        kernel.run(*step, 0, step->units, rest);
      }
      if (!divides_each(p_) || p_.stopped()) return;
      if (slab_type(p_) == Dtype::f64)
        divide(reinterpret_cast<double*>(results), y);
      else
        divide(reinterpret_cast<float*>(results), y);
    }

  private:
    int64_t result_bytes() const { return divides_each(p_) ? axes_[0].out * slab_bytes_ : 0; }

    Problem inner() const {
      Problem q;
      q.op = p_.op;
      q.stops = p_.stops;
      q.watch = p_.watch;
      return q;
    }

    // Pools each slab of the box along all axes but the first.
    Problem within_slabs() const {
      Problem q = inner();
      q.x_type = p_.x_type;
      q.y_type = slab_type(p_);
      q.n_axes = p_.n_axes - 1;
      q.channels = p_.channels;
      q.x.channel = p_.x.channel;
      q.y.channel = item_;
      int64_t pitch = q.channels * item_;
      for (int a = q.n_axes - 1; a >= 0; --a) {
        q.axes[a] = axes_[a + 1];
        q.x.pooled[a] = p_.x.pooled[a + 1];
        q.y.pooled[a] = pitch;
        pitch *= q.axes[a].out;
        if (a + 1 < q.n_axes) q.rows *= q.axes[a].out;
      }
      const int64_t slabs = axes_[0].size;
      const bool joins = planes_ > 1 && p_.x.lead[0] == slabs * p_.x.pooled[0];
      if (planes_ > 1 && !joins) add_lead(q, planes_, p_.x.lead[0], slabs * slab_bytes_);
      add_lead(q, joins ? planes_ * slabs : slabs, p_.x.pooled[0], slab_bytes_);
      return q;
    }

    // Reduces the slabs along the first axis: their elements are channels, as far as they lie together in the results.
    Problem along_slabs() const {
      Problem q = inner();
      q.x_type = q.y_type = slab_type(p_);
      q.n_axes = 1;
      q.axes[0] = axes_[0];
      q.x.pooled[0] = slab_bytes_;
      q.x.channel = item_;
      if (divides_each(p_)) {  // later: the results have the layout of slabs
        q.channels = p_.channels;
        q.y.channel = item_;
        q.y.pooled[0] = slab_bytes_;
        int64_t pitch = p_.channels * item_;
        for (int a = p_.n_axes - 1; a > 0; --a) add_elements(q, axes_[a].out, pitch, pitch);
        return q;
      }
      q.y_type = p_.y_type;
      q.divide = p_.divide;
      q.divisor = p_.divide ? common_divisor(p_) : 0;
      q.y.pooled[0] = p_.y.pooled[0];
      int a = p_.n_axes - 1;
      q.channels = p_.channels > 1 ? p_.channels : axes_[a].out;
      q.y.channel = p_.channels > 1 ? p_.y.channel : p_.y.pooled[a--];
      int64_t pitch = item_ * q.channels;
      for (; a > 0; --a) add_elements(q, axes_[a].out, pitch, p_.y.pooled[a]);
      if (planes_ > 1) add_lead(q, planes_, axes_[0].size * slab_bytes_, p_.y.lead[0]);
      return q;
    }

    // Adds n times the elements so far, as channels if they lie together in the results and are not too many.
    static void add_elements(Problem& q, int64_t n, int64_t& pitch, int64_t y) {
      if (q.n_lead == 0 && y == q.y.channel * q.channels && q.channels * n <= max_channels)
        q.channels *= n;
      else
        add_lead(q, n, pitch, y);
      pitch *= n;
    }

    static void add_lead(Problem& q, int64_t n, int64_t x, int64_t y) {
      q.planes *= n;
      q.lead_shape[q.n_lead] = n;
      q.x.lead[q.n_lead] = x;
      q.y.lead[q.n_lead++] = y;
    }

    // Divides the sums of the box, each by the share of its window, and stores them.
    template <class V> void divide(V* results, char* y) const {
      const Store<V> store = storer<V>(p_.y_type, true);
      const int last = p_.n_axes - 1;
      int64_t at[max_axes] = {};
      for (int a = 0; a >= 0;) {
        int64_t outer = 1;
        char* to = y;
        for (int k = 0; k < last; ++k) {
          outer *= share(axes_[k], at[k]);
          to += at[k] * p_.y.pooled[k];
        }
        divide_row(p_, axes_[last], outer, 0, axes_[last].out, results);
        store(results, {to, p_.y.pooled[last], p_.y.channel, axes_[last].out, p_.channels});
        results += axes_[last].out * p_.channels;
        for (a = last - 1; a >= 0 && ++at[a] == axes_[a].out; --a) at[a] = 0;
      }
    }

    const Problem& p_;
    const int64_t planes_, item_;
    int64_t slab_bytes_;     // of a pooled slab
    int64_t x_ = 0, y_ = 0;  // where the box begins in the arrays
    Axis axes_[max_axes];    // of the box
  };
};

}  // namespace
}  // namespace ndpool

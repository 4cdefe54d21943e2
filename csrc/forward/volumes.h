// Maxima of volumes: windows along three or more axes that overlap. Each slab, one index of the first axis, is pooled
// along the other axes once, into scratch; windows along the first axis then take the maxima of slabs. Both steps are
// pooled by other engines. Called from kernels.cpp. Offsets, sums, whose order would change, and adaptive windows stay
// out.
//
// A box is what one worker pools at a time: some outputs along the first two axes, with all slabs that their windows
// touch, so that scratch stays in L2.
//
// Without this engine max pooling 3 x 3 x 3 with stride 1 takes 2.3 times as long on a volume of 96 x 96 x 96 floats and 5.9
// times on bytes, 5 x 5 x 5 10 times on (8, 32, 64, 64) floats.
#pragma once

#include "kernels.h"
#include "walk.h"

namespace ndpool {
namespace {

class Volumes {
  // Bytes of a slab of a box, of all its slabs, and of the largest box.
  static constexpr int64_t slab_bytes = 32 * 1024, box_bytes = 512 * 1024, max_bytes = 64 * 1024 * 1024;
  static constexpr int64_t max_channels = 8192;
  static constexpr int64_t min_overlap = 6;  // below, the rows of a window are folded faster together

public:
  static constexpr const char* engine = "volumes";

  static bool supports(const Problem& p) {
    if ((p.op != Op::max && p.op != Op::min) || p.extra != Extra::none || p.n_axes < 3 ||
        p.x_type != p.y_type)
      return false;
    for (int a = 0; a < p.n_axes; ++a)
      if (!p.axes[a].regular() || p.axes[a].out == 0) return false;
    return overlap(p) >= min_overlap && Boxes(p).bytes <= max_bytes;
  }

  // The windows that overlap at an element along the first two axes.
  static int64_t overlap(const Problem& p) {
    return ceil_div(p.axes[0].kernel, p.axes[0].stride) * ceil_div(p.axes[1].kernel, p.axes[1].stride);
  }

  // A unit is a box.
  static void prepare(Problem& p) {
    const Boxes boxes(p);
    p.units = p.planes * boxes.count[0] * boxes.count[1];
    p.scratch = 0;
    for (int64_t k = 0; k < boxes.count[0]; ++k)
      for (int64_t j = 0; j < boxes.count[1] && !boxes.repeats(p, 0, k); ++j)
        if (!boxes.repeats(p, 1, j)) p.scratch = max(p.scratch, Box(p, boxes, k, j).scratch_bytes());
  }

  static void run(const Problem& p, int64_t begin, int64_t end, char* memory) {
    const Boxes boxes(p);
    for (int64_t unit = begin; unit < end && !p.stopped(); ++unit) {
      const int64_t in_plane = boxes.count[0] * boxes.count[1], k = unit % in_plane;
      Box(p, boxes, k / boxes.count[1], k % boxes.count[1]).pool(unit / in_plane, memory);
    }
  }

  static Kernel inner_kernel(const Problem& inner);

private:
  // The outputs of a box along the first two axes, and the number of boxes.
  struct Boxes {
    int64_t outputs[2], count[2], bytes;

    explicit Boxes(const Problem& p) {
      int64_t row = p.channels * size_of(p.y_type);
      for (int a = 2; a < p.n_axes; ++a) row *= p.axes[a].out;
      outputs[1] = outputs_within(p.axes[1], slab_bytes / row);
      const int64_t slab = outputs[1] * row, slabs = box_bytes / slab;
      const Axis& first = p.axes[0];
      outputs[0] = outputs_within(first, (slabs - span_of(first)) / first.stride + 1);
      if (p.threads > p.planes)  // a box for each thread
        outputs[0] =
            min(outputs[0], outputs_within(first, ceil_div(first.out, ceil_div(p.threads, p.planes))));
      for (int a = 0; a < 2; ++a) count[a] = ceil_div(p.axes[a].out, outputs[a]);
      bytes = slab * (min(first.size, (outputs[0] - 1) * first.stride + span_of(first)) + outputs[0]);
    }

    // The outputs of box k along axis a.
    Range range(const Problem& p, int a, int64_t k) const {
      return {k * outputs[a], min(p.axes[a].out, (k + 1) * outputs[a])};
    }

    // Whether box k has the same windows and inputs along axis a as the one before it.
    bool repeats(const Problem& p, int a, int64_t k) const {
      if (k == 0) return false;
      const Axis here = cropped(p.axes[a], part_of_outputs(p.axes[a], range(p, a, k))),
                 before = cropped(p.axes[a], part_of_outputs(p.axes[a], range(p, a, k - 1)));
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
    Box(const Problem& p, const Boxes& boxes, int64_t k, int64_t j) : p_(p) {
      const Part slabs = part_of_outputs(p.axes[0], boxes.range(p, 0, k)),
                 rows = part_of_outputs(p.axes[1], boxes.range(p, 1, j));
      slabs_ = cropped(p.axes[0], slabs);
      rows_ = cropped(p.axes[1], rows);
      x_ = slabs.inputs.lo * p.x.pooled[0] + rows.inputs.lo * p.x.pooled[1];
      y_ = slabs.outputs.lo * p.y.pooled[0] + rows.outputs.lo * p.y.pooled[1];
      slab_bytes_ = p.channels * size_of(p.y_type) * rows_.out;
      for (int a = 2; a < p.n_axes; ++a) slab_bytes_ *= p.axes[a].out;
    }

    int64_t scratch_bytes() const {
      Problem within = within_slabs(), along = along_slabs();
      inner_kernel(within).prepare(within);
      inner_kernel(along).prepare(along);
      return Scratch::bytes<char>(slabs_.size * slab_bytes_) + max(within.scratch, along.scratch) + 64;
    }

    void pool(int64_t plane, char* memory) const {
      Scratch scratch(memory);
      char* const slabs = scratch.take<char>(slabs_.size * slab_bytes_);
      Problem within = within_slabs(), along = along_slabs();
      within.x.data = plane_of(p_, p_.x, plane) + x_;
      within.y.data = along.x.data = slabs;
      along.y.data = plane_of(p_, p_.y, plane) + y_;
      char* const rest = scratch.take<char>(0);
      for (Problem* step : {&within, &along}) {
        const Kernel kernel = inner_kernel(*step);
        kernel.prepare(*step);
        kernel.run(*step, 0, step->units, rest);
      }
    }

  private:
    Problem inner() const {
      Problem q;
      q.op = p_.op;
      q.x_type = q.y_type = p_.y_type;
      q.stops = p_.stops;
      q.watch = p_.watch;
      return q;
    }

    // Pools each slab of the box along all axes but the first.
    Problem within_slabs() const {
      Problem q = inner();
      q.n_axes = p_.n_axes - 1;
      q.channels = p_.channels;
      q.x.channel = p_.x.channel;
      q.y.channel = size_of(p_.y_type);
      int64_t pitch = q.channels * q.y.channel;
      for (int a = q.n_axes - 1; a >= 0; --a) {
        q.axes[a] = a ? p_.axes[a + 1] : rows_;
        q.x.pooled[a] = p_.x.pooled[a + 1];
        q.y.pooled[a] = pitch;
        pitch *= q.axes[a].out;
        if (a + 1 < q.n_axes) q.rows *= q.axes[a].out;
      }
      add_lead(q, slabs_.size, p_.x.pooled[0], slab_bytes_);
      return q;
    }

    // Pools the slabs along the first axis: their elements are channels, as far as they lie together in the results.
    Problem along_slabs() const {
      Problem q = inner();
      q.n_axes = 1;
      q.axes[0] = slabs_;
      q.x.pooled[0] = slab_bytes_;
      q.y.pooled[0] = p_.y.pooled[0];
      q.x.channel = size_of(p_.y_type);
      int a = p_.n_axes - 1;
      q.channels = p_.channels > 1 ? p_.channels : p_.axes[a].out;
      q.y.channel = p_.channels > 1 ? p_.y.channel : p_.y.pooled[a--];
      int64_t pitch = q.x.channel * q.channels;
      for (bool joins = true; a > 0; --a) {
        const int64_t n = a > 1 ? p_.axes[a].out : rows_.out;
        joins &= p_.y.pooled[a] == q.y.channel * q.channels && q.channels * n <= max_channels;
        if (joins)
          q.channels *= n;
        else
          add_lead(q, n, pitch, p_.y.pooled[a]);
        pitch *= n;
      }
      return q;
    }

    static void add_lead(Problem& q, int64_t n, int64_t x, int64_t y) {
      q.planes *= n;
      q.lead_shape[q.n_lead] = n;
      q.x.lead[q.n_lead] = x;
      q.y.lead[q.n_lead++] = y;
    }

    const Problem& p_;
    Axis slabs_, rows_;
    int64_t x_, y_, slab_bytes_;  // where the box begins in the arrays; of a pooled slab
  };
};

}  // namespace
}  // namespace ndpool

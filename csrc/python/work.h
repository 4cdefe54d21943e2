// Builds the problem of a call from its arrays and plan, forward and backward: joins leading axes, and chooses the
// axis that becomes the channels.
#pragma once

#include <initializer_list>
#include <optional>

#include "python/execute.h"

namespace ndpool {
namespace {

namespace nb = nanobind;

// An array of a problem; `outputs`: it has the extents of the plan's outputs, not inputs.
struct Member {
  Array* array;
  const Buffer* buffer;
  bool outputs;
};

constexpr int64_t max_joined_channels = 8192;

// Adds to the channels the leading axes that continue them in memory, or the largest divisor that fits.
void join_channels(Problem& p, std::initializer_list<Member> members) {
  for (int a = p.n_lead - 1; a >= 0 && p.channels > 1; --a) {
    bool contiguous = true;
    for (const Member& m : members) contiguous &= m.array->lead[a] == m.array->channel * p.channels;
    if (!contiguous) continue;
    int64_t joined = std::min(p.lead_shape[a], max_joined_channels / p.channels);
    while (joined > 1 && p.lead_shape[a] % joined) --joined;
    if (joined < 2) return;
    p.channels *= joined;
    p.planes /= joined;
    p.lead_shape[a] /= joined;
    for (const Member& m : members) m.array->lead[a] *= joined;
    if (p.lead_shape[a] > 1) return;
    for (int b = a; b + 1 < p.n_lead; ++b) {
      p.lead_shape[b] = p.lead_shape[b + 1];
      for (const Member& m : members) m.array->lead[b] = m.array->lead[b + 1];
    }
    --p.n_lead;
  }
}

// Whether the windows of an axis are its single elements, all inside, so that pooling treats it like a leading axis.
// Backward, every element must have a window.
bool is_pointwise(const Axis& a, bool backward) {
  return a.regular() && a.kernel == 1 && a.uncropped == 1 && a.origin == 0 &&
         (a.out - 1) * a.stride < a.size && a.out > 0 && (!backward || (a.stride == 1 && a.size == a.out));
}

// Joins the channels and planes of a single axis whose windows are its elements, where they follow in memory.
void join_pointwise(Problem& p, std::initializer_list<Member> members) {
  if (p.n_axes != 1 || p.extra != Extra::none || !is_pointwise(p.axes[0], true)) return;
  bool packed = p.channels > 1;
  for (const Member& m : members) packed &= m.array->pooled[0] == m.array->channel * p.channels;
  if (packed) {
    p.axes[0] = single_axis(p.axes[0].size * p.channels);
    for (const Member& m : members) m.array->pooled[0] = m.array->channel;
    p.channels = 1;
  }
  bool follow = p.n_lead == 1;
  for (const Member& m : members) follow &= m.array->lead[0] == m.array->pooled[0] * p.axes[0].size;
  if (!follow || p.channels > 1) return;
  p.axes[0] = single_axis(p.axes[0].size * p.planes);
  p.planes = 1;
  p.n_lead = 0;
}

// Marks the pooled axes that lay_out treats as leading axes, which leaves other results as they are: indices count in the
// whole plane; an axis before the last becomes the last only if its sums have the same order there, and only if
// that leaves contiguous elements together.
void mark_pointwise(const Plan& plan, Op op, Extra extra, Dtype type, bool backward,
                    bool (&marks)[max_axes]) {
  const std::vector<Axis>& axes = plan.axes();
  const int last = int(axes.size()) - 1;
  if (plan.planes() > 1 || extra == Extra::index64) return;
  int others = 0, kept = 0;  // axes before the last that are no leading axes; the last of them
  for (int a = 0; a < last; ++a)
    if (!(marks[a] = is_pointwise(axes[a], backward))) {
      ++others;
      kept = a;
    }
  if (backward || others == 0 || !is_pointwise(axes[last], false) || axes[last].stride != 1) return;
  const Axis& next = axes[kept];
  const bool any_order = op == Op::max || op == Op::min || (op == Op::sum && is_integer(type));
  const bool in_turn = next.regular() && (next.uncropped <= 3 || (next.stride > 1 && next.uncropped < 32));
  marks[last] = any_order || (op == Op::sum && others == 1 && in_turn);
}

// Sets the windows, planes, channels and strides of a problem. The layout of `channels_of` decides about channels:
// a leading axis of at least so many elements as min_channels says that is contiguous in it.
void lay_out(Problem& p, const Plan& plan, const std::vector<int>& pooled,
             std::initializer_list<Member> members, const Array& channels_of, int64_t item) {
  const Buffer& first = *members.begin()->buffer;
  const int ndim = first.ndim();
  const int n_axes = int(plan.axes().size());
  if (int(pooled.size()) != n_axes || ndim < n_axes) fault("wrong number of axes");
  bool pointwise[max_axes] = {};
  mark_pointwise(plan, p.op, p.extra, p.x_type, members.begin()->outputs, pointwise);
  int axis_at[max_lead + max_axes];  // of the plan; -1: a leading axis
  std::fill_n(axis_at, ndim, -1);
  p.n_axes = 0;
  for (int a = 0; a < n_axes; ++a) {
    const Axis& axis = plan.axes()[a];
    if (pooled[a] < 0 || pooled[a] >= ndim || axis_at[pooled[a]] >= 0) fault("axis out of range");
    axis_at[pooled[a]] = a;
    for (const Member& m : members)
      if (m.buffer->ndim() != ndim || m.buffer->shape(pooled[a]) != (m.outputs ? axis.out : axis.size))
        fault("an array does not fit the plan");
    if (pointwise[a]) continue;
    p.axes[p.n_axes] = axis;
    for (const Member& m : members) m.array->pooled[p.n_axes] = m.buffer->stride(pooled[a]);
    ++p.n_axes;
  }
  for (const Member& m : members) m.array->data = m.buffer->data();
  const bool rows_packed = channels_of.pooled[p.n_axes - 1] == item;
  int64_t planes = 1;
  for (int a = 0; a < ndim; ++a)
    planes *= axis_at[a] < 0 ? first.shape(a) : pointwise[axis_at[a]] ? plan.axes()[axis_at[a]].out : 1;
  const int64_t fewest = min_channels(members.begin()->outputs, p.extra, planes, p.axes, p.n_axes);
  bool has_channels = false;
  for (int a = 0; a < ndim; ++a) {
    const Axis* const axis = axis_at[a] < 0 ? nullptr : &plan.axes()[axis_at[a]];
    if (axis && !pointwise[axis_at[a]]) continue;
    const int64_t extent = axis ? axis->out : first.shape(a);
    for (const Member& m : members)
      if (!axis && m.buffer->shape(a) != extent) fault("leading axes differ");
    if (extent == 1) continue;
    int64_t strides[8];
    int k = 0;
    bool is_channels = false;
    for (const Member& m : members) {
      strides[k] = m.buffer->stride(a) * (axis && !m.outputs ? axis->stride : 1);
      is_channels |= m.array == &channels_of && strides[k] == item;
      ++k;
    }
    // The leading axes that continue it in memory count, too: they join the channels.
    int64_t run = extent;
    for (int b = a - 1; is_channels && b >= 0 && axis_at[b] < 0 && run < fewest; --b) {
      if (first.shape(b) == 1) continue;
      k = 0;
      for (const Member& m : members) is_channels &= m.buffer->stride(b) == strides[k++] * run;
      run *= first.shape(b);
    }
    if (is_channels && !rows_packed && !has_channels && run >= fewest && plan.planes() == 1) {
      has_channels = true;
      p.channels = extent;
      k = 0;
      for (const Member& m : members) m.array->channel = strides[k++];
      continue;
    }
    p.planes *= extent;
    bool joins = p.n_lead > 0;
    k = 0;
    for (const Member& m : members) joins = joins && m.array->lead[p.n_lead - 1] == extent * strides[k++];
    const int at = joins ? p.n_lead - 1 : p.n_lead++;
    p.lead_shape[at] = joins ? p.lead_shape[at] * extent : extent;
    k = 0;
    for (const Member& m : members) m.array->lead[at] = strides[k++];
  }
  if (plan.planes() > 1 && plan.planes() != p.planes) fault("one table per plane is needed");
  join_channels(p, members);
  join_pointwise(p, members);
  if (p.op == Op::min && p.n_axes == 1 && is_pointwise(p.axes[0], false)) p.op = Op::max;  // either copies
  // The stride of an axis with one element is arbitrary. Engines read it: it is set to that of a contiguous array.
  for (const Member& m : members) {
    int64_t pitch = p.channels > 1 ? m.array->channel * p.channels : m.buffer->item();
    for (int a = p.n_axes - 1; a >= 0; --a) {
      const int64_t extent = m.outputs ? p.axes[a].out : p.axes[a].size;
      if (extent == 1) m.array->pooled[a] = pitch;
      pitch = m.array->pooled[a] * extent;
    }
  }
}

Work forward_work(const Plan& plan, int op, const Buffer& x, Dtype x_type, const std::vector<int>& axes,
                  const Buffer& y, Dtype y_type, const Buffer* extra, Extra extra_kind, bool divide,
                  int64_t divisor, double norm) {
  Work work;
  Problem& p = work.p;
  p.op = Op(op);
  p.x_type = x_type;
  p.y_type = y_type;
  p.extra = extra_kind;
  p.divide = divide;
  p.divisor = divisor;
  p.norm = norm;
  if (extra && plan.taps() > int64_t(UINT32_MAX))
    throw nb::value_error("a window of more than 2**32 - 1 elements has no indices");
  if (p.extra == Extra::offset8 && plan.taps() > 256) fault("the window needs wider offsets");
  if (divide && !divisor && plan.window() < 0)
    throw nb::value_error("a window of 2**63 elements or more has no average");
  const int64_t item = size_of(p.x_type);
  if (extra)
    lay_out(p, plan, axes, {{&p.x, &x, false}, {&p.y, &y, true}, {&p.extra_array, extra, true}}, p.x, item);
  else
    lay_out(p, plan, axes, {{&p.x, &x, false}, {&p.y, &y, true}}, p.x, item);
  for (int a = 0; a + 1 < p.n_axes; ++a) p.rows *= p.axes[a].out;
  work.results = p.planes * p.channels * p.rows * p.axes[p.n_axes - 1].out;
  work.cost = Cost(p);
  return work;
}

bool forward(const Plan& plan, int op, nb::handle x, int x_type, const std::vector<int>& axes, nb::handle y,
             int y_type, nb::handle extra, int extra_kind, bool divide, int64_t divisor, double norm) {
  const Buffer xb(x, Dtype(x_type), false), yb(y, Dtype(y_type), true);
  std::optional<Buffer> eb;
  if (Extra(extra_kind) != Extra::none) eb.emplace(extra, type_of(Extra(extra_kind)), true);
  if (!xb.aligned() || !yb.aligned() || (eb && !eb->aligned())) return false;
  run(forward_work(plan, op, xb, Dtype(x_type), axes, yb, Dtype(y_type), eb ? &*eb : nullptr,
                   Extra(extra_kind), divide, divisor, norm));
  return true;
}

// The gradient with respect to the inputs. Lp: `aux` holds the outputs and `extra_array` the inputs.
Work backward_work(const Plan& plan, int op, const Buffer& grad, Dtype type, const std::vector<int>& axes,
                   const Buffer& grad_input, const Buffer* other, Extra offset_kind, bool divide,
                   int64_t divisor, double norm, const Buffer* inputs = nullptr) {
  Work work;
  Problem& p = work.p;
  work.direction = &Kernels::backward;
  p.op = Op(op);
  p.x_type = p.y_type = type;
  p.extra = offset_kind;
  p.divide = divide;
  p.divisor = divisor;
  p.norm = norm;
  const int64_t item = size_of(type);
  if (inputs)
    lay_out(p, plan, axes,
            {{&p.x, &grad, true},
             {&p.y, &grad_input, false},
             {&p.aux, other, true},
             {&p.extra_array, inputs, false}},
            p.y, item);
  else if (other)
    lay_out(p, plan, axes, {{&p.x, &grad, true}, {&p.y, &grad_input, false}, {&p.extra_array, other, true}},
            p.y, item);
  else
    lay_out(p, plan, axes, {{&p.x, &grad, true}, {&p.y, &grad_input, false}}, p.y, item);
  for (int a = 0; a + 1 < p.n_axes; ++a) p.rows *= p.axes[a].size;
  work.results = p.planes * p.channels * p.rows * p.axes[p.n_axes - 1].size;
  work.cost = Cost(p);
  return work;
}

bool backward(const Plan& plan, int op, nb::handle grad, int type, const std::vector<int>& axes,
              nb::handle grad_input, nb::handle offsets, int offset_kind, nb::handle outputs, bool divide,
              int64_t divisor, double norm, nb::handle inputs) {
  const Extra kind = Extra(offset_kind);
  if (kind == Extra::index64) fault("a gradient needs offsets, not indices");
  const Buffer gb(grad, Dtype(type), false), ib(grad_input, Dtype(type), true);
  std::optional<Buffer> other, powers;
  if (kind != Extra::none) {
    other.emplace(offsets, kind == Extra::offset8 ? Dtype::u8 : Dtype::i32, false);
  } else if (Op(op) == Op::lp) {
    other.emplace(outputs, Dtype(type), false);
    powers.emplace(inputs, Dtype(type), false);
  }
  if (!gb.aligned() || !ib.aligned() || (other && !other->aligned()) || (powers && !powers->aligned()))
    return false;
  run(backward_work(plan, op, gb, Dtype(type), axes, ib, other ? &*other : nullptr, kind, divide, divisor,
                    norm, powers ? &*powers : nullptr));
  return true;
}

}  // namespace
}  // namespace ndpool

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

// Sets the windows, planes, channels and strides of a problem. The layout of `channels_of` decides about channels:
// a leading axis of at least `min_channels` elements that is contiguous in it.
void lay_out(Problem& p, const Plan& plan, const std::vector<int>& pooled,
             std::initializer_list<Member> members, const Array& channels_of, int64_t item,
             int64_t min_channels) {
  const Buffer& first = *members.begin()->buffer;
  const int ndim = first.ndim();
  p.n_axes = int(plan.axes().size());
  if (int(pooled.size()) != p.n_axes || ndim < p.n_axes) fault("wrong number of axes");
  bool is_pooled[max_lead + max_axes] = {};
  for (int a = 0; a < p.n_axes; ++a) {
    if (pooled[a] < 0 || pooled[a] >= ndim) fault("axis out of range");
    is_pooled[pooled[a]] = true;
    p.axes[a] = plan.axes()[a];
    for (const Member& m : members) {
      if (m.buffer->ndim() != ndim ||
          m.buffer->shape(pooled[a]) != (m.outputs ? p.axes[a].out : p.axes[a].size))
        fault("an array does not fit the plan");
      m.array->pooled[a] = m.buffer->stride(pooled[a]);
    }
  }
  for (const Member& m : members) m.array->data = m.buffer->data();
  const bool rows_packed = channels_of.pooled[p.n_axes - 1] == item;
  bool has_channels = false;
  for (int a = 0; a < ndim; ++a) {
    if (is_pooled[a]) continue;
    const int64_t extent = first.shape(a);
    for (const Member& m : members)
      if (m.buffer->shape(a) != extent) fault("leading axes differ");
    if (extent == 1) continue;
    int64_t strides[8];
    int k = 0;
    bool is_channels = false;
    for (const Member& m : members) {
      strides[k++] = m.buffer->stride(a);
      is_channels |= m.array == &channels_of && m.buffer->stride(a) == item;
    }
    if (is_channels && !rows_packed && !has_channels && extent >= min_channels && plan.planes() == 1) {
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

int64_t min_channels(const Plan& plan, Extra extra, const Buffer& array, const std::vector<int>& axes) {
  int64_t planes = 1;
  for (int a = 0; a < array.ndim(); ++a)
    if (std::find(axes.begin(), axes.end(), a) == axes.end()) planes *= array.shape(a);
  return ndpool::min_channels(false, extra, planes, plan.axes().data(), int(plan.axes().size()));
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
  const int64_t fewest = min_channels(plan, p.extra, x, axes);
  if (extra)
    lay_out(p, plan, axes, {{&p.x, &x, false}, {&p.y, &y, true}, {&p.extra_array, extra, true}}, p.x, item,
            fewest);
  else
    lay_out(p, plan, axes, {{&p.x, &x, false}, {&p.y, &y, true}}, p.x, item, fewest);
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
            p.y, item, 2);
  else if (other)
    lay_out(p, plan, axes, {{&p.x, &grad, true}, {&p.y, &grad_input, false}, {&p.extra_array, other, true}},
            p.y, item, 2);
  else
    lay_out(p, plan, axes, {{&p.x, &grad, true}, {&p.y, &grad_input, false}}, p.y, item, 2);
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

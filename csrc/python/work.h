// Builds the problem of a call from its arrays and plan, forward and backward.
#pragma once

#include <optional>

#include "python/execute.h"

namespace ndpool {
namespace {

namespace nb = nanobind;

void lay_out(Work& work, const Plan& plan, const std::vector<int>& axes, const Members& members) {
  Problem& p = work.p;
  p.n_axes = int(plan.axes().size());
  if (int(axes.size()) != p.n_axes) fault("wrong number of axes");
  std::copy_n(plan.axes().begin(), p.n_axes, p.axes);
  work.results = Arrangement(p, axes.data(), members, plan.planes()).results();
  work.cost = Cost(p);
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
  Members members{{&p.x, x.view(), false}, {&p.y, y.view(), true}};
  if (extra) members.push_back({&p.extra_array, extra->view(), true});
  lay_out(work, plan, axes, members);
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
  Members members{{&p.x, grad.view(), true}, {&p.y, grad_input.view(), false}};
  if (inputs) {
    members.push_back({&p.aux, other->view(), true});
    members.push_back({&p.extra_array, inputs->view(), false});
  } else if (other) {
    members.push_back({&p.extra_array, other->view(), true});
  }
  lay_out(work, plan, axes, members);
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

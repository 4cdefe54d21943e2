// The source of the forward engines: rows of the input in the compute type, and which inputs a tile of outputs needs.
#pragma once

#include "powers.h"
#include "walk.h"

namespace ndpool {
namespace {

struct Span {
  int64_t from, to;
};

// The source of the forward engines: a packed row of inputs [from, to) in the compute type. It is the memory of
// the array itself if that already has the form. The returned pointer stands for index 0 of the row, or for
// `from` in the overload that takes a walk.
template <class V> class Input {
public:
  Input(const Problem& p, bool widening)
      : p_(p), load_(loader<V>(p.x_type, widening)), direct_(stored_as<V>(p.x_type)) {}

  const V* row(const Row& row, int64_t from, V* buffer) const {
    if (direct_ && p_.op != Op::lp && row.is_contiguous(sizeof(V))) {
      const V* const x = reinterpret_cast<const V*>(row.data);
      if (!reordered(p_)) return x - from * p_.channels;
      reorder(p_, x, buffer, row.n * row.channels);
      return buffer - from * p_.channels;
    }
    load_(row, buffer);
    reorder(p_, buffer, buffer, row.n * row.channels);
    if constexpr (is_real<V>) {
      if (p_.op == Op::lp) powers(buffer, row.n * row.channels, p_.norm);
    }
    return buffer - from * p_.channels;
  }

  const V* row(const Walk<Over::outputs>& walk, const int64_t* outer, const Span& in, V* buffer) const {
    return row(walk.row(p_.x, outer, in.from, in.to), 0, buffer);
  }

private:
  const Problem& p_;
  Load<V> load_;
  bool direct_;
};

// The inputs under the windows of outputs [o0, o1) of an axis, clipped to the input.
inline Span inputs_touched(const Axis& a, int64_t o0, int64_t o1) {
  int64_t from = a.size, to = 0;
  if (a.regular()) {
    from = max(0, min(a.size, a.origin + o0 * a.stride));
    to = max(from, min(a.size, a.origin + (o1 - 1) * a.stride + (a.kernel - 1) * a.step + 1));
  } else if (o0 < o1) {
    from = a.starts[o0];
    to = a.starts[o1 - 1] + a.counts[o1 - 1];
  }
  return {min(from, to), to};
}

// The maximum number of inputs under a tile of `tile` outputs.
inline int64_t max_inputs(const Axis& a, int64_t tile) {
  if (!a.regular()) return a.size;
  return max(1, min(a.size, (tile - 1) * a.stride + (a.kernel - 1) * a.step + 1));
}

}  // namespace
}  // namespace ndpool

// Compiled once per instruction set (NDPOOL_ISA names it) with that set's flags. Everything below has internal
// linkage, so that no function compiled for a newer processor can take the place of its namesake elsewhere.
#include "kernels.h"

#include "backward.h"
#include "direct.h"

namespace ndpool {
namespace {

template <class Engine> constexpr Kernel kernel_of() { return {Engine::prepare, Engine::run}; }

// Where the direct engine pays for the code it makes: maxima of floats and bytes; codes for what is trained.
template <class R, class S> constexpr bool direct =
    (std::is_same_v<R, Max<typename R::V>> && (is_real<typename R::V> || sizeof(S) == 1)) ||
    std::is_same_v<R, Min<float>> || std::is_same_v<R, Min<std::uint8_t>>;
template <class R, class S> constexpr bool direct_codes =
    std::is_same_v<R, Max<typename R::V>> && is_real<typename R::V>;

template <template <class> class R, class V, class S = V> Kernel pick(const Problem& p) {
  if constexpr (direct<R<V>, S>)
    if (p.extra == Extra::none && DirectRows<R<V>, S, false>::serves(p))
      return kernel_of<DirectRows<R<V>, S, false>>();
  if constexpr (direct_codes<R<V>, S>)
    if (p.extra != Extra::none && DirectRows<R<V>, S, true>::serves(p))
      return kernel_of<DirectRows<R<V>, S, true>>();
  if (columns_first<V>(p)) return kernel_of<ColumnsFirst<R<V>>>();
  return p.extra == Extra::none ? kernel_of<RowsFirst<R<V>, false>>() : kernel_of<RowsFirst<R<V>, true>>();
}

template <template <class> class R> Kernel pick(const Problem& p) {
  switch (p.x_type) {
  case Dtype::b8:
  case Dtype::u8:
    return pick<R, std::uint8_t>(p);
  case Dtype::i8:
    return pick<R, std::int8_t>(p);
#if !defined(__AVX512F__)  // the wider integers gain nothing from it: they are left to the next set
  case Dtype::u16:
    return pick<R, std::uint16_t>(p);
  case Dtype::i16:
    return pick<R, std::int16_t>(p);
  case Dtype::u32:
    return pick<R, std::uint32_t>(p);
  case Dtype::i32:
    return pick<R, std::int32_t>(p);
  case Dtype::u64:
    return pick<R, std::uint64_t>(p);
  case Dtype::i64:
    return pick<R, std::int64_t>(p);
#else
  default:
    return {};
#endif
  case Dtype::f64:
    return pick<R, double>(p);
  case Dtype::f16:
    return pick<R, float, f16>(p);
  case Dtype::bf16:
    return pick<R, float, bf16>(p);
  case Dtype::f32:
    return pick<R, float>(p);
  }
  return {};
}

template <class V, class S = V> Kernel sum_of(const Problem& p) {
  if (p.op == Op::sum && DirectRows<Sum<V>, S, false>::serves(p))
    return kernel_of<DirectRows<Sum<V>, S, false>>();
  return kernel_of<ColumnsFirst<Sum<V>>>();
}

// Halves and float32 add up in float32, float64 and integers that become floats in float64.
Kernel sum(const Problem& p) {
  if (p.y_type < Dtype::f16)
    return p.x_type == Dtype::u64 ? kernel_of<ColumnsFirst<Sum<std::uint64_t>>>()
                                  : kernel_of<ColumnsFirst<Sum<std::int64_t>>>();
  if (p.x_type < Dtype::f16 || p.x_type == Dtype::f64 || p.y_type == Dtype::f64) return sum_of<double>(p);
  if (p.x_type == Dtype::f16) return sum_of<float, f16>(p);
  return p.x_type == Dtype::bf16 ? sum_of<float, bf16>(p) : sum_of<float>(p);
}

Kernel forward(const Problem& p) {
  switch (p.op) {
  case Op::max:
    return pick<Max>(p);
  case Op::min:
    return pick<Min>(p);
  default:
    return sum(p);
  }
}

Kernel backward(const Problem& p) {
  return p.x_type == Dtype::f64 ? backward_kernel<double>(p) : backward_kernel<float>(p);
}

}  // namespace

#define NDPOOL_JOIN(a, b) a##b
#define NDPOOL_NAME(a, b) NDPOOL_JOIN(a, b)
#define NDPOOL_TEXT(a) NDPOOL_QUOTE(a)
#define NDPOOL_QUOTE(a) #a
extern const Kernels NDPOOL_NAME(kernels_, NDPOOL_ISA);
const Kernels NDPOOL_NAME(kernels_, NDPOOL_ISA) = {NDPOOL_TEXT(NDPOOL_ISA), forward, backward};

}  // namespace ndpool

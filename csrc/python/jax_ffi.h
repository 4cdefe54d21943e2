// The core as a target of XLA's foreign function interface, for JAX arrays on the CPU.
#pragma once

#include <atomic>

#include "kernels.h"

namespace ndpool {

// The address of the handler for XLA; `chosen`, the set of kernels in use, must outlive every call.
void* jax_handler(const std::atomic<const Kernels*>& chosen);

}  // namespace ndpool

// The forward kernels of each group of types, one function in a file of its own each, compiled once per instruction set
// (NDPOOL_ISA names it). `stride1` is asked first by those that share its windows.
#pragma once

#include "kernels.h"

#define NDPOOL_JOIN(a, b) a##b
#define NDPOOL_NAME(a, b) NDPOOL_JOIN(a, b)

namespace ndpool {

Kernel NDPOOL_NAME(stride1_, NDPOOL_ISA)(const Problem& p);
Kernel NDPOOL_NAME(float32_, NDPOOL_ISA)(const Problem& p);
Kernel NDPOOL_NAME(halves_, NDPOOL_ISA)(const Problem& p);
Kernel NDPOOL_NAME(float64_, NDPOOL_ISA)(const Problem& p);
Kernel NDPOOL_NAME(bytes_, NDPOOL_ISA)(const Problem& p);
Kernel NDPOOL_NAME(integers_, NDPOOL_ISA)(const Problem& p);

}  // namespace ndpool

// The forward kernels of each group of types: one function per source file, compiled once per instruction set
// (NDPOOL_ISA names it). kernels.cpp calls them by type; the groups that support windows of stride 1 call
// `stride1` first.
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

// The instruction sets that are built in, and those of them that this processor supports.
#include "kernels.h"

namespace ndpool {

// Best first; CMake defines NDPOOL_HAS_... for each set that it compiles.
#if defined(NDPOOL_HAS_avx512)
#define NDPOOL_AVX512(DO) DO(avx512)
#else
#define NDPOOL_AVX512(DO)
#endif
#if defined(NDPOOL_HAS_avx2)
#define NDPOOL_AVX2(DO) DO(avx2)
#else
#define NDPOOL_AVX2(DO)
#endif
#define NDPOOL_ISA_LIST(DO) NDPOOL_AVX512(DO) NDPOOL_AVX2(DO) DO(baseline)

#define NDPOOL_DECLARE(isa) extern const Kernels kernels_##isa;
NDPOOL_ISA_LIST(NDPOOL_DECLARE)

namespace {

#if defined(NDPOOL_HAS_avx512)
bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512cd");
}
#endif
#if defined(NDPOOL_HAS_avx2)
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
}
#endif
bool has_baseline() { return true; }

}  // namespace

const Kernels* const* available_kernels(int& count) {
  struct List {
    const Kernels* sets[4];
    int count = 0;
    List() {
#define NDPOOL_ADD(isa) \
  if (has_##isa()) sets[count++] = &kernels_##isa;
      NDPOOL_ISA_LIST(NDPOOL_ADD)
    }
  };
  static const List list;
  count = list.count;
  return list.sets;
}

}  // namespace ndpool

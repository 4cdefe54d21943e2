// A small pool of worker threads: woken for large work only, soon asleep otherwise, rebuilt in a forked child.
#pragma once

#include <cstdint>
#include <functional>

namespace ndpool {

int num_threads();
// n >= 1; 0 goes back to the default: all cores this process may use, one in a forked child.
void set_num_threads(int n);
// Called once by the package: NDPOOL_NUM_THREADS, or 1 in a spawned worker process; 0 leaves the default.
void set_default_threads(int n);

// From now on the main thread works with the threads of the OpenMP library (libgomp) that PyTorch uses, if there is
// one; says whether there is.
bool borrow_threads();

// Calls run(worker, begin, end) for pieces of [0, n) on at most `workers` threads, the caller's among them.
// Pieces are handed out as workers become free; which worker gets which piece never changes a result.
void parallel_for(std::int64_t n, int workers,
                  const std::function<void(int, std::int64_t, std::int64_t)>& run);

}  // namespace ndpool

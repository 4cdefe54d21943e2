#include "threads.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

namespace ndpool {
namespace {

using std::int64_t;

struct Job {
  const std::function<void(int, int64_t, int64_t)>* run;
  int64_t n, piece;
  std::atomic<int64_t> next{0};
  std::atomic<int> joined{0};

  void work(int worker) {
    for (;;) {
      const int64_t begin = next.fetch_add(piece, std::memory_order_relaxed);
      if (begin >= n) return;
      (*run)(worker, begin, std::min(n, begin + piece));
    }
  }
};

class Pool {
public:
  // Only one job runs at a time; a second caller finds the pool busy and works alone.
  std::mutex busy;

  void run(Job& job, int workers) {
    grow(workers - 1);
    {
      std::lock_guard lock(mutex_);
      job_ = &job;
      wanted_ = std::min<int>(workers - 1, int(threads_.size()));
      ++ticket_;
    }
    wake_.notify_all();
    job.work(0);
    std::unique_lock lock(mutex_);
    wanted_ = 0;  // who has not come yet need not
    done_.wait(lock, [&] { return active_ == 0; });
    job_ = nullptr;
  }

private:
  void grow(int n) {
    while (int(threads_.size()) < n) {
      try {
        threads_.emplace_back([this] { serve(); });
      } catch (const std::system_error&) {
        return;  // no more threads to be had: fewer do the work
      }
      threads_.back().detach();
    }
  }

  void serve() {
    std::unique_lock lock(mutex_);
    int64_t seen = 0;
    for (;;) {
      wake_.wait(lock, [&] { return wanted_ > 0 && ticket_ != seen; });
      seen = ticket_;
      --wanted_;
      ++active_;
      Job* job = job_;
      const int worker = job->joined.fetch_add(1) + 1;
      lock.unlock();
      job->work(worker);
      lock.lock();
      if (--active_ == 0) done_.notify_one();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::vector<std::thread> threads_;
  Job* job_ = nullptr;
  int wanted_ = 0, active_ = 0;
  int64_t ticket_ = 0;
};

std::atomic<Pool*> pool{nullptr};
std::atomic<int> chosen{0}, fallback{0};
std::atomic<bool> forked{false};

int usable_cores() {
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
#endif
  return std::max(1u, std::thread::hardware_concurrency());
}

// The parent's threads do not exist in a forked child: forget the pool (its memory is left alone, a lock in it
// may be held for ever) and start a new one when needed.
void after_fork_in_child() {
  pool.store(nullptr);
  forked.store(true);
}

Pool& the_pool() {
  Pool* found = pool.load();
  if (!found) {
    Pool* made = new Pool;
    if (pool.compare_exchange_strong(found, made))
      found = made;
    else
      delete made;
  }
  return *found;
}

[[maybe_unused]] const int watching_forks = pthread_atfork(nullptr, nullptr, after_fork_in_child);

}  // namespace

int num_threads() {
  if (const int n = chosen.load()) return n;
  if (const int n = fallback.load()) return n;
  return forked.load() ? 1 : usable_cores();
}

void set_num_threads(int n) { chosen.store(n); }
void set_default_threads(int n) { fallback.store(n); }

void parallel_for(int64_t n, int workers, const std::function<void(int, int64_t, int64_t)>& run) {
  workers = int(std::min<int64_t>(workers, n));
  if (workers > 1) {
    Pool& workers_pool = the_pool();
    std::unique_lock lock(workers_pool.busy, std::try_to_lock);
    if (lock) {
      Job job{&run, n, std::max<int64_t>(1, n / (int64_t(workers) * 8))};
      workers_pool.run(job, workers);
      return;
    }
  }
  if (n > 0) run(0, 0, n);
}

}  // namespace ndpool

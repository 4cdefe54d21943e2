// The thread pool, the threads borrowed from OpenMP, and parallel_for.
#include "runtime/threads.h"

#include <pthread.h>
#include <sched.h>
#if defined(__linux__)
#include <dlfcn.h>
#include <link.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <limits>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <vector>

namespace ndpool {
namespace {

using std::int64_t;

// Every worker starts with its own share, the same in every call of the same size: the memory of the previous call
// may still be in its cache. A worker that has finished its share takes pieces from the shares of others.
class Job {
public:
  using Run = std::function<void(int, int64_t, int64_t)>;

  Job(const Run& run, int64_t n, int workers, Watch* watch)
      : run_(run), watch_(watch), piece_(workers == 1 ? n : std::max<int64_t>(1, n / (int64_t(workers) * 8))),
        shares_(workers) {
    for (int k = 0; k < workers; ++k) {
      shares_[k].next = n / workers * k + std::min<int64_t>(k, n % workers);
      shares_[k].end = shares_[k].next + n / workers + (k < n % workers);
    }
  }

  int join() { return joined_.fetch_add(1) + 1; }

  void work(int worker) {
    const Subnormals subnormals;
    const int n = int(shares_.size());
    int64_t piece = watch_ ? std::min(piece_, watch_->step()) : piece_;
    for (int k = 0; k < n; ++k) {
      Share& share = shares_[(worker + k) % n];
      for (;;) {
        if (watch_ && watch_->stops()) return;
        // Without a watch, half of the remaining share: fewer pieces, because engines set up anew for each.
        const int64_t left = share.end - share.next.load(std::memory_order_relaxed);
        const int64_t n_taken = watch_ ? piece : std::max(piece, left / 2);
        const int64_t begin = share.next.fetch_add(n_taken, std::memory_order_relaxed);
        if (begin >= share.end) break;
        const int64_t end = std::min(share.end, begin + n_taken);
        if (watch_)
          piece = timed(worker, begin, end, piece);
        else
          run_(worker, begin, end);
      }
    }
  }

private:
  static constexpr std::chrono::milliseconds shortest{25}, longest{100};

  // Runs a piece and returns the size of the next one: smaller if this one took too long, larger if it was short.
  int64_t timed(int worker, int64_t begin, int64_t end, int64_t piece) const {
    const auto start = Watch::Clock::now();
    run_(worker, begin, end);
    const auto took = Watch::Clock::now() - start;
    if (took > longest) return std::max<int64_t>(1, int64_t(double(end - begin) * (longest / 2.0 / took)));
    return took < shortest ? std::min(piece_, 2 * piece) : piece;
  }

  struct alignas(64) Share {
    std::atomic<int64_t> next;
    int64_t end;
  };

  const Run& run_;
  Watch* const watch_;
  const int64_t piece_;
  std::vector<Share> shares_;
  std::atomic<int> joined_{0};
};

// Spins until a condition holds or the time limit has passed; yields to other threads. Returns whether it holds.
template <class Until> bool spin(Until until, std::chrono::microseconds limit) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + limit;
  do {
    for (int i = 0; i < 32; ++i) {
      if (until()) return true;
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
    sched_yield();
  } while (Clock::now() < end);
  return false;
}

class Pool {
public:
  // Sleeping and waking takes longer than many a call: workers spin between calls in quick succession, and a
  // caller spins for as long as a worker's last piece should take.
  static constexpr std::chrono::microseconds worker_spin{200}, caller_spin{1000};

  // One job runs at a time; a second caller finds the pool busy and works alone. So does a signal handler that
  // calls a pooling function while it interrupts a call of its own thread, which is why this is not a mutex.
  std::atomic<bool> busy{false};

  void run(Job& job, int workers) {
    grow(workers - 1);
    keep_off_this_cpu();
    {
      std::lock_guard lock(mutex_);
      job_ = &job;
      wanted_ = std::min<int>(workers - 1, int(threads_.size()));
      ++ticket_;
    }
    wake_.notify_all();
    job.work(0);
    std::unique_lock lock(mutex_);
    wanted_ = 0;  // workers that have not joined yet are not needed
    if (active_ > 0) {
      lock.unlock();
      spin([&] { return active_ == 0; }, caller_spin);
      lock.lock();
      done_.wait(lock, [&] { return active_ == 0; });
    }
    job_ = nullptr;
  }

private:
  void grow(int n) {
    while (int(threads_.size()) < n) {
      try {
        std::thread thread([this] { work_loop(); });
        threads_.push_back(thread.native_handle());
        thread.detach();
      } catch (const std::system_error&) {
        return;  // fewer threads do the work
      }
      avoided_ = -1;
    }
  }

  // The system may wake a sleeping worker on the caller's processor, where it waits for the caller although other
  // processors are idle: workers are barred from that processor.
  void keep_off_this_cpu() {
#if defined(__linux__)
    const int cpu = sched_getcpu();
    cpu_set_t others;
    if (cpu < 0 || cpu == avoided_ || sched_getaffinity(0, sizeof others, &others) != 0) return;
    avoided_ = cpu;
    if (CPU_COUNT(&others) > 1) CPU_CLR(cpu, &others);
    for (const auto thread : threads_) pthread_setaffinity_np(thread, sizeof others, &others);
#endif
  }

  void work_loop() {
    std::unique_lock lock(mutex_);
    int64_t seen = 0;
    for (;;) {
      lock.unlock();
      const bool called = spin([&] { return ticket_ != seen; }, worker_spin);
      lock.lock();
      if (called && wanted_ == 0) {  // too late: the job needs no more workers
        seen = ticket_;
        continue;
      }
      wake_.wait(lock, [&] { return wanted_ > 0 && ticket_ != seen; });
      seen = ticket_;
      --wanted_;
      ++active_;
      Job* job = job_;
      const int worker = job->join();
      lock.unlock();
      job->work(worker);
      lock.lock();
      if (--active_ == 0) done_.notify_one();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::vector<std::thread::native_handle_type> threads_;
  int avoided_ = -1;  // the processor that is left to the caller
  Job* job_ = nullptr;
  int wanted_ = 0;
  std::atomic<int> active_{0};  // written under the lock, read without it
  std::atomic<int64_t> ticket_{0};
};

// The functions of an OpenMP library in this process. Its threads spin while they wait for more work: threads of
// our own would compete with them for the processors.
struct Team {
  void (*parallel)(void (*)(void*), void*, unsigned, unsigned) = nullptr;
  int (*worker)() = nullptr;
  int (*size)() = nullptr;
  int (*max_size)() = nullptr;
  int (*in_parallel)() = nullptr;

  bool complete() const { return parallel && worker && size && max_size && in_parallel; }
};

// Whether this process was forked without an exec since: the threads that a library assumes may exist in the
// parent only. True if the system does not say.
bool was_forked() {
#if defined(__linux__)
  constexpr unsigned fork_no_exec = 0x40;  // the kernel's PF_FORKNOEXEC
  char text[512];
  std::FILE* file = std::fopen("/proc/self/stat", "re");
  if (!file) return true;
  text[std::fread(text, 1, sizeof text - 1, file)] = 0;
  std::fclose(file);
  const char* name_end = std::strrchr(text, ')');  // the program's name may contain any character
  unsigned flags = 0;
  if (!name_end || std::sscanf(name_end + 1, " %*c %*d %*d %*d %*d %*d %u", &flags) != 1) return true;
  return flags == 0 || flags & fork_no_exec;
#else
  return true;
#endif
}

// Whether the system grants n more threads at the same time.
bool grants_threads(int n) {
  std::mutex mutex;
  std::unique_lock lock(mutex);  // no thread ends before its release
  std::vector<std::thread> threads;
  bool granted = true;
  try {
    threads.reserve(size_t(n));
    while (int(threads.size()) < n) threads.emplace_back([&mutex] { std::lock_guard wait(mutex); });
  } catch (...) {
    granted = false;
  }
  lock.unlock();
  for (std::thread& thread : threads) thread.join();
  return granted;
}

Team team;
std::atomic<bool> has_team{false};

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

// The parent's threads do not exist in a forked child: drop the pool, and create a new one when needed. The old
// one is leaked, because its lock may be held forever.
void after_fork_in_child() {
  pool.store(nullptr);
  forked.store(true);
}

Pool& the_pool() {
  Pool* current = pool.load();
  if (!current) {
    Pool* created = new Pool;
    if (pool.compare_exchange_strong(current, created))
      current = created;
    else
      delete created;
  }
  return *current;
}

[[maybe_unused]] const int watching_forks = pthread_atfork(nullptr, nullptr, after_fork_in_child);

}  // namespace

// Each thread that calls an OpenMP library has its own team there: only that of the main thread is borrowed, at
// its present size. A forked child has none. The library ends the process if the system refuses it a thread:
// before it creates any, as many threads are created on trial.
bool borrows(int workers) {
#if defined(__linux__)
  thread_local const bool is_main = getpid() == gettid();  // also true in a forked child, hence `forked`
  if (workers < 2 || !has_team.load(std::memory_order_acquire) || forked.load() || !is_main ||
      team.in_parallel() || team.max_size() != workers)
    return false;
  static std::atomic<int> current{1};                                // the size of the team
  static std::atomic<int> refused{std::numeric_limits<int>::max()};  // the smallest size that was refused
  if (workers >= refused.load()) return false;
  if (workers > current.load() && !grants_threads(workers - 1)) {
    refused.store(workers);
    return false;
  }
  current.store(workers);  // the library ends threads that a smaller team does not need
  return true;
#else
  return false;
#endif
}

int num_threads() {
  if (const int n = chosen.load()) return n;
  if (const int n = fallback.load()) return n;
  return forked.load() ? 1 : usable_cores();
}

void set_num_threads(int n) { chosen.store(n); }
void set_default_threads(int n) { fallback.store(n); }

bool borrow_threads() {
#if defined(__linux__)
  std::string path;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* result) {
        const char* name = std::strrchr(info->dlpi_name, '/');
        const bool fits = name && std::strncmp(name, "/libgomp", 8) == 0;
        const bool of_torch = fits && std::strstr(info->dlpi_name, "/torch");  // PyTorch may bundle a copy
        auto& best = *static_cast<std::string*>(result);
        if (of_torch || (fits && best.empty())) best = info->dlpi_name;
        return int(of_torch);
      },
      &path);
  void* library = path.empty() || has_team.load() || was_forked()
                      ? nullptr
                      : dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD);
  if (library) {
    const auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    };
    find(team.parallel, "GOMP_parallel");
    find(team.worker, "omp_get_thread_num");
    find(team.size, "omp_get_num_threads");
    find(team.max_size, "omp_get_max_threads");
    find(team.in_parallel, "omp_in_parallel");
    has_team.store(team.complete(), std::memory_order_release);
  }
#endif
  return has_team.load();
}

namespace {

// Tries to acquire the workers for one call, and releases them at the end of the scope.
class WorkersLock {
public:
  WorkersLock() : pool_(the_pool()), acquired_(!pool_.busy.exchange(true, std::memory_order_acquire)) {}
  WorkersLock(const WorkersLock&) = delete;
  ~WorkersLock() {
    if (acquired_) pool_.busy.store(false, std::memory_order_release);
  }
  explicit operator bool() const { return acquired_; }

private:
  Pool& pool_;
  const bool acquired_;
};

}  // namespace

bool run_on_borrowed(int workers, void (*run)(void*), void* data) {
  if (!borrows(workers)) return false;
  const WorkersLock lock;
  if (lock) team.parallel(run, data, unsigned(workers), 0);
  return bool(lock);
}

Place place_among_borrowed() { return {team.worker(), team.size()}; }

void parallel_for(int64_t n, int workers, const std::function<void(int, int64_t, int64_t)>& run,
                  Watch* watch) {
  workers = int(std::min<int64_t>(workers, n));
  if (workers > 1)
    if (const WorkersLock lock; lock) {
      Job job(run, n, workers, watch);
      if (borrows(workers))
        team.parallel([](void* data) { static_cast<Job*>(data)->work(team.worker()); }, &job, workers, 0);
      else
        the_pool().run(job, workers);
      return;
    }
  if (n > 0 && watch) {
    Job(run, n, 1, watch).work(0);
  } else if (n > 0) {
    const Subnormals subnormals;
    run(0, 0, n);
  }
}

}  // namespace ndpool

// Local training of many clients: one client to a thread.
#include <atomic>
#include <functional>
#include <new>
#include <system_error>
#include <thread>

#include "_scores.hpp"
#include "_sequence.hpp"
#include "_worker.hpp"

namespace {

// Clients go to whichever thread is free, the last ones first: callers put those with most records there.
template <typename One, typename Model, typename Make>
int share(const Job* job, const Make& make) {
  try {
    const Model model = make();
    std::vector<One> workers;
    workers.reserve(job->threads);
    for (Int t = 0; t < std::min(job->threads, job->clients); t++) workers.emplace_back(*job, model);
    std::atomic<Int> left{job->clients};
    auto work = [&](One& worker) {
      for (Int client; (client = --left) >= 0;) worker.train(client);
    };
    std::vector<std::thread> threads;
    threads.reserve(workers.size());
    try {
      for (size_t t = 1; t < workers.size(); t++) threads.emplace_back(work, std::ref(workers[t]));
    } catch (const std::system_error&) {  // fewer threads do the same work
    }
    if (!workers.empty()) work(workers[0]);
    for (std::thread& thread : threads) thread.join();
    return 0;
  } catch (const std::bad_alloc&) {
    return 1;
  }
}

}  // namespace

extern "C" {

// Whether this machine has the instructions that this file was compiled for.
int usable() {
#if defined(__x86_64__)
#ifdef __AVX512F__
  if (!__builtin_cpu_supports("avx512f")) return 0;
#endif
#ifdef __AVX512VL__
  if (!__builtin_cpu_supports("avx512vl")) return 0;
#endif
#ifdef __AVX2__
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return 0;
#endif
#endif
  return 1;
}

// 0 if done, 1 if there is not enough memory.
int train(const Job* job) {
  return share<Worker, Net>(job, [&] { return Net(*job); });
}

// The same for models that read text.
int train_text(const Job* job, const Text* text) {
  return share<Reader, Text>(job, [&] { return *text; });
}
}

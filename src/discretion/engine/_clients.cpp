// Local training of many clients, one client to a thread; and sums of the clipped gradients of records.
#include <atomic>
#include <functional>
#include <new>
#include <system_error>
#include <thread>

#include "_records.hpp"
#include "_scores.hpp"
#include "_sequence.hpp"

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

// What sums of one model and its records need, kept between calls; null if there is not enough memory.
// The job's records must stay where they are; its batch is the most that are taken together.
void* open_sums(const Job* job) {
  try {
    return new Session(*job);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

// Adds to the total. 0 if done, 1 if there is not enough memory, 2 if there is no such record.
int add_clipped(void* session, const Clipping* clipping, Int known) {
  for (Int i = 0; i < clipping->count; i++)
    if (clipping->records[i] < 0 || clipping->records[i] >= known) return 2;
  try {
    static_cast<Session*>(session)->clipper.add(*clipping);
    return 0;
  } catch (const std::bad_alloc&) {
    return 1;
  }
}

void close_sums(void* session) { delete static_cast<Session*>(session); }
}

// What a model says of records: one batch of them to a thread.
#pragma once

#include <atomic>
#include <system_error>
#include <thread>

#include "_worker.hpp"

extern "C" {

// Into (count, classes) the job's updates: the logits of its records from 0 to `count`, at most `batch` at a time.
// 0 if done, 1 if there is not enough memory.
int score(const Job* job, Int count) {
  try {
    const Net net(*job);
    const Int batch = std::min(job->batch, records_at_once(net));
    const Int batches = (count + batch - 1) / batch;
    std::vector<Worker> workers;
    workers.reserve(job->threads);
    for (Int t = 0; t < std::min(job->threads, batches); t++) workers.emplace_back(*job, net);
    std::vector<std::vector<float>> models(workers.size(), {job->model, job->model + job->size});
    std::atomic<Int> next{0};
    auto work = [&](size_t t) {
      workers[t].be(models[t].data());
      for (Int i; (i = next++) < batches;)
        workers[t].score(i * batch, std::min((i + 1) * batch, count), job->updates);
    };
    std::vector<std::thread> threads;
    threads.reserve(workers.size());
    try {
      for (size_t t = 1; t < workers.size(); t++) threads.emplace_back(work, t);
    } catch (const std::system_error&) {  // fewer threads do the same work
    }
    if (!workers.empty()) work(0);
    for (std::thread& thread : threads) thread.join();
    return 0;
  } catch (const std::bad_alloc&) {
    return 1;
  }
}
}

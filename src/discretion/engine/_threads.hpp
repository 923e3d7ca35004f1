// Work that threads share.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <thread>

#include "_net.hpp"

namespace {

// 0 if done, 1 if there is not enough memory: no other exception is thrown here.
template <typename Work>
int done(const Work& work) {
  try {
    work();
    return 0;
  } catch (const std::exception&) {
    return 1;
  }
}

// Calls work(one, i) for each i below `count`, the last first. Each thread has a One of its own, made of the
// job and the model, and takes the next i when it is free.
template <typename One, typename Model, typename Work>
void share(const Job& job, const Model& model, Int count, const Work& work) {
  const Int most = std::min(job.threads, count);
  std::vector<One> each;
  each.reserve(most);
  for (Int t = 0; t < most; t++) each.emplace_back(job, model);
  std::atomic<Int> left{count};
  auto take = [&](One& one) {
    for (Int i; (i = --left) >= 0;) work(one, i);
  };
  std::vector<std::thread> threads;
  threads.reserve(most);
  try {
    for (Int t = 1; t < most; t++) threads.emplace_back(take, std::ref(each[t]));
  } catch (const std::exception&) {  // fewer threads do the same work
  }
  if (most > 0) take(each[0]);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

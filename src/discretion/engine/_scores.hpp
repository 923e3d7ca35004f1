// What a model says of records.
#pragma once

#include "_forward.hpp"

namespace {

class Scorer : Forward {  // one thread's
 public:
  Scorer(const Job& job, const Net& net) : Forward(job, net) {
    enter(const_cast<float*>(job.model));  // which nothing writes to
  }

  // Into (n, classes) the job's updates: the logits of the records from first to last.
  void score(Int first, Int last) {
    records = 0;
    for (Int record = first; record < last; record++) take(record);
    forward();
    for (Int n = 0; n < records; n++)
      std::copy_n(&logits[n * net.wide_classes], net.classes, job.updates + (first + n) * net.classes);
  }
};

}  // namespace

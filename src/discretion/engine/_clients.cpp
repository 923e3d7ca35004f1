// What Python calls: local training, logits, and what is clipped and added up.
#include "_clip.hpp"
#include "_records.hpp"
#include "_scores.hpp"
#include "_sequence.hpp"
#include "_threads.hpp"

extern "C" {

// Whether this machine has the instructions that this file was compiled for, those that matter here.
int usable() {
#if defined(__x86_64__)
#ifdef __AVX512F__
  if (!__builtin_cpu_supports("avx512f")) return 0;
#endif
#ifdef __AVX512VL__
  if (!__builtin_cpu_supports("avx512vl")) return 0;
#endif
#ifdef __AVX512DQ__
  if (!__builtin_cpu_supports("avx512dq")) return 0;
#endif
#ifdef __AVX512BW__
  if (!__builtin_cpu_supports("avx512bw")) return 0;
#endif
#ifdef __AVX2__
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return 0;
#endif
#ifdef __BMI2__
  if (!__builtin_cpu_supports("bmi2")) return 0;
#endif
#endif
  return 1;
}

// Functions that return a number return 0 if they are done, 1 if there is not enough memory.

// Callers put clients with most records last: they are trained first.
int train(const Job* job) {
  return done([&] {
    const Net net(*job);
    share<Worker>(*job, net, job->clients, [](Worker& worker, Int client) { worker.train(client); });
  });
}

// The same for models that read text.
int train_text(const Job* job, const Text* text) {
  return done([&] {
    share<Reader>(*job, *text, job->clients, [](Reader& reader, Int client) { reader.train(client); });
  });
}

// Into (count, classes) the job's updates: the logits of its records from 0 to `count`, at most `batch` at a
// time.
int score(const Job* job, Int count) {
  return done([&] {
    const Net net(*job);
    const Int batch = std::min(job->batch, records_at_once(net)), batches = (count + batch - 1) / batch;
    share<Scorer>(*job, net, batches, [=](Scorer& scorer, Int i) {
      scorer.score(i * batch, std::min((i + 1) * batch, count));
    });
  });
}

// What sums of one model and its records need, kept between calls; null if there is not enough memory.
// The job's records must stay where they are; its batch is the most that are taken together.
void* open_sums(const Job* job) {
  Session* session = nullptr;
  done([&] { session = new Session(*job); });
  return session;
}

// Adds to the total and the squares. 2 if there is no such record.
int clip_and_add(void* session, const Clipping* clipping, Int known) {
  for (Int i = 0; i < clipping->count; i++)
    if (clipping->records[i] < 0 || clipping->records[i] >= known) return 2;
  return done([&] { static_cast<Session*>(session)->clipper.add(*clipping); });
}

void close_sums(void* session) { delete static_cast<Session*>(session); }

// (count,) the squared norms of rows of `width` floats, which are `pitch` floats apart.
void row_squares(const float* rows, Int count, Int pitch, Int width, double* found) {
  for (Int i = 0; i < count; i++) found[i] = squares(rows + i * pitch, width);
}

// Adds to the (width,) total each row times its share.
void add_rows(const float* rows, Int count, Int pitch, Int width, const double* share, double* total) {
  add_weighted(rows, count, pitch, width, share, total);
}
}

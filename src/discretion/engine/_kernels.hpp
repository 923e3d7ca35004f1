// The inner loops of local training, over short vectors of floats.
//
// Images lie in memory as rows of pixels, each with all its channels, so that a row of a convolution's window
// is one run of floats. No flag here lets the compiler assume that numbers are finite: a NaN stays a NaN.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

namespace kernels {

constexpr int L = 8;  // floats in a vector

typedef float Lanes __attribute__((vector_size(32)));
typedef int32_t Marks __attribute__((vector_size(32)));
typedef float LooseLanes __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t LooseMarks __attribute__((vector_size(32), aligned(4), may_alias));

#ifdef __AVX512VL__
constexpr int REGISTERS = 32;
#else
constexpr int REGISTERS = 16;
#endif

constexpr int64_t whole(int64_t n) { return (n + L - 1) / L * L; }

inline Lanes load(const float* p) { return *reinterpret_cast<const LooseLanes*>(p); }
inline void store(float* p, Lanes v) { *reinterpret_cast<LooseLanes*>(p) = v; }
inline void store(int32_t* p, Marks v) { *reinterpret_cast<LooseMarks*>(p) = v; }
inline Lanes all(float x) { return Lanes{x, x, x, x, x, x, x, x}; }
inline Marks all(int32_t x) { return Marks{x, x, x, x, x, x, x, x}; }
inline float sum(Lanes v) { return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7])); }

// One step of SGD, as torch does it: velocity = momentum velocity + slope + decay weight.
struct Sgd {
  float rate, momentum, decay;
  bool plain() const { return momentum == 0 && decay == 0; }
};

enum Way { PLAIN, MOMENTUM, GATHER };  // the last moves nothing yet: slopes are added up

// kept: the velocities, or the sums of slopes
template <Way WAY>
inline Lanes moved(const Sgd& sgd, Lanes weight, Lanes slope, float* kept) {
  if (WAY == PLAIN) return weight - sgd.rate * slope;
  Lanes v = WAY == GATHER ? load(kept) + slope : sgd.momentum * load(kept) + (slope + sgd.decay * weight);
  store(kept, v);
  return WAY == GATHER ? weight : weight - sgd.rate * v;
}

inline void move(const Sgd& sgd, float& weight, float slope, float& velocity) {
  if (!sgd.plain()) slope = velocity = sgd.momentum * velocity + (slope + sgd.decay * weight);
  weight -= sgd.rate * slope;
}

// P pixels times V vectors of output channels of a convolution.
// at: where each pixel's window starts. weight: (rows, run, V L). z: P pixels, `wide` floats from each other.
template <int P, int V>
inline void convolve_tile(const float* const* at, const float* weight, int64_t rows, int64_t pitch,
                          int64_t run, const float* bias, float* z, int64_t wide) {
  Lanes a[P][V];
  const float* x[P];
  for (int p = 0; p < P; p++) {
    x[p] = at[p];
    for (int v = 0; v < V; v++) a[p][v] = load(bias + v * L);
  }
  for (int64_t i = 0; i < rows; i++) {
    for (int64_t t = 0; t < run; t++) {
      Lanes w[V];
#pragma GCC unroll 4
      for (int v = 0; v < V; v++) w[v] = load(weight + v * L);
#pragma GCC unroll 16
      for (int p = 0; p < P; p++) {
        Lanes one = all(x[p][t]);
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) a[p][v] += one * w[v];
      }
      weight += V * L;
    }
    for (int p = 0; p < P; p++) x[p] += pitch;
  }
  for (int p = 0; p < P; p++)
    for (int v = 0; v < V; v++) store(z + p * wide + v * L, a[p][v]);
}

// A slope that reached one output pixel of a convolution, and where that pixel's window starts.
struct Entry {
  int64_t at;
  float slope;
};

// weight slopes (R rows of V vectors) += slope times window, over all entries
template <int R, int V>
void weight_slopes(const Entry* entry, int64_t count, const float* x, int64_t pitch, float* slopes,
                   int64_t wide) {
  Lanes a[R][V];
  for (int r = 0; r < R; r++)
    for (int v = 0; v < V; v++) a[r][v] = load(slopes + r * wide + v * L);
  for (int64_t e = 0; e < count; e++) {
    Lanes g = all(entry[e].slope);
    const float* window = x + entry[e].at;
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 16
      for (int v = 0; v < V; v++) a[r][v] += g * load(window + r * pitch + v * L);
  }
  for (int r = 0; r < R; r++)
    for (int v = 0; v < V; v++) store(slopes + r * wide + v * L, a[r][v]);
}

// input slopes += slope times weight (R rows of V vectors), over all entries
template <int R, int V>
void input_slopes(const Entry* entry, int64_t count, const float* weight, int64_t wide, float* dx,
                  int64_t pitch) {
  Lanes w[R][V];
  for (int r = 0; r < R; r++)
    for (int v = 0; v < V; v++) w[r][v] = load(weight + r * wide + v * L);
  for (int64_t e = 0; e < count; e++) {
    Lanes g = all(entry[e].slope);
    float* window = dx + entry[e].at;
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 16
      for (int v = 0; v < V; v++) {
        float* p = window + r * pitch + v * L;
        store(p, load(p) + g * w[r][v]);
      }
  }
}

// Calls work with n as a compile-time constant, for n from 1 to MOST.
template <int MOST, typename Work>
void as_constant(int64_t n, const Work& work) {
  if constexpr (MOST > 1)
    if (n < MOST) return as_constant<MOST - 1>(n, work);
  work(std::integral_constant<int, MOST>());
}

// Calls work(V, first float) until `wide` floats are covered, V vectors at a time; V is a constant.
template <typename Work>
void in_blocks(int64_t wide, const Work& work) {
  for (int64_t o = 0; o < wide;) {
    const int64_t left = (wide - o) / L, two_or_three = left % 2 ? 3 : 2;
    const int64_t vectors = left == 1 ? 1 : REGISTERS > 16 && left % 4 == 0 ? 4 : two_or_three;
    as_constant<4>(vectors, [&](auto V) { work(V, o); });
    o += vectors * L;
  }
}

// Calls work(R, V, first row, first vector), sizes as constants, until a window of rows x vectors is covered.
template <typename Work>
void cover(int64_t rows, int64_t vectors, const Work& work) {
  constexpr int most = 10;  // vectors held in registers
  for (int64_t first = 0; first < vectors; first += most)
    as_constant<most>(std::min<int64_t>(vectors - first, most), [&](auto V) {
      constexpr int together = most / V;
      for (int64_t row = 0; row < rows; row += together)
        as_constant<together>(std::min<int64_t>(rows - row, together),
                              [&](auto R) { work(R, V, row, first); });
    });
}

// z[n][o] += weight[o] . x[n] for O outputs and N records, over `length` floats (a multiple of L)
template <int O, int N>
void multiply_tile(const float* weight, int64_t pitch, const float* x, int64_t wide, int64_t length, float* z,
                   int64_t outs) {
  Lanes a[O][N] = {};
  for (int64_t f = 0; f < length; f += L) {
    Lanes h[N];
#pragma GCC unroll 8
    for (int n = 0; n < N; n++) h[n] = load(x + n * wide + f);
#pragma GCC unroll 8
    for (int o = 0; o < O; o++) {
      Lanes w = load(weight + o * pitch + f);
#pragma GCC unroll 8
      for (int n = 0; n < N; n++) a[o][n] += w * h[n];
    }
  }
  for (int o = 0; o < O; o++)
    for (int n = 0; n < N; n++) z[n * outs + o] += sum(a[o][n]);
}

// One pass over O rows of a linear layer's weights: dx += slope . weight, then the weights move.
// slope: (records, O). x, dx: (records, wide). `length` floats of each row, a multiple of L.
template <int O, bool DX, Way WAY>
void linear_back(const Sgd& sgd, float* weight, float* kept, int64_t pitch, const float* slope,
                 int64_t records, const float* x, float* dx, int64_t wide, int64_t length) {
  for (int64_t f = 0; f < length; f += L) {
    Lanes w[O], u[O] = {};
#pragma GCC unroll 8
    for (int o = 0; o < O; o++) w[o] = load(weight + o * pitch + f);
    for (int64_t n = 0; n < records; n++) {
      Lanes h = load(x + n * wide + f), d = {};
      if (DX) d = load(dx + n * wide + f);
#pragma GCC unroll 8
      for (int o = 0; o < O; o++) {
        Lanes g = all(slope[n * O + o]);
        u[o] += g * h;
        if (DX) d += g * w[o];
      }
      if (DX) store(dx + n * wide + f, d);
    }
#pragma GCC unroll 8
    for (int o = 0; o < O; o++)
      store(weight + o * pitch + f, moved<WAY>(sgd, w[o], u[o], kept + o * pitch + f));
  }
}

}  // namespace kernels

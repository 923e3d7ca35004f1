// Norms and sums of rows of floats, in doubles, so that nothing is lost.
#pragma once

#include "_net.hpp"

namespace {

constexpr Int SUM_BLOCK = 2048;  // doubles that stay in the nearest cache while rows are added to them

inline double squares(const float* x, Int count) {
  double total[L] = {};
  Int i = 0;
  for (; i + L <= count; i += L)
    for (int k = 0; k < L; k++) total[k] += double(x[i + k]) * double(x[i + k]);
  for (int k = 0; i + k < count; k++) total[k] += double(x[i + k]) * double(x[i + k]);
  return ((total[0] + total[4]) + (total[2] + total[6])) + ((total[1] + total[5]) + (total[3] + total[7]));
}

// total += the sum over R rows of share times row
template <int R>
void add_some(const float* x, Int pitch, const double* share, Int width, double* __restrict total) {
  for (Int j = 0; j < width; j++) {
    double sum = total[j];
    for (int r = 0; r < R; r++) sum += share[r] * double(x[r * pitch + j]);
    total[j] = sum;
  }
}

void add_weighted(const float* x, Int rows, Int pitch, Int width, const double* share, double* total) {
  for (Int first = 0; first < width; first += SUM_BLOCK) {
    const Int here = std::min(SUM_BLOCK, width - first);
    for (Int row = 0; row < rows; row += 4)
      as_constant<4>(std::min<Int>(4, rows - row), [&](auto R) {
        add_some<R>(x + row * pitch + first, pitch, share + row, here, total + first);
      });
  }
}

}  // namespace

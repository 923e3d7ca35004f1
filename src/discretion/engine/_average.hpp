// Average pooling, of windows that lie within the image.
#pragma once

#include "_net.hpp"

namespace {

// out: where the next layer wants the means of a record's pixels (pixels, wide_outs)
[[gnu::noinline]] void average(const Layer& y, const float* pixels, float* out) {
  const Int count = y.is.pool[0] * y.is.pool[1];
  const Int* pixel = y.window.data();
  for (Int i = 0; i < y.cells(); i++, pixel += count)
    for (Int o = 0; o < y.wide_outs; o += L) {
      Lanes mean = {};
      for (Int j = 0; j < count; j++) mean += load(pixels + pixel[j] * y.wide_outs + o);
      mean /= all(float(count));
      if (y.is.relu) mean = mean < 0 ? Lanes{} : mean;
      for (Int k = 0; k < L && o + k < y.outs; k++) out[y.cell[i] + (o + k) * y.cell_step] = mean[k];
    }
}

// dx: slopes along a record's input. out, slopes: what average() gave, and the slopes along it
void average_slopes(const Layer& y, const float* out, const float* slopes, float* dx) {
  const Int count = y.is.pool[0] * y.is.pool[1];
  const Int* pixel = y.window.data();
  for (Int i = 0; i < y.cells(); i++, pixel += count)
    for (Int o = 0; o < y.outs; o++) {
      const Int at = y.cell[i] + o * y.cell_step;
      const float share = y.is.relu && !(out[at] > 0) ? 0 : slopes[at] / float(count);
      for (Int j = 0; j < count; j++) dx[y.start[pixel[j]] + o] += share;
    }
}

}  // namespace

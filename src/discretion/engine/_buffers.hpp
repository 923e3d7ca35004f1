// What one thread keeps of a layer, and how many records of a batch it keeps at a time.
#pragma once

#include "_norm.hpp"

namespace {

constexpr Int NEAR = 24 * 1024 / sizeof(float);  // floats that surely stay in the nearest cache
constexpr Int AT_ONCE = 1 << 24;                 // floats of the records that are kept at a time

struct Buffers {
  Floats input, slope;  // (batch, size) and the loss's slope along it
  Floats weight, velocity, bias, bias_velocity;
  Floats weight_slope, bias_slope;  // a linear layer's weights have one if a batch comes in slices
  Floats packed;                    // of a convolution
  std::vector<int32_t> winner;      // (batch, cells, wide_outs) who won a window, or -1 where ReLU is 0
  Norm norm;
  float* moving = nullptr;  // the weights that are trained

  Buffers(const Layer& y, Int batch, bool first, bool plain, bool sliced) {
    input.resize(batch * y.size);
    slope.resize(first ? 0 : batch * y.size);
    for (Floats* f : {&bias, &bias_velocity, &bias_slope}) f->resize(y.wide_outs);
    const Int count = y.weights ? y.outs * y.is.kernel[0] * y.wide_run : 0;
    weight.resize(y.in_place ? 0 : count);
    velocity.resize(plain ? 0 : count);
    weight_slope.resize(y.is.linear && !sliced ? 0 : count);
    if (y.is.linear) return;
    packed.resize(count ? y.is.kernel[0] * y.run * y.wide_outs : 0);
    winner.resize(y.is.average ? 0 : batch * y.cells() * y.wide_outs);
    if (y.is.groups) norm.resize(y, batch);
  }
};

// How many records of a batch a thread keeps. It depends on the model only, as a client's update may.
Int records_at_once(const Net& net) {
  Int each = 2 * net.wide_classes;
  for (const Layer& y : net.layers)
    each += 2 * y.size + (y.is.linear ? 0 : (y.cells() + (y.is.groups ? y.pixels() : 0)) * y.wide_outs);
  return std::max<Int>(1, AT_ONCE / each);
}

// How many records go back through a spatial layer together.
Int records_together(const Layer& y) { return std::max<Int>(2, NEAR / y.size); }

}  // namespace

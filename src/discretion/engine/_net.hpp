// A model as a stack of layers, and what is asked of the clients.
//
// Layers are spatial (a convolution or none, then perhaps group normalisation, then pooling over windows of 1
// or more pixels, then perhaps ReLU) or linear.
#pragma once

#include <numeric>
#include <new>
#include <vector>

#include "_kernels.hpp"

using namespace kernels;
typedef int64_t Int;

extern "C" {

struct Description {  // of a layer; pairs are height and width
  Int linear, outs;   // outs of a spatial layer are 0 where it has no convolution
  Int kernel[2], stride[2], pad[2], pool[2], pool_stride[2], pool_pad[2];
  Int relu, bias;
  Int average;              // pooling is by the mean
  Int groups, gain, shift;  // of normalisation: groups are 0 where there is none
  double eps;
};

struct Job {
  const Description* layers;
  Int depth;
  Int shape[3];          // of a record: channels, height, width
  const uint8_t* bytes;  // (n, shape) records, if not null
  const float* lookup;   // (256,) what each byte stands for
  const float* floats;   // (n, shape) records otherwise
  const Int* labels;     // (n,)
  const Int* records;    // (clients, steps, batch) record numbers
  const uint8_t* real;   // (clients, steps, batch) which of them count
  Int clients, steps, batch;
  const float* rates;  // (steps,)
  float momentum, decay;
  const float* model;  // (size,)
  Int size;
  float* updates;  // (clients, size)
  Int threads;
};
}

namespace {

// Memory that starts where a vector may.
template <typename T>
struct Aligned {
  typedef T value_type;
  Aligned() = default;
  template <typename U>
  Aligned(const Aligned<U>&) {}
  T* allocate(size_t n) { return static_cast<T*>(::operator new(n * sizeof(T), std::align_val_t(64))); }
  void deallocate(T* p, size_t) { ::operator delete(p, std::align_val_t(64)); }
  bool operator==(const Aligned&) const { return true; }
  bool operator!=(const Aligned&) const { return false; }
};

typedef std::vector<float, Aligned<float>> Floats;

struct Layer {
  Description is;
  Int channels, height, width;      // of the input
  Int outs, wide_outs;              // channels after the convolution, and rounded up to vectors
  Int rows, columns;                // pixels after the convolution
  Int out_rows, out_columns;        // pixels after pooling
  Int pitch, size;                  // floats in a padded row of pixels, in a record's input
  Int run, wide_run;                // floats in a row of a window, and rounded up
  Int weight, bias, gain, shift;    // where they start in the flat model
  Int weights;                      // how many floats of weights
  bool in_place;                    // a linear layer whose rows are whole vectors
  std::vector<Int> start;           // (rows columns,) where each pixel's window starts
  std::vector<Int> mark;            // (rows columns,) what is kept of a pixel that won: its start or number
  std::vector<Int> window;          // (pooled pixels, pool) which pixels each is pooled from
  std::vector<Int> cell;            // (pooled pixels,) where each goes in the next layer's input
  Int cell_step;                    // from one channel of it to the next
  Int pixels() const { return rows * columns; }
  Int cells() const { return out_rows * out_columns; }
};

struct Net {
  std::vector<Layer> layers;
  Int classes = 0, wide_classes = 0;

  explicit Net(const Job& job) {
    Int channels = job.shape[0], height = job.shape[1], width = job.shape[2], at = 0;
    for (Int l = 0; l < job.depth; l++) {
      Layer y{};
      y.is = job.layers[l];
      if (y.is.linear) {
        channels *= height * width;  // flattened
        height = width = 1;
      }
      y.channels = channels, y.height = height, y.width = width;
      bool learns = y.is.outs > 0;
      y.outs = learns ? y.is.outs : channels;
      y.wide_outs = whole(y.outs);
      y.run = y.is.kernel[1] * channels, y.wide_run = whole(y.run);
      if (y.is.linear) {
        y.size = whole(channels);
        y.in_place = y.size == channels;
        y.weights = y.outs * channels;
        y.out_rows = y.out_columns = 1;
      } else {
        y.pitch = (width + 2 * y.is.pad[1]) * channels;
        y.size = whole((height + 2 * y.is.pad[0]) * y.pitch + L);
        y.rows = (height + 2 * y.is.pad[0] - y.is.kernel[0]) / y.is.stride[0] + 1;
        y.columns = (width + 2 * y.is.pad[1] - y.is.kernel[1]) / y.is.stride[1] + 1;
        y.out_rows = (y.rows + 2 * y.is.pool_pad[0] - y.is.pool[0]) / y.is.pool_stride[0] + 1;
        y.out_columns = (y.columns + 2 * y.is.pool_pad[1] - y.is.pool[1]) / y.is.pool_stride[1] + 1;
        y.weights = learns ? y.outs * y.is.kernel[0] * y.run : 0;
        for (Int r = 0; r < y.rows; r++)
          for (Int c = 0; c < y.columns; c++)
            y.start.push_back(r * y.is.stride[0] * y.pitch + c * y.is.stride[1] * channels);
        y.mark = y.start;
        if (y.is.groups) std::iota(y.mark.begin(), y.mark.end(), Int(0));
        for (Int i = 0; i < y.cells(); i++) add_window(y, i / y.out_columns, i % y.out_columns);
      }
      y.weight = at;
      y.bias = at += y.weights;
      y.gain = at += learns && y.is.bias ? y.outs : 0;
      y.shift = at += y.is.gain ? y.outs : 0;
      at += y.is.shift ? y.outs : 0;
      channels = y.outs, height = y.out_rows, width = y.out_columns;
      layers.push_back(y);
    }
    for (Int l = 0; l < job.depth; l++) {
      Layer& y = layers[l];
      if (y.is.linear) continue;
      bool spatial = l + 1 < job.depth && !layers[l + 1].is.linear;
      y.cell_step = spatial ? 1 : y.cells();
      for (Int i = 0; i < y.cells(); i++) {
        Int row = i / y.out_columns, column = i % y.out_columns;
        const Layer& next = layers[spatial ? l + 1 : l];
        y.cell.push_back(
            spatial ? (row + next.is.pad[0]) * next.pitch + (column + next.is.pad[1]) * y.outs : i);
      }
    }
    classes = channels * height * width, wide_classes = whole(classes);
  }

  // Where a window reaches beyond the pixels, its first one stands in: it wins nothing over itself.
  static void add_window(Layer& y, Int row, Int column) {
    const Int top = row * y.is.pool_stride[0] - y.is.pool_pad[0];
    const Int left = column * y.is.pool_stride[1] - y.is.pool_pad[1];
    const Int first = std::max<Int>(top, 0) * y.columns + std::max<Int>(left, 0);
    y.window.push_back(first);
    for (Int i = top; i < top + y.is.pool[0]; i++)
      for (Int j = left; j < left + y.is.pool[1]; j++) {
        bool inside = i >= 0 && j >= 0 && i < y.rows && j < y.columns;
        if (!inside || i * y.columns + j != first) y.window.push_back(inside ? i * y.columns + j : first);
      }
  }
};

}  // namespace

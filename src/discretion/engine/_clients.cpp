// Local training of many clients: one client to a thread, all its steps on buffers that stay in cache.
//
// A model is a stack of layers: spatial ones (a convolution or none, then max-pooling over windows of 1 or
// more pixels, then perhaps ReLU) and linear ones. Slopes go back through a spatial layer along the pixels
// that won their pooling window and passed the ReLU, and along no others.
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#include "_kernels.hpp"

using namespace kernels;
typedef int64_t Int;

extern "C" {

struct Description {  // of a layer; pairs are height and width
  Int linear, outs;   // outs of a spatial layer are 0 where it has no convolution
  Int kernel[2], stride[2], pad[2], pool[2], pool_stride[2], pool_pad[2];
  Int relu, bias;
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

constexpr Int NEAR = 24 * 1024 / sizeof(float);  // floats that surely stay in the nearest cache
constexpr Int FORWARD_BLOCK = 512, BACKWARD_BLOCK = 256;

struct Layer {
  Description is;
  Int channels, height, width;      // of the input
  Int outs, wide_outs;              // channels after the convolution, and rounded up to vectors
  Int rows, columns;                // pixels after the convolution
  Int out_rows, out_columns;        // pixels after pooling
  Int pitch, size;                  // floats in a padded row of pixels, in a record's input
  Int run, wide_run;                // floats in a row of a window, and rounded up
  Int weight, bias, weights;        // where they start in the flat model, and how many floats of weights
  bool in_place;                    // a linear layer whose rows are whole vectors
  std::vector<Int> start;           // (rows columns,) where each pixel's window starts
  std::vector<Int> cell;            // (pooled pixels,) where each goes in the next layer's input
  Int cell_step;                    // from one channel of it to the next
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
      }
      y.weight = at;
      y.bias = at += y.weights;
      if (learns && y.is.bias) at += y.outs;
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
};

typedef std::vector<float> Floats;

struct Buffers {  // of one layer, in one thread
  Floats input, slope;  // (batch, size) and the loss's slope along it
  Floats weight, velocity, bias, bias_velocity;
  Floats packed, weight_slope, bias_slope;  // of a convolution
  std::vector<int32_t> winner;  // (batch, cells, wide_outs) whose window won, or -1 where ReLU is 0
  float* moving = nullptr;      // the weights of a linear layer
};

class Worker {
 public:
  Worker(const Job& job, const Net& net) : job(job), net(net), buffers(net.layers.size()) {
    Int most_pixels = 0, most_entries = 0, most_pooled = 1;
    bool plain = job.momentum == 0 && job.decay == 0;
    for (size_t l = 0; l < buffers.size(); l++) {
      const Layer& y = net.layers[l];
      Buffers& b = buffers[l];
      b.input.resize(job.batch * y.size);
      if (l > 0) b.slope.resize(job.batch * y.size);
      b.bias.resize(y.wide_outs);
      b.bias_velocity.resize(y.wide_outs);
      b.bias_slope.resize(y.wide_outs);
      if (y.is.linear) {
        if (!y.in_place) b.weight.resize(y.outs * y.size);
        if (!plain) b.velocity.resize(y.outs * y.size);
        continue;
      }
      b.winner.resize(job.batch * y.cells() * y.wide_outs);
      most_pixels = std::max(most_pixels, y.rows * y.columns * y.wide_outs);
      most_pooled = std::max(most_pooled, y.is.pool[0] * y.is.pool[1]);
      most_entries = std::max(most_entries, job.batch * y.cells());
      if (y.weights) {
        Int count = y.outs * y.is.kernel[0] * y.wide_run;
        b.weight.resize(count);
        b.weight_slope.resize(count);
        b.velocity.resize(plain ? 0 : count);
        b.packed.resize(y.is.kernel[0] * y.run * y.wide_outs);
      }
    }
    z.resize(most_pixels);
    entries.resize(most_entries);
    logits.resize(job.batch * net.wide_classes);
    logit_slope.resize(job.batch * net.wide_classes);
    label.resize(job.batch);
    window.resize(most_pooled);
    portion.resize(job.batch * 4);
  }

  void train(Int client) {
    float* row = job.updates + client * job.size;
    std::memcpy(row, job.model, job.size * sizeof(float));
    begin(row);
    for (Int step = 0; step < job.steps; step++) {
      Int first = (client * job.steps + step) * job.batch;
      records = 0;
      for (Int i = first; i < first + job.batch; i++)
        if (job.real[i]) take(job.records[i]);
      if (records == 0) continue;  // padding, for a client with fewer steps than others
      forward();
      lose();
      backward(Sgd{job.rates[step], job.momentum, job.decay});
    }
    finish(row);
    for (Int i = 0; i < job.size; i++) row[i] -= job.model[i];
  }

 private:
  const Job& job;
  const Net& net;
  std::vector<Buffers> buffers;
  Floats z, logits, logit_slope, portion;
  std::vector<Entry> entries;
  std::vector<Int> label, window;
  Int records = 0;  // in this batch

  float* output(size_t l) { return l + 1 < buffers.size() ? buffers[l + 1].input.data() : logits.data(); }
  float* slope_of_output(size_t l) {
    return l + 1 < buffers.size() ? buffers[l + 1].slope.data() : logit_slope.data();
  }
  Int output_size(size_t l) const {
    return l + 1 < buffers.size() ? net.layers[l + 1].size : net.wide_classes;
  }

  // Whatever the client before left, NaN in a margin included, is wiped.
  void begin(float* row) {
    std::fill(logits.begin(), logits.end(), 0.0f);
    for (size_t l = 0; l < buffers.size(); l++) {
      const Layer& y = net.layers[l];
      Buffers& b = buffers[l];
      for (Floats* f : {&b.input, &b.velocity, &b.bias, &b.bias_velocity, &b.weight})
        std::fill(f->begin(), f->end(), 0.0f);
      if (y.is.bias) std::copy_n(row + y.bias, y.outs, b.bias.begin());
      b.moving = y.in_place ? row + y.weight : b.weight.data();
    }
    exchange(row, true);
  }

  void finish(float* row) {
    for (size_t l = 0; l < buffers.size(); l++)
      if (net.layers[l].is.bias)
        std::copy_n(buffers[l].bias.begin(), net.layers[l].outs, row + net.layers[l].bias);
    exchange(row, false);
  }

  // Weights between torch's order and ours: (outs, rows, columns, channels), each row rounded up.
  void exchange(float* row, bool in) {
    for (size_t l = 0; l < buffers.size(); l++) {
      const Layer& y = net.layers[l];
      float *flat = row + y.weight, *own = buffers[l].weight.data();
      auto swap = [&](Int ours) {
        (in ? own[ours] : *flat) = in ? *flat : own[ours];
        flat++;
      };
      if (y.is.linear && !y.in_place) {
        for (Int o = 0; o < y.outs; o++)
          for (Int i = 0; i < y.channels; i++) swap(o * y.size + i);
      } else if (!y.is.linear && y.weights) {
        for (Int o = 0; o < y.outs; o++)
          for (Int c = 0; c < y.channels; c++)
            for (Int i = 0; i < y.is.kernel[0]; i++)
              for (Int j = 0; j < y.is.kernel[1]; j++)
                swap((o * y.is.kernel[0] + i) * y.wide_run + j * y.channels + c);
      }
    }
  }

  void take(Int record) {
    const Layer& y = net.layers[0];
    const Int plane = y.height * y.width, from = record * y.channels * plane;
    float* x = buffers[0].input.data() + records * y.size;
    Int step = y.is.linear ? 1 : y.channels;  // from a column to the next
    for (Int c = 0; c < y.channels; c++)
      for (Int r = 0; r < y.height; r++) {
        Int at = y.is.linear ? c : (r + y.is.pad[0]) * y.pitch + y.is.pad[1] * y.channels + c;
        const Int source = from + c * plane + r * y.width;
        for (Int i = 0; i < y.width; i++)
          x[at + i * step] = job.bytes ? job.lookup[job.bytes[source + i]] : job.floats[source + i];
      }
    label[records++] = job.labels[record];
  }

  void forward() {
    for (size_t l = 0; l < buffers.size(); l++) {
      if (net.layers[l].is.linear) {
        multiply(l);
        continue;
      }
      if (net.layers[l].weights) pack(l);
      for (Int n = 0; n < records; n++) {
        net.layers[l].weights ? convolve(l, n) : copy(l, n);
        pool(l, n);
      }
    }
  }

  static Int block_of(Int vectors_left) {
    if (vectors_left == 1) return 1;
    if (REGISTERS > 16 && vectors_left % 4 == 0) return 4;
    return vectors_left % 2 ? 3 : 2;
  }

  template <typename Work>
  static void in_blocks(Int wide_outs, const Work& work) {
    for (Int o = 0; o < wide_outs;) {
      Int vectors = block_of((wide_outs - o) / L);
      as_constant<4>(vectors, [&](auto V) { work(V, o); });
      o += vectors * L;
    }
  }

  void pack(size_t l) {
    const Layer& y = net.layers[l];
    Buffers& b = buffers[l];
    float* to = b.packed.data();
    in_blocks(y.wide_outs, [&](auto V, Int o) {
      for (Int i = 0; i < y.is.kernel[0]; i++)
        for (Int t = 0; t < y.run; t++)
          for (Int lane = 0; lane < V * L; lane++) {
            Int from = ((o + lane) * y.is.kernel[0] + i) * y.wide_run + t;
            *to++ = o + lane < y.outs ? b.weight[from] : 0.0f;
          }
    });
  }

  void convolve(size_t l, Int n) {
    const Layer& y = net.layers[l];
    const Buffers& b = buffers[l];
    const float *x = b.input.data() + n * y.size, *weight = b.packed.data();
    const Int pixels = y.rows * y.columns;
    in_blocks(y.wide_outs, [&](auto V, Int o) {
      constexpr int P = V == 1 || (V == 3 && REGISTERS > 16) ? 8 : V == 3 ? 4 : 6;
      auto tile = [&](auto count, Int pixel) {
        const float* at[count];
        for (Int p = 0; p < count; p++) at[p] = x + y.start[pixel + p];
        convolve_tile<count, V>(at, weight, y.is.kernel[0], y.pitch, y.run, b.bias.data() + o,
                                z.data() + pixel * y.wide_outs + o, y.wide_outs);
      };
      if (pixels < P)
        for (Int pixel = 0; pixel < pixels; pixel++) tile(std::integral_constant<int, 1>(), pixel);
      else  // the last tile overlaps the one before
        for (Int pixel = 0; pixel < pixels; pixel += P)
          tile(std::integral_constant<int, P>(), std::min(pixel, pixels - P));
      weight += y.is.kernel[0] * y.run * V * L;
    });
  }

  void copy(size_t l, Int n) {
    const Layer& y = net.layers[l];
    const float* x = buffers[l].input.data() + n * y.size;
    for (Int i = 0; i < y.rows * y.columns; i++)
      for (Int c = 0; c < y.wide_outs; c++) z[i * y.wide_outs + c] = c < y.outs ? x[y.start[i] + c] : 0.0f;
  }

  // As torch's: the first of equals wins, and a NaN wins over all.
  void pool(size_t l, Int n) {
    const Layer& y = net.layers[l];
    float* out = output(l) + n * output_size(l);
    int32_t* winner = buffers[l].winner.data() + n * y.cells() * y.wide_outs;
    for (Int r = 0; r < y.out_rows; r++)
      for (Int c = 0; c < y.out_columns; c++, winner += y.wide_outs) {
        const Int top = r * y.is.pool_stride[0] - y.is.pool_pad[0], left = c * y.is.pool_stride[1] - y.is.pool_pad[1];
        const Int bottom = std::min(top + y.is.pool[0], y.rows), right = std::min(left + y.is.pool[1], y.columns);
        Int count = 0;
        for (Int i = std::max<Int>(top, 0); i < bottom; i++)
          for (Int j = std::max<Int>(left, 0); j < right; j++) window[count++] = i * y.columns + j;
        float* to = out + y.cell[r * y.out_columns + c];
        for (Int o = 0; o < y.wide_outs; o += L) {
          Lanes best = load(&z[window[0] * y.wide_outs + o]);
          Marks who = all(int32_t(y.start[window[0]]));
          for (Int i = 1; i < count; i++) {
            Lanes here = load(&z[window[i] * y.wide_outs + o]);
            Marks better = (here > best) | (here != here);
            best = better ? here : best;
            who = better ? all(int32_t(y.start[window[i]])) : who;
          }
          if (y.is.relu) {
            who = best > 0 ? who : all(int32_t(-1));
            best = best < 0 ? Lanes{} : best;
          }
          store(winner + o, who);
          if (y.cell_step == 1)
            store(to + o, best);  // beyond the last channel are zeros, or what is written next
          else
            for (Int k = 0; k < L && o + k < y.outs; k++) to[(o + k) * y.cell_step] = best[k];
        }
      }
  }

  void multiply(size_t l) {
    const Layer& y = net.layers[l];
    const Buffers& b = buffers[l];
    float* out = output(l);
    const Int outs = output_size(l), tiles = (records + 4) / 5;
    constexpr int O = REGISTERS > 16 ? 4 : 2;
    for (Int n = 0; n < records; n++) std::copy_n(b.bias.begin(), y.outs, out + n * outs);
    for (Int f = 0; f < y.size; f += FORWARD_BLOCK) {
      Int length = std::min(FORWARD_BLOCK, y.size - f);
      for (Int o = 0; o < y.outs;) {
        bool many = o + O <= y.outs;
        for (Int t = 0, n = 0; t < tiles; t++) {
          Int count = (records * (t + 1)) / tiles - n;
          as_constant<5>(count, [&](auto N) {
            auto* tile = many ? multiply_tile<O, N> : multiply_tile<1, N>;
            tile(b.moving + o * y.size + f, y.size, b.input.data() + n * y.size + f, y.size, length,
                 out + n * outs + o, outs);
          });
          n += count;
        }
        o += many ? O : 1;
      }
    }
    if (y.is.relu)
      for (Int i = 0; i < records * outs; i++) out[i] = out[i] < 0 ? 0 : out[i];
  }

  // Slopes of the mean cross-entropy of the batch.
  void lose() {
    for (Int n = 0; n < records; n++) {
      const float* x = &logits[n * net.wide_classes];
      float* slope = &logit_slope[n * net.wide_classes];
      float most = x[0], total = 0;
      for (Int c = 1; c < net.classes; c++) most = x[c] > most ? x[c] : most;
      for (Int c = 0; c < net.classes; c++) total += slope[c] = std::exp(x[c] - most);
      for (Int c = 0; c < net.classes; c++) slope[c] = (slope[c] / total - (c == label[n])) / float(records);
    }
  }

  void backward(const Sgd& sgd) {
    for (size_t l = buffers.size(); l-- > 0;) {
      if (l > 0) std::fill_n(buffers[l].slope.begin(), records * net.layers[l].size, 0.0f);
      if (net.layers[l].is.linear)
        sgd.plain() ? linear_backward<true>(l, sgd) : linear_backward<false>(l, sgd);
      else
        spatial_backward(l, sgd);
    }
  }

  template <bool PLAIN>
  void linear_backward(size_t l, const Sgd& sgd) {
    const Layer& y = net.layers[l];
    Buffers& b = buffers[l];
    const Int outs = output_size(l);
    float *slope = slope_of_output(l), *out = output(l);
    for (Int i = 0; y.is.relu && i < records * outs; i++) slope[i] = out[i] > 0 ? slope[i] : 0;
    for (Int o = 0; y.is.bias && o < y.outs; o++) {
      float total = 0;
      for (Int n = 0; n < records; n++) total += slope[n * outs + o];
      move(sgd, b.bias[o], total, b.bias_velocity[o]);
    }
    for (Int f = 0; f < y.size; f += BACKWARD_BLOCK) {
      Int length = std::min(BACKWARD_BLOCK, y.size - f);
      for (Int o = 0; o < y.outs;) {
        Int count = o + 4 <= y.outs ? 4 : 1;
        for (Int n = 0; n < records; n++) std::copy_n(slope + n * outs + o, count, &portion[n * count]);
        float* weight = b.moving + o * y.size + f;
        float* velocity = PLAIN ? weight : b.velocity.data() + o * y.size + f;
        const float* x = b.input.data() + f;
        auto back = [&](auto O) {
          if (l > 0)
            linear_back<O, true, PLAIN>(sgd, weight, velocity, y.size, portion.data(), records, x,
                                        b.slope.data() + f, y.size, length);
          else
            linear_back<O, false, PLAIN>(sgd, weight, velocity, y.size, portion.data(), records, x, nullptr,
                                         y.size, length);
        };
        count == 4 ? back(std::integral_constant<int, 4>()) : back(std::integral_constant<int, 1>());
        o += count;
      }
    }
  }

  void spatial_backward(size_t l, const Sgd& sgd) {
    const Layer& y = net.layers[l];
    Buffers& b = buffers[l];
    const Int window = y.is.kernel[0] * y.wide_run;
    std::fill(b.weight_slope.begin(), b.weight_slope.end(), 0.0f);
    std::fill(b.bias_slope.begin(), b.bias_slope.end(), 0.0f);
    const Int group = std::max<Int>(2, NEAR / y.size);  // neighbours in the list are of different records
    for (Int first = 0; first < records; first += group)
      for (Int o = 0; o < y.outs; o++) {
        Int count = gather(l, first, std::min(first + group, records), o);
        const Entry* list = entries.data();
        if (!y.weights) {
          for (Int e = 0; l > 0 && e < count; e++) b.slope[list[e].at + o] += list[e].slope;
          continue;
        }
        cover(y.is.kernel[0], y.wide_run / L, [&](auto R, auto V, Int row, Int vector) {
          const Int at = row * y.pitch + vector * L, own = o * window + row * y.wide_run + vector * L;
          weight_slopes<R, V>(list, count, b.input.data() + at, y.pitch, &b.weight_slope[own], y.wide_run);
          if (l > 0)
            input_slopes<R, V>(list, count, &b.weight[own], y.wide_run, b.slope.data() + at, y.pitch);
        });
      }
    if (!y.weights) return;
    for (Int i = 0; i < y.outs * y.is.kernel[0]; i++)
      for (Int t = i * y.wide_run; t < i * y.wide_run + y.run; t++)
        move(sgd, b.weight[t], b.weight_slope[t], sgd.plain() ? b.weight_slope[t] : b.velocity[t]);
    for (Int o = 0; y.is.bias && o < y.outs; o++) move(sgd, b.bias[o], b.bias_slope[o], b.bias_velocity[o]);
  }

  // The slopes of one channel that go further back, of the records from first to last.
  Int gather(size_t l, Int first, Int last, Int channel) {
    const Layer& y = net.layers[l];
    const Int cells = y.cells(), wide = y.wide_outs, out_size = output_size(l), size = y.size;
    const int32_t* winner = buffers[l].winner.data() + first * cells * wide + channel;
    const float* slopes = slope_of_output(l) + first * out_size + channel * y.cell_step;
    Entry* list = entries.data();
    for (Int i = 0; i < cells; i++) {
      const int32_t* at = winner + i * wide;
      const float* slope = slopes + y.cell[i];
      for (Int n = first; n < last; n++, at += cells * wide, slope += out_size) {
        *list = Entry{n * size + *at, *slope};
        list += *at >= 0;  // a branch would be guessed wrongly half of the time
      }
    }
    const Int count = list - entries.data();
    float total[4] = {};
    for (Int e = 0; e < count; e++) total[e % 4] += entries[e].slope;
    buffers[l].bias_slope[channel] += (total[0] + total[1]) + (total[2] + total[3]);
    return count;
  }
};

}  // namespace

extern "C" {

// Whether this machine has the instructions that this file was compiled for.
int usable() {
#if defined(__x86_64__)
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
  try {
    const Net net(*job);
    std::vector<Worker> workers;
    for (Int t = 0; t < std::min(job->threads, job->clients); t++) workers.emplace_back(*job, net);
    std::atomic<Int> next{0};
    auto work = [&](Worker& worker) {
      for (Int client; (client = next++) < job->clients;) worker.train(client);
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
}

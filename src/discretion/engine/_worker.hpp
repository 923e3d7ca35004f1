// One thread's training: all steps of a client on buffers that stay in cache.
//
// Slopes go back through a spatial layer along the pixels that won their pooling window and passed the ReLU,
// and along no others.
#pragma once

#include <cmath>
#include <cstring>
#include <new>

#include "_net.hpp"

namespace {

constexpr Int NEAR = 24 * 1024 / sizeof(float);  // floats that surely stay in the nearest cache
constexpr Int FORWARD_BLOCK = 512, BACKWARD_BLOCK = 256;

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
    Int most_pixels = 0, most_entries = 0;
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
      lose(float(records));
      backward(Sgd{job.rates[step], job.momentum, job.decay});
    }
    finish(row);
    for (Int i = 0; i < job.size; i++) row[i] -= job.model[i];
  }

 protected:
  const Job& job;
  const Net& net;
  std::vector<Buffers> buffers;
  Floats z, logits, logit_slope, portion;
  std::vector<Entry> entries;
  std::vector<Int> label;
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
    for (Buffers& b : buffers)
      for (Floats* f : {&b.input, &b.velocity, &b.bias, &b.bias_velocity, &b.weight})
        std::fill(f->begin(), f->end(), 0.0f);
    enter(row);
  }

  void enter(float* row) {
    for (size_t l = 0; l < buffers.size(); l++) {
      const Layer& y = net.layers[l];
      Buffers& b = buffers[l];
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
    if (y.is.linear) {
      read(from, y.channels, x, 1);
    } else {
      for (Int c = 0; c < y.channels; c++)
        for (Int r = 0; r < y.height; r++)
          read(from + c * plane + r * y.width, y.width,
               x + (r + y.is.pad[0]) * y.pitch + y.is.pad[1] * y.channels + c, y.channels);
    }
    label[records++] = job.labels[record];
  }

  void read(Int from, Int count, float* to, Int step) const {
    const uint8_t* bytes = job.bytes;
    const float *lookup = job.lookup, *floats = job.floats;
    if (bytes)
      for (Int i = 0; i < count; i++) to[i * step] = lookup[bytes[from + i]];
    else
      for (Int i = 0; i < count; i++) to[i * step] = floats[from + i];
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
    const Int wide = y.wide_outs, outs = y.outs, step = y.cell_step, cells = y.cells();
    const Int count = y.is.pool[0] * y.is.pool[1], relu = y.is.relu;
    const Int *start = y.start.data(), *cell = y.cell.data(), *pixel = y.window.data();
    const float* pixels = z.data();
    float* out = output(l) + n * output_size(l);
    int32_t* winner = buffers[l].winner.data() + n * cells * wide;
    for (Int i = 0; i < cells; i++, winner += wide, pixel += count) {
      float* to = out + cell[i];
      for (Int o = 0; o < wide; o += L) {
        Lanes best = load(pixels + pixel[0] * wide + o);
        Marks who = all(int32_t(start[pixel[0]]));
        for (Int j = 1; j < count; j++) {
          Lanes here = load(pixels + pixel[j] * wide + o);
          Marks better = (here > best) | (here != here);
          best = better ? here : best;
          who = better ? all(int32_t(start[pixel[j]])) : who;
        }
        if (relu) {
          who = best > 0 ? who : all(int32_t(-1));
          best = best < 0 ? Lanes{} : best;
        }
        store(winner + o, who);
        if (step == 1)
          store(to + o, best);  // beyond the last channel are zeros, or what is written next
        else
          for (Int k = 0; k < L && o + k < outs; k++) to[(o + k) * step] = best[k];
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

  // Slopes of the cross-entropy of each record, divided by `share`.
  void lose(float share) {
    for (Int n = 0; n < records; n++) {
      const float* x = &logits[n * net.wide_classes];
      float* slope = &logit_slope[n * net.wide_classes];
      float most = x[0], total = 0;
      for (Int c = 1; c < net.classes; c++) most = x[c] > most ? x[c] : most;
      for (Int c = 0; c < net.classes; c++) total += slope[c] = std::exp(x[c] - most);
      for (Int c = 0; c < net.classes; c++) slope[c] = (slope[c] / total - (c == label[n])) / share;
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
    spatial_slopes_start(l);
    const Int group = std::max<Int>(2, NEAR / y.size);  // neighbours in a list are of different records
    for (Int first = 0; first < records; first += group)
      spatial_slopes(l, first, std::min(first + group, records));
    if (!y.weights) return;
    for (Int i = 0; i < y.outs * y.is.kernel[0]; i++)
      for (Int t = i * y.wide_run; t < i * y.wide_run + y.run; t++)
        move(sgd, b.weight[t], b.weight_slope[t], sgd.plain() ? b.weight_slope[t] : b.velocity[t]);
    for (Int o = 0; y.is.bias && o < y.outs; o++) move(sgd, b.bias[o], b.bias_slope[o], b.bias_velocity[o]);
  }

  void spatial_slopes_start(size_t l) {
    for (Floats* f : {&buffers[l].weight_slope, &buffers[l].bias_slope}) std::fill(f->begin(), f->end(), 0.0f);
  }

  // Adds the slopes of weights and inputs, of the records from first to last.
  void spatial_slopes(size_t l, Int first, Int last) {
    const Layer& y = net.layers[l];
    Buffers& b = buffers[l];
    const Int window = y.is.kernel[0] * y.wide_run;
    for (Int o = 0; o < y.outs; o++) {
      Int count = gather(l, first, last, o);
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
    Int e = 0;
    for (; e + 4 <= count; e += 4)
      for (Int k = 0; k < 4; k++) total[k] += entries[e + k].slope;
    for (Int k = 0; e + k < count; k++) total[k] += entries[e + k].slope;
    buffers[l].bias_slope[channel] += (total[0] + total[1]) + (total[2] + total[3]);
    return count;
  }
};

}  // namespace

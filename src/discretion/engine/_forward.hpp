// One thread's buffers for a model, and the way of records through its layers.
#pragma once

#include "_average.hpp"
#include "_buffers.hpp"

namespace {

constexpr Int FORWARD_BLOCK = 512;

class Forward {
 public:
  Forward(const Job& job, const Net& net)
      : job(job), net(net), most(records_at_once(net)), batch(std::min(job.batch, most)) {
    Int most_pixels = 0;
    for (const Layer& y : net.layers) {
      const bool plain = job.momentum == 0 && job.decay == 0;
      buffers.emplace_back(y, batch, buffers.empty(), plain, job.batch > most);
      most_pixels = std::max(most_pixels, y.pixels() * y.wide_outs);
    }
    z.resize(most_pixels);
    logits.resize(batch * net.wide_classes);
    label.resize(batch);
  }

 protected:
  const Job& job;
  const Net& net;
  std::vector<Buffers> buffers;
  Floats z, logits;
  std::vector<Int> label;
  const Int most, batch;  // records in a slice of a batch: at most, and as many as there is room for
  Int records = 0;        // in this slice

  float* output(size_t l) { return l + 1 < buffers.size() ? buffers[l + 1].input.data() : logits.data(); }
  Int output_size(size_t l) const {
    return l + 1 < buffers.size() ? net.layers[l + 1].size : net.wide_classes;
  }

  void enter(float* row) {
    for (size_t l = 0; l < buffers.size(); l++) {
      const Layer& y = net.layers[l];
      Buffers& b = buffers[l];
      if (y.is.bias) std::copy_n(row + y.bias, y.outs, b.bias.begin());
      if (y.is.groups) b.norm.begin(y, row);
      b.moving = y.in_place ? row + y.weight : b.weight.data();
    }
    exchange(row, true);
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

  // Functions that must not be inlined: in one large one, the compiler keeps less in registers.
  [[gnu::noinline]] void forward() {
    for (size_t l = 0; l < buffers.size(); l++) {
      const Layer& y = net.layers[l];
      if (y.is.linear) {
        multiply(l);
        continue;
      }
      if (y.weights) pack(l);
      for (Int n = 0; n < records; n++) {
        y.weights ? convolve(l, n) : copy(l, n);
        if (y.is.groups) buffers[l].norm.forward(y, n, z.data());
        y.is.average ? average(y, z.data(), output(l) + n * output_size(l)) : pool(l, n);
      }
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
    const Int *mark = y.mark.data(), *cell = y.cell.data(), *pixel = y.window.data();
    const float* pixels = z.data();
    float* out = output(l) + n * output_size(l);
    int32_t* winner = buffers[l].winner.data() + n * cells * wide;
    for (Int i = 0; i < cells; i++, winner += wide, pixel += count) {
      float* to = out + cell[i];
      for (Int o = 0; o < wide; o += L) {
        Lanes best = load(pixels + pixel[0] * wide + o);
        Marks who = all(int32_t(mark[pixel[0]]));
        for (Int j = 1; j < count; j++) {
          Lanes here = load(pixels + pixel[j] * wide + o);
          Marks better = (here > best) | (here != here);
          best = better ? here : best;
          who = better ? all(int32_t(mark[pixel[j]])) : who;
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
};

}  // namespace

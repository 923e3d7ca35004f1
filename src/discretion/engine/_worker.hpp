// One thread's training: all steps of a client on buffers that stay in cache.
//
// Slopes go back through a spatial layer along the pixels that won their pooling window and passed the ReLU,
// and along no others, unless it normalises or pools by the mean. Of a large batch one slice is taken at a
// time, and the model moves after the last.
#pragma once

#include <cmath>
#include <cstring>

#include "_average.hpp"
#include "_buffers.hpp"

namespace {

constexpr Int FORWARD_BLOCK = 512, BACKWARD_BLOCK = 256;

class Worker {
 public:
  Worker(const Job& job, const Net& net) : job(job), net(net), most(records_at_once(net)) {
    const Int batch = std::min(job.batch, most);
    Int most_pixels = 0, most_entries = 0;
    for (const Layer& y : net.layers) {
      const bool plain = job.momentum == 0 && job.decay == 0;
      buffers.emplace_back(y, batch, buffers.empty(), plain, job.batch > most);
      most_pixels = std::max(most_pixels, y.pixels() * y.wide_outs);
      if (y.is.linear) continue;
      most_entries = std::max(most_entries, std::min(batch, records_together(y)) * y.cells());
    }
    z.resize(most_pixels);
    entries.resize(most_entries);
    logits.resize(batch * net.wide_classes);
    logit_slope.resize(batch * net.wide_classes);
    label.resize(batch);
    portion.resize(batch * 4);
  }

  void be(float* model) { begin(model); }

  // (n, classes) the logits of the records from first to last, of the model that this was told to be.
  void score(Int first, Int last, float* all) {
    records = 0;
    for (Int record = first; record < last; record++) take(record);
    forward();
    for (Int n = 0; n < records; n++)
      std::copy_n(&logits[n * net.wide_classes], net.classes, all + (first + n) * net.classes);
  }

  void train(Int client) {
    float* row = job.updates + client * job.size;
    std::memcpy(row, job.model, job.size * sizeof(float));
    begin(row);
    for (Int step = 0; step < job.steps; step++) {
      const Int first = (client * job.steps + step) * job.batch, end = first + job.batch;
      of = std::count_if(job.real + first, job.real + end, [](uint8_t real) { return real != 0; });
      const Int slices = (of + most - 1) / most;  // none, for a client with fewer steps than others
      for (Int slice = 0, i = first; slice < slices; slice++) {
        const Int wanted = of * (slice + 1) / slices - of * slice / slices;
        for (records = 0; records < wanted; i++)
          if (job.real[i]) take(job.records[i]);
        opens = slice == 0, closes = slice + 1 == slices;
        forward();
        lose(float(of));
        backward(Sgd{job.rates[step], job.momentum, job.decay});
      }
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
  const Int most;        // records in a slice of a batch
  Int records = 0, of = 0;  // in this slice, in this batch
  bool opens = false, closes = false;  // whether this slice is the batch's first, its last

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
      if (y.is.groups) b.norm.begin(y, row);
      b.moving = y.in_place ? row + y.weight : b.weight.data();
    }
    exchange(row, true);
  }

  void finish(float* row) {
    for (size_t l = 0; l < buffers.size(); l++) {
      const Layer& y = net.layers[l];
      if (y.is.bias) std::copy_n(buffers[l].bias.begin(), y.outs, row + y.bias);
      if (y.is.groups) buffers[l].norm.finish(y, row);
    }
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

  [[gnu::noinline]] void backward(const Sgd& sgd) {
    for (size_t l = buffers.size(); l-- > 0;) {
      if (l > 0) std::fill_n(buffers[l].slope.begin(), records * net.layers[l].size, 0.0f);
      if (opens) std::fill(buffers[l].weight_slope.begin(), buffers[l].weight_slope.end(), 0.0f);
      if (opens) std::fill(buffers[l].bias_slope.begin(), buffers[l].bias_slope.end(), 0.0f);
      const bool linear = net.layers[l].is.linear, sliced = !opens || !closes;
      if (!linear)
        spatial_backward(l);
      else if (sliced)
        linear_backward<GATHER>(l, sgd);
      else
        sgd.plain() ? linear_backward<PLAIN>(l, sgd) : linear_backward<MOMENTUM>(l, sgd);
      if (closes) step(l, sgd, !linear || sliced);
    }
  }

  // Moves whatever has not moved yet.
  void step(size_t l, const Sgd& sgd, bool weights) {
    const Layer& y = net.layers[l];
    Buffers& b = buffers[l];
    if (y.is.groups) b.norm.unpack(y, b.weight_slope.data());
    if (y.is.groups) b.norm.step(y, sgd);
    for (Int i = 0; weights && y.weights && i < y.outs * y.is.kernel[0]; i++)
      for (Int t = i * y.wide_run; t < i * y.wide_run + y.run; t++)
        move(sgd, b.moving[t], b.weight_slope[t], sgd.plain() ? b.weight_slope[t] : b.velocity[t]);
    for (Int o = 0; y.is.bias && o < y.outs; o++) move(sgd, b.bias[o], b.bias_slope[o], b.bias_velocity[o]);
  }

  template <Way WAY>
  void linear_backward(size_t l, const Sgd& sgd) {
    const Layer& y = net.layers[l];
    Buffers& b = buffers[l];
    const Int outs = output_size(l);
    float *slope = slope_of_output(l), *out = output(l);
    for (Int i = 0; y.is.relu && i < records * outs; i++) slope[i] = out[i] > 0 ? slope[i] : 0;
    for (Int o = 0; y.is.bias && o < y.outs; o++) {
      float total = 0;
      for (Int n = 0; n < records; n++) total += slope[n * outs + o];
      b.bias_slope[o] += total;
    }
    for (Int f = 0; f < y.size; f += BACKWARD_BLOCK) {
      Int length = std::min(BACKWARD_BLOCK, y.size - f);
      for (Int o = 0; o < y.outs;) {
        Int count = o + 4 <= y.outs ? 4 : 1;
        for (Int n = 0; n < records; n++) std::copy_n(slope + n * outs + o, count, &portion[n * count]);
        float* weight = b.moving + o * y.size + f;
        float* all_kept = (WAY == GATHER ? b.weight_slope : b.velocity).data();
        float* kept = WAY == PLAIN ? weight : all_kept + o * y.size + f;
        const float* x = b.input.data() + f;
        auto back = [&](auto O) {
          if (l > 0)
            linear_back<O, true, WAY>(sgd, weight, kept, y.size, portion.data(), records, x,
                                      b.slope.data() + f, y.size, length);
          else
            linear_back<O, false, WAY>(sgd, weight, kept, y.size, portion.data(), records, x, nullptr,
                                       y.size, length);
        };
        count == 4 ? back(std::integral_constant<int, 4>()) : back(std::integral_constant<int, 1>());
        o += count;
      }
    }
  }

  [[gnu::noinline]] void spatial_backward(size_t l) {
    const Layer& y = net.layers[l];
    if (y.is.groups || y.is.average) return dense_backward(l);
    const Int group = records_together(y);  // neighbours in a list are of different records
    for (Int first = 0; first < records; first += group)
      spatial_slopes(l, first, std::min(first + group, records));
  }

  [[gnu::noinline]] void dense_backward(size_t l) {
    const Layer& y = net.layers[l];
    Buffers& b = buffers[l];
    if (opens) b.norm.open();
    for (Int n = 0; n < records; n++) {
      const float *slopes = slope_of_output(l) + n * output_size(l), *x = b.input.data() + n * y.size;
      float* dx = l > 0 ? b.slope.data() + n * y.size : nullptr;
      const int32_t* winner = b.winner.data() + n * y.cells() * y.wide_outs;
      if (y.is.groups)
        b.norm.backward(y, n, winner, slopes, x, b.weight.data(), dx, b.bias_slope.data());
      else if (dx)
        average_slopes(y, output(l) + n * output_size(l), slopes, dx);
    }
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

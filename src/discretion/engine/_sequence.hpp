// One thread's training of a model that reads text: an embedding, layers of LSTM, the last step, then a
// linear layer. All steps of a client on buffers that stay in cache.
#pragma once

#include <cmath>
#include <cstring>

#include "_cells.hpp"
#include "_net.hpp"

extern "C" {

struct Recurrence {  // a layer of LSTM; places are those in the flat model, or -1
  Int inputs, hidden;
  Int input, recurrent, bias[2];
};

struct Text {
  Int tokens, width, window, classes, depth;
  Int embedding, output, output_bias;
  const Recurrence* layers;
  const uint8_t* bytes;  // (n, window) tokens, if not null
  const Int* ids;        // (n, window) tokens otherwise
};
}

namespace {

constexpr Int TOGETHER = 24;  // records that go through the layers at once: memory does not grow with a batch

typedef panels::Matrix Matrix;

// Weights (ins, outs), where torch has (outs, ins) unless they are `rows` of an embedding. The outs are in
// groups of `each`, of which every one starts at a whole vector.
struct Parameter {
  Int place, each, wide;
  bool rows;
  Matrix weight, slope, velocity;

  Parameter(Int place, Int ins, Int outs, Int groups, bool plain, bool rows = false)
      : place(place), each(outs / groups), wide(groups > 1 ? panels::vectors_of(each) * panels::W : outs),
        rows(rows), weight(ins, groups * wide), slope(ins, groups * wide) {
    if (!plain) velocity = Matrix(ins, groups * wide);
  }

  void exchange(float* flat, bool in) {
    const Int ins = weight.rows, outs = weight.columns / wide * each;
    for (Int o = 0; o < outs; o++) {
      float* own = &weight(0, o / each * wide + o % each);
      float* torchs = flat + place + (rows ? o : o * ins);
      for (Int i = 0; i < ins; i++, own += panels::PANEL, torchs += rows ? outs : 1)
        (in ? *own : *torchs) = in ? *torchs : *own;
    }
  }

  void begin(float* flat) {
    for (Matrix* m : {&weight, &slope, &velocity}) m->wipe();
    exchange(flat, true);
  }

  template <Way WAY>
  void move(const Sgd& sgd) {
    float *w = weight.room.data(), *s = slope.room.data(), *v = WAY == PLAIN ? w : velocity.room.data();
    for (size_t i = 0; i < weight.room.size(); i += L) {
      store(w + i, moved<WAY>(sgd, load(w + i), load(s + i), v + i));
      store(s + i, Lanes{});
    }
  }
};

struct Recurrent : panels::Cells {  // one layer of LSTM, in one thread
  size_t input, recurrent;            // which parameters
  std::vector<size_t> biases;         // one, two or none, which act as their sum
  Matrix input_back, recurrent_back;  // those weights as slopes go back through them
  panels::Room bias;

  Recurrent(const Recurrence& is, Int window, Int records)
      : Cells(is.hidden, window, records), input_back(4 * wide, is.inputs),
        recurrent_back(4 * wide, is.hidden), bias(gates.count * panels::PANEL) {}
};

class Reader {
 public:
  Reader(const Job& job, const Text& text) : job(job), text(text) {
    const bool plain = job.momentum == 0 && job.decay == 0;
    const Int most = std::min(job.batch, TOGETHER), rows = text.window * most;
    auto add = [&](Int place, Int ins, Int outs, Int groups, bool embedding = false) {
      parameters.emplace_back(place, ins, outs, groups, plain, embedding);
      return parameters.size() - 1;
    };
    embedding = add(text.embedding, text.tokens, text.width, 1, true);
    embedded = Matrix(rows, text.width);
    embedded_slopes = Matrix(rows, text.width);
    for (Int l = 0; l < text.depth; l++) {
      const Recurrence& is = text.layers[l];
      Recurrent m(is, text.window, most);
      m.input = add(is.input, is.inputs, 4 * is.hidden, 4);
      m.recurrent = add(is.recurrent, is.hidden, 4 * is.hidden, 4);
      for (Int place : is.bias)
        if (place >= 0) m.biases.push_back(add(place, 1, 4 * is.hidden, 4));
      layers.push_back(std::move(m));
    }
    const Int hidden = layers.back().hidden;
    output = add(text.output, hidden, text.classes, 1);
    has_bias = text.output_bias >= 0;
    if (has_bias) add(text.output_bias, 1, text.classes, 1);
    output_back = Matrix(text.classes, hidden);
    logits = Matrix(most, text.classes);
    taken.resize(job.batch);
  }

  void train(Int client) {
    float* row = job.updates + client * job.size;
    std::memcpy(row, job.model, job.size * sizeof(float));
    for (Parameter& p : parameters) p.begin(row);
    for (Int step = 0; step < job.steps; step++) {
      const Int first = (client * job.steps + step) * job.batch;
      total = 0;
      for (Int i = first; i < first + job.batch; i++)
        if (job.real[i]) taken[total++] = job.records[i];
      if (total == 0) continue;  // padding, for a client with fewer steps than others
      prepare();
      const Int parts = (total + TOGETHER - 1) / TOGETHER;
      for (Int part = 0, start = 0; part < parts; part++) {
        records = total * (part + 1) / parts - start;
        read(taken.data() + start);
        forward();
        lose(taken.data() + start);
        backward(taken.data() + start);
        start += records;
      }
      const Sgd sgd{job.rates[step], job.momentum, job.decay};
      for (Parameter& p : parameters) sgd.plain() ? p.move<PLAIN>(sgd) : p.move<MOMENTUM>(sgd);
    }
    for (Parameter& p : parameters) p.exchange(row, false);
    for (Int i = 0; i < job.size; i++) row[i] -= job.model[i];
  }

 private:
  const Job& job;
  const Text& text;
  std::vector<Parameter> parameters;
  std::vector<Recurrent> layers;
  size_t embedding = 0, output = 0;
  bool has_bias = false;
  Matrix embedded, embedded_slopes, output_back, logits;
  std::vector<Int> taken;       // records of this batch
  Int total = 0, records = 0;  // in this batch, and those that go through the layers now

  Int token(Int record, Int step) const {
    const Int at = record * text.window + step;
    return text.bytes ? text.bytes[at] : text.ids[at];
  }

  // What is made of the weights once in a step.
  void prepare() {
    panels::transpose(parameters[output].weight, output_back);
    for (Recurrent& m : layers) {
      panels::transpose(parameters[m.input].weight, m.input_back);
      panels::transpose(parameters[m.recurrent].weight, m.recurrent_back);
      std::fill(m.bias.begin(), m.bias.end(), 0.0f);
      for (size_t which : m.biases)
        for (size_t i = 0; i < m.bias.size(); i++) m.bias[i] += parameters[which].weight.room[i];
    }
  }

  void read(const Int* which) {
    const Matrix& table = parameters[embedding].weight;
    for (Int p = 0; p < table.count; p++)
      for (Int t = 0; t < text.window; t++)
        for (Int n = 0; n < records; n++)
          std::copy_n(table.at(p, token(which[n], t)), panels::PANEL, embedded.at(p, t * records + n));
  }

  void forward() {
    for (size_t l = 0; l < layers.size(); l++) {
      Recurrent& m = layers[l];
      const Matrix& inputs = l ? layers[l - 1].outputs : embedded;
      panels::product<panels::BIAS>(inputs, l ? records : 0, parameters[m.input].weight, m.bias.data(),
                                    m.gates, 0, text.window * records);
      m.begin(records);
      for (Int t = 0; t < text.window; t++) {
        panels::product<panels::ITSELF>(m.outputs, t * records, parameters[m.recurrent].weight, nullptr,
                                        m.gates, t * records, records);
        m.act(t * records, records);
      }
    }
    const float* bias = has_bias ? parameters[output + 1].weight.room.data() : nullptr;
    const Int last = text.window * records;
    const Matrix &from = layers.back().outputs, &weight = parameters[output].weight;
    if (bias)
      panels::product<panels::BIAS>(from, last, weight, bias, logits, 0, records);
    else
      panels::product<panels::NOTHING>(from, last, weight, nullptr, logits, 0, records);
  }

  // Slopes of the mean cross-entropy of the batch, in place of the logits.
  void lose(const Int* which) {
    for (Int n = 0; n < records; n++) {
      float most = logits(n, 0), sum = 0;
      for (Int c = 1; c < text.classes; c++) most = logits(n, c) > most ? logits(n, c) : most;
      for (Int c = 0; c < text.classes; c++) sum += logits(n, c) = std::exp(logits(n, c) - most);
      for (Int c = 0; c < text.classes; c++)
        logits(n, c) = (logits(n, c) / sum - (c == job.labels[which[n]])) / float(total);
    }
  }

  void backward(const Int* which) {
    const Int rows = text.window * records, last = rows - records;
    Recurrent& top = layers.back();
    panels::add_slopes(top.outputs, rows, logits, 0, parameters[output].slope, records);
    if (has_bias) panels::add_rows(logits, 0, records, parameters[output + 1].slope.room.data());
    for (Int p = 0; p < top.slopes.count; p++) std::fill_n(top.slopes.at(p, 0), last * panels::PANEL, 0.0f);
    panels::product<panels::NOTHING>(logits, 0, output_back, nullptr, top.slopes, last, records);
    for (size_t l = layers.size(); l-- > 0;) {
      Recurrent& m = layers[l];
      m.cell_slopes.wipe();
      for (Int t = text.window; t-- > 0;) {
        m.react(t * records, records);
        if (t > 0)
          panels::product<panels::ITSELF>(m.gates, t * records, m.recurrent_back, nullptr, m.slopes,
                                          (t - 1) * records, records);
      }
      panels::product<panels::NOTHING>(m.gates, 0, m.input_back, nullptr,
                                       l ? layers[l - 1].slopes : embedded_slopes, 0, rows);
      panels::add_slopes(l ? layers[l - 1].outputs : embedded, l ? records : 0, m.gates, 0,
                         parameters[m.input].slope, rows);
      panels::add_slopes(m.outputs, 0, m.gates, 0, parameters[m.recurrent].slope, rows);
      for (size_t b : m.biases) panels::add_rows(m.gates, 0, rows, parameters[b].slope.room.data());
    }
    for (Int t = 0; t < text.window; t++)
      for (Int n = 0; n < records; n++)
        for (Int e = 0; e < text.width; e++)
          parameters[embedding].slope(token(which[n], t), e) += embedded_slopes(t * records + n, e);
  }
};

}  // namespace

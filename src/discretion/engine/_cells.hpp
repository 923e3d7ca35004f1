// What happens within a layer of LSTM at one time step, and what slopes become of it.
//
// Rows of a matrix are all records of the first time step, then those of the second. Gates are in torch's
// order (enter, forget, candidate, leave), each rounded up to whole vectors.
#pragma once

#include "_panels.hpp"

namespace panels {

// To one or two units in the last place. What is not a number stays so: no comparison is true of it.
inline Wide exponential(Wide x) {
  x = x < -87.0f ? all(-87.0f) : x;
  x = x > 88.0f ? all(88.0f) : x;
  const float round = 12582912.0f;  // 1.5 2^23: adding it leaves an integer in the last bits
  const Wide shifted = x * 1.44269504f + round, n = shifted - round;
  const Wide r = (x - n * 0.693359375f) - n * -2.12194440e-4f;  // ln 2 in two parts
  const Wide q = (((1.39412182e-3f * r + 8.36323507e-3f) * r + 4.16663741e-2f) * r + 0.166665766f) * r + 0.5f;
  const WideBits power = (reinterpret_cast<WideBits>(shifted) << 23) + 0x3f800000u;
  return ((r * r) * q + r + 1.0f) * reinterpret_cast<Wide>(power);
}

inline Wide sigmoid(Wide x) { return 1.0f / (1.0f + exponential(-x)); }

inline Wide tangent(Wide x) {
  const WideBits sign = reinterpret_cast<WideBits>(x) & 0x80000000u;
  const Wide size = reinterpret_cast<Wide>(reinterpret_cast<WideBits>(x) ^ sign), z = x * x;
  const Wide p = (((-5.94224833e-3f * z + 2.08891504e-2f) * z - 5.38279164e-2f) * z + 0.13332619f) * z;
  const Wide near = x + x * z * (p - 0.333333275f);
  const Wide far = 1.0f - 2.0f / (1.0f + exponential(2.0f * size));
  const Wide signed_far = reinterpret_cast<Wide>(reinterpret_cast<WideBits>(far) | sign);
  return size < 0.625f ? near : signed_far;
}

struct Cells {
  Int hidden = 0, wide = 0;    // wide: rounded up to whole vectors
  Matrix gates;                // (window records, 4 wide): sums, then gates, then slopes along the sums
  Matrix cells, outputs;       // ((window + 1) records, hidden), zeros before the first step
  Matrix slopes, cell_slopes;  // (window records, hidden) along the outputs, (records, hidden)

  Cells() = default;
  Cells(Int hidden, Int window, Int records)
      : hidden(hidden), wide(vectors_of(hidden) * W), gates(window * records, 4 * wide),
        cells((window + 1) * records, hidden), outputs((window + 1) * records, hidden),
        slopes(window * records, hidden), cell_slopes(records, hidden) {}

  void begin(Int records) {
    for (Matrix* before : {&cells, &outputs})
      for (Int p = 0; p < before->count; p++) std::fill_n(before->at(p, 0), records * PANEL, 0.0f);
  }

  // From the sums at the gates to the gates, the cells and the outputs, from this row on.
  void act(Int first, Int records) {
    for (Int v = 0; v < wide; v += W)
      for (Int row = first; row < first + records; row++) {
        float* at[4];
        for (Int g = 0; g < 4; g++) at[g] = gates.vector(row, g * wide + v);
        const Wide enter = sigmoid(load(at[0])), forget = sigmoid(load(at[1]));
        const Wide candidate = tangent(load(at[2])), leave = sigmoid(load(at[3]));
        const Wide cell = forget * load(cells.vector(row, v)) + enter * candidate;
        store(at[0], enter), store(at[1], forget), store(at[2], candidate), store(at[3], leave);
        store(cells.vector(row + records, v), cell);
        store(outputs.vector(row + records, v), leave * tangent(cell));
      }
  }

  // From slopes along the outputs and cells to those along the sums at the gates, and to the cells before.
  void react(Int first, Int records) {
    for (Int v = 0; v < wide; v += W)
      for (Int row = first; row < first + records; row++) {
        float *at[4], *cell_slope = cell_slopes.vector(row - first, v);
        for (Int g = 0; g < 4; g++) at[g] = gates.vector(row, g * wide + v);
        const Wide enter = load(at[0]), forget = load(at[1]), candidate = load(at[2]), leave = load(at[3]);
        const Wide now = tangent(load(cells.vector(row + records, v))), slope = load(slopes.vector(row, v));
        const Wide along = load(cell_slope) + slope * leave * (1.0f - now * now);
        store(at[0], along * candidate * (enter * (1.0f - enter)));
        store(at[1], along * load(cells.vector(row, v)) * (forget * (1.0f - forget)));
        store(at[2], along * enter * (1.0f - candidate * candidate));
        store(at[3], slope * now * (leave * (1.0f - leave)));
        store(cell_slope, along * forget);
      }
  }
};

}  // namespace panels

// Group normalisation, behind which slopes reach every pixel, and the convolution's slopes before it.
//
// A record's pixels lie as (pixels, wide_outs) floats. In lanes beyond the last channel gain and scale are 0.
#pragma once

#include <cmath>

#include "_net.hpp"

namespace {

// slopes of T neighbours in a row of the window and V vectors of channels += window times slope, over pixels
template <int T, int V>
void dense_weight_slopes(const Int* start, Int pixels, const float* x, const float* slope, Int wide,
                         float* slopes) {
  Lanes a[T][V];
  for (int t = 0; t < T; t++)
    for (int v = 0; v < V; v++) a[t][v] = load(slopes + (t * V + v) * L);
  for (Int p = 0; p < pixels; p++, slope += wide) {
    const float* window = x + start[p];
    Lanes g[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) g[v] = load(slope + v * L);
#pragma GCC unroll 12
    for (int t = 0; t < T; t++) {
      Lanes one = all(window[t]);
#pragma GCC unroll 4
      for (int v = 0; v < V; v++) a[t][v] += one * g[v];
    }
  }
  for (int t = 0; t < T; t++)
    for (int v = 0; v < V; v++) store(slopes + (t * V + v) * L, a[t][v]);
}

// input slopes of P pixels and V vectors in a row of their windows += slope times weight, over channels
template <int P, int V>
void dense_input_slopes(const Int* start, const float* slope, Int wide, const float* weight, Int step,
                        Int outs, float* dx) {
  Lanes a[P][V] = {};
  for (Int o = 0; o < outs; o++, weight += step) {
    Lanes w[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) w[v] = load(weight + v * L);
#pragma GCC unroll 8
    for (int p = 0; p < P; p++) {
      Lanes g = all(slope[p * wide + o]);
#pragma GCC unroll 4
      for (int v = 0; v < V; v++) a[p][v] += g * w[v];
    }
  }
  for (int p = 0; p < P; p++)  // one after the other: windows overlap
    for (int v = 0; v < V; v++) {
      float* to = dx + start[p] + v * L;
      store(to, load(to) + a[p][v]);
    }
}

// to: (wide,) the sum over pixels of what value(place) has in each channel
template <typename Value>
void channel_sums(Int pixels, Int wide, float* to, const Value& value) {
  for (Int o = 0; o < wide; o += L) {
    Lanes total[4] = {};
    Int at = o;
    for (Int p = 0; p + 4 <= pixels; p += 4)
#pragma GCC unroll 4
      for (int i = 0; i < 4; i++, at += wide) total[i] += value(at);
    for (Int p = 0; p < pixels % 4; p++, at += wide) total[0] += value(at);
    store(to + o, (total[0] + total[1]) + (total[2] + total[3]));
  }
}

class Norm {  // of one layer, in one thread
 public:
  void resize(const Layer& y, Int batch) {
    for (Floats* f : {&gain, &shift, &gain_velocity, &shift_velocity}) f->resize(y.wide_outs);
    for (Floats* f : {&gain_slope, &shift_slope, &one, &other}) f->resize(y.wide_outs);
    normal.resize(batch * y.pixels() * y.wide_outs);
    scale.resize(batch * y.wide_outs);
    slope.resize((y.pixels() + 1) * y.wide_outs);
    packed_slope.resize(y.weights ? y.is.kernel[0] * y.run * y.wide_outs : 0);
  }

  void begin(const Layer& y, const float* row) {
    for (Floats* f : {&gain, &shift, &gain_velocity, &shift_velocity}) std::fill(f->begin(), f->end(), 0.0f);
    std::fill_n(gain.begin(), y.outs, 1.0f);
    if (y.is.gain) std::copy_n(row + y.gain, y.outs, gain.begin());
    if (y.is.shift) std::copy_n(row + y.shift, y.outs, shift.begin());
  }

  void finish(const Layer& y, float* row) const {
    if (y.is.gain) std::copy_n(gain.begin(), y.outs, row + y.gain);
    if (y.is.shift) std::copy_n(shift.begin(), y.outs, row + y.shift);
  }

  // Puts the normalised pixels of record n in the place of z.
  [[gnu::noinline]] void forward(const Layer& y, Int n, float* z) {
    const Int pixels = y.pixels(), wide = y.wide_outs;
    float *own = normal.data() + n * pixels * wide, *narrow = scale.data() + n * wide;
    channel_sums(pixels, wide, one.data(), [&](Int at) { return load(z + at); });
    over_groups(y, one);
    for (Int o = 0; o < wide; o += L) {
      const Lanes centre = load(&one[o]);
      for (Int at = o; at < pixels * wide; at += wide) store(own + at, load(z + at) - centre);
    }
    channel_sums(pixels, wide, other.data(), [&](Int at) { return load(own + at) * load(own + at); });
    over_groups(y, other);
    for (Int o = 0; o < y.outs; o++) narrow[o] = float(1 / std::sqrt(double(other[o]) + y.is.eps));
    for (Int o = 0; o < wide; o += L) {
      const Lanes by = load(narrow + o), up = load(&gain[o]), plus = load(&shift[o]);
      for (Int at = o; at < pixels * wide; at += wide) {
        const Lanes value = load(own + at) * by;
        store(own + at, value);
        store(z + at, value * up + plus);
      }
    }
  }

  void open() {
    for (Floats* f : {&gain_slope, &shift_slope, &packed_slope}) std::fill(f->begin(), f->end(), 0.0f);
  }

  // Back through record n, from the slopes along what its pixels were pooled to.
  // winner: (cells, wide_outs) pixels, or -1. dx: slopes along its input x, if not null.
  void backward(const Layer& y, Int n, const int32_t* winner, const float* slopes, const float* x,
                const float* weight, float* dx, float* bias_slope) {
    scatter(y, winner, slopes);
    to_input(y, n, bias_slope);
    if (y.weights)
      to_convolution(y, x, weight, dx);
    else if (dx)
      for (Int p = 0; p < y.pixels(); p++)
        for (Int o = 0; o < y.outs; o++) dx[y.start[p] + o] += slope[p * y.wide_outs + o];
  }

  // Takes the convolution's slopes out of the order of lanes.
  void unpack(const Layer& y, float* weight_slope) const {
    const float* from = packed_slope.data();
    if (!y.weights) return;
    in_blocks(y.wide_outs, [&](auto V, Int o) {
      for (Int i = 0; i < y.is.kernel[0]; i++)
        for (Int t = 0; t < y.run; t++, from += V * L)
          for (Int lane = 0; lane < std::min<Int>(V * L, y.outs - o); lane++)
            weight_slope[((o + lane) * y.is.kernel[0] + i) * y.wide_run + t] = from[lane];
    });
  }

  void step(const Layer& y, const Sgd& sgd) {
    for (Int o = 0; y.is.gain && o < y.outs; o++) move(sgd, gain[o], gain_slope[o], gain_velocity[o]);
    for (Int o = 0; y.is.shift && o < y.outs; o++) move(sgd, shift[o], shift_slope[o], shift_velocity[o]);
  }

 private:
  Floats gain, shift, gain_velocity, shift_velocity, gain_slope, shift_slope;  // (wide_outs,)
  Floats normal;        // (batch, pixels, wide_outs) before gain and shift
  Floats scale;         // (batch, wide_outs) 1 / standard deviation
  Floats slope;         // (pixels + 1, wide_outs) of one record; the last one is never read
  Floats packed_slope;  // the convolution's, ordered as its packed weights
  Floats one, other;    // (wide_outs,)

  // Each channel's sum becomes the mean over its group.
  static void over_groups(const Layer& y, Floats& sums) {
    const Int each = y.outs / y.is.groups;
    for (Int first = 0; first < y.outs; first += each) {
      double total = 0;
      for (Int o = first; o < first + each; o++) total += sums[o];
      std::fill_n(sums.begin() + first, each, float(total / double(each * y.pixels())));
    }
  }

  void scatter(const Layer& y, const int32_t* winner, const float* slopes) {
    std::fill(slope.begin(), slope.end(), 0.0f);
    for (Int i = 0; i < y.cells(); i++, winner += y.wide_outs)
      for (Int o = 0; o < y.outs; o++) {
        const Int pixel = winner[o] >= 0 ? winner[o] : y.pixels();  // a branch would be guessed wrongly
        slope[pixel * y.wide_outs + o] += slopes[y.cell[i] + o * y.cell_step];
      }
  }

  void to_input(const Layer& y, Int n, float* bias_slope) {
    const Int pixels = y.pixels(), wide = y.wide_outs;
    const float *own = normal.data() + n * pixels * wide, *narrow = scale.data() + n * wide;
    float* here = slope.data();
    channel_sums(pixels, wide, one.data(), [&](Int at) { return load(here + at); });
    channel_sums(pixels, wide, other.data(), [&](Int at) { return load(here + at) * load(own + at); });
    for (Int o = 0; o < y.outs; o++) {
      shift_slope[o] += one[o], gain_slope[o] += other[o];
      one[o] *= gain[o], other[o] *= gain[o];
    }
    over_groups(y, one);
    over_groups(y, other);
    for (Int o = 0; o < wide; o += L) {
      const Lanes by = load(narrow + o), up = load(&gain[o]), mean = load(&one[o]), along = load(&other[o]);
      Lanes total = {};
      for (Int at = o; at < pixels * wide; at += wide) {
        const Lanes value = by * (up * load(here + at) - mean - along * load(own + at));
        store(here + at, value);
        total += value;
      }
      store(bias_slope + o, load(bias_slope + o) + total);
    }
  }

  void to_convolution(const Layer& y, const float* x, const float* weight, float* dx) {
    const Int pixels = y.pixels(), wide = y.wide_outs, rows = y.is.kernel[0];
    float* to = packed_slope.data();
    in_blocks(wide, [&](auto V, Int o) {
      constexpr int most = (REGISTERS > 16 ? 24 : 12) / V > 12 ? 12 : (REGISTERS > 16 ? 24 : 12) / V;
      for (Int i = 0; i < rows; i++)
        for (Int t = 0; t < y.run; t += most)
          as_constant<most>(std::min<Int>(most, y.run - t), [&](auto T) {
            dense_weight_slopes<T, V>(y.start.data(), pixels, x + i * y.pitch + t, &slope[o], wide, to);
            to += T * V * L;
          });
    });
    if (!dx) return;
    in_blocks(y.wide_run, [&](auto V, Int t) {
      constexpr int P = REGISTERS > 16 ? 6 : 12 / V > 6 ? 6 : 12 / V;
      for (Int i = 0; i < rows; i++)
        for (Int p = 0; p < pixels; p += P)
          as_constant<P>(std::min<Int>(P, pixels - p), [&](auto count) {
            dense_input_slopes<count, V>(&y.start[p], &slope[p * wide], wide, weight + i * y.wide_run + t,
                                         rows * y.wide_run, y.outs, dx + i * y.pitch + t);
          });
    });
  }
};

}  // namespace

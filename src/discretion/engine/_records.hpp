// Sums of the clipped gradients of single records.
//
// Of one record the gradients of convolutions are made, in buffers that stay in cache; those of linear layers
// are not, as their norms follow from what the layer took and the slopes of what it gave. A slice of records
// is added up in doubles, as slices are: the rounding of a sum is that of all its records, and floats would
// round it by more than a clipped gradient is below its bound.
#pragma once

#include <cfloat>

#include "_clip.hpp"
#include "_worker.hpp"

extern "C" {

struct Clipping {
  const float* model;  // (size,)
  const Int* records;  // (count,) record numbers
  Int count;
  double clip;
  const Int* owner;  // (tensors,) the layer that each tensor of parameters is clipped with
  Int layers;
  double* total;    // (size,)
  double* squares;  // (1,) the sum of the squared norms of what is added to the total
};
}

namespace {

constexpr Int SLICE_FLOATS = 1 << 23;    // of the buffers for a slice of records
constexpr double ROUNDING = 1e-6;        // as in clip.py: a gradient ends this much below its bound
constexpr double LEAST = FLT_TRUE_MIN;   // a float has nothing between it and 0
constexpr int ACROSS = REGISTERS > 16 ? 4 : 2, DOWN = 6;  // vectors and rows of a product's tile

template <typename T>
struct Vector {
  typedef T Lanes __attribute__((vector_size(L * sizeof(T))));
  typedef T LooseLanes __attribute__((vector_size(L * sizeof(T)), aligned(sizeof(T)), may_alias));
};

// (M, V vectors) the sum over k of a[k][m] b[k]. a: (count, M). b: (count,) rows, `pitch` numbers apart.
template <typename T, int M, int V, typename Use>
void product_tile(const T* a, const T* b, Int pitch, Int count, const Use& use) {
  typedef typename Vector<T>::Lanes Lanes;
  Lanes c[M][V] = {};
  for (Int k = 0; k < count; k++, a += M, b += pitch) {
    Lanes x[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) x[v] = *reinterpret_cast<const typename Vector<T>::LooseLanes*>(b + v * L);
#pragma GCC unroll 8
    for (int m = 0; m < M; m++) {
      const Lanes one = Lanes{} + a[m];
#pragma GCC unroll 4
      for (int v = 0; v < V; v++) c[m][v] += one * x[v];
    }
  }
  for (int m = 0; m < M; m++)
    for (int v = 0; v < V; v++) use(m, v, c[m][v]);
}

inline bool finite(const float* x, Int count) {
  Lanes zero = {};
  for (Int i = 0; i < count; i += L) zero += load(x + i) * 0.0f;
  return sum(zero) == 0;
}

// to += share times x, which is exact in doubles, but for the sum.
inline void add_times(double* __restrict to, const float* x, double share, Int count) {
  for (Int i = 0; i < count; i++) to[i] += share * double(x[i]);
}

class Clipper : Worker {
 public:
  Clipper(const Job& job, const Net& net) : Worker(job, net), sums(net.layers.size()) {
    Int most = 0, both = 0;
    for (size_t l = 0; l < buffers.size(); l++) {
      const Layer& y = net.layers[l];
      sums[l].weight.resize(buffers[l].weight_slope.size());
      sums[l].bias.resize(y.wide_outs);
      if (!y.is.linear) continue;
      sums[l].slope.resize(job.batch);
      sums[l].input.resize(job.batch);
      most = std::max(most, std::max(job.batch, y.outs));
      both = std::max(both, job.batch * y.outs);
    }
    left.resize(both);
    right.resize(most * ACROSS * L);
    wide_left.resize(both);
    wide_right.resize(most * ACROSS * L / 2);
  }

  // How many records are taken at a time, at most `wanted`.
  static Int together(const Net& net, Int wanted) {
    Int floats = 2 * net.wide_classes;
    for (const Layer& y : net.layers)
      floats += 2 * y.size + (y.is.linear ? y.outs : y.cells() * (y.wide_outs + 4));
    return std::max<Int>(1, std::min(wanted, SLICE_FLOATS / floats));
  }

  void add(const Clipping& how) {
    clipping = &how;
    Int tensor = 0;
    for (size_t l = 0; l < buffers.size(); l++)
      if (net.layers[l].weights) {
        sums[l].weight_owner = how.owner[tensor++];
        if (net.layers[l].is.bias) sums[l].bias_owner = how.owner[tensor++];
      }
    square.resize(how.layers);
    blur.resize(how.layers);
    factor.resize(how.layers);
    enter(const_cast<float*>(how.model));  // which nothing writes to
    const Int slices = (how.count + job.batch - 1) / job.batch;
    for (Int s = 0; s < slices; s++) {
      records = 0;
      for (Int i = how.count * s / slices; i < how.count * (s + 1) / slices; i++) take(how.records[i]);
      add_slice();
    }
  }

 private:
  struct Sums {  // of one layer
    Int weight_owner, bias_owner;
    std::vector<double> weight, bias;  // over a slice; the weights of linear layers are not here
    std::vector<double> slope, input;  // (batch,) squared norms of a linear layer's slopes and inputs
  };
  std::vector<Sums> sums;
  Floats left, right;  // a product's factors, as they are read
  std::vector<double, kernels::Aligned<double>> wide_left, wide_right;
  std::vector<double> square, blur;
  Floats factor;  // (layers,) of one record
  const Clipping* clipping = nullptr;

  void add_slice() {
    forward();
    lose(1);
    for (Sums& s : sums)
      for (auto* sum : {&s.weight, &s.bias}) std::fill(sum->begin(), sum->end(), 0.0);
    size_t l = buffers.size();
    for (; l > 0 && net.layers[l - 1].is.linear; l--) linear_slopes(l - 1);
    for (Int n = 0; n < records; n++) {
      bool good = finite(&logit_slope[n * net.wide_classes], net.wide_classes);
      for (size_t s = l; s-- > 0;) good = one_spatial(s, n) && good;
      if (good && measure(n))
        add_one(n);
      else
        drop(n);
    }
    for (size_t s = 0; s < buffers.size(); s++) {
      s < l ? finish_spatial(s) : finish_linear(s);
      const Layer& y = net.layers[s];
      for (Int o = 0; y.is.bias && o < y.outs; o++) clipping->total[y.bias + o] += sums[s].bias[o];
    }
  }

  // The slopes of what a linear layer took, and what the norms of its gradients follow from.
  void linear_slopes(size_t l) {
    const Layer& y = net.layers[l];
    Buffers& b = buffers[l];
    const Int outs = output_size(l);
    const float* slope = slopes_before_relu(l);
    for (Int n = 0; n < records; n++) {
      sums[l].slope[n] = squares(slope + n * outs, outs);
      sums[l].input[n] = squares(&b.input[n * y.size], y.size);
    }
    if (l == 0) return;
    float* to = b.slope.data();
    product(left, right, slope, outs, 1, records, b.moving, y.size, y.outs, y.size, [](Int, Int) {},
            [=](Int n, Int f, Lanes v) { store(to + n * y.size + f, v); });
  }

  // The slopes of one record's weights and inputs; whether all inputs are finite.
  bool one_spatial(size_t l, Int n) {
    const Layer& y = net.layers[l];
    Buffers& b = buffers[l];
    if (l > 0) std::fill_n(&b.slope[n * y.size], y.size, 0.0f);
    spatial_slopes_start(l);
    spatial_slopes(l, n, n + 1);
    for (Int i = 0; y.weights && i < y.outs * y.is.kernel[0]; i++)  // beyond a window's row are other pixels
      std::fill_n(&b.weight_slope[i * y.wide_run + y.run], y.wide_run - y.run, 0.0f);
    return !y.weights || finite(&b.input[n * y.size], y.size);
  }

  // The factors of one record; whether its gradient is finite.
  bool measure(Int n) {
    std::fill(square.begin(), square.end(), 0.0);
    std::fill(blur.begin(), blur.end(), 0.0);
    auto tensor = [&](Int owner, double here, double lost) { square[owner] += here, blur[owner] += lost; };
    for (size_t l = 0; l < buffers.size(); l++) {
      const Layer& y = net.layers[l];
      const Sums& s = sums[l];
      if (!y.weights) continue;
      double weight, bias, lost = LEAST * std::sqrt(double(y.weights));
      if (y.is.linear) {
        weight = s.slope[n] * s.input[n], bias = s.slope[n];
        lost += LEAST * std::sqrt(y.outs * s.input[n]);  // of the slopes, which are shortened
      } else {
        weight = squares(buffers[l].weight_slope.data(), buffers[l].weight_slope.size());
        bias = squares(buffers[l].bias_slope.data(), y.wide_outs);
      }
      tensor(s.weight_owner, weight, lost);
      if (y.is.bias) tensor(s.bias_owner, bias, LEAST * std::sqrt(double(y.outs)));
    }
    const double bound = clipping->clip / std::sqrt(double(clipping->layers));
    for (Int k = 0; k < clipping->layers; k++) {
      if (!std::isfinite(square[k])) return false;
      const double norm = std::sqrt(square[k]), most = bound * (1 - ROUNDING);
      const double wanted = norm > most ? most / norm : 1;
      if (norm * wanted > FLT_MAX) return false;  // products that are not made could leave floating point
      const bool lossy = blur[k] > ROUNDING / 4 * bound || wanted < FLT_MIN;
      factor[k] = wanted < 1 && lossy ? 0.0f : float(wanted);
    }
    return true;
  }

  // Adds what is made of one record's gradient, and shortens the slopes of which the rest will be made.
  void add_one(Int n) {
    for (Int k = 0; k < clipping->layers; k++) *clipping->squares += square[k] * factor[k] * factor[k];
    for (size_t l = 0; l < buffers.size(); l++) {
      const Layer& y = net.layers[l];
      Sums& s = sums[l];
      if (!y.weights) continue;
      const float weight = factor[s.weight_owner], bias = y.is.bias ? factor[s.bias_owner] : 0.0f;
      if (y.is.linear) {
        float* slope = slope_of_output(l) + n * output_size(l);
        if (y.is.bias) add_times(s.bias.data(), slope, bias, y.wide_outs);
        for (Int o = 0; o < y.outs; o++) slope[o] *= weight;
      } else {
        add_times(s.weight.data(), buffers[l].weight_slope.data(), weight, s.weight.size());
        if (y.is.bias) add_times(s.bias.data(), buffers[l].bias_slope.data(), bias, y.wide_outs);
      }
    }
  }

  // Zero times infinity is not zero: nothing of such a record may stay.
  void drop(Int n) {
    std::fill_n(&logits[n * net.wide_classes], net.wide_classes, 0.0f);
    for (size_t l = 0; l < buffers.size(); l++) {
      std::fill_n(&buffers[l].input[n * net.layers[l].size], net.layers[l].size, 0.0f);
      std::fill_n(slope_of_output(l) + n * output_size(l), output_size(l), 0.0f);
    }
  }

  // From our order of a convolution's weights to torch's.
  void finish_spatial(size_t l) {
    const Layer& y = net.layers[l];
    double* to = clipping->total + y.weight;
    for (Int o = 0; y.weights && o < y.outs; o++)
      for (Int c = 0; c < y.channels; c++)
        for (Int i = 0; i < y.is.kernel[0]; i++)
          for (Int j = 0; j < y.is.kernel[1]; j++)
            *to++ += sums[l].weight[(o * y.is.kernel[0] + i) * y.wide_run + j * y.channels + c];
  }

  void finish_linear(size_t l) {
    const Layer& y = net.layers[l];
    double* total = clipping->total + y.weight;
    const Int row = y.channels;
    product(
        wide_left, wide_right, slope_of_output(l), 1, output_size(l), y.outs, buffers[l].input.data(), y.size, records, y.size,
        [=](Int o, Int f) { __builtin_prefetch(total + o * row + f, 1); },  // far away, and soon needed
        [=](Int o, Int f, auto v) {
          double* to = total + o * row + f;
          if (f + L <= row)
            for (int k = 0; k < L; k++) to[k] += v[k];
          else
            for (int k = 0; f + k < row; k++) to[k] += v[k];
        });
  }

  // Calls use(m, f, lanes) with the sum over k of a(k, m) b(k, f), for `rows` of m and `floats` of f; and a
  // little before soon(m, f).
  // a: steps from one m and one k to the next. b: (count,) rows, `pitch` floats apart.
  // left, right: room for both factors, in the precision of the sums.
  template <typename Numbers, typename Soon, typename Use>
  void product(Numbers& left, Numbers& right, const float* a, Int step_m, Int step_k, Int rows, const float* b, Int pitch, Int count,
               Int floats, const Soon& soon, const Use& use) {
    typedef typename Numbers::value_type T;
    T* to = left.data();
    for (Int m = 0; m < rows; m += DOWN)
      for (Int k = 0; k < count; k++)
        for (Int i = m; i < std::min(m + DOWN, rows); i++) *to++ = a[i * step_m + k * step_k];
    constexpr int WIDE = ACROSS * sizeof(float) / sizeof(T);  // vectors that fit into the registers
    for (Int f = 0; f < floats; f += WIDE * L)
      as_constant<WIDE>(std::min<Int>(WIDE, (floats - f) / L), [&](auto V) {
        for (Int k = 0; k < count; k++)
          std::copy_n(b + k * pitch + f, V * L, &right[k * V * L]);
        for (Int m = 0; m < rows; m += DOWN)
          as_constant<DOWN>(std::min<Int>(DOWN, rows - m), [&](auto M) {
            for (int i = 0; i < M; i++)
              for (int v = 0; v < V; v++) soon(m + i, f + v * L);
            product_tile<T, M, V>(&left[m * count], right.data(), V * L, count,
                               [&](int i, int v, auto sum) { use(m + i, f + v * L, sum); });
          });
      });
  }
};

// One model and all that sums of its gradients need, kept from one batch to the next.
struct Session {
  Job job;
  const Net net;
  Clipper clipper;

  explicit Session(const Job& given) : job(given), net(given), clipper(sized(job, net), net) {}

  static const Job& sized(Job& job, const Net& net) {
    job.batch = Clipper::together(net, job.batch);
    return job;
  }
};

}  // namespace

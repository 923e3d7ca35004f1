// Matrices in panels of a few columns, so that whatever a product reads next lies next in memory.
//
// Products go along rows of one matrix and columns of another in registers; each number of a result is summed
// in the same order however many rows there are.
#pragma once

#include <new>
#include <vector>

#include "_kernels.hpp"

namespace panels {

using kernels::as_constant;
typedef int64_t Int;

#ifdef __AVX512F__
constexpr int W = 16;  // floats in a vector
constexpr int ROWS = 12, ACROSS = 8;  // of a product's tile, and of that of slopes
#else
constexpr int W = 8;
constexpr int ROWS = 6, ACROSS = 4;
#endif
constexpr int PANEL = 2 * W;
constexpr Int ROW_BLOCK = 240, DEPTH_BLOCK = 256, SLOPE_BLOCK = 160;  // what stays in the nearer caches

typedef float Wide __attribute__((vector_size(4 * W)));
typedef uint32_t WideBits __attribute__((vector_size(4 * W)));
typedef float LooseWide __attribute__((vector_size(4 * W), aligned(4), may_alias));

inline Wide load(const float* p) { return *reinterpret_cast<const LooseWide*>(p); }
inline void store(float* p, Wide v) { *reinterpret_cast<LooseWide*>(p) = v; }
inline Wide all(float x) { return x - Wide{}; }
constexpr Int panels_of(Int columns) { return (columns + PANEL - 1) / PANEL; }
constexpr Int vectors_of(Int columns) { return (columns + W - 1) / W; }

template <typename T>
struct Aligned {  // a vector that lies across two lines of the cache takes twice as long to read
  typedef T value_type;
  Aligned() = default;
  template <typename U>
  Aligned(const Aligned<U>&) {}
  T* allocate(size_t n) {
    if (n > SIZE_MAX / 2 / sizeof(T)) throw std::bad_alloc();
    return static_cast<T*>(::operator new(n * sizeof(T), std::align_val_t(64)));
  }
  void deallocate(T* p, size_t) { ::operator delete(p, std::align_val_t(64)); }
  friend bool operator==(const Aligned&, const Aligned&) { return true; }
  friend bool operator!=(const Aligned&, const Aligned&) { return false; }
};
typedef std::vector<float, Aligned<float>> Room;

// (rows, columns); columns beyond the last one are zeros.
struct Matrix {
  Int rows = 0, columns = 0, count = 0, pitch = 0;  // count of panels, floats from one to the next
  Room room;                                        // (count, rows, PANEL)

  Matrix() = default;
  Matrix(Int rows, Int columns)
      // an odd number of rows: the same row of all panels must not fall on the same places of the cache
      : rows(rows), columns(columns), count(panels_of(columns)), pitch((rows | 1) * PANEL),
        room(size_t(count * pitch)) {}

  float* at(Int panel, Int row) { return room.data() + panel * pitch + row * PANEL; }
  const float* at(Int panel, Int row) const { return room.data() + panel * pitch + row * PANEL; }
  float& operator()(Int row, Int column) { return at(column / PANEL, row)[column % PANEL]; }
  // W columns from a multiple of W on
  float* vector(Int row, Int column) { return at(column / PANEL, row) + column % PANEL; }
  void wipe() { std::fill(room.begin(), room.end(), 0.0f); }
};

enum From { NOTHING, BIAS, ITSELF };  // what a product is added to

template <int R, From FROM>
inline void product_tile(const float* a, Int pitch, Int depth, const float* b, const float* bias, float* c) {
  Wide s[R][2];
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 2
    for (int v = 0; v < 2; v++)
      s[r][v] = FROM == NOTHING ? Wide{} : load(FROM == BIAS ? bias + v * W : c + r * PANEL + v * W);
  for (Int first = 0; first < depth; first += PANEL, a += pitch) {
    const Int last = std::min<Int>(PANEL, depth - first);
    for (Int k = 0; k < last; k++, b += PANEL) {
      const Wide left = load(b), right = load(b + W);
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) {
        const Wide one = all(a[r * PANEL + k]);
        s[r][0] += one * left;
        s[r][1] += one * right;
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 2
    for (int v = 0; v < 2; v++) store(c + r * PANEL + v * W, s[r][v]);
}

template <From FROM>
void product_part(const Matrix& a, Int from, const Matrix& b, Int first, Int depth, const float* bias,
                  Matrix& c, Int to, Int rows) {
  const Int tiles = (rows + ROWS - 1) / ROWS;
  for (Int p = 0; p < c.count; p++)
    for (Int t = 0, r = 0; t < tiles; t++) {
      const Int count = rows * (t + 1) / tiles - r;
      as_constant<ROWS>(count, [&](auto R) {
        product_tile<R, FROM>(a.at(first / PANEL, from + r), a.pitch, depth, b.at(p, first),
                              FROM == BIAS ? bias + p * PANEL : nullptr, c.at(p, to + r));
      });
      r += count;
    }
}

// c[to + r] = a[from + r] . b + what FROM says, for so many rows; a's columns are b's rows
template <From FROM>
void product(const Matrix& a, Int from, const Matrix& b, const float* bias, Matrix& c, Int to, Int rows) {
  for (Int row = 0; row < rows; row += ROW_BLOCK)
    for (Int first = 0; first < b.rows; first += DEPTH_BLOCK) {
      const Int here = std::min(ROW_BLOCK, rows - row), depth = std::min(DEPTH_BLOCK, b.rows - first);
      auto* part = first ? product_part<ITSELF> : product_part<FROM>;
      part(a, from + row, b, first, depth, bias, c, to + row, here);
    }
}

template <int R>
inline void slopes_tile(const float* a, const float* d, Int rows, float* c) {
  Wide s[R][2];
#pragma GCC unroll 16
  for (int i = 0; i < R; i++)
#pragma GCC unroll 2
    for (int v = 0; v < 2; v++) s[i][v] = load(c + i * PANEL + v * W);
  for (Int r = 0; r < rows; r++, a += PANEL, d += PANEL) {
    const Wide left = load(d), right = load(d + W);
#pragma GCC unroll 16
    for (int i = 0; i < R; i++) {
      const Wide one = all(a[i]);
      s[i][0] += one * left;
      s[i][1] += one * right;
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < R; i++)
#pragma GCC unroll 2
    for (int v = 0; v < 2; v++) store(c + i * PANEL + v * W, s[i][v]);
}

// c[k][n] += sum over rows of a[from + r][k] d[by + r][n]: what slopes d of a product say of its weights
inline void add_slopes(const Matrix& a, Int from, const Matrix& d, Int by, Matrix& c, Int rows) {
  for (Int block = 0; block < rows; block += SLOPE_BLOCK) {
    const Int here = std::min(SLOPE_BLOCK, rows - block);
    for (Int p = 0; p < c.count; p++)
      for (Int k = 0; k < c.rows; k += ACROSS)
        as_constant<ACROSS>(std::min<Int>(ACROSS, c.rows - k), [&](auto R) {
          slopes_tile<R>(a.at(k / PANEL, from + block) + k % PANEL, d.at(p, by + block), here, c.at(p, k));
        });
  }
}

// total[n] += sum over rows of d[by + r][n]
inline void add_rows(const Matrix& d, Int by, Int rows, float* total) {
  for (Int p = 0; p < d.count; p++, total += PANEL) {
    Wide left = load(total), right = load(total + W);
    for (Int r = 0; r < rows; r++) {
      left += load(d.at(p, by + r));
      right += load(d.at(p, by + r) + W);
    }
    store(total, left);
    store(total + W, right);
  }
}

inline void transpose(const Matrix& a, Matrix& b) {
  for (Int p = 0; p < a.count; p++)
    for (Int row = 0; row < a.rows; row += PANEL) {
      const Int rows = std::min<Int>(PANEL, a.rows - row), columns = std::min<Int>(PANEL, b.rows - p * PANEL);
      const float* from = a.at(p, row);
      float* to = b.at(row / PANEL, p * PANEL);
      for (Int j = 0; j < columns; j++)
        for (Int i = 0; i < rows; i++) to[j * PANEL + i] = from[i * PANEL + j];
    }
}

}  // namespace panels

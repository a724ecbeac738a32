// Products of few rows with a dense weight: each weight is read from memory once and used for every
// row. A tile of rows and outputs keeps its sums in registers, lanes along the inputs.

#include "kernels.h"
#include "parallel.h"
#include "simd.h"

namespace tokenspeed_reference::TS_ISA {
namespace {

// kMaxRows * kOutputs sums, kMaxRows activations and a weight fit the registers.
constexpr int kOutputs = kLanes == 16 ? 6 : 4;
constexpr int kMaxRows = kLanes == 16 ? 4 : 3;

template <int kRows, int kCols>
void Tile(const LinearArgs& a, int64_t row, int64_t output) {
  const float* x = a.x + row * a.x_stride;
  const float* weight = a.weight + output * a.inputs;
  Floats sums[kRows][kCols] = {};
  const bool fetches = row == 0;
  int64_t i = 0;
  for (; i + kLanes <= a.inputs; i += kLanes) {
    Floats v[kRows];
    for (int r = 0; r < kRows; ++r) v[r] = LoadFloats(x + r * a.x_stride + i);
    for (int c = 0; c < kCols; ++c) {
      const Floats w = LoadFloats(weight + c * a.inputs + i);
      if (fetches) Prefetch(weight + (kCols + c) * a.inputs + i);
      for (int r = 0; r < kRows; ++r) sums[r][c] = v[r] * w + sums[r][c];
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kCols; ++c) {
      float sum = Sum(sums[r][c]);
      for (int64_t j = i; j < a.inputs; ++j)
        sum += x[r * a.x_stride + j] * weight[c * a.inputs + j];
      if (a.bias != nullptr) sum += a.bias[output + c];
      a.y[(row + r) * a.outputs + output + c] = sum;
    }
  }
}

template <int kCols>
void Rows(const LinearArgs& a, int64_t row, int64_t count, int64_t output) {
  switch (count) {
    case 1:
      return Tile<1, kCols>(a, row, output);
    case 2:
      return Tile<2, kCols>(a, row, output);
    case 3:
      return Tile<3, kCols>(a, row, output);
#if defined(__AVX512F__)
    case 4:
      return Tile<4, kCols>(a, row, output);
#endif
  }
}

}  // namespace

void Linear(const LinearArgs& a) {
  const int64_t tiles = (a.outputs + kOutputs - 1) / kOutputs;
  // Row tiles of nearly equal height: 9 rows are 3 + 3 + 3, not 4 + 4 + 1.
  const int64_t row_tiles = (a.rows + kMaxRows - 1) / kMaxRows;
  const int64_t work = a.rows * a.outputs * a.inputs;
  Parallel(tiles, work, a.threads, [&](int64_t first, int64_t last) {
    for (int64_t tile = first; tile < last; ++tile) {
      const int64_t output = tile * kOutputs, end = Min(output + kOutputs, a.outputs);
      for (int64_t part = 0; part < row_tiles; ++part) {
        const int64_t row = a.rows * part / row_tiles;
        const int64_t count = a.rows * (part + 1) / row_tiles - row;
        if (end - output == kOutputs) {
          Rows<kOutputs>(a, row, count, output);
        } else {
          for (int64_t single = output; single < end; ++single) Rows<1>(a, row, count, single);
        }
      }
    }
  });
}

}  // namespace tokenspeed_reference::TS_ISA

// Normalisation, gate and rotation: one pass over memory each.

#include <cmath>

#include "kernels.h"
#include "parallel.h"
#include "simd.h"

namespace tokenspeed_reference::TS_ISA {
namespace {

// Returns the sum of squares of x (+ residual, the sum then written to total).
float SquareSum(const float* x, const float* residual, float* total, int64_t features) {
  Floats squares = {};
  int64_t i = 0;
  for (; i + kLanes <= features; i += kLanes) {
    Floats v = LoadFloats(x + i);
    if (residual != nullptr) Store(total + i, v = LoadFloats(residual + i) + v);
    squares = v * v + squares;
  }
  float sum = Sum(squares);
  for (; i < features; ++i) {
    const float v = residual != nullptr ? total[i] = residual[i] + x[i] : x[i];
    sum = v * v + sum;
  }
  return sum;
}

void NormRow(const NormArgs& a, int64_t row) {
  const int64_t features = a.features;
  const float* x = a.x + row / a.inner * a.outer_stride + row % a.inner * a.inner_stride;
  const float* residual = a.residual == nullptr ? nullptr : a.residual + row * features;
  float* total = a.total == nullptr ? nullptr : a.total + row * features;
  const float mean = SquareSum(x, residual, total, features) / static_cast<float>(features);
  const float scale = 1.0f / sqrtf(mean + a.eps);
  const float* normed = residual == nullptr ? x : total;
  float* out = a.out + row * features;
  int64_t i = 0;
  for (; i + kLanes <= features; i += kLanes) {
    Store(out + i, LoadFloats(normed + i) * scale * LoadFloats(a.weight + i));
  }
  for (; i < features; ++i) out[i] = normed[i] * scale * a.weight[i];
}

void SiluMulRow(const float* gate, float* out, int64_t features) {
  const float* up = gate + features;
  int64_t i = 0;
  for (; i + kLanes <= features; i += kLanes) {
    const Floats g = LoadFloats(gate + i);
    Store(out + i, g / (1.0f + Exp(-g)) * LoadFloats(up + i));
  }
  for (; i < features; ++i) out[i] = gate[i] / (1.0f + Exp(Splat(-gate[i]))[0]) * up[i];
}

void RotateHead(float* x, const float* cos, const float* sin, int64_t turned) {
  const int64_t half = turned / 2;
  int64_t i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const Floats first = LoadFloats(x + i), second = LoadFloats(x + half + i);
    Store(x + i, first * LoadFloats(cos + i) + second * LoadFloats(sin + i));
    Store(x + half + i, second * LoadFloats(cos + half + i) + first * LoadFloats(sin + half + i));
  }
  for (; i < half; ++i) {
    const float first = x[i], second = x[half + i];
    x[i] = first * cos[i] + second * sin[i];
    x[half + i] = second * cos[half + i] + first * sin[half + i];
  }
}

}  // namespace

void Norm(const NormArgs& a) {
  const int64_t rows = a.outer * a.inner;
  Parallel(rows, rows * a.features * 2, a.threads, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) NormRow(a, row);
  });
}

void SiluMul(const SiluArgs& a) {
  Parallel(a.rows, a.rows * a.features * 8, a.threads, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      SiluMulRow(a.gate_up + row * 2 * a.features, a.out + row * a.features, a.features);
    }
  });
}

void Rotary(const RotaryArgs& a) {
  const int64_t work = a.tokens * a.heads * a.head_dim * 2;
  Parallel(a.tokens, work, a.threads, [&](int64_t first, int64_t last) {
    for (int64_t token = first; token < last; ++token) {
      const int64_t angle = token * a.turned;
      for (int64_t head = 0; head < a.heads; ++head) {
        RotateHead(a.x + token * a.token_stride + head * a.head_dim, a.cos + angle, a.sin + angle,
                   a.turned);
      }
    }
  });
}

}  // namespace tokenspeed_reference::TS_ISA

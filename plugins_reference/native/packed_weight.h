// A low-bit weight in the layout that the packed product reads.
// Owns its bytes. Thread: Multiply keeps its scratch per thread; any number may run at once.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels.h"

namespace tokenspeed_reference {

class PackedWeight {
 public:
  // Lays out a weight: q (outputs, inputs) int16; scales and offsets (outputs, inputs / group)
  // half precision; offsets are null for 8 bits. Nothing is rounded.
  // REQUIRES: bits 4 with group 32 and q in [0, 16), or bits 8 with group 32 or 16 and q in
  // [-128, 128); inputs a multiple of group. Throws std::invalid_argument otherwise.
  PackedWeight(const PackedShape& shape, const int16_t* q, const uint16_t* scales,
               const uint16_t* offsets);

  // y (rows, outputs) = x (rows, inputs) * weight^T + bias (null: none).
  void Multiply(float* y, const float* x, int64_t x_stride, int64_t rows, const float* bias,
                int threads) const;

  int64_t num_bytes() const { return num_bytes_; }

 private:
  struct Free {
    void operator()(uint8_t* bytes) const;
  };

  PackedShape shape_;
  int64_t num_bytes_;
  std::unique_ptr<uint8_t[], Free> bytes_;
};

}  // namespace tokenspeed_reference

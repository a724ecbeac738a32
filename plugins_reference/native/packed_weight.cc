#include "packed_weight.h"

#include <cstring>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "dispatch.h"

namespace tokenspeed_reference {
namespace {

constexpr std::align_val_t kAlign{64};
// Where the inputs of a word lie, lowest field first (see PackedShape).
constexpr int kOrder4[8] = {0, 2, 4, 6, 1, 3, 5, 7};
constexpr int kOrder8[4] = {0, 2, 1, 3};

int64_t GroupBytes(const PackedShape& shape) {
  const int64_t halves = shape.bits == 4 ? 2 : 1;
  return kBlockOutputs * (2 * halves + shape.group * shape.bits / 8);
}

void Check(const PackedShape& s) {
  const bool is_known =
      (s.bits == 4 && s.group == 32) || (s.bits == 8 && (s.group == 32 || s.group == 16));
  if (is_known && s.outputs > 0 && s.inputs > 0 && s.inputs % s.group == 0) return;
  throw std::invalid_argument(
      "packed weight of (" + std::to_string(s.outputs) + ", " + std::to_string(s.inputs) + "), " +
      std::to_string(s.bits) + " bits in groups of " + std::to_string(s.group) +
      ": 4 bits in groups of 32 or 8 bits in groups of 32 or 16 are known, and inputs must be a "
      "multiple of the group; choose another kernel");
}

uint32_t Word(const PackedShape& shape, const int16_t* q) {
  const bool is_4 = shape.bits == 4;
  uint32_t word = 0;
  for (int field = 0; field < 32 / shape.bits; ++field) {
    const auto value = static_cast<uint32_t>(q[is_4 ? kOrder4[field] : kOrder8[field]]);
    word |= (value & (is_4 ? 0xfu : 0xffu)) << (field * shape.bits);
  }
  return word;
}

// Writes one group of one output into its block's part for that group.
void PackGroup(const PackedShape& shape, const int16_t* q, uint8_t* part, int64_t lane) {
  const int64_t word_inputs = 32 / shape.bits;
  uint8_t* words = part + (shape.bits == 4 ? 4 : 2) * kBlockOutputs;
  for (int64_t w = 0; w < shape.group / word_inputs; ++w) {
    const uint32_t word = Word(shape, q + w * word_inputs);
    std::memcpy(words + (w * kBlockOutputs + lane) * 4, &word, sizeof(word));
  }
}

int64_t ScratchBytes(const PackedShape& shape, int64_t rows) {
  return rows * (shape.inputs / shape.group * 8 + shape.inputs * 2);
}

}  // namespace

void PackedWeight::Free::operator()(uint8_t* bytes) const { ::operator delete[](bytes, kAlign); }

PackedWeight::PackedWeight(const PackedShape& shape, const int16_t* q, const uint16_t* scales,
                           const uint16_t* offsets)
    : shape_(shape) {
  Check(shape);
  const int64_t groups = shape.inputs / shape.group, part_bytes = GroupBytes(shape);
  const int64_t blocks = (shape.outputs + kBlockOutputs - 1) / kBlockOutputs;
  num_bytes_ = blocks * groups * part_bytes;
  bytes_.reset(static_cast<uint8_t*>(::operator new[](num_bytes_, kAlign)));
  std::memset(bytes_.get(), 0, num_bytes_);
  for (int64_t output = 0; output < shape.outputs; ++output) {
    const int64_t lane = output % kBlockOutputs;
    uint8_t* part = bytes_.get() + output / kBlockOutputs * groups * part_bytes;
    for (int64_t g = 0; g < groups; ++g, part += part_bytes) {
      const int64_t at = output * groups + g;
      std::memcpy(part + 2 * lane, scales + at, 2);
      if (shape.bits == 4) std::memcpy(part + 2 * (kBlockOutputs + lane), offsets + at, 2);
      PackGroup(shape, q + at * shape.group, part, lane);
    }
  }
}

void PackedWeight::Multiply(float* y, const float* x, int64_t x_stride, int64_t rows,
                            const float* bias, int threads) const {
  thread_local std::vector<float> scratch;
  const auto needed = static_cast<size_t>(ScratchBytes(shape_, rows) / 4 + 1);
  if (scratch.size() < needed) scratch.resize(needed);
  Kernels().packed_linear(
      {shape_, y, x, bytes_.get(), bias, scratch.data(), rows, x_stride, threads});
}

}  // namespace tokenspeed_reference

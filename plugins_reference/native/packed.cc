// Products with a packed weight (see PackedShape): lanes along the outputs, so that no sum crosses
// lanes; integer sums within a group, float sums over groups.

#include <cmath>

#include "kernels.h"
#include "parallel.h"
#include "simd.h"

namespace tokenspeed_reference::TS_ISA {
namespace {

constexpr int kMaxRows = kLanes == 16 ? 6 : 4;
constexpr float kLargest = 32767.0f;

// Activations of all rows; kGroup inputs share a scale.
struct Activations {
  int16_t* q;     // (rows, inputs)
  float* scales;  // (rows, groups)
  float* sums;    // (rows, groups)
  int64_t inputs, groups;
};

Activations Place(const PackedArgs& a) {
  const int64_t inputs = a.shape.inputs, groups = inputs / a.shape.group;
  float* scales = static_cast<float*>(a.scratch);
  float* sums = scales + a.rows * groups;
  return {reinterpret_cast<int16_t*>(sums + a.rows * groups), scales, sums, inputs, groups};
}

// Rounds one group. A group with NaN or infinity gets the scale NaN, which reaches every output.
template <int kGroup>
void RoundGroup(const float* x, int16_t* q, float* scale, float* sum) {
  Floats largest = {}, sums = {};
  for (int i = 0; i < kGroup; i += kLanes) {
    const Floats v = LoadFloats(x + i);
    largest = Max(largest, Max(v, -v));
    sums += v;
  }
  *sum = Sum(sums);
  const bool is_finite = *sum - *sum == 0.0f;
  const float top = is_finite ? MaxOf(largest) : 0.0f;
  *scale = is_finite ? top / kLargest : NAN;
  const float inverse = top > 0.0f ? kLargest / top : 0.0f;
  for (int i = 0; i < kGroup; ++i) {
    const float scaled = is_finite ? x[i] * inverse : 0.0f;
    const float rounded = (scaled + 12582912.0f) - 12582912.0f;
    const float held = rounded > kLargest ? kLargest : rounded < -kLargest ? -kLargest : rounded;
    q[i] = static_cast<int16_t>(static_cast<int32_t>(held));
  }
}

template <int kGroup>
void RoundRows(const PackedArgs& a, const Activations& to) {
  Parallel(a.rows, a.rows * to.inputs * 4, a.threads, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      for (int64_t g = 0; g < to.groups; ++g) {
        const int64_t at = row * to.groups + g;
        RoundGroup<kGroup>(a.x + row * a.x_stride + g * kGroup, to.q + row * to.inputs + g * kGroup,
                           to.scales + at, to.sums + at);
      }
    }
  });
}

template <int kBits, int kGroup>
struct Layout {
  static constexpr int kWordInputs = 32 / kBits;
  static constexpr int kWords = kGroup / kWordInputs;
  static constexpr int64_t kHeadBytes = (kBits == 4 ? 4 : 2) * kBlockOutputs;
  static constexpr int64_t kBytes = kHeadBytes + kWords * 4 * kBlockOutputs;
};

// Pair `k` of a word: two inputs as 16-bit integers.
template <int kBits>
inline Ints Pair(Words word, int k) {
  if constexpr (kBits == 4) {
    const Words pair = (word >> (4 * k)) & 0x000f000f;
    return Load<Ints>(&pair);
  } else {
    const Shorts halves = Load<Shorts>(&word);
    const Shorts pair = k == 0 ? (halves << 8) >> 8 : halves >> 8;
    return Load<Ints>(&pair);
  }
}

// kLanes outputs of kRows rows, from lane `lane` of a block.
template <int kRows, int kBits, int kGroup>
void Tile(const PackedArgs& a, const Activations& x, const uint8_t* block, int lane, int64_t row,
          int64_t output) {
  using L = Layout<kBits, kGroup>;
  constexpr int kPairs = L::kWordInputs / 2;
  Floats totals[kRows] = {};
  for (int64_t g = 0; g < x.groups; ++g, block += L::kBytes) {
    const int16_t* q = x.q + row * x.inputs + g * kGroup;
    Ints sums[kRows] = {};
#pragma GCC unroll 8
    for (int w = 0; w < L::kWords; ++w) {
      const Words word = Load<Words>(block + L::kHeadBytes + (w * kBlockOutputs + lane) * 4);
#pragma GCC unroll 4
      for (int k = 0; k < kPairs; ++k) {
        const Ints pair = Pair<kBits>(word, k);
        for (int r = 0; r < kRows; ++r) {
          int32_t two;
          std::memcpy(&two, q + r * x.inputs + 2 * (w * kPairs + k), sizeof(two));
          sums[r] = DotPairs(sums[r], pair, SplatInt(two));
        }
      }
    }
    const auto* head = reinterpret_cast<const uint16_t*>(block);
    const Floats scale = LoadHalves(head + lane);
    for (int r = 0; r < kRows; ++r) {
      const int64_t at = (row + r) * x.groups + g;
      totals[r] = __builtin_convertvector(sums[r], Floats) * (scale * x.scales[at]) + totals[r];
      if constexpr (kBits == 4) {
        totals[r] = LoadHalves(head + kBlockOutputs + lane) * x.sums[at] + totals[r];
      }
    }
  }
  const int64_t count = Min(kLanes, a.shape.outputs - output);
  for (int r = 0; r < kRows; ++r) {
    float lanes[kLanes];
    Store(lanes, totals[r]);
    float* y = a.y + (row + r) * a.shape.outputs + output;
    for (int64_t i = 0; i < count; ++i) {
      y[i] = a.bias == nullptr ? lanes[i] : lanes[i] + a.bias[output + i];
    }
  }
}

template <int kBits, int kGroup>
void Rows(const PackedArgs& a, const Activations& x, const uint8_t* block, int lane, int64_t row,
          int64_t count, int64_t output) {
  switch (count) {
    case 1:
      return Tile<1, kBits, kGroup>(a, x, block, lane, row, output);
    case 2:
      return Tile<2, kBits, kGroup>(a, x, block, lane, row, output);
    case 3:
      return Tile<3, kBits, kGroup>(a, x, block, lane, row, output);
    case 4:
      return Tile<4, kBits, kGroup>(a, x, block, lane, row, output);
#if defined(__AVX512F__)
    case 5:
      return Tile<5, kBits, kGroup>(a, x, block, lane, row, output);
    case 6:
      return Tile<6, kBits, kGroup>(a, x, block, lane, row, output);
#endif
  }
}

template <int kBits, int kGroup>
void Multiply(const PackedArgs& a) {
  const Activations x = Place(a);
  RoundRows<kGroup>(a, x);
  const int64_t blocks = (a.shape.outputs + kBlockOutputs - 1) / kBlockOutputs;
  const int64_t block_bytes = x.groups * Layout<kBits, kGroup>::kBytes;
  const int64_t row_tiles = (a.rows + kMaxRows - 1) / kMaxRows;
  const int64_t work = a.rows * a.shape.outputs * a.shape.inputs / 4;
  Parallel(blocks, work, a.threads, [&](int64_t first, int64_t last) {
    for (int64_t b = first; b < last; ++b) {
      for (int64_t part = 0; part < row_tiles; ++part) {
        const int64_t row = a.rows * part / row_tiles;
        const int64_t count = a.rows * (part + 1) / row_tiles - row;
        for (int lane = 0; lane < kBlockOutputs; lane += kLanes) {
          const int64_t output = b * kBlockOutputs + lane;
          if (output >= a.shape.outputs) break;
          Rows<kBits, kGroup>(a, x, a.weight + b * block_bytes, lane, row, count, output);
        }
      }
    }
  });
}

}  // namespace

void PackedLinear(const PackedArgs& a) {
  if (a.shape.bits == 4) return Multiply<4, 32>(a);
  if (a.shape.group == 32) return Multiply<8, 32>(a);
  Multiply<8, 16>(a);
}

}  // namespace tokenspeed_reference::TS_ISA

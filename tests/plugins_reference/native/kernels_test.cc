// Every instruction set gives what the portable kernels give, on heap buffers of the exact size:
// under AddressSanitizer a lane too many is an error. Values against definitions: test_native.py.

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <random>
#include <vector>

#include "decode_step.h"
#include "dispatch.h"
#include "packed_weight.h"

namespace tokenspeed_reference {
namespace {

using Values = std::vector<float>;

Values Noise(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> values(-1.0f, 1.0f);
  Values noise(count);
  for (float& value : noise) value = values(random);
  return noise;
}

// Calls `compute` for every instruction set and compares its result with that of the last one.
void ExpectSameEverywhere(const std::function<Values(int threads)>& compute) {
  const std::vector<std::string> names = InstructionSets();
  ASSERT_TRUE(Use(names.back()));
  const Values expected = compute(1);
  for (const std::string& name : names) {
    ASSERT_TRUE(Use(name));
    const Values got = compute(2);
    ASSERT_EQ(got.size(), expected.size());
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_NEAR(got[i], expected[i], 1e-4f * (1.0f + std::abs(expected[i])))
          << name << " at " << i;
    }
  }
  ASSERT_TRUE(Use(names.front()));
}

TEST(KernelsTest, NormReadsAndWritesItsRowsOnly) {
  for (const int64_t features : {1, 3, 16, 17, 80, 4099}) {
    for (const int64_t rows : {1, 2, 33}) {
      const Values x = Noise(rows * features, 1), residual = Noise(rows * features, 2);
      const Values weight = Noise(features, 3);
      ExpectSameEverywhere([&](int threads) {
        Values out(rows * features), total(rows * features);
        Kernels().norm({out.data(), total.data(), x.data(), residual.data(), weight.data(), rows, 1,
                        features, 0, features, 1e-5f, threads});
        out.insert(out.end(), total.begin(), total.end());
        return out;
      });
    }
  }
}

TEST(KernelsTest, GateAndRotaryReadAndWriteTheirRowsOnly) {
  for (const int64_t half : {1, 3, 8, 17, 40, 64}) {
    for (const int64_t rows : {1, 5, 33}) {
      const Values x = Noise(rows * 3 * 2 * half, 1), angles = Noise(rows * 2 * half, 2);
      ExpectSameEverywhere([&](int threads) {
        Values out(rows * 3 * half), turned = x;
        Kernels().silu_mul({out.data(), x.data(), rows * 3, half, threads});
        Kernels().rotary({turned.data(), angles.data(), angles.data(), rows, 3, 2 * half, 2 * half,
                          6 * half, threads});
        out.insert(out.end(), turned.begin(), turned.end());
        return out;
      });
    }
  }
}

TEST(KernelsTest, LinearReadsItsWeightOnly) {
  for (const int64_t inputs : {1, 15, 16, 80, 577}) {
    for (const int64_t outputs : {1, 5, 6, 7, 129}) {
      for (const int64_t rows : {1, 2, 3, 5, 33}) {
        const Values x = Noise(rows * inputs, 1), weight = Noise(outputs * inputs, 2);
        const Values bias = Noise(outputs, 3);
        ExpectSameEverywhere([&](int threads) {
          Values y(rows * outputs);
          Kernels().linear({y.data(), x.data(), weight.data(), bias.data(), rows, inputs, outputs,
                            inputs, threads});
          return y;
        });
      }
    }
  }
}

TEST(KernelsTest, PackedLinearReadsItsWeightOnly) {
  for (const auto& [bits, group] : {std::pair{4, 32}, {8, 32}, {8, 16}}) {
    for (const int64_t outputs : {1, 15, 16, 17, 70}) {
      for (const int64_t rows : {1, 2, 7, 33}) {
        const int64_t inputs = 96, groups = inputs / group;
        std::vector<int16_t> q(outputs * inputs);
        for (size_t i = 0; i < q.size(); ++i) {
          q[i] =
              static_cast<int16_t>(bits == 4 ? i * 7 % 16 : static_cast<int>(i * 37 % 256) - 128);
        }
        const std::vector<uint16_t> halves(outputs * groups, 0x2c00);  // 1/16
        const PackedWeight weight({outputs, inputs, bits, group}, q.data(), halves.data(),
                                  bits == 4 ? halves.data() : nullptr);
        const Values x = Noise(rows * inputs, 1), bias = Noise(outputs, 2);
        ExpectSameEverywhere([&](int threads) {
          Values y(rows * outputs);
          weight.Multiply(y.data(), x.data(), inputs, rows, bias.data(), threads);
          return y;
        });
      }
    }
  }
}

TEST(KernelsTest, PackedWeightRefusesAnUnknownGroup) {
  EXPECT_THROW(PackedWeight({16, 64, 4, 16}, nullptr, nullptr, nullptr), std::invalid_argument);
  EXPECT_THROW(PackedWeight({16, 40, 8, 16}, nullptr, nullptr, nullptr), std::invalid_argument);
}

// Every row has the blocks it needs and no more, the arena ends with the last one.
TEST(KernelsTest, DecodeReadsItsBlocksOnly) {
  const int64_t block_tokens = 64;
  for (const int64_t head_dim : {6, 64, 80, 128}) {
    for (const auto& [kv_heads, group] : {std::pair<int64_t, int64_t>{1, 1}, {2, 3}, {3, 8}}) {
      const std::vector<int32_t> lengths = {1, 127, 128, 129, 500}, firsts = {0, 60, 0, 1, 70};
      const int64_t width = 8;
      std::vector<int32_t> tables(lengths.size() * width, 0);
      std::vector<int64_t> blocks, offsets;
      int32_t next = 0;
      for (size_t row = 0; row < lengths.size(); ++row) {
        for (int64_t i = 0; i * block_tokens < lengths[row]; ++i) tables[row * width + i] = next++;
        blocks.push_back(next - 1);
        offsets.push_back((lengths[row] - 1) % block_tokens);
      }
      const int64_t head_stride = block_tokens * head_dim, block_stride = kv_heads * head_stride;
      const auto rows = static_cast<int64_t>(lengths.size());
      const Values k = Noise(next * block_stride, 1), v = Noise(next * block_stride, 2);
      const Values q = Noise(rows * kv_heads * group * head_dim, 3);
      const Values sinks = Noise(kv_heads * group, 5);
      const Values written = Noise(rows * kv_heads * head_dim, 4);
      ExpectSameEverywhere([&](int threads) {
        DecodeStep step(kv_heads, group, head_dim, block_tokens, tables, firsts, lengths, blocks,
                        offsets);
        Values keys = k, out(q.size());
        step.Write(keys.data(), block_stride, head_stride, written.data(), kv_heads * head_dim);
        step.Attend(out.data(), q.data(), kv_heads * group * head_dim, keys.data(), v.data(),
                    block_stride, head_stride, sinks.data(), 0.2f, 5.0f, threads);
        return out;
      });
    }
  }
}

}  // namespace
}  // namespace tokenspeed_reference

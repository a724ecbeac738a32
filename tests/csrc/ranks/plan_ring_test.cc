#include "ranks/plan_ring.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "ranks/plan_message.h"

namespace tokenspeed {
namespace {

using std::chrono::microseconds;
using Bytes = std::vector<std::byte>;

constexpr microseconds kLong{20'000'000};

struct Memory {
  explicit Memory(size_t size) : size(size) {
    void* block = std::aligned_alloc(64, (size + 63) / 64 * 64);
    std::memset(block, 0, size);
    data.reset(static_cast<std::byte*>(block));
  }
  std::span<std::byte> span() { return {data.get(), size}; }

  struct Free {
    void operator()(std::byte* block) const { std::free(block); }
  };
  size_t size;
  std::unique_ptr<std::byte, Free> data;
};

Bytes MakeMessage(int number, size_t size) {
  Bytes message(size);
  for (size_t i = 0; i < size; ++i) message[i] = static_cast<std::byte>(number * 7 + i * 13);
  return message;
}

TEST(PlanRingTest, EveryReaderGetsEveryMessageInOrderThoughSomeAreLongerThanTheRing) {
  constexpr int kReaders = 3, kMessages = 2000;
  constexpr size_t kCapacity = 256;
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  std::vector<size_t> sizes(kMessages);
  for (size_t& size : sizes) size = random() % 700;
  Memory memory(PlanRing::MemoryBytes(kCapacity, kReaders));
  PlanRing writer(memory.span(), kCapacity, kReaders);
  std::vector<std::thread> threads;
  std::vector<int> wrong(kReaders, 0);
  for (int reader = 0; reader < kReaders; ++reader) {
    threads.emplace_back([&, reader] {
      PlanRing ring(memory.span(), kCapacity, kReaders);
      Bytes message;
      for (int number = 0; number < kMessages; ++number) {
        if (!ring.Read(reader, message, kLong)) ++wrong[reader];
        if (message != MakeMessage(number, sizes[number])) ++wrong[reader];
      }
    });
  }
  for (int number = 0; number < kMessages; ++number) {
    EXPECT_TRUE(writer.Write(MakeMessage(number, sizes[number]), kLong));
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(kReaders, 0));
  for (int reader = 0; reader < kReaders; ++reader) EXPECT_EQ(writer.Unread(reader), 0u);
}

TEST(PlanRingTest, AMessageThatDoesNotFitInTimeGoesOnWithTheNextCall) {
  Memory memory(PlanRing::MemoryBytes(64, 1));
  PlanRing writer(memory.span(), 64, 1), reader(memory.span(), 64, 1);
  const Bytes message = MakeMessage(1, 100);
  EXPECT_FALSE(writer.Write(message, microseconds(100)));
  Bytes received;
  EXPECT_FALSE(reader.Read(0, received, microseconds(100)));
  EXPECT_TRUE(writer.Write(message, microseconds(100)));
  EXPECT_TRUE(reader.Read(0, received, microseconds(100)));
  EXPECT_EQ(received, message);
}

TEST(PlanRingTest, MemoryThatIsTooSmallIsRefused) {
  Memory memory(PlanRing::MemoryBytes(64, 1));
  EXPECT_THROW(PlanRing(memory.span(), 128, 1), std::invalid_argument);
  EXPECT_THROW(PlanRing(memory.span(), 64, 0), std::invalid_argument);
}

StepPlan MakePlan(std::mt19937& random, int64_t step_id) {
  const auto number = [&](int most) { return static_cast<int32_t>(random() % (most + 1)); };
  StepPlan plan;
  plan.step_id = step_id;
  plan.num_decode_rows = number(4);
  plan.num_state_groups = number(2);
  plan.num_write_rows = 1 + number(2);
  plan.ResizeRows(number(5));
  for (auto* column : {&plan.slots, &plan.query_start, &plan.context_tokens, &plan.output_index,
                       &plan.num_drafts}) {
    for (int32_t& value : *column) value = number(1 << 20);
  }
  for (int64_t& id : plan.request_ids) id = int64_t{number(1 << 20)} << 32;
  plan.token_ids.resize(number(70));
  for (int32_t& token : plan.token_ids) token = number(1000) - 1;
  plan.admitted.resize(number(3), {1, 2});
  plan.block_updates.resize(number(9), {3, 4, 5, number(99)});
  plan.copies.resize(number(2), {6, 7, 8, 9});
  plan.state_rows.resize(plan.num_rows() * plan.num_state_groups * (1 + plan.num_write_rows), -1);
  plan.tier_rows.block_tokens = 16;
  plan.tier_rows.transfers.resize(number(2), {1, 2, 3, 4, 5, number(9)});
  plan.tier_rows.store_moves.resize(number(2), {1, 2, 3, number(9)});
  plan.tier_rows.store_keys.resize(plan.tier_rows.store_moves.size(), {1, 2, 3});
  plan.tier_rows.store_tokens.resize(plan.tier_rows.store_moves.size() * 16, 7);
  return plan;
}

void ExpectEqual(const StepPlan& left, const StepPlan& right) {
  EXPECT_EQ(left.step_id, right.step_id);
  EXPECT_EQ(left.num_decode_rows, right.num_decode_rows);
  EXPECT_EQ(left.num_state_groups, right.num_state_groups);
  EXPECT_EQ(left.num_write_rows, right.num_write_rows);
  EXPECT_EQ(left.request_ids, right.request_ids);
  EXPECT_EQ(left.slots, right.slots);
  EXPECT_EQ(left.query_start, right.query_start);
  EXPECT_EQ(left.context_tokens, right.context_tokens);
  EXPECT_EQ(left.output_index, right.output_index);
  EXPECT_EQ(left.num_drafts, right.num_drafts);
  EXPECT_EQ(left.token_ids, right.token_ids);
  EXPECT_EQ(left.admitted, right.admitted);
  EXPECT_EQ(left.block_updates, right.block_updates);
  EXPECT_EQ(left.copies, right.copies);
  EXPECT_EQ(left.state_rows, right.state_rows);
  EXPECT_EQ(left.tier_rows.transfers, right.tier_rows.transfers);
  EXPECT_EQ(left.tier_rows.store_moves, right.tier_rows.store_moves);
  EXPECT_EQ(left.tier_rows.store_keys, right.tier_rows.store_keys);
  EXPECT_EQ(left.tier_rows.store_tokens, right.tier_rows.store_tokens);
}

TEST(PlanMessageTest, RandomPlansComeBackAsTheyWere) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  PlanEncoder encoder;
  PlanDecoder decoder;
  StepPlan received;
  std::vector<int32_t> extra;
  for (int step = 1; step <= 300; ++step) {
    const StepPlan plan = MakePlan(random, step);
    std::vector<int32_t> sent(random() % 4);
    std::iota(sent.begin(), sent.end(), step);
    decoder.Decode(encoder.Encode(plan, sent), received, extra);
    ExpectEqual(plan, received);
    EXPECT_EQ(extra, sent);
    EXPECT_EQ(decoder.chain().digest, encoder.chain().digest);
  }
  EXPECT_EQ(decoder.chain().sequence, 300);
}

TEST(PlanMessageTest, AnyChangedByteALostAndARepeatedMessageAreRefused) {
  std::mt19937 random(7);
  PlanEncoder encoder;
  const auto encode = [&](int64_t step) {
    const auto bytes = encoder.Encode(MakePlan(random, step), {});
    return Bytes(bytes.begin(), bytes.end());
  };
  const Bytes first = encode(1), second = encode(2), third = encode(3);
  PlanDecoder decoder;
  StepPlan plan;
  std::vector<int32_t> extra;
  for (size_t place = 0; place < first.size(); ++place) {
    Bytes damaged = first;
    damaged[place] ^= std::byte{4};
    EXPECT_THROW(decoder.Decode(damaged, plan, extra), std::invalid_argument) << place;
  }
  EXPECT_THROW(decoder.Decode(std::span(first).first(20), plan, extra), std::invalid_argument);
  decoder.Decode(first, plan, extra);
  EXPECT_THROW(decoder.Decode(first, plan, extra), std::invalid_argument);
  EXPECT_THROW(decoder.Decode(third, plan, extra), std::invalid_argument);
  decoder.Decode(second, plan, extra);
  decoder.Decode(third, plan, extra);
  EXPECT_EQ(decoder.chain().sequence, 3);
}

}  // namespace
}  // namespace tokenspeed

// A fake device for scheduler tests: executes plans on a memory of prefix fingerprints and samples
// the next token as a pure function of the whole prefix. A wrong block, copy, order or token makes
// a context check fail or changes the answer.
// Thread: any one.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/scheduler.h"
#include "support/tier_device.h"

namespace tokenspeed::test {

inline uint64_t Extend(uint64_t fingerprint, int32_t token) {
  uint64_t mixed = (fingerprint ^ static_cast<uint32_t>(token)) * 0x9e3779b97f4a7c15ULL;
  return mixed ^ (mixed >> 29);
}

// What a request's sequence must be: its first tokens, then whatever the model says.
class ExpectedSequence {
 public:
  ExpectedSequence() = default;
  ExpectedSequence(const std::string& salt, std::vector<int32_t> known) {
    for (const char byte : salt) fingerprint_ = Extend(fingerprint_, 1000 + byte);
    for (const int32_t token : known) Push(token);
  }

  int32_t token(int32_t position) {
    Fill(position + 1);
    return tokens_[position];
  }
  // Fingerprint of tokens [0, position].
  uint64_t fingerprint(int32_t position) {
    Fill(position + 1);
    return fingerprints_[position];
  }

 private:
  void Push(int32_t token) {
    fingerprint_ = Extend(fingerprint_, token);
    tokens_.push_back(token);
    fingerprints_.push_back(fingerprint_);
  }
  void Fill(int32_t size) {
    while (static_cast<int32_t>(tokens_.size()) < size) {
      Push(static_cast<int32_t>(fingerprint_ >> 33) % kVocabulary);
    }
  }

  static constexpr int32_t kVocabulary = 3;  // small, so that sequences often share prefixes
  uint64_t fingerprint_ = 7;
  std::vector<int32_t> tokens_;
  std::vector<uint64_t> fingerprints_;
};

class DeviceModel {
 public:
  using Cells = std::vector<uint64_t>;

  DeviceModel(std::vector<GroupSpec> groups, int32_t block_tokens)
      : groups_(std::move(groups)), block_tokens_(block_tokens), memory_(groups_.size()) {}

  // Runs a step. Returns: the sampled token per row, -1 for rows that sample none.
  std::vector<int32_t> Run(const StepPlan& plan, std::map<int64_t, ExpectedSequence>& expected) {
    for (const auto& [row, slot] : plan.admitted) {
      EXPECT_EQ(plan.slots[row], slot);
      tables_[slot].assign(memory_.size(), {});
    }
    for (const auto& [slot, group, index, block] : plan.block_updates) {
      auto& table = tables_[slot][group];
      if (static_cast<int32_t>(table.size()) <= index) table.resize(index + 1, 0);
      table[index] = block;
    }
    tiers.Run(plan.tier_rows, BlockOf{*this});
    for (const auto& [group, source, target, num_tokens] : plan.copies) {
      EXPECT_NE(source, target);
      auto from = Block(group, source);
      auto& to = Block(group, target);
      std::copy(from.begin(), from.begin() + num_tokens, to.begin());
    }
    CheckStateRows(plan);
    std::vector<int32_t> sampled;
    for (int32_t row = 0; row < plan.num_rows(); ++row) {
      sampled.push_back(RunRow(plan, row, expected[plan.request_ids[row]]));
    }
    return sampled;
  }

  // What became of moves between the tiers: (transfer id, ok).
  std::vector<std::array<int32_t, 2>> Report(std::mt19937_64& random, bool is_all) {
    return tiers.Report(random, is_all, BlockOf{*this});
  }

  TierDevice tiers;

 private:
  struct BlockOf {
    DeviceModel& device;
    Cells& operator()(int32_t group, int32_t block) const { return device.Block(group, block); }
  };

  int32_t RunRow(const StepPlan& plan, int32_t row, ExpectedSequence& sequence) {
    const int32_t slot = plan.slots[row], context = plan.context_tokens[row];
    const int32_t first = plan.query_start[row], end = plan.query_start[row + 1];
    for (size_t group = 0; group < memory_.size(); ++group) {
      if (groups_[group].kind == "state") continue;
      const bool has_window = groups_[group].kind == "window";
      const int32_t seen = has_window ? std::max(0, context - groups_[group].window + 1) : 0;
      for (int32_t position = seen; position < context; ++position) {
        EXPECT_EQ(Cell(slot, group, position), sequence.fingerprint(position))
            << "request " << plan.request_ids[row] << " group " << group << " at " << position;
      }
    }
    for (int32_t i = first; i < end; ++i) {
      const int32_t position = context + i - first;
      const int32_t token = plan.token_ids[i] >= 0 ? plan.token_ids[i] : last_sampled_[slot];
      EXPECT_EQ(token, sequence.token(position)) << "request " << plan.request_ids[row];
      for (size_t group = 0; group < memory_.size(); ++group) {
        if (groups_[group].kind != "state")
          Cell(slot, group, position) = sequence.fingerprint(position);
      }
    }
    RunState(plan, row, sequence);
    if (plan.output_index[row] < 0) return -1;
    return last_sampled_[slot] = sequence.token(context + end - first);
  }

  // The state before the first query token must be that of the prefix; the one after the last
  // replaces what the written row held.
  void RunState(const StepPlan& plan, int32_t row, ExpectedSequence& sequence) {
    const int32_t context = plan.context_tokens[row];
    const int32_t end = context + plan.query_start[row + 1] - plan.query_start[row];
    size_t entry = static_cast<size_t>(row) * plan.num_state_groups * 2;
    for (size_t group = 0; group < memory_.size(); ++group) {
      if (groups_[group].kind != "state") continue;
      const int32_t read = plan.state_rows[entry++], write = plan.state_rows[entry++];
      EXPECT_EQ(read < 0, context == 0);
      if (read >= 0) {
        EXPECT_EQ(Block(group, read)[0], sequence.fingerprint(context - 1))
            << "request " << plan.request_ids[row] << " state at " << context;
      }
      Block(group, write)[0] = sequence.fingerprint(end - 1);
    }
  }

  // No row writes what another row of the step reads or writes.
  void CheckStateRows(const StepPlan& plan) {
    const size_t num_groups = plan.num_state_groups;
    ASSERT_EQ(plan.state_rows.size(), plan.num_rows() * num_groups * 2);
    for (size_t group = 0; group < num_groups; ++group) {
      std::map<int32_t, int32_t> writer;
      for (int32_t row = 0; row < plan.num_rows(); ++row) {
        const int32_t write = plan.state_rows[(row * num_groups + group) * 2 + 1];
        EXPECT_TRUE(writer.emplace(write, row).second) << "row written twice";
      }
      for (int32_t row = 0; row < plan.num_rows(); ++row) {
        const auto found = writer.find(plan.state_rows[(row * num_groups + group) * 2]);
        EXPECT_TRUE(found == writer.end() || found->second == row) << "row read and written";
      }
    }
  }

  Cells& Block(size_t group, int32_t block) {
    EXPECT_GT(block, 0);
    Cells& cells = memory_[group][block];
    cells.resize(block_tokens_, 0);
    return cells;
  }
  uint64_t& Cell(int32_t slot, size_t group, int32_t position) {
    return Block(group,
                 tables_[slot][group].at(position / block_tokens_))[position % block_tokens_];
  }

  std::vector<GroupSpec> groups_;
  int32_t block_tokens_;
  std::vector<std::map<int32_t, Cells>> memory_;                 // [group][block]
  std::map<int32_t, std::vector<std::vector<int32_t>>> tables_;  // [slot][group][index]
  std::map<int32_t, int32_t> last_sampled_;
};

}  // namespace tokenspeed::test

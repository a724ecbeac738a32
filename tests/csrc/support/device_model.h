// A fake device for scheduler tests: executes plans on a memory of prefix fingerprints and samples
// the next token as a pure function of the whole prefix. A wrong block, copy, order or token makes
// a context check fail or changes the answer. Groups share physical blocks, as on a device: whoever
// touches one destroys what another group had there.
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
  // Per row the tokens that it brings: none, one, or as many as drafts were right and one more.
  using Sampled = std::vector<std::vector<int32_t>>;

  DeviceModel(std::vector<GroupSpec> groups, int32_t block_tokens)
      : groups_(std::move(groups)), block_tokens_(block_tokens), memory_(groups_.size()) {}

  // Runs a step.
  Sampled Run(const StepPlan& plan, std::map<int64_t, ExpectedSequence>& expected) {
    for (const auto& [row, slot] : plan.admitted) {
      EXPECT_EQ(plan.slots[row], slot);
      tables_[slot].assign(memory_.size(), {});
      place_[slot] = plan.context_tokens[row];
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
    Sampled sampled;
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

  std::vector<int32_t> RunRow(const StepPlan& plan, int32_t row, ExpectedSequence& sequence) {
    const int32_t slot = plan.slots[row], context = place_[slot];
    const int32_t first = plan.query_start[row];
    const int32_t drafts = plan.query_start[row + 1] - plan.num_drafts[row];
    // Behind drafts that are still on the device, the planned position is an upper bound.
    EXPECT_GE(plan.context_tokens[row], context);
    EXPECT_TRUE(plan.context_tokens[row] == context || plan.token_ids[first] < 0);
    CheckContext(plan.request_ids[row], slot, context, sequence);
    for (int32_t i = first; i < drafts; ++i) {
      const int32_t position = context + i - first;
      const int32_t token = plan.token_ids[i] >= 0 ? plan.token_ids[i] : last_sampled_[slot];
      EXPECT_EQ(token, sequence.token(position)) << "request " << plan.request_ids[row];
      Write(slot, position, sequence.fingerprint(position));
    }
    const int32_t place = place_[slot] = context + drafts - first;
    std::vector<int32_t> answer;
    if (plan.output_index[row] >= 0) answer = RunDrafts(plan, row, sequence);
    const auto num_right = static_cast<int32_t>(answer.empty() ? 0 : answer.size() - 1);
    RunState(plan, row, {context, place, num_right}, sequence);
    // The next row reads what was right again.
    if (is_replay()) place_[slot] = place;
    return answer;
  }

  bool is_replay() const {
    return std::ranges::any_of(groups_, [](const GroupSpec& group) {
      return group.kind == "state" && group.speculation == "replay";
    });
  }

  // Drafts after the first wrong one stand for nothing, whatever they are.
  std::vector<int32_t> RunDrafts(const StepPlan& plan, int32_t row, ExpectedSequence& sequence) {
    const int32_t slot = plan.slots[row], end = plan.query_start[row + 1];
    int32_t place = place_[slot];
    std::vector<int32_t> answer = {sequence.token(place)};
    bool is_right = true;
    for (int32_t i = end - plan.num_drafts[row]; i < end; ++i, ++place) {
      const bool is_guessed = (sequence.fingerprint(place) >> 7) % 3 != 0;
      is_right &= plan.token_ids[i] < 0 ? is_guessed : plan.token_ids[i] == sequence.token(place);
      Write(slot, place, is_right ? sequence.fingerprint(place) : kWrong);
      if (is_right) answer.push_back(sequence.token(place + 1));
    }
    place_[slot] += static_cast<int32_t>(answer.size()) - 1;
    last_sampled_[slot] = answer.back();
    return answer;
  }

  void CheckContext(int64_t id, int32_t slot, int32_t context, ExpectedSequence& sequence) {
    for (size_t group = 0; group < memory_.size(); ++group) {
      if (groups_[group].kind == "state") continue;
      const bool has_window = groups_[group].kind == "window";
      const int32_t seen = has_window ? std::max(0, context - groups_[group].window + 1) : 0;
      for (int32_t position = seen; position < context; ++position) {
        EXPECT_EQ(Cell(slot, group, position), sequence.fingerprint(position))
            << "request " << id << " group " << group << " at " << position;
      }
    }
  }

  void Write(int32_t slot, int32_t position, uint64_t content) {
    for (size_t group = 0; group < memory_.size(); ++group) {
      if (groups_[group].kind != "state") Cell(slot, group, position) = content;
    }
  }

  // Where a row really ran: from `start`, drafts from `drafts` on, of which the first were right.
  struct Span {
    int32_t start, drafts, num_right;
  };

  // The state before the first query token must be that of the prefix. Rows of state get the one
  // before the drafts, and if there are as many those after each of them.
  void RunState(const StepPlan& plan, int32_t row, const Span& span, ExpectedSequence& sequence) {
    const size_t entries = 1 + plan.num_write_rows;
    const size_t num_writes = is_replay() ? 1 : 1 + plan.num_drafts[row];
    const bool is_behind = span.start < plan.context_tokens[row];
    std::vector<int32_t>& right_rows = right_rows_[plan.slots[row]];
    right_rows.resize(plan.num_state_groups);
    size_t place = 0;
    for (size_t group = 0; group < memory_.size(); ++group) {
      if (groups_[group].kind != "state") continue;
      const int32_t* rows =
          &plan.state_rows[(static_cast<size_t>(row) * plan.num_state_groups + place) * entries];
      const int32_t read = is_behind ? right_rows[place] : rows[0];
      EXPECT_EQ(read < 0, span.start == 0);
      if (read >= 0) {
        EXPECT_EQ(Block(group, read)[0], sequence.fingerprint(span.start - 1))
            << "request " << plan.request_ids[row] << " state at " << span.start;
      }
      for (size_t i = 1; i < entries; ++i) EXPECT_EQ(rows[i]<0, i> num_writes);
      for (int32_t i = 0; i < static_cast<int32_t>(num_writes); ++i) {
        const bool is_right = i <= span.num_right;
        Block(group, rows[1 + i])[0] =
            is_right ? sequence.fingerprint(span.drafts - 1 + i) : kWrong;
      }
      right_rows[place++] = rows[is_replay() ? 1 : 1 + span.num_right];
    }
  }

  // No row writes what another row of the step reads or writes, and none a row twice.
  void CheckStateRows(const StepPlan& plan) {
    const size_t num_groups = plan.num_state_groups, entries = 1 + plan.num_write_rows;
    ASSERT_EQ(plan.state_rows.size(), plan.num_rows() * num_groups * entries);
    const auto entry = [&](int32_t row, size_t group, size_t i) {
      return plan.state_rows[(row * num_groups + group) * entries + i];
    };
    for (size_t group = 0; group < num_groups; ++group) {
      std::map<int32_t, int32_t> writer;
      for (int32_t row = 0; row < plan.num_rows(); ++row) {
        for (size_t i = 1; i < entries; ++i) {
          if (entry(row, group, i) < 0) continue;
          EXPECT_TRUE(writer.emplace(entry(row, group, i), row).second) << "row written twice";
        }
      }
      for (int32_t row = 0; row < plan.num_rows(); ++row) {
        const auto found = writer.find(entry(row, group, 0));
        EXPECT_TRUE(found == writer.end() || found->second == row) << "row read and written";
      }
    }
  }

  Cells& Block(size_t group, int32_t block) {
    EXPECT_GE(block, groups_[group].packing) << "the sentinel";
    Occupy(group, block / groups_[group].packing);
    Cells& cells = memory_[group][block];
    cells.resize(block_tokens_, 0);
    return cells;
  }
  void Occupy(size_t group, int32_t physical) {
    size_t& owner = owner_.try_emplace(physical, group).first->second;
    if (owner == group) return;
    owner = group;
    const int32_t packing = groups_[group].packing;
    for (int32_t k = 0; k < packing; ++k) memory_[group].erase(physical * packing + k);
  }
  uint64_t& Cell(int32_t slot, size_t group, int32_t position) {
    return Block(group,
                 tables_[slot][group].at(position / block_tokens_))[position % block_tokens_];
  }

  static constexpr uint64_t kWrong = 1;

  std::vector<GroupSpec> groups_;
  int32_t block_tokens_;
  std::vector<std::map<int32_t, Cells>> memory_;                 // [group][block]
  std::map<int32_t, size_t> owner_;                              // [physical block]: group
  std::map<int32_t, std::vector<std::vector<int32_t>>> tables_;  // [slot][group][index]
  std::map<int32_t, int32_t> last_sampled_, place_;              // [slot]
  std::map<int32_t, std::vector<int32_t>> right_rows_;  // [slot][state group]: state at the place
};

}  // namespace tokenspeed::test

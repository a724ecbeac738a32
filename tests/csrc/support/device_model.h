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
    start_ = fingerprint_;
    for (const int32_t token : known) Push(token);
  }

  int32_t token(int32_t position) {
    Fill(position + 1);
    return tokens_[position];
  }
  // Fingerprint of no tokens.
  uint64_t start() const { return start_; }
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
  uint64_t fingerprint_ = 7, start_ = 7;
  std::vector<int32_t> tokens_;
  std::vector<uint64_t> fingerprints_;
};

// As a commit takes it: `width` tokens per row, of which the first accepted + 1 are valid.
struct Sampled {
  int32_t width = 1;
  std::vector<int32_t> tokens;
  std::vector<int32_t> accepted;
};

class DeviceModel {
 public:
  using Cells = std::vector<uint64_t>;

  DeviceModel(std::vector<GroupSpec> groups, int32_t block_tokens)
      : groups_(std::move(groups)), block_tokens_(block_tokens), memory_(groups_.size()) {}

  // Runs a step. Returns: what each row sampled; drafts are verified.
  Sampled Run(const StepPlan& plan, std::map<int64_t, ExpectedSequence>& expected) {
    for (const auto& [row, slot] : plan.admitted) {
      EXPECT_EQ(plan.slots[row], slot);
      tables_[slot].assign(memory_.size(), {});
      ends_.erase(slot);
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
    for (const int32_t drafts : plan.num_drafts)
      sampled.width = std::max(sampled.width, 1 + drafts);
    for (int32_t row = 0; row < plan.num_rows(); ++row) {
      RunRow(plan, row, expected[plan.request_ids[row]], sampled);
    }
    return sampled;
  }

  // What became of moves between the tiers: (transfer id, ok).
  std::vector<std::array<int32_t, 2>> Report(std::mt19937_64& random, bool is_all) {
    return tiers.Report(random, is_all, BlockOf{*this});
  }

  TierDevice tiers;
  std::mt19937_64 drafter{1};  // of drafts made on the device; half of them are right

 private:
  // Where the last step of a slot really ended, which the plan of the next may not know yet.
  struct End {
    int32_t position = 0;
    std::vector<int32_t> right_rows;  // [state group] that hold the state there
  };

  struct BlockOf {
    DeviceModel& device;
    Cells& operator()(int32_t group, int32_t block) const { return device.Block(group, block); }
  };

  void RunRow(const StepPlan& plan, int32_t row, ExpectedSequence& sequence, Sampled& sampled) {
    const int32_t slot = plan.slots[row], num_drafts = plan.num_drafts[row];
    const int32_t context = RealContext(plan, row);
    CheckContext(plan, row, context, sequence);
    const int32_t first = plan.query_start[row], end = plan.query_start[row + 1];
    std::vector<uint64_t> states;  // after each query token
    uint64_t state = context == 0 ? sequence.start() : sequence.fingerprint(context - 1);
    int32_t num_right = 0;
    for (int32_t i = first; i < end; ++i) {
      const int32_t position = context + i - first;
      const bool is_draft = i >= end - num_drafts;
      int32_t token = plan.token_ids[i];
      if (token < 0) token = is_draft ? Draft(sequence.token(position)) : last_sampled_[slot];
      const bool is_right = token == sequence.token(position);
      EXPECT_TRUE(is_right || is_draft) << "request " << plan.request_ids[row];
      if (is_draft && is_right && num_right == i - (end - num_drafts)) ++num_right;
      states.push_back(state = Extend(state, token));
      for (size_t group = 0; group < memory_.size(); ++group) {
        if (groups_[group].kind != "state") Cell(slot, group, position) = state;
      }
    }
    RunState(plan, row, context, sequence, states, num_right);
    sampled.accepted.push_back(num_right);
    const size_t size = sampled.tokens.size() + sampled.width;
    const int32_t next = context + end - first - num_drafts;
    for (int32_t i = 0; i <= num_right && plan.output_index[row] >= 0; ++i) {
      sampled.tokens.push_back(last_sampled_[slot] = sequence.token(next + i));
    }
    sampled.tokens.resize(size, -1);
  }

  int32_t Draft(int32_t right) {
    return drafter() % 2 == 0 ? right : static_cast<int32_t>(drafter() % 5);
  }

  // The plan's place is too far by what was rejected on the device since it was made.
  int32_t RealContext(const StepPlan& plan, int32_t row) {
    const auto found = ends_.find(plan.slots[row]);
    if (found == ends_.end()) return plan.context_tokens[row];
    EXPECT_GE(plan.context_tokens[row], found->second.position);
    return found->second.position;
  }

  void CheckContext(const StepPlan& plan, int32_t row, int32_t context,
                    ExpectedSequence& sequence) {
    for (size_t group = 0; group < memory_.size(); ++group) {
      if (groups_[group].kind == "state") continue;
      const bool has_window = groups_[group].kind == "window";
      const int32_t seen = has_window ? std::max(0, context - groups_[group].window + 1) : 0;
      for (int32_t position = seen; position < context; ++position) {
        EXPECT_EQ(Cell(plan.slots[row], group, position), sequence.fingerprint(position))
            << "request " << plan.request_ids[row] << " group " << group << " at " << position;
      }
    }
  }

  // The state before the first query token must be that of the prefix. Rows of state get the one
  // before the drafts, and those after each of them if there are as many.
  void RunState(const StepPlan& plan, int32_t row, int32_t context, ExpectedSequence& sequence,
                const std::vector<uint64_t>& states, int32_t num_right) {
    const size_t entries = 1 + plan.num_write_rows;
    const size_t before_drafts = states.size() - 1 - plan.num_drafts[row];
    const auto ended = ends_.find(plan.slots[row]);
    const bool is_behind =
        ended != ends_.end() && ended->second.position < plan.context_tokens[row];
    End end{.position =
                context + static_cast<int32_t>(states.size()) - plan.num_drafts[row] + num_right,
            .right_rows = {}};
    size_t place = 0;
    for (size_t group = 0; group < memory_.size(); ++group) {
      if (groups_[group].kind != "state") continue;
      const int32_t* rows =
          &plan.state_rows[(static_cast<size_t>(row) * plan.num_state_groups + place) * entries];
      const int32_t read = is_behind ? ended->second.right_rows[place] : rows[0];
      ++place;
      EXPECT_EQ(read < 0, context == 0);
      if (read >= 0) {
        EXPECT_EQ(Block(group, read)[0], sequence.fingerprint(context - 1))
            << "request " << plan.request_ids[row] << " state at " << context;
      }
      const bool is_replay = groups_[group].speculation == "replay";
      const size_t num_writes = is_replay ? 1 : 1 + plan.num_drafts[row];
      for (size_t i = 1; i < entries; ++i) EXPECT_EQ(rows[i]<0, i> num_writes);
      for (size_t i = 0; i < num_writes; ++i) {
        Block(group, rows[1 + i])[0] = states[before_drafts + i];
      }
      end.right_rows.push_back(rows[is_replay ? 1 : 1 + num_right]);
      if (is_replay) {
        end.position = context + static_cast<int32_t>(before_drafts) + 1;
      }
    }
    ends_[plan.slots[row]] = end;
  }

  // No row writes what another row of the step reads or writes, none writes a row twice.
  void CheckStateRows(const StepPlan& plan) {
    const size_t num_groups = plan.num_state_groups, entries = 1 + plan.num_write_rows;
    ASSERT_EQ(plan.state_rows.size(), plan.num_rows() * num_groups * entries);
    for (size_t group = 0; group < num_groups; ++group) {
      std::map<int32_t, int32_t> writer;
      const auto entry = [&](int32_t row, size_t i) {
        return plan.state_rows[(row * num_groups + group) * entries + i];
      };
      for (int32_t row = 0; row < plan.num_rows(); ++row) {
        for (size_t i = 1; i < entries; ++i) {
          if (entry(row, i) < 0) continue;
          EXPECT_TRUE(writer.emplace(entry(row, i), row).second) << "row written twice";
        }
      }
      for (int32_t row = 0; row < plan.num_rows(); ++row) {
        const auto found = writer.find(entry(row, 0));
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
  std::map<int32_t, End> ends_;
};

}  // namespace tokenspeed::test

// The tiers of a fake device: host slots and store records hold the cells of blocks. Stores happen
// when a plan is run; everything else happens when it is reported, as late as that: whoever reads
// a block too early, or gives a slot away too soon, meets other cells.
// Thread: one.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "kv/tiers.h"

namespace tokenspeed::test {

class TierDevice {
 public:
  using Cells = std::vector<uint64_t>;

  // Percent of all moves that fail; of store reads that are damaged.
  int32_t fail_percent = 0;
  int32_t damage_percent = 0;

  // `block(group, id)` returns a device block's cells.
  template <class Block>
  void Run(const TierRows& rows, const Block& block) {
    for (const auto& [id, way, group, device, slot, range] : rows.transfers) {
      if (way == Tiers::kStore) {
        waiting_.push_back({id, Move::kStored, group, device, slot, {}, {}});
        host_[{group, slot}] = block(group, device);
      } else {
        waiting_.push_back({id, Move::kLoad, group, device, slot, {}, {}});
      }
    }
    for (size_t i = 0; i < rows.store_moves.size(); ++i) {
      const auto& [id, way, group, slot] = rows.store_moves[i];
      const auto first = rows.store_tokens.begin() +
                         static_cast<std::ptrdiff_t>(i) * static_cast<int32_t>(rows.block_tokens);
      waiting_.push_back({id,
                          way == Tiers::kPut ? Move::kPut : Move::kGet,
                          group,
                          0,
                          slot,
                          rows.store_keys[i],
                          {first, first + rows.block_tokens}});
    }
  }

  // Ends a random part of what waits, in random order; all of it if `is_all`.
  template <class Block>
  std::vector<std::array<int32_t, 2>> Report(std::mt19937_64& random, bool is_all,
                                             const Block& block) {
    std::shuffle(waiting_.begin(), waiting_.end(), random);
    size_t count = is_all ? waiting_.size() : random() % (waiting_.size() + 1);
    std::vector<std::array<int32_t, 2>> acks;
    for (; count > 0; --count) {
      const Waiting move = waiting_.back();
      waiting_.pop_back();
      const bool fails = static_cast<int32_t>(random() % 100) < fail_percent;
      const bool is_damaged = static_cast<int32_t>(random() % 100) < damage_percent;
      acks.push_back({move.id, End(move, fails, is_damaged, block)});
    }
    return acks;
  }

  bool is_idle() const { return waiting_.empty(); }
  void LoseRecord(std::mt19937_64& random) {
    if (!store_.empty()) {
      store_.erase(std::next(store_.begin(), static_cast<int64_t>(random() % store_.size())));
    }
  }
  std::vector<Hash128> Keys() const {
    std::vector<Hash128> keys;
    for (const auto& [key, record] : store_) {
      std::memcpy(&keys.emplace_back(), key.data(), key.size());
    }
    return keys;
  }

 private:
  enum class Move { kStored, kLoad, kPut, kGet };
  struct Waiting {
    int32_t id;
    Move move;
    int32_t group, device, slot;
    std::array<uint8_t, 16> key;
    std::vector<int32_t> tokens;
  };

  template <class Block>
  bool End(const Waiting& move, bool fails, bool is_damaged, const Block& block) {
    Cells& slot = host_[{move.group, move.slot}];
    switch (move.move) {
      case Move::kStored:
        if (fails) slot.clear();
        return !fails;
      case Move::kLoad:
        block(move.group, move.device) = fails ? Cells() : slot;
        return !fails;
      case Move::kPut:
        if (!fails) store_[move.key] = {move.tokens, slot};
        return !fails;
      case Move::kGet: {
        slot.clear();
        const auto found = store_.find(move.key);
        if (fails || is_damaged || found == store_.end() || found->second.first != move.tokens) {
          return false;
        }
        slot = found->second.second;
        return true;
      }
    }
    return false;
  }

  std::map<std::pair<int32_t, int32_t>, Cells> host_;  // by group and slot
  std::map<std::array<uint8_t, 16>, std::pair<std::vector<int32_t>, Cells>> store_;
  std::vector<Waiting> waiting_;
};

}  // namespace tokenspeed::test

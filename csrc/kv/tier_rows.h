// Moves between the tiers as flat rows of one plan; their meaning: tokenspeed/contracts/step.py.
// Thread: scheduler thread only; Python reads while it holds the plan.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace tokenspeed {

struct TierRows {
  std::vector<std::array<int32_t, 6>> transfers;    // id, direction, group, block, slot, range
  std::vector<std::array<int32_t, 4>> store_moves;  // id, direction, group, slot
  std::vector<std::array<uint8_t, 16>> store_keys;  // of each store move
  std::vector<int32_t> store_tokens;                // [store move][block_tokens], -1 pads
  int32_t block_tokens = 0;

  bool empty() const { return transfers.empty() && store_moves.empty(); }
  void Clear() {
    transfers.clear();
    store_moves.clear();
    store_keys.clear();
    store_tokens.clear();
  }
};

}  // namespace tokenspeed

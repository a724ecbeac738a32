// A machine without bytes: every device block, tier slot and store record holds one number that
// stands for its content. Carries out the rows of a plan as the execution plane does, some of them
// failing, and reports them when asked.
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

namespace tokenspeed {

class TierModel {
 public:
  static constexpr int64_t kGarbage = -1;
  using Place = std::pair<int32_t, int32_t>;  // group, block or slot

  explicit TierModel(int32_t block_tokens) : block_tokens_(block_tokens) {}

  double fail_share = 0.0;
  double corrupt_share = 0.0;  // of store records read

  std::map<Place, int64_t> device;
  std::map<Place, int64_t> host;
  std::map<std::array<uint8_t, 16>, std::pair<int64_t, std::vector<int32_t>>> store;

  // Stores first, as the executor does; the acknowledgements wait.
  void Run(const TierRows& rows, std::mt19937_64& random) {
    for (const int32_t direction : {Tiers::kStore, Tiers::kLoad}) {
      for (const auto& [id, way, group, block, slot, range] : rows.transfers) {
        if (way != direction) continue;
        const bool is_ok = !Chance(random, fail_share);
        if (is_ok && way == Tiers::kStore) host[{group, slot}] = device[{group, block}];
        // Any part brings the whole; a block counts as loaded only when no part failed.
        if (is_ok && way == Tiers::kLoad) device[{group, block}] = host[{group, slot}];
        pending.push_back({id, is_ok});
      }
    }
    for (size_t i = 0; i < rows.store_moves.size(); ++i) {
      const auto& [id, way, group, slot] = rows.store_moves[i];
      const auto first = rows.store_tokens.begin() + static_cast<std::ptrdiff_t>(i) * block_tokens_;
      const std::vector<int32_t> tag(first, first + block_tokens_);
      bool is_ok = !Chance(random, fail_share);
      if (is_ok && way == Tiers::kPut) store[rows.store_keys[i]] = {host[{group, slot}], tag};
      if (way == Tiers::kGet) {
        host[{group, slot}] = kGarbage;
        const auto found = store.find(rows.store_keys[i]);
        is_ok &= found != store.end() && found->second.second == tag;
        is_ok &= !Chance(random, corrupt_share);
        if (is_ok) host[{group, slot}] = found->second.first;
      }
      pending.push_back({id, is_ok});
    }
  }

  // Takes a random part of what waits, in random order; all of it if `is_all`.
  std::vector<std::array<int32_t, 2>> Report(std::mt19937_64& random, bool is_all) {
    std::shuffle(pending.begin(), pending.end(), random);
    const size_t count = is_all ? pending.size() : random() % (pending.size() + 1);
    std::vector<std::array<int32_t, 2>> taken(pending.end() - static_cast<std::ptrdiff_t>(count),
                                              pending.end());
    pending.resize(pending.size() - count);
    return taken;
  }

  std::vector<std::array<int32_t, 2>> pending;

 private:
  static bool Chance(std::mt19937_64& random, double share) {
    return static_cast<double>(random() >> 11) * 0x1.0p-53 < share;
  }
  int32_t block_tokens_;
};

}  // namespace tokenspeed

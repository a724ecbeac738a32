#include "scheduler/config.h"

#include <bit>
#include <stdexcept>

#include "kv/physical_pool.h"

namespace tokenspeed {
namespace {

void Require(bool is_met, const std::string& field, int64_t value, const std::string& allowed) {
  if (is_met) return;
  throw std::invalid_argument("scheduler config: " + field + " is " + std::to_string(value) +
                              "; allowed: " + allowed + "; correct the setting");
}

void ValidateGroup(const GroupSpec& group, int32_t block_tokens) {
  const std::string of = "of group \"" + group.name + "\"";
  if (group.kind != "full") {
    throw std::invalid_argument("scheduler config: kind " + of + " is \"" + group.kind +
                                "\"; allowed: \"full\"; other kinds are not built yet");
  }
  Require(group.packing >= 1 && group.packing <= PhysicalPool::kMaxPacking, "packing " + of,
          group.packing, "1 to " + std::to_string(PhysicalPool::kMaxPacking));
  Require(group.share_tokens >= 1 && block_tokens % group.share_tokens == 0, "share_tokens " + of,
          group.share_tokens, "a divisor of block_tokens " + std::to_string(block_tokens));
}

}  // namespace

void Validate(const SchedulerConfig& config) {
  Require(config.block_tokens >= 16 && config.block_tokens <= 65536 &&
              std::has_single_bit(static_cast<uint32_t>(config.block_tokens)),
          "block_tokens", config.block_tokens, "a power of two from 16 to 65536");
  Require(!config.groups.empty(), "groups", 0, "at least one group");
  int64_t packing = 1;
  for (const GroupSpec& group : config.groups) {
    ValidateGroup(group, config.block_tokens);
    packing = std::max<int64_t>(packing, group.packing);
  }
  const int64_t max_physical = (int64_t{1} << 30) / packing;
  Require(config.num_physical_blocks >= 2 && config.num_physical_blocks <= max_physical,
          "num_physical_blocks", config.num_physical_blocks,
          "2 (one is the sentinel) to " + std::to_string(max_physical));
  Require(config.max_running >= 1, "max_running", config.max_running, "1 or more");
  Require(config.max_waiting >= 1, "max_waiting", config.max_waiting, "1 or more");
  Require(config.max_step_tokens >= 1, "max_step_tokens", config.max_step_tokens, "1 or more");
  Require(config.max_context_tokens >= 2, "max_context_tokens", config.max_context_tokens,
          "2 or more");
  Require(config.depth == 0 || config.depth == 1, "depth", config.depth, "0 or 1");
}

}  // namespace tokenspeed

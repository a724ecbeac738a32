#include "scheduler/config.h"

#include <algorithm>
#include <array>
#include <bit>
#include <stdexcept>

#include "kv/flat_kv.h"

namespace tokenspeed {
namespace {

template <class T>
void Require(bool is_met, const std::string& field, T value, const std::string& allowed) {
  if (is_met) return;
  throw std::invalid_argument("scheduler config: " + field + " is " + std::to_string(value) +
                              "; allowed: " + allowed + "; correct the setting");
}

void ValidateGroup(const GroupSpec& group, int32_t block_tokens) {
  const std::string of = "of group \"" + group.name + "\"";
  if (group.kind != "full" && group.kind != "window" && group.kind != "state") {
    throw std::invalid_argument("scheduler config: kind " + of + " is \"" + group.kind +
                                "\"; allowed: \"full\", \"window\" or \"state\"; correct it");
  }
  const bool has_window = group.kind == "window";
  Require(has_window ? group.window >= 1 : group.window == 0, "window " + of, group.window,
          has_window ? "1 or more tokens" : "0: only a group of kind \"window\" has one");
  Require(group.packing >= 1 && group.packing <= PhysicalPool::kMaxPacking, "packing " + of,
          group.packing, "1 to " + std::to_string(PhysicalPool::kMaxPacking));
  Require(group.share_tokens >= 1 && block_tokens % group.share_tokens == 0, "share_tokens " + of,
          group.share_tokens, "a divisor of block_tokens " + std::to_string(block_tokens));
  if (group.speculation != "rows_per_position" && group.speculation != "replay") {
    throw std::invalid_argument("scheduler config: speculation " + of + " is \"" +
                                group.speculation +
                                "\"; allowed: \"rows_per_position\" or \"replay\"; correct it");
  }
}

// Ids of logical blocks are 32 bits wide.
int64_t MaxPhysical(const SchedulerConfig& config) {
  const auto by_packing = std::ranges::max_element(config.groups, {}, &GroupSpec::packing);
  return (int64_t{1} << 30) / by_packing->packing;
}

bool IsShare(double value) { return value >= 0.0 && value <= 1.0; }

void ValidateCache(const SchedulerConfig& config) {
  Require(IsShare(config.state_cache_share), "state_cache_share", config.state_cache_share,
          "0 to 1");
  Require(IsShare(config.retain_share), "retain_share", config.retain_share, "0 to 1");
  const bool has_host = config.host_blocks > 0;
  const int64_t max_host = MaxPhysical(config);
  Require(config.host_blocks == 0 || (config.host_blocks >= 2 && config.host_blocks <= max_host),
          "host_blocks", config.host_blocks,
          "0, or 2 (one is not used) to " + std::to_string(max_host));
  Require(!config.store || has_host, "store", config.store, "False without host_blocks");
  Require(config.copy_cost_tokens >= 0.0, "copy_cost_tokens", config.copy_cost_tokens, "0 or more");
  constexpr std::array kPolicies = {"none", "on_eviction", "on_commit", "selective"};
  if (std::ranges::count(kPolicies, config.write_policy) == 0 ||
      (!has_host && config.write_policy != "none")) {
    throw std::invalid_argument("scheduler config: write_policy is \"" + config.write_policy +
                                "\"; allowed: \"none\", and with host_blocks \"on_eviction\", "
                                "\"on_commit\" or \"selective\"; correct it");
  }
  Require(config.min_reuse >= 1, "min_reuse", config.min_reuse, "1 or more");
  Require(config.layer_ranges >= 1, "layer_ranges", config.layer_ranges, "1 or more");
}

void ValidateOrder(const SchedulerConfig& config) {
  Require(config.max_prefill_steps >= 0, "max_prefill_steps", config.max_prefill_steps,
          "0 or more");
  Require(config.min_tps_per_user >= 0.0 && config.min_tps_per_user <= 10'000, "min_tps_per_user",
          config.min_tps_per_user, "0 (no floor) to 10,000");
  Require(config.max_queue_us >= 0, "max_queue_us", config.max_queue_us, "0 (no limit) or more");
  Require(config.ageing_us >= 1, "ageing_us", config.ageing_us, "1 or more");
  Require(config.max_sessions >= 1, "max_sessions", config.max_sessions, "1 or more");
  Require(config.session_bytes >= 0, "session_bytes", config.session_bytes, "0 or more");
}

GroupKind KindOf(const std::string& kind) {
  return kind == "full"     ? GroupKind::kFull
         : kind == "window" ? GroupKind::kWindow
                            : GroupKind::kState;
}

}  // namespace

FlatKvConfig KvConfig(const SchedulerConfig& config) {
  FlatKvConfig kv{.block_tokens = config.block_tokens,
                  .groups = {},
                  .num_physical_blocks = config.num_physical_blocks,
                  .share_tokens = 1,
                  .hash_seed = config.hash_seed,
                  .rows_per_request = config.depth + 1,
                  .step_tokens_ahead = config.depth + 1,
                  .state_cache_share = config.state_cache_share,
                  .retain_share = config.retain_share,
                  .events = config.kv_events};
  for (const GroupSpec& group : config.groups) {
    kv.groups.push_back({KindOf(group.kind), group.packing, group.window});
    if (group.kind != "state") kv.share_tokens = std::max(kv.share_tokens, group.share_tokens);
  }
  return kv;
}

void Validate(const SchedulerConfig& config) {
  Require(config.block_tokens >= 16 && config.block_tokens <= 65536 &&
              std::has_single_bit(static_cast<uint32_t>(config.block_tokens)),
          "block_tokens", config.block_tokens, "a power of two from 16 to 65536");
  Require(!config.groups.empty(), "groups", 0, "at least one group");
  Require(config.groups.size() <= kMaxGroups, "number of groups", config.groups.size(),
          "at most " + std::to_string(kMaxGroups));
  for (const GroupSpec& group : config.groups) ValidateGroup(group, config.block_tokens);
  const auto num_full = std::ranges::count(config.groups, "full", &GroupSpec::kind);
  Require(num_full > 0, "number of groups of kind \"full\"", num_full,
          "1 or more; declare a model's first window group as full");
  const auto is_replay = [](const GroupSpec& group) {
    return group.kind == "state" && group.speculation == "replay";
  };
  const auto num_state = std::ranges::count(config.groups, "state", &GroupSpec::kind);
  const auto num_replay = std::ranges::count_if(config.groups, is_replay);
  Require(num_replay == 0 || num_replay == num_state,
          "number of state groups with speculation \"replay\"", num_replay,
          "0 or all " + std::to_string(num_state) + ": their rows are read and written together");
  const int64_t max_physical = MaxPhysical(config);
  Require(config.num_physical_blocks >= 2 && config.num_physical_blocks <= max_physical,
          "num_physical_blocks", config.num_physical_blocks,
          "2 (one is the sentinel) to " + std::to_string(max_physical));
  Require(config.max_running >= 1, "max_running", config.max_running, "1 or more");
  Require(config.max_waiting >= 1, "max_waiting", config.max_waiting, "1 or more");
  Require(config.max_step_tokens >= 1, "max_step_tokens", config.max_step_tokens, "1 or more");
  Require(config.max_context_tokens >= 2, "max_context_tokens", config.max_context_tokens,
          "2 or more");
  Require(config.depth == 0 || config.depth == 1, "depth", config.depth, "0 or 1");
  ValidateCache(config);
  ValidateOrder(config);
  const int32_t fewest = MinPhysicalBlocks(KvConfig(config));
  Require(config.num_physical_blocks >= fewest, "num_physical_blocks", config.num_physical_blocks,
          std::to_string(fewest) + " or more: a block, windows and rows of one request");
}

}  // namespace tokenspeed

// Settings of the scheduler, fixed at construction.
// Thread: any.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tokenspeed {

// A cache group as the control plane sees it.
struct GroupSpec {
  std::string name;
  std::string kind = "full";
  int32_t packing = 1;       // logical blocks per physical block
  int32_t share_tokens = 1;  // grain at which written tokens are final
  int32_t window = 0;        // kind "window": tokens that a query sees, itself included
  std::string speculation = "rows_per_position";  // kind "state": or "replay"
};

struct FlatKvConfig;

struct SchedulerConfig {
  int32_t block_tokens = 128;
  std::vector<GroupSpec> groups;
  int32_t num_physical_blocks = 0;  // with the sentinel
  int32_t max_running = 0;
  int32_t max_waiting = 0;
  int32_t max_step_tokens = 0;
  int32_t max_context_tokens = 0;
  int32_t depth = 0;  // plans that may be uncommitted while the next is made
  bool prefix_cache = true;
  uint64_t hash_seed = 0;

  // Cache.
  double state_cache_share = 0.3;  // of the physical blocks, for cached snapshots
  double retain_share = 0.25;      // of the physical blocks, for retained prefixes
  int32_t host_blocks = 0;         // physical blocks of the host tier, its unused first with them
  double copy_cost_tokens = 1.0;   // tokens whose prefill takes as long as copying a block
  std::string write_policy = "none";
  int32_t min_reuse = 2;
  bool store = false;
  int32_t layer_ranges = 1;
  bool kv_events = false;

  // Order and pace.
  int32_t max_prefill_steps = 3;
  double min_tps_per_user = 0.0;
  int64_t max_queue_us = 0;  // 0: no limit
  int64_t ageing_us = 30'000'000;
  int32_t max_sessions = 4096;
  int64_t session_bytes = int64_t{256} << 20;
  bool record_events = false;
};

// Throws std::invalid_argument that names the first field out of range.
void Validate(const SchedulerConfig& config);

// What the cache needs of it.
FlatKvConfig KvConfig(const SchedulerConfig& config);

}  // namespace tokenspeed

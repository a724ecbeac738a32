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
};

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
};

// Throws std::invalid_argument that names the first field out of range.
void Validate(const SchedulerConfig& config);

}  // namespace tokenspeed

// What `Scheduler::Inspect` answers: a picture of the inside as of the last call, as columns and
// counts. Its cost follows the number of requests and of transfers under way, never that of blocks.
// Thread: scheduler thread only; plain data.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kv/tiers.h"

namespace tokenspeed {

// Why a request does not go on.
enum class Wait : uint8_t {
  kNone,          // it has rows in the steps being planned
  kQueue,         // others go first
  kSlots,         // it is next, and as many run as may
  kRoom,          // it is next, and does not fit beside those who run
  kTenantCap,     // it is its tenant's next, and does not fit below the cap
  kLatencyFloor,  // those who run would miss their floor
  kNextStep,      // it is next, and was not looked at yet
  kComputing,     // another request computes its next block
  kLoading,       // its blocks come from a tier
  kSaving,        // its blocks go to a tier before it starts again
  kDisplaced      // shorter ones go first in this step
};
inline constexpr std::array<const char*, 11> kWaits = {
    "",          "queue",     "slots",   "room",   "tenant_cap", "latency_floor",
    "next_step", "computing", "loading", "saving", "displaced"};

// One entry per live request, in order of arrival.
struct RequestColumns {
  std::vector<int64_t> id;
  std::vector<const char*> state;
  std::vector<Wait> wait;
  std::vector<int64_t> waits_for;        // id of the request that computes its next block, -1
  std::vector<int32_t> position;         // in the queue, -1: not in it
  std::vector<int32_t> pieces, arrived;  // blocks on their way, and those that made it
  std::vector<int32_t> priority, slot;   // slot -1: none
  std::vector<int64_t> tenant, session;  // as they were submitted
  std::vector<int32_t> prompt, outputs;  // tokens
  std::vector<int32_t> cached;           // -1: not admitted yet
  std::vector<int32_t> computed, planned;
  std::vector<std::vector<int32_t>> blocks;  // [group]
};

// Logical blocks of one group: held + resting + vacant fill its physical blocks.
struct GroupState {
  std::string name, kind;
  int32_t packing = 1;
  int64_t held = 0;      // by requests
  int64_t resting = 0;   // nobody holds them, the index knows them
  int64_t indexed = 0;   // that can be matched, held or not; of a state group: snapshots
  int64_t retained = 0;  // that somebody asked to keep
  int64_t vacant = 0;    // unused room in its physical blocks
  int64_t leaving = 0;   // copies on their way to the host
  int64_t loading = 0;   // on their way to the device
  int64_t host = 0;      // slots of the host tier
  int32_t physical_used = 0, physical_cached = 0;
};

struct HostState {
  int32_t total = 0, used = 0, cached = 0, free = 0;  // physical blocks; used: being moved
  int64_t items = 0, arriving = 0;
};

struct ModelState {
  int64_t floor_tps = 0;
  std::array<double, 5> coefficients{};
  double noise_us = 0, decode_step_us = 0;
  int64_t num_observations = 0, num_violated = 0;
  bool is_outgrown = false;
};

struct SchedulerState {
  RequestColumns requests;
  std::vector<GroupState> groups;
  std::optional<HostState> host;         // none: only the device
  std::optional<int64_t> store_records;  // none: no store
  std::vector<Tiers::Flight> in_flight;  // by kind; empty: no tiers
  std::optional<ModelState> model;       // none: no latency floor
  int64_t num_parked = 0;
};

}  // namespace tokenspeed

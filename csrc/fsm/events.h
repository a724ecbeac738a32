// What can happen to a request. An event carries the handles that its target state newly owns.
// Thread: scheduler thread only.
#pragma once

#include <variant>

#include "base/slot_pool.h"
#include "kv/kv_table.h"

namespace tokenspeed {

// It leaves the queue with a slot and its first blocks.
struct Admit {
  static constexpr const char* kName = "Admit";
  SlotRef slot;
  KvTable blocks;
};

// The chunk with its last known token was planned.
struct LastChunk {
  static constexpr const char* kName = "LastChunk";
};

// Its blocks go to others; it queues again. No uncommitted step has a row of it.
struct Retract {
  static constexpr const char* kName = "Retract";
};

// A stop, the length or a failed row ended it.
struct Finish {
  static constexpr const char* kName = "Finish";
  bool has_uncommitted_rows = false;
};

// The caller does not want it any more.
struct Abort {
  static constexpr const char* kName = "Abort";
  bool has_uncommitted_rows = false;
};

// Its deadline passed.
struct Timeout {
  static constexpr const char* kName = "Timeout";
  bool has_uncommitted_rows = false;
};

// The last uncommitted step with a row of it was committed.
struct Drained {
  static constexpr const char* kName = "Drained";
};

using Event = std::variant<Admit, LastChunk, Retract, Finish, Abort, Timeout, Drained>;

}  // namespace tokenspeed

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

// It leaves the queue with a slot, and blocks that are filled from a slower tier first.
struct Load {
  static constexpr const char* kName = "Load";
  SlotRef slot;
  KvTable blocks;
};

// The last of those transfers was acknowledged, as done or as failed.
struct Loaded {
  static constexpr const char* kName = "Loaded";
};

// The chunk with its last known token was planned.
struct LastChunk {
  static constexpr const char* kName = "LastChunk";
};

// Its blocks go to others; it queues again. No uncommitted step has a row of it. In use: a transfer
// still reads its blocks.
struct Retract {
  static constexpr const char* kName = "Retract";
  bool is_in_use = false;
};

// The last transfer that read its blocks was acknowledged, as done or as failed.
struct Saved {
  static constexpr const char* kName = "Saved";
};

// A stop, the length or a failed row ended it. In use (here and below): an uncommitted step has a
// row of it, or a transfer touches its blocks.
struct Finish {
  static constexpr const char* kName = "Finish";
  bool is_in_use = false;
};

// The caller does not want it any more.
struct Abort {
  static constexpr const char* kName = "Abort";
  bool is_in_use = false;
};

// Its deadline passed.
struct Timeout {
  static constexpr const char* kName = "Timeout";
  bool is_in_use = false;
};

// The last uncommitted step with a row of it was committed, and its last transfer acknowledged.
struct Drained {
  static constexpr const char* kName = "Drained";
};

using Event =
    std::variant<Admit, Load, Loaded, LastChunk, Retract, Saved, Finish, Abort, Timeout, Drained>;

}  // namespace tokenspeed

// The states of a request. Each is a struct that owns exactly the handles of that state; a handle
// that a state lacks cannot be used in it. Tie() lists the handles for transitions.h.
//
//   Submitted --Admit--> Prefilling --LastChunk--> Decoding
//    |    \                ^  ^  \                  /  |
//    |    Load         Loaded |   +----Retract----+   |
//    |      \          /      |    |             |    |
//    |       v        /     Admit  v             v    |
//    |       Loading +        +- Retracted <- Retracting
//    |            ^-------Load----+       Saved       |
//    +--> Finished <--Drained-- Draining <-----+------+   on Finish, Abort, Timeout
//
// docs/control-plane.md has the diagram that is drawn from the table itself.
//
// Thread: scheduler thread only.
#pragma once

#include <tuple>
#include <variant>

#include "base/slot_pool.h"
#include "kv/kv_table.h"

namespace tokenspeed {

// In the queue, never run.
struct Submitted {
  static constexpr const char* kName = "Submitted";
  auto Tie() { return std::tie(); }
};

// Has a slot and blocks; transfers from a slower tier fill some of them. No row is planned.
struct Loading {
  static constexpr const char* kName = "Loading";
  SlotRef slot;
  KvTable blocks;
  auto Tie() { return std::tie(slot, blocks); }
};

// Runs; part of its tokens is not yet planned.
struct Prefilling {
  static constexpr const char* kName = "Prefilling";
  SlotRef slot;
  KvTable blocks;
  auto Tie() { return std::tie(slot, blocks); }
};

// Runs; every token but the last sampled one is planned or in the cache.
struct Decoding {
  static constexpr const char* kName = "Decoding";
  SlotRef slot;
  KvTable blocks;
  auto Tie() { return std::tie(slot, blocks); }
};

// Gives its blocks to others as soon as the transfers that copy them to the host are done.
struct Retracting {
  static constexpr const char* kName = "Retracting";
  SlotRef slot;
  KvTable blocks;
  auto Tie() { return std::tie(slot, blocks); }
};

// In the queue again; gave its blocks to others, kept its tokens.
struct Retracted {
  static constexpr const char* kName = "Retracted";
  auto Tie() { return std::tie(); }
};

// Ended, but an uncommitted step or a transfer still touches its blocks and slot.
struct Draining {
  static constexpr const char* kName = "Draining";
  SlotRef slot;
  KvTable blocks;
  auto Tie() { return std::tie(slot, blocks); }
};

// Ended; owns nothing.
struct Finished {
  static constexpr const char* kName = "Finished";
  auto Tie() { return std::tie(); }
};

using State = std::variant<Submitted, Loading, Prefilling, Decoding, Retracting, Retracted,
                           Draining, Finished>;

}  // namespace tokenspeed

// The states of a request. Each is a struct that owns exactly the handles of that state; a handle
// that a state lacks cannot be used in it. Tie() lists the handles for transitions.h.
//
//   Submitted --Admit--> Prefilling --LastChunk--> Decoding
//       |                 ^   |  \--Retract--> Retracted <--Retract--/ |
//       |                 +---|------Admit---------/                   |
//       +--Finish, Abort, Timeout--> Finished <--Drained-- Draining <--+  (steps still touch it)
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

// In the queue again; gave its blocks to others, kept its tokens.
struct Retracted {
  static constexpr const char* kName = "Retracted";
  auto Tie() { return std::tie(); }
};

// Ended, but an uncommitted step still touches its blocks and slot.
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

using State = std::variant<Submitted, Prefilling, Decoding, Retracted, Draining, Finished>;

}  // namespace tokenspeed

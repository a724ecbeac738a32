// The answer of FlatKv::Match: a reusable prefix, held so that it cannot be evicted, and why it is
// not longer.
// Thread: scheduler thread only.
#pragma once

#include <cstdint>
#include <vector>

#include "kv/kv_table.h"
#include "kv/snapshots.h"

namespace tokenspeed {

// Why a match is not longer.
enum class MatchLimit : uint8_t {
  kComplete,  // all that was asked for
  kUnknown,   // no block with this content is known: never stored, or other tokens
  kEvicted,   // the next block was known and was evicted
  kSnapshot,  // blocks go on, but no state snapshot lies further on
  kWindow,    // blocks go on, but a window group lacks blocks there
  kGrain,     // inside the last block, finer than share_tokens
};

// Tokens [0, num_tokens): whole blocks [0, table.size()), then `tail_tokens` tokens that are to be
// copied from the first part of `tail` (and of `window_tails`) into the next block. With state
// groups the table's source row holds the state at num_tokens.
struct PrefixMatch {
  KvTable table;
  BlockRef tail;
  std::vector<WindowRef> window_tails;  // [window group], when tail_tokens > 0
  SnapshotId snapshot;  // the table's source row, as the one before the next published
  int32_t tail_tokens = 0;
  int32_t num_tokens = 0;
  int32_t chain_tokens =
      0;  // how far the tokens were known in full groups, whatever the others say
  MatchLimit limit = MatchLimit::kComplete;

  // Gives up what lies inside a block. REQUIRES: no state groups.
  void DropTail() {
    tail.Reset();
    window_tails.clear();
    num_tokens -= tail_tokens;
    tail_tokens = 0;
  }
};

}  // namespace tokenspeed

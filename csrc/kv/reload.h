// What a prompt could reuse if the tiers behind the device helped: the longest position for which
// every part is on the device, in host memory or in the store.
//
//   full groups    |== device ==|~~~~ tiers ~~~~|
//   window groups            |~~|==|~~~~~~~~~~~~|   each block from wherever it is
//   state groups                                s   a snapshot, device or tiers
//                               ^ device match  ^ position
//
// A search over the chain's blocks from its end: positions at block boundaries, and, with state
// groups, inside the last kProbeBlocks blocks (snapshots lie anywhere, and a store knows keys
// only). Thread: scheduler thread only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv/flat_kv.h"
#include "kv/tiers.h"

namespace tokenspeed {

class Reload {
 public:
  using Tokens = std::span<const int32_t>;
  static constexpr size_t kProbeBlocks = 64;

  // One block to fill.
  struct Piece {
    Content content;
    BlockId block;
    size_t index;  // of the block in its sequence
  };

  // All outlive this. REQUIRES: `keys` covers the full blocks of `tokens`.
  Reload(FlatKv& kv, const Tiers& tiers, NodeId root, Tokens tokens, const ChainKeys& keys);

  // Looks for a position after `matched`. Returns: 0 for none.
  int32_t Find(int32_t matched);

  // Contents that are missing on the device for the position found, blocks unset, in order.
  std::vector<Piece> Missing() const;

  // Fills `table` with what is on the device, and fresh blocks for the rest, or leaves it empty.
  // Returns: the missing contents with their blocks; nothing when they do not fit.
  std::vector<Piece> Hold(KvTable& table);

  size_t num_device_blocks() const { return num_device_blocks_; }
  SnapshotId snapshot() const;

 private:
  Content At(size_t index, int32_t num_tokens, GroupId group) const;
  bool InTiers(size_t index, int32_t num_tokens, GroupKind kind) const;
  bool IsUsable(size_t index, int32_t offset) const;
  bool HasState(size_t index, int32_t offset) const;
  bool HasWindows(size_t index, int32_t offset) const;
  // The block's content up to `offset`: a record of just that, or else of the whole block.
  Content Best(size_t index, int32_t offset, GroupId group) const;
  int32_t Offset(size_t index) const;

  FlatKv& kv_;
  const Tiers& tiers_;
  NodeId root_;
  Tokens tokens_;
  const ChainKeys& keys_;
  int32_t block_tokens_;
  std::vector<SetId> chain_;  // on the device
  int32_t position_ = 0;
  size_t num_device_blocks_ = 0;
};

}  // namespace tokenspeed

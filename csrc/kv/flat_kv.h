// FlatKV: what the scheduler asks of the cache. Joins the pool of block sets with the prefix index:
// match a sequence, grow a table (evicting what is coldest), make written blocks matchable.
// Owns both; every BlockRef and BlockTable it gave out must be gone before it is destroyed.
// Thread: scheduler thread only.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kv/block_pool.h"
#include "kv/chain_keys.h"
#include "kv/prefix_index.h"

namespace tokenspeed {

struct FlatKvConfig {
  int32_t block_tokens = 128;
  std::vector<int32_t> packing;
  int32_t num_physical_blocks = 2;
  int32_t share_tokens = 1;  // grain at which a tail may be reused: the largest of the groups
  uint64_t hash_seed = 0;
};

// A reusable prefix: [0, blocks.size() * block_tokens) in whole blocks, then `tail_tokens` tokens
// to copy from the first part of `tail`.
struct PrefixMatch {
  BlockTable blocks;
  BlockRef tail;
  int32_t tail_tokens = 0;
};

class FlatKv {
 public:
  using Tokens = std::span<const int32_t>;

  explicit FlatKv(const FlatKvConfig& config);

  NodeId AcquireRoot(const std::string& salt) { return index_.AcquireRoot(salt); }
  void ReleaseRoot(NodeId root) { index_.ReleaseRoot(root); }

  // Empty chain of this namespace, to be extended by the tokens of a sequence.
  ChainKeys Chain(NodeId root) const { return {index_.key(root), config_.block_tokens}; }

  // Returns the longest reusable prefix of `tokens`, held so that it cannot be evicted.
  // REQUIRES: `keys` covers the full blocks of `tokens` (it may go further).
  PrefixMatch Match(NodeId root, Tokens tokens, const ChainKeys& keys);

  // Says whether a match that ended at `parent` could go on with the block of this key and tokens.
  bool Continues(NodeId parent, const Hash128& key, Tokens block) const {
    return index_.Find(parent, key, block).value != 0;
  }

  // Appends fresh sets until the table has `num_sets`, or none. Evicts cached sets as needed.
  // Returns: false when they do not fit; the table is then unchanged.
  bool Grow(BlockTable& table, size_t num_sets);

  // Says whether `num_sets` more sets fit when everything that nobody holds is evicted.
  bool CanHold(int64_t num_sets) const { return pool_.CanHold(num_sets); }
  // Returns the largest n <= limit with CanHold(n).
  int64_t MaxHold(int64_t limit) const;
  // Says whether `num_sets` fit an empty pool.
  bool CanEverHold(int64_t num_sets) const;

  // Makes full block `index` of `table` matchable. A set with the same content that is cached
  // already takes its place in the table.
  // Returns: kAdded, kReplaced, or kPrivate (its key belongs to other content).
  enum class Publication { kAdded, kReplaced, kPrivate };
  Publication Publish(NodeId root, BlockTable& table, size_t index, const Hash128& key, Tokens block);

  // Makes the partly filled block `index` matchable up to `tokens`.
  void PublishTail(NodeId root, const BlockTable& table, size_t index, Tokens tokens);

  // Says whether a full block of this key is cached; a hint, as its tokens are not verified.
  bool MayHave(const Hash128& key) const { return index_.MayHave(key); }

  const BlockPool& pool() const { return pool_; }
  int64_t num_evictions() const { return num_evictions_; }
  void CheckInvariants() const;

 private:
  NodeId ParentOf(NodeId root, const BlockTable& table, size_t index) const {
    return index == 0 ? root : NodeId::Of(table.set(index - 1));
  }
  void EvictColdest();

  FlatKvConfig config_;
  BlockPool pool_;
  PrefixIndex index_;
  int64_t num_evictions_ = 0;
};

}  // namespace tokenspeed

#include "kv/flat_kv.h"

#include "base/check.h"

namespace tokenspeed {

FlatKv::FlatKv(const FlatKvConfig& config)
    : config_(config),
      pool_(config.packing, config.num_physical_blocks),
      index_(pool_, config.block_tokens, config.hash_seed) {}

PrefixMatch FlatKv::Match(NodeId root, Tokens tokens, const ChainKeys& keys) {
  PrefixMatch match;
  NodeId parent = root;
  const size_t block_tokens = config_.block_tokens;
  match.blocks.Reserve(tokens.size() / block_tokens + 1);
  while (tokens.size() >= block_tokens) {
    const Tokens block = tokens.first(block_tokens);
    const SetId set = index_.Find(parent, keys[match.blocks.size()], block);
    if (set.value == 0) break;
    match.blocks.Append(pool_.Hold(set));
    parent = NodeId::Of(set);
    tokens = tokens.subspan(block_tokens);
  }
  const auto [tail, shared] = index_.FindTail(parent, tokens);
  const int32_t usable = shared / config_.share_tokens * config_.share_tokens;
  if (usable > 0) {
    match.tail = pool_.Hold(tail);
    match.tail_tokens = usable;
  }
  return match;
}

bool FlatKv::Grow(BlockTable& table, size_t num_sets) {
  if (table.size() >= num_sets) return true;
  if (!CanHold(static_cast<int64_t>(num_sets - table.size()))) return false;
  while (table.size() < num_sets) {
    while (!pool_.CanAcquire()) EvictColdest();
    table.Append(*pool_.Acquire());
  }
  return true;
}

int64_t FlatKv::MaxHold(int64_t limit) const {
  int64_t low = 0;
  while (low < limit) {
    const int64_t middle = (low + limit + 1) / 2;
    if (CanHold(middle)) {
      low = middle;
    } else {
      limit = middle - 1;
    }
  }
  return low;
}

bool FlatKv::CanEverHold(int64_t num_sets) const {
  int64_t num_physical = 0;
  for (const int32_t packing : config_.packing) num_physical += (num_sets + packing - 1) / packing;
  return num_physical <= pool_.physical().num_usable();
}

FlatKv::Publication FlatKv::Publish(NodeId root, BlockTable& table, size_t index, const Hash128& key, Tokens block) {
  const NodeId parent = ParentOf(root, table, index);
  const SetId mine = table.set(index);
  const SetId known = index_.InsertFull(mine, parent, key, block);
  if (known == mine) return Publication::kAdded;
  if (known.value == 0) return Publication::kPrivate;
  table.Replace(index, pool_.Hold(known));
  return Publication::kReplaced;
}

void FlatKv::PublishTail(NodeId root, const BlockTable& table, size_t index, Tokens tokens) {
  index_.InsertTail(table.set(index), ParentOf(root, table, index), tokens);
}

void FlatKv::EvictColdest() {
  const SetId coldest = pool_.coldest();
  TS_CHECK(coldest.value != 0, "room that was promised can be evicted");
  index_.Remove(coldest);
  ++num_evictions_;
}

void FlatKv::CheckInvariants() const {
  pool_.CheckInvariants();
  index_.CheckInvariants();
}

}  // namespace tokenspeed

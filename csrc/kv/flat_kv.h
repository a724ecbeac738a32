// FlatKV: what the scheduler asks of the cache. Two levels:
//
//   physical blocks   one id space for all groups                          (PhysicalPool)
//   things            sets of full blocks, window blocks, rows of state     (BlockPool, per class)
//
// and over them the prefix index: a tree whose nodes are sets. A node may carry a window block of
// each window group and snapshots: rows of state at positions inside its block.
//
// Match. The longest position at which every full group has all blocks, every window group the
// blocks that cover [position - window, position), and every state group a snapshot exactly there.
//
// Room. A class that needs a physical block takes, in this order: room in its own; a free one;
// the place of the coldest thing. If that is its own coldest thing, it goes; if another class has a
// colder one, that class gives up an unpinned physical block with few residents. Scores of the
// classes are compared as EvictionQueue computes them. A window block that fell behind its
// request's window goes before everything else, unless a reuse point ends there.
//
// Progress. One request needs, beside its sets, at most `NeedAlone()` window blocks and rows, each
// in a physical block of its own at worst. The number of sets is capped so that the full groups can
// never occupy the last so many physical blocks, however scattered their sets lie (PhysicalPool
// says why their number is bounded). So a request that is alone always gets its next block by
// eviction, window block or row too: whatever was admitted can end.
//
// Accounts. Tenants with figures (accounts.h) have their sets counted, where all groups are full: a
// set can then be taken whenever fewer than the most are, wherever they lie. Who is at his cap
// gives up his own coldest set; else the coldest of all accounts that may give: those beyond their
// floor, and the asker's own, last while he is not beyond his.
//
// Owns pools and index; every handle it gave out must be gone before it is destroyed.
// Thread: scheduler thread only.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kv/block_pool.h"
#include "kv/chain_keys.h"
#include "kv/events.h"
#include "kv/evicted_keys.h"
#include "kv/kv_table.h"
#include "kv/kv_watcher.h"
#include "kv/prefix_index.h"
#include "kv/prefix_match.h"

namespace tokenspeed {

enum class GroupKind : uint8_t { kFull, kWindow, kState };

struct KvGroup {
  GroupKind kind = GroupKind::kFull;
  int32_t packing = 1;
  int32_t window = 0;  // tokens, window groups only
};

struct FlatKvConfig {
  int32_t block_tokens = 128;
  std::vector<KvGroup> groups;  // at least one full group
  int32_t num_physical_blocks = 2;
  int32_t share_tokens = 1;  // grain at which a tail may be reused: the largest of the groups
  uint64_t hash_seed = 0;
  int32_t rows_per_request = 1;   // working rows of state: depth + 1
  int32_t step_tokens_ahead = 1;  // tokens of one request in uncommitted steps, at least: depth + 1
  double state_cache_share = 0.3;  // of the physical blocks, for snapshots
  double retain_share = 0.25;      // of the sets, for retained prefixes
  bool events = false;
};

inline constexpr int32_t kMaxGroups = 16;

// Things of each class.
struct KvNeed {
  int64_t sets = 0;
  int64_t rows = 0;
  std::array<int64_t, kMaxGroups> windows{};  // [window group in order]
};

// A node of a sequence: a full block of it, or a partly filled one that holds nothing else.
struct PathNode {
  SetId set;
  size_t begin = 0;  // position of its first token
};

// Physical blocks below which not even one block of one request fits, the sentinel included.
int32_t MinPhysicalBlocks(const FlatKvConfig& config);

class FlatKv {
 public:
  using Tokens = std::span<const int32_t>;

  // REQUIRES: CanEverHold(1) (see MinPhysicalBlocks).
  explicit FlatKv(const FlatKvConfig& config);

  // Told of every eviction from now on. REQUIRES: `watcher` outlives this or is replaced.
  void SetWatcher(KvWatcher* watcher) { watcher_ = watcher; }

  // Time of the calls that follow.
  void SetNow(int64_t now_us);

  NodeId AcquireRoot(const std::string& salt, int64_t tenant = 0) {
    return index_.AcquireRoot(salt, tenant);
  }
  void ReleaseRoot(NodeId root) { index_.ReleaseRoot(root); }
  // Empty chain of this namespace, to be extended by the tokens of a sequence.
  ChainKeys Chain(NodeId root) const { return {index_.key(root), config_.block_tokens}; }

  // Extends `keys` by the full blocks of `tokens` that it lacks, and `known`, as long as it has one
  // for each key, by their sets. A block that is the newest child of the one before is compared
  // with it; only others are hashed.
  void Recognise(NodeId root, Tokens tokens, ChainKeys& keys, std::vector<KnownSet>& known) const;

  // Returns the longest reusable prefix of `tokens`, held so that it cannot be evicted.
  // REQUIRES: `keys` covers the full blocks of `tokens` (it may go further). `known`: sets noted of
  // the first blocks of these tokens in this namespace; as a parent outlives its children, how many
  // of them are still there is found by bisection, without a look at their tokens.
  PrefixMatch Match(NodeId root, Tokens tokens, const ChainKeys& keys,
                    std::span<const KnownSet> known = {});
  // Notes the first `num_blocks` sets of a table. REQUIRES: they are published.
  std::vector<KnownSet> Note(const KvTable& table, size_t num_blocks) const;

  // Says whether a match that ended at `parent` could go on with the block of this key and tokens.
  bool Continues(NodeId parent, const Hash128& key, Tokens block) const {
    return index_.Find(parent, key, block).value != 0;
  }

  // Says whether a full block of this key is cached; a hint, as its tokens are not verified.
  bool MayHave(const Hash128& key) const { return index_.MayHave(key); }

  // What `table` lacks to hold `num_blocks` blocks and its working rows.
  KvNeed Need(const KvTable& table, size_t num_blocks) const;
  // The same, but window groups counted at the most that the request needs at once when it goes on
  // in steps of few tokens: for admission.
  KvNeed NeedToRun(const KvTable& table, size_t num_blocks) const;
  // Window blocks and rows that any one request needs at most, beside its sets.
  KvNeed NeedAlone() const;

  // Says whether this fits when everything that nobody holds and `account` may evict is evicted.
  bool CanHold(const KvNeed& need, AccountId account = {}) const {
    return MissingSets(need, account) == 0 && FitsPhysical(need);
  }
  // Sets that lack for it, 0 for none; and whether what lacks is room under the account's own cap.
  int64_t MissingSets(const KvNeed& need, AccountId account) const;
  bool IsCapped(const KvNeed& need, AccountId account) const;
  // Returns the largest n <= limit such that `table` can grow to n blocks.
  size_t MaxBlocks(const KvTable& table, size_t limit, AccountId account = {}) const;
  // Says whether a request of `num_blocks` blocks fits an empty pool and can always end.
  bool CanEverHold(int64_t num_blocks) const { return num_blocks <= sets_.max_items(); }
  // Sets of the longest request of an account that can always end, beside the others' floors.
  int64_t MaxSets(AccountId account) const;

  // Says whether a request of one block and so many working rows fits an empty pool.
  bool CanEverHoldRows(int64_t num_rows) const;

  // Appends fresh sets and window blocks until the table has `num_blocks`, and draws its working
  // rows, or changes nothing. Evicts as needed. Returns: false when it does not fit.
  bool Grow(KvTable& table, size_t num_blocks, AccountId account = {});

  // Fills an empty table with what is on the device of the chain `device` (of whole blocks), the
  // snapshot at `position` if there is one, and fresh blocks and rows for the rest up to
  // `position`. Returns: false when it does not fit; the table is then empty.
  bool HoldForReload(std::span<const SetId> device, int32_t position, RowId snapshot,
                     AccountId account, KvTable& table);

  // Who pays for what is cached in a namespace.
  AccountId account(NodeId root) const { return index_.account(root); }
  const Accounts& accounts() const { return sets_.accounts(); }
  // Says whether sets are all that requests hold, so that they can be counted by tenant.
  bool can_limit() const { return windows_.empty() && rows_.num_groups() == 0; }
  // Gives a tenant figures, or other ones, or none (nullopt); what it has cached above its cap
  // goes. `held`: what its requests hold, with or without what is indexed. O(sets log sets).
  // REQUIRES: can_limit(); an account is left; the floors fit.
  void SetLimits(int64_t tenant, const std::optional<TenantLimits>& limits,
                 std::span<const SetId> held);
  // Evicts what accounts have cached above their caps.
  void TrimToCaps();

  // Lets go of window blocks that no step from `computed` on reads, and of a read source row.
  // `keeps(w, index)` says whether block `index` lies in window w before a reuse point.
  template <class Keeps>
  void Slide(KvTable& table, int32_t computed, const Keeps& keeps);

  // Says whether block `index` lies in window w before `position`.
  bool IsInWindow(int32_t w, size_t index, int64_t position) const {
    return static_cast<int64_t>(index) >= WindowStart(w, position) && Position(index) < position;
  }

  // Makes full block `index` of `table` matchable. Blocks with the same content that are cached
  // already take their place in the table.
  // Returns: kAdded, kReplaced, or kPrivate (its key belongs to other content).
  enum class Publication { kAdded, kReplaced, kPrivate };
  // Starts to load what Publish of a block with this key will read.
  void PrefetchPublish(const Hash128& key) const {
    index_.PrefetchSlot(key);
    evicted_.Prefetch(key);
  }
  Publication Publish(NodeId root, KvTable& table, size_t index, const Hash128& key, Tokens block);

  // Starts to load what Publish of a block will write, some calls ahead.
  void PrefetchPublish(const KvTable& table, size_t index, const Hash128& key) const {
    index_.PrefetchSlot(key);
    index_.PrefetchInsert(table.blocks.set(index));
    evicted_.Prefetch(key);
  }

  // Makes the partly filled block `index` matchable up to `tokens`; it may be filled further and be
  // published again. Returns the set that has this content now: its own or one known before;
  // SetId(0) for none.
  SetId PublishTail(NodeId root, KvTable& table, size_t index, Tokens tokens);

  // Makes the state at `position` matchable; `set` has the tokens before it. The index takes the
  // row; a fresh one takes its place in the table, or none if `is_last` (the request goes).
  // `previous`: the snapshot before it in this chain, if any.
  // Returns: the snapshot there now, none when there is no room or no row at `position`.
  SnapshotId PublishState(KvTable& table, SetId set, int32_t position, SnapshotId previous,
                          bool is_branch, bool is_last);

  // Returns a sequence's nodes from its first token on, as far as they are there: full blocks in
  // order, then tails of the last one. REQUIRES: `keys` covers the full blocks of `tokens`.
  std::vector<PathNode> Path(NodeId root, Tokens tokens, const ChainKeys& keys) const;
  // Says whether nobody holds an indexed set, and nothing in the index hangs on it.
  bool IsAlone(SetId set) const { return index_.num_children(set) == 0 && sets_.refs(set) == 0; }
  // Drops what a set holds beyond its first `num_shared` tokens: all of it, if none are shared, or
  // a sibling has those as well; else it stays as a tail. Snapshots of shared positions stay
  // matchable. No tier is told. Adds what that frees to `blocks` of each group.
  // Returns: the tokens that nobody finds any more. REQUIRES: IsAlone(set).
  int32_t Release(SetId set, int32_t num_shared, std::span<int64_t> blocks);

  // A chain that goes on keeps this one of its snapshots.
  void MarkBranch(SnapshotId snapshot) {
    if (index_.snapshots().Has(snapshot)) index_.MarkBranch(snapshot.row);
  }

  // How long the things of a table are expected to rest once it is let go, and for how long
  // their first `num_blocks` are kept, as far as the quota goes.
  void SetKeys(const KvTable& table, int64_t gap_us, int64_t retain_us, size_t num_blocks);

  // Block of group `group` at `index` of a table; BlockId(0) where a window group has none.
  BlockId block(const KvTable& table, GroupId group, size_t index) const;
  // Block of state group number `k` of a row.
  BlockId row_block(RowId row, int32_t k) const { return rows_.block(row, k); }
  BlockId set_block(SetId set, GroupId group) const { return sets_.block(set, place(group)); }
  BlockId window_block(int32_t w, WindowId window) const { return windows_[w]->block(window, 0); }

  int32_t share_tokens() const { return config_.share_tokens; }
  int32_t num_groups() const { return static_cast<int32_t>(config_.groups.size()); }
  int32_t num_window_groups() const { return static_cast<int32_t>(windows_.size()); }
  int32_t num_state_groups() const { return rows_.num_groups(); }
  GroupKind kind(GroupId group) const { return config_.groups[group.value].kind; }
  // Number of a group among those of its kind.
  int32_t place(GroupId group) const { return place_[group.value]; }

  const PhysicalPool& physical() const { return physical_; }
  template <class Visit>
  void ForEachPool(const Visit& visit) const {
    visit(sets_);
    for (const auto& pool : windows_) visit(*pool);
    visit(rows_);
  }
  const BlockPool& sets() const { return sets_; }
  const BlockPool& rows() const { return rows_; }
  const BlockPool& windows(int32_t w) const { return *windows_[w]; }
  const PrefixIndex& index() const { return index_; }
  // Counts things let go, of all classes: while it stands still, no room has come.
  int64_t num_releases() const;
  int64_t num_refs() const;
  // Sets, window blocks and snapshots evicted, ever.
  int64_t num_evictions() const { return num_evictions_; }
  // Counts what became matchable.
  int64_t num_publications() const { return num_publications_; }
  int64_t num_window_evictions() const { return num_window_evictions_; }
  int64_t num_snapshot_evictions() const { return num_snapshot_evictions_; }
  // Physical blocks' worth of unused room inside occupied physical blocks.
  double vacant_blocks() const;
  int32_t max_snapshots() const { return max_snapshots_; }

  // What was stored and removed since the last call; empty unless `events` is on.
  EventBatch TakeEvents() { return std::exchange(events_, EventBatch{}); }
  // Where the tiers tell theirs; nullptr unless `events` is on. Stays where it is.
  EventBatch* events() { return config_.events ? &events_ : nullptr; }
  const EvictedKeys& evicted() const { return evicted_; }

  void CheckInvariants() const;

 private:
  // match.cc
  struct Candidate;
  class Walk;
  void HoldMatch(const Candidate& best, PrefixMatch& match);
  int64_t Position(size_t index) const {
    return static_cast<int64_t>(index) * config_.block_tokens;
  }

  // room.cc
  bool FitsPhysical(const KvNeed& need) const;
  void MakeRoom(BlockPool& pool, KvNeed& rest, AccountId account = {});
  void MakeRoomFor(AccountId account);
  int32_t ColdestFor(AccountId account);
  int64_t& WindowNeed(const BlockPool& pool, KvNeed& need) const {
    return need.windows[WindowNumber(pool)];
  }
  void LookAhead(int32_t& ahead, AccountId account);
  int32_t WindowNumber(const BlockPool& pool) const;
  void UseSpare(BlockPool& pool);
  BlockPool* ColdestClass(BlockPool& pool);
  bool CanGivePhysical(const BlockPool& pool) const;
  void TakePhysicalFrom(BlockPool& pool);
  using Residents = std::array<int32_t, PhysicalPool::kMaxPacking>;
  size_t ResidentsOf(const BlockPool& pool, GroupId group, PhysicalId id, Residents& items) const;
  int32_t CostOf(const BlockPool& pool, PhysicalId id, std::span<const int32_t> items) const;
  void EvictWhole(BlockPool& pool, int32_t item);
  void EvictColdest(BlockPool& pool);
  void EvictItem(BlockPool& pool, int32_t item);
  bool LimitSnapshots();

  SetId Substitute(SetId set, int32_t num_shared) const;
  void PublishWindows(KvTable& table, size_t index, SetId set, bool may_replace);
  void NeedsByGroup(const KvNeed& need, std::span<int64_t> blocks) const;
  NodeId ParentOf(NodeId root, const KvTable& table, size_t index) const {
    return index == 0 ? root : NodeId::Of(table.blocks.set(index - 1));
  }
  // First block that covers [position - window, position).
  int64_t WindowStart(int32_t w, int64_t position) const {
    return std::max<int64_t>(0, position - window_tokens_[w]) / config_.block_tokens;
  }

  FlatKvConfig config_;
  std::vector<int32_t> place_;
  std::vector<int32_t> window_tokens_;  // [window group]
  PhysicalPool physical_;
  BlockPool sets_;
  std::vector<std::unique_ptr<BlockPool>> windows_;
  BlockPool rows_;
  PrefixIndex index_;
  EventBatch events_;
  EvictedKeys evicted_;
  KvWatcher* watcher_ = nullptr;  // not owned; outlives this
  std::vector<SetId> chain_;      // of the chain being matched
  int32_t max_snapshots_ = 0;
  int32_t max_retained_ = 0;
  bool has_keys_ = false;  // a gap or a retention was ever given
  int64_t now_us_ = 0;
  int64_t num_publications_ = 0;
  int64_t num_evictions_ = 0, num_window_evictions_ = 0, num_snapshot_evictions_ = 0;
};

template <class Keeps>
void FlatKv::Slide(KvTable& table, int32_t computed, const Keeps& keeps) {
  for (size_t w = 0; w < table.windows.size(); ++w) {
    WindowTable& window = table.windows[w];
    const auto start = static_cast<size_t>(WindowStart(static_cast<int32_t>(w), computed));
    while (window.first() < start && window.size() > 0) {
      window.DropFirst(!keeps(static_cast<int32_t>(w), window.first()));
    }
  }
  table.rows.Settle(computed);
}

}  // namespace tokenspeed

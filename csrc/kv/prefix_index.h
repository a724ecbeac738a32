// Which block sets can be reused, and under which tokens. A set is a node of a tree: its parent is
// the set before it (or the root of a namespace), its key the chain hash over all tokens so far.
// Full nodes are found by key in a flat open-addressing table; partly filled ones (tails) only as
// one of the at most 8 children that a parent remembers. Every hit is verified.
// A node may carry a window block of each window group and snapshots of state (snapshots.h). They
// may be evicted while it stays; when it goes, they go with it.
// Owns keys and token ids; marks sets, window blocks and rows as cached in their pools, which
// outlive this.
// Thread: scheduler thread only.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/ids.h"
#include "base/pages.h"
#include "kv/block_pool.h"
#include "kv/events.h"
#include "kv/snapshots.h"

namespace tokenspeed {

// A place in the tree: a set, or the root of a namespace.
struct NodeId {
  int32_t value = 0;  // > 0: set; < 0: root
  static NodeId Of(SetId set) { return NodeId{set.value}; }
  bool is_root() const { return value < 0; }
  bool operator==(const NodeId&) const = default;
};

// A set as it was when it was noted.
struct KnownSet {
  SetId set;
  uint32_t stamp = 0;
};

class PrefixIndex {
 public:
  static constexpr int kMaxChildren = 8;
  using Tokens = std::span<const int32_t>;

  PrefixIndex(BlockPool& sets, std::vector<BlockPool*> windows, BlockPool& rows,
              int32_t block_tokens, uint64_t hash_seed);

  // Tells of every block that can be matched from now on, or no more, by group: full blocks, their
  // window blocks, and snapshots at their end; nothing that a block's hash does not name.
  // nullptr: nobody listens. REQUIRES: `events` outlives this.
  void SetEvents(EventBatch* events) { events_ = events; }

  // Returns the root of a tenant's namespace for `salt`, kept until ReleaseRoot and while anything
  // hangs on it.
  NodeId AcquireRoot(const std::string& salt, int64_t tenant = 0);
  void ReleaseRoot(NodeId root);

  const std::string& name(NodeId root) const { return roots_[~root.value].name; }

  // Account of the namespace's tenant.
  AccountId account(NodeId root) const { return roots_[~root.value].account; }
  // The account of all namespaces of a tenant, from now on.
  void SetAccount(int64_t tenant, AccountId account);
  // Returns the sets that hang on them, in no order. O(sets).
  std::vector<SetId> SetsOf(int64_t tenant) const;

  // Chain hash at a node, and of a full block after it.
  const Hash128& key(NodeId node) const { return NodeAt(node).key; }
  Hash128 Key(NodeId parent, Tokens block) const { return HashBlock(NodeAt(parent).key, block); }

  // Says whether a full node is still the one that was noted: neither it nor what is before it has
  // left the index since, so its tokens need no second look.
  bool IsKnown(const KnownSet& known) const {
    return IsFull(known.set) && stamps_[known.set.value] == known.stamp;
  }
  KnownSet Note(SetId set) const { return {set, stamps_[set.value]}; }

  // Says whether a full node has this key.
  bool MayHave(const Hash128& key) const {
    for (size_t i = key.lo & slot_mask_; slots_[i].set != 0; i = (i + 1) & slot_mask_) {
      if (slots_[i].tag == key.hi && nodes_[slots_[i].set].key == key) return true;
    }
    return false;
  }

  // Starts to load what Find of this key will read: first the place in the table, then, some calls
  // later, the node there.
  void PrefetchSlot(const Hash128& key) const { __builtin_prefetch(&slots_[key.lo & slot_mask_]); }
  void PrefetchNode(const Hash128& key) const { PrefetchSet(slots_[key.lo & slot_mask_].set); }

  // The same for Remove of a set: its place in the table, and its parent's node.
  void PrefetchErase(SetId set) const { PrefetchSlot(nodes_[set.value].key); }
  void PrefetchParent(SetId set) const {
    __builtin_prefetch(&nodes_[std::max(0, nodes_[set.value].parent.value)], 1);
  }
  // And for InsertFull: its node and its tokens.
  void PrefetchInsert(SetId set) const {
    constexpr int32_t kTokensOfLine = 64 / sizeof(int32_t);
    __builtin_prefetch(&nodes_[set.value], 1);
    const int32_t* tokens = TokensOf(set.value);
    for (int32_t i = 0; i < block_tokens_; i += kTokensOfLine) __builtin_prefetch(tokens + i, 1);
  }

  // Returns the full child of `parent` with these tokens, SetId(0) for none.
  SetId Find(NodeId parent, const Hash128& key, Tokens block) const;

  // Returns the newest child of `parent`, if it is full and has these tokens: no key is needed.
  // Mostly a chain lies at one stretch, so what is likely to be asked for next is loaded ahead.
  SetId FindNewest(NodeId parent, Tokens block) const {
    constexpr int32_t kAhead = 6;
    const int32_t child = NodeAt(parent).children.front();
    if (child == 0) return SetId();
    const int32_t next = child + kAhead;
    if (next < static_cast<int32_t>(nodes_.size())) PrefetchSet(next);
    return IsFull(SetId(child)) && Holds(child, block) ? SetId(child) : SetId();
  }

  // Children that are remembered, most recent first, 0 ends them; and how many first tokens of
  // `tokens` a child has.
  const std::array<int32_t, kMaxChildren>& children(NodeId parent) const {
    return NodeAt(parent).children;
  }
  int32_t Shared(int32_t child, Tokens tokens) const;

  // Returns the remembered child that shares most first tokens with `tokens`, and how many.
  std::pair<SetId, int32_t> FindTail(NodeId parent, Tokens tokens) const;

  // Adds a full block. Returns: `set` if it was added; the set that has this content already;
  // SetId(0) if other content has the key (the newcomer stays private).
  // REQUIRES: set is held and not indexed; parent is indexed or a root.
  SetId InsertFull(SetId set, NodeId parent, const Hash128& key, Tokens block);

  // Adds a partly filled block, or notes that it has more tokens than before; it may become full
  // by InsertFull. Returns the set that has all these tokens now: `set`, or a sibling.
  SetId InsertTail(SetId set, NodeId parent, Tokens tokens);

  // Forgets a set with its window blocks and snapshots; what nobody holds is freed.
  // REQUIRES: indexed, no children.
  void Remove(SetId set);

  // Forgets what a set holds beyond its first tokens; it goes on as a tail of these.
  // REQUIRES: indexed, no children, remembered by its parent; 0 < num_tokens, at most what it has.
  void Shorten(SetId set, int32_t num_tokens);
  // What hangs on a node that goes is as good on a node that has its tokens. Window blocks stay
  // with their set: theirs may be written up to another position.
  void MoveParts(int32_t from, int32_t to);

  // Window block of a node in window group w, WindowId(0) for none; and whose it is, if anyone's.
  WindowId window(SetId set, int32_t w) const {
    return WindowId(window_of_set_[static_cast<size_t>(set.value) * windows_.size() + w]);
  }
  SetId set_of_window(int32_t w, WindowId window) const {
    return SetId(set_of_window_[w][window.value]);
  }
  // REQUIRES: the set is indexed and has none; the block is held and nobody's.
  void AttachWindow(SetId set, int32_t w, WindowId window);
  void DetachWindow(int32_t w, WindowId window);

  // REQUIRES: the set is indexed and has `offset` tokens or more; see Snapshots.
  void AttachSnapshot(RowId row, SetId set, int32_t offset, SnapshotId previous, bool is_branch);
  void DetachSnapshot(RowId row);
  // A chain keeps its newest two snapshots and its branch points: drops what `newest` replaces.
  void DropSuperseded(RowId newest);
  RowId SnapshotAt(SetId set, int32_t offset) const {
    return snapshots_.At(nodes_[set.value].first_snapshot, offset);
  }
  RowId BestSnapshot(SetId set, int32_t limit, int32_t grain) const {
    return snapshots_.Best(nodes_[set.value].first_snapshot, limit, grain, block_tokens_);
  }
  int32_t first_snapshot(SetId set) const { return nodes_[set.value].first_snapshot; }
  const Snapshots& snapshots() const { return snapshots_; }
  void MarkBranch(RowId row) { snapshots_.MarkBranch(row); }

  bool Has(SetId set) const { return nodes_[set.value].num_tokens > 0; }
  bool IsFull(SetId set) const { return nodes_[set.value].num_tokens == block_tokens_; }
  int32_t num_tokens(SetId set) const { return nodes_[set.value].num_tokens; }
  bool IsRemembered(SetId set) const {
    return std::ranges::count(children(parent(set)), set.value) > 0;
  }
  int32_t num_children(SetId set) const { return nodes_[set.value].num_children; }
  // Sets at and below a node, at most `limit`; and the leaf that a walk down its first children
  // ends at. REQUIRES: there are window or state groups, else children are not linked.
  int32_t SubtreeSize(SetId set, int32_t limit) const;
  SetId DeepestFirst(SetId set) const;
  NodeId parent(SetId set) const { return nodes_[set.value].parent; }
  Tokens tokens(SetId set) const {
    return {TokensOf(set.value), static_cast<size_t>(num_tokens(set))};
  }
  int32_t num_nodes() const { return num_nodes_; }

  void CheckInvariants() const;

 private:
  struct Node {
    Hash128 key;
    NodeId parent;
    int32_t num_tokens = 0;  // 0: not indexed; block_tokens: full
    int32_t num_children = 0;
    std::array<int32_t, kMaxChildren> children{};  // most recent first; 0 ends it
    int32_t first_snapshot = 0;
  };
  static_assert(sizeof(Node) == 64, "a node is one cache line");
  struct Root {
    Node node;
    std::string name;
    int64_t tenant = 0;
    AccountId account;
    int32_t num_users = 0;
  };
  // All children of a node, where those that are remembered are not enough: to drop a subtree.
  struct Links {
    int32_t first_child = 0, next = 0, previous = 0;
  };
  struct Slot {
    uint64_t tag = 0;
    int32_t set = 0;    // 0: empty
    uint32_t home = 0;  // low part of the key: where the probe for it begins
  };

  Node& NodeAt(NodeId id) { return id.is_root() ? roots_[~id.value].node : nodes_[id.value]; }
  const Node& NodeAt(NodeId id) const {
    return id.is_root() ? roots_[~id.value].node : nodes_[id.value];
  }
  int32_t* TokensOf(int32_t set) { return &tokens_[static_cast<size_t>(set) * block_tokens_]; }
  const int32_t* TokensOf(int32_t set) const {
    return &tokens_[static_cast<size_t>(set) * block_tokens_];
  }
  void PrefetchSet(int32_t set) const {
    __builtin_prefetch(&nodes_[set]);
    __builtin_prefetch(TokensOf(set));
  }
  bool Holds(int32_t set, Tokens first) const {
    return std::memcmp(TokensOf(set), first.data(), first.size_bytes()) == 0;
  }
  void TellPool(const BlockPool& pool, SetId set, bool is_stored) const;
  void TellSet(SetId set, bool is_stored) const;
  void TellSnapshot(SetId set, int32_t offset, bool is_stored) const;
  void Attach(SetId set, NodeId parent, const Hash128& key, Tokens tokens);
  void Remember(NodeId parent, int32_t set);
  void Grow(int32_t set, Tokens tokens);
  void DropSuperseded(int32_t by, NodeId parent, Tokens tokens);
  void LinkChild(int32_t parent, int32_t set);
  void UnlinkChild(int32_t parent, int32_t set);
  void CheckParts() const;
  void Unlink(NodeId parent, int32_t set);
  void EraseSlot(const Hash128& key, int32_t set);
  void FreeRootIfUnused(int32_t root);

  BlockPool& pool_;                  // of the sets; not owned, outlives this
  std::vector<BlockPool*> windows_;  // [window group]; not owned, outlive this
  BlockPool& rows_;                  // likewise
  EventBatch* events_ = nullptr;     // likewise
  int32_t block_tokens_;
  uint64_t hash_seed_;
  TableVector<uint32_t> stamps_;  // by set id: counts how often it was indexed
  TableVector<Node> nodes_;       // by set id
  bool has_links_;
  std::vector<Links> links_;                         // by set id
  std::vector<int32_t> window_of_set_;               // [set][window group]
  std::vector<std::vector<int32_t>> set_of_window_;  // [window group][window]
  Snapshots snapshots_;
  TableVector<int32_t> tokens_;  // [set][block_tokens]
  TableVector<Slot> slots_;
  size_t slot_mask_;
  std::vector<Root> roots_;
  std::vector<int32_t> free_roots_;
  std::map<std::string, int32_t> root_of_name_;
  int32_t num_nodes_ = 0;
};

}  // namespace tokenspeed

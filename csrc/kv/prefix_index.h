// Which block sets can be reused, and under which tokens. A set is a node of a tree: its parent is
// the set before it (or the root of a namespace), its key the chain hash over all tokens so far.
// Full nodes are found by key in a flat open-addressing table; partly filled ones (tails) only as
// one of the at most 8 children that a parent remembers. Every hit is verified.
// Owns keys and token ids; marks sets as cached in the pool, which outlives this.
// Thread: scheduler thread only.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/ids.h"
#include "kv/block_pool.h"

namespace tokenspeed {

// A place in the tree: a set, or the root of a namespace.
struct NodeId {
  int32_t value = 0;  // > 0: set; < 0: root
  static NodeId Of(SetId set) { return NodeId{set.value}; }
  bool is_root() const { return value < 0; }
  bool operator==(const NodeId&) const = default;
};

class PrefixIndex {
 public:
  static constexpr int kMaxChildren = 8;
  using Tokens = std::span<const int32_t>;

  PrefixIndex(BlockPool& pool, int32_t block_tokens, uint64_t hash_seed);

  // Returns the root of `salt`'s namespace, kept until ReleaseRoot and while anything hangs on it.
  NodeId AcquireRoot(const std::string& salt);
  void ReleaseRoot(NodeId root);

  const Hash128& key(NodeId node) const { return NodeAt(node).key; }

  // Says whether a full node has this key.
  bool MayHave(const Hash128& key) const {
    for (size_t i = key.lo & slot_mask_; slots_[i].set != 0; i = (i + 1) & slot_mask_) {
      if (slots_[i].tag == key.hi && nodes_[slots_[i].set].key == key) return true;
    }
    return false;
  }

  // Chain hash of a full block after `parent`.
  Hash128 Key(NodeId parent, Tokens block) const { return HashBlock(NodeAt(parent).key, block); }

  // Returns the full child of `parent` with these tokens, SetId(0) for none.
  SetId Find(NodeId parent, const Hash128& key, Tokens block) const;

  // Returns the remembered child that shares most first tokens with `tokens`, and how many.
  std::pair<SetId, int32_t> FindTail(NodeId parent, Tokens tokens) const;

  // Adds a full block. Returns: `set` if it was added; the set that has this content already;
  // SetId(0) if other content has the key (the newcomer stays private).
  // REQUIRES: set is held and not indexed; parent is indexed or a root.
  SetId InsertFull(SetId set, NodeId parent, const Hash128& key, Tokens block);

  // Adds a partly filled block, unless a sibling has all its tokens. Same requirements.
  bool InsertTail(SetId set, NodeId parent, Tokens tokens);

  // Forgets a set; one that nobody holds is freed. REQUIRES: indexed, no children.
  void Remove(SetId set);

  bool Has(SetId set) const { return nodes_[set.value].num_tokens > 0; }
  int32_t num_nodes() const { return num_nodes_; }

  void CheckInvariants() const;

 private:
  struct Node {
    Hash128 key;
    NodeId parent;
    int32_t num_tokens = 0;  // 0: not indexed; block_tokens: full
    int32_t num_children = 0;
    std::array<int32_t, kMaxChildren> children{};  // most recent first; 0 ends it
  };
  struct Root {
    Node node;
    std::string salt;
    int32_t num_users = 0;
  };
  struct Slot {
    uint64_t tag = 0;
    int32_t set = 0;  // 0: empty
  };

  Node& NodeAt(NodeId id) { return id.is_root() ? roots_[~id.value].node : nodes_[id.value]; }
  const Node& NodeAt(NodeId id) const {
    return id.is_root() ? roots_[~id.value].node : nodes_[id.value];
  }
  int32_t* TokensOf(int32_t set) { return &tokens_[static_cast<size_t>(set) * block_tokens_]; }
  const int32_t* TokensOf(int32_t set) const {
    return &tokens_[static_cast<size_t>(set) * block_tokens_];
  }
  bool Holds(int32_t set, Tokens first) const;
  void Attach(SetId set, NodeId parent, const Hash128& key, Tokens tokens);
  void Remember(NodeId parent, int32_t set);
  void DropSuperseded(NodeId parent, Tokens tokens);
  void Unlink(NodeId parent, int32_t set);
  void EraseSlot(const Hash128& key, int32_t set);
  void FreeRootIfUnused(int32_t root);

  BlockPool& pool_;  // not owned; outlives this
  int32_t block_tokens_;
  uint64_t hash_seed_;
  std::vector<Node> nodes_;            // by set id
  std::unique_ptr<int32_t[]> tokens_;  // [set][block_tokens]; pages touched on first use
  std::vector<Slot> slots_;
  size_t slot_mask_;
  std::vector<Root> roots_;
  std::vector<int32_t> free_roots_;
  std::map<std::string, int32_t> root_of_salt_;
  int32_t num_nodes_ = 0;
};

}  // namespace tokenspeed

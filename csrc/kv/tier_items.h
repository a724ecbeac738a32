// The host tier: cache blocks that left the device, or were copied ahead of that, found by content.
// An item is one logical block of one group in host memory, named by the hash of all tokens up to
// its last and of its group; a hit is verified (parent, tokens). Slots are laid out like the arena:
// physical blocks that hold the blocks of one group each.
//
//   Reserve --> arriving --Arrived--> present --(nobody pins it, coldest)--> evicted
//                  \--Remove (the copy failed)-->
//
// Only present items are found by readers; a pinned one is being copied and stays.
// Eviction is LRU over all groups: a group that needs a slot takes its own coldest item, or, if
// another group's is colder, that group's physical block with fewest residents.
// Owns slots, keys and tokens; not the bytes. O(1) per call, O(packing) when a block changes group.
// Thread: scheduler thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/hash.h"
#include "base/ids.h"
#include "kv/events.h"
#include "kv/physical_pool.h"

namespace tokenspeed {

// One item of the host tier; 0 is none. Reused after the item went.
using ItemId = StrongId<struct ItemTag, int32_t>;

// What a block holds: tokens [0, n) of a block behind `parent`, as one group keeps them.
struct Content {
  Hash128 key;     // of parent, tokens and group
  Hash128 parent;  // chain key of the block before; the namespace's root for the first
  std::span<const int32_t> tokens;
  GroupId group;
  const std::string* salt = nullptr;  // of the namespace, for a block that begins a prompt
};

// Chain key of the position after `tokens`, the first n of a block: that of the block if it is
// full.
Hash128 PositionKey(const Hash128& parent, std::span<const int32_t> tokens, int32_t block_tokens);
// Key of what `group` keeps at a position.
Hash128 GroupKey(const Hash128& position, GroupId group);

class TierItems {
 public:
  // `num_physical_blocks` with the sentinel; packing of each group as in the arena.
  TierItems(const std::vector<int32_t>& packing, int32_t num_physical_blocks, int32_t block_tokens);

  // Tells of every full block that can be read from now on, or no more. nullptr: nobody listens.
  // REQUIRES: nothing was reserved yet; `events` outlives this.
  void SetEvents(EventBatch* events) { events_ = events; }
  // Tells that `medium` has the block of an item, or no longer has it.
  void Tell(KvMedium medium, ItemId item, bool is_stored) const;
  // Hash of the block of an item. REQUIRES: it is full.
  Hash128 BlockKey(ItemId item) const { return HashBlock(items_[item.value].parent, tokens(item)); }
  bool is_full(ItemId item) const { return items_[item.value].num_tokens == block_tokens_; }

  // Returns the item with this content, arriving or present; ItemId(0) for none. An item of the
  // same key and other content is none.
  ItemId Find(const Content& content) const;

  // Takes a slot for a block that is about to arrive, evicting what is coldest.
  // Returns: nullopt when all slots are in use, or the key belongs to another content in use.
  // REQUIRES: Find(content) is none.
  std::optional<ItemId> Reserve(const Content& content);

  // The bytes are there. REQUIRES: arriving.
  void Arrived(ItemId item);

  // Forgets an item. REQUIRES: arriving or present, not pinned.
  void Remove(ItemId item);

  // A pinned item keeps its slot. REQUIRES: present.
  void Pin(ItemId item);
  void Unpin(ItemId item);
  // Notes a use of a present item.
  void Touch(ItemId item);

  bool is_present(ItemId item) const { return items_[item.value].is_present; }
  bool is_taken(ItemId item) const { return items_[item.value].is_taken; }
  int32_t pins(ItemId item) const { return items_[item.value].pins; }
  GroupId group(ItemId item) const { return items_[item.value].group; }
  BlockId slot(ItemId item) const { return items_[item.value].slot; }
  const Hash128& key(ItemId item) const { return items_[item.value].key; }
  const Hash128& parent(ItemId item) const { return items_[item.value].parent; }
  std::span<const int32_t> tokens(ItemId item) const {
    return {&tokens_[static_cast<size_t>(item.value) * block_tokens_],
            static_cast<size_t>(items_[item.value].num_tokens)};
  }

  int32_t max_items() const { return static_cast<int32_t>(items_.size()) - 1; }
  int32_t num_items() const { return num_items_; }
  int32_t num_present() const { return num_present_; }
  int64_t num_evictions() const { return num_evictions_; }
  const PhysicalPool& slots() const { return slots_; }
  int32_t block_tokens() const { return block_tokens_; }

  void CheckInvariants() const;

 private:
  struct Item {
    Hash128 key;
    Hash128 parent;
    BlockId slot;
    GroupId group;
    int32_t num_tokens = 0;
    int32_t pins = 0;
    bool is_taken = false;
    bool is_present = false;
    int32_t colder = 0, hotter = 0;  // of the group's resting items; 0 ends it
    int64_t last_use = 0;
  };
  struct List {
    int32_t coldest = 0, hottest = 0;
  };
  struct Place {
    uint64_t tag = 0;
    int32_t item = 0;  // 0: empty
  };

  bool MakeRoom(GroupId group);
  void EvictResidents(PhysicalId physical, GroupId group);
  void Rest(int32_t item);
  void Wake(int32_t item);
  size_t PlaceOf(const Hash128& key) const;
  void ErasePlace(const Hash128& key);

  PhysicalPool slots_;
  int32_t block_tokens_;
  std::vector<Item> items_;
  std::vector<int32_t> free_items_;
  std::unique_ptr<int32_t[]> tokens_;  // [item][block_tokens]; pages touched on first use
  std::vector<List> resting_;          // per group, by last use
  std::vector<Place> places_;
  int64_t num_uses_ = 0;
  int32_t num_items_ = 0, num_present_ = 0;
  int64_t num_evictions_ = 0;
  EventBatch* events_ = nullptr;                    // not owned; outlives this
  std::unordered_map<int32_t, std::string> salts_;  // of items that begin a prompt, if told
};

}  // namespace tokenspeed

// Moves cache blocks between the tiers: device <-> host <-> store. Every move is a row of a plan
// and is acknowledged; until then whoever is moved stays where it is.
//
//   Write  device block -> host item (arriving until acknowledged), then on to the store
//   Load   host item, or store record by way of a host item -> device block, by layer ranges
//
// A write reads its device block in stream order before the step's own writes, so the block may be
// given to another at once. A load fills a block that its request owns. Moves that somebody waits
// for are gathered in a batch: it ends when all its pieces have, and says which of them failed.
// A failed or late write is never found by readers; a failed load is forgotten in its tier.
//
// Owns the host tier, the store's index and the transfers under way. O(1) per move.
// Thread: scheduler thread only.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kv/chain_keys.h"
#include "kv/store_index.h"
#include "kv/tier_items.h"
#include "kv/tier_rows.h"

namespace tokenspeed {

struct TiersConfig {
  std::vector<int32_t> packing;  // of each group, as in the arena
  int32_t num_host_blocks = 2;   // physical blocks of the host tier, with the sentinel
  int32_t block_tokens = 128;
  int32_t layer_ranges = 1;  // into how many transfers a load is cut
  bool has_store = false;
};

// Moves that somebody waits for; 0 is none.
using BatchId = StrongId<struct BatchTag, int64_t>;

class Tiers {
 public:
  enum Direction : int32_t { kStore = 0, kLoad = 1, kPut = 0, kGet = 1 };
  static constexpr int32_t kAllLayers = -1;

  // A batch that ended: whose it was, and which of its pieces did not arrive, in order.
  struct Ended {
    BatchId batch;
    int32_t owner;
    std::vector<int32_t> failed;
  };

  // Moves of one kind under way, and since when the oldest one is.
  struct Flight {
    const char* kind;
    int64_t count = 0;
    int64_t oldest_us = 0;
  };

  explicit Tiers(const TiersConfig& config);

  // Time of the calls that follow.
  void SetNow(int64_t now_us) { now_us_ = std::max(now_us_, now_us); }

  // Tells of every block that can be read from a tier from now on, or no more. What a store had
  // before is told when it is read: its keys alone name no block. nullptr: nobody listens.
  // REQUIRES: nothing was written yet; `events` outlives this.
  void SetEvents(EventBatch* events) {
    events_ = events;
    host_.SetEvents(events);
  }

  // Says whether a load of this content may succeed.
  bool Has(const Content& content) const;

  // Keeps an item in its place until Unguard, if it is there. Returns: ItemId(0) if it is not.
  ItemId Guard(const Content& content);
  void Unguard(ItemId item);

  // Copies a device block to the host, unless it is there or on its way. `batch` waits for it.
  // Returns: false when the host tier has no room for it.
  bool Write(const Content& content, BlockId block, BatchId batch = BatchId());

  // Forgets the host's items of a sequence that hold more than its first `num_tokens`; what is on
  // its way from or to a tier stays, and so does what the store has. Adds the items of each group
  // to `blocks`. O(items).
  void Drop(std::span<const int32_t> tokens, const ChainKeys& keys, size_t num_tokens,
            std::span<int64_t> blocks);

  // Opens a batch. Nothing of it ends before Close.
  BatchId Open(int32_t owner);
  // Fills a device block. Pieces of a batch count up from 0.
  void Load(const Content& content, BlockId block, BatchId batch);
  void Close(BatchId batch);
  // The same, unless there is nothing to wait for: then forgets the batch and returns false.
  bool CloseIfBusy(BatchId batch);

  // Appends what was asked for since the last call.
  void Emit(TierRows& rows);
  bool has_rows() const {
    return !new_transfers_.empty() || !new_loads_.empty() || !new_moves_.empty();
  }

  // What became of transfers: rows of (id, ok), and the batches that ended by it.
  // Throws std::invalid_argument, and changes nothing, when an id is not under way.
  void Acknowledge(std::span<const std::array<int32_t, 2>> acks);
  std::vector<Ended> TakeEnded() { return std::exchange(ended_, {}); }

  // What the store has, at the start and when it drops records.
  void NotifyStore(const Hash128& key, bool is_present);

  bool has_ended() const { return !ended_.empty(); }
  size_t num_ended() const { return ended_.size(); }  // and were not taken
  bool is_idle() const { return transfers_.empty(); }
  size_t num_batches() const { return batches_.size(); }
  const TierItems& host() const { return host_; }
  const StoreIndex& store() const { return store_; }
  std::map<std::string, int64_t> Stats() const;
  // Pieces of a batch that have ended, and all of them; zeros when it has ended.
  std::pair<int32_t, int32_t> Progress(BatchId batch) const;
  std::vector<Flight> InFlight() const;  // by kind
  // Calls visit(group, is_load) for each block on its way between device and host.
  template <class Visit>
  void ForEachMove(const Visit& visit) const;

  void CheckInvariants() const;

 private:
  enum class Kind : uint8_t { kStore, kLoad, kPut, kGet };
  static constexpr std::array<const char*, 4> kKinds = {"write", "load", "put", "get"};
  struct Transfer {
    Kind kind;
    ItemId item;
    BatchId batch;
    int32_t piece = -1;
    bool is_emitted = false;
    int64_t since_us = 0;
  };
  struct Piece {
    int32_t remaining = 1;  // transfers
    bool is_ok = true;
  };
  struct Batch {
    int32_t owner = 0;
    bool is_open = true;
    int32_t num_remaining = 0;  // pieces
    std::vector<Piece> pieces;
  };
  // A piece that waits until its item has arrived.
  struct Waiter {
    BatchId batch;
    int32_t piece;
    BlockId block;
  };

  int32_t Start(Kind kind, ItemId item, BatchId batch = BatchId(), int32_t piece = -1);
  void StartMove(Kind kind, ItemId item);
  void StartLoad(ItemId item, const Waiter& waiter);
  int32_t AddPiece(BatchId batch);
  void EndPart(BatchId batch, int32_t piece, bool is_ok);
  void EndIfDone(BatchId batch);
  void ServeWaiters(ItemId item, bool has_arrived);
  void Apply(const Transfer& transfer, bool is_ok);
  void InsertRecord(ItemId item);
  void EraseRecord(const Hash128& key);

  TiersConfig config_;
  TierItems host_;
  StoreIndex store_;
  std::unordered_map<int32_t, Transfer> transfers_;           // by id; never iterated for order
  std::unordered_map<int32_t, std::vector<Waiter>> waiters_;  // by item, likewise
  std::map<int64_t, Batch> batches_;
  std::vector<Ended> ended_;
  std::vector<std::array<int32_t, 6>> new_transfers_;  // writes
  std::vector<std::array<int32_t, 6>> new_loads_;
  std::vector<int32_t> new_moves_;  // transfer ids
  // Records that were told of: which block each holds. Empty unless somebody listens.
  struct Told {
    Hash128 block;
    GroupId group;
  };
  struct KeyHash {
    size_t operator()(const Hash128& key) const { return key.lo; }
  };
  EventBatch* events_ = nullptr;  // not owned; outlives this
  std::unordered_map<Hash128, Told, KeyHash> told_;
  int32_t last_id_ = 0;
  int64_t now_us_ = 0;
  int64_t num_opened_ = 0;
  int64_t num_writes_ = 0, num_failed_writes_ = 0, num_dropped_writes_ = 0;
  int64_t num_loads_ = 0, num_failed_loads_ = 0;
  int64_t num_puts_ = 0, num_failed_puts_ = 0, num_gets_ = 0, num_failed_gets_ = 0;
};

template <class Visit>
void Tiers::ForEachMove(const Visit& visit) const {
  std::map<std::pair<int64_t, int32_t>, GroupId> loads;  // a piece comes in several parts
  for (const auto& [id, transfer] : transfers_) {
    const GroupId group = host_.group(transfer.item);
    if (transfer.kind == Kind::kStore) visit(group, false);
    if (transfer.kind == Kind::kLoad) loads[{transfer.batch.value, transfer.piece}] = group;
  }
  for (const auto& [piece, group] : loads) visit(group, true);
}

}  // namespace tokenspeed

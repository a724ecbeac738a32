// Decides what of the device cache is copied to the host tier, and when:
//   kNone        only when a request is retracted
//   kOnEviction  when it is evicted; window blocks that nobody is expected to read are not
//   kOnCommit    when it becomes matchable
//   kSelective   when it was reused `min_reuse` times
// A snapshot inside a block takes the block's first part along, so that a chain is usable at it.
// Knows the cache and the tiers, and no request. O(groups) per thing.
// Thread: scheduler thread only.
#pragma once

#include <cstdint>
#include <vector>

#include "kv/flat_kv.h"
#include "kv/kv_watcher.h"
#include "kv/tiers.h"

namespace tokenspeed {

enum class WritePolicy : uint8_t { kNone, kOnEviction, kOnCommit, kSelective };

class TierWriter : public KvWatcher {
 public:
  // Both outlive this.
  TierWriter(const FlatKv& kv, Tiers& tiers, WritePolicy policy, int32_t min_reuse);

  // Full block `set` became matchable, or, if it was already, window blocks of it may have.
  void SetPublished(SetId set, bool is_new);
  void SnapshotPublished(RowId row);
  // A request starts with this set.
  void SetReused(SetId set);

  // Copies all that can be found again of a set or a snapshot; `batch` waits for it.
  void SaveSet(SetId set, BatchId batch = BatchId());
  void SaveSnapshot(RowId row, BatchId batch = BatchId());

  // KvWatcher
  void SetGoes(SetId set) override;
  void WindowGoes(int32_t w, WindowId window) override;
  void SnapshotGoes(RowId row) override;

 private:
  // A block that was to be copied at its commit, and was dropped or forgotten, gets another chance.
  bool follows_evictions() const {
    return policy_ == WritePolicy::kOnEviction || policy_ == WritePolicy::kOnCommit;
  }
  void SaveWindow(SetId set, int32_t w, WindowId window, BatchId batch);
  // Writes one block that holds the first `num_tokens` of a set's tokens.
  void Save(SetId set, int32_t num_tokens, GroupId group, BlockId block, BatchId batch);

  const FlatKv& kv_;  // not owned; outlives this
  Tiers& tiers_;      // not owned; outlives this
  WritePolicy policy_;
  int32_t min_reuse_;
  std::vector<GroupId> full_, window_, state_;  // groups by kind, in order
  std::vector<int32_t> reuses_;                 // by set
};

}  // namespace tokenspeed

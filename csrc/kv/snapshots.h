// Snapshots: cached rows of state, each at a position inside the block of an indexed set. A set
// lists its snapshots; each remembers the one before it in its chain, so that a chain keeps its
// newest two and its branch points and lets the others go.
//
//   chain   |--------s1----|-----|--s2---|------s3      s1 <- s2 <- s3: publishing s3 drops s1,
//                                                       unless it is a branch point
// Owns no rows: knows them by number, marks them as cached in their pool.
// Thread: scheduler thread only.
#pragma once

#include <cstdint>
#include <vector>

#include "base/ids.h"
#include "kv/block_pool.h"

namespace tokenspeed {

// A snapshot as others remember it: the row may have become another one since.
struct SnapshotId {
  RowId row;
  int64_t serial = 0;
  explicit operator bool() const { return row.value != 0; }
};

class Snapshots {
 public:
  // REQUIRES: `rows` outlives this.
  explicit Snapshots(BlockPool& rows) : rows_(rows), records_(rows.max_items() + 1) {}

  // `head`: the set's list. Places `row` at `offset` in (0, block_tokens] of `set`, after
  // `previous` (none, or gone since: unknown). REQUIRES: the row is held, nothing lies there.
  void Attach(RowId row, SetId set, int32_t& head, int32_t offset, SnapshotId previous,
              bool is_branch);
  // Forgets it; a row that nobody holds is freed.
  void Detach(RowId row, int32_t& head);
  // Moves those at or before `limit` from one set's list to another's; the rest and doubles go.
  void MoveAll(int32_t& from, SetId to, int32_t& to_head, int32_t limit);
  void DetachAll(int32_t& head);

  // Returns the one at `offset`, RowId(0) for none.
  RowId At(int32_t head, int32_t offset) const;
  // Returns the furthest at or before `limit` at a multiple of `grain`, or at `block_tokens`.
  RowId Best(int32_t head, int32_t limit, int32_t grain, int32_t block_tokens) const;

  // Returns the snapshot of `row`'s chain that its publication made superfluous: the third newest,
  // unless it is a branch point or held. RowId(0) for none.
  RowId Superseded(RowId row) const;
  // Links `row`'s predecessor past the superseded one, which is then detached.
  void Skip(RowId row);
  void MarkBranch(RowId row) { records_[row.value].is_branch = true; }

  SnapshotId id(RowId row) const { return {row, records_[row.value].serial}; }
  bool Has(SnapshotId id) const {
    return id.serial != 0 && records_[id.row.value].serial == id.serial;
  }
  SetId set(RowId row) const { return SetId(records_[row.value].set); }
  int32_t offset(RowId row) const { return records_[row.value].offset; }
  int32_t next(int32_t row) const { return records_[row].next; }
  int32_t num_next(RowId row) const { return records_[row.value].num_next; }
  int32_t size() const { return size_; }
  int32_t num_cached() const { return rows_.num_cached(); }

 private:
  struct Record {
    int32_t set = 0;  // 0: no snapshot
    int32_t offset = 0;
    int32_t next = 0;      // in the set's list
    int32_t previous = 0;  // in the chain; valid while its serial is the same
    int32_t num_next = 0;  // snapshots that name it as previous
    bool is_branch = false;
    int64_t serial = 0;
    int64_t previous_serial = 0;
  };

  int32_t Previous(const Record& record) const;
  void Unlink(int32_t row, int32_t& head);

  BlockPool& rows_;  // not owned; outlives this
  std::vector<Record> records_;
  int64_t num_attached_ = 0;
  int32_t size_ = 0;
};

}  // namespace tokenspeed

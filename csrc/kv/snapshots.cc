#include "kv/snapshots.h"

#include "base/check.h"

namespace tokenspeed {

void Snapshots::Attach(RowId row, SetId set, int32_t& head, int32_t offset, SnapshotId previous,
                       bool is_branch) {
  Record& record = records_[row.value];
  TS_CHECK(record.set == 0 && rows_.refs(row.value) > 0, "a held, unknown row becomes a snapshot");
  TS_CHECK(At(head, offset).value == 0, "a position has one snapshot");
  record = {.set = set.value,
            .offset = offset,
            .next = head,
            .previous = 0,
            .num_next = 0,
            .is_branch = is_branch,
            .serial = ++num_attached_,
            .previous_serial = 0};
  if (Has(previous)) {
    record.previous = previous.row.value;
    record.previous_serial = previous.serial;
    ++records_[previous.row.value].num_next;
  }
  head = row.value;
  ++size_;
  rows_.SetCached(row.value, true);
}

void Snapshots::Detach(RowId row, int32_t& head) {
  Record& record = records_[row.value];
  Unlink(row.value, head);
  if (const int32_t previous = Previous(record); previous != 0) --records_[previous].num_next;
  record = Record{};
  --size_;
  rows_.SetCached(row.value, false);
}

void Snapshots::MoveAll(int32_t& from, SetId to, int32_t& to_head, int32_t limit) {
  while (from != 0) {
    const int32_t row = from;
    Record& record = records_[row];
    if (record.offset > limit || At(to_head, record.offset).value != 0) {
      Detach(RowId(row), from);
      continue;
    }
    from = record.next;
    record.next = to_head;
    record.set = to.value;
    to_head = row;
  }
}

void Snapshots::DetachAll(int32_t& head) {
  while (head != 0) Detach(RowId(head), head);
}

RowId Snapshots::At(int32_t head, int32_t offset) const {
  int32_t row = head;
  while (row != 0 && records_[row].offset != offset) row = records_[row].next;
  return RowId(row);
}

RowId Snapshots::Best(int32_t head, int32_t limit, int32_t grain, int32_t block_tokens) const {
  int32_t best = 0;
  for (int32_t row = head; row != 0; row = records_[row].next) {
    const int32_t offset = records_[row].offset;
    if (offset > limit || (offset % grain != 0 && offset != block_tokens)) continue;
    if (best == 0 || offset > records_[best].offset) best = row;
  }
  return RowId(best);
}

RowId Snapshots::Superseded(RowId row) const {
  const int32_t second = Previous(records_[row.value]);
  const int32_t third = second == 0 ? 0 : Previous(records_[second]);
  if (third == 0 || records_[third].is_branch || records_[third].num_next > 1) return RowId(0);
  return rows_.refs(third) > 0 ? RowId(0) : RowId(third);
}

void Snapshots::Skip(RowId row) {
  Record& second = records_[Previous(records_[row.value])];
  const int32_t third = Previous(second);
  const int32_t fourth = Previous(records_[third]);
  --records_[third].num_next;
  second.previous = fourth;
  second.previous_serial = fourth == 0 ? 0 : records_[fourth].serial;
  if (fourth != 0) ++records_[fourth].num_next;
}

int32_t Snapshots::Previous(const Record& record) const {
  const int32_t previous = record.previous;
  const bool is_there = previous != 0 && records_[previous].serial == record.previous_serial;
  return is_there ? previous : 0;
}

void Snapshots::Unlink(int32_t row, int32_t& head) {
  int32_t* link = &head;
  while (*link != row) link = &records_[*link].next;
  *link = records_[row].next;
}

}  // namespace tokenspeed

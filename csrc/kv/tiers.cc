#include "kv/tiers.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <utility>

#include "base/check.h"

namespace tokenspeed {

Tiers::Tiers(const TiersConfig& config)
    : config_(config), host_(config.packing, config.num_host_blocks, config.block_tokens) {}

bool Tiers::Has(const Content& content) const {
  return host_.Find(content).value != 0 || (config_.has_store && store_.Contains(content.key));
}

ItemId Tiers::Guard(const Content& content) {
  const ItemId item = host_.Find(content);
  if (item.value == 0 || !host_.is_present(item)) return ItemId();
  host_.Pin(item);
  return item;
}

void Tiers::Unguard(ItemId item) {
  if (item.value != 0) host_.Unpin(item);
}

bool Tiers::Write(const Content& content, BlockId block, BatchId batch) {
  if (const ItemId known = host_.Find(content); known.value != 0) {
    if (host_.is_present(known)) host_.Touch(known);
    return true;
  }
  const std::optional<ItemId> item = host_.Reserve(content);
  if (!item) {
    ++num_dropped_writes_;
    return false;
  }
  ++num_writes_;
  const int32_t piece = batch.value == 0 ? -1 : AddPiece(batch);
  const int32_t id = Start(Kind::kStore, *item, batch, piece);
  new_transfers_.push_back({id, Direction::kStore, content.group.value, block.value,
                            host_.slot(*item).value, kAllLayers});
  return true;
}

void Tiers::Drop(std::span<const int32_t> tokens, const ChainKeys& keys, size_t num_tokens,
                 std::span<int64_t> blocks) {
  const auto block_tokens = static_cast<size_t>(config_.block_tokens);
  std::unordered_map<Hash128, size_t, KeyHash> begin_after;  // position, by the key before it
  for (size_t i = num_tokens / block_tokens; i <= keys.size(); ++i) {
    begin_after.emplace(keys.parent(i), i * block_tokens);
  }
  for (int32_t id = 1; id <= host_.max_items(); ++id) {
    const ItemId item(id);
    if (!host_.is_present(item) || host_.pins(item) > 0) continue;
    const auto begin = begin_after.find(host_.parent(item));
    if (begin == begin_after.end()) continue;
    const std::span<const int32_t> held = host_.tokens(item);
    const size_t end = begin->second + held.size();
    if (end <= num_tokens || end > tokens.size()) continue;
    if (!std::ranges::equal(held, tokens.subspan(begin->second, held.size()))) continue;
    ++blocks[host_.group(item).value];
    host_.Remove(item);
  }
}

BatchId Tiers::Open(int32_t owner) {
  batches_[++num_opened_].owner = owner;
  return BatchId(num_opened_);
}

void Tiers::Load(const Content& content, BlockId block, BatchId batch) {
  ++num_loads_;
  const Waiter waiter{batch, AddPiece(batch), block};
  ItemId item = host_.Find(content);
  if (item.value != 0 && host_.is_present(item)) return StartLoad(item, waiter);
  if (item.value == 0 && config_.has_store && store_.Contains(content.key)) {
    if (const std::optional<ItemId> fresh = host_.Reserve(content)) {
      item = *fresh;
      ++num_gets_;
      StartMove(Kind::kGet, item);
    }
  }
  if (item.value == 0) {
    ++num_failed_loads_;
    return EndPart(batch, waiter.piece, false);
  }
  waiters_[item.value].push_back(waiter);
}

void Tiers::Close(BatchId batch) {
  batches_.at(batch.value).is_open = false;
  EndIfDone(batch);
}

bool Tiers::CloseIfBusy(BatchId batch) {
  if (batches_.at(batch.value).num_remaining == 0) {
    batches_.erase(batch.value);
    return false;
  }
  Close(batch);
  return true;
}

void Tiers::Emit(TierRows& rows) {
  rows.block_tokens = config_.block_tokens;
  const auto append = [&](std::vector<std::array<int32_t, 6>>& added) {
    for (const auto& row : added) transfers_.at(row[0]).is_emitted = true;
    rows.transfers.insert(rows.transfers.end(), added.begin(), added.end());
    added.clear();
  };
  append(new_transfers_);
  // All blocks' first layers before anybody's next ones.
  std::ranges::stable_sort(new_loads_, {}, [](const auto& row) { return row[5]; });
  append(new_loads_);
  for (const int32_t id : std::exchange(new_moves_, {})) {
    Transfer& transfer = transfers_.at(id);
    transfer.is_emitted = true;
    const ItemId item = transfer.item;
    const int32_t direction = transfer.kind == Kind::kPut ? Direction::kPut : Direction::kGet;
    rows.store_moves.push_back({id, direction, host_.group(item).value, host_.slot(item).value});
    std::memcpy(rows.store_keys.emplace_back().data(), &host_.key(item), sizeof(Hash128));
    const std::span<const int32_t> tokens = host_.tokens(item);
    rows.store_tokens.insert(rows.store_tokens.end(), tokens.begin(), tokens.end());
    rows.store_tokens.resize(rows.store_moves.size() * config_.block_tokens, -1);
  }
}

void Tiers::Acknowledge(std::span<const std::array<int32_t, 2>> acks) {
  std::vector<int32_t> ids;
  for (const auto& [id, ok] : acks) {
    const auto found = transfers_.find(id);
    if (found == transfers_.end() || !found->second.is_emitted) ids.push_back(id);
  }
  std::vector<int32_t> all;
  for (const auto& ack : acks) all.push_back(ack[0]);
  std::ranges::sort(all);
  if (const auto twice = std::ranges::adjacent_find(all); twice != all.end()) ids.push_back(*twice);
  if (!ids.empty()) {
    throw std::invalid_argument("notify: transfer " + std::to_string(ids.front()) +
                                " is not under way; allowed: each transfer of a plan once; report "
                                "what ended since the last call");
  }
  for (const auto& [id, ok] : acks) {
    const Transfer transfer = transfers_.at(id);
    transfers_.erase(id);
    Apply(transfer, ok != 0);
  }
}

void Tiers::NotifyStore(const Hash128& key, bool is_present) {
  if (is_present) {
    store_.Insert(key);
  } else {
    EraseRecord(key);
  }
}

int32_t Tiers::Start(Kind kind, ItemId item, BatchId batch, int32_t piece) {
  do {
    last_id_ = last_id_ == std::numeric_limits<int32_t>::max() ? 1 : last_id_ + 1;
  } while (transfers_.contains(last_id_));
  transfers_.emplace(last_id_, Transfer{kind, item, batch, piece, false, now_us_});
  return last_id_;
}

void Tiers::StartMove(Kind kind, ItemId item) { new_moves_.push_back(Start(kind, item)); }

void Tiers::StartLoad(ItemId item, const Waiter& waiter) {
  host_.Pin(item);
  batches_.at(waiter.batch.value).pieces[waiter.piece].remaining = config_.layer_ranges;
  for (int32_t range = 0; range < config_.layer_ranges; ++range) {
    const int32_t id = Start(Kind::kLoad, item, waiter.batch, waiter.piece);
    new_loads_.push_back({id, Direction::kLoad, host_.group(item).value, waiter.block.value,
                          host_.slot(item).value, range});
  }
}

int32_t Tiers::AddPiece(BatchId batch) {
  Batch& record = batches_.at(batch.value);
  record.pieces.emplace_back();
  ++record.num_remaining;
  return static_cast<int32_t>(record.pieces.size()) - 1;
}

void Tiers::EndPart(BatchId batch, int32_t piece, bool is_ok) {
  if (batch.value == 0) return;
  Batch& record = batches_.at(batch.value);
  record.pieces[piece].is_ok &= is_ok;
  if (--record.pieces[piece].remaining > 0) return;
  --record.num_remaining;
  EndIfDone(batch);
}

void Tiers::EndIfDone(BatchId batch) {
  const Batch& record = batches_.at(batch.value);
  if (record.is_open || record.num_remaining > 0) return;
  Ended ended{batch, record.owner, {}};
  for (size_t i = 0; i < record.pieces.size(); ++i) {
    if (!record.pieces[i].is_ok) ended.failed.push_back(static_cast<int32_t>(i));
  }
  ended_.push_back(std::move(ended));
  batches_.erase(batch.value);
}

void Tiers::ServeWaiters(ItemId item, bool has_arrived) {
  const auto found = waiters_.find(item.value);
  if (found == waiters_.end()) return;
  const std::vector<Waiter> waiters = std::move(found->second);
  waiters_.erase(found);
  for (const Waiter& waiter : waiters) {
    if (has_arrived) {
      StartLoad(item, waiter);
    } else {
      ++num_failed_loads_;
      EndPart(waiter.batch, waiter.piece, false);
    }
  }
}

void Tiers::Apply(const Transfer& transfer, bool is_ok) {
  const ItemId item = transfer.item;
  switch (transfer.kind) {
    case Kind::kStore:
    case Kind::kGet: {
      const bool is_get = transfer.kind == Kind::kGet;
      if (!is_ok) ++(is_get ? num_failed_gets_ : num_failed_writes_);
      if (is_ok) host_.Arrived(item);
      if (is_ok && is_get && store_.Contains(host_.key(item))) InsertRecord(item);
      if (!is_ok && is_get) EraseRecord(host_.key(item));
      ServeWaiters(item, is_ok);
      if (!is_ok) host_.Remove(item);
      if (is_ok && config_.has_store && !store_.Contains(host_.key(item))) {
        ++num_puts_;
        host_.Pin(item);
        StartMove(Kind::kPut, item);
      }
      EndPart(transfer.batch, transfer.piece, is_ok);
      return;
    }
    case Kind::kPut:
      if (is_ok) InsertRecord(item);
      if (!is_ok) ++num_failed_puts_;
      host_.Unpin(item);
      return;
    case Kind::kLoad: {
      // The last part of a piece lets go of the item; one that did not arrive is not trusted again.
      Piece& piece = batches_.at(transfer.batch.value).pieces[transfer.piece];
      piece.is_ok &= is_ok;
      if (piece.remaining == 1) {
        const bool is_good = piece.is_ok;
        if (!is_good) ++num_failed_loads_;
        host_.Unpin(item);
        if (!is_good && host_.pins(item) == 0) host_.Remove(item);
      }
      EndPart(transfer.batch, transfer.piece, is_ok);
      return;
    }
  }
}

// The store has the record of a present item.
void Tiers::InsertRecord(ItemId item) {
  const Hash128& key = host_.key(item);
  store_.Insert(key);
  if (events_ == nullptr || !host_.is_full(item)) return;
  const bool is_new = told_.emplace(key, Told{host_.BlockKey(item), host_.group(item)}).second;
  if (is_new) host_.Tell(KvMedium::kStore, item, true);
}

void Tiers::EraseRecord(const Hash128& key) {
  store_.Erase(key);
  const auto told = told_.find(key);
  if (told == told_.end()) return;
  events_->Removed(KvMedium::kStore, told->second.group, told->second.block);
  told_.erase(told);
}

std::map<std::string, int64_t> Tiers::Stats() const {
  return {
      {"host_blocks_total", host_.slots().num_usable()},
      {"host_blocks_free", host_.slots().num_free()},
      {"host_items", host_.num_present()},
      {"host_evictions", host_.num_evictions()},
      {"host_writes", num_writes_},
      {"host_writes_failed", num_failed_writes_},
      {"host_writes_dropped", num_dropped_writes_},
      {"tier_loads", num_loads_},
      {"tier_loads_failed", num_failed_loads_},
      {"store_keys", static_cast<int64_t>(store_.size())},
      {"store_puts", num_puts_},
      {"store_puts_failed", num_failed_puts_},
      {"store_gets", num_gets_},
      {"store_gets_failed", num_failed_gets_},
      {"transfers_in_flight", static_cast<int64_t>(transfers_.size())},
  };
}

std::pair<int32_t, int32_t> Tiers::Progress(BatchId batch) const {
  const auto found = batches_.find(batch.value);
  if (found == batches_.end()) return {0, 0};
  const Batch& record = found->second;
  const auto num_pieces = static_cast<int32_t>(record.pieces.size());
  return {num_pieces - record.num_remaining, num_pieces};
}

std::vector<Tiers::Flight> Tiers::InFlight() const {
  std::vector<Flight> flights;
  for (const char* kind : kKinds) flights.push_back({kind});
  for (const auto& [id, transfer] : transfers_) {
    Flight& flight = flights[static_cast<size_t>(transfer.kind)];
    flight.oldest_us =
        flight.count == 0 ? transfer.since_us : std::min(flight.oldest_us, transfer.since_us);
    ++flight.count;
  }
  return flights;
}

void Tiers::CheckInvariants() const {
  host_.CheckInvariants();
  store_.CheckInvariants();
  std::unordered_map<int32_t, int32_t> arriving;
  std::map<std::pair<int64_t, int32_t>, int32_t> parts;
  std::map<std::pair<int32_t, std::pair<int64_t, int32_t>>, int32_t> readers;
  std::unordered_map<int32_t, int32_t> pins;
  for (const auto& [id, transfer] : transfers_) {
    const int32_t item = transfer.item.value;
    TS_CHECK(host_.is_taken(transfer.item), "what is moved is not forgotten");
    if (transfer.batch.value != 0) ++parts[{transfer.batch.value, transfer.piece}];
    if (transfer.kind == Kind::kStore || transfer.kind == Kind::kGet) {
      TS_CHECK(!host_.is_present(transfer.item), "what arrives is not found");
      TS_CHECK(++arriving[item] == 1, "an item arrives once");
    } else if (transfer.kind == Kind::kPut) {
      ++pins[item];
    } else if (readers[{item, {transfer.batch.value, transfer.piece}}]++ == 0) {
      ++pins[item];
    }
  }
  for (const auto& [item, num_pins] : pins) {
    TS_CHECK(host_.pins(ItemId(item)) == num_pins, "pins are those of the moves");
  }
  for (const auto& [item, waiters] : waiters_) {
    TS_CHECK(arriving.contains(item), "who waits, waits for something");
    for (const Waiter& waiter : waiters) ++parts[{waiter.batch.value, waiter.piece}];
  }
  TS_CHECK(static_cast<int32_t>(arriving.size()) == host_.num_items() - host_.num_present(),
           "an item that is not there is on its way");
  for (const auto& [id, batch] : batches_) {
    int32_t num_remaining = 0;
    for (size_t i = 0; i < batch.pieces.size(); ++i) {
      const auto found = parts.find({id, static_cast<int32_t>(i)});
      const int32_t num_parts = found == parts.end() ? 0 : found->second;
      num_remaining += batch.pieces[i].remaining > 0;
      TS_CHECK(num_parts == batch.pieces[i].remaining, "a piece waits for its transfers");
    }
    TS_CHECK(num_remaining == batch.num_remaining, "pieces under way are counted");
    TS_CHECK(batch.is_open || num_remaining > 0, "a batch with nothing to wait for has ended");
  }
}

}  // namespace tokenspeed

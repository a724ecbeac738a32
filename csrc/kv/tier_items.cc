#include "kv/tier_items.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace tokenspeed {
namespace {

int64_t MaxItems(const std::vector<int32_t>& packing, int32_t num_physical_blocks) {
  const int64_t densest = *std::max_element(packing.begin(), packing.end());
  return densest * (num_physical_blocks - 1);
}

}  // namespace

Hash128 PositionKey(const Hash128& parent, std::span<const int32_t> tokens, int32_t block_tokens) {
  if (static_cast<int32_t>(tokens.size()) == block_tokens) return HashBlock(parent, tokens);
  // Padding that no token id equals tells 17 tokens from 18.
  std::vector<int32_t> padded((tokens.size() / 16 + 1) * 16, -1);
  std::copy(tokens.begin(), tokens.end(), padded.begin());
  return HashBlock(parent, padded);
}

Hash128 GroupKey(const Hash128& position, GroupId group) {
  using namespace hash_internal;
  const auto salt = static_cast<uint64_t>(group.value) + 1;
  return {Mix(position.lo ^ kSalt[2], salt ^ kSalt[3]),
          Mix(position.hi ^ kSalt[4], salt ^ kSalt[5])};
}

TierItems::TierItems(const std::vector<int32_t>& packing, int32_t num_physical_blocks,
                     int32_t block_tokens)
    : slots_(packing, num_physical_blocks),
      block_tokens_(block_tokens),
      items_(MaxItems(packing, num_physical_blocks) + 1),
      tokens_(new int32_t[items_.size() * block_tokens]),
      resting_(packing.size()),
      places_(std::bit_ceil(items_.size() * 2)) {
  free_items_.reserve(items_.size());
  for (auto item = static_cast<int32_t>(items_.size()) - 1; item > 0; --item) {
    free_items_.push_back(item);
  }
}

ItemId TierItems::Find(const Content& content) const {
  const int32_t found = places_[PlaceOf(content.key)].item;
  if (found == 0) return ItemId();
  const Item& item = items_[found];
  const bool is_same = item.parent == content.parent && item.group == content.group &&
                       std::ranges::equal(tokens(ItemId(found)), content.tokens);
  return is_same ? ItemId(found) : ItemId();
}

std::optional<ItemId> TierItems::Reserve(const Content& content) {
  if (const int32_t other = places_[PlaceOf(content.key)].item; other != 0) {
    if (!items_[other].is_present || items_[other].pins > 0) return std::nullopt;
    Remove(ItemId(other));
  }
  if (!MakeRoom(content.group)) return std::nullopt;
  TS_CHECK(!free_items_.empty(), "there is an item for every slot");
  const int32_t id = free_items_.back();
  free_items_.pop_back();
  Item& item = items_[id];
  item = Item{};
  item.key = content.key;
  item.parent = content.parent;
  item.slot = slots_.Acquire(content.group, id);
  item.group = content.group;
  item.num_tokens = static_cast<int32_t>(content.tokens.size());
  item.is_taken = true;
  std::ranges::copy(content.tokens, &tokens_[static_cast<size_t>(id) * block_tokens_]);
  places_[PlaceOf(content.key)] = {content.key.hi, id};
  if (events_ != nullptr && content.salt != nullptr) salts_[id] = *content.salt;
  ++num_items_;
  return ItemId(id);
}

void TierItems::Arrived(ItemId id) {
  Item& item = items_[id.value];
  TS_CHECK(item.is_taken && !item.is_present, "an item arrives once");
  item.is_present = true;
  ++num_present_;
  slots_.Unpin(item.group, item.slot);
  Rest(id.value);
  Tell(KvMedium::kHost, id, true);
}

void TierItems::Tell(KvMedium medium, ItemId id, bool is_stored) const {
  if (events_ == nullptr || !is_full(id)) return;
  const Item& item = items_[id.value];
  if (!is_stored) return events_->Removed(medium, item.group, BlockKey(id));
  const auto salt = salts_.find(id.value);
  events_->Stored(medium, item.group, BlockKey(id), item.parent,
                  salt == salts_.end() ? nullptr : &salt->second, tokens(id));
}

void TierItems::Remove(ItemId id) {
  Item& item = items_[id.value];
  TS_CHECK(item.is_taken && item.pins == 0, "an item in use stays");
  if (item.is_present) {
    Tell(KvMedium::kHost, id, false);
    Wake(id.value);
    --num_present_;
  } else {
    slots_.Unpin(item.group, item.slot);
  }
  slots_.Release(item.group, item.slot);
  ErasePlace(item.key);
  item.is_taken = item.is_present = false;
  free_items_.push_back(id.value);
  --num_items_;
  if (events_ != nullptr) salts_.erase(id.value);
}

void TierItems::Pin(ItemId id) {
  Item& item = items_[id.value];
  TS_CHECK(item.is_present, "only what is there can be read");
  if (item.pins++ > 0) return;
  Wake(id.value);
  slots_.Pin(item.group, item.slot);
}

void TierItems::Unpin(ItemId id) {
  Item& item = items_[id.value];
  TS_CHECK(item.pins > 0, "pins are counted");
  if (--item.pins > 0) return;
  slots_.Unpin(item.group, item.slot);
  Rest(id.value);
}

void TierItems::Touch(ItemId id) {
  if (items_[id.value].pins > 0) return;
  Wake(id.value);
  Rest(id.value);
}

bool TierItems::MakeRoom(GroupId group) {
  while (!slots_.CanAcquire(group)) {
    GroupId coldest = group;
    int64_t last_use = 0;
    for (int32_t g = 0; g < slots_.num_groups(); ++g) {
      const int32_t item = resting_[g].coldest;
      if (item == 0 || (last_use != 0 && items_[item].last_use >= last_use)) continue;
      // Another group's item helps only if a whole physical block of it can go.
      if (g != group.value && slots_.LeastResident(GroupId(g)).value == 0) continue;
      last_use = items_[item].last_use;
      coldest = GroupId(g);
    }
    if (last_use == 0) return false;
    if (coldest == group) {
      Remove(ItemId(resting_[group.value].coldest));
      ++num_evictions_;
    } else {
      EvictResidents(slots_.LeastResident(coldest), coldest);
    }
  }
  return true;
}

void TierItems::EvictResidents(PhysicalId physical, GroupId group) {
  const int32_t packing = slots_.packing(group);
  for (int32_t i = 0; i < packing; ++i) {
    if ((slots_.used_mask(physical) >> i & 1) == 0) continue;
    Remove(ItemId(slots_.owner(group, BlockId(physical.value * packing + i))));
    ++num_evictions_;
  }
}

void TierItems::Rest(int32_t id) {
  List& list = resting_[items_[id].group.value];
  items_[id].last_use = ++num_uses_;
  items_[id].colder = list.hottest;
  items_[id].hotter = 0;
  (list.hottest != 0 ? items_[list.hottest].hotter : list.coldest) = id;
  list.hottest = id;
}

void TierItems::Wake(int32_t id) {
  List& list = resting_[items_[id].group.value];
  const auto [colder, hotter] = std::pair(items_[id].colder, items_[id].hotter);
  (colder != 0 ? items_[colder].hotter : list.coldest) = hotter;
  (hotter != 0 ? items_[hotter].colder : list.hottest) = colder;
}

size_t TierItems::PlaceOf(const Hash128& key) const {
  const size_t mask = places_.size() - 1;
  size_t i = key.lo & mask;
  while (places_[i].item != 0 && (places_[i].tag != key.hi || items_[places_[i].item].key != key)) {
    i = (i + 1) & mask;
  }
  return i;
}

void TierItems::ErasePlace(const Hash128& key) {
  const size_t mask = places_.size() - 1;
  size_t hole = PlaceOf(key);
  for (size_t i = (hole + 1) & mask; places_[i].item != 0; i = (i + 1) & mask) {
    const size_t first = items_[places_[i].item].key.lo & mask;
    if (((i - first) & mask) < ((i - hole) & mask)) continue;
    places_[hole] = places_[i];
    hole = i;
  }
  places_[hole] = Place{};
}

void TierItems::CheckInvariants() const {
  slots_.CheckInvariants();
  int32_t num_items = 0, num_present = 0, num_resting = 0;
  for (int32_t id = 1; id < static_cast<int32_t>(items_.size()); ++id) {
    const Item& item = items_[id];
    if (!item.is_taken) continue;
    ++num_items;
    num_present += item.is_present;
    num_resting += item.is_present && item.pins == 0;
    TS_CHECK(item.is_present || item.pins == 0, "nobody reads what is not there");
    TS_CHECK(slots_.owner(item.group, item.slot) == id, "a slot has one owner");
    TS_CHECK(places_[PlaceOf(item.key)].item == id, "an item is found by its key");
  }
  TS_CHECK(num_items == num_items_ && num_present == num_present_, "items are counted");
  int64_t num_taken = 0;
  int32_t length = 0;
  for (int32_t g = 0; g < slots_.num_groups(); ++g) {
    num_taken += slots_.num_taken(GroupId(g));
    for (int32_t id = resting_[g].coldest, colder = 0; id != 0; id = items_[id].hotter) {
      TS_CHECK(items_[id].colder == colder && items_[id].group == GroupId(g), "lists are linked");
      TS_CHECK(items_[id].is_present && items_[id].pins == 0, "what rests is there and free");
      TS_CHECK(colder == 0 || items_[colder].last_use < items_[id].last_use, "by last use");
      TS_CHECK(++length <= num_resting, "lists have no strangers");
      colder = id;
    }
  }
  TS_CHECK(length == num_resting, "every free item rests");
  TS_CHECK(num_taken == num_items_, "every taken slot has an item");
  TS_CHECK(num_items + static_cast<int32_t>(free_items_.size()) + 1 ==
               static_cast<int32_t>(items_.size()),
           "items add up");
}

}  // namespace tokenspeed

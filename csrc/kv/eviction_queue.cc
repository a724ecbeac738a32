#include "kv/eviction_queue.h"

#include <algorithm>

#include "base/check.h"

namespace tokenspeed {

EvictionQueue::EvictionQueue(int32_t max_items)
    : max_items_(max_items),
      items_(max_items + 1 + 2 * kMaxAccounts),
      marks_(max_items + 1),
      orders_(kMaxAccounts) {
  for (int32_t ring = max_items + 1; ring < static_cast<int32_t>(items_.size()); ++ring) {
    items_[ring].colder = items_[ring].hotter = ring;
  }
}

void EvictionQueue::SetGap(int32_t item, int64_t gap_us) {
  const bool is_resting = marks_[item].place != Place::kAwake;
  if (is_resting) Leave(item);
  items_[item].gap_us = std::min(gap_us, kMaxGapUs);
  // One that rested in the list goes on as one with a key: its place in the list is lost.
  if (is_resting) Enqueue(item);
}

void EvictionQueue::Retain(int32_t item, int64_t until_us) {
  Item& record = items_[item];
  if (until_us <= record.retain_until_us) return;
  const bool is_resting = marks_[item].place != Place::kAwake;
  if (is_resting) Leave(item);
  num_retained_ += record.retain_until_us == 0;
  record.retain_until_us = until_us;
  if (is_resting) Enqueue(item);
}

void EvictionQueue::SetLeaf(int32_t item, bool is_leaf) {
  Mark& mark = marks_[item];
  mark.is_leaf = is_leaf;
  if (!is_leaf) {
    TS_CHECK(mark.place == Place::kAwake, "only what is held gets children");
    return;
  }
  if (mark.place == Place::kInner) Enqueue(item);
}

void EvictionQueue::Forget(int32_t item) {
  Item& record = items_[item];
  TS_CHECK(marks_[item].place == Place::kAwake, "only what does not rest is forgotten");
  num_retained_ -= record.retain_until_us != 0;
  record.gap_us = record.retain_until_us = 0;
  marks_[item] = Mark{};
}

void EvictionQueue::MoveTo(AccountId account, std::span<const int32_t> items) {
  std::vector<int32_t> listed, surplus;
  for (const int32_t item : items) {
    Mark& mark = marks_[item];
    const bool is_resting = mark.place != Place::kAwake;
    if (is_resting) Leave(item);
    mark.account = account;
    if (mark.place == Place::kList) {
      listed.push_back(item);
    } else if (mark.place == Place::kSurplus) {
      surplus.push_back(item);
    } else if (is_resting) {
      Enqueue(item);
    }
  }
  Merge(ListOf(account), listed);
  Merge(SurplusOf(account), surplus);
}

// Lists are in the order in which things came to rest.
void EvictionQueue::Merge(int32_t ring, std::vector<int32_t>& items) {
  if (items.empty()) return;
  for (int32_t item = ColdestIn(ring); item != 0; item = ColdestIn(ring)) {
    Unlink(item);
    items.push_back(item);
  }
  std::ranges::sort(items, {}, [this](int32_t item) { return items_[item].order; });
  for (const int32_t item : items) Link(ring, item);
}

void EvictionQueue::Rest(int32_t item, int64_t now_us, bool is_surplus) {
  Item& record = items_[item];
  record.last_use_us = now_us;
  record.order = ++num_rests_;
  ++num_resting_;
  if (record.retain_until_us != 0 && record.retain_until_us <= now_us) {
    record.retain_until_us = 0;
    --num_retained_;
  }
  if (is_surplus && record.retain_until_us == 0) {
    marks_[item].place = Place::kSurplus;
    Link(SurplusOf(marks_[item].account), item);
  } else if (record.gap_us == 0 && record.retain_until_us == 0) {
    marks_[item].place = Place::kList;
    Link(ListOf(marks_[item].account), item);
  } else {
    Enqueue(item);
  }
}

int32_t EvictionQueue::Coldest(int64_t now_us, AccountId account) {
  Orders& orders = orders_[account.value];
  EndRetentions(orders, now_us);
  if (const int32_t surplus = ColdestIn(SurplusOf(account)); surplus != 0) return surplus;
  const int32_t by_return = Top(orders.by_return), by_age = Top(orders.by_last_use);
  int32_t best = ColdestIn(ListOf(account));
  if (by_age != 0) {
    const int64_t away = ReturnUs(items_[by_return]) - now_us;
    const int64_t late = LateUs(items_[by_age], now_us);
    if (best == 0 || std::max(away, late) >= LateUs(items_[best], now_us)) {
      best = away >= late ? by_return : by_age;
    }
  }
  return best != 0 ? best : Top(orders.by_retention);
}

int64_t EvictionQueue::Score(int32_t victim, int64_t now_us) const {
  TS_CHECK(victim != 0, "something rests");
  const Item& item = items_[victim];
  const Place place = marks_[victim].place;
  if (place == Place::kSurplus) return kSurplusScore;
  if (place == Place::kRetained) return kRetainedScore;
  return std::max(ReturnUs(item) - now_us, LateUs(item, now_us));
}

// What has a key is ordered by it, whether in time or not; a parent waits for its children.
void EvictionQueue::Enqueue(int32_t item) {
  Item& record = items_[item];
  Orders& orders = orders_[marks_[item].account.value];
  if (record.retain_until_us != 0) {
    marks_[item].place = Place::kRetained;
    Push(orders.by_retention, item);
  } else if (marks_[item].is_leaf) {
    marks_[item].place = Place::kHeaps;
    Push(orders.by_return, item);
    Push(orders.by_last_use, item);
  } else {
    marks_[item].place = Place::kInner;
  }
}

void EvictionQueue::Leave(int32_t item) {
  Orders& orders = orders_[marks_[item].account.value];
  switch (marks_[item].place) {
    case Place::kAwake:
      TS_CHECK(false, "only what rests is woken");
    case Place::kList:
    case Place::kSurplus:
      return Unlink(item);
    case Place::kInner:
      return;
    case Place::kHeaps:
      Erase(orders.by_return, item);
      return Erase(orders.by_last_use, item);
    case Place::kRetained:
      return Erase(orders.by_retention, item);
  }
}

void EvictionQueue::EndRetentions(Orders& orders, int64_t now_us) {
  Heap& heap = orders.by_retention;
  for (int32_t top = Top(heap); top != 0; top = Top(heap)) {
    if (items_[top].retain_until_us > now_us) return;
    Erase(heap, top);
    items_[top].retain_until_us = 0;
    --num_retained_;
    Enqueue(top);
  }
}

void EvictionQueue::Link(int32_t ring, int32_t item) {
  const int32_t hottest = items_[ring].colder;
  items_[item].colder = hottest;
  items_[item].hotter = ring;
  items_[hottest].hotter = item;
  items_[ring].colder = item;
}

void EvictionQueue::Unlink(int32_t item) {
  const auto [colder, hotter] = std::pair(items_[item].colder, items_[item].hotter);
  items_[colder].hotter = hotter;
  items_[hotter].colder = colder;
}

// ---- heaps

bool EvictionQueue::Precedes(Order order, int32_t a, int32_t b) const {
  const Item &first = items_[a], &second = items_[b];
  if (order == kByReturn && ReturnUs(first) != ReturnUs(second)) {
    return ReturnUs(first) > ReturnUs(second);
  }
  if (order == kByRetention && first.retain_until_us != second.retain_until_us) {
    return first.retain_until_us < second.retain_until_us;
  }
  return first.order < second.order;
}

void EvictionQueue::Put(Heap& heap, size_t index, int32_t item) {
  heap.items[index] = item;
  items_[item].heap_index[heap.slot] = static_cast<int32_t>(index);
}

// A new item takes the place of a top that was just taken out: mostly its child.
void EvictionQueue::Push(Heap& heap, int32_t item) {
  if (heap.has_hole) {
    heap.has_hole = false;
    Put(heap, 0, item);
    SiftDown(heap, 0);
    return;
  }
  heap.items.push_back(item);
  SiftUp(heap, heap.items.size() - 1);
}

void EvictionQueue::Erase(Heap& heap, int32_t item) {
  const auto index = static_cast<size_t>(std::exchange(items_[item].heap_index[heap.slot], -1));
  if (index == 0 && !heap.has_hole) {
    heap.has_hole = true;
    return;
  }
  const int32_t last = heap.items.back();
  heap.items.pop_back();
  if (last == item) return;
  Put(heap, index, last);
  SiftUp(heap, index);
  SiftDown(heap, static_cast<size_t>(items_[last].heap_index[heap.slot]));
}

void EvictionQueue::FillHole(Heap& heap) {
  if (!heap.has_hole) return;
  heap.has_hole = false;
  const int32_t last = heap.items.back();
  heap.items.pop_back();
  if (heap.items.empty()) return;
  Put(heap, 0, last);
  SiftDown(heap, 0);
}

int32_t EvictionQueue::Top(Heap& heap) {
  FillHole(heap);
  return heap.items.empty() ? 0 : heap.items.front();
}

void EvictionQueue::SiftUp(Heap& heap, size_t index) {
  const int32_t item = heap.items[index];
  for (; index > 0; index = (index - 1) / 2) {
    const int32_t above = heap.items[(index - 1) / 2];
    const bool is_hole = heap.has_hole && index <= 2;
    if (is_hole || !Precedes(heap.order, item, above)) break;
    Put(heap, index, above);
  }
  Put(heap, index, item);
}

void EvictionQueue::SiftDown(Heap& heap, size_t index) {
  const int32_t item = heap.items[index];
  for (size_t child = 2 * index + 1; child < heap.items.size(); child = 2 * index + 1) {
    const bool has_right = child + 1 < heap.items.size();
    if (has_right && Precedes(heap.order, heap.items[child + 1], heap.items[child])) ++child;
    if (!Precedes(heap.order, heap.items[child], item)) break;
    Put(heap, index, heap.items[child]);
    index = child;
  }
  Put(heap, index, item);
}

void EvictionQueue::CheckHeap(const Heap& heap, AccountId account) const {
  for (size_t i = heap.has_hole ? 1 : 0; i < heap.items.size(); ++i) {
    const int32_t item = heap.items[i];
    TS_CHECK(marks_[item].account == account, "a heap holds things of one account");
    TS_CHECK(items_[item].heap_index[heap.slot] == static_cast<int32_t>(i), "heap places are kept");
    const bool has_parent = i > (heap.has_hole ? 2 : 0);
    TS_CHECK(!has_parent || !Precedes(heap.order, item, heap.items[(i - 1) / 2]),
             "a heap is ordered");
  }
}

void EvictionQueue::CheckRing(AccountId account, Place place, int32_t& count) const {
  const int32_t ring = place == Place::kList ? ListOf(account) : SurplusOf(account);
  for (int32_t item = items_[ring].hotter, colder = ring; item != ring;
       colder = item, item = items_[item].hotter) {
    TS_CHECK(item <= max_items_ && marks_[item].place == place, "a list holds what is in it");
    TS_CHECK(marks_[item].account == account, "a list holds things of one account");
    TS_CHECK(items_[item].colder == colder, "an eviction list is linked both ways");
    TS_CHECK(colder == ring || items_[colder].order < items_[item].order, "a list is in order");
    TS_CHECK(++count <= num_resting_, "an eviction list ends");
  }
}

void EvictionQueue::CheckInvariants() const {
  int32_t counts[6] = {}, num_retained = 0;
  for (int32_t item = 1; item <= max_items_; ++item) {
    ++counts[static_cast<int>(marks_[item].place)];
    num_retained += items_[item].retain_until_us != 0;
    TS_CHECK(marks_[item].place != Place::kHeaps || marks_[item].is_leaf, "heaps hold leaves");
    TS_CHECK(marks_[item].place != Place::kInner || !marks_[item].is_leaf, "a leaf has a place");
  }
  TS_CHECK(num_retained == num_retained_, "retained things are counted");
  TS_CHECK(max_items_ - counts[0] == num_resting_, "resting things are counted");
  int32_t num_listed = 0, num_surplus = 0, num_in_heaps = 0, num_by_return = 0, num_kept = 0;
  const auto size_of = [](const Heap& heap) {
    return static_cast<int32_t>(heap.items.size()) - (heap.has_hole ? 1 : 0);
  };
  for (int32_t a = 0; a < kMaxAccounts; ++a) {
    const AccountId account(static_cast<uint8_t>(a));
    CheckRing(account, Place::kList, num_listed);
    CheckRing(account, Place::kSurplus, num_surplus);
    const Orders& orders = orders_[a];
    for (const Heap* heap : {&orders.by_return, &orders.by_last_use, &orders.by_retention}) {
      CheckHeap(*heap, account);
    }
    num_in_heaps += size_of(orders.by_last_use);
    num_by_return += size_of(orders.by_return);
    num_kept += size_of(orders.by_retention);
  }
  const auto is_count = [&counts](Place place, int32_t count) {
    return counts[static_cast<int>(place)] == count;
  };
  TS_CHECK(is_count(Place::kList, num_listed) && is_count(Place::kSurplus, num_surplus),
           "eviction lists are complete");
  TS_CHECK(is_count(Place::kHeaps, num_in_heaps) && is_count(Place::kHeaps, num_by_return) &&
               is_count(Place::kRetained, num_kept),
           "heaps are complete");
}

}  // namespace tokenspeed

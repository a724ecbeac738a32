#include "kv/eviction_queue.h"

#include <algorithm>

#include "base/check.h"

namespace tokenspeed {

EvictionQueue::EvictionQueue(int32_t max_items) : items_(max_items + 1), marks_(max_items + 1) {}

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
  marks_[item].is_leaf = true;
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
    Link(surplus_, item);
  } else if (record.gap_us == 0 && record.retain_until_us == 0) {
    marks_[item].place = Place::kList;
    Link(list_, item);
  } else {
    Enqueue(item);
  }
}

int32_t EvictionQueue::Coldest(int64_t now_us) {
  EndRetentions(now_us);
  if (surplus_.coldest != 0) return surplus_.coldest;
  const int32_t by_return = Top(by_return_), by_age = Top(by_last_use_);
  int32_t best = list_.coldest;
  if (by_age != 0) {
    const int64_t away = ReturnUs(items_[by_return]) - now_us;
    const int64_t late = LateUs(items_[by_age], now_us);
    if (best == 0 || std::max(away, late) >= LateUs(items_[best], now_us)) {
      best = away >= late ? by_return : by_age;
    }
  }
  return best != 0 ? best : Top(by_retention_);
}

int64_t EvictionQueue::ColdestScore(int64_t now_us) {
  const int32_t coldest = Coldest(now_us);
  TS_CHECK(coldest != 0, "something rests");
  const Item& item = items_[coldest];
  const Place place = marks_[coldest].place;
  if (place == Place::kSurplus) return kSurplusScore;
  if (place == Place::kRetained) return kRetainedScore;
  return std::max(ReturnUs(item) - now_us, LateUs(item, now_us));
}

// What has a key is ordered by it, whether in time or not; a parent waits for its children.
void EvictionQueue::Enqueue(int32_t item) {
  Item& record = items_[item];
  if (record.retain_until_us != 0) {
    marks_[item].place = Place::kRetained;
    Push(by_retention_, item);
  } else if (marks_[item].is_leaf) {
    marks_[item].place = Place::kHeaps;
    Push(by_return_, item);
    Push(by_last_use_, item);
  } else {
    marks_[item].place = Place::kInner;
  }
}

void EvictionQueue::Leave(int32_t item) {
  switch (marks_[item].place) {
    case Place::kAwake:
      TS_CHECK(false, "only what rests is woken");
    case Place::kList:
      return Unlink(list_, item);
    case Place::kSurplus:
      return Unlink(surplus_, item);
    case Place::kInner:
      return;
    case Place::kHeaps:
      Erase(by_return_, item);
      return Erase(by_last_use_, item);
    case Place::kRetained:
      return Erase(by_retention_, item);
  }
}

void EvictionQueue::EndRetentions(int64_t now_us) {
  for (int32_t top = Top(by_retention_); top != 0; top = Top(by_retention_)) {
    if (items_[top].retain_until_us > now_us) return;
    Erase(by_retention_, top);
    items_[top].retain_until_us = 0;
    --num_retained_;
    Enqueue(top);
  }
}

void EvictionQueue::Link(List& list, int32_t item) {
  items_[item].colder = list.hottest;
  items_[item].hotter = 0;
  (list.hottest != 0 ? items_[list.hottest].hotter : list.coldest) = item;
  list.hottest = item;
}

void EvictionQueue::Unlink(List& list, int32_t item) {
  const auto [colder, hotter] = std::pair(items_[item].colder, items_[item].hotter);
  (colder != 0 ? items_[colder].hotter : list.coldest) = hotter;
  (hotter != 0 ? items_[hotter].colder : list.hottest) = colder;
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

void EvictionQueue::CheckHeap(const Heap& heap) const {
  for (size_t i = heap.has_hole ? 1 : 0; i < heap.items.size(); ++i) {
    const int32_t item = heap.items[i];
    TS_CHECK(items_[item].heap_index[heap.slot] == static_cast<int32_t>(i), "heap places are kept");
    const bool has_parent = i > (heap.has_hole ? 2 : 0);
    TS_CHECK(!has_parent || !Precedes(heap.order, item, heap.items[(i - 1) / 2]),
             "a heap is ordered");
  }
}

void EvictionQueue::CheckInvariants() const {
  int32_t counts[6] = {}, num_retained = 0;
  for (size_t item = 1; item < items_.size(); ++item) {
    ++counts[static_cast<int>(marks_[item].place)];
    num_retained += items_[item].retain_until_us != 0;
    TS_CHECK(marks_[item].place != Place::kHeaps || marks_[item].is_leaf, "heaps hold leaves");
    TS_CHECK(marks_[item].place != Place::kInner || !marks_[item].is_leaf, "a leaf has a place");
  }
  TS_CHECK(num_retained == num_retained_, "retained things are counted");
  TS_CHECK(static_cast<int32_t>(items_.size()) - 1 - counts[0] == num_resting_,
           "resting things are counted");
  const auto check_list = [&](const List& list, Place place) {
    int32_t length = 0;
    for (int32_t item = list.coldest, colder = 0; item != 0;
         colder = item, item = items_[item].hotter) {
      TS_CHECK(marks_[item].place == place && items_[item].colder == colder,
               "an eviction list is linked both ways");
      TS_CHECK(colder == 0 || items_[colder].order < items_[item].order, "a list is in order");
      TS_CHECK(++length <= num_resting_, "an eviction list ends");
    }
    TS_CHECK(length == counts[static_cast<int>(place)], "an eviction list is complete");
  };
  check_list(list_, Place::kList);
  check_list(surplus_, Place::kSurplus);
  const auto size_of = [](const Heap& heap) {
    return static_cast<int32_t>(heap.items.size()) - (heap.has_hole ? 1 : 0);
  };
  for (const Heap* heap : {&by_return_, &by_last_use_, &by_retention_}) CheckHeap(*heap);
  TS_CHECK(size_of(by_return_) == counts[static_cast<int>(Place::kHeaps)] &&
               size_of(by_last_use_) == counts[static_cast<int>(Place::kHeaps)],
           "keyed things are in both heaps");
  TS_CHECK(size_of(by_retention_) == counts[static_cast<int>(Place::kRetained)],
           "retained things are in their heap");
}

}  // namespace tokenspeed

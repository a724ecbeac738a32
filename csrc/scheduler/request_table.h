// Dense table of live requests with a free list; ids are looked up at submit, abort and stop only.
// References stay valid until the request is erased.
// Thread: scheduler thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "scheduler/request.h"

namespace tokenspeed {

class RequestTable {
 public:
  // Adds an empty request. REQUIRES: no live request has this id.
  RequestIndex Insert(RequestId id) {
    if (free_.empty()) {
      free_.push_back(RequestIndex(static_cast<int32_t>(rows_.size())));
      rows_.push_back(std::make_unique<Request>());
    }
    const RequestIndex index = free_.back();
    index_of_.emplace(id.value, index);
    free_.pop_back();
    rows_[index.value]->id = id;
    return index;
  }

  void Erase(RequestIndex index) {
    index_of_.erase(rows_[index.value]->id.value);
    *rows_[index.value] = Request{};
    free_.push_back(index);
  }

  // Returns the live request of this id, nullptr for none.
  const RequestIndex* Find(RequestId id) const {
    const auto found = index_of_.find(id.value);
    return found == index_of_.end() ? nullptr : &found->second;
  }

  Request& operator[](RequestIndex index) { return *rows_[index.value]; }
  const Request& operator[](RequestIndex index) const { return *rows_[index.value]; }
  // Starts to load what a step reads of a request; and, some calls later, where its next token
  // goes.
  void PrefetchLine(RequestIndex index) const {
    const char* line = reinterpret_cast<const char*>(rows_[index.value].get());
    __builtin_prefetch(line, 1);
    __builtin_prefetch(line + 64, 1);
  }
  void PrefetchEnd(RequestIndex index) const {
    const StepLine& line = *rows_[index.value];
    __builtin_prefetch(line.tokens.data() + line.tokens.size(), 1);
  }
  size_t size() const { return index_of_.size(); }
  size_t num_rows() const { return rows_.size(); }  // live and free

  // Live rows in table order: the order does not depend on hashing.
  std::vector<RequestIndex> Live() const {
    std::vector<bool> is_free(rows_.size(), false);
    for (const RequestIndex index : free_) is_free[index.value] = true;
    std::vector<RequestIndex> live;
    for (size_t row = 0; row < rows_.size(); ++row) {
      if (!is_free[row]) live.emplace_back(static_cast<int32_t>(row));
    }
    return live;
  }

 private:
  std::vector<std::unique_ptr<Request>> rows_;
  std::vector<RequestIndex> free_;
  std::unordered_map<int64_t, RequestIndex> index_of_;
};

}  // namespace tokenspeed

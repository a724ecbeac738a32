// Strong integer types: a GroupId cannot be passed where a BlockId is meant.
// Thread: any.
#pragma once

#include <compare>
#include <cstdint>

namespace tokenspeed {

template <class Tag, class Rep>
struct StrongId {
  Rep value{};

  constexpr StrongId() = default;
  constexpr explicit StrongId(Rep v) : value(v) {}
  constexpr auto operator<=>(const StrongId&) const = default;
};

// Index of a cache group in the configuration.
using GroupId = StrongId<struct GroupTag, int32_t>;
// One physical block of the arena; 0 is the sentinel and never handed out.
using PhysicalId = StrongId<struct PhysicalTag, int32_t>;
// One logical block of a group: physical * packing + index inside it.
using BlockId = StrongId<struct BlockTag, int32_t>;
// One block set: a logical block in every full group, all for the same tokens; 0 is none.
using SetId = StrongId<struct SetTag, int32_t>;
// One logical block of a window group, as a thing that is held; 0 is none.
using WindowId = StrongId<struct WindowTag, int32_t>;
// One row of state: a logical block in every state group; 0 is none.
using RowId = StrongId<struct RowTag, int32_t>;
// Who pays for things of the cache: 0 is everybody without figures of their own.
using AccountId = StrongId<struct AccountTag, uint8_t>;
inline constexpr int32_t kMaxAccounts = 65;
// The caller's name of a request.
using RequestId = StrongId<struct RequestTag, int64_t>;
// Row of the request table; reused after the request ended.
using RequestIndex = StrongId<struct RequestIndexTag, int32_t>;

}  // namespace tokenspeed

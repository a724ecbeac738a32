#include "kv/prefix_view.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "kv/view_wire.h"

namespace tokenspeed {
namespace {

using Kind = ViewGroup::Kind;
constexpr auto kDevice = KvMedium::kDevice, kHost = KvMedium::kHost, kStore = KvMedium::kStore;

PrefixView MakeView(int num_replicas = 2, std::vector<ViewGroup> groups = {{}}) {
  return PrefixView(num_replicas, std::move(groups), size_t{1} << 14);
}

TEST(PrefixViewTest, TheLongestPrefixIsFoundForEachReplica) {
  PrefixView view = MakeView(3);
  const std::vector<uint64_t> prompt = {11, 12, 13};
  for (const uint64_t hash : prompt) view.Stored(0, kDevice, 0, hash);
  view.Stored(1, kDevice, 0, 11);
  view.Stored(1, kDevice, 0, 13);  // behind a hole
  const auto found = view.Match(prompt);
  EXPECT_EQ(found[0].cached, 3);
  EXPECT_EQ(found[1].cached, 1);
  EXPECT_EQ(found[2].cached, 0);
}

TEST(PrefixViewTest, BlocksBehindTheDeviceAreCounted) {
  PrefixView view = MakeView();
  view.Stored(0, kDevice, 0, 11);
  view.Stored(0, kHost, 0, 12);
  view.Stored(0, kStore, 0, 12);
  view.Stored(0, kStore, 0, 13);
  const std::vector<uint64_t> prompt = {11, 12, 13, 14};
  EXPECT_EQ(view.Match(prompt)[0].cached, 3);
  EXPECT_EQ(view.Match(prompt)[0].behind, 2);
  view.Removed(0, kStore, 0, 12);
  EXPECT_EQ(view.Match(prompt)[0].cached, 3);
  view.Removed(0, kHost, 0, 12);
  EXPECT_EQ(view.Match(prompt)[0].cached, 1);
}

TEST(PrefixViewTest, ExpectedBlocksGoOnFromCachedOnes) {
  PrefixView view = MakeView();
  const std::vector<uint64_t> prompt = {11, 12, 13};
  view.Stored(0, kDevice, 0, 11);
  view.Expect(0, prompt, true);
  EXPECT_EQ(view.Match(prompt)[0].cached, 1);
  EXPECT_EQ(view.Match(prompt)[0].expected, 3);
  view.Expect(0, prompt, false);
  EXPECT_EQ(view.Match(prompt)[0].expected, 1);
  EXPECT_EQ(view.num_blocks(), 1U);
}

TEST(PrefixViewTest, AStateGroupIsEnteredWhereASnapshotIs) {
  PrefixView view = MakeView(2, {{}, {.kind = Kind::kState}});
  const std::vector<uint64_t> prompt = {11, 12, 13};
  for (const uint64_t hash : prompt) view.Stored(0, kDevice, 0, hash);
  EXPECT_EQ(view.Match(prompt)[0].cached, 0);
  view.Stored(0, kDevice, 1, 12);
  EXPECT_EQ(view.Match(prompt)[0].cached, 2);
}

TEST(PrefixViewTest, AWindowGroupNeedsItsLastWindowOnly) {
  PrefixView view = MakeView(2, {{}, {.kind = Kind::kWindow, .window_blocks = 2}});
  const std::vector<uint64_t> prompt = {11, 12, 13, 14};
  for (const uint64_t hash : prompt) view.Stored(0, kDevice, 0, hash);
  view.Stored(0, kDevice, 1, 12);
  EXPECT_EQ(view.Match(prompt)[0].cached, 0);
  view.Stored(0, kDevice, 1, 13);
  EXPECT_EQ(view.Match(prompt)[0].cached, 3);
}

TEST(PrefixViewTest, AFullTableNotesNoMoreAndGoesOn) {
  PrefixView view(1, {{}}, PrefixView::kMinSlots);
  for (uint64_t hash = 1; hash <= 1000; ++hash) view.Stored(0, kDevice, 0, hash);
  EXPECT_EQ(view.num_blocks(), 768U);
  EXPECT_EQ(view.num_ignored(), 232U);
  EXPECT_EQ(view.num_bytes(), 16U * 1024);
  view.CheckInvariants();
  view.Removed(0, kDevice, 0, 1000);
  view.Removed(0, kDevice, 0, 1);
  view.Stored(0, kDevice, 0, 1000);
  EXPECT_EQ(view.Match(std::vector<uint64_t>{1000})[0].cached, 1);
}

TEST(PrefixViewTest, WrongBytesAreRefused) {
  PrefixView view = MakeView();
  EXPECT_THROW(ApplyChanges(view, 0, "too short"), std::invalid_argument);
  EXPECT_THROW(ApplyChanges(view, 0, std::string("12345678\x03\x00", 10)), std::invalid_argument);
  EXPECT_THROW(ApplyChanges(view, 0, std::string("12345678\x00\x01", 10)), std::invalid_argument);
  EXPECT_THROW(LoadKnown(view, 0, "12345678"), std::invalid_argument);
  EXPECT_THROW(PrefixView(17, {{}}, PrefixView::kMinSlots), std::invalid_argument);
  EXPECT_THROW(PrefixView(1, {}, PrefixView::kMinSlots), std::invalid_argument);
  EXPECT_THROW(PrefixView(1, {{}}, 1025), std::invalid_argument);
}

// What is known of one replica, the plain way.
using Known = std::map<std::tuple<int, uint64_t>, unsigned>;  // (group, hash) -> bits of media

int PlainMatch(const Known& known, const std::vector<uint64_t>& prompt) {
  int cached = 0;
  for (const uint64_t hash : prompt) {
    if (!known.contains({0, hash})) break;
    ++cached;
  }
  return cached;
}

// Random changes, snapshots and restarts of three replicas, with keys that crowd.
TEST(PrefixViewTest, RandomChangesAreThoseOfAPlainTable) {
  constexpr int kReplicas = 3;
  std::mt19937_64 draw(7);
  PrefixView view = MakeView(kReplicas, {{}, {.kind = Kind::kState}});
  std::vector<Known> known(kReplicas);
  const auto hash = [&] { return (draw() % 400) << (draw() % 2 * 40); };
  for (int i = 0; i < 60'000; ++i) {
    const int replica = static_cast<int>(draw() % kReplicas), group = static_cast<int>(draw() % 2);
    const auto medium = static_cast<KvMedium>(draw() % 3);
    const unsigned bit = 1U << static_cast<unsigned>(medium);
    const uint64_t what = hash();
    Known& plain = known[replica];
    if (draw() % 2 == 0) {
      view.Stored(replica, medium, group, what);
      plain[{group, what}] |= bit;
    } else {
      view.Removed(replica, medium, group, what);
      if (const auto at = plain.find({group, what}); at != plain.end()) {
        if ((at->second &= ~bit) == 0) plain.erase(at);
      }
    }
    if (i % 5000 == 4999) {
      const std::string saved = PackKnown(view, replica);
      EXPECT_EQ(saved.size(), plain.size() * kKnownBytes);
      view.Clear(replica);
      EXPECT_EQ(PackKnown(view, replica), "");
      if (draw() % 2 == 0) {
        LoadKnown(view, replica, saved);
      } else {
        plain.clear();
      }
      view.CheckInvariants();
    }
    if (i % 50 == 0) {
      std::vector<uint64_t> prompt;
      for (int block = 0; block < 5; ++block) prompt.push_back(hash());
      const auto found = view.Match(prompt);
      for (int r = 0; r < kReplicas; ++r) {
        EXPECT_EQ(found[r].expected, PlainMatch(known[r], prompt));
      }
    }
  }
}

}  // namespace
}  // namespace tokenspeed

// Nothing that one tenant has cached is found by another, whatever tier it is in.
#include "kv/namespaces.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "kv/flat_kv.h"
#include "kv/reload.h"
#include "kv/tier_writer.h"
#include "kv/tiers.h"

namespace tokenspeed {
namespace {

constexpr int32_t kBlockTokens = 16;
constexpr int64_t kTenants = 8;
constexpr int32_t kTexts = 64, kBlocks = 2;
constexpr int kLookUps = 1'000'000;

TEST(NamespacesTest, TenantsAndSaltsNeverMeet) {
  std::set<std::string> names;
  std::string mark(1, kTenantMark);
  const std::vector<std::string> salts = {
      "", "a", mark, mark + "a", NamespaceOf(1, ""), NamespaceOf(1, "a"), std::string(9, '\0')};
  const std::vector<int64_t> tenants = {0, 1, 2, 256, -1, int64_t{1} << 62};
  for (const int64_t tenant : tenants) {
    for (const std::string& salt : salts) names.insert(NamespaceOf(tenant, salt));
  }
  EXPECT_EQ(names.size(), tenants.size() * salts.size());
  EXPECT_EQ(NamespaceOf(0, "salt"), "salt");
}

// Eight tenants say the same texts; tenant t has had every eighth of them computed, from text t on.
class LookUpTest : public testing::Test {
 protected:
  LookUpTest()
      : kv_({.block_tokens = kBlockTokens, .groups = {{}}, .num_physical_blocks = 1024}),
        tiers_({.packing = {1},
                .num_host_blocks = 1024,
                .block_tokens = kBlockTokens,
                .has_store = true}),
        writer_(kv_, tiers_, WritePolicy::kOnCommit, 1) {
    std::mt19937 random(7);
    for (int32_t text = 0; text < kTexts; ++text) {
      std::vector<int32_t>& tokens = texts_.emplace_back(kBlocks * kBlockTokens);
      for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 1000);
      tokens[0] = 1000 + text;  // no text begins like another
    }
    kv_.SetWatcher(&writer_);
    for (int64_t tenant = 1; tenant <= kTenants; ++tenant) {
      roots_.push_back(kv_.AcquireRoot("", tenant));
      for (int32_t text = 0; text < kTexts; ++text) {
        keys_.push_back(kv_.Chain(roots_.back()));
        keys_.back().Extend(texts_[text]);
        if (Owner(text) == tenant) Compute(roots_.back(), text);
      }
    }
  }

  static int64_t Owner(int32_t text) { return text % kTenants + 1; }
  const ChainKeys& Keys(int64_t tenant, int32_t text) const {
    return keys_[(tenant - 1) * kTexts + text];
  }

  void Compute(NodeId root, int32_t text) {
    KvTable table;
    ASSERT_TRUE(kv_.Grow(table, kBlocks));
    for (int32_t i = 0; i < kBlocks; ++i) {
      const auto block =
          std::span<const int32_t>(texts_[text]).subspan(i * kBlockTokens, kBlockTokens);
      kv_.Publish(root, table, i, keys_.back()[i], block);
      writer_.SetPublished(table.blocks.set(i), true);
    }
  }

  // Moves what was asked for until nothing is under way.
  void Settle() {
    while (tiers_.has_rows()) {
      TierRows rows;
      tiers_.Emit(rows);
      std::vector<std::array<int32_t, 2>> acks;
      for (const auto& transfer : rows.transfers) acks.push_back({transfer[0], 1});
      for (const auto& move : rows.store_moves) acks.push_back({move[0], 1});
      tiers_.Acknowledge(acks);
    }
  }

  // A million look-ups: each finds all that its tenant has, and nothing that another has.
  template <class Find>
  void LookUp(const Find& find) {
    std::mt19937 random(11);
    int num_hits = 0;
    for (int i = 0; i < kLookUps; ++i) {
      const int64_t tenant = random() % kTenants + 1;
      const auto text = static_cast<int32_t>(random() % kTexts);
      const int32_t found = find(tenant, text);
      const int32_t expected = Owner(text) == tenant ? kBlocks * kBlockTokens : 0;
      ASSERT_EQ(found, expected) << "look-up " << i << ": tenant " << tenant << ", text " << text;
      num_hits += found > 0;
    }
    EXPECT_GT(num_hits, kLookUps / 10);
  }

  int32_t InTiers(int64_t tenant, int32_t text) {
    Reload reload(kv_, tiers_, roots_[tenant - 1], texts_[text], Keys(tenant, text));
    return reload.Find(0);
  }

  FlatKv kv_;
  Tiers tiers_;
  TierWriter writer_;
  std::vector<std::vector<int32_t>> texts_;
  std::vector<NodeId> roots_;
  std::vector<ChainKeys> keys_;  // [tenant][text]
};

TEST_F(LookUpTest, AMillionLookUpsOnTheDeviceFindNothingOfOthers) {
  LookUp([&](int64_t tenant, int32_t text) {
    return kv_.Match(roots_[tenant - 1], texts_[text], Keys(tenant, text)).num_tokens;
  });
}

TEST_F(LookUpTest, AMillionLookUpsInTheHostTierFindNothingOfOthers) {
  Settle();
  KvTable everything;
  ASSERT_TRUE(kv_.Grow(everything, kv_.sets().max_items()));
  ASSERT_EQ(kv_.index().num_nodes(), 0) << "the device has none of it";
  ASSERT_EQ(tiers_.host().num_present(), kTexts * kBlocks);
  LookUp([&](int64_t tenant, int32_t text) { return InTiers(tenant, text); });
}

TEST_F(LookUpTest, AMillionLookUpsInTheStoreFindNothingOfOthers) {
  Settle();
  ASSERT_EQ(tiers_.store().size(), static_cast<size_t>(kTexts * kBlocks));
  KvTable everything;
  ASSERT_TRUE(kv_.Grow(everything, kv_.sets().max_items()));
  Tiers later({.packing = {1},
               .num_host_blocks = 2,
               .block_tokens = kBlockTokens,
               .has_store = true});  // a start that knows the records by key alone
  for (int64_t tenant = 1; tenant <= kTenants; ++tenant) {
    for (int32_t text = 0; text < kTexts; ++text) {
      if (Owner(text) != tenant) continue;
      for (int32_t i = 0; i < kBlocks; ++i) {
        const Hash128 key = GroupKey(Keys(tenant, text)[i], GroupId(0));
        ASSERT_TRUE(tiers_.store().Contains(key));
        later.NotifyStore(key, true);
      }
    }
  }
  LookUp([&](int64_t tenant, int32_t text) {
    Reload reload(kv_, later, roots_[tenant - 1], texts_[text], Keys(tenant, text));
    return reload.Find(0);
  });
}

}  // namespace
}  // namespace tokenspeed

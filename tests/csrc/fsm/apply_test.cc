#include "fsm/apply.h"

#include <gtest/gtest.h>

#include "fsm/describe.h"

namespace tokenspeed::fsm {
namespace {

class ApplyTest : public testing::Test {
 protected:
  Admit MakeAdmit() {
    Admit admit{*slots_.Acquire(), {}};
    admit.blocks.blocks.Append(pool_.Acquire<SetId>());
    admit.blocks.blocks.Append(pool_.Acquire<SetId>());
    return admit;
  }

  PhysicalPool physical_{{1}, 9};
  BlockPool pool_{physical_, {GroupId(0)}, 8};
  SlotPool slots_{4};
};

TEST_F(ApplyTest, AdmitBringsTheHandles) {
  State state;
  EXPECT_EQ(Apply(state, MakeAdmit()), Result::kMoved);
  EXPECT_EQ(std::get<Prefilling>(state).blocks.size(), 2u);
  EXPECT_EQ(std::get<Prefilling>(state).slot.value(), 0);
}

TEST_F(ApplyTest, KeepPassesHandlesOn) {
  State state;
  Apply(state, MakeAdmit());
  EXPECT_EQ(Apply(state, LastChunk{}), Result::kMoved);
  EXPECT_EQ(std::get<Decoding>(state).blocks.size(), 2u);
  EXPECT_EQ(pool_.num_refs(), 2);
}

TEST_F(ApplyTest, ReleaseGivesHandlesBack) {
  State state;
  Apply(state, MakeAdmit());
  EXPECT_EQ(Apply(state, Retract{}), Result::kMoved);
  EXPECT_TRUE(std::holds_alternative<Retracted>(state));
  EXPECT_EQ(pool_.num_refs(), 0);
  EXPECT_EQ(slots_.num_free(), 4);
}

TEST_F(ApplyTest, LoadBringsTheHandlesAndLoadedKeepsThem) {
  State state;
  Admit handles = MakeAdmit();
  EXPECT_EQ(Apply(state, Load{std::move(handles.slot), std::move(handles.blocks)}), Result::kMoved);
  EXPECT_EQ(std::get<Loading>(state).blocks.size(), 2u);
  EXPECT_EQ(Apply(state, LastChunk{}), Result::kRefused) << "no row while blocks arrive";
  EXPECT_EQ(Apply(state, Retract{}), Result::kRefused) << "a transfer writes its blocks";
  EXPECT_EQ(Apply(state, Loaded{}), Result::kMoved);
  EXPECT_EQ(std::get<Prefilling>(state).blocks.size(), 2u);
  EXPECT_EQ(pool_.num_refs(), 2);
}

TEST_F(ApplyTest, ARetractedRequestIsLoadedAgain) {
  State state = Retracted{};
  EXPECT_EQ(Apply(state, Load{}), Result::kMoved);
  EXPECT_TRUE(std::holds_alternative<Loading>(state));
}

TEST_F(ApplyTest, RetractingHoldsTheBlocksUntilSaved) {
  State state;
  Apply(state, MakeAdmit());
  EXPECT_EQ(Apply(state, Retract{.is_in_use = true}), Result::kMoved);
  EXPECT_EQ(std::get<Retracting>(state).blocks.size(), 2u);
  EXPECT_EQ(slots_.num_free(), 3);
  EXPECT_EQ(Apply(state, MakeAdmit()), Result::kRefused);
  EXPECT_EQ(Apply(state, Saved{}), Result::kMoved);
  EXPECT_TRUE(std::holds_alternative<Retracted>(state));
  EXPECT_EQ(pool_.num_refs(), 0);
  EXPECT_EQ(slots_.num_free(), 4);
}

TEST_F(ApplyTest, AnEndWhileTransfersRunDrains) {
  for (const bool is_loading : {true, false}) {
    State state;
    Admit handles = MakeAdmit();
    if (is_loading) {
      Apply(state, Load{std::move(handles.slot), std::move(handles.blocks)});
    } else {
      Apply(state, std::move(handles));
      Apply(state, Retract{.is_in_use = true});
    }
    EXPECT_EQ(Apply(state, Timeout{.is_in_use = true}), Result::kMoved);
    EXPECT_EQ(std::get<Draining>(state).blocks.size(), 2u);
    EXPECT_EQ(Apply(state, Drained{}), Result::kMoved);
    EXPECT_EQ(pool_.num_refs(), 0);
    EXPECT_EQ(slots_.num_free(), 4);
  }
}

TEST_F(ApplyTest, LendKeepsHandlesWhileTheyAreInUse) {
  State state;
  Apply(state, MakeAdmit());
  EXPECT_EQ(Apply(state, Abort{.is_in_use = true}), Result::kMoved);
  EXPECT_EQ(std::get<Draining>(state).blocks.size(), 2u);
  EXPECT_EQ(slots_.num_free(), 3);
  EXPECT_EQ(Apply(state, Drained{}), Result::kMoved);
  EXPECT_TRUE(std::holds_alternative<Finished>(state));
  EXPECT_EQ(pool_.num_refs(), 0);
}

TEST_F(ApplyTest, LendGivesHandlesBackWhenNothingIsInUse) {
  State state;
  Apply(state, MakeAdmit());
  Apply(state, LastChunk{});
  EXPECT_EQ(Apply(state, Finish{}), Result::kMoved);
  EXPECT_TRUE(std::holds_alternative<Finished>(state));
  EXPECT_EQ(pool_.num_refs(), 0);
}

TEST_F(ApplyTest, ARefusedEventLeavesTheRequestUntouched) {
  State state;
  Apply(state, MakeAdmit());
  EXPECT_EQ(Apply(state, Drained{}), Result::kRefused);
  EXPECT_EQ(Apply(state, MakeAdmit()), Result::kRefused);
  EXPECT_EQ(std::get<Prefilling>(state).blocks.size(), 2u);
  EXPECT_EQ(pool_.num_refs(), 2) << "the refused event gave its own handles back";
}

TEST_F(ApplyTest, AnEndedRequestIgnoresFurtherEnds) {
  State state = Finished{};
  EXPECT_EQ(Apply(state, Abort{}), Result::kIgnored);
  EXPECT_EQ(Apply(state, Timeout{}), Result::kIgnored);
  EXPECT_EQ(Apply(state, Retract{}), Result::kRefused);
}

TEST(DescribeTest, NamesEveryCellOnce) {
  const auto cells = DescribeTransitions();
  EXPECT_EQ(cells.size(), std::variant_size_v<State> * std::variant_size_v<Event>);
  EXPECT_EQ(cells[4].state, "Submitted");
  EXPECT_EQ(cells[7].event, "Abort");
  EXPECT_EQ(cells[7].cell, "To<Finished>");
  EXPECT_EQ(cells[17].state, "Loading");
  EXPECT_EQ(cells[17].cell, "To<Draining, Finished> slot:Lend blocks:Lend");
}

}  // namespace
}  // namespace tokenspeed::fsm

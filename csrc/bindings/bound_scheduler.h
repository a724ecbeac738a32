// The Scheduler as Python holds it: with the rings of arrays that its plans and results appear in.
// Thread: interpreter lock held, one thread per scheduler.
#pragma once

#include "bindings/bind.h"
#include "bindings/views.h"
#include "scheduler/scheduler.h"

namespace tokenspeed {

struct BoundScheduler {
  explicit BoundScheduler(const SchedulerConfig& config)
      : scheduler(config), plans(config.depth + 2), results(2) {}

  Scheduler scheduler;
  Ring<StepPlan> plans;  // one per uncommitted plan, one that is read, one that is filled
  Ring<CommitResult> results;
};

// Methods that explain: stats, blocks, sessions, events, the record; and `state`.
void BindInspection(nanobind::class_<BoundScheduler>& scheduler);
void BindState(nanobind::class_<BoundScheduler>& scheduler);

}  // namespace tokenspeed

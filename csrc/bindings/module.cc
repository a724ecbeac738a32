#include "base/version.h"
#include "bindings/bind.h"

NB_MODULE(_core, m) {
  m.doc() = R"(Private extension module (C++): request state machine, FlatKV, scheduler.

Use it through `tokenspeed.scheduler`. Single-threaded: one thread per Scheduler. No clock and no
entropy inside: `now_us` is an argument (microseconds of one clock).)";
  m.attr("__version__") = tokenspeed::kVersion;
  tokenspeed::BindErrors(m);
  tokenspeed::BindEvents(m);
  tokenspeed::BindFsm(m);
  tokenspeed::BindPlan(m);
  tokenspeed::BindConfig(m);
  tokenspeed::BindScheduler(m);
  tokenspeed::BindRanks(m);
  tokenspeed::BindView(m);
}

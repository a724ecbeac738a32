#include "base/version.h"
#include "bindings/bind.h"

NB_MODULE(_core, m) {
  m.doc() = "TokenSpeed's control plane: request state machine, FlatKV, scheduler.";
  m.attr("__version__") = tokenspeed::kVersion;
  tokenspeed::BindErrors(m);
  tokenspeed::BindFsm(m);
  tokenspeed::BindPlan(m);
  tokenspeed::BindScheduler(m);
}

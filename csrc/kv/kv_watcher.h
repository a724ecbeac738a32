// Told by FlatKv of what it is about to evict, while its blocks and tokens are still there.
// Thread: scheduler thread only.
#pragma once

#include "base/ids.h"

namespace tokenspeed {

class KvWatcher {
 public:
  virtual ~KvWatcher() = default;
  // A set goes, and with it its window blocks and snapshots.
  virtual void SetGoes(SetId set) = 0;
  virtual void WindowGoes(int32_t w, WindowId window) = 0;
  virtual void SnapshotGoes(RowId row) = 0;
};

}  // namespace tokenspeed

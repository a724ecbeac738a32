"""One replica on several ranks: rank 0 is the engine, every further rank a worker process.

engine process (rank 0)              worker process (rank 1, 2, ...)
  scheduler, event loop
  LeadingExecutor ---- plans ------> FollowingExecutor        ring, or group between hosts
  Executor        <--- collectives ---> model's part          communicator plugin
  RankWatch       <--- beats, errors -- Beats                 control socket
"""

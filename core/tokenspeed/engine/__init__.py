"""Engine: the event loop (receive, plan, run, commit, publish), its channel and its front ends."""

// Docstrings of the Scheduler class: what its methods promise to Python.
#pragma once

namespace tokenspeed::docs {

inline constexpr const char* kScheduler = R"(Decides what each step computes; owns every request.

Owns the KV cache's blocks and the slots as well, and touches no tensor. One thread; `now_us` is
the only clock. A refused call leaves everything as it was.)";

inline constexpr const char* kSubmit = R"(Queue a request.

Args:
    request_id: chosen by the caller, unique among live requests.
    prompt_ids: (P,) the prompt's tokens; copied.
    output_ids: (O,) tokens generated before (resume); they count as output.
    max_new_tokens: output tokens in all, output_ids included; 0: what fits the context.
    min_new_tokens: stop ids are ignored before this many output tokens.
    stop_token_ids: tokens that end the request as finished ("stop").
    priority: higher goes first; equal ones in order of arrival.
    salt: requests share cached blocks only with those of the same salt.
    match_prefix: False computes the whole prompt (prompt logprobs); its blocks are still
        stored.
    deadline_us: absolute; 0: none. Checked in `plan` and `commit`.
    now_us: time of the call.
Raises:
    RequestError: empty prompt, duplicate id, prompt + 1 beyond max_context_tokens.
    CapacityError: prompt + max_new_tokens can never fit the pool (names the numbers), or
        the queue is full (retry_after_s is then set).)";

inline constexpr const char* kAbort = R"(End a request in any state.

Its blocks are free at once, or drain with the uncommitted step that touches them. Returns
False when the id is not known or has ended.)";

inline constexpr const char* kStop =
    R"(End a request as finished ("stop"): a stop string was found outside.

Returns False when the id is not known or has ended.)";

inline constexpr const char* kPlan = R"(Plan one step.

Returns None when there is nothing to run, or `depth` + 1 plans are uncommitted.)";

inline constexpr const char* kCommit = R"(Make a step's results final; steps are committed in order.

Args:
    step_id: of the plan.
    tokens: (R,) sampled token per row of the plan, -1 for rows that sampled none.
    failed: (R,) rows to end with "error"; None: no row failed.
    now_us: time of the call.
Raises:
    ValueError: not the oldest uncommitted step, or a wrong number of rows.)";

inline constexpr const char* kTakeEnded =
    "Return requests that ended outside a commit (timeouts, aborts) since the last call.";

inline constexpr const char* kHasWork =
    "Say whether any request is waiting or running, or a plan is uncommitted.";

inline constexpr const char* kNextDeadline =
    "Earliest deadline of a live request, 0 for none: how long an idle engine may sleep.";

inline constexpr const char* kStats = R"(Return counts by name.

Requests: waiting, prefilling, decoding, retracted, draining; submitted and finished so far.
Physical blocks: blocks_total, blocks_used (held by requests), blocks_cached (evictable),
blocks_free. So far: prompt_tokens, cached_tokens, output_tokens, retractions, evictions.)";

inline constexpr const char* kState =
    R"(Return everything about every request, for explanation and tests.

"requests": id, state, priority, slot, computed_tokens, blocks per group;
"physical_blocks": id, group, refs.)";

inline constexpr const char* kCheckInvariants =
    "Recount everything from scratch; RuntimeError names the first broken invariant.";

}  // namespace tokenspeed::docs

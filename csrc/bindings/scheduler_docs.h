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
    session: the conversation that this is a turn of; 0: none.
    output_ids: (O,) tokens generated before (resume); they count as output.
    max_new_tokens: output tokens in all, output_ids included; 0: what fits the context.
    min_new_tokens: stop ids are ignored before this many output tokens.
    stop_token_ids: tokens that end the request as finished ("stop").
    priority: higher goes first; see the class for the order within one.
    salt: requests share cached blocks only with those of the same salt and tenant.
    match_prefix: False computes the whole prompt (prompt logprobs); its blocks are still
        stored.
    deadline_us: absolute; 0: none. Checked in `plan` and `commit`.
    root: session that the whole family of its session descends from; 0: none. The roots of a
        tenant share what is its fairly.
    tenant: whom the work is counted for; tenants of a class share the engine fairly, and never
        find each other's blocks.
    reuse_points: (<= 3,) increasing positions in the prompt after which others will go on.
    gap_us: expected time to the session's next turn; 0: unknown. A key of eviction.
    queue_key: smaller goes first within a priority.
    victim_key: larger is retracted first within a priority.
    retain_us: keep the prompt's blocks this long after the end, within the quota.
    max_queue_us: longest wait for a slot, then it ends as "timeout"; 0: the configured limit.
    max_drafts: most draft tokens in one step of this request.
    device_drafts: drafts stay on the device: every decode row has max_drafts of them, unknown
        to `plan`; False: `propose` brings them.
    now_us: time of the call.
Raises:
    RequestError: empty prompt, duplicate id, prompt + 1 beyond max_context_tokens.
    CapacityError: prompt + max_new_tokens can never fit the pool (names the numbers), or
        the queue is full (retry_after_s is then set).)";

inline constexpr const char* kSubmitTurn = R"(Queue the next turn of a session by what is new.

Args:
    request_id: as in `submit`, like all options.
    session: the conversation.
    base_tokens: length of the base: prompt and outputs of the session's last ended turn.
    base_digest: its digest; both from `session_base`.
    new_ids: (N,) the tokens after the base.
Raises:
    RequestError: the base is not (or no more) known, code "session_base_unknown": send the whole
        prompt with `submit`; or as in `submit`.
    CapacityError: as in `submit`.)";

inline constexpr const char* kSessionBase =
    R"(Return (tokens, digest) of what a session's last ended turn left, None for nothing.)";

inline constexpr const char* kRekey =
    R"(Replace a live request's policy keys, usually at the end of its turn.

Returns False when the id is not known or has ended.)";

inline constexpr const char* kRelease =
    R"(Forget a session and drop what its last turn alone left in the cache.

What another session's last turn or a live request begins with stays, and so does what others hang
on. Records of a KV store stay.

Returns None for a session that is not known, else "tokens" (that left the device) and the logical
blocks of each group that are free now: "blocks" of the device, "host_blocks" of the host tier.

Raises:
    RequestError: requests of it live, code "session_busy".)";
inline constexpr const char* kSetTenantLimits =
    R"(Give a tenant other figures from now on; neither of them: none, it shares the rest.

Args:
    tenant: its number, as in `submit`.
    floor_blocks: blocks of block_tokens tokens that others never evict from it, once it has them.
    cap_blocks: blocks that it has at most, held and cached; what is cached above goes at once, and
        its requests give way. None: no cap.
    now_us: time of the call.
Returns:
    Ids of requests that can never fit any more: they have ended as "error" (see `take_ended`).
Raises:
    ValueError: a cap below the floor or 1; floors beyond the pool; more than 64 tenants with
        figures; a model with window or state groups.)";

inline constexpr const char* kNumSets =
    "Return how many blocks of block_tokens tokens all groups together hold.";

inline constexpr const char* kTenants = R"(Return what each tenant with figures has.

A dict each: tenant, floor_blocks, cap_blocks (None: none), held_blocks (by requests),
cached_blocks (nobody holds them), running and waiting requests.)";

inline constexpr const char* kPropose = R"(Give a request the drafts of its next decode row.

Args:
    request_id: submitted with max_drafts and without device_drafts.
    draft_ids: (k,) k <= max_drafts; replaces what was proposed before. Rows may get fewer: no
        draft goes beyond max_new_tokens. None at all: for now the request runs ahead, as one
        without drafts; the next ones count after the rows that are then uncommitted.
Raises:
    ValueError: the request is unknown or takes no such drafts.)";

inline constexpr const char* kDrainEvents =
    "Return what changed in the prefix cache since the last call, None for nothing.";

inline constexpr const char* kTakeRecord =
    R"(Return the calls since the last time as bytes, empty unless `record_events`.

All parts in order, joined, are a record for `replay`.)";

inline constexpr const char* kReplay =
    R"(Repeat a whole record on this fresh scheduler of the same configuration.

Returns the number of plans; ValueError names the first one that differs.)";

inline constexpr const char* kSessionTotals = R"(Return a session's sums of cache truth by name.

Session 0: requests of no session and of forgotten ones. All sessions add up to the counters of
`stats`.)";

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
    tokens: (R,) sampled token per row of the plan, -1 for rows that sampled none; or (R, W) of
        which the first accepted[r] + 1 are valid.
    accepted: (R,) draft tokens that were right, row by row; None: no row had drafts.
    failed: (R,) rows to end with "error"; None: no row failed.
    now_us: time of the call.
Raises:
    ValueError: not the oldest uncommitted step, or a wrong number of rows.)";

inline constexpr const char* kNotify = R"(Report transfers of plans that ended.

Args:
    transfers: (N, 2) (transfer id, ok); each transfer once. What is not ok was never stored, and
        what was to be loaded is computed again.
    now_us: time of the call.
Raises:
    ValueError: a transfer that is not under way; nothing is changed.)";

inline constexpr const char* kNotifyStore = R"(Tell what the KV store has.

Args:
    keys: (N, 16) keys of records.
    present: True at the start, for what was found; False for what the store dropped.)";

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

inline constexpr const char* kQueuedTokens =
    "Return how many prompt tokens of live requests are not in the cache yet.";

inline constexpr const char* kState =
    R"(Return a picture of the inside as of the last call; its cost does not grow with blocks.

"requests": one list per field, an entry per live request in order of arrival: id, state,
    reason (why it does not go on: "" it does, "queue", "slots", "room", "tenant_cap",
    "latency_floor", "next_step", "computing", "loading", "saving", "displaced"), waits_for (id
    of the request that computes its next block, or -1), position (in the queue, or -1), pieces and arrived
    (blocks on their way between tiers), priority, slot (or -1), tenant, session,
    prompt_tokens, output_tokens, cached_tokens (-1 before the first admission),
    computed_tokens, planned_tokens; "blocks": a list per group.
"groups": name, kind, packing; logical blocks: held (by requests), resting (only the index knows
    them), indexed (can be matched, held or not), retained, vacant (room in its physical blocks),
    leaving and loading (under way to and from the host), host; physical_used, physical_cached.
"host": total, used, cached, free physical blocks; items, arriving. None without a host tier.
"store_records": records of the KV store; None without one.
"transfers": kind, count, oldest_us (absolute; 0: none under way).
"step_model": the fitted step time; None without a latency floor.
"parked": requests that wait for a block which another one computes.)";

inline constexpr const char* kBlocks =
    R"(Return every block of every request, for explanation and tests; its cost grows with blocks.

"requests": id, state, priority, slot, computed_tokens, blocks per group;
"physical_blocks": id, group, refs.)";

inline constexpr const char* kCheckInvariants =
    "Recount everything from scratch; RuntimeError names the first broken invariant.";

}  // namespace tokenspeed::docs

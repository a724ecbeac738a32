"""Every diagnostic about plugins, by id: what it means, the exit code, what to do.

An id never changes its meaning and is never used again; docs/plugins/errors.md has a section each,
written from this table by docs/generate_errors.py. Imports nothing: the error classes stand on it.
"""

from __future__ import annotations

from dataclasses import dataclass

PROBLEMS, USAGE, NOT_TRUSTED, FAILED, NO_CANDIDATE = 1, 2, 3, 4, 5
"""Exit codes; 0 is success."""

EXIT_CODES = {
    0: "all is well, or the process goes on (a warning, a counter)",
    PROBLEMS: "a listing or a check found problems",
    USAGE: "a flag, a setting or a config file is wrong",
    NOT_TRUSTED: "a plugin is not trusted: reserved id, operator file, lock file, missing opt-in",
    FAILED: "a plugin is unknown, incompatible or failed",
    NO_CANDIDATE: "no offer can do what was asked",
}


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One kind of finding.

    Args:
        id: stable words with hyphens; shown in brackets at the end of an error.
        exit_code: of a command that ends because of it; 0: nothing ends.
        summary: what has happened, one sentence.
        fix: what to do about it.
    """

    id: str
    exit_code: int
    summary: str
    fix: str


_ALL = (
    # ---- found and trusted
    Diagnostic(
        "plugin-unknown",
        FAILED,
        "No installed distribution has an entry point of this name.",
        "Correct the name (the nearest one is suggested) or install its wheel; "
        "`tokenspeed plugins list` shows what is installed.",
    ),
    Diagnostic(
        "plugin-not-installed",
        FAILED,
        "A plugin of ours was asked for, or is always needed, and its wheel is missing.",
        "Install the wheel that the error names, of this release.",
    ),
    Diagnostic(
        "plugin-duplicate",
        FAILED,
        "Two distributions claim one plugin id, or an old egg-info or dist-info was left behind.",
        "Keep one: uninstall the other, or delete the stale metadata folder. Both paths are named.",
    ),
    Diagnostic(
        "plugin-not-trusted",
        NOT_TRUSTED,
        "A stranger's distribution uses an id that is reserved for TokenSpeed's own wheels.",
        "Uninstall that distribution; an author chooses another id.",
    ),
    Diagnostic(
        "plugin-forbidden",
        NOT_TRUSTED,
        "The operator file of this machine forbids the plugin or the setting; flags cannot widen "
        "it.",
        "Ask whoever runs the machine, or leave the plugin out of --plugins.",
    ),
    Diagnostic(
        "operator-file-invalid",
        NOT_TRUSTED,
        "The operator file exists and cannot be read or understood; nothing is loaded on a guess.",
        "Correct the file as docs/plugins/trust.md describes it.",
    ),
    Diagnostic(
        "plugin-experimental-slot",
        NOT_TRUSTED,
        "A third-party plugin fills an experimental slot, which may change in any release.",
        "Opt in with --allow-experimental ID, or use a version of the plugin without that slot.",
    ),
    Diagnostic(
        "plugin-not-locked",
        NOT_TRUSTED,
        "A lock file is in force and does not list this plugin's distribution.",
        "Write a new lock file with `tokenspeed plugins lock`, after looking at what changed.",
    ),
    Diagnostic(
        "plugin-lock-differs",
        NOT_TRUSTED,
        "An installed distribution is not what the lock file says: version, RECORD or a file.",
        "Reinstall the locked version, or write a new lock file if the change was meant.",
    ),
    Diagnostic(
        "plugin-lock-invalid",
        NOT_TRUSTED,
        "The lock file is missing, damaged or of another format.",
        "Write it with `tokenspeed plugins lock --output FILE`.",
    ),
    # ---- manifest
    Diagnostic(
        "plugin-unlocatable",
        FAILED,
        "The package of the entry point is not on the path, so that its manifest cannot be read.",
        "Reinstall the wheel; an author checks the entry point's value.",
    ),
    Diagnostic(
        "manifest-unreadable",
        FAILED,
        "tokenspeed-plugin.toml is missing from the top-level package, or is not TOML.",
        'Ship the file inside the package (package-data = ["*.toml"]).',
    ),
    Diagnostic(
        "manifest-invalid",
        FAILED,
        "The manifest has an unknown key, a missing key or a value of the wrong type.",
        "Correct the key that the error names.",
    ),
    Diagnostic(
        "manifest-id-differs",
        FAILED,
        "The id in the manifest is not the entry point's name.",
        "Make the two equal.",
    ),
    # ---- compatible
    Diagnostic(
        "plugin-api-mismatch",
        FAILED,
        "The plugin was made for another version of the plugin API.",
        "Install a version of the plugin for this one, or another tokenspeed.",
    ),
    Diagnostic(
        "slot-version-mismatch",
        FAILED,
        "The plugin was built against a version of a slot that this tokenspeed does not take.",
        "Install a version of the plugin for this one, or upgrade tokenspeed.",
    ),
    Diagnostic(
        "slot-unknown",
        FAILED,
        "A manifest or a hook names a slot that does not exist.",
        "Correct the name; the nearest one is suggested.",
    ),
    Diagnostic(
        "slot-not-live",
        FAILED,
        "The slot is planned and nothing uses it in this version.",
        "Take the slot out of the manifest until a release opens it.",
    ),
    Diagnostic(
        "abi-mismatch",
        FAILED,
        "A fact of this environment (Python, C library, CPU, torch, what torch was built for) is "
        "not what the plugin's native code needs.",
        "Install a build of the plugin for this environment, or change the environment as named.",
    ),
    # ---- probed
    Diagnostic(
        "probe-raised",
        FAILED,
        "The plugin's device probe raised an exception.",
        "Read the cause below the error; `tokenspeed plugins doctor ID` runs the probe alone.",
    ),
    Diagnostic(
        "probe-crashed",
        FAILED,
        "A signal ended the probe's process: abort, segmentation fault, illegal instruction.",
        "Check driver and library versions; an illegal instruction means a build for another CPU.",
    ),
    Diagnostic(
        "probe-timeout",
        FAILED,
        "The probe gave no answer within its time limit and was stopped.",
        "Look for a driver that hangs; the probe may not wait for a device.",
    ),
    Diagnostic(
        "probe-invalid",
        FAILED,
        "The probe ended without a usable answer, returned something else than DeviceFacts, or "
        "imported torch.",
        "An author returns a tuple of DeviceFacts and reads device facts without torch.",
    ),
    Diagnostic(
        "device-not-found",
        FAILED,
        "The plugin was named, and its probe finds no device here.",
        "Plug in or enable the device, or run with --plugins auto.",
    ),
    Diagnostic(
        "device-failed",
        FAILED,
        "A device or its driver is there and does not work.",
        "Repair the driver as the message says; a start that would silently use something slower "
        "is not what anybody wants.",
    ),
    # ---- loaded and registered
    Diagnostic(
        "plugin-import-failed",
        FAILED,
        "Importing the plugin's package raised.",
        "Read the cause below the error; reinstall the wheel or install what it needs.",
    ),
    Diagnostic(
        "hook-unknown",
        FAILED,
        "The plugin implements a hook that this plugin API does not have.",
        "Correct the name; the nearest hook is suggested. docs/plugins/hooks.md lists all.",
    ),
    Diagnostic(
        "hook-signature",
        FAILED,
        "A hook takes other arguments than `context`.",
        "Write it as `def register_...(self, context)`.",
    ),
    Diagnostic(
        "hook-unmarked",
        FAILED,
        "A method is named like a hook and is not marked, or nothing is marked at all.",
        "Put @hookimpl before the method; point the entry point at an object with such methods.",
    ),
    Diagnostic(
        "plugin-start-too-long",
        FAILED,
        "A plugin's import and hooks did not end within two minutes; the stack is in the log.",
        "Look at the stack: a plugin that waits for a network or a device at its import does that "
        "in its probe or when it is built instead. Fix the plugin, or leave it out.",
    ),
    Diagnostic(
        "hook-raised",
        FAILED,
        "A hook of the plugin raised; nothing of the plugin was registered.",
        "Read the cause below the error.",
    ),
    Diagnostic(
        "plugin-refused",
        FAILED,
        "The plugin itself refused to run here, in its own words.",
        "Do what the plugin's message says.",
    ),
    Diagnostic(
        "offer-invalid",
        FAILED,
        "An offer has the wrong type, slot, band or trait, or loads as something unusable.",
        "An author corrects the offer that the error names.",
    ),
    Diagnostic(
        "offer-duplicate",
        FAILED,
        "A plugin offers one name twice for a slot.",
        "An author renames one of the two.",
    ),
    Diagnostic(
        "offer-missing",
        FAILED,
        "The manifest states an offer that no hook made.",
        "An author corrects the manifest or the hook.",
    ),
    Diagnostic(
        "offer-differs",
        FAILED,
        "An offer is registered with another band or other traits than the manifest states.",
        "An author makes the two equal: explanations rely on the manifest.",
    ),
    Diagnostic(
        "operator-taken",
        FAILED,
        "Two plugins declare one operator.",
        "An author chooses a name with a prefix of their own.",
    ),
    Diagnostic(
        "operator-unknown",
        FAILED,
        "A kernel is for an operator that nobody declared.",
        "Correct the name; the nearest one is suggested.",
    ),
    Diagnostic(
        "registry-frozen",
        FAILED,
        "A plugin registers after the plan was frozen.",
        "An author registers in the hooks only, which run while starting.",
    ),
    Diagnostic(
        "offer-load-failed",
        FAILED,
        "What was chosen could not be loaded: its load function raised.",
        "Read the cause below the error; pin another offer or leave the plugin out.",
    ),
    Diagnostic(
        "command-refused",
        FAILED,
        "A plugin states a command that is not its to take: one of the core's, a verb of a core "
        "group, or a name that does not begin with its id.",
        "Name the command ID or 'ID WORD', and fill slot cli with role cli.",
    ),
    Diagnostic(
        "model-conflict",
        USAGE,
        "Two plugins, or a plugin and a model module, offer the architecture of this checkpoint.",
        "Pin one of the offers that the error names: --pins model=PLUGIN/NAME.",
    ),
    Diagnostic(
        "model-module-missing",
        FAILED,
        "A module named by --model-module is not on the path.",
        "Install its package (pip install -e FOLDER), put its folder on PYTHONPATH, or correct the "
        "dotted name.",
    ),
    Diagnostic(
        "model-module-failed",
        FAILED,
        "A module named by --model-module raises at import or has no usable EntryClass.",
        "Correct the file as the error and its causes say, or start without it.",
    ),
    Diagnostic(
        "model-failed",
        FAILED,
        "A model's class raised while it declared its cache, was built, or took its weights.",
        "Correct the file and line of the cause below the error, or serve the model with another.",
    ),
    Diagnostic(
        "score-failed",
        FAILED,
        "An offer's score function raised or returned no finite number.",
        "An author corrects it; until then leave the plugin out.",
    ),
    Diagnostic(
        "plan-differs",
        FAILED,
        "A process of this server sees other plugins than the launcher: another version or other "
        "files.",
        "Give every process one environment, or restart after an upgrade. Process, plugin and both "
        "digests are named.",
    ),
    # ---- selected
    Diagnostic(
        "no-candidate",
        NO_CANDIDATE,
        "No offer passes the filter; each is listed with the clauses that it fails.",
        "Change the setting that a clause names, or load a plugin that offers it.",
    ),
    Diagnostic(
        "pin-unknown",
        NO_CANDIDATE,
        "What was pinned is not offered by any loaded plugin.",
        "Correct PLUGIN/NAME (the nearest is suggested), or load its plugin with --plugins.",
    ),
    Diagnostic(
        "pin-unsupported",
        NO_CANDIDATE,
        "The pinned offer cannot do what this model and these settings ask.",
        "Change the pin or the setting; the offers that can are listed.",
    ),
    Diagnostic(
        "pin-forced",
        0,
        "A pinned offer fails clauses that --unsafe-force names: it runs, the plan is tainted, and "
        "its results may be wrong.",
        "Drop --unsafe-force, or pin an offer that declares what is needed.",
    ),
    Diagnostic(
        "fallback-refused",
        NO_CANDIDATE,
        "A slower offer would have been used, and --fallback is error.",
        "Allow it with --fallback warn, or change the setting that refuses the faster one.",
    ),
    Diagnostic(
        "device-fallback-refused",
        NO_CANDIDATE,
        "A device was found and its plugin failed, so that the engine would run on another kind of "
        "device.",
        "Repair or leave out the plugin (--plugins), name the device (--device), or accept it with "
        "--allow-device-fallback.",
    ),
    Diagnostic(
        "device-not-offered",
        NO_CANDIDATE,
        "No loaded plugin offers the device kind that was asked for.",
        "Load its plugin with --plugins, or choose one of the kinds listed.",
    ),
    Diagnostic(
        "cache-unsupported",
        NO_CANDIDATE,
        "The chosen attention backends cannot share one cache layout, or cannot read this model's.",
        "Pin other backends with --attention, or change --block-tokens as named.",
    ),
    # ---- active
    Diagnostic(
        "store-detached",
        0,
        "A KV store failed several times in a row and is no longer used; evicted blocks are "
        "computed again and answers stay right.",
        "Look at the store's own log; restart the server when it is well again.",
    ),
    Diagnostic(
        "speculator-detached",
        0,
        "A speculator failed several times and is no longer asked; answers stay the same and come "
        "slower.",
        "Fix its plugin and restart the server, or leave it out (--speculator '').",
    ),
    Diagnostic(
        "hook-after-freeze",
        0,
        "A hook was called after the plan was frozen; counted in "
        "tokenspeed_hook_calls_after_freeze_total, which must stay 0.",
        "An author calls no hook while serving; everything is bound at the start.",
    ),
)

DIAGNOSTICS = {item.id: item for item in _ALL}


def exit_code_of(diagnostic_id: str) -> int:
    """Return the exit code of a diagnostic; one that a plugin invented counts as failed."""
    known = DIAGNOSTICS.get(diagnostic_id)
    return FAILED if known is None else known.exit_code

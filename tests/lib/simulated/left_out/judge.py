"""Leave out each call in turn, run the scenarios that come by it, and tell who sees it.

Nothing may take the place of a wrong number by chance: each scenario is first run with lib as it is, where it must be
right. What is not seen is tried again with longer delays, as the host may have been slower than the device.
"""

import importlib
import json
import sys

from tests.lib.simulated.left_out.sites import all_sites, chosen, install

#: Seconds. A host that is kept from running for longer than this is given another chance.
DELAYS = (0.05, 0.2, 0.8)
NOBODY = "no scenario comes by"


def told(run, delay):
    """Return what a scenario says: nothing where all is right."""
    from tests.lib.simulated.left_out.scenario import synchronize

    try:
        run(delay)
    except AssertionError as error:
        return f"wrong: {str(error).strip().splitlines()[0] if str(error).strip() else 'no sentence'}"
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    finally:
        left_out = chosen.left_out
        chosen.left_out = ""
        synchronize()
        chosen.left_out = left_out
    return ""


def seen(name, runs):
    """Leave out one call; return who sees it first and what that one says, or None."""
    for delay in DELAYS:
        for run in runs:
            chosen.left_out = name
            says = told(run, delay)
            chosen.left_out = ""
            if says:
                return {"by": run.__name__, "delay": delay, "says": says}
    return None


def complaint(name, found):
    """Return what is to be done about a call: nothing if a scenario sees that it is left out."""
    if found == NOBODY:
        return f"{name}: no scenario comes by. Write one, in tests/lib/simulated/left_out"
    if found is None:
        return f"{name}: left out, nobody sees it. Write a scenario that does, or leave it out"
    return ""


def main(part: str = "") -> None:
    """Judge the calls with `part` in their names; each as a line on stderr, all of them as JSON on stdout."""
    install()
    from tests.lib.simulated.left_out import scenario

    scenario.costs()  # starts the devices: only now does torch know their name
    for subject in ("measuring", "pipeline", "schedules", "streams"):
        importlib.import_module(f"tests.lib.simulated.left_out.of_{subject}")
    as_it_is = {}
    reached = {}
    for run in scenario.SCENARIOS:
        chosen.reached.clear()
        as_it_is[run.__name__] = told(run, DELAYS[0])
        reached[run] = set(chosen.reached)
    left_out = {}
    for name in all_sites():
        if part in name:
            runs = [run for run in scenario.SCENARIOS if name in reached[run]]
            left_out[name] = seen(name, runs) if runs else NOBODY
            print(f"{name}\n    {left_out[name]}", file=sys.stderr, flush=True)
    print(json.dumps({"as it is": as_it_is, "left out": left_out}))

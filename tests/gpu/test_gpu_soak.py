# SPDX-License-Identifier: Apache-2.0
"""10,000 rounds, the daemon killed with SIGKILL every 2,000 of them: none is wrong, none waits longer than it may."""

from __future__ import annotations

import random
import time

from pathlib import Path

import pytest

from gpu_harness import GEOMETRY, POOL, Ask, daemon, engine, worker

from hostflag.verdicts import Verdict


ROUNDS = 10_000
KILL_EVERY = 2_000
DEADLINE_MS = 1_000.0
BOUND_S = 1.01  # the deadline and two ticks of 5 ms


@pytest.mark.timeout(240)
def test_a_soak_with_kills(short_dir: Path) -> None:
    rng = random.Random(1)
    done = 0
    longest_s = 0.0
    with worker() as endpoint, engine(short_dir / "e.sock", deadline_ms=DEADLINE_MS) as one:
        kept = None
        while done < ROUNDS:
            with daemon(short_dir, endpoint, "--network-timeout-ms=900") as process:
                assert one.shim.wait_session(30.0)
                one.ok()
                kept = one.stream.kept if kept is None else kept
                for index in range(KILL_EVERY):
                    slots = rng.sample(range(GEOMETRY.state_slots), rng.randint(1, 3))
                    step = [Ask(slot, rng.randrange(POOL - 3), rng.randint(1, 3)) for slot in slots]
                    if index == KILL_EVERY - 1:
                        # The last one has a round parked when the daemon dies.
                        ticket = one.submit(step)
                        process.process.kill()
                        assert one.drained(), "released, whatever the daemon was at"
                        one.book(ticket.ref, step, one.tensors.drafts[: len(step)].tolist())
                    else:
                        began = time.monotonic()
                        verdict = one.step(step)
                        longest_s = max(longest_s, time.monotonic() - began)
                        assert verdict is Verdict.OK, one.shim.status()
                done += KILL_EVERY
        status = one.shim.status()
        assert one.wrong == 0
        assert one.verdicts["OK"] >= ROUNDS - ROUNDS // KILL_EVERY
        assert longest_s < BOUND_S
        assert status.losses == {"HANGUP": ROUNDS // KILL_EVERY}
        assert one.stream.kept == kept, "every session but the first took over the region: nothing was registered"
        print(f"{done} rounds, {one.verdicts}, 0 wrong, {status.losses}, longest step {longest_s * 1e3:.1f} ms")

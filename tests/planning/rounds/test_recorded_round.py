"""Two rounds of a real run (2 ranks, gloo): what the agents said, and what was recorded of it.

Rank 1 was killed in its step 3, and the next round completed. tests/data/killed_rank.jsonl has what
came to the supervisor, and the events that it wrote.
"""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

from round_scene import AT, order

from hpckit.model import events
from hpckit.model.launch import LaunchConfig, Recovery, Resources
from hpckit.model.messages import decode_message
from hpckit.planning.recovery.decide import decide_after_round
from hpckit.planning.recovery.ledger import Ledger
from hpckit.planning.recovery.round_view import NewRound, RoundView, build_round_event_for_action
from hpckit.planning.rounds.round_state import Phase, create_round_state
from hpckit.planning.rounds.round_turns import Heard, Turn, advance_round
from hpckit.values import replace

ROWS = [
    json.loads(line)
    for line in (Path(__file__).parents[2] / "data" / "killed_rank.jsonl").read_text().splitlines()
]
POLICY = Recovery(restarts={"signal": 1})


def replay(number: int) -> tuple[list[events.Event], RoundView]:
    """Return what a round would record if all of this came again, and how it ended."""
    settings = LaunchConfig(resources=Resources(nodes=1, tasks_per_node=2))
    state = create_round_state(number, {0: "n1"}, settings, 0.0, {0: order(0)})
    told: list[events.Event] = []
    clock, at = 0.0, AT
    for row in ROWS:
        if row.get("round") != number or "event" in row:
            continue
        clock, at = row["after_s"], datetime.fromisoformat(row["at"])
        state, found = advance_round(state, turn_of(row), clock, at)
        told += [one for one in found if isinstance(one, events.Event)]
    assert state.phase is Phase.over
    return told, state.build_view_for_decisions(("n1",), 0.0, clock, at)


def turn_of(row: dict[str, Any]) -> Heard | Turn:
    """Return what happened."""
    if "turn" in row:
        return Turn[row["turn"]]
    return Heard(row["sender"], decode_message(json.dumps(row["message"]).encode()))


def test_what_agents_said_leads_to_the_same_record_again() -> None:
    """The same events, in the same order, and the same decisions, from their messages alone."""
    told: list[events.Event] = []
    past = Ledger()
    for number in range(2):
        recorded, view = replay(number)
        action = decide_after_round(replace(view, saved=number > 0), POLICY, past)
        assert isinstance(action, NewRound) == (number == 0)
        ended = build_round_event_for_action(view, action)
        past = past.after_round(ended, 1, ran=view.ran)
        told += [*recorded, ended]
    written = [row for row in ROWS if "event" in row]
    assert [events.encode_event(one) for one in told] == written

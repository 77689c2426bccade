"""The schedule with the fewest changes of who runs among those of a class that come to its failure.

Needed are the steps that come before the failing one in every schedule of the class. In which order the warpgroups take them is
searched breadth first, by the number of changes. Who runs goes on for as long as there is a needed step of it: one more step
keeps nobody from going on later, so nothing is lost. Copies that land, and products that run, come when they may: they change no
warpgroup. What is found is the least that there is, unless the search ends at `STATES`. A warpgroup that has tested a barrier in
vain `directed.POLLS` times lets others go first, which no step says that comes before: of such schedules the least is not known.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...sim.directed import Agent, Step

STATES = 20_000
"""sets of steps that are looked at"""


def needed(steps: Sequence[Step], before: Sequence[int]) -> list[int]:
    """Return the numbers of the steps that a failing schedule needs, the failing one among them."""
    last = len(steps) - 1
    wanted = before[last] | 1 << last if steps[last].footprint.failed else (2 << last) - 1
    return [number for number in range(len(steps)) if wanted >> number & 1 and not steps[number].waited]


def fewest_changes(steps: Sequence[Step], before: Sequence[int]) -> tuple[int, list[Agent]] | None:
    """Return how often another warpgroup has to be run than before, and an order of who runs with as few changes.

    None where the search ended at its bound, or a needed step gave way because it tested a barrier in vain.
    """
    numbers = needed(steps, before)
    if any(steps[number].deferred for number in numbers):
        return None
    wanted = sum(1 << number for number in numbers)
    of: dict[Agent, int] = {}
    for number in numbers:
        of[steps[number].agent] = of.get(steps[number].agent, 0) | 1 << number
    others = [agent for agent in of if isinstance(agent[0], str)]
    warpgroups = [agent for agent in of if not isinstance(agent[0], str)]

    def run(done: int, *agents: Agent) -> tuple[int, list[Agent]]:
        """Let these go on for as long as they can, the first of them first."""
        order: list[Agent] = []
        while True:
            for agent in agents:
                left = of[agent] & ~done
                following = (left & -left).bit_length() - 1
                if left and not before[following] & wanted & ~done:
                    done |= 1 << following
                    order.append(agent)
                    break
            else:
                return done, order

    begun, first = run(0, *others)
    level: list[tuple[int, Agent | None, list[Agent]]] = [(begun, None, first)]
    seen, rounds = {begun}, 0
    while level and len(seen) <= STATES:
        later: list[tuple[int, Agent | None, list[Agent]]] = []
        for done, running, order in level:
            if done == wanted:
                return max(rounds - 1, 0), order
            for agent in warpgroups:
                if agent == running:
                    continue
                then, more = run(done, agent, *others)
                if then != done and then not in seen:
                    seen.add(then)
                    later.append((then, agent, order + more))
        level, rounds = later, rounds + 1
    return None
